"""Variants: the intact model and each with some heads closed, run on one batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headroles.ablation.example_stats import HeadSet
from headroles.ablation.forward_cache import Replay
from headroles.ablation.metrics import Metric, Read, Written
from headroles.ablation.resample import Others
from headroles.models import dummy_inputs, heads, masking
from headroles.models.batching import ONE, Batch

Fill = Literal["zero", "mean", "other", "uniform", "rescale"]
Array = npt.NDArray[np.float64]

log = logging.getLogger(__name__)


class Runner:
    """Runs the intact model and all variants on one batch."""

    def __init__(
        self,
        model: PreTrainedModel,
        longest: int,
        read: Read,
        metric: Metric,
        variants: list[HeadSet],
        filling: Any,
        replacement: Fill,
        heads_per_batch: int,
    ) -> None:
        self.model, self.longest, self.read, self.metric, self.filling = model, longest, read, metric, filling
        self.gates = torch.stack([_gates(model, closed, replacement) for closed in variants]) if variants else None
        self.variants, self.heads_per_batch = variants, heads_per_batch

    def run(self, batch: Batch, part: tuple[int, int] = (0, 1)) -> Array:
        """The statistics of one batch: [1 + variant, example, statistic].

        Variants that go through the model together are those whose first closed head is in the same place. `part`
        (p, q) is the p-th and then every q-th of these places only: the others' statistics are NaN.
        """
        replay = Replay(self.model, batch, self._fill_of(batch))
        intact = self._intact(replay)
        found = np.full((1 + len(self.variants), *intact.shape), np.nan)
        found[0] = intact
        self._check(intact[None], [None], batch)
        if self.gates is not None:
            firsts = [self._first(replay, row[None]) for row in self.gates]
            for first in sorted(set(firsts))[part[0] :: part[1]]:
                rows = [i for i, each in enumerate(firsts) if each == first]
                for chunk, values in self._chunks(replay, rows):
                    found[[1 + i for i in chunk]] = values
                    self._check(values, [self.variants[i] for i in chunk], batch)
        return found

    def _fill_of(self, batch: Batch) -> Any:
        return self.filling.of(batch) if isinstance(self.filling, Others) else self.filling

    def _first(self, replay: Replay, gates: Tensor) -> Any:
        """What variants that go through the model together have in common."""
        first = replay.first(gates)  # of what is written, nothing but the states of an intact encoder is handed back
        return first[0] >= replay.encoded if isinstance(self.metric, Written) else first

    def _chunks(self, replay: Replay, rows: list[int]) -> Iterator[tuple[list[int], Array]]:
        """Some variants at a time, with their statistics [variant, example, statistic]."""
        assert self.gates is not None
        while rows:
            chunk = rows[: self.heads_per_batch]
            try:
                values = self._some(replay, self.gates[chunk])
            except (torch.OutOfMemoryError, MemoryError) as error:
                if self.heads_per_batch == 1:
                    raise
                self.heads_per_batch //= 2
                log.warning("out of memory (%s): %d variants at a time from here on", error, self.heads_per_batch)
                continue
            yield chunk, values.reshape(len(chunk), len(replay.batch.numbers), -1)
            rows = rows[len(chunk) :]

    def _some(self, replay: Replay, rows: Tensor) -> Array:
        if isinstance(self.metric, Written):
            return self.read(*replay.write(rows, **self._writing()))
        return self.read(*replay.run(rows))

    def _intact(self, replay: Replay) -> Array:
        if isinstance(self.metric, Written):
            ones = torch.ones(1, len(heads.head_index(self.model)), device=self.model.device)
            return self.read(*replay.write(ones, **self._writing()))
        return self.read(replay.output, replay.batch)

    def _writing(self) -> dict[str, Any]:
        assert isinstance(self.metric, Written)
        config: Any = self.model.generation_config
        options: dict[str, Any] = {"num_beams": self.metric.beams, **ONE}
        if not (config.max_length or config.max_new_tokens):
            options["max_length"] = self.longest
        if isinstance(self.filling, Others):
            options["use_cache"] = False  # then a layer has all tokens before it, each beside that of the other example
        return options

    def _check(self, values: Array, variants: Sequence[HeadSet | None], batch: Batch) -> None:
        """Raises ValueError where what was measured, [variant, example, statistic], is not finite; None is intact."""
        for own, closed in zip(values, variants, strict=True):
            if not np.isfinite(own).all():
                who = "the intact model" if closed is None else f"the model without {sorted(closed)}"
                raise ValueError(
                    f"{self.metric.name} of {who} is not finite on the sentences {min(batch.numbers) + 1} to "
                    f"{max(batch.numbers) + 1} of the corpus; {dummy_inputs.advice(self.model)}; finished "
                    f"batches are kept"
                )


def _gates(model: PreTrainedModel, closed: HeadSet, replacement: Fill) -> Tensor:
    """The gates of a variant, [heads]; "rescale" opens what is left of a layer wider, so that it keeps its size."""
    found = masking.head_mask(model, closed)
    if replacement != "rescale":
        return found
    start = 0
    for site in heads.attention_sites(model):
        own = found[start : start + site.heads]
        start += site.heads
        if own.any():
            own *= site.heads / own.sum()
    return found
