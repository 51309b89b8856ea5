"""Variant runner: run the intact model and its variants, in which units of heads are masked, on one batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, get_args

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
from headroles.models.attention_hooks import without_cache
from headroles.models.batching import ONE, Batch
from headroles.models.masking import Fill, Head, mask_heads
from headroles.scores.objectives import Explain
from headroles.tables.frame import Kind

Unit = Literal["head", "all_but_one", "layer", "kind"]
Replacement = Literal["zero", "mean", "resample", "uniform", "rescale"]
UNITS: tuple[Unit, ...] = get_args(Unit)
REPLACEMENTS: tuple[Replacement, ...] = get_args(Replacement)
_ON_DISK = {"head": "single", "all_but_one": "rest", "resample": "other"}  # older words, for tables that exist
Array = npt.NDArray[np.float64]
Filling = Fill | Mapping[tuple[Kind, int], Tensor] | Others

log = logging.getLogger(__name__)


class Runner:
    """Intact model and variants, which run on one batch at a time."""

    def __init__(
        self,
        model: PreTrainedModel,
        longest: int,
        read: Read,
        metric: Metric,
        variants: Sequence[HeadSet],
        filling: Filling,
        replacement: Replacement,
        heads_per_batch: int,
    ) -> None:
        self.model, self.longest, self.read, self.metric, self.filling = model, longest, read, metric, filling
        self.gates = torch.stack([_gates(model, masked, replacement) for masked in variants]) if variants else None
        self.variants, self.heads_per_batch = variants, heads_per_batch

    def run(self, batch: Batch, part: tuple[int, int] = (0, 1)) -> Array:
        """Return the statistics of one batch by the intact model and every variant: [1 + variant, example, statistic].

        Variants run together if their first masked heads are at the same place, so that they reuse the same outputs of
        the intact model. `part` (p, q) runs only the p-th and then every q-th of these places; other variants have NaN.
        """
        filling = self.filling.of(batch) if isinstance(self.filling, Others) else self.filling
        replay = Replay(self.model, batch, filling)
        intact = self._intact(replay)
        statistics = np.full((1 + len(self.variants), *intact.shape), np.nan)
        statistics[0] = intact
        self._check(intact[None], [None], batch)
        if self.gates is not None:
            firsts = [replay.first(row[None]) for row in self.gates]
            if isinstance(self.metric, Written):  # reuses nothing but the states of an intact encoder
                firsts = [(int(first[0] >= replay.encoded), 0) for first in firsts]
            for first in sorted(set(firsts))[part[0] :: part[1]]:
                rows = [i for i, start in enumerate(firsts) if start == first]
                for chunk, values in self._chunks(replay, rows):
                    statistics[[1 + i for i in chunk]] = values
                    self._check(values, [self.variants[i] for i in chunk], batch)
        return statistics

    def predict(self, batch: Batch, stand_in: Explain) -> Array:
        """Compute the intact statistics, and the changes that a gradient predicts: [example, statistic + variant]."""
        assert self.gates is not None
        filling = partial(self.filling.of(batch), variants=1) if isinstance(self.filling, Others) else self.filling
        gates = torch.ones(len(batch.numbers), self.gates.shape[1], device=self.gates.device, requires_grad=True)
        with torch.enable_grad(), mask_heads(self.model, gates, filling):
            output = self.model(**batch.inputs, **without_cache(self.model))
            target = stand_in(output, batch)
            total = torch.where(target.counted, target.values, 0.0).sum()
        (gradient,) = torch.autograd.grad(total, gates)  # [example, heads]
        predicted = (gradient.double() @ (self.gates - 1).double().T).cpu().numpy()  # [example, variant]
        detached = {name: value.detach() if isinstance(value, Tensor) else value for name, value in output.items()}
        statistics = self.read(type(output)(**detached), batch)
        self._check(statistics[None], [None], batch)
        return np.concatenate([statistics, predicted], axis=1)

    def _chunks(self, replay: Replay, rows: list[int]) -> Iterator[tuple[list[int], Array]]:
        """Run variants in chunks and yield their rows with statistics [variant, example, statistic]."""
        assert self.gates is not None
        while rows:
            chunk = rows[: self.heads_per_batch]
            try:
                values = self._read(replay, self.gates[chunk])
            except (torch.OutOfMemoryError, MemoryError) as error:
                if self.heads_per_batch == 1:
                    raise
                self.heads_per_batch //= 2
                log.warning("out of memory (%s): %d variants at a time from here on", error, self.heads_per_batch)
                continue
            yield chunk, values.reshape(len(chunk), len(replay.batch.numbers), -1)
            rows = rows[len(chunk) :]

    def _read(self, replay: Replay, gates: Tensor) -> Array:
        if isinstance(self.metric, Written):
            return self.read(*replay.write(gates, **self._generation_options()))
        return self.read(*replay.run(gates))

    def _intact(self, replay: Replay) -> Array:
        if isinstance(self.metric, Written):
            return self._read(replay, torch.ones(1, len(heads.head_index(self.model)), device=self.model.device))
        return self.read(replay.output, replay.batch)

    def _generation_options(self) -> dict[str, object]:
        assert isinstance(self.metric, Written)
        config = self.model.generation_config
        options: dict[str, object] = {"num_beams": self.metric.beams, **ONE}
        if not (config.max_length or config.max_new_tokens):
            options["max_length"] = self.longest
        if isinstance(self.filling, Others):
            options["use_cache"] = False  # so that a layer has all tokens, each beside that of the other example
        return options

    def _check(self, values: Array, variants: Sequence[HeadSet | None], batch: Batch) -> None:
        """Raise ValueError if statistics [variant, example, statistic] are not finite; variant None is intact."""
        for statistics, masked in zip(values, variants, strict=True):
            if not np.isfinite(statistics).all():
                who = "the intact model" if masked is None else f"the model without {sorted(masked)}"
                raise ValueError(
                    f"{self.metric.name} of {who} is not finite on the sentences {min(batch.numbers) + 1} to "
                    f"{max(batch.numbers) + 1} of the corpus; {dummy_inputs.advice(self.model)}; finished "
                    f"batches are kept"
                )


def _gates(model: PreTrainedModel, masked: HeadSet, replacement: Replacement) -> Tensor:
    """Return the gates of a variant, [heads]; "rescale" scales up the remaining heads of a layer."""
    gates = masking.head_mask(model, masked)
    if replacement != "rescale":
        return gates
    start = 0
    for site in heads.attention_sites(model):
        layer = gates[start : start + site.heads]
        start += site.heads
        if layer.any():
            layer *= site.heads / layer.sum()
    return gates


def on_disk(choice: Unit | Replacement) -> str:
    """Return the word for a unit or replacement in table names, column names, provenance and cache keys."""
    return _ON_DISK.get(choice, choice)


def sampling(*, early: bool = False, precision: float = 1.0) -> list[str]:
    """Return the words for ablating heads on a part of the examples in table and column names."""
    return ["early"] * early + [f"precision={precision:g}"] * (precision > 1)


def table_name(
    metric: str,
    unit: Unit = "head",
    replacement: Replacement = "zero",
    *,
    early: bool = False,
    precision: float = 1.0,
) -> str:
    """Return the name of an ablation's tables in a study, after `ablation-` or `examples-`."""
    words = [metric, on_disk(unit), on_disk(replacement), *sampling(early=early, precision=precision)]
    return "-".join(words)


def check_choices(unit: Unit = "head", replacement: Replacement = "zero") -> None:
    """Raise ValueError for an unknown unit or replacement."""
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}; known: {', '.join(UNITS)}")
    if replacement not in REPLACEMENTS:
        raise ValueError(f"unknown replacement {replacement!r}; known: {', '.join(REPLACEMENTS)}")


def masked_heads(head: Head, heads: Sequence[Head], unit: Unit) -> HeadSet:
    """Return the heads that are masked to measure `head`: itself, the others of its layer, its layer, or its kind."""
    if unit == "head":
        return frozenset([head])
    same = (other for other in heads if other[0] == head[0] and (unit == "kind" or other[1] == head[1]))
    return frozenset(other for other in same if unit != "all_but_one" or other != head)
