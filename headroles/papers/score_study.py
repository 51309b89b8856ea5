"""Score the heads of a model on a corpus, assign their roles and draw the figures, in one study folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from PIL import Image

from headroles.analysis import role_rules
from headroles.plots.gallery import DRAWN, figures, save
from headroles.tables import frame
from headroles.tables.columns import after_stem, stem_of
from headroles.tables.io import check_ours, mark_of, save_table
from headroles.tables.study import Study

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def balances(study: Study) -> dict[str, dict[str, float]]:
    """Return the totals of each conservation report of a study: shares of inputs, biases and the residue."""
    from headroles.scores.lrp import totals

    names = [name for name in study.names() if stem_of(name) == "conservation"]
    return {after_stem(name): totals(study.load(name)) for name in names}


def assign_roles(study: Study, *, thresholds: dict[str, float] | None = None, test: bool = False) -> pd.DataFrame:
    """Assign roles from the score table of a study and save them as its table `roles`.

    Args:
        study: Study with a score table.
        thresholds: Thresholds of roles by name; by default those of the roles.
        test: Whether to test each head and role, as `hr.roles`.

    Returns:
        The role table, as of `hr.roles`.

    Raises:
        FileNotFoundError: If the study has no score table.
    """
    if not study.has("heads"):
        raise FileNotFoundError(f"no score table in {study.folder}; make it with headroles score")
    table = role_rules.roles(study.load("heads"), thresholds=thresholds, test=test)
    save_table(table, study.path("roles"))
    return table


def circuits_study(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, study: Study
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Compute what the weights alone say of heads, without a corpus: copying, succession and composition.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        study: Study that keeps the tables `circuits`, a row per head, and `composition`, a row per pair.

    Returns:
        The table of `hr.composition`, and the scores in `circuits` that the model does not have, with the reason.

    Raises:
        ValueError: If the maps of the model cannot be read.
    """  # noqa: DOC502
    from headroles.models.provenance import cache_key, tokens
    from headroles.scores import composition, copying, succession

    key = cache_key(model, tokenizer=tokens(tokenizer), circuits="weights")
    pairs = study.keep("composition", key, lambda: composition(model))
    scores, lacking = [], dict[str, str]()
    for name, compute in (("copying", copying), ("succession", partial(succession, tokenizer=tokenizer))):
        try:
            scores.append(compute(model))
        except ValueError as error:
            lacking[name] = str(error)
    if scores:
        study.keep("circuits", key, lambda: frame.join(*scores))
    return pairs, lacking


def draw(study: Study) -> list[Path]:
    """Draw every figure that the tables of a study allow, as PNG beside them.

    A figure that shows what the tables have now stays as it is, unless the study is to be overwritten. Figures of an
    earlier drawing that the tables no longer allow are removed.

    Args:
        study: Study with tables.

    Returns:
        The files.

    Raises:
        FileNotFoundError: If the study has no tables.
        FileExistsError: If a picture that headroles did not draw has the name of a figure.
    """  # noqa: DOC502
    if not study.names():
        raise FileNotFoundError(f"no tables in {study.folder}; make them with headroles score")
    files = []
    for figure in figures(study.names(), study.load):
        path, digest = study.folder / f"{figure.name}.png", figure.digest()
        files.append(path)
        if _shows(path, digest) and not study.overwrite:
            continue
        if path.is_file() and b"Matplotlib" not in path.read_bytes():  # earlier versions did not sign figures
            check_ours(path, "", overwrite=study.overwrite)
        save(figure.draw(), path, digest=digest)
    for old in {path for pattern in DRAWN for path in study.folder.glob(pattern)} - set(files):
        if mark_of("").encode() in old.read_bytes():
            old.unlink(missing_ok=True)
    return files


def _shows(path: Path, digest: str) -> bool:
    """Return whether an undamaged PNG shows what has this digest."""
    try:
        with Image.open(path) as picture:
            picture.verify()
            return bool(picture.info.get("Source") == digest)
    except (OSError, SyntaxError):  # the latter of broken chunks
        return False
