"""Judge the claims of artefacts from a bench, and write all to a study (no torch)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args

import pandas as pd

from headroles.papers.artefact import Reproduced
from headroles.papers.bench import Bench
from headroles.papers.needs import Missing
from headroles.plots import gallery
from headroles.tables.arguments import unknown
from headroles.tables.io import load_table, replacing, save_table

Paper = Literal["voita2019", "michel2019", "budhraja2020"]
PAPERS: tuple[Paper, ...] = get_args(Paper)
DOTS = 110  # an inch, of a picture: most stay below 100 kB
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
    NAME.png; and as NAME.json the claim, its rule, its verdict and reason, and the tables it is from with their
    provenance. An artefact that cannot be made does not stop the others. An unknown paper or artefact raises
    ValueError; artefacts of other studies in the folder raise FileExistsError, unless `overwrite`.

    Returns:
        One row per artefact: `paper`, `artefact`, `made`, `holds`, `answer`, `why`.
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
    except (Missing, ValueError) as error:  # plots raise ValueError for tables that they cannot draw
        for suffix in (".parquet", ".png", ".json"):
            place.with_suffix(suffix).unlink(missing_ok=True)  # of an earlier run
        return {"made": False, "holds": None, "answer": "not made", "why": str(error)}
    verdict = artefact.verdict
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
        "tables": [_relative(path, bench.folders) for path in bench.used],
        "signatures": signatures,
        "command": command,
        "headroles": version("headroles"),
    }
    with replacing(place.with_suffix(".json")) as draft:
        draft.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {"made": True, **row}


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
