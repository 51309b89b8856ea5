"""The commands that prune models and measure pruned ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headroles.cli.ablate import Device, Folder, Metric, Model, Overwrite, Target
from headroles.cli.arguments import heads_of, kinds_of, numbers, strategy_named, study_of
from headroles.cli.console import list_figures, say, show_removed, show_table

if TYPE_CHECKING:
    from headroles.training.hf_trainer import TrainOptions

Text = Annotated[Path, typer.Argument(help="Training corpus: labelled TSV, or text with its translations.")]
HeldOut = Annotated[Path, typer.Option(help="Corpus on which pruned models are evaluated.")]
HeldOutTarget = Annotated[Path | None, typer.Option(help="Translations of the held-out corpus.")]
Keep = Annotated[str, typer.Option(help="Numbers of heads to keep, or shares below 1, separated by commas.")]
Kinds = Annotated[str | None, typer.Option(help="Kinds of heads to prune, separated by commas; by default all.")]
Limit = Annotated[int | None, typer.Option(help="Number of training examples, drawn at random; by default all.", min=1)]
Epochs = Annotated[int, typer.Option(help="Number of epochs of each training.", min=1)]
Batch = Annotated[int, typer.Option(help="Examples of a step, on each process.", min=1)]
Rate = Annotated[float, typer.Option(help="Peak learning rate of the weights.")]
Warmup = Annotated[int, typer.Option(help="Number of warm-up steps.", min=0)]
Smoothing = Annotated[float, typer.Option(help="Label smoothing of the retraining.", min=0, max=1)]
GateRate = Annotated[
    float | None,
    typer.Option(help="Learning rate of gates; by default by the number of steps, so that gates converge."),
]
Freeze = Annotated[
    Literal["nothing", "decoder", "all"], typer.Option(help="Parameters to freeze while gates are trained.")
]
RoleScores = Annotated[Path | None, typer.Option(help="Score table (heads.parquet) for the strategy `roles`.")]
Seed = Annotated[int, typer.Option(help="Seed of random choices and of training.")]


def prune(
    model: Model,
    corpus: Text,
    target: Target = None,
    *,
    held_out: HeldOut,
    held_out_target: HeldOutTarget = None,
    strategy: Annotated[
        str,
        typer.Option(
            help="Gates (l0, exactly) or a ranking: importance, effect, random, top ...; a minus reverses it."
        ),
    ] = "l0",
    keep: Keep = "0.75,0.5,0.25",
    kinds: Kinds = None,
    metric: Metric = "loss",
    scored: Annotated[Path | None, typer.Option(help="Corpus on which the remaining heads are assigned roles.")] = None,
    scored_target: Annotated[Path | None, typer.Option(help="Translations of that corpus.")] = None,
    study: Folder = Path("study"),
    role_scores: RoleScores = None,
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
    """Prune a model to several numbers of heads, by learnt gates or by a ranking with training afterwards."""
    from headroles.ablation.evaluation import evaluate
    from headroles.data.readers import read
    from headroles.experiments.score_study import draw
    from headroles.models.loading import load, place
    from headroles.pruning.sparsity import sparsity_sweep

    folder = study_of(study, overwrite=overwrite)
    tune: TrainOptions = {"epochs": epochs, "batch": batch, "rate": rate, "warmup_steps": warmup}
    learnt, measured = read(corpus, target).sample(limit), read(held_out, held_out_target)
    roles_on = None if scored is None else read(scored, scored_target)
    loaded, tokenizer = load(model)
    chosen = strategy_named(strategy, gate_rate, freeze, role_scores)
    whole = place(loaded, device)
    table = sparsity_sweep(
        whole,
        tokenizer,
        learnt,
        measured,
        chosen,
        keep=numbers(keep),
        kinds=kinds_of(kinds),
        metric=metric,
        scored=roles_on,
        seed=seed,
        tune=tune,
        study=folder,
    )
    _show_sizes(evaluate(whole, tokenizer, measured, [metric]), table, f"{strategy}: {metric} on {held_out.name}")
    list_figures(draw(folder), study)


def _show_sizes(intact: Any, table: Any, what: str) -> None:
    """Print the intact model and the sizes of `prune`, by number of heads."""
    import pandas as pd

    whole, *rest = table["heads"]
    names = [f"{whole}, intact", f"{whole}, control", *map(str, rest)]
    shown = pd.concat([intact, table], ignore_index=True).set_index(pd.Index(names, name="heads"))
    shown = shown.rename(columns={"low": "value.low", "high": "value.high"})
    shown = shown[[name for name in shown if str(name).startswith(("value", "change", "undecided"))]]
    show_table(shown, f"{what}, and the change against the control")
    say("intact: the given model; control: with all its heads, after the same training as the others")


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
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 3,
    metric: Metric = "loss",
    scored: Annotated[
        int, typer.Option(help="Number of examples on which scores are computed, drawn for each seed.")
    ] = 1000,
    study: Folder = Path("study"),
    role_scores: RoleScores = None,
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
    """Compare pruning strategies at equal numbers of heads, without and with retraining, over several seeds."""
    import pandas as pd

    from headroles.data.readers import read
    from headroles.experiments.score_study import draw
    from headroles.models.loading import load, place
    from headroles.pruning.comparison import compare_pruning

    folder = study_of(study, overwrite=overwrite)
    tune: TrainOptions = {"epochs": epochs, "batch": batch, "rate": rate, "warmup_steps": warmup}
    tune |= {"label_smoothing_factor": smoothing} if smoothing else {}
    learnt, measured = read(corpus, target).sample(limit), read(held_out, held_out_target)
    loaded, tokenizer = load(model)
    chosen = [strategy_named(name.strip(), gate_rate, freeze, role_scores) for name in strategies.split(",")]
    table = compare_pruning(
        place(loaded, device),
        tokenizer,
        learnt,
        measured,
        strategies=chosen,
        keep=numbers(keep),
        seeds=seeds,
        kinds=kinds_of(kinds),
        metric=metric,
        scored=scored,
        tune={**tune, "save_strategy": "no"},
        study=folder,
    )
    names = [f"{row.strategy}, {row.heads} heads{', retrained' if row.tuned else ''}" for row in table.itertuples()]
    shown = table.drop(columns=["strategy", "heads", "tuned", "seeds.sd"]).set_index(pd.Index(names, name="choice"))
    show_table(shown, f"{metric} on {held_out.name}, mean of {seeds} seeds")
    list_figures(draw(folder), study)


def remove_heads(
    model: Model,
    heads: Annotated[
        str, typer.Argument(help="Heads to remove: kind:layer:head, separated by commas, or TABLE:COLUMN of prune.")
    ],
    output: Annotated[Path, typer.Option(help="Folder for the smaller model and its tokenizer.")],
    groups: Annotated[
        Literal["equal", "whole", "expand"], typer.Option(help="Removal where heads share key-value heads.")
    ] = "equal",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another model in the folder.")] = False,
) -> None:
    """Remove heads from a model and save the smaller model; headroles.load loads it."""
    from headroles.models.heads import head_index
    from headroles.models.loading import check_no_study, load, save
    from headroles.pruning.removal import remove_heads as run
    from headroles.tables.files import check_writable

    check_no_study(output)
    check_writable(output, "folder")
    loaded, tokenizer = load(model)
    before = sum(parameter.numel() for parameter in loaded.parameters())
    heads_before = head_index(loaded)
    save(run(loaded, heads_of(heads), groups=groups), tokenizer, output, overwrite=overwrite)
    show_removed(heads_before, head_index(loaded))
    after = sum(parameter.numel() for parameter in loaded.parameters())
    say(f"written: {output}, {after:,} of {before:,} parameters")


def efficiency(
    model: Model,
    study: Folder = Path("study"),
    batches: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,4,16,64",
    length: Annotated[int, typer.Option(help="Tokens of an example.", min=1)] = 64,
    repeats: Annotated[int, typer.Option(help="Number of timed forward passes.", min=2)] = 7,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    device: Device = None,
) -> None:
    """Time a model with heads masked and with heads removed, the same number from each layer."""
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
    outdated = folder.claim("efficiency", sign(weights=revision(whole)))
    order = Random("layer").order(RankingContext(whole, tokenizer, Corpus("none", ()), among(whole, None), seed))
    sizes = [int(size) for size in batches.split(",")]
    table = run(whole, order, batches=sizes, length=length, repeats=repeats)
    folder.remove(outdated)
    save_table(table, folder.path("efficiency"))  # timed at every call: speeds depend on the machine and its load
    names = [f"{row.share:.0%} ablated, {row.way}, batch {row.batch}" for row in table.itertuples()]
    shown = table[["parameters", "speedup", "speedup.low", "speedup.high", "allowed"]].set_index(
        pd.Index(names, name="model")
    )
    show_table(shown, "speed over that of the whole model")
    list_figures(draw(folder), study)


def dynamics(
    training: Annotated[Path, typer.Argument(help="Folder of headroles train, with its checkpoints.")],
    corpus: Annotated[Path, typer.Argument(help="Corpus on which importance and roles are computed.")],
    target: Target = None,
    *,
    held_out: HeldOut,
    held_out_target: HeldOutTarget = None,
    metric: Metric = "loss",
    steps: Annotated[int, typer.Option(help="Number of steps in which all heads are ablated.", min=1)] = 10,
    study: Folder = Path("study"),
    limit: Annotated[int | None, typer.Option(help="Number of first held-out examples; by default all.", min=1)] = None,
    overwrite: Overwrite = False,
) -> None:
    """Ablate heads at every checkpoint of a training: when their ranking settles and when roles appear."""
    from headroles.data.readers import read
    from headroles.experiments.score_study import draw
    from headroles.experiments.training_dynamics import dynamics as run

    folder = study_of(study, overwrite=overwrite)
    scored, measured = read(corpus, target), read(held_out, held_out_target, limit=limit)
    _, order = run(training, scored, measured, study=folder, metric=metric, steps=steps)
    show_table(order.set_index("epoch"), "the ranking of heads, and roles, at each checkpoint")
    list_figures(draw(folder), study)


def weight_change(
    before: Annotated[str, typer.Argument(help="Model before fine-tuning, with all heads.")],
    after: Annotated[list[str], typer.Argument(help="Models fine-tuned from it, with several seeds.")],
    study: Folder = Path("study"),
    overwrite: Overwrite = False,
) -> None:
    """Measure how much the weights of each head changed in fine-tuning, and whether all changed alike."""
    from headroles.experiments.score_study import draw
    from headroles.models.loading import load, revision
    from headroles.pruning.weight_changes import alike
    from headroles.pruning.weight_changes import weight_change as run
    from headroles.tables.frame import sign
    from headroles.tables.io import save_table

    folder = study_of(study, overwrite=overwrite)
    start = load(before)[0]
    outdated = [folder.claim(f"compensation-{seed}", sign(before=revision(start))) for seed in range(len(after))]
    tables = [run(start, load(path)[0]) for path in after]
    for files in outdated:
        folder.remove(files)
    for seed, table in enumerate(tables):
        save_table(table, folder.path(f"compensation-{seed}"))
    if len(tables) > 2:
        uniformity = alike(tables)
        save_table(uniformity, folder.path("uniformity"))
        show_table(uniformity, "do all heads move alike? w 0: chance, 1: the same heads move most each time")
    list_figures(draw(folder), study)
