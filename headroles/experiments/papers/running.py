"""Running: all artefacts of the papers, each made from a bench, judged and written into a study (no torch)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd

from headroles.experiments.papers.artefact import Reproduced
from headroles.experiments.papers.controls import Control, controls, settled
from headroles.experiments.papers.tables import Bench, Missing
from headroles.plots import gallery
from headroles.tables.files import replacing
from headroles.tables.io import load_table, save_table

Paper = Literal["voita2019", "michel2019", "budhraja2020"]
PAPERS: tuple[Paper, ...] = get_args(Paper)
DOTS = 110  # an inch, of a picture: most stay below 100 kB


def artefacts(paper: Paper) -> dict[str, Callable[[Bench], Reproduced]]:
    """The figures, tables and claims of a paper, by name: the public functions of its module but the claims' rules.

    Raises ValueError for another paper.
    """
    if paper not in PAPERS:
        raise ValueError(f"unknown paper {paper!r}; known: {', '.join(PAPERS)}")
    module = import_module(f"headroles.experiments.papers.{paper}")
    own = inspect.getmembers(module, lambda one: inspect.isfunction(one) and one.__module__ == module.__name__)
    named = {name: function for name, function in own if not (name.startswith("_") or name.endswith("_claim"))}
    return dict(sorted(named.items(), key=lambda item: inspect.getsourcelines(item[1])[1]))


def reproduce(
    bench: Bench,
    folder: str | Path,
    paper: Paper | None = None,
    artefact: str | None = None,
    *,
    command: str = "",
    overwrite: bool = False,
) -> pd.DataFrame:
    """Make the artefacts of a paper, or one, or those of all papers: a row each, `paper`, `artefact`, `answer`, `why`,
    `controls`.

    Each is written into `folder`/papers/PAPER: its table as NAME.parquet, its picture, where the paper has one, as
    NAME.png, and as NAME.json the claim, whether it holds, by which rule and why, what the rule says of its negative
    controls (an untrained model, shuffled labels), which tables it is from and their signatures. What cannot be made is
    in the table with the reason, and `made` False; it does not stop the others.
    Raises ValueError for a paper or an artefact that there is not, and FileExistsError for a folder with artefacts of
    other studies, unless `overwrite`.
    """
    if not overwrite:
        _check_same(bench, Path(folder) / "papers")
    return pd.DataFrame(
        [
            {"paper": one, "artefact": name} | _made(bench, make, Path(folder) / "papers" / one / name, command)
            for one, name, make in _asked(paper, artefact)
        ]
    )


def _asked(paper: Paper | None, artefact: str | None) -> Iterator[tuple[Paper, str, Callable[[Bench], Reproduced]]]:
    for one in PAPERS if paper is None else (paper,):
        known = artefacts(one)
        if artefact is not None and (paper is None or artefact not in known):
            raise ValueError(f"unknown artefact {artefact!r} of {one}; known: {', '.join(known)}")
        yield from ((one, name, make) for name, make in known.items() if artefact in (None, name))


def _check_same(bench: Bench, place: Path) -> None:
    """Raise FileExistsError where a folder has artefacts of none of the studies of the bench."""
    given = {folder.resolve().name for folder in bench.folders}
    for file in sorted(place.glob("*/*.json")):
        used = {name.partition("/")[0] for name in json.loads(file.read_text(encoding="utf-8"))["tables"]}
        if used and not used & given:
            raise FileExistsError(
                f"{place} holds artefacts of other studies: {file.stem} is of {', '.join(sorted(used))}, these are of "
                f"{', '.join(sorted(given))}; name another --study, or give --overwrite"
            )


def _made(bench: Bench, make: Callable[[Bench], Reproduced], place: Path, command: str) -> dict[str, Any]:
    bench.used = []
    try:
        found = make(bench)
        told = controls(f"{place.parent.name} {place.name}", make, bench)
    except (Missing, ValueError) as error:  # plots say in words what they cannot draw
        for suffix in (".parquet", ".png", ".json"):
            place.with_suffix(suffix).unlink(missing_ok=True)  # of an earlier run
        return {"made": False, "holds": None, "answer": "not made", "why": str(error), "controls": ""}
    verdict = settled(found.verdict, told)
    signatures = _signatures(bench.used)
    source = str(found.table.attrs.get("source", ""))
    table = found.table.rename(columns=str).rename_axis(columns=None)
    own = " AND ".join(signatures) or "computed from a formula"
    table.attrs = {"signatures": {name: source if name.startswith("paper") else own for name in map(str, table)}}
    save_table(table, place.with_suffix(".parquet"))
    if found.draw is not None:
        gallery.save(found.draw(), place.with_suffix(".png"), dpi=DOTS)
    facts: dict[str, Any] = {"paper": place.parent.name, "artefact": place.name, "what": inspect.getdoc(make)}
    facts |= {
        "claim": found.claim,
        "holds": verdict.holds,
        "answer": verdict.answer,
        "why": verdict.why,
        "rule": found.rule,
    }
    facts |= {"numbers": source, "controls": {name: _record(control) for name, control in told.items()}}
    facts |= {"tables": [_said(path, bench.folders) for path in bench.used], "signatures": signatures}
    facts |= {"command": command, "headroles": version("headroles")}
    with replacing(place.with_suffix(".json")) as draft:
        draft.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    said = "; ".join(f"{name}: {control}" for name, control in told.items())
    return {"made": True, "holds": verdict.holds, "answer": verdict.answer, "why": verdict.why, "controls": said}


def _record(control: Control) -> dict[str, Any]:
    return control._asdict() | {"passes": control.passes}


def _signatures(paths: Sequence[Path]) -> list[str]:
    """What the tables are of, each signature once; of a table without any the recipe it was kept by."""
    found = []
    for path in paths:
        attrs = load_table(path).attrs
        found += [*attrs.get("signatures", {}).values(), attrs.get("recipe", "")][:1]
    return list(dict.fromkeys(filter(None, found)))


def _said(path: Path, folders: Sequence[Path]) -> str:
    """A file as it is called in its study."""
    folder = next((one for one in folders if path.is_relative_to(one)), path.parent)
    return f"{folder.resolve().name}/{path.relative_to(folder).as_posix()}"
