"""Does a rule of the papers' claims hold where the claim cannot be true?

Each rule is asked about the tables of an untrained model of the same shape, and about tables with shuffled labels (20
seeds). A rule that holds there in more than a twentieth of the tries shows nothing. STUDIES are folders, those of one
model with commas between; --toys is a folder for a toy translator and a toy classifier, on which all rules are asked.
Writes a row per artefact and control.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import typer

from headroles.papers.bench import Bench
from headroles.papers.budhraja2020 import ALL
from headroles.papers.michel2019 import ranking_of
from headroles.papers.reproduction import PAPERS, Make, artefacts
from headroles.papers.verdicts import Missing, with_bounds
from headroles.tables.columns import Column
from headroles.tables.frame import KINDS

TRIES = 20  # shuffles, with the seeds 0 to 19
SHARED = ("untrained", "trainings")  # tables that an untrained model takes from the study beside it
UNREPEATED = "pruning and training are not repeated for an untrained model"
Shuffle = Callable[[pd.DataFrame, np.random.Generator], pd.DataFrame]  # -> the table with labels shuffled


def main(
    studies: Annotated[list[str], typer.Argument()],
    output: Annotated[Path, typer.Option()],
    toys: Annotated[Path | None, typer.Option()] = None,
) -> None:
    tables = [controls_of_toys(toys)] if toys else []
    tables += [controls_of_study([Path(folder) for folder in study.split(",")]) for study in studies]
    pd.concat(tables).to_csv(output, index=False)


def controls_of_study(folders: Sequence[Path]) -> pd.DataFrame:
    """Ask the rules about controls of the tables of studies of one model; FOLDER/untrained is of an untrained one."""
    bench, untrained = Bench(folders), [folder / "untrained" for folder in folders]
    if untrained := [folder for folder in untrained if folder.is_dir()]:
        bench.untrained = Untrained(bench, untrained)
    return _rows(folders[0].resolve().name, bench, PAPERS)


def controls_of_toys(folder: Path) -> pd.DataFrame:
    """Ask all rules about controls of the toys, which are trained; an untrained toy is trained with a rate of 0."""
    sys.path.append(str(Path(__file__).resolve().parents[2] / "papers" / "replicate"))
    from toys import PAPERS as OF_TOYS
    from toys import workflows

    made = workflows(folder).items()
    return pd.concat(_rows(name, bench_of_toy(toy), OF_TOYS[name]) for name, toy in made)


def bench_of_toy(toy: Any) -> Bench:
    """Return the bench of a toy with that of an untrained one."""
    bench, no_rate = Bench([toy.folder], toy), {"rate": 0.0}
    untrained = replace(toy.untrained, tune=toy.tune | no_rate, scratch=toy.scratch | no_rate)
    bench.untrained = Untrained(bench, [untrained.folder], untrained)
    return bench


def _rows(study: str, bench: Bench, papers: Sequence[Any]) -> pd.DataFrame:
    rows = []
    for paper in sorted(papers):
        for name, make in sorted(artefacts(paper).items()):
            try:
                answer = make(bench).verdict.answer
            except (Missing, ValueError):
                continue
            known = {"study": study, "paper": paper, "artefact": name, "answer": answer}
            for kind, control in controls(f"{paper} {name}", make, bench).items():
                rows.append(known | {"control": kind} | control._asdict() | {"passes": control.passes})
    return pd.DataFrame(rows)


class Control(NamedTuple):
    """How often a rule holds where the claim cannot be true: `yes` of `of` tries (0: not applied), and why."""

    yes: int
    of: int
    why: str

    @property
    def passes(self) -> bool:
        """Whether the rule holds more often than by chance."""
        return self.yes > 0.05 * self.of


def controls(artefact: str, make: Make, bench: Bench) -> dict[str, Control]:
    """Apply the rule of an artefact to the tables of an untrained model, and to tables with shuffled labels."""
    return {"untrained": _untrained(artefact, make, bench.untrained), "shuffled": _shuffled(artefact, make, bench)}


def _untrained(artefact: str, make: Make, bench: Bench | None) -> Control:
    if artefact in EXEMPT or bench is None:
        return Control(0, 0, EXEMPT.get(artefact, "no tables of an untrained model"))
    try:
        verdict = make(bench).verdict
    except (Missing, ValueError) as error:
        return Control(0, 0, str(error))
    return Control(int(verdict.holds is True), 1, f"{verdict.answer}: {verdict.why}")


def _shuffled(artefact: str, make: Make, bench: Bench) -> Control:
    if artefact not in SHUFFLES:
        return Control(0, 0, "the rule only counts heads, so that shuffling changes nothing")
    shuffled = Shuffled(bench, *SHUFFLES[artefact])
    answers = []
    for seed in range(TRIES):
        shuffled.seed = seed
        try:
            answers.append(make(shuffled).verdict.answer)
        except Missing as error:  # what would be shuffled, such as random rankings
            return Control(0, 0, str(error))
    counts = ", ".join(f"{answer} {answers.count(answer)}" for answer in dict.fromkeys(sorted(answers)))
    return Control(answers.count("yes"), TRIES, counts)


class Untrained(Bench):
    """The tables of an untrained model; some it shares with the study beside it."""

    def __init__(self, study: Bench, folders: Sequence[Path], run: Any = None) -> None:
        super().__init__(study.folders, study.run)
        self.model = Bench(folders, run)

    def _found(self, name: str) -> list[Path]:
        if name in SHARED:
            return super()._found(name)
        try:
            return self.model._found(name)
        except Missing as error:
            super()._found(name)  # which raises Missing for what the study lacks, too
            raise Missing(UNREPEATED) from error


class Shuffled(Bench):
    """The tables of another bench, each loaded once; those of one need are shuffled by a seed."""

    def __init__(self, bench: Bench, need: str, shuffle: Shuffle) -> None:
        super().__init__(bench.folders)
        self.untrained = bench.untrained
        self.bench, self.need, self.shuffle, self.seed = bench, need, shuffle, 0
        self.loaded: dict[str, list[pd.DataFrame]] = {}

    def tables(self, name: str) -> list[pd.DataFrame]:
        """Load all tables for a need, shuffled."""
        return list(self._each(name))

    def table(self, name: str) -> pd.DataFrame:
        """Load the foremost table for a need, shuffled."""
        return next(self._each(name))

    def _each(self, name: str) -> Iterator[pd.DataFrame]:
        if name not in self.loaded:
            self.loaded[name] = self.bench.tables(name)
        for number, table in enumerate(self.loaded[name]):
            random = np.random.default_rng([self.seed, number])
            yield self.shuffle(table.copy(), random) if name == self.need else table.copy()


# --- shuffles -----------------------------------------------------------------------------------------------------


def permute_strategies(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    names = [name for name in table["strategy"].unique() if name != ALL]
    return table.assign(strategy=table["strategy"].replace(dict(zip(names, random.permutation(names), strict=True))))


def permute_scores(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    """Permute each score with its interval over the heads of a kind."""
    names = [str(Column.parse(column).base) for column in table]
    for kind in table.index.unique("kind"):
        rows = np.flatnonzero(table.index.get_level_values("kind") == kind)
        for name in dict.fromkeys(names):
            columns = [number for number, other in enumerate(names) if other == name]
            table.iloc[rows, columns] = table.iloc[random.permutation(rows), columns].to_numpy()
    return table


def spread_offsets(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    """Distribute the words of each relation uniformly over its offsets."""
    for _, part in table.groupby("relation", sort=False):
        counts = random.multinomial(int(part["count"].sum()), np.full(len(part), 1 / len(part)))
        table.loc[part.index, "count"] = counts
        table.loc[part.index, "share"] = counts / counts.sum()
    return table


def draw_rarest(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    """Mark a random content token of each sentence as the rarest."""
    for _, part in table[table["counted"]].groupby("sentence"):
        table.loc[part.index, "rarest"] = part["key"] == random.choice(part["key"].unique())
    return table


def draw_functions(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    """Replace the functions at each size by those of heads drawn at random, for each kind of heads."""
    for _, part in table.groupby("kind", observed=True):
        whole = part[part["heads"] == part["heads"].max()]
        bag = np.repeat(whole["function"].astype(str).to_numpy(), whole["count"].to_numpy(int))
        for _, rows in part.groupby("heads"):
            drawn = list(random.choice(bag, int(rows["count"].sum()), replace=False))
            table.loc[rows.index, "count"] = [drawn.count(name) for name in rows["function"].astype(str)]
    return table


def draw_kinds(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    """Replace the number of heads of each kind at each size by that of one random ranking."""
    whole = table[[*KINDS]].iloc[table["heads"].argmax()].to_numpy(int)
    order = random.permutation(np.repeat(np.arange(len(KINDS)), whole))
    counts = [np.bincount(order[:size], minlength=len(KINDS)) for size in table["heads"].astype(int)]
    return table.assign(**dict(zip(KINDS, np.array(counts).T, strict=True)))


def permute_heads(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    return table.iloc[random.permutation(len(table))].set_axis(table.index)


def swap_trainings(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:  # noqa: ARG001
    """Swap the names of the pruned model and the one from scratch (deterministic)."""
    pruned, scratch = with_bounds("finetuned"), with_bounds("scratch")
    return table.rename(columns=dict(zip(pruned + scratch, scratch + pruned, strict=True)))


def repeat_first_step(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:  # noqa: ARG001
    """Replace the last step of gates by the first (deterministic)."""
    first = table[table["step"] == table["step"].min()]
    attrs, last = table.attrs, first.assign(step=table["step"].max())
    table = pd.concat([first, last], ignore_index=True)
    table.attrs = attrs
    return table


def permute_within_kinds(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    order = np.arange(len(table))
    for kind in table.index.unique("kind"):
        rows = np.flatnonzero(table.index.get_level_values("kind") == kind)
        order[rows] = random.permutation(rows)
    return table.iloc[order].set_axis(table.index)


def swap_orders(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    """Swap the names of a random ranking and the ranking by importance."""
    chance = [name for name in table["order"].unique() if re.fullmatch(r"random \d+", name)]
    if not chance:
        raise Missing("the curves have no random ranking")
    drawn, by = random.choice(chance), ranking_of(table)
    return table.assign(order=table["order"].replace({by: drawn, drawn: by}))


def permute_kinds(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    """Permute the names of the kinds' curves; that of cross-attention always changes."""
    names = table["order"].str.partition(" ")
    kinds = list(names[0].unique())
    drawn = list(random.permutation(kinds))
    while "cross" in kinds and len(kinds) > 1 and drawn[kinds.index("cross")] == "cross":
        drawn = list(random.permutation(kinds))
    return table.assign(order=names[0].map(dict(zip(kinds, drawn, strict=True))) + " " + names[2])


def permute_steps(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    steps = table[["step", "epoch"]].drop_duplicates()
    drawn = steps.iloc[random.permutation(len(steps))].set_axis(steps["step"])
    return table.assign(step=table["step"].map(drawn["step"]), epoch=table["step"].map(drawn["epoch"]))


def copy_speeds(table: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:  # noqa: ARG001
    """Replace all speeds by those of a copy without removed heads (deterministic)."""
    copies = table[(table["way"] == "cut") & (table["masked"] == 0)].set_index("batch")
    for name in ("speed", "speed.sd", *with_bounds("speedup")):
        table[name] = table["batch"].map(copies[name])
    return table


SHUFFLES: dict[str, tuple[str, Shuffle]] = {  # artefact -> the need of which labels are shuffled, and how
    "voita2019 fig8": ("functions-encoder", draw_functions),
    "voita2019 fig3": ("offsets", spread_offsets),
    "voita2019 fig9": ("sizes", draw_kinds),
    "voita2019 fig10": ("survival", permute_heads),
    "voita2019 table2": ("scratch", swap_trainings),
    "voita2019 gates": ("gates", repeat_first_step),
    "voita2019 fig5": ("attention", draw_rarest),
    "voita2019 fig1b": ("relevance", permute_scores),
    "michel2019 fig3": ("curves", swap_orders),
    "michel2019 fig6": ("curves", swap_orders),
    "michel2019 fig4": ("kinds", permute_kinds),
    "michel2019 fig5": ("dynamics", permute_steps),
    "michel2019 table4": ("efficiency", copy_speeds),
    "michel2019 fig2": ("single", permute_within_kinds),
    "budhraja2020 claim1": ("compare-pruning", permute_strategies),
    "budhraja2020 claim2": ("compare-pruning", permute_strategies),
    "budhraja2020 claim3": ("places", permute_strategies),
}
EXEMPT = {  # artefact -> why its rule does not apply to an untrained model
    "voita2019 fig6": "the rule is about a formula, not a model",
    "voita2019 fig3": "the rule is about texts, not a model",
    "voita2019 gates": "gates are trained in any model; the control is the gates before training",
    "michel2019 table4": "speed does not depend on weights; the control is a copy with nothing removed",
    "michel2019 heads_share": "a count of parameters does not depend on weights",
}
