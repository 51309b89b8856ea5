"""The command `reproduce`: the figures and tables of the papers, from saved tables, a model of one's own or toys."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from headroles.screen import say, show_claims, show_rows

Paper = Annotated[
    Literal["voita2019", "michel2019", "budhraja2020"] | None, typer.Argument(help="Which paper; by default all.")
]


def reproduce(
    paper: Paper = None,
    artefact: Annotated[
        str | None, typer.Argument(help="Which figure or table, as fig7 or table2; by default all.")
    ] = None,
    folders: Annotated[
        list[Path] | None, typer.Option("--from", help="Study folder whose tables are drawn; repeatable.")
    ] = None,
    study: Annotated[
        Path | None, typer.Option(help="Folder for what is made; by default the first of --from, or study.")
    ] = None,
) -> None:
    """Draw every figure and table of the papers, with the papers' numbers beside ours and whether each claim holds."""
    from headroles.heads import load
    from headroles.papers.bench import Bench
    from headroles.papers.running import reproduce as run

    command = shlex.join(["headroles", *sys.argv[1:]])
    if not folders:
        raise ValueError("nothing to reproduce from; give --from STUDY")
    place = study or folders[0]
    found = run(Bench(folders), place, paper, artefact, command=command)
    one = place / "papers" / str(paper) / f"{artefact}.parquet"
    if artefact is not None and one.is_file():
        show_rows(load(one), f"{paper} {artefact}")
    show_claims(found)
    say(f"written: {place / 'papers'}, {found['made'].sum()} of {len(found)} artefacts")
