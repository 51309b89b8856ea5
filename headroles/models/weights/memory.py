"""Memory of weights: copies that share it, conversion in place, and its return to the system."""

from __future__ import annotations

import ctypes
import gc
import sys
from copy import deepcopy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

SMALL = 2**24  # weights


def sharing(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model with parameters and buffers of its own in the memory of the model's."""
    tensors: dict[int, Tensor] = {}
    for value in model.parameters():
        if type(value) is nn.Parameter:
            tensors[id(value)] = nn.Parameter(value.detach(), requires_grad=value.requires_grad)
    tensors |= {id(value): value.detach() for value in model.buffers() if type(value) is Tensor}
    copy: PreTrainedModel = deepcopy(model, tensors)
    return copy


def in_memory(model: PreTrainedModel) -> PreTrainedModel:
    """Read the weights into memory: those of a mapped file stay in it until the last one is converted."""
    for value in [*model.parameters(), *model.buffers()]:
        if type(value.data) is Tensor and value.device.type == "cpu":
            value.data = value.data.clone()
    return model


def convert(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Convert a model; the largest weights first if they grow, else last: each is in memory twice in its turn."""
    values = [value for value in (*model.parameters(), *model.buffers()) if value.is_floating_point()]
    for value in sorted(values, key=Tensor.numel, reverse=dtype == torch.float64):
        if type(value.data) is Tensor:
            value.data = value.data.to(dtype)
    model.to(dtype)  # type: ignore[arg-type]


def return_memory(model: PreTrainedModel) -> None:
    """Return memory that nothing uses to the system; glibc keeps what lies between pieces that are in use.

    After a small model nothing is returned: to look for it takes longer than its checks.
    """
    if model.num_parameters() < SMALL:
        return
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
