"""Sizes: a model pruned to several numbers of heads, what each is worth, and which heads with which roles are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from importlib.metadata import version
from typing import Any

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.metrics import Metric
from headroles.ablation.metrics import metric as the_metric
from headroles.analysis import role_rules
from headroles.data.corpus import Corpus
from headroles.models import heads as families
from headroles.pruning.cached_evaluation import Trials, interval, recipe, signed, values
from headroles.pruning.learned_gates import frozen
from headroles.pruning.rankings import Ranking, among
from headroles.pruning.removal import remove_heads
from headroles.pruning.selection import Strategy, counted, prune, strategy_of, undecided
from headroles.scores import score
from headroles.tables import frame
from headroles.tables.frame import KINDS, Kind
from headroles.tables.io import load_table, save_table
from headroles.tables.study import Study
from headroles.training.trainer import train


def sparsity_sweep(
    study: Study,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    held_out: Corpus,
    strategy: str | Strategy = "l0",
    *,
    keep: Sequence[float],
    kinds: Sequence[Kind] | None = None,
    metric: str | Metric = "loss",
    scored: Corpus | None = None,
    reference: Corpus | None = None,
    seed: int = 0,
    tune: Mapping[str, Any] | None = None,
    n_resamples: int = 1000,
    max_tokens: int = 4096,
) -> pd.DataFrame:
    """Prune copies of `model` to each number of heads in `keep` (Voita et al. 2019, Figs. 7 to 10); kept in the study.

    Returns, and keeps as `sizes-STRATEGY[-KINDS]`, a row per size: `heads` left of `of`, of each kind, and the metric
    on `held_out`: `value`, and `change` against the control, the whole model after the same training, each with `.low`
    and `.high`. The first row is the control. `survival-...` has a column for each size, `gates-...` is the history of
    gates; with a corpus `scored` the roles of the heads left are told on it, `functions-...`, and for each size
    `roles-...-HEADS`, words being rare by `reference` as for `score`. An order is followed by training of what is left.
    Finished sizes are not run again. `budget` bounds a batch of what is measured, in tokens.
    """
    chosen, options = strategy_of(strategy), {"seed": seed, **(tune or {})}
    name = "-".join([chosen.name, *(kinds or ())])
    measured, may_go = the_metric(metric), among(model, kinds)
    work = recipe(model, corpus, kinds, options, strategy=chosen)
    study.remove(study.claim(f"sizes-{name}", f"{work}|{frame.sign(text=held_out.hash)}"))
    trials = Trials(study, tokenizer, held_out, measured, work, max_tokens=max_tokens)
    counts = {counted(one, len(may_go)) for one in keep}
    statistics, tables, told = [], [], []
    for count in (len(may_go), *sorted(counts - {len(may_go)}, reverse=True)):
        made = _Made(model, tokenizer, corpus, chosen, kinds, count, len(may_go), trials, options, seed)
        statistics.append(trials.run((count,), made.model))
        tables.append(made.survival(study))
        if scored is not None:
            told.append(functions(made.roles(study, scored, reference)).assign(heads=count))
    table = frame.join(*tables[1:]) if len(tables) > 1 else tables[0]
    save_table(table, study.path(f"survival-{name}"))
    if told:
        parts = pd.concat(told, ignore_index=True)
        save_table(
            signed(parts, work, f"scored:{scored.hash if scored else None}"), study.path(f"functions-{name}")
        )
    found = _table(measured, statistics, tables, n_resamples)
    save_table(signed(found, work, trials.signature), study.path(f"sizes-{name}"))
    return found


class _Made:
    """One size: its model, its survivors, their roles, each made when it is first asked for."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        corpus: Corpus,
        chosen: Strategy,
        kinds: Sequence[Kind] | None,
        count: int,
        of: int,
        trials: Trials,
        options: dict[str, Any],
        seed: int,
    ) -> None:
        self.whole, self.tokenizer, self.corpus, self.chosen = model, tokenizer, corpus, chosen
        self.kinds, self.count, self.of, self.options, self.seed = kinds, count, of, options, seed
        self.trials, self.place = trials, trials.place(count, "training")
        self.made: PreTrainedModel | None = None

    def model(self) -> PreTrainedModel:
        """The pruned model, trained; the control is trained alike and whole. Its training is kept, and taken up."""
        if self.made is None:
            one = deepcopy(self.whole)
            if self.count == self.of:
                with frozen(one, "nothing" if isinstance(self.chosen, Ranking) else self.chosen.freeze):
                    train(one, self.tokenizer, self.corpus, self.place, **self.options)
            else:
                schedule: Any = "prune-tune" if isinstance(self.chosen, Ranking) else "prune"
                asked = {"keep": self.count, "kinds": self.kinds, "seed": self.seed, "schedule": schedule}
                table = prune(
                    one, self.tokenizer, self.corpus, self.chosen, folder=self.place, tune=self.options, **asked
                )
                save_table(table, self.place / "survival.parquet")
                if schedule == "prune":
                    remove_heads(one, table.iloc[:, 0])
            self.made = one
        return self.made

    def survival(self, study: Study) -> pd.DataFrame:
        """Which heads are left: a column and what is beside it. The history of gates is put into the study."""
        if self.count == self.of:
            return frame.table({"survival[all]": 1.0}, families.head_index(self.whole), "control")
        file = self.place / "survival.parquet"
        if not file.is_file():
            self.model()
        if (history := self.place / "gates.parquet").is_file():
            name = "-".join(["gates", self.chosen.name, *(self.kinds or ()), str(self.count)])
            save_table(load_table(history), study.path(name))
        return load_table(file)

    def roles(self, study: Study, scored: Corpus, reference: Corpus | None) -> pd.DataFrame:
        """The roles of the heads left, put into the study as `roles-STRATEGY[-KINDS]-HEADS`."""
        counted = {} if reference is None else {"reference": reference.hash}
        work = frame.sign(place=self.place.name, scored=scored.hash, **counted, headroles=version("headroles"))
        options: dict[str, Any] = {"n_resamples": 200, "max_tokens": self.trials.max_tokens, "reference": reference}
        kept = Study(self.trials.folder)

        def compute() -> pd.DataFrame:
            return role_rules.roles(score(self.model(), self.tokenizer, scored, **options))

        told = kept.keep(f"roles-{self.place.name}", work, compute)
        save_table(told, study.path("-".join(["roles", self.chosen.name, *(self.kinds or ()), str(self.count)])))
        return told


def functions(told: pd.DataFrame) -> pd.DataFrame:
    """How many heads of each kind have which family of roles: kind, function, count (Voita et al. 2019, Fig. 8)."""
    found: dict[Any, set[str]] = {head: set() for head in told.index}
    rows: Any = role_rules.held(told)
    for row in rows.itertuples():
        found[row.kind, row.layer, row.head].add(row.role.partition("[")[0])
    named = [(head[0], "several" if len(held) > 1 else next(iter(held), "none")) for head, held in found.items()]
    counts = pd.Series(named).value_counts(sort=False)
    return pd.DataFrame([(*key, count) for key, count in sorted(counts.items())], columns=["kind", "function", "count"])  # type: ignore[misc]


def _table(metric: Metric, statistics: Sequence[Any], tables: Sequence[pd.DataFrame], n_resamples: int) -> pd.DataFrame:
    draws = values(metric, statistics, n_resamples=n_resamples)
    rows = []
    for own, table in zip(draws, tables, strict=True):
        survival = table.iloc[:, 0]
        row: dict[str, Any] = {"heads": int(survival.sum()), "of": len(survival)}
        left = survival.groupby(level="kind").sum()
        row |= {kind: int(left[kind]) for kind in KINDS if kind in left}
        row |= dict(zip(("value", "low", "high"), interval(own), strict=True))
        row |= dict(zip(("change", "change.low", "change.high"), interval(own - draws[0]), strict=True))
        opened = table.iloc[:, 1] if table.shape[1] > 1 and str(table.columns[1]).endswith(".open") else None
        rows.append(row | {"undecided": 0 if opened is None else undecided(opened)})
    return pd.DataFrame(rows)
