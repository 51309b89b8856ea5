"""The translator of the demo: `make.py data`, `tables`, `pictures`, and `train`, which trained it."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer
from arms import ArmName, Recipe, specialise
from replication import prepared

import headroles as hr

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add  # noqa: E402 - of all studies

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
SIZES = ", ".join(field.name for field in fields(Recipe))


@app.command()
def train(
    data: Annotated[Path, typer.Argument(help="Folder that figures/papers/replicate prepares.")],
    output: Annotated[Path, typer.Option(help="Folder for the models and for unfinished training.")],
    arm: Annotated[
        ArmName,
        typer.Option(help="Encoder at first: A, B untrained, C, C-shuffled a masked language model, E pretrained."),
    ] = "C",
    seed: int = 0,
    texts: Annotated[Path | None, typer.Option(help="More sentences for the masked language model.")] = None,
    probe: Annotated[list[Path], typer.Option(help="CoNLL-U on which heads are scored during training.")] = [],
    limit: Annotated[int, typer.Option(help="Sentences of each such file.")] = 300,
    size: Annotated[list[str], typer.Option(help=f"A field of the recipe, as width=256: {SIZES}.")] = [],
    without: Annotated[str, typer.Option(help="Encoder heads to do without, as enc-self:0:2,enc-self:1:0.")] = "",
    study: Annotated[Path | None, typer.Option(help="Folder for a copy of the table of heads.")] = None,
) -> None:
    """Train a translator from an untrained, masked-language-model or pretrained encoder; resumes if stopped."""
    parts = prepared(data)
    table = specialise(
        output,
        parts,
        arm,
        seed=seed,
        recipe=recipe_of(size),
        texts=None if texts is None else hr.read(texts),
        probed=[parts.parsed[:limit], *(hr.read(path, limit=limit) for path in probe)],
        without=without.split(",") if without else (),
    )
    if study is not None:
        hr.save_table(table, study / f"probes-{arm}-{seed}.parquet")
    print(table[(table["step"] == table["step"].iloc[-1]) & (table["rank"] == 0)].to_string(index=False))


def recipe_of(texts: list[str]) -> Recipe:
    """Return the recipe with fields such as width=256; raise ValueError for another form."""
    kinds: dict[str, type] = {field.name: type(field.default) for field in fields(Recipe)}
    given = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in kinds or not value:
            raise ValueError(f"no field of the recipe: got {text!r}; expected NAME=NUMBER, NAME one of {SIZES}")
        given[name] = bool(int(value)) if kinds[name] is bool else kinds[name](value)
    return Recipe(**given)


add(app, HERE)

if __name__ == "__main__":
    app()
