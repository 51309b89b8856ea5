"""Ablation: mask every head or set of heads of a model and measure the change of a metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Unpack

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.early_stopping import staged
from headroles.ablation.example_stats import ExampleStats, HeadSet
from headroles.ablation.metrics import Metric
from headroles.ablation.metrics import metric as the_metric
from headroles.ablation.runner import Replacement, Unit, check_choices, masked_heads, on_disk, sampling, table_name
from headroles.ablation.significance import best, effects, is_mean
from headroles.ablation.sweep import Options, sweep
from headroles.analysis.intervals import rounded
from headroles.data.corpus import Corpus
from headroles.models.heads import head_index, named_heads
from headroles.models.masking import Head
from headroles.models.provenance import cache_key, configuration, fixed_weights
from headroles.tables import frame
from headroles.tables.study import Study, study_at

KEPT = 1000  # resamples kept in a table; more serve only p, of which corrections for many tests need small ones


@fixed_weights()
def ablate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    *,
    metric: str | Metric = "loss",
    unit: Unit = "head",
    replacement: Replacement = "zero",
    early: bool = False,
    precision: float = 1.0,
    max_tokens: int = 4096,
    heads_per_batch: int = 8,
    n_resamples: int = 1000,
    seed: int = 0,
    folder: str | Path | None = None,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Ablate every head and measure the change of a metric (Michel et al. 2019, section 3).

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: The corpus on which the metric is measured.
        metric: Name of a metric (`list_metrics`) or of an objective, or a metric.
        unit: What is masked for each head: the "head" alone, all other heads of its layer ("all_but_one"), its whole
            "layer", or all heads of its "kind".
        replacement: What replaces the output of a masked head: "zero"; its "mean" over the corpus; its output for
            another example of similar length ("resample"); its output under "uniform" attention; or zero while the
            remaining heads of its layer are scaled up ("rescale").
        early: Stop measuring a head once it is clear whether its p is below 0.01 (`staged` describes the risks).
        precision: How much wider than from the whole corpus intervals may be: 1 ablates every head on every example;
            with 1.1, say, the gradient predicts the effect of every head on every example, and each head is ablated on
            as many random examples as it takes to correct the prediction that precisely (`estimate`). The effects are
            unbiased whatever the gradient is worth. Metrics that are means and have a gradient: the loss, accuracy,
            agreement, objectives. `early` uses such predictions too, where there are any.
        max_tokens: Tokens in one forward pass.
        heads_per_batch: Variants of the model in one forward pass.
        n_resamples: Bootstrap resamples of the examples.
        seed: Seed of the resamples, and of the examples that "resample" and `early` draw.
        folder: Where finished batches are kept; an interrupted run continues after them.
        study: Study or folder that keeps the table `ablation-METRIC-UNIT-REPLACEMENT` and the example statistics behind
            it, `examples-...`; if it has them, nothing is computed. For the unit "all_but_one" it also keeps
            `best-METRIC-REPLACEMENT` and `best-METRIC-REPLACEMENT-halves` (`best`). File names have the words of
            `on_disk`. Finished batches are kept in its folder of unfinished work.

    Returns:
        A table with a row per head. The column name c is `ablation[metric]`; unit, replacement and "early" follow the
        metric if they are not the defaults, as does "precision=1.1".

        - c: metric(ablated) - metric(intact).
        - c.low, c.high: its 95 % interval over paired Poisson bootstrap resamples of the examples.
        - c.p: two-sided p-value, of a paired t-test if the metric is a mean (of a ratio, by the delta method),
          otherwise of the paired bootstrap (Koehn 2004). The latter is at least 2 / (n_resamples + 1), so that many
          heads need many resamples.
        - c.holm, c.bh: p corrected for all tests after Holm, and after Benjamini and Hochberg.
        - c.examples: number of examples on which a head was ablated (with `early` or `precision`).
        - c.slope, c.explained: effect per unit of the predicted effect, and the share of its variance over examples
          that the prediction explains (with predictions; intervals and p are then of t, with errors by the jackknife).

        ValueError is raised if `precision` is below 1, or above 1 for a metric that no gradient predicts.

    Example:
        >>> table = hr.ablate(model, tokenizer, corpus, metric="loss")
        >>> table["ablation[loss]"].nlargest(3)
    """
    ablation = AblationSweep(model, tokenizer, corpus, the_metric(metric), unit, replacement, early, precision, seed)
    run = partial(ablation.run, max_tokens=max_tokens, heads_per_batch=heads_per_batch)
    if study is None:
        return ablation.effects(run(folder=folder), n_resamples)
    kept = study_at(study)
    return _kept(ablation, kept, partial(run, folder=kept.work / ".sweeps"), n_resamples)


@fixed_weights()
def ablate_sets(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    sets: Mapping[str, Iterable[Head | str] | str],
    *,
    metric: str | Metric = "loss",
    replacement: Replacement = "zero",
    early: bool = False,
    precision: float = 1.0,
    n_resamples: int = 1000,
    seed: int = 0,
    **options: Unpack[Options],
) -> pd.DataFrame:
    """Ablate sets of heads and measure the change of a metric.

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: The corpus on which the metric is measured.
        sets: Name -> heads that are masked together, (kind, layer, head) each, or in writing as in `head_mask`.
        metric: Name of a metric or objective, or a metric.
        replacement: What replaces the output of a masked head, as in `ablate`.
        early: Whether to stop measuring a set once its test is decided, as in `ablate`.
        precision: How much wider than from the whole corpus intervals may be, as in `ablate`.
        n_resamples: Bootstrap resamples of the examples.
        seed: Seed of the resamples, and of the examples that are drawn.
        **options: Further options of `Sweep` (`max_tokens`, `heads_per_batch`, `folder`).

    Returns:
        A table with a row per set, with the columns of `ablate`.

    Raises:
        ValueError: If there is no set.
    """
    if not sets:
        raise ValueError("nothing to ablate: got no set of heads; expected at least one")
    masked = {name: frozenset(named_heads(model, heads)) for name, heads in sets.items()}
    ablation = AblationSweep(
        model, tokenizer, corpus, the_metric(metric), "head", replacement, early, precision, seed, masked
    )
    return ablation.effects(ablation.run(**options), n_resamples)


def _kept(ablation: AblationSweep, study: Study, run: Callable[[], ExampleStats], n_resamples: int) -> pd.DataFrame:
    """Return the table of an ablation from a study, which computes and keeps what it does not have."""
    metric, replacement = ablation.metric.name, on_disk(ablation.replacement)
    name = table_name(metric, ablation.unit, ablation.replacement, early=ablation.early, precision=ablation.precision)
    predicted = {"predicted": True} if ablation.predicts else {}
    key = cache_key(
        ablation.model,
        configuration=configuration(ablation.model, ablation.tokenizer),
        text=ablation.corpus.hash,
        metric=ablation.metric,
        seed=ablation.seed if ablation.is_sampled or ablation.replacement == "resample" else None,
        **predicted,
    )

    @cache  # several tables need them
    def stats() -> ExampleStats:
        return ExampleStats.of(study.keep(f"examples-{name}", key, lambda: run().table()), ablation.metric)

    def keep(name: str, compute: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        return study.keep(name, f"{key}|resamples:{n_resamples}|seed:{ablation.seed}", compute)

    def best_heads(*, halves: bool = False) -> pd.DataFrame:
        return best(stats(), head_index(ablation.model), halves=halves, n_resamples=n_resamples, seed=ablation.seed)

    if ablation.unit == "all_but_one" and not ablation.is_sampled:
        keep(f"best-{metric}-{replacement}", best_heads)
        if len(stats().numbers) > 1:
            keep(f"best-{metric}-{replacement}-halves", lambda: best_heads(halves=True))
    return keep(f"ablation-{name}", lambda: ablation.effects(stats(), n_resamples))


@dataclass(frozen=True)
class AblationSweep:
    """Ablation of every head of a model: `run` measures example statistics, `effects` computes the table."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    corpus: Corpus
    metric: Metric
    unit: Unit = "head"
    replacement: Replacement = "zero"
    early: bool = False
    precision: float = 1.0
    seed: int = 0
    sets: Mapping[str, HeadSet] | None = None  # in place of the heads of the model

    def __post_init__(self) -> None:
        check_choices(self.unit, self.replacement)
        if self.precision < 1:
            raise ValueError(
                f"wrong precision: got {self.precision:g}; expected 1 for the whole corpus, or more, such as 1.1 for "
                f"intervals a tenth wider"
            )
        if self.precision > 1 and not self.predicts:
            raise ValueError(
                f"no gradient predicts the effects on {self.metric.name} of {type(self.model).__name__}: got "
                f"precision={self.precision:g}; expected a metric that is a mean, such as 'loss'; try precision=1"
            )

    @cached_property
    def variants(self) -> list[HeadSet]:
        """Heads masked for each row of the table."""
        if self.sets is not None:
            return list(self.sets.values())
        heads = [(kind, layer, head) for kind, layer, head in head_index(self.model)]
        return [masked_heads(head, heads, self.unit) for head in heads]

    @property
    def is_sampled(self) -> bool:
        """Whether heads are ablated on a part of the examples."""
        return self.early or self.precision > 1

    @cached_property
    def predicts(self) -> bool:
        """Whether a gradient predicts effects, which are then ablated on a part of the examples."""
        return self.is_sampled and is_mean(self.metric) and self.metric.has_stand_in(self.model)

    def run(self, **options: Unpack[Options]) -> ExampleStats:
        """Measure the example statistics of the intact model and of all variants; options are those of `sweep`."""
        variants = list(dict.fromkeys(self.variants))
        measured = self.model, self.tokenizer, self.corpus, variants, self.metric
        if not self.is_sampled:
            return sweep(*measured, replacement=self.replacement, seed=self.seed, **options)
        return staged(
            *measured,
            predict=self.predicts,
            early=self.early,
            precision=self.precision,
            replacement=self.replacement,
            seed=self.seed,
            **options,
        )

    def effects(self, stats: ExampleStats, n_resamples: int = 1000) -> pd.DataFrame:
        """Compute the table of `ablate` from example statistics."""
        unit, replacement = on_disk(self.unit), on_disk(self.replacement)
        usual = ((unit, self.unit == "head"), (replacement, self.replacement == "zero" or self.sets is not None))
        words = [
            self.metric.name,
            *(word for word, is_usual in usual if not is_usual),
            *sampling(early=self.early, precision=self.precision),
        ]
        name = f"ablation[{' '.join(words)}]"
        effect = effects(stats, n_resamples=n_resamples, seed=self.seed)
        measured = list(stats.masked)
        rows = [measured.index(variant) for variant in self.variants]
        kept = {end: values for end, values in effect.columns.items() if self.is_sampled or end != ".examples"}
        columns = {f"{name}{end}": values[rows] for end, values in kept.items()}
        fields: dict[str, object] = {"intact": f"{effect.intact:.6g}"}
        fields |= {"plan": unit} if self.sets is None else {}
        fields |= {"early": True} if self.early else {}
        fields |= {"precision": f"{self.precision:g}"} if self.precision > 1 else {}
        fields |= {"estimate": "prediction-powered"} if self.predicts else {}
        fields |= {"drawn": "by gradients"} if stats.sizes is not None else {}
        text = f"{stats.signature}|{frame.sign(**fields, resamples=n_resamples, seed=self.seed)}"
        if self.sets is not None:
            return frame.signed(pd.DataFrame(columns, index=pd.Index(list(self.sets), name="set")), text)
        draws = {name: rounded(effect.draws[rows, :KEPT])} if n_resamples else None
        return frame.table(columns, head_index(self.model), text, draws=draws)
