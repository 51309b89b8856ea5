"""The smallest forward of any model: what to call it with when only its attention matters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models import vocabulary

SOURCE, TARGET = 7, 5  # lengths: they differ, so that shapes tell cross-attention


def probe(model: PreTrainedModel) -> dict[str, Tensor]:
    """Arguments for one small forward: token ids, pixels or log-mel features, and a target of another length."""
    config: Any = model.config
    name = str(model.base_model.main_input_name)
    makers: dict[str, Callable[[], Tensor]] = {
        "input_ids": lambda: _ids(model, SOURCE),
        "pixel_values": lambda: _noise(model, config.num_channels, config.image_size, config.image_size),
        "input_features": lambda: _noise(model, config.num_mel_bins, 2 * config.max_source_positions),
    }
    if name not in makers:
        raise ValueError(
            f"{type(model).__name__} reads {name!r}, which headroles does not know how to make "
            f"(known: {', '.join(makers)}); give sites(model, inputs) the arguments of one small forward"
        )
    inputs = {name: makers[name]()}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = _ids(model, TARGET)
    return inputs


def without_cache(model: nn.Module) -> dict[str, bool]:
    """`use_cache=False` where the forward of `model` takes it: FSMT's decoder is causal only then."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def _noise(model: PreTrainedModel, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand((1, *shape), generator=generator).to(model.device, model.dtype)


def _ids(model: PreTrainedModel, length: int) -> Tensor:
    """Token ids that are not padding (some families count positions by what is not): [1, length]."""
    padding = getattr(model.config, "pad_token_id", None)
    ids = [i for i in range(vocabulary(model)) if i != padding][-length:]
    return torch.tensor([(ids * length)[:length]], device=model.device)
