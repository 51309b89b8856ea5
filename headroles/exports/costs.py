"""Efficiency: time, operations and size of a model with masked heads, and with the same heads removed; generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from headroles._distributed import track
from headroles.analysis.intervals import Array, t_limit
from headroles.budgets.cache import nbytes
from headroles.exports.llama_cpp import counts, export_model
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

Time = float | tuple[float, float]  # seconds


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
    generate: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Measure the cost of forward passes without the first heads of a ranking (Michel et al. 2019, Table 4).

    Inputs are random. Timed forwards alternate with forwards of the whole model, because ratios of speeds depend less
    on the machine than speeds. With `generate` reading a text and generating the next tokens are timed instead, in
    PyTorch and, if its extra is installed and the model can be exported, in llama.cpp.

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
        generate: Tokens that are generated after a text of `length` tokens, with heads removed.
        tokenizer: The tokenizer of the model, for llama.cpp.
        study: Study or folder that keeps the table as `efficiency`, with `generate` as `generation`. It is measured at
            every call, because speeds depend on the machine and its load.

    Returns:
        A table with a row per share, way ("gates": masked; "cut": removed) and batch size.

        - masked: number of masked or removed heads.
        - parameters, bytes: size of the weights.
        - flops: operations of the matrix products of one forward.
        - speed, speed.sd: examples per second, and their standard deviation over the repeats.
        - speedup, speedup.low, speedup.high: speed relative to the whole model, and its 95 % interval (Student's t of
          the logarithms).
        - allowed: speed-up if time were proportional to operations.

        With `generate` a row per share and program ("torch", "llama.cpp" with weights of 16 bits): speed and speedup of
        reading (prompt_...) and of generation (generation_...) in tokens per second, bytes of the cache of keys and
        values, and of the file (in PyTorch of the weights).

    Raises:
        ValueError: If a share or `repeats` is out of range, or the ranking is too short.
    """
    number("repeats", repeats, least=2, whole=True)
    name = "efficiency" if generate is None else "generation"
    for share in shares:
        number("a share", share, below=1)
    handle = HeadModel(model, tokenizer)
    handle.check_writes(generate)
    kept = as_study(study)  # a temporary one without a study
    kept.claim(name, frame.sign(weights=handle.weights))
    if order is None:
        order = Random("layer").order(RankingContext(model, None, None, handle.sites.of_kinds(None), seed))  # type: ignore[arg-type]
    rows, ranked = [], handle.sites.named(order)
    variants = [(share, round(share * len(handle.index)), way) for share in shares for way in ("gates", "cut")]
    if (most := max(count for _, count, _ in variants)) > len(ranked):
        raise ValueError(f"order must have at least {most} heads for a share of {max(shares):g}, got {len(ranked)}")
    smaller = partial(_without, handle.model, ranked, groups)
    with handle.evaluating():
        if generate is not None:
            heads = {share: count for share, count, _ in variants}
            rows = [*_generations(handle, tokenizer, heads, smaller, (length, generate), repeats)]
        for batch in batches if generate is None else ():
            inputs = _inputs(handle.model, batch, length)
            intact, base = partial(_seconds, handle, inputs), _flops(handle, inputs)
            for share, count, way in track(variants, f"batch {batch}", total=len(variants)):
                cut = way == "cut"
                variant, gates = (smaller(count), None) if cut else (handle, head_mask(handle.model, ranked[:count]))
                flops = _flops(variant, inputs)
                row: dict[str, object] = {"share": share, "masked": count, "way": way, "batch": batch}
                bytes_ = variant.model.get_memory_footprint(return_buffers=False)
                row |= {"parameters": variant.model.num_parameters(), "bytes": bytes_, "flops": flops}
                row |= _speeds(_alternating(partial(_seconds, variant, inputs, gates), intact, repeats), batch)
                rows.append(row | {"allowed": base / flops})
    table = pd.DataFrame(rows)
    machine: dict[str, Any] = {"threads": torch.get_num_threads(), "device": handle.device, "torch": torch.__version__}
    machine |= {} if generate is None else {"generate": generate}
    return kept.save(name, frame.signed(table, handle.provenance(length=length, repeats=repeats, **machine)))


def _without(model: PreTrainedModel, ranked: Sequence[Head], groups: Groups, count: int) -> HeadModel:
    return HeadModel(remove_heads(sharing(model), ranked[:count], groups=groups))


def _seconds(handle: HeadModel, inputs: dict[str, Tensor], gates: Tensor | None = None) -> float:
    """Time one forward pass, with or without gates."""
    with nullcontext() if gates is None else handle.mask(gates), handle.without_gradients():
        _wait(handle)
        start = time.perf_counter()
        handle.forward(inputs)
        _wait(handle)
        return time.perf_counter() - start


def _wait(handle: HeadModel) -> None:
    if handle.device.type != "cpu":
        torch.accelerator.synchronize(handle.device)


def _alternating(forward: Callable[[], Time], intact: Callable[[], Time], repeats: int) -> Array:
    """Time two functions in turn, which may return several times: [repeat, function, ...]."""
    forward(), intact()  # to warm up
    orders = [(forward, intact), (intact, forward)]  # in turn, because the second forward finds warmer caches
    times = [{run: run() for run in orders[repeat % 2]} for repeat in range(repeats)]
    return np.array([(seconds[forward], seconds[intact]) for seconds in times])


def _speeds(pairs: Array, size: int) -> dict[str, float]:
    """Return the speed, and relative to the second function with its interval, of times [repeat, function]."""
    repeats, speed, ratios = len(pairs), size / pairs[:, 0], np.log(pairs[:, 1] / pairs[:, 0])
    half = t_limit(repeats - 1) * ratios.std(ddof=1) / np.sqrt(repeats)
    row = {"speed": speed.mean(), "speed.sd": speed.std(ddof=1), "speedup": np.exp(ratios.mean())}
    row |= {"speedup.low": np.exp(ratios.mean() - half), "speedup.high": np.exp(ratios.mean() + half)}
    return {name: float(value) for name, value in row.items()}


class Program(NamedTuple):
    """A model that a program has loaded."""

    seconds: Callable[[], Time]  # of reading the text, and of generation
    cache: int  # bytes
    file: int


def _generations(
    handle: HeadModel,
    tokenizer: PreTrainedTokenizerBase | None,
    heads: Mapping[float, int],
    smaller: Callable[[int], HeadModel],
    lengths: tuple[int, int],
    repeats: int,
) -> Iterator[dict[str, object]]:
    """Yield the speed of reading and generation in each program, of models without so many heads."""
    programs: dict[str, Callable[[HeadModel, tuple[int, int]], Program]] = {"torch": _in_torch}
    if tokenizer is not None and find_spec("xllamacpp") is not None:
        programs["llama.cpp"] = partial(_in_llama_cpp, tokenizer)
    for program, load in programs.items():
        whole = load(handle, lengths)
        for share, count in track(heads.items(), program, total=len(heads)):
            loaded = load(smaller(count), lengths)
            times = _alternating(loaded.seconds, whole.seconds, repeats)  # [repeat, model, phase]
            row: dict[str, object] = {"share": share, "masked": count, "program": program}
            for place, phase in enumerate(("prompt", "generation")):
                row |= {f"{phase}_{name}": value for name, value in _speeds(times[..., place], lengths[place]).items()}
            yield row | {"cache": loaded.cache, "file": loaded.file}


class _Clock(BaseStreamer):
    """The times at which a generation begins and gives out its text: the prompt, and each token."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def put(self, value: Tensor) -> None:  # noqa: ARG002 - on the CPU, when it is known
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Do nothing more."""


def _in_torch(handle: HeadModel, lengths: tuple[int, int]) -> Program:
    model: Any = handle.model
    inputs, count = _inputs(model, 1, lengths[0]), lengths[1]
    options = {"max_new_tokens": count + 1, "min_new_tokens": count + 1, "do_sample": False, "pad_token_id": 0}

    def seconds() -> Time:
        clock = _Clock()
        model.generate(**inputs, **options, streamer=clock)
        start, _, first, *_, last = clock.times
        return first - start, last - first

    output = model.generate(**inputs, **options, return_dict_in_generate=True)
    size = sum(nbytes(value) for value in output.values() if isinstance(value, Cache))
    return Program(seconds, size, model.get_memory_footprint(return_buffers=False))


def _in_llama_cpp(tokenizer: PreTrainedTokenizerBase, handle: HeadModel, lengths: tuple[int, int]) -> Program:
    import xllamacpp

    given, (length, count) = xllamacpp.CommonParams(), lengths
    ids = _inputs(handle.model, 1, length)["input_ids"][0].tolist()
    asked = {"prompt": ids, "n_predict": count + 1, "temperature": 0.0, "ignore_eos": True, "cache_prompt": False}
    with TemporaryDirectory() as folder:
        path = export_model(handle.model, tokenizer, Path(folder) / "model.gguf")
        size, given.model.path, given.n_ctx, given.n_parallel = path.stat().st_size, str(path), length + count + 8, 1
        given.cpuparams.n_threads = given.cpuparams_batch.n_threads = torch.get_num_threads()
        given.verbosity, given.warmup = 0, False
        server = xllamacpp.Server(given)

    def seconds() -> Time:
        timings = server.handle_completions(asked)["timings"]
        return timings["prompt_ms"] / 1000, timings["predicted_ms"] / 1000

    groups = sum(counts(site)[1] * site.size for site in handle.sites)
    return Program(seconds, 2 * groups * 2 * (length + count), size)


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
