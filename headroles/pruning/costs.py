"""Efficiency: time, operations and size of a model with masked heads, and with the same heads removed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from headroles._distributed import track
from headroles.models.attention_hooks import attending
from headroles.models.dummy_inputs import dummy_inputs
from headroles.models.head_model import HeadModel
from headroles.models.masking import Head, head_mask
from headroles.models.parts import sharing
from headroles.pruning.rankings import Random, RankingContext
from headroles.pruning.removal import Groups, remove_heads
from headroles.tables import frame
from headroles.tables.arguments import number
from headroles.tables.study import Study, as_study


def efficiency(
    model: PreTrainedModel,
    order: Sequence[Head | str] | None = None,
    *,
    shares: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    batches: Sequence[int] = (1, 4, 16, 64),
    length: int = 64,
    repeats: int = 7,
    groups: Groups = "equal",
    seed: int = 0,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Measure the cost of forward passes without the first heads of a ranking (Michel et al. 2019, Table 4).

    Inputs are random. Timed forwards alternate with forwards of the whole model, because ratios of speeds depend less
    on the machine than speeds.

    Args:
        model: A Hugging Face model, which is not changed.
        order: A ranking, (kind, layer, head) each, or in writing as in `head_mask`; the first heads are masked or
            removed. By default it is random, with as many heads from each layer.
        shares: Shares of the model's heads that are masked or removed, from 0 to below 1.
        batches: Batch sizes.
        length: Tokens of an example.
        repeats: Timed forward passes, at least 2.
        groups: What is removed where query heads share key-value heads, as in `remove_heads`.
        seed: Seed of a random ranking.
        study: Study or folder that keeps the table as `efficiency`. It is measured at every call, because speeds depend
            on the machine and its load.

    Returns:
        A table with a row per share, way ("gates": masked; "cut": removed) and batch size.

        - masked: number of masked or removed heads.
        - parameters, bytes: size of the weights.
        - flops: operations of the matrix products of one forward.
        - speed, speed.sd: examples per second, and their standard deviation over the repeats.
        - speedup, speedup.low, speedup.high: speed relative to the whole model, and its 95 % interval (Student's t of
          the logarithms).
        - allowed: speed-up if time were proportional to operations.

    Raises:
        ValueError: If a share or `repeats` is out of range, or the ranking is too short.
    """
    number("repeats", repeats, least=2, whole=True)
    for share in shares:
        number("a share", share, below=1)
    handle = HeadModel(model)
    if study is not None:
        kept = as_study(study)
        kept.claim("efficiency", frame.sign(weights=handle.weights))
    if order is None:
        order = Random("layer").order(RankingContext(model, None, None, handle.sites.of_kinds(None), seed))  # type: ignore[arg-type]
    rows, ranked = [], handle.sites.named(order)
    variants = [(share, round(share * len(handle.index)), way) for share in shares for way in ("gates", "cut")]
    if (most := max(count for _, count, _ in variants)) > len(ranked):
        raise ValueError(f"order must have at least {most} heads for a share of {max(shares):g}, got {len(ranked)}")
    with handle.evaluating():
        for batch in batches:
            inputs = _inputs(handle.model, batch, length)
            intact, base = partial(_seconds, handle, inputs), _flops(handle, inputs)
            for share, count, way in track(variants, f"batch {batch}", total=len(variants)):
                if way == "gates":
                    variant, gates = handle, head_mask(handle.model, ranked[:count])
                else:
                    variant = HeadModel(remove_heads(sharing(handle.model), ranked[:count], groups=groups))
                    gates = None
                flops = _flops(variant, inputs)
                row: dict[str, object] = {"share": share, "masked": count, "way": way, "batch": batch}
                bytes_ = variant.model.get_memory_footprint(return_buffers=False)
                row |= {"parameters": variant.model.num_parameters(), "bytes": bytes_, "flops": flops}
                row |= _timed(partial(_seconds, variant, inputs, gates), intact, batch, repeats)
                rows.append(row | {"allowed": base / flops})
    table = pd.DataFrame(rows)
    machine: dict[str, Any] = {"threads": torch.get_num_threads(), "device": handle.device, "torch": torch.__version__}
    table = frame.signed(table, handle.provenance(length=length, repeats=repeats, **machine))
    if study is not None:
        kept.save("efficiency", table)
    return table


def _seconds(handle: HeadModel, inputs: dict[str, Tensor], gates: Tensor | None = None) -> float:
    """Time one forward pass, with or without gates."""
    with nullcontext() if gates is None else handle.mask(gates), handle.without_gradients():
        _wait(handle)
        start = time.perf_counter()
        handle.forward(inputs)
        _wait(handle)
        return time.perf_counter() - start


def _wait(handle: HeadModel) -> None:
    if handle.device.type == "cuda":
        torch.cuda.synchronize()


def _timed(forward: Callable[[], float], intact: Callable[[], float], batch: int, repeats: int) -> dict[str, float]:
    forward(), intact()  # to warm up
    orders = [(forward, intact), (intact, forward)]  # in turn, because the second forward finds warmer caches
    times = [{run: run() for run in orders[repeat % 2]} for repeat in range(repeats)]
    pairs = np.array([(seconds[forward], seconds[intact]) for seconds in times])  # [repeat, 2]
    speed, ratios = batch / pairs[:, 0], np.log(pairs[:, 1] / pairs[:, 0])
    half = stats.t.isf(0.025, repeats - 1) * ratios.std(ddof=1) / np.sqrt(repeats)
    row = {"speed": speed.mean(), "speed.sd": speed.std(ddof=1), "speedup": np.exp(ratios.mean())}
    row |= {"speedup.low": np.exp(ratios.mean() - half), "speedup.high": np.exp(ratios.mean() + half)}
    return {name: float(value) for name, value in row.items()}


def _flops(handle: HeadModel, inputs: dict[str, Tensor]) -> int:
    """Count operations with eager attention; operations of fused attention would not be counted."""
    with (
        attending(handle.model, lambda _: None),
        FlopCounterMode(display=False) as counter,
        handle.without_gradients(),
    ):
        handle.forward(inputs)
    return int(counter.get_total_flops())


def _inputs(model: PreTrainedModel, batch: int, length: int) -> dict[str, Tensor]:
    """Draw random inputs, with a target as long as the source."""
    generator = torch.Generator().manual_seed(0)
    inputs: dict[str, Tensor] = {}
    for name, value in dummy_inputs(model).items():
        if value.is_floating_point():
            inputs[name] = value.expand(batch, *value.shape[1:])
        else:
            drawn = torch.randint(len(value[0]), (batch, length), generator=generator)
            inputs[name] = value[0][drawn.to(value.device)]
    return inputs
