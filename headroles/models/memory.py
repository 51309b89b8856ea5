"""Memory: copies of a model that share it, and pieces that are kept from one batch to the next."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

PIECE = 2**25 - 2**16  # bytes: the largest piece to which glibc adapts is 2^25, header included


def sharing(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model that shares the memory of its weights and buffers."""
    tensors: dict[int, Tensor] = {}
    for value in model.parameters():
        if type(value) is nn.Parameter:
            tensors[id(value)] = nn.Parameter(value.detach(), requires_grad=value.requires_grad)
    tensors |= {id(value): value.detach() for value in model.buffers() if type(value) is Tensor}
    copy: PreTrainedModel = deepcopy(model, tensors)
    return copy


def keep_memory() -> None:
    """Let glibc keep the memory of a batch, up to 64 MiB, for the next one.

    It keeps twice the size of the largest piece that was ever freed (mallopt(3), `M_MMAP_THRESHOLD`). Without one, a
    pass over attention weights gets the same pages from the system in every layer: a third more time of a tiny model.
    """
    torch.empty(PIECE, dtype=torch.uint8, device="cpu")  # freed at once, and never written
