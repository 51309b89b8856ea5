"""Reproduce the artefacts of the papers from a bench, judge their claims and write them to a study (no torch)."""

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
from headroles.experiments.papers.controls import controls, settled
from headroles.experiments.papers.tables import Bench, Missing
from headroles.plots import gallery
from headroles.tables.files import replacing
from headroles.tables.io import load_table, save_table

Paper = Literal["voita2019", "michel2019", "budhraja2020"]
PAPERS: tuple[Paper, ...] = get_args(Paper)
DOTS = 110  # an inch, of a picture: most stay below 100 kB


def artefacts(paper: Paper) -> dict[str, Callable[[Bench], Reproduced]]:
    """Return the functions that reproduce the figures, tables and claims of a paper.

    Args:
        paper: Paper, one of `PAPERS`.

    Returns:
        The functions by name, in the order of the paper.

    Raises:
        ValueError: For an unknown paper.
    """
    if paper not in PAPERS:
        raise ValueError(f"unknown paper {paper!r}; known: {', '.join(PAPERS)}")
    module: Any = import_module(f"headroles.experiments.papers.{paper}")
    return {
        name: function
        for section in getattr(module, "SECTIONS", (module,))
        for name, function in vars(section).items()
        if inspect.isfunction(function) and function.__module__ == section.__name__
        if not name.startswith("_") and not name.endswith("_claim")
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
    does not stop the others.

    Args:
        bench: Tables of the model.
        folder: Study folder for the results.
        paper: Paper; by default all.
        artefact: Name of one artefact of `paper`; by default all.
        command: Command line to record.
        overwrite: Whether to replace artefacts of other studies in the folder.

    Returns:
        One row per artefact: `paper`, `artefact`, `made`, `holds`, `answer`, `why`, `controls`.

    Raises:
        ValueError: For an unknown paper or artefact.
        FileExistsError: If the folder has artefacts of other studies, unless `overwrite`.
    """  # noqa: DOC502  # raised by helpers
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


def chosen(paper: Paper | None, artefact: str | None) -> Iterator[tuple[Paper, str, Callable[[Bench], Reproduced]]]:
    """Yield the papers, names and functions of artefacts; raise ValueError for an unknown one."""
    for name in PAPERS if paper is None else (paper,):
        known = artefacts(name)
        if artefact is not None and (paper is None or artefact not in known):
            raise ValueError(f"unknown artefact {artefact!r} of {name}; known: {', '.join(known)}")
        yield from ((name, label, make) for label, make in known.items() if artefact in (None, label))


def _made(bench: Bench, make: Callable[[Bench], Reproduced], place: Path, command: str) -> dict[str, Any]:
    """Make, judge and write one artefact; return its row."""
    bench.used = []
    try:
        artefact = make(bench)
        checks = controls(f"{place.parent.name} {place.name}", make, bench)
    except (Missing, ValueError) as error:  # plots raise ValueError for tables that they cannot draw
        for suffix in (".parquet", ".png", ".json"):
            place.with_suffix(suffix).unlink(missing_ok=True)  # of an earlier run
        return {"made": False, "holds": None, "answer": "not made", "why": str(error), "controls": ""}
    verdict = settled(artefact.verdict, checks)
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
        "claim": artefact.claim,
        **row,
        "rule": artefact.rule,
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
