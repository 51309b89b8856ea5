"""The papers on a translator trained from scratch: `make.py data`, `tables` and `pictures`, each with `--help`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from preparation import prepare, prepared
from replicate import Recipe, replicate

import headroles as hr


def _listed(shares: tuple[float, ...]) -> str:
    return ",".join(map(str, shares))


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def data(
    folder: Annotated[Path, typer.Argument(help="New folder.")],
    pairs: Annotated[list[str], typer.Argument(help="Tables of two columns, or SOURCE,TARGET.")],
    other: Annotated[str | None, typer.Option(help="Test pairs of another domain, in the same form.")] = None,
    parsed: Annotated[str | None, typer.Option(help="Sentences with trees, translations: TREES,TARGET.")] = None,
    models: Annotated[Path | None, typer.Option(help="Folder of Stanza models.")] = None,
    held_out: Annotated[int, typer.Option(help="Source sentences each of dev and test.")] = 1000,
    pieces: Annotated[int, typer.Option(help="Largest number of pieces of the tokenizer.")] = 8000,
) -> None:
    """Clean, split and parse sentence pairs, and train a tokenizer on them."""
    corpora = [_read(one) for one in pairs]
    others = {"other": other and _read(other), "parsed": parsed and _read(parsed)}
    counts = prepare(folder, corpora, **others, held_out=held_out, models=models, pieces=pieces)
    print(counts.to_string())


def _read(files: str) -> hr.Corpus:
    return hr.read(*files.split(","))


@app.command()
def tables(
    prepared_data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder that `data` made.")],
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
