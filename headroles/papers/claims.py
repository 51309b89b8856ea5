"""Judge the claims of artefacts from a bench, with negative controls, and write all to a study (no torch)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from headroles.papers.artefact import Reproduced, Shuffle, Verdict
from headroles.papers.bench import Bench
from headroles.papers.needs import Missing
from headroles.plots import gallery
from headroles.tables.arguments import unknown
from headroles.tables.io import load_table, replacing, save_table

Paper = Literal["voita2019", "michel2019", "budhraja2020"]
PAPERS: tuple[Paper, ...] = get_args(Paper)
DOTS = 110  # an inch, of a picture: most stay below 100 kB
TRIES = 20  # shuffles, with the seeds 0 to 19
NO_TABLES = "no tables of an untrained model"
ALLOWED = 0.05  # share of tries that may say yes by chance
Make = Callable[[Bench], Reproduced]


def artefacts(paper: Paper) -> dict[str, Make]:
    """Return the functions that reproduce the artefacts of a paper, by name, in its order."""
    if paper not in PAPERS:
        raise ValueError(f"unknown paper {paper!r}; known: {', '.join(PAPERS)}")
    module: ModuleType = import_module(f"headroles.papers.{paper}")
    return {
        name: function
        for section in getattr(module, "SECTIONS", (module,))
        for name, function in vars(section).items()
        if f"{name}_claim" in vars(section)
    }


def reproduce(
    bench: Bench,
    folder: str | Path,
    paper: Paper | None = None,
    artefact: str | None = None,
    *,
    command: str = "",
    overwrite: bool = False,
) -> pd.DataFrame:
    """Reproduce the artefacts of a paper, one of them, or those of all papers.

    Each is written into `folder`/papers/PAPER: its table as NAME.parquet; its picture, where the paper has one, as
    NAME.png; and as NAME.json the claim, its rule, its verdict and reason, the verdicts of its negative controls (an
    untrained model, shuffled labels), and the tables it is from with their provenance. An artefact that cannot be made
    does not stop the others. An unknown paper or artefact raises ValueError; artefacts of other studies in the folder
    raise FileExistsError, unless `overwrite`.

    Returns:
        One row per artefact: `paper`, `artefact`, `made`, `holds`, `answer`, `why`, `controls`.
    """
    if not overwrite:
        _check_same(bench, Path(folder) / "papers")
    return pd.DataFrame(
        [
            {"paper": name, "artefact": label} | _made(bench, make, Path(folder) / "papers" / name / label, command)
            for name, label, make in chosen(paper, artefact)
        ]
    )


def _check_same(bench: Bench, place: Path) -> None:
    """Raise FileExistsError if a folder has artefacts of none of the studies of the bench."""
    studies = {folder.resolve().name for folder in bench.folders}
    for file in sorted(place.glob("*/*.json")):
        used = {name.partition("/")[0] for name in json.loads(file.read_text(encoding="utf-8"))["tables"]}
        if used and not used & studies:
            raise FileExistsError(
                f"{place} holds artefacts of other studies: {file.stem} is of {', '.join(sorted(used))}, these are of "
                f"{', '.join(sorted(studies))}; name another --study, or give --overwrite"
            )


def chosen(paper: Paper | None, artefact: str | None) -> Iterator[tuple[Paper, str, Make]]:
    """Yield the papers, names and functions of artefacts; raise ValueError for an unknown one."""
    for name in PAPERS if paper is None else (paper,):
        known = artefacts(name)
        if artefact is not None and (paper is None or artefact not in known):
            raise ValueError(unknown(f"artefact of {name}", artefact, known))
        yield from ((name, label, make) for label, make in known.items() if artefact in (None, label))


def paper_of(paper: str | None, artefact: str | None) -> tuple[Paper | None, str | None]:
    """Return a paper and an artefact, also for the name of an artefact in place of the paper; both are checked."""
    known = next((name for name in PAPERS if name == paper), None)
    if paper is None or known is not None:
        list(chosen(known, artefact))
        return known, artefact
    papers = [name for name in PAPERS if paper in artefacts(name)]
    if artefact is not None or not papers:
        raise ValueError(
            f"no paper {paper!r}: expected one of {', '.join(PAPERS)}, or an artefact of one, such as voita2019 fig1a"
        )
    if len(papers) > 1:
        raise ValueError(
            f"artefact {paper!r} is in several papers: got no paper; expected one of {', '.join(papers)}; try "
            f"{papers[0]} {paper}"
        )
    return papers[0], paper


def _made(bench: Bench, make: Make, place: Path, command: str) -> dict[str, object]:
    bench.used = []
    try:
        artefact = make(bench)
        checks = controls(artefact, make, bench)
    except (Missing, ValueError) as error:  # plots raise ValueError for tables that they cannot draw
        for suffix in (".parquet", ".png", ".json"):
            place.with_suffix(suffix).unlink(missing_ok=True)  # of an earlier run
        return {"made": False, "holds": None, "answer": "not made", "why": str(error), "controls": ""}
    verdict = decided(artefact.verdict, checks)
    row = {"holds": verdict.holds, "answer": verdict.answer, "why": verdict.why}
    signatures = _signatures(bench.used)
    source = str(artefact.table.attrs.get("source", ""))
    _save_table(artefact.table, place, source, " AND ".join(signatures) or "computed from a formula")
    if artefact.draw is not None:
        gallery.save(artefact.draw(), place.with_suffix(".png"), dpi=DOTS)
    facts = {
        "paper": place.parent.name,
        "artefact": place.name,
        "what": inspect.getdoc(make),
        "claim": artefact.claim.text,
        **row,
        "rule": artefact.claim.rule,
        "numbers": source,
        "controls": {name: control._asdict() | {"passes": control.passes} for name, control in checks.items()},
        "tables": [_relative(path, bench.folders) for path in bench.used],
        "signatures": signatures,
        "command": command,
        "headroles": version("headroles"),
    }
    with replacing(place.with_suffix(".json")) as draft:
        draft.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {"made": True, **row, "controls": "; ".join(f"{name}: {control}" for name, control in checks.items())}


def _save_table(rows: pd.DataFrame, place: Path, source: str, signature: str) -> None:
    """Save a table; the paper's columns carry their source, ours our provenance."""
    table = rows.rename(columns=str).rename_axis(columns=None)
    table.attrs = {"signatures": {name: source if name.startswith("paper") else signature for name in map(str, table)}}
    save_table(table, place.with_suffix(".parquet"))


def _signatures(paths: Sequence[Path]) -> list[str]:
    """Return the provenance of tables, each once; of a table without any its cache key."""
    signatures = []
    for path in paths:
        attrs = load_table(path).attrs
        signatures += [*attrs.get("signatures", {}).values(), attrs.get("recipe", "")][:1]
    return list(dict.fromkeys(filter(None, signatures)))


def _relative(path: Path, folders: Sequence[Path]) -> str:
    """Return the path of a table with the name of its study."""
    folder = next((folder for folder in folders if path.is_relative_to(folder)), path.parent)
    return f"{folder.resolve().name}/{path.relative_to(folder).as_posix()}"


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


def controls(artefact: Reproduced, make: Make, bench: Bench) -> dict[str, Control]:
    """Apply an artefact's rule to the tables of an untrained model, and to tables with shuffled labels."""
    used = [*bench.used]
    controls = {"untrained": _untrained(artefact, make, bench.untrained), "shuffled": _shuffled(artefact, make, bench)}
    bench.used = used
    return controls


def decided(verdict: Verdict, results: dict[str, Control]) -> Verdict:
    """Make the verdict of a claim that holds undecided if its rule holds of a negative control too."""
    passed = "; ".join(f"{name}: {control}" for name, control in results.items() if control.passes)
    if not verdict.holds or not passed:
        return verdict
    return verdict._replace(holds=None, why=f"{verdict.why}; but the rule holds of its negative control too ({passed})")


def _untrained(artefact: Reproduced, make: Make, bench: Bench | None) -> Control:
    if artefact.claim.exempt:
        return Control(0, 0, artefact.claim.exempt)
    if bench is None:
        return Control(0, 0, NO_TABLES)
    try:
        verdict = make(bench).verdict
    except (Missing, ValueError) as error:
        return Control(0, 0, str(error))
    return Control(int(verdict.holds is True), 1, f"{verdict.answer}: {verdict.why}")


def _shuffled(artefact: Reproduced, make: Make, bench: Bench) -> Control:
    if not artefact.claim.shuffles:
        return Control(0, 0, "the rule only counts heads, so that shuffling changes nothing")
    shuffled = _Shuffled(bench, artefact.claim.shuffles)
    answers = []
    for seed in range(TRIES):
        shuffled.seed = seed
        try:
            answers.append(make(shuffled).verdict.answer)
        except Missing as error:  # what would be shuffled, such as random rankings
            return Control(0, 0, str(error))
    counts = ", ".join(f"{answer} {answers.count(answer)}" for answer in dict.fromkeys(sorted(answers)))
    return Control(answers.count("yes"), TRIES, counts)


class _Shuffled(Bench):
    """A bench with the tables of another, each loaded once, some of them shuffled by a seed."""

    def __init__(self, bench: Bench, shuffles: Mapping[str, Shuffle]) -> None:
        super().__init__(bench.folders, untrained=bench.untrained)
        self.bench, self.shuffles, self.seed = bench, shuffles, 0
        self.loaded: dict[str, list[pd.DataFrame]] = {}

    def tables(self, name: str) -> list[pd.DataFrame]:
        """Load all tables for a need, shuffled."""
        return [self._shuffle(name, number) for number in range(len(self._unshuffled(name)))]

    def table(self, name: str) -> pd.DataFrame:
        """Load the foremost table for a need, shuffled."""
        return self._shuffle(name, 0)

    def _shuffle(self, name: str, number: int) -> pd.DataFrame:
        table, shuffle = self._unshuffled(name)[number].copy(), self.shuffles.get(name)
        return shuffle(table, np.random.default_rng([self.seed, number])) if shuffle else table

    def _unshuffled(self, name: str) -> list[pd.DataFrame]:
        if name not in self.loaded:
            self.loaded[name] = self.bench.tables(name)
        return self.loaded[name]
