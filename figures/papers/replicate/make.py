"""The papers on a translator trained from scratch: `python figures/papers/replicate/make.py tables | pictures`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from replicate import Recipe, replicate

import headroles as hr
from headroles.papers import prepared


def _listed(shares: tuple[float, ...]) -> str:
    return ",".join(map(str, shares))


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def tables(
    prepared_data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder of hr.papers.prepare.")],
    study: Path,
    width: int = 512,
    batch: int = 512,
    epochs: int = 20,
    tune_pairs: Annotated[int | None, typer.Option(help="First pairs of trainings after pruning.")] = None,
    encoder_keep: Annotated[str, typer.Option(help="Shares of the encoder's heads to keep.")] = _listed(
        Recipe.encoder_keep
    ),
    keep: Annotated[str, typer.Option(help="Shares of all heads to keep.")] = _listed(Recipe.keep),
) -> None:
    """Train, score, ablate, evaluate, prune and relate; what is finished is kept, so that the same command resumes."""
    shares = {"encoder_keep": tuple(map(float, encoder_keep.split(","))), "keep": tuple(map(float, keep.split(",")))}
    recipe = Recipe(width=width, batch=batch, epochs=epochs, tune_pairs=tune_pairs, **shares)
    replicate(study, prepared(prepared_data), recipe)


@app.command()
def pictures(study: Path) -> None:
    """Draw every figure that the tables allow."""
    hr.plot(hr.Study(study))


if __name__ == "__main__":
    app()
