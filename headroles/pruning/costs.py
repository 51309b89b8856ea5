"""Efficiency: what a model costs with heads closed by gates, and with the same heads cut out of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from headroles._progress import track
from headroles.models import attention_hooks, loading
from headroles.models import heads as families
from headroles.models.dummy_inputs import dummy_inputs, without_cache
from headroles.models.masking import Head, head_mask, mask_heads
from headroles.pruning.removal import Groups, remove_heads
from headroles.tables import frame


def efficiency(
    model: PreTrainedModel,
    order: Sequence[Head],
    *,
    shares: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    batches: Sequence[int] = (1, 4, 16, 64),
    length: int = 64,
    repeats: int = 7,
    groups: Groups = "equal",
) -> pd.DataFrame:
    """What forwards of `length` tokens cost when the first heads of an order are closed (Michel et al. 2019, Table 4).

    A row for each share of closed heads, way ("gates" or "cut") and batch size: `closed`, `parameters`, `bytes` of the
    weights, `flops` of one forward (matrix products), `speed`, examples per second with its `speed.sd` over the
    repeats, `speedup` over the whole model with the `speedup.low` and `speedup.high` of its 95 % interval, and
    `allowed`, the speed-up if time went by the operations. Every timed forward stands beside one of the whole model,
    after one of each to warm up: speeds vary from machine to machine, the ratios less. Inputs are random.
    """
    if repeats < 2 or length < 1 or not all(0 <= share < 1 for share in shares):
        raise ValueError(
            f"expected shares from 0 to below 1, a length of at least 1 and at least 2 repeats; got shares={shares}, "
            f"length={length}, repeats={repeats}"
        )
    rows = []
    variants = [*_variants(model, order, shares, groups)]
    with attention_hooks.evaluating(model):
        for batch in batches:
            inputs = _inputs(model, batch, length)
            whole = _Forward(model, inputs)
            base = _flops(whole)
            for share, count, way, make in track(variants, f"batch {batch}", total=len(variants)):
                one = make()
                forward = _Forward(one, inputs, head_mask(model, order[:count]) if way == "gates" else None)
                fact = {"share": share, "closed": count, "way": way, "batch": batch} | _size(one)
                flops = _flops(forward)
                rows.append(
                    fact | {"flops": flops} | _timed(forward, whole, batch, repeats) | {"allowed": base / flops}
                )
    table = pd.DataFrame(rows)
    text = frame.sign(
        model=loading.name(model),
        weights=loading.revision(model),
        length=length,
        repeats=repeats,
        threads=torch.get_num_threads(),
        device=model.device,
        torch=torch.__version__,
        headroles=version("headroles"),
    )
    table.attrs["signatures"] = dict.fromkeys(map(str, table.columns), text)
    return table


def _variants(
    model: PreTrainedModel, order: Sequence[Head], shares: Sequence[float], groups: Groups
) -> Iterator[tuple[float, int, str, Callable[[], PreTrainedModel]]]:
    """Share, number of closed heads, way, and what makes the model."""
    size = len(families.head_index(model))
    for share in shares:
        count = round(share * size)
        if count > len(order):
            raise ValueError(f"{count} heads are to be closed, and the order has {len(order)}; give one of all heads")
        yield share, count, "gates", lambda: model
        yield share, count, "cut", lambda count=count: remove_heads(deepcopy(model), order[:count], groups=groups)  # type: ignore[misc]


class _Forward:
    """One forward of a model on given inputs, with gates or without."""

    def __init__(self, model: PreTrainedModel, inputs: dict[str, Tensor], gates: Tensor | None = None) -> None:
        self.model, self.inputs, self.gates = model, inputs, gates

    def __call__(self) -> None:
        with torch.inference_mode():
            self.model(**self.inputs, **without_cache(self.model))

    def seconds(self) -> float:
        if self.gates is None:
            return self._seconds()
        with mask_heads(self.model, self.gates):
            return self._seconds()

    def _seconds(self) -> float:
        self._wait()
        start = time.perf_counter()
        self()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize()


def _timed(forward: _Forward, whole: _Forward, batch: int, repeats: int) -> dict[str, float]:
    forward.seconds(), whole.seconds()  # to warm up
    turns = [(forward, whole), (whole, forward)]  # in turns: who comes second finds warmer caches
    taken = [{one: one.seconds() for one in turns[turn % 2]} for turn in range(repeats)]
    pairs = np.array([(each[forward], each[whole]) for each in taken])  # [repeat, 2]
    speed, ratios = batch / pairs[:, 0], np.log(pairs[:, 1] / pairs[:, 0])
    half = 1.96 * ratios.std(ddof=1) / np.sqrt(repeats)
    found = {"speed": speed.mean(), "speed.sd": speed.std(ddof=1), "speedup": np.exp(ratios.mean())}
    found |= {"speedup.low": np.exp(ratios.mean() - half), "speedup.high": np.exp(ratios.mean() + half)}
    return {name: float(value) for name, value in found.items()}


def _size(model: PreTrainedModel) -> dict[str, int]:
    parameters = list(model.parameters())
    return {
        "parameters": sum(one.numel() for one in parameters),
        "bytes": sum(one.numel() * one.element_size() for one in parameters),
    }


def _flops(forward: _Forward) -> int:
    """By the model's eager attention, whose products are counted; fused ones are not."""
    with attention_hooks.attending(forward.model, lambda _: None), FlopCounterMode(display=False) as counter:
        forward()
    return int(counter.get_total_flops())


def _inputs(model: PreTrainedModel, batch: int, length: int) -> dict[str, Tensor]:
    """Random inputs; a target as long as the source."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {}
    for name, value in dummy_inputs(model).items():
        if value.is_floating_point():
            found[name] = value.expand(batch, *value.shape[1:])
        else:
            drawn = torch.randint(len(value[0]), (batch, length), generator=generator)
            found[name] = value[0][drawn.to(value.device)]
    return found
