"""Trials: what pruned models reach on held-out examples, kept example by example, so that statistics need no model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.metrics import Metric
from headroles.ablation.sweep import sweep
from headroles.data.corpus import Corpus
from headroles.models import loading
from headroles.models.masking import Head
from headroles.scores.accumulator import bounds, counting
from headroles.tables import frame
from headroles.tables.frame import Kind
from headroles.tables.study import Study

Array = npt.NDArray[np.floating]


def recipe(
    model: PreTrainedModel, corpus: Corpus, kinds: Sequence[Kind] | None, tune: Mapping[str, Any], **rest: object
) -> str:
    """What the trials of a model that is pruned and trained on a corpus follow from."""
    return frame.sign(
        model=loading.name(model),
        weights=loading.revision(model),
        trained_on=corpus.hash,
        **rest,
        kinds=",".join(kinds or ("all",)),
        tune=",".join(f"{name}={value}" for name, value in sorted(tune.items())),
        headroles=version("headroles"),
    )


class Trials:
    """The trials of one study: each is run once, and kept by its recipe in the folder `.trials`."""

    def __init__(
        self,
        study: Study,
        tokenizer: PreTrainedTokenizerBase,
        held_out: Corpus,
        metric: Metric,
        recipe: str,
        *,
        max_tokens: int = 4096,
    ) -> None:
        self.folder, self.tokenizer = study.work / ".trials", tokenizer
        self.held_out, self.metric, self.max_tokens = held_out, metric, max_tokens
        self.recipe = f"{frame.sign(held_out=held_out.hash, metric=metric)}|{frame.holding(work=recipe)}"
        self.signature = ""

    def place(self, *what: object) -> Path:
        """A folder of its own for a trial, where its training goes."""
        return self.folder / hashlib.sha256(repr((self.recipe, what)).encode()).hexdigest()[:12]

    def run(self, what: tuple[object, ...], compute: Callable[[], PreTrainedModel]) -> Array:
        """Statistics of every example, [example, statistic], by the model that `compute` makes, or those kept."""
        options: dict[str, Any] = {"max_tokens": self.max_tokens, "heads_per_batch": 1}
        return self._kept(
            what, lambda: sweep(compute(), self.tokenizer, self.held_out, [], self.metric, **options)
        ).intact

    def closed(self, what: tuple[object, ...], model: PreTrainedModel, sets: Sequence[Sequence[Head]]) -> list[Array]:
        """Statistics of every example with each of these sets of heads closed, the model as it is."""
        keys: list[HeadSet] = [frozenset(one) for one in sets]
        wanted = list(dict.fromkeys(filter(None, keys)))
        told = (*what, loading.revision(model), [sorted(one) for one in wanted])
        found = self._kept(told, lambda: self._closed(model, wanted))
        return [found.closed[one] if one else found.intact for one in keys]

    def _closed(self, model: PreTrainedModel, wanted: list[HeadSet]) -> ExampleStats:
        return sweep(model, self.tokenizer, self.held_out, wanted, self.metric, max_tokens=self.max_tokens)

    def _kept(self, what: tuple[object, ...], compute: Callable[[], ExampleStats]) -> ExampleStats:
        kept = Study(self.folder)
        name = self.place(*what).name
        own = f"{frame.holding(recipe=self.recipe)}|{frame.sign(what=what)}"
        table = kept.keep(name, own, lambda: compute().table())
        found = ExampleStats.of(table, self.metric)
        self.signature = found.signature
        return found.take(np.argsort(found.numbers))


def values(metric: Metric, trials: Sequence[Array], *, n_resamples: int = 1000, seed: int = 0) -> Array:
    """The metric of each trial, and in the same resamples of the examples: [trial, 1 + resample]."""
    weights = counting(list(range(len(trials[0]))), n_resamples, seed).numpy()
    with np.errstate(invalid="ignore"):  # a resample without any example has no value
        return np.stack([metric.value(weights @ each) for each in trials])


def interval(draws: Array) -> tuple[float, float, float]:
    """A value with its 95 % interval, from the value and its resamples."""
    if len(draws) < 2:
        return float(draws[0]), np.nan, np.nan
    low, high = bounds(draws[None, 1:])
    return float(draws[0]), float(low[0]), float(high[0])


def signed(table: pd.DataFrame, *parts: str) -> pd.DataFrame:
    """The table with a signature for all of its columns."""
    table.attrs["signatures"] = dict.fromkeys(map(str, table.columns), "|".join(filter(None, parts)))
    return table
