"""A sweep: the statistics of a metric for every example, by the intact model and by many variants with heads closed."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import batches, families, gates, heads, models, processes, seam
from headroles.batches import LONGEST, Batch, Encoded
from headroles.examples import Closed, Sweep
from headroles.metrics import Metric, Read, Written
from headroles.progress import track
from headroles.replay import Replay
from headroles.text import Corpus

Fill = Literal["zero", "mean", "other", "uniform", "rescale"]
FILLS: tuple[Fill, ...] = ("zero", "mean", "other", "uniform", "rescale")
Array = npt.NDArray[np.float64]

log = logging.getLogger(__name__)


def sweep(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    variants: list[Closed],
    metric: Metric,
    *,
    fill: Fill = "zero",
    budget: int = 4096,
    together: int = 8,
    rows: Sequence[int] | None = None,
    folder: Path | None = None,
) -> Sweep:
    """Measure every variant on every example: exactly, and without computing what closing its heads cannot change.

    Layers below the first closed head are handed back, so is the encoder where its heads are open, and `together`
    variants go through the model as one batch of at most `budget` tokens (halved, said once, if memory runs out).
    `rows` are the numbers of the examples to run, by default all; what is of the corpus stays of all of it. With
    a `folder`, the statistics of each finished batch are kept there, and a sweep that was stopped goes on after them.
    Processes that `accelerate launch` started share the batches, and each gets all statistics.
    Raises ValueError for an unknown head or fill, and where the metric is not to be had or not finite.
    """
    if fill not in FILLS:
        raise ValueError(f"unknown fill {fill!r}; known: {', '.join(FILLS)}")
    if together < 1 or budget < 1:
        raise ValueError(f"expected a budget and a number of variants together of at least 1; got {budget}, {together}")
    gates.closed(model, {head for closed in variants for head in closed})
    encoded = batches.encode(corpus, tokenizer, model, words=False)
    one = max(1, budget // together)
    with seam.evaluating(model):
        chosen = encoded if rows is None else encoded.take(rows)
        groups = list(batches.batches(chosen, model, budget=one))

        @cache
        def every() -> list[Batch]:
            return groups if rows is None else list(batches.batches(encoded, model, budget=one))

        read = metric.reader(model, tokenizer, corpus, every)
        _check_others(groups, fill)
        longest = min(models.positions(tokenizer, model), LONGEST)
        runner = _Runner(model, longest, read, metric, variants, _filling(model, every, fill), fill, together)
        name = _name(model, encoded, corpus, variants, metric, fill, one, rows)

        def part(number: int, batch: Batch) -> Array:
            return _kept(folder, f"{name}-{number}", runner, batch)

        parts = processes.spread(groups, part, lambda own: track(own, "closing heads", total=len(own)))
    found = np.concatenate(parts, axis=1)  # [1 + variant, example, statistic]
    numbers = [number for batch in groups for number in batch.numbers]
    text = _signed(model, corpus, encoded, metric, fill)
    return Sweep(found[0], dict(zip(variants, found[1:], strict=True)), numbers, encoded.too_long, metric, text)


def _signed(model: PreTrainedModel, corpus: Corpus, encoded: Encoded, metric: Metric, fill: Fill) -> str:
    """What the statistics of a sweep are of."""
    return heads.sign(
        model=models.name(model),
        weights=models.revision(model),
        corpus=corpus.name,
        text=corpus.hash,
        examples=len(encoded.numbers),
        too_long=encoded.too_long,
        metric=metric,
        fill=fill,
        headroles=version("headroles"),
    )


class _Runner:
    """Runs the intact model and all variants on one batch."""

    def __init__(
        self,
        model: PreTrainedModel,
        longest: int,
        read: Read,
        metric: Metric,
        variants: list[Closed],
        filling: Any,
        fill: Fill,
        together: int,
    ) -> None:
        self.model, self.longest, self.read, self.metric, self.filling = model, longest, read, metric, filling
        self.gates = torch.stack([_gates(model, closed, fill) for closed in variants]) if variants else None
        self.variants = variants
        self.together = 1 if fill == "other" else together  # the next example must be of the same variant

    def run(self, batch: Batch) -> Array:
        """The statistics of one batch: [1 + variant, example, statistic]."""
        replay = Replay(self.model, batch, self.filling)
        intact = self._intact(replay)
        found = np.full((1 + len(self.variants), *intact.shape), np.nan)
        found[0] = intact
        if self.gates is not None:
            firsts = [self._first(replay, row[None]) for row in self.gates]
            for first in sorted(set(firsts)):
                rows = [i for i, each in enumerate(firsts) if each == first]
                for chunk, values in self._chunks(replay, rows):
                    found[[1 + i for i in chunk]] = values
        self._check(found, batch)
        return found

    def _first(self, replay: Replay, gates: Tensor) -> Any:
        """What variants that go through the model together have in common."""
        first = replay.first(gates)  # of what is written, nothing but the states of an intact encoder is handed back
        return first[0] >= replay.encoded if isinstance(self.metric, Written) else first

    def _chunks(self, replay: Replay, rows: list[int]) -> Iterator[tuple[list[int], Array]]:
        """Some variants at a time, with their statistics [variant, example, statistic]."""
        assert self.gates is not None
        while rows:
            chunk = rows[: self.together]
            try:
                values = self._some(replay, self.gates[chunk])
            except (torch.OutOfMemoryError, MemoryError) as error:
                if self.together == 1:
                    raise
                self.together //= 2
                log.warning("out of memory (%s): %d variants at a time from here on", error, self.together)
                continue
            yield chunk, values.reshape(len(chunk), len(replay.batch.numbers), -1)
            rows = rows[len(chunk) :]

    def _some(self, replay: Replay, rows: Tensor) -> Array:
        if isinstance(self.metric, Written):
            return self.read(*replay.write(rows, **self._writing()))
        return self.read(*replay.run(rows))

    def _intact(self, replay: Replay) -> Array:
        if isinstance(self.metric, Written):
            ones = torch.ones(1, len(families.index(self.model)), device=self.model.device)
            return self.read(*replay.write(ones, **self._writing()))
        return self.read(replay.output, replay.batch)

    def _writing(self) -> dict[str, Any]:
        assert isinstance(self.metric, Written)
        config: Any = self.model.generation_config
        longest = {} if config.max_length or config.max_new_tokens else {"max_length": self.longest}
        return {"num_beams": self.metric.beams, "do_sample": False, **longest}

    def _check(self, found: Array, batch: Batch) -> None:
        bad = ~np.isfinite(found).all((1, 2))
        if bad.any():
            row = int(bad.argmax())
            who = "the intact model" if row == 0 else f"the model without {sorted(self.variants[row - 1])}"
            raise ValueError(
                f"{self.metric.name} of {who} is not finite on the sentences {min(batch.numbers) + 1} to "
                f"{max(batch.numbers) + 1} of the corpus; look for NaN or infinite weights; finished batches are kept"
            )


def _kept(folder: Path | None, name: str, runner: _Runner, batch: Batch) -> Array:
    """The statistics of a batch, read if they are in the folder, otherwise measured and written there."""
    if folder is None:
        return runner.run(batch)
    path = folder / f"{name}.npy"
    if path.is_file():
        return _read(path)
    found = runner.run(batch)
    with heads.replacing(path) as draft, draft.open("wb") as file:
        np.save(file, found, allow_pickle=False)
    return found


def _read(path: Path) -> Array:
    try:
        kept: Array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is damaged: {error}; remove the file to have it measured again") from error
    return kept


def _gates(model: PreTrainedModel, closed: Closed, fill: Fill) -> Tensor:
    """The gates of a variant, [heads]; "rescale" opens what is left of a layer wider, so that it keeps its size."""
    found = gates.closed(model, closed)
    if fill != "rescale":
        return found
    start = 0
    for site in families.sites(model):
        own = found[start : start + site.heads]
        start += site.heads
        if own.any():
            own *= site.heads / own.sum()
    return found


def _filling(
    model: PreTrainedModel, groups: Callable[[], list[Batch]], fill: Fill
) -> gates.Fill | Mapping[Any, Tensor]:
    if fill == "mean":
        return gates.mean(model, groups())
    return "zero" if fill == "rescale" else fill


def _check_others(groups: list[Batch], fill: Fill) -> None:
    if fill == "other" and any(len(batch.numbers) < 2 for batch in groups):
        raise ValueError(
            "fill 'other' takes the output for the next example of the batch, and a batch of this corpus has only one; "
            "give a larger budget, or another number of sentences"
        )


def _name(
    model: PreTrainedModel,
    encoded: Encoded,
    corpus: Corpus,
    variants: list[Closed],
    metric: Metric,
    fill: Fill,
    budget: int,
    rows: Sequence[int] | None,
) -> str:
    """What the files of a sweep are called: it follows from all that its numbers do."""
    config: Any = model.config
    recipe: list[Any] = [models.revision(model), config.to_json_string(), corpus.hash, repr(metric), fill, budget]
    recipe += [[one.ids for one in side] for side in (encoded.source, encoded.target or [])]
    if rows is not None:
        recipe.append(list(rows))
    if metric.generates:
        recipe.append(model.generation_config.to_json_string())
    listed = [sorted(closed) for closed in variants]
    return hashlib.sha256(repr((recipe, listed, version("headroles"))).encode()).hexdigest()[:12]
