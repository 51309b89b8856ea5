"""The commands that check which features work: for one model, and for all architectures."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from headroles.cli.console import say, show_answers

Submodel = Annotated[str | None, typer.Option(help="Submodel of a multimodal model, such as text.")]


def check_model(
    model: Annotated[str | None, typer.Argument(help="Hub id or local folder of a Hugging Face model.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Instead of a model: a config.json, for a tiny model with random weights.")
    ] = None,
    submodel: Submodel = None,
) -> None:
    """Run all checks of headroles on a model: which features work with it, and why others do not."""
    from headroles.models import loading, sites
    from headroles.testing import check_model as run
    from headroles.testing.tiny_models import tiny_model

    if (model is None) == (config is None):
        raise ValueError("give either a model or --config CONFIG.json, from which a tiny model is made")
    if config is None:
        checked = loading.alone(str(model), submodel=submodel)
    else:
        tiny = tiny_model(loading.configured(config))
        checked = tiny if submodel is None else sites.submodel(tiny, submodel)
    with _quietly():
        answers = run(checked)
    show_answers(answers, f"{type(checked).__name__}: which checks hold")


def architectures(
    output: Annotated[Path, typer.Option(help="Folder for the table.")] = Path("families"),
    only: Annotated[str | None, typer.Option(help="Architectures, separated by commas; by default all.")] = None,
    readme: Annotated[Path | None, typer.Option(help="README in which to write the table, between its marks.")] = None,
) -> None:
    """Run all checks on a tiny model of every known architecture and write the table."""
    from headroles.tables.io import save_table
    from headroles.testing import architecture_table, architectures

    with _quietly():
        found = architectures.architectures(None if only is None else [name.strip() for name in only.split(",")])
    output.mkdir(parents=True, exist_ok=True)
    save_table(found, output / "families.parquet")
    (output / "families.md").write_text(architecture_table.written(found) + "\n", encoding="utf-8")
    if readme is not None:
        architecture_table.into(readme, found)
    answers = found["holds"].value_counts()
    counted = ", ".join(f"{answers.get(answer, 0)} {answer}" for answer in ("yes", "no", "refused", "not asked"))
    count = found.index.get_level_values("name").nunique()
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
