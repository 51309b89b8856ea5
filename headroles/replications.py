"""The commands of a study at the papers' size: prepare and replicate, as those of `cli`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headroles.asked import pairs_of
from headroles.screen import say, show_table

Pairs = Annotated[list[str], typer.Argument(help="Sentence pairs: a table of two columns, or SOURCE,TARGET; .gz too.")]


def prepare(
    pairs: Pairs,
    output: Annotated[Path, typer.Option(help="Folder for the parts and the tokenizer.")],
    other: Annotated[str | None, typer.Option(help="Pairs of another domain, to test on.")] = None,
    parsed: Annotated[
        str | None, typer.Option(help="CONLLU,TARGET to tell roles on; by default drawn from the pairs, and parsed.")
    ] = None,
    held_out: Annotated[int, typer.Option(help="Sentences of dev, of test, and at most of --other.", min=1)] = 1000,
    trees: Annotated[int, typer.Option(help="Sentences drawn to be parsed.", min=1)] = 1000,
    limit: Annotated[int | None, typer.Option(help="At most so many pairs to train on.", min=1)] = None,
    pieces: Annotated[int, typer.Option(help="Pieces of the tokenizer, of both languages.", min=100)] = 8000,
    longest: Annotated[int, typer.Option(help="Words of the longest sentence that is taken.", min=1)] = 50,
    language: Annotated[str, typer.Option(help="Language of the sources, as Stanza calls it.")] = "en",
    models: Annotated[Path | None, typer.Option(help="Folder of Stanza models; by default Stanza's own.")] = None,
    download: Annotated[
        Literal["missing", "never"] | None, typer.Option(help="Fetch models that are not there?")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of what is held out.")] = 0,
) -> None:
    """Clean sentence pairs, hold some out, parse some, and learn a tokenizer: a folder for headroles replicate."""
    from headroles.prepared import prepare as run

    options: dict[str, Any] = {"held_out": held_out, "trees": trees, "limit": limit, "pieces": pieces}
    options |= {"longest": longest, "language": language, "models": models, "download": download, "seed": seed}
    further, treed = (None if one is None else pairs_of(one) for one in (other, parsed))
    counts = run(output, [pairs_of(one) for one in pairs], further, parsed=treed, **options)
    show_table(counts, "sentence pairs")
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    say(f"written: {output}, {size / 2**20:.1f} MiB")
