"""GGUF: llama.cpp's files of weights rounded to a few bits each; models of them are marked as rounded."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.utils.hub import cached_file

SUFFIX = ".gguf"
ROUNDED = "headroles_rounded"  # entry of a config: the types to which weights are rounded
EXACT = ("F64", "F32", "F16", "BF16")  # types of numbers, not of blocks that share a scale


def located(name: str | Path, options: Mapping[str, Any]) -> tuple[str | Path, dict[str, Any]]:
    """Return the folder of a checkpoint and its options; a file that ends in .gguf is one of its folder.

    Raises:
        OSError: The package gguf is not installed.
    """
    path = Path(name)
    if path.suffix == SUFFIX and not path.is_dir():
        name, options = path.parent, {**options, "gguf_file": path.name}
    if options.get("gguf_file") and find_spec("gguf") is None:
        raise OSError(f"could not load {options['gguf_file']!r}: install gguf, in a checkout: pip install '.[gguf]'")
    return name, dict(options)


def unpack(model: PreTrainedModel, name: str | Path, *, gguf_file: str | None = None, **place: Any) -> None:
    """Make a model of a GGUF file an ordinary one that can be saved, with the rounding in its config."""
    if gguf_file is None:
        return
    import gguf

    path = cached_file(str(name), gguf_file, **place)
    if path is None:
        raise FileNotFoundError(f"{name} has no file {gguf_file!r}")
    tensors = gguf.GGUFReader(path).tensors
    types = sorted({tensor.tensor_type.name for tensor in tensors} - {*EXACT})
    loose: Any = model
    loose.hf_quantizer = None
    loose.is_quantized = False
    loose.quantization_method = None
    vars(model.config).pop("quantization_config", None)
    if types:
        setattr(model.config, ROUNDED, ",".join(types))


def rounding(model: PreTrainedModel) -> dict[str, str]:
    """Return the field of provenance of a model with rounded weights, or none."""
    types = getattr(model.config, ROUNDED, None)
    return {"rounded": types} if types else {}
