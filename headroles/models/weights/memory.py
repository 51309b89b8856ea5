"""Memory of weights: copies that share it, conversion in place; what returns to the system, and what is kept."""

from __future__ import annotations

import ctypes
import gc
import sys
from copy import deepcopy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

SMALL = 2**24  # weights
PIECE = 2**25 - 2**16  # bytes: the largest piece to which glibc adapts is 2^25, header included


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


def keep_memory() -> None:
    """Let glibc keep the memory of a batch for the next one, up to 64 MiB, instead of returning it to the system.

    It keeps twice the size of the largest piece that was ever freed (mallopt(3), `M_MMAP_THRESHOLD`). Without one, a
    pass over attention weights gets the same pages from the system in every layer.
    """
    torch.empty(PIECE, dtype=torch.uint8, device="cpu")  # freed at once, and never written


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
