"""Load a model with its tokenizer, and name its weights: what a signature says of a model."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load(name: str | Path, **options: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and tokenizer of a hub id or a local folder, of the class the checkpoint was saved from, in eval mode.

    `options` go to the model's `from_pretrained`. Raises OSError with the name and what was missing.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(name)
        cls = getattr(transformers, (config.architectures or ["AutoModel"])[0])
        model = cls.from_pretrained(name, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, AttributeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OSError(
            f"could not load {str(name)!r}: {reason} (a local folder needs config.json, weights, tokenizer)"
        ) from error
    return model.eval(), tokenizer


def vocabulary(model: PreTrainedModel) -> int:
    """How many token ids the model has embeddings for."""
    return int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]


def name(model: PreTrainedModel) -> str:
    """What a signature calls a model: the last part of the name it was loaded by, or its class."""
    return Path(model.config.name_or_path or "").name or type(model).__name__


def revision(model: PreTrainedModel) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of all weights, with their names and shapes."""
    digest = hashlib.sha256()
    for key, value in model.state_dict().items():
        digest.update(f"{key}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def place(model: PreTrainedModel, device: str | None = None) -> PreTrainedModel:
    """The model on `device`, by default on a GPU if there is one. Raises ValueError for a device torch cannot use."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model.to(torch.device(device))  # type: ignore[arg-type]
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {device!r} cannot be used: {reason}") from error
    return model
