"""The commands that ablate heads, relate roles to outcomes, compare models, or train one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import headroles as hr
from headroles.cli import options
from headroles.cli.arguments import check_heads, heads_of, load_model, names, study_of, tuning
from headroles.cli.console import draw_figures, say, show_best, show_effects, show_relations, show_table
from headroles.tables import frame


def compare(
    model: options.Model,
    corpus: Annotated[Path, typer.Argument(help="Corpus on which heads are scored, and ablated one by one.")],
    target: options.Target = None,
    held_out: Annotated[
        Path | None, typer.Option(help="Corpus on which heads are ablated cumulatively; by default the same.")
    ] = None,
    held_out_target: options.HeldOutTarget = None,
    study: options.Study = Path("study"),
    rules: Annotated[str, typer.Option(help="Rule sets, separated by commas.")] = "cp,attn,voita,gradient",
    limit: options.Limit = None,
    n_resamples: options.Resamples = 1000,
    overwrite: options.Overwrite = False,
    device: options.Devices = None,
) -> None:
    """Compare scores as predictors of ablation effects: relevance by each rule set, importance, confidence, chance."""
    folder = study_of(study, overwrite=overwrite)
    first = hr.read(corpus, target, limit=limit)
    second = first if held_out is None else hr.read(held_out, held_out_target, limit=limit)
    loaded, tokenizer = load_model(model, device)
    correlations, areas = hr.ablation.compare(
        loaded, tokenizer, first, second, rules=names(rules), n_resamples=n_resamples, study=folder
    )
    show_table(correlations, "rank correlation with ablating one head, over all heads and within layers")
    show_table(areas, "mean height of the curve when the least relevant heads are ablated cumulatively")
    draw_figures(folder)


def ablate(
    model: options.Model,
    corpus: options.Corpus,
    target: options.Target = None,
    study: options.Study = Path("study"),
    metric: options.Metric = "loss",
    unit: Annotated[
        Literal["head", "all_but_one", "layer", "kind"],
        typer.Option(help="Ablate each head, all but one of a layer, whole layers, or whole kinds."),
    ] = "head",
    replacement: options.Replacement = "zero",
    early: Annotated[
        bool, typer.Option("--early", help="Stop measuring a head once it is clear whether its p is below 0.01.")
    ] = False,
    precision: Annotated[
        float,
        typer.Option(
            help="Width of intervals over that of the whole corpus: 1 ablates every head on every example, 1.1 on as "
            "many as are needed to correct what the gradient predicts.",
            min=1,
        ),
    ] = 1.0,
    limit: options.Limit = None,
    n_resamples: options.Resamples = 1000,
    max_tokens: options.MaxTokens = 4096,
    heads_per_batch: Annotated[int, typer.Option(help="Number of ablated variants in a batch.", min=1)] = 8,
    overwrite: options.Overwrite = False,
    submodel: options.Submodel = None,
    device: options.Devices = None,
    dtype: options.Dtype = None,
) -> None:
    """Ablate every head of a model and measure the effects, with intervals and corrected tests."""
    from headroles.ablation.evaluation import worth
    from headroles.ablation.example_stats import ExampleStats
    from headroles.ablation.units import on_disk, table_name

    folder = study_of(study, overwrite=overwrite)
    sentences = hr.read(corpus, target, limit=limit)
    loaded, tokenizer = load_model(model, device, submodel=submodel, dtype=dtype)
    table = hr.ablate(
        loaded,
        tokenizer,
        sentences,
        metric=metric,
        unit=unit,
        replacement=replacement,
        early=early,
        precision=precision,
        n_resamples=n_resamples,
        max_tokens=max_tokens,
        heads_per_batch=heads_per_batch,
        study=folder,
    )
    stats = folder.load(f"examples-{table_name(metric, unit, replacement, early=early, precision=precision)}")
    intact = worth(ExampleStats.of(stats, hr.ablation.metrics.metric(metric)), n_resamples=n_resamples)
    show_effects(table, intact, metric)
    for name in (f"best-{metric}-{on_disk(replacement)}", f"best-{metric}-{on_disk(replacement)}-halves"):
        if unit == "all_but_one" and not early and precision == 1 and folder.has(name):
            show_best(folder.load(name), "chosen on one half, measured on the other" if "halves" in name else "")
    draw_figures(folder)


def ablation_curve(
    model: options.Model,
    corpus: Annotated[Path, typer.Argument(help="Corpus on which heads are ablated cumulatively.")],
    target: options.Target = None,
    study: options.Study = Path("study"),
    by: Annotated[
        str,
        typer.Option(
            help="Columns that rank heads, separated by commas: the smallest value first, or after a minus the largest."
        ),
    ] = "importance",
    again: Annotated[
        Path | None, typer.Option(help="Corpus on which importance is recomputed after each step, as one more ranking.")
    ] = None,
    again_target: Annotated[Path | None, typer.Option(help="Translations of the other corpus.")] = None,
    metric: options.Metric = "agreement",
    kind: Annotated[
        Literal["enc-self", "dec-self", "cross", "each"] | None,
        typer.Option(help="Kind of heads to ablate, or each kind in turn."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of random rankings.", min=0)] = 5,
    steps: options.Steps = 10,
    replacement: options.Replacement = "zero",
    limit: options.Limit = None,
    n_resamples: options.Resamples = 1000,
    overwrite: options.Overwrite = False,
    device: options.Devices = None,
    dtype: options.Dtype = None,
) -> None:
    """Ablate heads cumulatively, in the rankings of a study's scores, and measure the remaining performance."""
    from headroles.ablation.curves import repeated_ranking

    folder = study_of(study, overwrite=overwrite)
    sentences = hr.read(corpus, target, limit=limit)
    loaded, tokenizer = load_model(model, device, dtype=dtype)
    rankings = hr.ablation.orders(folder.scores(), names(by), kind=kind, seeds=seeds)
    if again is not None:
        if kind == "each":
            raise ValueError("--again and --kind each do not combine; give one kind at a time")
        scored = hr.read(again, again_target, limit=limit)
        rankings["importance, again"] = repeated_ranking(loaded, tokenizer, scored, kind=kind, steps=steps)
    hr.ablation_curve(
        loaded,
        tokenizer,
        sentences,
        rankings,
        metric=metric,
        kind=kind,
        steps=steps,
        replacement=replacement,
        n_resamples=n_resamples,
        study=folder,
    )
    show_table(folder.load("-".join(["areas", metric, *([kind] if kind else [])])), "mean height of the curve")
    draw_figures(folder)


def agreement(
    study: Annotated[Path, typer.Argument(help="Study with effects on one corpus.")],
    other: Annotated[Path, typer.Argument(help="Study of the same model on another corpus.")],
    column: Annotated[str, typer.Option(help="Column to compare.")] = "ablation[loss]",
    output: options.Picture = Path("agreement.png"),
    overwrite: options.Replace = False,
) -> None:
    """Compare the effects of ablating the same heads on two corpora: correlations and a scatter plot."""
    table = hr.papers.agreement_study(study, other, output, column=column, overwrite=overwrite)
    show_table(table, f"{column} on {' and on '.join(table.attrs['corpora'])}")
    say(f"written: {output} and its table")


def correlate(
    tables: Annotated[
        list[Path], typer.Argument(help="Studies or tables of one model; a column is taken from the first that has it.")
    ],
    columns: Annotated[
        str | None, typer.Option(help="Columns, separated by commas; by default all measurements that vary.")
    ] = None,
    output: options.Picture = Path("correlations.png"),
    overwrite: options.Replace = False,
) -> None:
    """Correlate scores, effects and survival of heads with each other: a table and a clustered map."""
    table = hr.papers.correlation_study(tables, output, columns=names(columns), overwrite=overwrite)
    pairs = list(table["first"] + ", " + table["second"])
    shown = table.drop(columns=["first", "second"])
    show_table(shown[:20], f"the strongest of {len(table)} rank correlations", label="scores", rows=pairs[:20])
    say(f"written: {output} and its table")


def relate(
    roles: Annotated[Path, typer.Argument(help="Study with roles, or a table of roles.")],
    outcomes: Annotated[list[Path], typer.Argument(help="Studies or tables with effects, importance, survival.")],
    study: options.Study = Path("study"),
    by: Annotated[
        Literal["family", "variant"], typer.Option(help="Relate families of roles, or their variants.")
    ] = "family",
    kinds: options.Kinds = None,
    only: Annotated[
        str | None, typer.Option(help="Words, separated by commas: keep outcomes that begin with one of them.")
    ] = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
) -> None:
    """Relate the roles of heads to the effects of ablation and to survival of pruning, within layers."""
    from headroles.analysis.relate_study import relate_study

    folder = study_of(study, overwrite=overwrite)
    show_relations(relate_study(folder, roles, outcomes, by=by, kinds=names(kinds), only=names(only), seed=seed))
    draw_figures(folder)


def stability(
    studies: Annotated[list[Path], typer.Argument(help="Studies with scores of models of one shape, on one corpus.")],
    study: options.Study = Path("study"),
    match: Annotated[
        Literal["layer", "model", "same"],
        typer.Option(help="Match heads within layers, within the model, or each with the same head."),
    ] = "layer",
    by: Annotated[
        Literal["scores", "attention"],
        typer.Option(help="Compare heads by scores, or by the attention kept by attention-examples."),
    ] = "scores",
    pairs: Annotated[
        Literal["all", "next"], typer.Option(help="Compare all pairs of models, or each with the next checkpoint.")
    ] = "all",
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
) -> None:
    """Match the heads of models of one shape, and test which heads and roles come back."""
    folder = study_of(study, overwrite=overwrite)
    tables = [hr.Study(place).load("heads") for place in studies]
    attention = [hr.Study(place).load("attention") for place in studies] if by == "attention" else None
    table = hr.stability(tables, match=match, pairs=pairs, attention=attention, seed=seed)
    folder.remove(folder.claim("stability", frame.provenance(table, "value")))
    hr.save_table(table, folder.path("stability"))
    of = list(table["quantity"] + ", " + table["of"])
    shown = table.rename(columns={"low": "value.low", "high": "value.high", "heads": "heads per model"})
    shown = shown[[name for name in map(str, shown) if name.startswith(("heads", "value", "chance", "p", "holm"))]]
    show_table(shown, f"{len(tables)} models, pair by pair", label="quantity", rows=of)
    say(f"written: {folder.path('stability')}")


def train(
    model: options.Model,
    corpus: options.TrainingCorpus,
    output: Annotated[Path, typer.Option(help="Folder for the trained model, its checkpoints and its history.")],
    target: options.Target = None,
    held_out: Annotated[Path | None, typer.Option(help="Corpus on which the model is measured each epoch.")] = None,
    held_out_target: options.HeldOutTarget = None,
    metrics: Annotated[str, typer.Option(help="Metrics, separated by commas.")] = "loss",
    epochs: options.Epochs = 3,
    batch: options.Batch = 32,
    rate: options.Rate = 2e-5,
    warmup: options.Warmup = 0,
    smoothing: options.Smoothing = 0.0,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Initialise the weights at random by the seed.")
    ] = False,
    without: Annotated[str | None, typer.Option(help=f"Heads to remove first: {options.HEADS}")] = None,
    sampling: options.Sampling = options.SAMPLING,
    seed: options.Seed = 0,
    limit: options.Sample = None,
) -> None:
    """Train a classifier on labels, or a translation model on translations, with a checkpoint each epoch."""
    from headroles.models.loading import check_no_study, load, untrained
    from headroles.tables.io import check_writable
    from headroles.training.trainer import HISTORY

    if without is not None:
        check_heads(without)
    check_no_study(output, besides=HISTORY)
    check_writable(output, "folder")
    sentences = hr.read(corpus, target).sample(limit)
    measured = None if held_out is None else hr.read(held_out, held_out_target)
    loaded, tokenizer = load(model) if target is not None else hr.load_classifier(model, sentences)
    loaded = untrained(loaded, seed=seed) if from_scratch else loaded
    if without is not None:
        hr.remove_heads(loaded, heads_of(without))
    training = tuning(epochs, batch, rate, warmup, smoothing, sampling)
    training["seed"] = seed
    history = hr.train(loaded, tokenizer, sentences, output, held_out=measured, metrics=names(metrics), **training)
    show_table(history.set_index("epoch"), f"trained on {len(sentences)} examples")
    say(f"written: {output}")
