"""Effects: the change of a metric when heads or sets of heads are masked, and the metric of the intact model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Literal, get_args

import pandas as pd
from transformers import PreTrainedTokenizerBase

from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.metrics import Metric, as_metric
from headroles.ablation.prediction_powered import FIRST, run_until_precise
from headroles.ablation.significance import best, effects, is_mean, metric_with_interval, skewness, warn_of_few
from headroles.ablation.sweep import ReplacementLike, Sweep, Word, known_replacement, replacement_name
from headroles.analysis.intervals import rounded
from headroles.data.corpus import Corpus, CorpusLike
from headroles.data.readers import as_corpus
from headroles.models.head_model import HeadModel, Model
from headroles.models.identity import fingerprint
from headroles.models.masking import Head
from headroles.models.replacements import Replacement
from headroles.tables import frame
from headroles.tables.arguments import number, one_of, several
from headroles.tables.study import Study, as_study, kept

Unit = Literal["head", "all_but_one", "group", "layer", "kind"]
UNITS: tuple[Unit, ...] = get_args(Unit)
KEPT = 1000  # resamples kept in a table; more serve only p, which must be small to survive corrections for many tests


def ablate(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    *,
    metric: str | Metric = "loss",
    unit: Unit = "head",
    sets: Mapping[str, Iterable[Head | str] | str] | None = None,
    replacement: ReplacementLike = "zero",
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
        metric: A metric or an objective, or its name, such as loss or agreement. `list_metrics` has all names.
        unit: What is masked for each head: the "head" itself, all other heads of its layer ("all_but_one"), the
            "group" of heads that share its key-value head, its "layer", or all heads of its "kind".
        sets: Sets of heads, instead of every head: name -> heads that are masked together, (kind, layer, head) each, or
            in writing as in `head_mask`.
        replacement: What replaces the output of a masked head: "zero"; its "mean" over the corpus; its output for
            another example of similar length ("resample"); its output under "uniform" attention; or zero while the
            remaining heads of its layer are scaled up ("rescale"). Or a pattern of `headroles.patterns`, such as
            `Offset(-1)`, for all heads, or {head: pattern}: its output if it attended exactly by the pattern.
        precision: How much wider intervals may be than on the whole corpus. 1 ablates every head on every
            example. With 1.1, say, the gradient predicts the effect of every head on every example, and each head is
            ablated on as many random examples as are needed to correct the prediction that precisely. The effects
            (`estimate`) are unbiased even if the prediction is poor. Metrics must be means with a gradient: the loss,
            accuracy, agreement, objectives.
        max_tokens: Tokens in one forward pass, which up to eight variants of the model share.
        n_resamples: Bootstrap resamples of the examples.
        seed: Seed of the resamples, and of the examples that "resample" and `precision` draw.
        study: Study or folder that keeps the table `ablation-METRIC-UNIT-REPLACEMENT` and the example statistics behind
            it, `examples-...`; if it has them, nothing is computed. For the unit "all_but_one" it also keeps
            `best-METRIC-REPLACEMENT` and `best-METRIC-REPLACEMENT-halves` (`best`). The table of `sets` is
            `sets-METRIC-REPLACEMENT`. Finished batches are kept too: an interrupted run continues after them.

    Returns:
        A table with a row per head, or per set. The column c is `ablation[metric]`; unit, replacement and
        "precision=1.1" follow the metric if they are not the defaults.

        - c: metric(ablated) - metric(intact).
        - c.low, c.high: its 95 % interval over examples, by the test of c.p; NaN for a single example. Effects surely
          differ from 0 long before they matter: the smallest change that matters is for the user to name.
        - c.p: two-sided p-value: of a mean by a paired t-test (of a ratio by the delta method), plain or corrected for
          skewness, whichever p is larger; of other metrics by the paired Poisson bootstrap (Koehn 2004), at least
          2 / (n_resamples + 1), so that many heads need many resamples. NaN for "agreement", which starts at its
          maximum: that nothing changes cannot be true.
        - c.holm, c.bh: p corrected for all tests after Holm, and after Benjamini and Hochberg.
        - c.examples: number of examples on which a head was ablated (with `precision` above 1).
        - c.slope, c.explained: effect per unit of the predicted effect, and the share of its variance over examples
          that the prediction explains (with `precision` above 1; intervals and p are then by Student's t, with errors
          by the jackknife).

    Example:
        >>> table = hr.ablate(model, tokenizer, corpus, metric="loss")
        >>> table["ablation[loss]"].nlargest(3)
    """
    number("n_resamples", n_resamples, whole=True)
    handle = HeadModel.of(model, tokenizer, allow_sharded=True)
    chosen = known_replacement(handle, replacement)
    ablation = Ablation(handle, as_corpus(corpus), as_metric(metric), unit, sets, chosen, precision, n_resamples, seed)
    place = None if study is None else as_study(study)

    @cache  # for up to three tables
    def statistics() -> ExampleStats:
        if place is None:
            return ablation.measure(max_tokens)
        measure = partial(ablation.measure, max_tokens, place.work / ".sweeps")
        table = place.keep(f"examples-{ablation.name}", ablation.statistics_key(), lambda: measure().table())
        return ExampleStats.of(table, ablation.metric)

    if place is not None and unit == "all_but_one" and precision == 1:
        name, key = f"best-{ablation.metric.name}-{replacement_name(chosen)}", ablation.key()
        chosen_heads = partial(best, index=handle.index, n_resamples=n_resamples, seed=seed)
        place.keep(name, key, lambda: chosen_heads(statistics()))
        if statistics().counted.sum() > 1:
            place.keep(f"{name}-halves", key, lambda: chosen_heads(statistics(), halves=True))
    name = ablation.name if sets is not None else f"ablation-{ablation.name}"
    table = kept(place, name, ablation.key, lambda: ablation.table(statistics()))
    warn_of_few(table)
    return table


@dataclass(frozen=True)
class Ablation:
    """The arguments of `ablate`, the sets of heads that follow from them, and the tables of these sets."""

    model: HeadModel
    corpus: Corpus
    metric: Metric
    unit: Unit
    sets: Mapping[str, Iterable[Head | str] | str] | None  # instead of the heads of the model
    replacement: Word | Replacement
    precision: float
    n_resamples: int
    seed: int

    def __post_init__(self) -> None:
        one_of("unit", self.unit, UNITS)
        number("precision", self.precision, least=1)
        if self.sets is not None and (not self.sets or self.unit != "head"):
            raise ValueError(f"sets must be one or more, with unit='head', got {len(self.sets)} and {self.unit!r}")
        if self.is_sampled and not self.can_be_sampled:
            raise ValueError(
                f"precision must be 1 for {self.metric.name} of {self.model.name}, got {self.precision:g}: no gradient "
                f"predicts the effects; try a metric that is a mean, such as 'loss'"
            )

    @property
    def is_sampled(self) -> bool:
        """Whether heads are ablated on some examples only, to correct predictions on all examples."""
        return self.precision > 1

    @property
    def name(self) -> str:
        """Name of the tables in a study, after `ablation-` or `examples-`."""
        name = table_name(self.metric.name, self.unit, self.replacement, self.precision)
        return name if self.sets is None else f"sets-{name}"

    @cached_property
    def masked(self) -> list[HeadSet]:
        """Heads masked for each row of the table."""
        if self.sets is not None:
            return [frozenset(self.model.sites.named(heads)) for heads in self.sets.values()]
        return [self._masked(head) for head in self.model.heads]

    def _masked(self, head: Head) -> HeadSet:
        """Return the heads that are masked to measure `head`."""
        if self.unit == "head":
            return frozenset([head])
        if self.unit == "group":
            return self.model.groups[head]
        shared = 1 if self.unit == "kind" else 2  # they share so many parts of (kind, layer, head)
        same = frozenset(other for other in self.model.heads if other[:shared] == head[:shared])
        return same - {head} if self.unit == "all_but_one" else same

    def key(self) -> str:
        """Return the cache key of the table."""
        rows = {} if self.sets is None else {"rows": fingerprint([*self.sets])}
        return f"{self.statistics_key()}|{frame.sign(**rows, resamples=self.n_resamples, seed=self.seed)}"

    def statistics_key(self) -> str:
        """Return the cache key of the example statistics."""
        fields: dict[str, object] = {"predicted": True} if self.is_sampled else {}
        if self.sets is not None:
            fields["sets"] = fingerprint([sorted(heads) for heads in self.masked])
        if isinstance(self.replacement, Replacement):
            fields["pattern"] = fingerprint(self.replacement)
        seed = self.seed if self.is_sampled or self.replacement == "resample" else None
        return self.model.cache_key(self.corpus, metric=self.metric, code=fingerprint(self.metric), seed=seed, **fields)

    def measure(self, max_tokens: int, folder: Path | None = None) -> ExampleStats:
        """Measure the example statistics of the intact model and of all variants."""
        variants, options = list(dict.fromkeys(self.masked)), {"max_tokens": max_tokens, "seed": self.seed}
        sweep = Sweep(self.model, self.corpus, self.metric, replacement=self.replacement, folder=folder, **options)
        if self.is_sampled:
            return run_until_precise(sweep, variants, self.precision)
        return sweep.run(variants, advice=partial(self._on_time, FIRST / max(1, len(sweep.examples))))

    def _on_time(self, share: float, seconds: float) -> str:
        """Advise fewer ablations, which take at least this share of the time, if that is less than half of it."""
        if share > 0.5 or not self.can_be_sampled:
            return ""
        least = max(1, share * seconds / 60)
        return f"; with precision=1.1 {least:.0f} min or more, and intervals up to 1.1 times as wide"

    @property
    def can_be_sampled(self) -> bool:
        """Whether the metric is a mean and a gradient predicts the effects on it."""
        return is_mean(self.metric) and self.metric.has_gradient(self.model)

    def table(self, stats: ExampleStats) -> pd.DataFrame:
        """Compute the table of `ablate` from example statistics."""
        words = [self.metric.name, *([self.unit] if self.unit != "head" else [])]
        words += [replacement_name(self.replacement)] if self.replacement != "zero" and self.sets is None else []
        words += [f"precision={self.precision:g}"] if self.is_sampled else []
        name, effect = f"ablation[{' '.join(words)}]", effects(stats, n_resamples=self.n_resamples, seed=self.seed)
        variants = list(stats.masked)  # each once; several rows may share one
        rows = [variants.index(masked) for masked in self.masked]
        columns = {f"{name}{end}": values[rows] for end, values in effect.columns.items()}
        fields: dict[str, object] = {"intact": f"{effect.intact:.6g}"}
        fields |= {"measured": int(stats.counted.sum())} if not stats.counted.all() else {}
        fields |= {} if self.is_sampled else skewness(stats.measured())
        fields |= {"unit": self.unit} if self.sets is None else {}
        if self.is_sampled:
            fields |= {"precision": f"{self.precision:g}", "estimate": "prediction-powered", "drawn": "by gradients"}
        text = f"{stats.signature}|{frame.sign(**fields, resamples=self.n_resamples, seed=self.seed)}"
        if self.sets is not None:
            return frame.signed(pd.DataFrame(columns, index=pd.Index(list(self.sets), name="set")), text)
        draws = {name: rounded(effect.draws[rows, :KEPT])} if self.n_resamples else None
        return frame.table(columns, self.model.index, text, draws=draws)


def table_name(
    metric: str, unit: Unit = "head", replacement: Word | Replacement = "zero", precision: float = 1.0
) -> str:
    """Return the name of an ablation's tables in a study, after `ablation-` or `examples-`."""
    words = [metric, unit, replacement_name(replacement), *([f"precision={precision:g}"] if precision > 1 else [])]
    return "-".join(words)


def evaluate(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    metrics: Sequence[str | Metric] = ("loss",),
    *,
    max_tokens: int = 4096,
    n_resamples: int = 1000,
    seed: int = 0,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Measure metrics of a model on a corpus.

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: The corpus on which the metrics are measured.
        metrics: Metrics or objectives, or their names. `list_metrics` has all names.
        max_tokens: Tokens in one forward pass.
        n_resamples: Bootstrap resamples of the examples.
        seed: Seed of the resamples.
        study: Study or folder that keeps the table as `evaluation`; a kept table is not computed again.

    Returns:
        A table with a row per metric: `value`, and `low` and `high`, its 95 % interval over the resamples.

    Raises:
        ValueError: If a metric is repeated or unknown, or the model or the corpus does not have it.
    """
    chosen = [as_metric(given) for given in several(metrics)]
    names = [metric.name for metric in chosen]
    if len(set(names)) < len(names):
        raise ValueError(f"metrics must differ, got {', '.join(names)}")
    handle, text = HeadModel.of(model, tokenizer, allow_sharded=True), as_corpus(corpus)
    drawn: dict[str, int] = {"resamples": n_resamples, "seed": seed}

    def key() -> str:
        code = ",".join(map(fingerprint, chosen))
        return handle.cache_key(text, metrics=",".join(map(str, chosen)), code=code, **drawn)

    def compute() -> pd.DataFrame:
        runs = [Sweep(handle, text, metric, max_tokens=max_tokens, variants_at_once=1).run([]) for metric in chosen]
        rows = [metric_with_interval(stats, n_resamples=n_resamples, seed=seed) for stats in runs]
        table = pd.DataFrame(rows, index=pd.Index(names, name="metric"))
        return frame.signed(table, handle.provenance(text, **drawn))

    return kept(study, "evaluation", key, compute)
