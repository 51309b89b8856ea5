"""The commands of a study at the papers' size: prepare and replicate, as those of `cli`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headroles.asked import pairs_of, shares
from headroles.screen import list_figures, say, show_table

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


def replicate(
    folder: Annotated[Path, typer.Argument(help="Folder of headroles prepare.")],
    study: Annotated[Path, typer.Option(help="Folder for the tables and figures.")] = Path("study"),
    weights: Annotated[
        Path | None, typer.Option(help="Folder for models and unfinished work; by default STUDY-weights.")
    ] = None,
    width: Annotated[int, typer.Option(help="Width of the model.", min=1)] = 512,
    layers: Annotated[int, typer.Option(help="Layers of the encoder, and of the decoder.", min=1)] = 6,
    heads: Annotated[int, typer.Option(help="Heads of each attention.", min=1)] = 8,
    dropout: Annotated[float, typer.Option(help="Dropout.", min=0, max=1)] = 0.1,
    epochs: Annotated[int, typer.Option(help="How often the pairs are gone through.", min=1)] = 20,
    minutes: Annotated[
        float | None, typer.Option(help="Instead of --epochs: as many as fit with all stages into so many minutes.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Pairs of a step.", min=1)] = 512,
    rate: Annotated[float | None, typer.Option(help="Peak learning rate; by default 7e-4 for a width of 512.")] = None,
    tune_epochs: Annotated[int, typer.Option(help="Epochs of training for each size of pruning.", min=1)] = 1,
    tune_pairs: Annotated[int | None, typer.Option(help="Pairs of that training; by default all.", min=1)] = None,
    encoder_keep: Annotated[
        str, typer.Option(help="Shares of the encoder's heads that stay; commas between.")
    ] = "0.75,0.5,0.33,0.2,0.125,0.06",
    keep: Annotated[str, typer.Option(help="Shares of all heads that stay; commas between.")] = "0.75,0.5,0.375,0.25",
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.", min=0)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of training.")] = 0,
    only: Annotated[str | None, typer.Option(help="Stages to run, such as train,score; by default all.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only say how long it takes, by timed samples.")] = False,
) -> None:
    """Replicate the papers: train a Transformer from nothing, score, ablate, prune and relate; stopped, it goes on."""
    from headroles.prepared import prepared
    from headroles.recipe import Recipe
    from headroles.replication import replicate as run

    sizes: dict[str, Any] = {"width": width, "layers": layers, "heads": heads, "dropout": dropout}
    training: dict[str, Any] = {"epochs": epochs, "batch": batch, "rate": rate, "resamples": resamples, "seed": seed}
    pruning: dict[str, Any] = {"tune_epochs": tune_epochs, "tune_pairs": tune_pairs}
    pruning |= {"encoder_keep": shares(encoder_keep), "keep": shares(keep)}
    recipe = Recipe(**sizes, **training, **pruning)
    data = prepared(folder)
    if plan:
        _show_plan(data, recipe, minutes)
        return
    chosen = None if only is None else [name.strip() for name in only.split(",")]
    run(study, data, recipe, weights=weights, only=chosen, minutes=minutes, told=say)
    list_figures(sorted(study.glob("*.png")), study)


def _show_plan(data: Any, recipe: Any, minutes: float | None) -> None:
    """Print how long everything takes, by a forecast."""
    from headroles.forecast import epochs_within, forecast
    from headroles.models import tokenizer_of

    table = forecast(data, recipe, tokenizer_of(data.tokenizer))
    show_table(table, f"{recipe.epochs} epochs")
    say(f"in all {table['minutes'].sum():.0f} minutes, without relating and drawing")
    if minutes is not None:
        say(f"{epochs_within(table, recipe, minutes)} epochs fit into {minutes:g} minutes")
