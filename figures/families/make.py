"""Run all checks on a tiny model of every known architecture, and write the table: python figures/families/make.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import headroles as hr
from headroles.testing import architectures


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Architectures; all without.", show_default=False)] = None,
    output: Annotated[Path, typer.Option(help="Folder for families.parquet and families.md.")] = Path(__file__).parent,
) -> None:
    """Check architectures as tiny models, and write the table of results."""
    if names and output.resolve() == Path(__file__).resolve().parent:
        raise typer.BadParameter("a table of some architectures would replace that of all; try --output FOLDER")
    table = architectures.architectures(names or None)
    hr.save_table(table, output / "families.parquet")
    (output / "families.md").write_text(architectures.written(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
