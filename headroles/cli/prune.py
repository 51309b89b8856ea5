"""The commands that make models smaller: prune, shrink, contest, efficiency and dynamics, as those of `cli`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headroles.cli.ablate import Device, Folder, Metric, Model, Overwrite, Target
from headroles.cli.arguments import heads_of, kinds_of, numbers, strategy_named, study_of
from headroles.cli.console import list_figures, say, show_removed, show_table

Text = Annotated[Path, typer.Argument(help="Corpus to learn from: labelled TSV, or text with its translations.")]
HeldOut = Annotated[Path, typer.Option(help="Corpus on which pruned models are measured.")]
HeldOutTarget = Annotated[Path | None, typer.Option(help="Its translations.")]
Keep = Annotated[str, typer.Option(help="Numbers of heads that stay, or shares below 1; commas between.")]
Kinds = Annotated[str | None, typer.Option(help="Kinds that may lose heads, by default all; commas between.")]
Limit = Annotated[int | None, typer.Option(help="Learn from only so many examples, drawn by chance.", min=1)]
Epochs = Annotated[int, typer.Option(help="How often they are gone through in each training.", min=1)]
Batch = Annotated[int, typer.Option(help="Examples of a step, on each process.", min=1)]
Rate = Annotated[float, typer.Option(help="Peak learning rate of the weights.")]
Warmup = Annotated[int, typer.Option(help="Steps until it is reached.", min=0)]
Smoothing = Annotated[float, typer.Option(help="Label smoothing of the retraining.", min=0, max=1)]
GateRate = Annotated[
    float | None, typer.Option(help="Learning rate of gates; by default by the number of steps, so that gates decide.")
]
Freeze = Annotated[
    Literal["nothing", "decoder", "all"], typer.Option(help="What does not train while gates are learnt.")
]
Told = Annotated[
    Path | None, typer.Option(help="Score table (heads.parquet) from which the order `roles` tells roles.")
]
Seed = Annotated[int, typer.Option(help="Seed of chance and of training.")]


def prune(
    model: Model,
    corpus: Text,
    target: Target = None,
    *,
    held_out: HeldOut,
    held_out_target: HeldOutTarget = None,
    strategy: Annotated[
        str,
        typer.Option(help="Gates (l0, exactly) or an order: importance, effect, random, top ...; a minus reverses."),
    ] = "l0",
    keep: Keep = "0.75,0.5,0.25",
    kinds: Kinds = None,
    metric: Metric = "loss",
    scored: Annotated[Path | None, typer.Option(help="Corpus on which the roles of what is left are told.")] = None,
    scored_target: Annotated[Path | None, typer.Option(help="Its translations.")] = None,
    study: Folder = Path("study"),
    told: Told = None,
    gate_rate: GateRate = None,
    freeze: Freeze = "nothing",
    epochs: Epochs = 1,
    batch: Batch = 32,
    rate: Rate = 2e-5,
    warmup: Warmup = 0,
    limit: Limit = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    device: Device = None,
) -> None:
    """Prune a model to several numbers of heads, by learnt gates or an order with training after it."""
    from headroles.ablation.evaluation import evaluate
    from headroles.data.readers import read
    from headroles.experiments.score_study import draw
    from headroles.models.loading import load, place
    from headroles.pruning.sparsity import sparsity_sweep

    folder = study_of(study, overwrite=overwrite)
    tune = {"epochs": epochs, "batch": batch, "rate": rate, "warmup_steps": warmup}
    learnt, measured = read(corpus, target).sample(limit), read(held_out, held_out_target)
    roles_on = None if scored is None else read(scored, scored_target)
    loaded, tokenizer = load(model)
    chosen = strategy_named(strategy, gate_rate, freeze, told)
    options: Any = {"keep": numbers(keep), "kinds": kinds_of(kinds), "metric": metric, "scored": roles_on}
    options |= {"seed": seed, "tune": tune}
    whole = place(loaded, device)
    table = sparsity_sweep(folder, whole, tokenizer, learnt, measured, chosen, **options)
    _show_sizes(evaluate(whole, tokenizer, measured, [metric]), table, f"{strategy}: {metric} on {held_out.name}")
    list_figures(draw(folder), study)


def _show_sizes(intact: Any, table: Any, what: str) -> None:
    """Print the sizes of `prune` beneath the intact model, each by its number of heads."""
    import pandas as pd

    whole, *rest = table["heads"]
    names = [f"{whole}, intact", f"{whole}, control", *map(str, rest)]
    shown = pd.concat([intact, table], ignore_index=True).set_index(pd.Index(names, name="heads"))
    shown = shown.rename(columns={"low": "value.low", "high": "value.high"})
    shown = shown[[name for name in shown if str(name).startswith(("value", "change", "undecided"))]]
    show_table(shown, f"{what}, and the change against the control")
    say("intact: the model as it was given; control: with all its heads, after the same training as the others")


def compare_pruning(
    model: Model,
    corpus: Text,
    target: Target = None,
    *,
    held_out: HeldOut,
    held_out_target: HeldOutTarget = None,
    strategies: Annotated[
        str, typer.Option(help="Strategies, separated by commas.")
    ] = "importance,effect,l0,roles,random,-importance",
    keep: Keep = "0.5,0.25",
    kinds: Kinds = None,
    seeds: Annotated[int, typer.Option(help="How often everything is done again.", min=1)] = 3,
    metric: Metric = "loss",
    scored: Annotated[int, typer.Option(help="Examples on which scores are measured, others for each seed.")] = 1000,
    study: Folder = Path("study"),
    told: Told = None,
    gate_rate: GateRate = None,
    freeze: Freeze = "nothing",
    epochs: Epochs = 1,
    batch: Batch = 32,
    rate: Rate = 2e-5,
    warmup: Warmup = 0,
    smoothing: Smoothing = 0.0,
    limit: Limit = None,
    overwrite: Overwrite = False,
    device: Device = None,
) -> None:
    """Compare strategies of pruning at equal numbers of heads, without and with retraining, over several seeds."""
    import pandas as pd

    from headroles.data.readers import read
    from headroles.experiments.score_study import draw
    from headroles.models.loading import load, place
    from headroles.pruning.comparison import compare_pruning

    folder = study_of(study, overwrite=overwrite)
    tune = {"epochs": epochs, "batch": batch, "rate": rate, "warmup_steps": warmup}
    tune |= {"label_smoothing_factor": smoothing} if smoothing else {}
    learnt, measured = read(corpus, target).sample(limit), read(held_out, held_out_target)
    loaded, tokenizer = load(model)
    chosen = [strategy_named(name.strip(), gate_rate, freeze, told) for name in strategies.split(",")]
    options: Any = {"strategies": chosen, "keep": numbers(keep), "seeds": seeds, "kinds": kinds_of(kinds)}
    options |= {"metric": metric, "scored": scored, "tune": {**tune, "save_strategy": "no"}}
    table = compare_pruning(folder, place(loaded, device), tokenizer, learnt, measured, **options)
    names = [f"{row.strategy}, {row.heads} heads{', retrained' if row.tuned else ''}" for row in table.itertuples()]
    shown = table.drop(columns=["strategy", "heads", "tuned", "seeds.sd"]).set_index(pd.Index(names, name="choice"))
    show_table(shown, f"{metric} on {held_out.name}, mean of {seeds} seeds")
    list_figures(draw(folder), study)


def remove_heads(
    model: Model,
    heads: Annotated[
        str, typer.Argument(help="Heads to cut out: kind:layer:head with commas, or TABLE:COLUMN of prune.")
    ],
    output: Annotated[Path, typer.Option(help="Folder for the smaller model and its tokenizer.")],
    groups: Annotated[
        Literal["equal", "whole", "expand"], typer.Option(help="What goes where heads share key-value heads.")
    ] = "equal",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another model in the folder.")] = False,
) -> None:
    """Cut heads out of a model and save what is left; headroles.load brings it back."""
    from headroles.models.heads import head_index
    from headroles.models.loading import check_no_study, load, save
    from headroles.pruning.removal import remove_heads as run
    from headroles.tables.files import check_writable

    check_no_study(output)
    check_writable(output, "folder")
    loaded, tokenizer = load(model)
    before = sum(one.numel() for one in loaded.parameters())
    had = head_index(loaded)
    save(run(loaded, heads_of(heads), groups=groups), tokenizer, output, overwrite=overwrite)
    show_removed(had, head_index(loaded))
    after = sum(one.numel() for one in loaded.parameters())
    say(f"written: {output}, {after:,} of {before:,} parameters")


def efficiency(
    model: Model,
    study: Folder = Path("study"),
    batches: Annotated[str, typer.Option(help="Batch sizes, with commas between.")] = "1,4,16,64",
    length: Annotated[int, typer.Option(help="Tokens of an example.", min=1)] = 64,
    repeats: Annotated[int, typer.Option(help="How often each forward is timed.", min=2)] = 7,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    device: Device = None,
) -> None:
    """Time a model with heads closed by gates and with them cut out, the same number from each layer."""
    import pandas as pd

    from headroles.data.corpus import Corpus
    from headroles.experiments.score_study import draw
    from headroles.models.loading import load, place, revision
    from headroles.pruning.costs import efficiency as run
    from headroles.pruning.rankings import Random, RankingContext, among
    from headroles.tables.frame import sign
    from headroles.tables.io import save_table

    folder = study_of(study, overwrite=overwrite)
    loaded, tokenizer = load(model)
    whole = place(loaded, device)
    gone = folder.claim("efficiency", sign(weights=revision(whole)))
    order = Random("layer").order(RankingContext(whole, tokenizer, Corpus("none", ()), among(whole, None), seed))
    sizes = [int(one) for one in batches.split(",")]
    table = run(whole, order, batches=sizes, length=length, repeats=repeats)
    folder.remove(gone)
    save_table(table, folder.path("efficiency"))  # timed anew each time: speeds are of the machine and the hour
    names = [f"{row.share:.0%} closed, {row.way}, batch {row.batch}" for row in table.itertuples()]
    shown = table[["parameters", "speedup", "speedup.low", "speedup.high", "allowed"]].set_index(
        pd.Index(names, name="model")
    )
    show_table(shown, "speed over that of the whole model")
    list_figures(draw(folder), study)


def dynamics(
    training: Annotated[Path, typer.Argument(help="Folder of headroles train, with its checkpoints.")],
    corpus: Annotated[Path, typer.Argument(help="Corpus on which importance and roles are told.")],
    target: Target = None,
    *,
    held_out: HeldOut,
    held_out_target: HeldOutTarget = None,
    metric: Metric = "loss",
    steps: Annotated[int, typer.Option(help="In how many steps all heads are closed.", min=1)] = 10,
    study: Folder = Path("study"),
    limit: Annotated[int | None, typer.Option(help="Only the first held-out examples.", min=1)] = None,
    overwrite: Overwrite = False,
) -> None:
    """Close heads at every checkpoint of a training, to see when their order settles and when roles appear."""
    from headroles.data.readers import read
    from headroles.experiments.score_study import draw
    from headroles.experiments.training_dynamics import dynamics as run

    folder = study_of(study, overwrite=overwrite)
    told, measured = read(corpus, target), read(held_out, held_out_target, limit=limit)
    _, order = run(folder, training, told, measured, metric=metric, steps=steps)
    show_table(order.set_index("epoch"), "the order of heads, and roles, at each checkpoint")
    list_figures(draw(folder), study)


def weight_change(
    before: Annotated[str, typer.Argument(help="Model before fine-tuning, with all heads.")],
    after: Annotated[list[str], typer.Argument(help="What was fine-tuned from it, by several seeds.")],
    study: Folder = Path("study"),
    overwrite: Overwrite = False,
) -> None:
    """Measure how far the weights of each head moved in fine-tuning, and whether all moved alike."""
    from headroles.experiments.score_study import draw
    from headroles.models.loading import load, revision
    from headroles.pruning.weight_changes import alike
    from headroles.pruning.weight_changes import weight_change as run
    from headroles.tables.frame import sign
    from headroles.tables.io import save_table

    folder = study_of(study, overwrite=overwrite)
    start = load(before)[0]
    gone = [folder.claim(f"compensation-{seed}", sign(before=revision(start))) for seed in range(len(after))]
    tables = [run(start, load(one)[0]) for one in after]
    for one in gone:
        folder.remove(one)
    for seed, table in enumerate(tables):
        save_table(table, folder.path(f"compensation-{seed}"))
    if len(tables) > 2:
        found = alike(tables)
        save_table(found, folder.path("uniformity"))
        show_table(found, "do all heads move alike? w 0: chance, 1: the same heads move most each time")
    list_figures(draw(folder), study)
