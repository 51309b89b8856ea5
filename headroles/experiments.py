"""The commands that close heads: compare, ablate and curve, as those of `cli`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headroles.screen import list_figures, say, show_table

Model = Annotated[str, typer.Argument(help="Hub id or local folder of a Hugging Face model with its tokenizer.")]
Target = Annotated[Path | None, typer.Argument(help="Its translations, line by line or as CoNLL-U.")]
Folder = Annotated[Path, typer.Option("--study", help="Folder for the tables and figures.")]
Limit = Annotated[int | None, typer.Option(help="Only the first sentences of the corpus.", min=1)]
Resamples = Annotated[int, typer.Option(help="Bootstrap resamples of sentences.", min=0)]
Device = Annotated[str | None, typer.Option(help="Device of torch; by default a GPU if there is one.")]


def compare(
    model: Model,
    corpus: Annotated[Path, typer.Argument(help="Corpus on which heads are scored, and closed one by one.")],
    target: Target = None,
    held_out: Annotated[
        Path | None, typer.Option(help="Corpus on which they are closed together; by default the same.")
    ] = None,
    held_out_target: Annotated[Path | None, typer.Option(help="Its translations.")] = None,
    study: Folder = Path("study"),
    rules: Annotated[str, typer.Option(help="Rule sets, separated by commas.")] = "cp,attn,voita,gradient",
    limit: Limit = None,
    resamples: Resamples = 1000,
    device: Device = None,
) -> None:
    """Compare which score tells best which heads matter: relevance by each rule set, importance, confidence, chance."""
    from headroles.comparison import compare as run
    from headroles.corpus import read
    from headroles.models import load, place
    from headroles.study import Study
    from headroles.survey import draw

    first = read(corpus, target, limit=limit)
    second = first if held_out is None else read(held_out, held_out_target, limit=limit)
    loaded, tokenizer = load(model)
    folder = Study(study)
    chosen: Any = [name.strip() for name in rules.split(",")]
    found, areas = run(folder, place(loaded, device), tokenizer, first, second, rules=chosen, resamples=resamples)
    show_table(found, "rank correlation with closing one head alone, over all heads and within layers")
    show_table(areas, "mean height of the curve when the least relevant heads are closed together")
    list_figures(draw(folder), study)


def ablate(
    model: Model,
    corpus: Annotated[Path, typer.Argument(help="Corpus: text, parallel or labelled TSV, CoNLL-U; .gz too.")],
    target: Target = None,
    study: Folder = Path("study"),
    metric: Annotated[
        str, typer.Option(help="Metric: loss, perplexity, agreement, accuracy, f1, matthews, bleu or chrf.")
    ] = "loss",
    plan: Annotated[
        Literal["single", "rest", "layer", "kind"],
        typer.Option(help="Close each head, all but each of a layer, whole layers, or whole kinds."),
    ] = "single",
    fill: Annotated[
        Literal["zero", "mean", "other", "uniform", "rescale"], typer.Option(help="What a closed head puts out.")
    ] = "zero",
    limit: Limit = None,
    resamples: Resamples = 1000,
    budget: Annotated[int, typer.Option(help="Tokens that go through the model at once.", min=1)] = 4096,
    together: Annotated[int, typer.Option(help="Variants that go through the model at once.", min=1)] = 8,
    device: Device = None,
) -> None:
    """Close every head of a model and measure what changes, with intervals and corrected tests."""
    from headroles.ablation import closed_in
    from headroles.corpus import read
    from headroles.models import load, place
    from headroles.study import Study
    from headroles.survey import draw

    sentences = read(corpus, target, limit=limit)
    loaded, tokenizer = load(model)
    folder = Study(study)
    options: dict[str, Any] = {"metric": metric, "plan": plan, "fill": fill}
    options |= {"resamples": resamples, "budget": budget, "together": together}
    table = closed_in(folder, place(loaded, device), tokenizer, sentences, **options)
    name = str(table.columns[0])
    most = table.loc[table[name].abs().sort_values(ascending=False, kind="stable").index[:10]]
    most.columns = ["change", "change.low", "change.high", "p", "Holm", "BH"]
    most.index = most.index.map(lambda head: f"{head[0]} layer {head[1]} head {head[2]}").rename("head")
    show_table(most, f"the largest effects of {len(table)} heads")
    for part, label in (("p", "p"), ("holm", "p after Holm"), ("bh", "p after Benjamini-Hochberg")):
        say(f"{(table[f'{name}.{part}'] < 0.01).sum()} of {len(table)} heads with {label} < 0.01")
    list_figures(draw(folder), study)


def curve(
    model: Model,
    corpus: Annotated[Path, typer.Argument(help="Corpus on which the heads are closed together.")],
    target: Target = None,
    study: Folder = Path("study"),
    by: Annotated[
        str, typer.Option(help="Columns of the study's tables to order heads by, the smallest first; commas between.")
    ] = "importance",
    metric: Annotated[str, typer.Option(help="Metric: agreement or loss.")] = "agreement",
    kind: Annotated[
        Literal["enc-self", "dec-self", "cross"] | None, typer.Option(help="Close heads of this kind only.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many random orders beside them.", min=0)] = 5,
    steps: Annotated[int, typer.Option(help="In how many steps all are closed.", min=1)] = 10,
    limit: Limit = None,
    resamples: Resamples = 1000,
    device: Device = None,
) -> None:
    """Close heads together, step by step, in orders told by a study's scores, and measure what is left."""
    from headroles.corpus import read
    from headroles.curves import areas, orders
    from headroles.curves import curve as run
    from headroles.heads import save
    from headroles.models import load, place
    from headroles.study import Study
    from headroles.survey import draw

    sentences = read(corpus, target, limit=limit)
    folder = Study(study)
    loaded, tokenizer = load(model)
    listed = orders(folder.scores(), [name.strip() for name in by.split(",")], kind=kind, seeds=seeds)
    asked: Any = metric
    drawn = run(place(loaded, device), tokenizer, sentences, listed, metric=asked, steps=steps, resamples=resamples)
    save(drawn, folder.path("-".join(["curves", metric, *([kind] if kind else [])])))
    show_table(areas(drawn), "mean height of the curve")
    list_figures(draw(folder), study)
