"""Negative controls: a claim's rule applied to an untrained model and to tables with shuffled labels (no torch)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from headroles.experiments.papers.artefact import Reproduced, Verdict
from headroles.experiments.papers.intervals import bounded
from headroles.experiments.papers.tables import Bench, Missing
from headroles.tables.frame import KINDS

TRIES = 20  # shuffles, with the seeds 0 to 19
ALLOWED = 0.05  # share of tries that may say yes by chance
Shuffle = Callable[[Any, Any], Any]  # a table, a generator -> the table with labels shuffled
EXEMPT = {  # rules that do not apply to an untrained model, and why
    "voita2019 fig3": "the rule is about texts, not a model",
    "voita2019 fig6": "the rule is about a formula, not a model",
    "voita2019 gates": "gates are trained in any model; the control is the gates before training",
    "michel2019 table4": "speed does not depend on weights; the control is a copy with nothing removed",
    "michel2019 heads_share": "a count of parameters does not depend on weights",
}


class Control(NamedTuple):
    """How often a rule holds where the claim cannot be true: `yes` of `of` tries (0: not applied), and why."""

    yes: int
    of: int
    why: str

    @property
    def passes(self) -> bool:
        """Whether the rule holds more often than by chance."""
        return self.yes > ALLOWED * self.of

    def __str__(self) -> str:
        return f"yes in {self.yes} of {self.of}" if self.of else "not asked"


def controls(name: str, make: Callable[[Bench], Reproduced], bench: Bench) -> dict[str, Control]:
    """Apply the rule of an artefact, such as "voita2019 fig1a", to an untrained model's tables and to shuffled ones."""
    used = [*bench.used]
    results = {"untrained": _untrained(name, make, bench.untrained), "shuffled": _shuffled(name, make, bench)}
    bench.used = used
    return results


def settled(verdict: Verdict, results: dict[str, Control]) -> Verdict:
    """Turn a yes into "cannot be said" if the rule holds of a control too."""
    passed = "; ".join(f"{name}: {control}" for name, control in results.items() if control.passes)
    if not verdict.holds or not passed:
        return verdict
    return verdict._replace(holds=None, why=f"{verdict.why}; but the rule holds of its negative control too ({passed})")


def _untrained(name: str, make: Callable[[Bench], Reproduced], bench: Bench | None) -> Control:
    if name in EXEMPT:
        return Control(0, 0, EXEMPT[name])
    if bench is None:
        return Control(0, 0, "no tables of an untrained model")
    try:
        verdict = make(bench).verdict
    except (Missing, ValueError) as error:
        return Control(0, 0, str(error))
    return Control(int(verdict.holds is True), 1, f"{verdict.answer}: {verdict.why}")


def _shuffled(name: str, make: Callable[[Bench], Reproduced], bench: Bench) -> Control:
    if name not in SHUFFLES:
        return Control(0, 0, "the rule only counts heads, so that shuffling changes nothing")
    kept: dict[Any, Any] = {}
    verdicts = [make(_Shuffled(bench, SHUFFLES[name], kept, seed)).verdict for seed in range(TRIES)]
    answers = [verdict.answer for verdict in verdicts]
    counts = ", ".join(f"{answer} {answers.count(answer)}" for answer in dict.fromkeys(sorted(answers)))
    return Control(answers.count("yes"), TRIES, counts)


class _Shuffled(Bench):
    """A bench with the tables of another, some of them shuffled; loaded tables are cached for the next seed."""

    def __init__(self, bench: Bench, shuffles: dict[str, Shuffle], kept: dict[Any, Any], seed: int) -> None:
        super().__init__(bench.folders)
        self.bench, self.shuffles, self.kept, self.seed = bench, shuffles, kept, seed

    def _found(self, name: str) -> list[Path]:
        if name not in self.kept:
            self.kept[name] = self.bench._found(name)
        return self.kept[name]  # type: ignore[no-any-return]

    def _loaded(self, paths: list[Path]) -> list[pd.DataFrame]:
        tables = []
        for number, path in enumerate(paths):
            if path not in self.kept:
                self.kept[path] = super()._loaded([path])[0]
            name = next(need for need, files in self.kept.items() if isinstance(files, list) and path in files)
            shuffle = self.shuffles.get(name)
            table = self.kept[path].copy()
            tables.append(shuffle(table, np.random.default_rng([self.seed, number])) if shuffle else table)
        return tables


def _scores(table: Any, random: Any) -> Any:
    """Permute each score with its interval over the heads of a kind."""
    for kind in table.index.unique("kind"):
        rows = np.flatnonzero(table.index.get_level_values("kind") == kind)
        groups = [re.match(r"\w+(\[[^\]]*\])?", str(column)) for column in table]
        names = [group[0] if group else str(column) for group, column in zip(groups, table, strict=True)]
        for name in dict.fromkeys(names):
            columns = [number for number, other in enumerate(names) if other == name]
            table.iloc[rows, columns] = table.iloc[random.permutation(rows), columns].to_numpy()
    return table


def _heads(table: Any, random: Any) -> Any:
    """Permute all columns together over all heads."""
    return table.iloc[random.permutation(len(table))].set_axis(table.index)


def _within_kinds(table: Any, random: Any) -> Any:
    """Permute all columns together over the heads of each kind."""
    order = np.arange(len(table))
    for kind in table.index.unique("kind"):
        rows = np.flatnonzero(table.index.get_level_values("kind") == kind)
        order[rows] = random.permutation(rows)
    return table.iloc[order].set_axis(table.index)


def _orders(table: Any, random: Any) -> Any:
    """Swap the names of a random ranking and the ranking by importance."""
    chance = [name for name in table["order"].unique() if re.fullmatch(r"random \d+", name)]
    if not chance:
        raise Missing("the curves have no random ranking")
    drawn = random.choice(chance)
    return table.assign(order=table["order"].replace({"importance": drawn, drawn: "importance"}))


def _kinds(table: Any, random: Any) -> Any:
    """Permute the names of the kinds' curves; that of cross-attention always changes."""
    names = table["order"].str.partition(" ")
    kinds = list(names[0].unique())
    drawn = list(random.permutation(kinds))
    while "cross" in kinds and len(kinds) > 1 and drawn[kinds.index("cross")] == "cross":
        drawn = list(random.permutation(kinds))
    return table.assign(order=names[0].map(dict(zip(kinds, drawn, strict=True))) + " " + names[2])


def _left(table: Any, random: Any) -> Any:
    """Replace the number of heads of each kind at each size by that of one random ranking."""
    whole = table.loc[table["heads"].idxmax(), [*KINDS]].to_numpy(int)
    order = random.permutation(np.repeat(np.arange(len(KINDS)), whole))
    counts = [np.bincount(order[:size], minlength=len(KINDS)) for size in table["heads"].astype(int)]
    return table.assign(**dict(zip(KINDS, np.array(counts).T, strict=True)))


def _roles(table: Any, random: Any) -> Any:
    """Replace the functions at each size by those of heads drawn at random, for each kind of heads."""
    for _, part in table.groupby("kind", observed=True):
        whole = part[part["heads"] == part["heads"].max()]
        bag = np.repeat(whole["function"].astype(str).to_numpy(), whole["count"].to_numpy(int))
        for _, rows in part.groupby("heads"):
            drawn = list(random.choice(bag, int(rows["count"].sum()), replace=False))
            table.loc[rows.index, "count"] = [drawn.count(name) for name in rows["function"].astype(str)]
    return table


def _rarest(table: Any, random: Any) -> Any:
    """Mark a random content token of each sentence as the rarest."""
    for _, part in table[table["counted"]].groupby("sentence"):
        keys = part["key"].unique()
        table.loc[part.index, "rarest"] = part["key"] == random.choice(keys)
    return table


def _offsets(table: Any, random: Any) -> Any:
    """Distribute the words of each relation uniformly over its offsets."""
    for _, part in table.groupby("relation", sort=False):
        counts = random.multinomial(part["count"].sum(), np.full(len(part), 1 / len(part)))
        table.loc[part.index, "count"] = counts
        table.loc[part.index, "share"] = counts / counts.sum()
    return table


def _first_step(table: Any, random: Any) -> Any:
    """Replace the last step of gates by the first (deterministic)."""
    assert random is not None
    first = table[table["step"] == table["step"].min()]
    attrs, last = table.attrs, first.assign(step=table["step"].max())
    table = pd.concat([first, last], ignore_index=True)
    table.attrs = attrs
    return table


def _steps(table: Any, random: Any) -> Any:
    """Permute the steps of the checkpoints."""
    steps = table[["step", "epoch"]].drop_duplicates()
    drawn = steps.iloc[random.permutation(len(steps))].set_axis(steps["step"])
    return table.assign(step=table["step"].map(drawn["step"]), epoch=table["step"].map(drawn["epoch"]))


def _copy(table: Any, random: Any) -> Any:
    """Replace all speeds by those of a copy without removed heads (deterministic)."""
    assert random is not None
    copies = table[(table["way"] == "cut") & (table["closed"] == 0)].set_index("batch")
    for name in ("speed", "speed.sd", "speedup", "speedup.low", "speedup.high"):
        table[name] = table["batch"].map(copies[name])
    return table


def _trainings(table: Any, random: Any) -> Any:
    """Swap the names of the pruned model and the one from scratch (deterministic)."""
    assert random is not None
    pruned, scratch = bounded("finetuned"), bounded("scratch")
    return table.rename(columns=dict(zip(pruned + scratch, scratch + pruned, strict=True)))


def _strategies(table: Any, random: Any) -> Any:
    """Permute the names of the strategies."""
    names = [name for name in table["strategy"].unique() if name != "all heads"]
    return table.assign(strategy=table["strategy"].replace(dict(zip(names, random.permutation(names), strict=True))))


SHUFFLES: dict[str, dict[str, Shuffle]] = {
    "voita2019 fig1b": {"relevance": _scores},
    "voita2019 fig3": {"offsets": _offsets},
    "voita2019 fig5": {"attention": _rarest},
    "voita2019 fig8": {"functions-encoder": _roles},
    "voita2019 fig9": {"sizes": _left},
    "voita2019 fig10": {"survival": _heads},
    "voita2019 table2": {"scratch": _trainings},
    "voita2019 gates": {"gates": _first_step},
    "michel2019 fig2": {"single": _within_kinds},
    "michel2019 fig3": {"curves": _orders},
    "michel2019 fig6": {"curves": _orders},
    "michel2019 fig4": {"kinds": _kinds},
    "michel2019 fig5": {"dynamics": _steps},
    "michel2019 table4": {"efficiency": _copy},
    "budhraja2020 claim1": {"contest": _strategies},
    "budhraja2020 claim2": {"contest": _strategies},
    "budhraja2020 claim3": {"places": _strategies},
}
