"""The commands that check what works: conform for a model of yours, families for all architectures."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from headroles.cli.console import say, show_answers

Tower = Annotated[str | None, typer.Option(help="Only this tower of a model of text, pictures or sound, as text.")]


def check_model(
    model: Annotated[str | None, typer.Argument(help="Hub id or local folder of a Hugging Face model.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Instead: a config.json, of which a miniature with random weights is made.")
    ] = None,
    submodel: Tower = None,
) -> None:
    """Put every law of headroles to a model: what works with it, and why not where it does not."""
    from headroles.models import loading, sites
    from headroles.testing import check_model as run
    from headroles.testing.tiny_models import tiny_model

    if (model is None) == (config is None):
        raise ValueError("give either a model or --config CONFIG.json, of which a miniature is made")
    if config is None:
        asked = loading.alone(str(model), submodel=submodel)
    else:
        made = tiny_model(loading.configured(config))
        asked = made if submodel is None else sites.submodel(made, submodel)
    with _quietly():
        answers = run(asked)
    show_answers(answers, f"{type(asked).__name__}: which laws hold")


def architectures(
    output: Annotated[Path, typer.Option(help="Folder for the table.")] = Path("families"),
    only: Annotated[str | None, typer.Option(help="Only these architectures; commas between.")] = None,
    readme: Annotated[Path | None, typer.Option(help="A README: the table is written between its marks.")] = None,
) -> None:
    """Put every law to a miniature of every architecture of the zoo, in a few minutes, and write the table of them."""
    from headroles.tables.io import save_table
    from headroles.testing import architecture_table, architectures

    with _quietly():
        found = architectures.architectures(None if only is None else [one.strip() for one in only.split(",")])
    output.mkdir(parents=True, exist_ok=True)
    save_table(found, output / "families.parquet")
    (output / "families.md").write_text(architecture_table.written(found) + "\n", encoding="utf-8")
    if readme is not None:
        architecture_table.into(readme, found)
    answers = found["holds"].value_counts()
    counted = ", ".join(f"{answers.get(one, 0)} {one}" for one in ("yes", "no", "refused", "not asked"))
    say(f"{found.index.get_level_values('name').nunique()} architectures, laws that hold: {counted}; written: {output}")


@contextmanager
def _quietly() -> Iterator[None]:
    """Within the block nothing is said of the many small models that are made, saved and loaded."""
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
