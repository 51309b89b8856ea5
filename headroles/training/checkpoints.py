"""Checkpoints of a training: the last complete one, and the digests by which damage to its files is noticed."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers import PreTrainedModel

from headroles.models.pruned import resized
from headroles.tables.io import replacing

DIGESTS = "SHA256SUMS"  # in the format of the program sha256sum, which can check them, too


def load_weights(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Load the weights in a folder into a model, also those of gates among its modules.

    Files have other names than modules where transformers renames the weights, as of experts.

    Returns:
        The model in the folder.
    """
    saved: PreTrainedModel = resized(type(model)).from_pretrained(folder)
    state, names = saved.state_dict(), {*model.state_dict()}
    for file in folder.glob("*.safetensors"):
        state |= {name: value for name, value in load_file(file).items() if name in names - {*state}}
    model.load_state_dict(state)
    return saved


def last_checkpoint(folder: Path) -> Path | None:
    """Return the last complete checkpoint in the folder: one that was being written at a kill is incomplete.

    A file of it that is not as it was written raises ValueError.
    """
    complete = [path for path in folder.glob("checkpoint-*") if _is_complete(path)]
    if not complete:
        return None
    last = max(complete, key=lambda path: int(path.name.rpartition("-")[2]))
    check_digests(last, f"remove {last} to go on from the checkpoint before it")
    return last


def _is_complete(checkpoint: Path) -> bool:
    """Return whether the file that the Trainer writes last can be read."""
    try:
        return "log_history" in json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return False


def write_digests(folder: Path, files: str = "*") -> None:
    """Write the digests of the files of a folder, of all or those of a pattern, into a file beside them."""
    paths = [path for path in sorted(folder.glob(files)) if path.is_file() and path.name != DIGESTS]
    text = "".join(f"{_digest(path)}  {path.name}\n" for path in paths)
    with replacing(folder / DIGESTS) as draft:
        draft.write_text(text, encoding="utf-8")


def check_digests(folder: Path, advice: str) -> None:
    """Raise ValueError for a file of a folder that is not as it was written, or without digests cannot be read."""
    if not (folder / DIGESTS).is_file():  # of an earlier version, or of transformers
        for path in sorted(folder.iterdir()):
            if fault := _unreadable(path):
                raise ValueError(f"{path} cannot be read: {fault}; {advice}")
        return
    for line in (folder / DIGESTS).read_text(encoding="utf-8", errors="replace").splitlines():
        if not (match := re.fullmatch(r"([0-9a-f]{64})  (.+)", line)):
            raise ValueError(f"{folder / DIGESTS} is damaged: got {line!r}; expected a SHA-256 and a name; {advice}")
        path, expected = folder / match[2], match[1]
        got = _digest(path) if path.is_file() else "no file"
        if got != expected:
            raise ValueError(f"{path} is damaged: got {got[:12]}; expected SHA-256 {expected[:12]}; {advice}")


def _unreadable(path: Path) -> str | None:
    """Why a file of weights, or one that torch saved, cannot be read."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt"):
                return None
        if path.suffix in (".pt", ".pth", ".bin") and _begins_as_zip(path):
            with ZipFile(path) as archive:
                part = archive.testzip()
                return None if part is None else f"{part} in it has changed"
    except (SafetensorError, BadZipFile) as error:
        return str(error)
    return None


def _begins_as_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
