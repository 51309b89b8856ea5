"""Calls by headroles that would make a GPU wait for the host, counted on any machine."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import headroles

ROOT = str(Path(headroles.__file__).parent)
READING = {Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.__bool__, Tensor.__int__, Tensor.__float__}
READING |= {Tensor.__index__, Tensor.nonzero, Tensor.equal, torch.nonzero, torch.equal, torch.allclose}
READING |= {Tensor.masked_select, torch.masked_select, Tensor.masked_scatter, Tensor.masked_scatter_}


class Syncs(TorchFunctionMode):
    """Counts, by file and function of headroles, the calls that read numbers of a tensor, or index by a bool tensor."""

    def __init__(self):
        super().__init__()
        self.places = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        index = args[1] if func in (Tensor.__getitem__, Tensor.__setitem__) else ()
        by_mask = any(isinstance(part, Tensor) and part.dtype == torch.bool for part in _parts(index))
        if func in READING or by_mask:
            frame = sys._getframe(1)
            while frame and "site-packages/torch/" in frame.f_code.co_filename:
                frame = frame.f_back
            if frame and frame.f_code.co_filename.startswith(ROOT):
                self.places[f"{frame.f_code.co_filename.removeprefix(ROOT)}:{frame.f_code.co_name}"] += 1
        return func(*args, **(kwargs or {}))


def _parts(index):
    return index if isinstance(index, tuple) else (index,)


def per_batch(run, few, many):
    """How often each place reads a tensor in each batch: the calls for `many` corpus batches less those for `few`."""
    counts = []
    for corpus in (few, many):
        with Syncs() as syncs:
            run(corpus)
        counts.append(syncs.places)
    return {place: count - counts[0][place] for place, count in counts[1].items() if count > counts[0][place]}
