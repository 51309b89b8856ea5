"""The commands that ablate heads, relate roles to outcomes, or train a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headroles.cli.arguments import heads_of, kinds_of, opened, study_of
from headroles.cli.check import Submodel
from headroles.cli.console import list_figures, say, show_best, show_effects, show_relations, show_table

Model = Annotated[str, typer.Argument(help="Hub id or local folder of a Hugging Face model with its tokenizer.")]
Target = Annotated[Path | None, typer.Argument(help="Translations of the corpus, line by line or as CoNLL-U.")]
Folder = Annotated[Path, typer.Option("--study", help="Folder for the tables and figures.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Remove tables of another model or corpus from the folder.")
]
Replace = Annotated[bool, typer.Option("--overwrite", help="Replace a file of another model or program.")]
Limit = Annotated[int | None, typer.Option(help="Number of first sentences to read; by default all.", min=1)]
Resamples = Annotated[int, typer.Option("--resamples", help="Number of bootstrap resamples of sentences.", min=0)]
Metric = Annotated[str, typer.Option(help="Metric: loss, perplexity, agreement, accuracy, f1, matthews, bleu or chrf.")]
Replacement = Annotated[
    Literal["zero", "mean", "resample", "uniform", "rescale"],
    typer.Option(help="Replacement of an ablated head's output."),
]
Device = Annotated[str | None, typer.Option(help="PyTorch device; by default a GPU if available.")]
Devices = Annotated[
    str | None, typer.Option(help="PyTorch device, or auto for all available devices; by default a GPU if available.")
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"] | None,
    typer.Option(help="Precision of the model; by default that of transformers."),
]


def compare(
    model: Model,
    corpus: Annotated[Path, typer.Argument(help="Corpus on which heads are scored, and ablated one by one.")],
    target: Target = None,
    held_out: Annotated[
        Path | None, typer.Option(help="Corpus on which heads are ablated cumulatively; by default the same.")
    ] = None,
    held_out_target: Annotated[Path | None, typer.Option(help="Translations of the other corpus.")] = None,
    study: Folder = Path("study"),
    rules: Annotated[str, typer.Option(help="Rule sets, separated by commas.")] = "cp,attn,voita,gradient",
    limit: Limit = None,
    n_resamples: Resamples = 1000,
    overwrite: Overwrite = False,
    device: Devices = None,
) -> None:
    """Compare scores as predictors of ablation effects: relevance by each rule set, importance, confidence, chance."""
    from headroles.data.readers import read
    from headroles.experiments.compare_scores import compare as run
    from headroles.experiments.score_study import draw

    folder = study_of(study, overwrite=overwrite)
    first = read(corpus, target, limit=limit)
    second = first if held_out is None else read(held_out, held_out_target, limit=limit)
    loaded, tokenizer = opened(model, device)
    chosen: Any = [name.strip() for name in rules.split(",")]
    found, areas = run(loaded, tokenizer, first, second, rules=chosen, n_resamples=n_resamples, study=folder)
    show_table(found, "rank correlation with ablating one head, over all heads and within layers")
    show_table(areas, "mean height of the curve when the least relevant heads are ablated cumulatively")
    list_figures(draw(folder), study)


def ablate(
    model: Model,
    corpus: Annotated[Path, typer.Argument(help="Corpus: text, parallel or labelled TSV, CoNLL-U; .gz too.")],
    target: Target = None,
    study: Folder = Path("study"),
    metric: Metric = "loss",
    unit: Annotated[
        Literal["head", "all_but_one", "layer", "kind"],
        typer.Option(help="Ablate each head, all but one of a layer, whole layers, or whole kinds."),
    ] = "head",
    replacement: Replacement = "zero",
    early: Annotated[
        bool, typer.Option("--early", help="Stop a head when it is clear whether its p is below 0.01.")
    ] = False,
    limit: Limit = None,
    n_resamples: Resamples = 1000,
    max_tokens: Annotated[
        int, typer.Option(help="Largest number of tokens in a batch, padding included.", min=1)
    ] = 4096,
    heads_per_batch: Annotated[int, typer.Option(help="Number of ablated variants in a batch.", min=1)] = 8,
    overwrite: Overwrite = False,
    submodel: Submodel = None,
    device: Devices = None,
    dtype: Dtype = None,
) -> None:
    """Ablate every head of a model and measure the effects, with intervals and corrected tests."""
    from headroles.ablation.effects import ablate as run
    from headroles.ablation.evaluation import worth
    from headroles.ablation.example_stats import ExampleStats
    from headroles.ablation.metrics import metric as the_metric
    from headroles.ablation.units import on_disk
    from headroles.data.readers import read
    from headroles.experiments.score_study import draw

    folder = study_of(study, overwrite=overwrite)
    sentences = read(corpus, target, limit=limit)
    loaded, tokenizer = opened(model, device, submodel=submodel, dtype=dtype)
    table = run(
        loaded,
        tokenizer,
        sentences,
        metric=metric,
        unit=unit,
        replacement=replacement,
        early=early,
        n_resamples=n_resamples,
        max_tokens=max_tokens,
        heads_per_batch=heads_per_batch,
        study=folder,
    )
    kept = folder.load(f"examples-{metric}-{on_disk(unit)}-{on_disk(replacement)}{'-early' if early else ''}")
    show_effects(table, worth(ExampleStats.of(kept, the_metric(metric)), n_resamples=n_resamples), metric)
    for name in (f"best-{metric}-{on_disk(replacement)}", f"best-{metric}-{on_disk(replacement)}-halves"):
        if unit == "all_but_one" and not early and folder.has(name):
            show_best(folder.load(name), "chosen on one half, measured on the other" if "halves" in name else "")
    list_figures(draw(folder), study)


def ablation_curve(
    model: Model,
    corpus: Annotated[Path, typer.Argument(help="Corpus on which heads are ablated cumulatively.")],
    target: Target = None,
    study: Folder = Path("study"),
    by: Annotated[
        str,
        typer.Option(
            help="Columns of the study's tables that rank heads, the smallest first, with a minus the largest; "
            "separated by commas."
        ),
    ] = "importance",
    again: Annotated[
        Path | None, typer.Option(help="Corpus on which importance is recomputed after each step, as one more ranking.")
    ] = None,
    again_target: Annotated[Path | None, typer.Option(help="Translations of the other corpus.")] = None,
    metric: Metric = "agreement",
    kind: Annotated[
        Literal["enc-self", "dec-self", "cross", "each"] | None,
        typer.Option(help="Kind of heads to ablate, or each kind in turn."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of random rankings.", min=0)] = 5,
    steps: Annotated[int, typer.Option(help="Number of steps in which all heads are ablated.", min=1)] = 10,
    replacement: Replacement = "zero",
    limit: Limit = None,
    n_resamples: Resamples = 1000,
    overwrite: Overwrite = False,
    device: Devices = None,
    dtype: Dtype = None,
) -> None:
    """Ablate heads cumulatively, in the rankings of a study's scores, and measure the remaining performance."""
    from headroles.ablation.curves import ablation_curve as run
    from headroles.ablation.curves import order_again, orders
    from headroles.data.readers import read
    from headroles.experiments.score_study import draw

    folder = study_of(study, overwrite=overwrite)
    sentences = read(corpus, target, limit=limit)
    loaded, tokenizer = opened(model, device, dtype=dtype)
    columns = [name.strip() for name in by.split(",")]
    rankings = orders(folder.scores(), columns, kind=kind, seeds=seeds)
    if again is not None:
        if kind == "each":
            raise ValueError("--again and --kind each do not combine; give one kind at a time")
        scored = read(again, again_target, limit=limit)
        rankings["importance, again"] = order_again(loaded, tokenizer, scored, kind=kind, steps=steps)
    run(
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
    areas = folder.load("-".join(["areas", metric, *([kind] if kind else [])]))
    show_table(areas, "mean height of the curve")
    list_figures(draw(folder), study)


def agreement(
    study: Annotated[Path, typer.Argument(help="Study with effects on one corpus.")],
    other: Annotated[Path, typer.Argument(help="Study of the same model on another corpus.")],
    column: Annotated[str, typer.Option(help="Column to compare.")] = "ablation[loss]",
    output: Annotated[Path, typer.Option(help="Picture to write (.png, .pdf, .svg).")] = Path("agreement.png"),
    overwrite: Replace = False,
) -> None:
    """Compare the effects of ablating the same heads on two corpora: correlations and a scatter plot."""
    from headroles.plots import effects, gallery
    from headroles.tables import files
    from headroles.tables.frame import fields, provenance
    from headroles.tables.io import save_table
    from headroles.tables.study import Study

    one, two = (Study(folder).scores().filter(regex=f"^{re.escape(column)}") for folder in (study, other))
    for folder, table in ((study, one), (other, two)):
        if column not in table:
            raise ValueError(f"no column {column!r} in {folder}; make it with headroles ablate")
    found = effects.correlations(one[column], two[column])
    signatures = [provenance(each, column) for each in (one, two)]
    found.attrs["signatures"] = dict.fromkeys(found, " AND ".join(signatures))
    first, second = (dict(fields(text))["corpus"] for text in signatures)
    of = " and ".join(f"{dict(fields(text)).get('weights')} on {dict(fields(text)).get('text')}" for text in signatures)
    files.check_ours(output, of, overwrite=overwrite)
    axes = effects.agreement(one, two, names=(first.partition("+")[0], second.partition("+")[0]))
    show_table(found, f"{column} on {first} and on {second}")
    save_table(found, output.with_suffix(".parquet"))
    gallery.save(axes, output, of=of)
    say(f"written: {output} and its table")


def relate(
    roles: Annotated[Path, typer.Argument(help="Study with roles, or a table of roles.")],
    outcomes: Annotated[list[Path], typer.Argument(help="Studies or tables with effects, importance, survival.")],
    study: Folder = Path("study"),
    by: Annotated[
        Literal["family", "variant"], typer.Option(help="Relate families of roles, or their variants.")
    ] = "family",
    kinds: Annotated[str | None, typer.Option(help="Kinds of heads, separated by commas; by default all.")] = None,
    only: Annotated[
        str | None, typer.Option(help="Words, separated by commas: keep outcomes that begin with one of them.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of resamples and permutations.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Relate the roles of heads to the effects of ablation and to survival of pruning, within layers."""
    from headroles.experiments.relate_study import relate_study
    from headroles.experiments.score_study import draw

    folder = study_of(study, overwrite=overwrite)
    words = None if only is None else [word.strip() for word in only.split(",")]
    show_relations(relate_study(folder, roles, outcomes, by=by, kinds=kinds_of(kinds), only=words, seed=seed))
    list_figures(draw(folder), study)


def train(
    model: Model,
    corpus: Annotated[Path, typer.Argument(help="Training corpus: labelled TSV, or text with its translations.")],
    output: Annotated[Path, typer.Option(help="Folder for the trained model, its checkpoints and its history.")],
    target: Target = None,
    held_out: Annotated[Path | None, typer.Option(help="Corpus on which the model is measured each epoch.")] = None,
    held_out_target: Annotated[Path | None, typer.Option(help="Translations of the other corpus.")] = None,
    metrics: Annotated[str, typer.Option(help="Metrics, separated by commas.")] = "loss",
    epochs: Annotated[int, typer.Option(help="Number of epochs.", min=1)] = 3,
    batch: Annotated[int, typer.Option(help="Examples of a step, on each process.", min=1)] = 32,
    rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 2e-5,
    warmup: Annotated[int, typer.Option(help="Number of warm-up steps.", min=0)] = 0,
    smoothing: Annotated[float, typer.Option(help="Label smoothing.", min=0, max=1)] = 0.0,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Initialise the weights at random by the seed.")
    ] = False,
    without: Annotated[
        str | None,
        typer.Option(help="Heads to remove first: kind:layer:head, separated by commas, or TABLE:COLUMN of prune."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of examples and of dropout.")] = 0,
    limit: Annotated[
        int | None, typer.Option(help="Number of training examples, drawn at random; by default all.", min=1)
    ] = None,
) -> None:
    """Train a classifier on labels, or a translation model on translations, with a checkpoint each epoch."""
    from headroles.data.readers import read
    from headroles.models.loading import load, untrained
    from headroles.pruning.removal import remove_heads
    from headroles.training.trainer import load_classifier
    from headroles.training.trainer import train as run

    sentences = read(corpus, target).sample(limit)
    measured = None if held_out is None else read(held_out, held_out_target)
    loaded, tokenizer = load(model) if target is not None else load_classifier(model, sentences)
    loaded = untrained(loaded, seed=seed) if from_scratch else loaded
    if without is not None:
        remove_heads(loaded, heads_of(without))
    further: dict[str, Any] = {"label_smoothing_factor": smoothing} if smoothing else {}
    history = run(
        loaded,
        tokenizer,
        sentences,
        output,
        held_out=measured,
        metrics=[name.strip() for name in metrics.split(",")],
        epochs=epochs,
        batch=batch,
        rate=rate,
        warmup_steps=warmup,
        seed=seed,
        **further,
    )
    show_table(history.set_index("epoch"), f"trained on {len(sentences)} examples")
    say(f"written: {output}")
