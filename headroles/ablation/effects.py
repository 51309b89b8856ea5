"""Ablation: mask every head or set of heads of a model and measure the change of a metric."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from typing import Unpack

import pandas as pd
from transformers import PreTrainedTokenizerBase

from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.metrics import Metric, as_metric
from headroles.ablation.prediction_powered import run_until_precise
from headroles.ablation.significance import best, effects, is_mean, warn_of_few
from headroles.ablation.sweep import Options, Sweep
from headroles.ablation.units import (
    AblationReplacement,
    Unit,
    code,
    known_replacement,
    masked_heads,
    replacement_name,
    table_name,
)
from headroles.analysis.intervals import rounded
from headroles.data.corpus import Corpus, CorpusLike
from headroles.data.readers import as_corpus
from headroles.models.head_model import HeadModel, Model
from headroles.models.identity import fingerprint
from headroles.models.masking import Head
from headroles.patterns.base import Pattern
from headroles.tables import frame
from headroles.tables.arguments import number
from headroles.tables.study import Study, as_study

KEPT = 1000  # resamples kept in a table; more serve only p, of which corrections for many tests need small ones


def ablate(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    *,
    metric: str | Metric = "loss",
    unit: Unit = "head",
    sets: Mapping[str, Iterable[Head | str] | str] | None = None,
    replacement: AblationReplacement | Mapping[Head, Pattern] = "zero",
    precision: float = 1.0,
    max_tokens: int = 4096,
    n_resamples: int = 1000,
    seed: int = 0,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Ablate every head and measure the change of a metric (Michel et al. 2019, section 3).

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: The corpus on which the metric is measured.
        metric: Name of a metric or of an objective, such as loss, agreement or similarity. Or one of them
            (`list_metrics`).
        unit: What is masked for each head: the "head" alone, all other heads of its layer ("all_but_one"), the
            "group" of heads that share its key-value head, its whole "layer", or all heads of its "kind".
        sets: Sets of heads in place of every head: name -> heads that are masked together, (kind, layer, head) each, or
            in writing as in `head_mask`.
        replacement: What replaces the output of a masked head: "zero"; its "mean" over the corpus; its output for
            another example of similar length ("resample"); its output under "uniform" attention; or zero while the
            remaining heads of its layer are scaled up ("rescale"). Or a pattern of `headroles.patterns`, such as
            `Offset(-1)`, the same for all heads or {head: pattern}: its output if it attended exactly by that.
        precision: How much wider than from the whole corpus intervals may be: 1 ablates every head on every example;
            with 1.1, say, the gradient predicts the effect of every head on every example, and each head is ablated on
            as many random examples as it takes to correct the prediction that precisely. The effects (`estimate`) are
            unbiased whatever the gradient is worth. Metrics that are means and have a gradient: the loss, accuracy,
            agreement, objectives.
        max_tokens: Tokens in one forward pass, which up to eight variants of the model share.
        n_resamples: Bootstrap resamples of the examples.
        seed: Seed of the resamples, and of the examples that "resample" and `precision` draw.
        study: Study or folder that keeps the table `ablation-METRIC-UNIT-REPLACEMENT` and the example statistics behind
            it, `examples-...`; if it has them, nothing is computed. For the unit "all_but_one" it also keeps
            `best-METRIC-REPLACEMENT` and `best-METRIC-REPLACEMENT-halves` (`best`). The table of `sets` is
            `sets-METRIC-REPLACEMENT`. Finished batches are kept in its folder
            of unfinished work.

    Returns:
        A table with a row per head, or per set. The column name c is `ablation[metric]`; unit, replacement and
        "precision=1.1" follow the metric if they are not the defaults.

        - c: metric(ablated) - metric(intact).
        - c.low, c.high: its 95 % interval over paired Poisson bootstrap resamples of the examples; NaN for a single
          example.
        - c.p: two-sided p-value, of a paired t-test if the metric is a mean (of a ratio, by the delta method): the
          larger of Student's and of that corrected for skewness. Otherwise of the paired bootstrap (Koehn 2004): at
          least 2 / (n_resamples + 1), so that many heads need many resamples.
        - c.holm, c.bh: p corrected for all tests after Holm, and after Benjamini and Hochberg.
        - c.examples: number of examples on which a head was ablated (with `precision` above 1).
        - c.slope, c.explained: effect per unit of the predicted effect, and the share of its variance over examples
          that the prediction explains (with `precision` above 1; intervals and p are then of t, with errors by the
          jackknife).

        ValueError is raised if there is no set, if `n_resamples` is below 0 or `precision` below 1, or above 1 for a
        metric that no gradient predicts, and if a model has no number for an example.

    Example:
        >>> table = hr.ablate(model, tokenizer, corpus, metric="loss")
        >>> table["ablation[loss]"].nlargest(3)
    """  # noqa: DOC501
    number("n_resamples", n_resamples, whole=True)
    ablation = Ablation(
        HeadModel.of(model, tokenizer, allow_sharded=True),
        as_corpus(corpus),
        as_metric(metric),
        unit,
        None if sets is None else _named(sets),
        known_replacement(replacement),
        precision,
        seed,
    )
    options: Options = {"max_tokens": max_tokens}
    if study is None:
        table = ablation.table(ablation.measure(**options), n_resamples)
    else:
        kept = as_study(study)
        table = _kept(ablation, kept, options | {"folder": kept.work / ".sweeps"}, n_resamples)
    warn_of_few(table)
    return table


def _named(sets: Mapping[str, Iterable[Head | str] | str]) -> dict[str, Iterable[Head | str] | str]:
    if not isinstance(sets, Mapping):
        raise TypeError(
            f"sets without names: got {type(sets).__name__}; expected name -> heads, as {{'two': ['L0H1']}}"
        )
    return dict(sets)


def _kept(ablation: Ablation, study: Study, options: Options, n_resamples: int) -> pd.DataFrame:
    """Return the table of an ablation from a study, which computes and keeps what it does not have."""
    final = f"{'ablation-' if ablation.sets is None else ''}{ablation.name}"
    tables: dict[str, Callable[[ExampleStats, int], pd.DataFrame]] = {final: ablation.table}
    if ablation.unit == "all_but_one" and not ablation.is_sampled:
        name = f"best-{ablation.metric.name}-{replacement_name(ablation.replacement)}"
        tables = {name: ablation.best, f"{name}-halves": partial(ablation.best, halves=True), **tables}
    key = ablation.key()
    rows = "" if ablation.sets is None else f"|rows:{hashlib.sha256(repr([*ablation.sets]).encode()).hexdigest()[:12]}"
    keys = {name: f"{key}{rows}|resamples:{n_resamples}|seed:{ablation.seed}" for name in tables}
    if all(study.holds(name, keys[name]) for name in tables):
        return study.load(final)
    statistics = study.keep(f"examples-{ablation.name}", key, lambda: ablation.measure(**options).table())
    stats = ExampleStats.of(statistics, ablation.metric)
    for name, compute in tables.items():
        if len(stats.numbers) > 1 or not name.endswith("-halves"):
            table = study.keep(name, keys[name], partial(compute, stats, n_resamples))
    return table


@dataclass(frozen=True)
class Ablation:
    """What is masked in which model, and on how much of the corpus it is measured."""

    model: HeadModel
    corpus: Corpus
    metric: Metric
    unit: Unit
    sets: Mapping[str, Iterable[Head | str] | str] | None  # in place of the heads of the model
    replacement: AblationReplacement
    precision: float
    seed: int

    def __post_init__(self) -> None:
        if self.sets is not None and (not self.sets or self.unit != "head"):
            got = f"{len(self.sets)} sets and unit={self.unit!r}"
            raise ValueError(f"nothing to ablate: got {got}; expected at least one set, and no unit beside sets")
        if not (isinstance(self.precision, Real) and self.precision >= 1):
            raise ValueError(
                f"wrong precision: got {self.precision!r}; expected 1 for the whole corpus, or more, such as 1.1 for "
                f"intervals a tenth wider"
            )
        if self.is_sampled and not (is_mean(self.metric) and self.metric.has_gradient(self.model)):
            raise ValueError(
                f"no gradient predicts the effects on {self.metric.name} of {self.model.name}: got "
                f"precision={self.precision:g}; expected a metric that is a mean, such as 'loss'; try precision=1"
            )

    @cached_property
    def masked(self) -> list[HeadSet]:
        """Heads masked for each row of the table."""
        if self.sets is not None:
            return [frozenset(self.model.named_heads(heads)) for heads in self.sets.values()]
        return [masked_heads(head, self.model, self.unit) for head in self.model.heads]

    @property
    def is_sampled(self) -> bool:
        """Whether heads are ablated on a part of the examples."""
        return self.precision > 1

    @property
    def name(self) -> str:
        """Name of the tables in a study, after `ablation-` or `examples-`."""
        name = table_name(self.metric.name, self.unit, self.replacement, precision=self.precision)
        return name if self.sets is None else f"sets-{name}"

    def key(self) -> str:
        """Return the cache key of the example statistics."""
        fields: dict[str, object] = {"predicted": True} if self.is_sampled else {}
        if self.sets is not None:
            fields["sets"] = hashlib.sha256(repr([sorted(heads) for heads in self.masked]).encode()).hexdigest()[:12]
        return self.model.cache_key(
            self.corpus,
            metric=self.metric,
            code=fingerprint(self.metric),
            **code(self.replacement),
            seed=self.seed if self.is_sampled or self.replacement == "resample" else None,
            **fields,
        )

    def measure(self, **options: Unpack[Options]) -> ExampleStats:
        """Measure the example statistics of the intact model and of all variants; options are those of `Sweep`."""
        variants = list(dict.fromkeys(self.masked))
        sweep = Sweep(self.model, self.corpus, self.metric, replacement=self.replacement, seed=self.seed, **options)
        return run_until_precise(sweep, variants, self.precision) if self.is_sampled else sweep.run(variants)

    def table(self, stats: ExampleStats, n_resamples: int) -> pd.DataFrame:
        """Compute the table of `ablate` from example statistics."""
        unit, replacement = self.unit, replacement_name(self.replacement)
        usual = ((unit, self.unit == "head"), (replacement, self.replacement == "zero" or self.sets is not None))
        words = [
            self.metric.name,
            *(word for word, is_usual in usual if not is_usual),
            *([f"precision={self.precision:g}"] if self.is_sampled else ()),
        ]
        name = f"ablation[{' '.join(words)}]"
        effect = effects(stats, n_resamples=n_resamples, seed=self.seed)
        measured = list(stats.masked)
        rows = [measured.index(variant) for variant in self.masked]
        columns = {f"{name}{end}": values[rows] for end, values in effect.columns.items()}
        fields: dict[str, object] = {"intact": f"{effect.intact:.6g}"}
        fields |= {"measured": int(stats.counted.sum())} if not stats.counted.all() else {}
        fields |= {"unit": self.unit} if self.sets is None else {}
        if self.is_sampled:
            fields |= {"precision": f"{self.precision:g}", "estimate": "prediction-powered", "drawn": "by gradients"}
        text = f"{stats.signature}|{frame.sign(**fields, resamples=n_resamples, seed=self.seed)}"
        if self.sets is not None:
            return frame.signed(pd.DataFrame(columns, index=pd.Index(list(self.sets), name="set")), text)
        draws = {name: rounded(effect.draws[rows, :KEPT])} if n_resamples else None
        return frame.table(columns, self.model.index, text, draws=draws)

    def best(self, stats: ExampleStats, n_resamples: int, *, halves: bool = False) -> pd.DataFrame:
        """Compute the table of the best heads of each layer to keep alone (`best`)."""
        return best(stats, self.model.index, halves=halves, n_resamples=n_resamples, seed=self.seed)
