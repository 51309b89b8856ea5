"""The commands that check which features work: for one model, and for all architectures."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import headroles as hr
from headroles.cli import options
from headroles.cli.arguments import names
from headroles.cli.console import say, show_answers


def check_model(
    model: Annotated[str | None, typer.Argument(help="Hub id or local folder of a Hugging Face model.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Instead of a model: a config.json, for a tiny model with random weights.")
    ] = None,
    submodel: options.Submodel = None,
) -> None:
    """Run all checks of headroles on a model: which features work with it, and why others do not."""
    from headroles.models import loading

    if (model is None) == (config is None):
        raise ValueError("give either a model or --config CONFIG.json, from which a tiny model is made")
    if config is None:
        checked = loading.alone(str(model), submodel=submodel)
    else:
        tiny = hr.tiny_model(loading.configured(config))
        checked = tiny if submodel is None else hr.submodel(tiny, submodel)
    with _quietly():
        answers = hr.check_model(checked)
    show_answers(answers, f"{type(checked).__name__}: which checks hold")


def architectures(
    output: Annotated[Path, typer.Option(help="Folder for the table.")] = Path("families"),
    only: Annotated[str | None, typer.Option(help="Architectures, separated by commas; by default all.")] = None,
    readme: Annotated[Path | None, typer.Option(help="README to write the table into, between its marks.")] = None,
) -> None:
    """Run all checks on a tiny model of every known architecture and write the table."""
    from headroles.tables.io import check_writable
    from headroles.testing import architectures

    check_writable(output, "folder")
    if readme is not None:
        architectures.around(readme)
    with _quietly():
        table = architectures.architectures(names(only))
    output.mkdir(parents=True, exist_ok=True)
    hr.save_table(table, output / "families.parquet")
    (output / "families.md").write_text(architectures.written(table) + "\n", encoding="utf-8")
    if readme is not None:
        architectures.into(readme, table)
    answers = table["holds"].value_counts()
    counted = ", ".join(f"{answers.get(answer, 0)} {answer}" for answer in ("yes", "no", "refused", "not asked"))
    count = table.index.get_level_values("name").nunique()
    say(f"{count} architectures, checks that hold: {counted}; written: {output}")


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence logs and progress bars of the many tiny models that are built, saved and loaded."""
    from transformers.utils import logging as theirs

    ours, shown, loud = logging.getLogger("headroles"), theirs.is_progress_bar_enabled(), theirs.get_verbosity()
    before = ours.level
    try:
        ours.setLevel(logging.ERROR)
        theirs.set_verbosity_error()
        theirs.disable_progress_bar()
        yield
    finally:
        ours.setLevel(before)
        theirs.set_verbosity(loud)
        if shown:
            theirs.enable_progress_bar()
