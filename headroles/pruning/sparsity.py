"""Sparsity sweep: prune copies of a model to several numbers of heads, and measure them and their roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.metrics import Metric, as_metric
from headroles.ablation.significance import interval
from headroles.analysis import role_rules
from headroles.analysis.intervals import Array
from headroles.analysis.summaries import functions
from headroles.data.corpus import Corpus, CorpusLike
from headroles.data.readers import as_corpus
from headroles.models import loading
from headroles.models.head_model import HeadModel
from headroles.models.identity import fingerprint
from headroles.pruning.cached_evaluation import Trials, values
from headroles.pruning.learned_gates import frozen
from headroles.pruning.rankings import Ranking
from headroles.pruning.selection import Strategy, counted, prune, strategy_of, undecided
from headroles.scores import score
from headroles.tables import frame
from headroles.tables.arguments import several
from headroles.tables.columns import Column
from headroles.tables.frame import KINDS, Kind, signed
from headroles.tables.io import check_writable, expanded
from headroles.tables.study import Study, as_study
from headroles.training.examples import check_examples
from headroles.training.hf_trainer import TrainOptions
from headroles.training.trainer import train


def sparsity_sweep(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    held_out: CorpusLike,
    strategy: str | Strategy = "l0",
    *,
    keep: Sequence[float],
    kinds: Sequence[Kind] | None = None,
    metric: str | Metric = "loss",
    scored: CorpusLike | Mapping[str, Any] | None = None,
    tune: TrainOptions | None = None,
    study: Study | str | Path | None = None,
    output: str | Path | None = None,
) -> pd.DataFrame:
    """Prune copies of a model to several numbers of heads (Voita et al. 2019, Figs. 7 to 10).

    After heads are removed by a ranking, the remaining model is trained. Finished sizes are not run again.

    Args:
        model: A Hugging Face model, which is not changed.
        tokenizer: Its tokenizer.
        corpus: The corpus on which heads are selected and copies are trained.
        held_out: The corpus on which the metric is measured.
        strategy: Name of a strategy of `prune`. Or a strategy.
        keep: Numbers of heads to keep, or below 1 shares.
        kinds: Kinds of the heads that are pruned, by default all.
        metric: Name of a metric or objective. Or a metric.
        scored: Corpus on which the roles of the remaining heads are assigned; by default no roles are. Or arguments of
            `score`: `{"corpus": trees, "reference": pairs}`.
        tune: Options of `train`; its seed is that of the selection, too.
        study: Study or folder that keeps the tables: `sparsity-STRATEGY[-KINDS]`, the returned one; `survival-...`, a
            column per size; with learned gates `gates-...`, their history; and with `scored` `roles-...-HEADS` and
            `functions-...`.
        output: Folder for the pruned and trained models, each saved in a folder named by its number of heads; `load`
            reads them. By default they are not saved.

    Returns:
        A table with a row per size; the first row is the control, the whole model after the same training.

        - heads, of: remaining and all heads; and the remaining heads of each kind.
        - value, low, high: the metric and its 95 % interval.
        - change, change.low, change.high: difference from the control.
        - undecided: number of gates with P(gate != 0) between 0.1 and 0.9.

    Raises:
        ValueError: If a size is impossible.
        FileExistsError: If `output` is a study, or holds another model at one of the sizes.
    """  # noqa: DOC502
    if output is not None:
        loading.check_no_study(output := expanded(output))
        check_writable(output, "folder")
    chosen = strategy_of(strategy)
    corpus, held_out = as_corpus(corpus), as_corpus(held_out)
    options: TrainOptions = {"seed": 0, **(tune or {})}
    scored = None if scored is None else _scored(scored)
    check_examples(HeadModel(model, tokenizer), corpus, length=options.get("length"))
    name = "-".join([chosen.name, *(kinds or ())])
    handle, measured, kept = HeadModel(model, tokenizer), as_metric(metric), as_study(study)
    size, what = len(handle.sites.of_kinds(kinds)), (handle, corpus, held_out, measured, kept)
    trials = Trials(*what, kinds=kinds, tune=options, strategy=chosen)
    trials.check(handle if isinstance(chosen, Ranking) else HeadModel(model, tokenizer).to_be_trained())
    kept.remove(trials.claim(f"sparsity-{name}"))
    counts = {counted(number, size) for number in several(keep)}
    statistics, tables, families = [], [], []
    for count in (size, *sorted(counts - {size}, reverse=True)):
        pruned = _Pruned(trials, chosen, count, size, options)
        tables.append(pruned.survival)
        statistics.append(trials.run((count, fingerprint(chosen)), pruned.model))
        if scored is not None:
            families.append(functions(pruned.roles(scored)).assign(heads=count))
        if output is not None and count < size:
            loading.save(pruned.model(), tokenizer, Path(output, str(count)), overwrite=kept.overwrite)
    table = frame.join(*tables[1:]) if len(tables) > 1 else tables[0]
    kept.save(f"survival-{name}", table)
    if families:
        parts = pd.concat(families, ignore_index=True)
        table = signed(parts, trials.key, f"scored:{scored['corpus'].hash if scored else None}")
        kept.save(f"functions-{name}", table)
    sizes = signed(_table(measured, statistics, tables), trials.key, trials.signature)
    return kept.save(f"sparsity-{name}", sizes)


@dataclass
class _Pruned:
    """Model of one size with its survival and role tables, each computed when it is first needed."""

    trials: Trials
    chosen: Strategy
    count: int
    size: int
    options: TrainOptions
    trained: PreTrainedModel | None = None

    @property
    def place(self) -> Path:
        """The folder of the training."""
        return self.trials.place(self.count, fingerprint(self.chosen), "training")

    def model(self) -> PreTrainedModel:
        """Return the pruned and trained model, or the trained control; interrupted training continues."""
        if self.trained is None:
            model, tokenizer, corpus = self.trials.copy()
            freeze = None if isinstance(self.chosen, Ranking) else self.chosen.freeze
            if self.count < self.size:
                prune(
                    *(model, tokenizer, corpus, self.chosen),
                    keep=self.count,
                    kinds=self.trials.kinds,
                    train="after" if freeze is None else None,
                    seed=self.options["seed"],
                    tune=self.options,
                    study=self.place,
                )
            elif self.options.get("rate") != 0 and freeze != "all":  # an untrained control keeps its weights
                with frozen(model, freeze or "nothing"):
                    train(model, tokenizer, corpus, self.place, **self.options)
            self.trained = model
        return self.trained

    @cached_property
    def survival(self) -> pd.DataFrame:
        """The survival table; the history of gates is saved in the study."""
        if self.count == self.size:
            return frame.table({"survival[all]": 1.0}, self.trials.handle.index, "control")
        kept, survival = Study(self.place), "-".join(["survival", self.chosen.name, *(self.trials.kinds or ())])
        if not kept.has(survival):
            self.model()
        if kept.has(gates := self._name("gates")):
            self.trials.study.save(gates, kept.load(gates))
        return kept.load(survival)

    def _name(self, table: str) -> str:
        """Return the name of a table of this size: TABLE-STRATEGY[-KINDS]-HEADS."""
        return "-".join([table, self.chosen.name, *(self.trials.kinds or ()), str(self.count)])

    def roles(self, scored: Mapping[str, Any]) -> pd.DataFrame:
        """Return the roles of the remaining heads, and save them as `roles-STRATEGY[-KINDS]-HEADS`."""
        options = {name: value.hash if isinstance(value, Corpus) else value for name, value in scored.items()}

        def compute() -> pd.DataFrame:
            return role_rules.roles(score(self.model(), self.trials.handle.tokenizer, **scored))

        table = self.trials.keep(("roles", self.place.name, options), compute)
        return self.trials.study.save(self._name("roles"), table)


def _scored(given: CorpusLike | Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `score` by which roles are assigned."""
    options = {**given} if isinstance(given, Mapping) and "corpus" in given else {"corpus": given}
    corpora = {name: as_corpus(options[name]) for name in ("corpus", "reference") if options.get(name) is not None}
    return {"n_resamples": 200, **options, **corpora}


def _table(metric: Metric, statistics: Sequence[Array], tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    draws, examples = values(metric, statistics), len(statistics[0])
    rows: list[dict[str, float]] = []
    for draw, table in zip(draws, tables, strict=True):
        survival = table.iloc[:, 0]
        row: dict[str, float] = {"heads": int(survival.sum()), "of": len(survival)}
        left = survival.groupby(level="kind").sum()
        row |= {kind: int(left[kind]) for kind in KINDS if kind in left}
        row |= dict(zip(("value", "low", "high"), interval(draw, metric, examples), strict=True))
        change = interval(draw, metric, examples, before=draws[0]) if rows else (0.0, 0.0, 0.0)  # of the control
        row |= dict(zip(("change", "change.low", "change.high"), change, strict=True))
        chance = table.iloc[:, 1] if table.shape[1] > 1 and Column.parse(table.columns[1]).suffix == "open" else None
        row |= {"undecided": 0 if chance is None else undecided(chance)}
        rows.append(row)
    return pd.DataFrame(rows)
