"""The commands that prune models and measure pruned ones."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

import headroles as hr
from headroles.cli import arguments, console, options
from headroles.cli.record import record


def prune(
    model: options.Model,
    corpus: options.TrainingCorpus,
    target: options.Target = None,
    *,
    held_out: options.HeldOut,
    held_out_target: options.HeldOutTarget = None,
    strategy: Annotated[
        str,
        typer.Option(
            help="Gates (l0, exactly) or a ranking: importance, effect, random, top ...; a minus reverses it."
        ),
    ] = "l0",
    keep: options.Keep = "0.75,0.5,0.25",
    kinds: options.Kinds = None,
    metric: options.Metric = "loss",
    scored: Annotated[Path | None, typer.Option(help="Corpus on which the remaining heads are assigned roles.")] = None,
    scored_target: Annotated[Path | None, typer.Option(help="Translations of that corpus.")] = None,
    study: options.Study = Path("study"),
    output: options.PrunedModels = None,
    role_scores: options.RoleScores = None,
    gate_rate: options.GateRate = None,
    freeze: options.Freeze = "nothing",
    epochs: options.Epochs = 1,
    batch: options.Batch = 32,
    rate: options.Rate = 2e-5,
    warmup: options.Warmup = 0,
    sampling: options.Sampling = options.SAMPLING,
    limit: options.Sample = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    device: options.Device = None,
) -> None:
    """Prune a model to several numbers of heads, by learnt gates or by a ranking with training afterwards."""
    folder = arguments.study_of(study, overwrite=overwrite)
    learnt, measured = hr.read(corpus, target).sample(limit), hr.read(held_out, held_out_target)
    roles_on = None if scored is None else hr.read(scored, scored_target)
    chosen, counts = arguments.strategy_of(strategy, gate_rate, freeze, role_scores), arguments.numbers(keep)
    loaded, tokenizer = arguments.load_trainable(model, device, learnt)
    intact = hr.evaluate(loaded, tokenizer, measured, [metric])  # fails now rather than after training
    table = hr.sparsity_sweep(
        loaded,
        tokenizer,
        learnt,
        measured,
        chosen,
        keep=counts,
        kinds=arguments.names(kinds),
        metric=metric,
        scored=roles_on,
        seed=seed,
        tune=arguments.tuning(epochs, batch, rate, warmup, sampling=sampling),
        study=folder,
        output=output,
        command=shlex.join(["headroles", *sys.argv[1:]]),
    )
    console.show_sizes(intact, table, f"{strategy}: {metric} on {held_out.name}")
    console.draw_figures(folder)
    _follow(output, [str(count) for count in table["heads"][1:]])


def _follow(output: Path | None, sizes: list[str]) -> None:
    """Print where the pruned models are, and keep the next command to try."""
    if output is None:  # sizes that are finished are not run again
        record().following.append(shlex.join(["headroles", *sys.argv[1:], "--output", "smaller"]))
        return
    saved = [str(output / size) for size in sizes]
    console.say(f"written: {', '.join(saved)}; headroles.load loads them")
    record().following.append(f"headroles score {shlex.quote(saved[-1])} CORPUS --study smaller-study")


def compare_pruning(
    model: options.Model,
    corpus: options.TrainingCorpus,
    target: options.Target = None,
    *,
    held_out: options.HeldOut,
    held_out_target: options.HeldOutTarget = None,
    strategies: Annotated[
        str, typer.Option(help="Strategies, separated by commas.")
    ] = "importance,effect,l0,roles,random,-importance",
    keep: options.Keep = "0.5,0.25",
    kinds: options.Kinds = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 3,
    metric: options.Metric = "loss",
    scored: Annotated[
        int, typer.Option(help="Number of examples on which scores are computed, drawn for each seed.", min=1)
    ] = 1000,
    study: options.Study = Path("study"),
    role_scores: options.RoleScores = None,
    gate_rate: options.GateRate = None,
    freeze: options.Freeze = "nothing",
    epochs: options.Epochs = 1,
    batch: options.Batch = 32,
    rate: options.Rate = 2e-5,
    warmup: options.Warmup = 0,
    sampling: options.Sampling = options.SAMPLING,
    smoothing: options.Smoothing = 0.0,
    limit: options.Sample = None,
    overwrite: options.Overwrite = False,
    device: options.Device = None,
) -> None:
    """Compare pruning strategies at equal numbers of heads, without and with retraining, over several seeds."""
    folder = arguments.study_of(study, overwrite=overwrite)
    learnt, measured = hr.read(corpus, target).sample(limit), hr.read(held_out, held_out_target)
    chosen = [arguments.strategy_of(name, gate_rate, freeze, role_scores) for name in arguments.names(strategies)]
    loaded, tokenizer = arguments.load_model(model, device, whole=True)
    hr.evaluate(loaded, tokenizer, measured[:2], [metric], n_resamples=0)  # fails now rather than after training
    table = hr.compare_pruning(
        loaded,
        tokenizer,
        learnt,
        measured,
        strategies=chosen,
        keep=arguments.numbers(keep),
        seeds=seeds,
        kinds=arguments.names(kinds),
        metric=metric,
        scored=scored,
        tune={**arguments.tuning(epochs, batch, rate, warmup, smoothing, sampling), "save_strategy": "no"},
        study=folder,
    )
    console.show_comparison(table, f"{metric} on {held_out.name}, mean of {seeds} seeds")
    console.draw_figures(folder)


def remove_heads(
    model: options.Model,
    heads: Annotated[str, typer.Argument(help=f"Heads to remove: {options.HEADS}")],
    output: Annotated[Path, typer.Option(help="Folder for the smaller model and its tokenizer.")],
    groups: Annotated[
        Literal["equal", "whole", "expand"], typer.Option(help="Removal where heads share key-value heads.")
    ] = "equal",
    zero: Annotated[
        bool, typer.Option("--zero", help="Set the heads to zero instead: an ordinary model, which needs no headroles.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another model in the folder.")] = False,
) -> None:
    """Remove heads from a model and save the smaller model; headroles.load loads it."""
    from headroles.models import loading
    from headroles.tables.io import check_writable

    arguments.check_heads(heads)
    loading.check_no_study(output)
    check_writable(output, "folder")
    loaded, tokenizer = loading.load(model)
    if zero:
        hr.save(hr.zero_heads(loaded, arguments.heads_of(heads)), tokenizer, output, overwrite=overwrite)
        console.say(f"written: {output}, with these heads set to zero, for any program that loads the original model")
        return
    before, heads_before = loaded.num_parameters(), hr.models.head_index(loaded)
    smaller = hr.remove_heads(loaded, arguments.heads_of(heads), groups=groups)
    hr.save(smaller, tokenizer, output, overwrite=overwrite, command=shlex.join(["headroles", *sys.argv[1:]]))
    console.show_removed(heads_before, hr.models.head_index(smaller))
    console.say(f"written: {output}, {smaller.num_parameters():,} of {before:,} parameters")


def efficiency(
    model: options.Model,
    study: options.Study = Path("study"),
    batches: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,4,16,64",
    length: Annotated[int, typer.Option(help="Tokens of an example.", min=1)] = 64,
    repeats: Annotated[int, typer.Option(help="Number of timed forward passes.", min=2)] = 7,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    device: options.Device = None,
) -> None:
    """Time a model with heads masked and with heads removed, the same number from each layer."""
    folder = arguments.study_of(study, overwrite=overwrite)
    counts = arguments.sizes(batches)
    loaded, tokenizer = arguments.load_model(model, device, whole=True)
    table = hr.papers.efficiency_study(
        loaded, tokenizer, folder, batches=counts, length=length, repeats=repeats, seed=seed
    )
    console.show_speed(table)
    console.draw_figures(folder)


def causal_gating(
    model: options.Model,
    corpus: Annotated[Path, typer.Argument(help="Corpus on which the loss is measured: text, or labelled TSV.")],
    target: options.Target = None,
    *,
    strength: Annotated[float, typer.Option(help="Reward for gates near 1, or near 0.")] = 0.1,
    updates: Annotated[int, typer.Option(help="Updates of the gates in each of three fits.", min=1)] = 200,
    seeds: Annotated[int, typer.Option(help="Number of random gates from which fits begin.", min=1)] = 5,
    study: options.Study = Path("study"),
    limit: options.Limit = None,
    max_tokens: options.MaxTokens = 4096,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    device: options.Device = None,
) -> None:
    """Fit gates under pressure up and down: which heads help, which do nothing, which harm."""
    folder = arguments.study_of(study, overwrite=overwrite)
    sentences = hr.read(corpus, target, limit=limit)
    loaded, tokenizer = arguments.load_model(model, device, whole=True)
    table = hr.causal_gating(
        loaded,
        tokenizer,
        sentences,
        strength=strength,
        n_updates=updates,
        seeds=seeds,
        max_tokens=max_tokens,
        seed=seed,
        study=folder,
    )
    console.show_gating(table)
    console.draw_figures(folder)


def dynamics(
    training: Annotated[Path, typer.Argument(help="Folder of headroles train, with its checkpoints.")],
    corpus: Annotated[Path, typer.Argument(help="Corpus on which importance and roles are computed.")],
    target: options.Target = None,
    *,
    held_out: options.HeldOut,
    held_out_target: options.HeldOutTarget = None,
    metric: options.Metric = "loss",
    steps: options.Steps = 10,
    study: options.Study = Path("study"),
    limit: Annotated[int | None, typer.Option(help="Number of held-out examples; by default all.", min=1)] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Ablate heads at every checkpoint of a training, to see when their ranking settles and when roles appear."""
    folder = arguments.study_of(study, overwrite=overwrite)
    scored, measured = hr.read(corpus, target), hr.read(held_out, held_out_target, limit=limit)
    _, order = hr.dynamics(training, scored, measured, study=folder, metric=metric, steps=steps)
    console.show_table(order.set_index("epoch"), "the ranking of heads, and roles, at each checkpoint")
    console.draw_figures(folder)


def weight_change(
    before: Annotated[str, typer.Argument(help="Model before fine-tuning, with all heads.")],
    after: Annotated[list[str], typer.Argument(help="Models fine-tuned from it, with several seeds.")],
    study: options.Study = Path("study"),
    overwrite: options.Overwrite = False,
) -> None:
    """Measure how much the weights of each head changed in fine-tuning, and whether all changed alike."""
    folder = arguments.study_of(study, overwrite=overwrite)
    if (uniformity := hr.papers.weight_change_study(before, after, folder)) is not None:
        console.show_table(uniformity, "do all heads move alike? w 0: chance, 1: the same heads move most each time")
    console.draw_figures(folder)
