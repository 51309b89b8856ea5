"""The command `reproduce`: the figures and tables of the papers, from saved tables, a model of one's own, or toys."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headroles.cli.ablate import Device, Overwrite
from headroles.cli.arguments import assignment, pairs_of, shares, study_of
from headroles.cli.console import list_figures, say, show_claims, show_rows, show_table

Paper = Literal["voita2019", "michel2019", "budhraja2020"]
TOYS: dict[str, tuple[Paper, ...]] = {  # what each toy is taken through
    "translation": ("voita2019", "michel2019"),
    "classifier": ("michel2019", "budhraja2020"),
}


def reproduce(
    paper: Annotated[Paper | None, typer.Argument(help="Which paper; by default all.")] = None,
    artefact: Annotated[str | None, typer.Argument(help="Its figure, table or claim, as fig7; by default all.")] = None,
    folders: Annotated[
        list[Path] | None, typer.Option("--from", help="Study whose tables are drawn, no model needed; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Hub id or folder of a model, to make what is missing.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with train, dev, test, other, trees: .tsv, or .source.txt and .target.txt, .conllu."),
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Toy models, in two minutes, in place of a model.")] = False,
    study: Annotated[
        Path | None, typer.Option(help="Folder for the results; by default the first of --from, or study.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Metric; by default bleu, or accuracy of a classifier.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first examples of each file.", min=1)] = None,
    rate: Annotated[float, typer.Option(help="Learning rate of weights when heads go.")] = 2e-5,
    batch: Annotated[int, typer.Option(help="Examples of a step.", min=1)] = 32,
    gate_rate: Annotated[float, typer.Option(help="Learning rate of gates.")] = 0.1,
    scratch_epochs: Annotated[int, typer.Option(help="Epochs of trainings from scratch.", min=1)] = 10,
    scratch_rate: Annotated[float, typer.Option(help="Their learning rate.")] = 2e-3,
    overwrite: Overwrite = False,
    device: Device = None,
) -> None:
    """Draw every figure and table of the papers: their numbers beside ours, and whether each claim holds here."""
    given = [name for name, value in (("--from", folders), ("--model", model), ("--tiny", tiny)) if value]
    if len(given) != 1 or (model is None) != (data is None):
        said = f"; got {' and '.join(given)}" if given else ""
        raise ValueError(f"expected one of --from STUDY, --model MODEL with --data FOLDER, or --tiny{said}")
    place = study or (folders[0] if folders else Path("study"))
    study_of(place)
    if tiny:
        _toys(place, paper, artefact)
    elif folders:
        _show(folders, None, place, paper, artefact, overwrite=overwrite)
    else:
        tune = {"rate": rate, "batch": batch}
        scratch = {"rate": scratch_rate, "batch": batch, "epochs": scratch_epochs}
        options = {"metric": metric, "gate_rate": gate_rate, "tune": tune, "scratch": scratch}
        options["overwrite"] = overwrite
        workshop = _workshop(place, str(model), data, limit, device, options)
        _show([place], workshop, place, paper, artefact, overwrite=overwrite)


def _workshop(place: Path, model: str, data: Any, limit: int | None, device: str | None, options: Any) -> Any:
    """What makes the tables of a model; one that has no head for classes gets one where the data have labels."""
    from headroles.experiments.papers.materials import material
    from headroles.experiments.papers.workflow import Workshop
    from headroles.models.loading import load
    from headroles.models.loading import place as put
    from headroles.training.trainer import load_classifier

    corpora = material(data, limit=limit)
    labelled = corpora.train[0].label is not None
    loaded, tokenizer = load_classifier(model, corpora.train) if labelled else load(model)
    return Workshop(place, put(loaded, device), tokenizer, corpora, **options)


def _bench(folders: list[Path], workshop: Any, *, trains: bool) -> Any:
    """The tables of a model, kept or made, and those of an untrained one beside them."""
    from headroles.experiments.papers.tables import Bench

    bench = Bench(folders, workshop and workshop.make)
    beneath = [folder / "untrained" for folder in folders if workshop or (folder / "untrained").is_dir()]
    if workshop:
        from headroles.experiments.papers.materials import control

        bench.untrained = Bench(beneath, control(workshop, trains=trains).make)
    elif beneath:
        bench.untrained = Bench(beneath)
        bench.untrained.shared = bench
    return bench


def _show(
    folders: list[Path],
    workshop: Any,
    place: Path,
    paper: Any,
    artefact: str | None,
    *,
    trains: bool = False,
    overwrite: bool = False,
) -> Any:
    from headroles.experiments.papers.running import reproduce as run
    from headroles.tables.io import load_table

    found = run(
        _bench(folders, workshop, trains=trains),
        place,
        paper,
        artefact,
        command=shlex.join(["headroles", *sys.argv[1:]]),
        overwrite=overwrite,
    )
    table = place / "papers" / str(paper) / f"{artefact}.parquet"
    if artefact is not None and table.is_file():
        show_rows(load_table(table), f"{paper} {artefact}")
    show_claims(found)
    say(f"written: {place / 'papers'}, {found['made'].sum()} of {len(found)} artefacts")
    return found


def _toys(place: Path, paper: Paper | None, artefact: str | None) -> None:
    """All artefacts, each on the toy that has what it needs. Raises RuntimeError where one could be made on neither."""
    import pandas as pd

    from headroles.experiments.papers.tiny import workshops

    made = []
    for name, workshop in workshops(place).items():
        for one in (one for one in TOYS[name] if paper in (None, one)):
            say(f"a toy {name.replace('translation', 'translator')}, {one}:")
            made.append(_show([place / name], workshop, place / name, one, artefact, trains=True))
    each = pd.concat(made).groupby(["paper", "artefact"])["made"].any()
    if not each.all():
        raise RuntimeError(f"not made on any toy: {', '.join(map(' '.join, each.index[~each]))}")


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
    from headroles.experiments.preparation import prepare as run

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
    batch: Annotated[int, typer.Option(help="Pairs of a step.", min=1)] = 512,
    rate: Annotated[float | None, typer.Option(help="Peak learning rate; by default 7e-4 for a width of 512.")] = None,
    tune_epochs: Annotated[int, typer.Option(help="Epochs of training for each size of pruning.", min=1)] = 1,
    tune_pairs: Annotated[int | None, typer.Option(help="Pairs of that training; by default all.", min=1)] = None,
    encoder_keep: Annotated[
        str, typer.Option(help="Shares of the encoder's heads that stay; commas between.")
    ] = "0.75,0.5,0.33,0.2,0.125,0.06",
    keep: Annotated[str, typer.Option(help="Shares of all heads that stay; commas between.")] = "0.75,0.5,0.375,0.25",
    n_resamples: Annotated[int, typer.Option("--resamples", help="Bootstrap resamples.", min=0)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of training.")] = 0,
    only: Annotated[str | None, typer.Option(help="Stages to run, such as train,score; by default all.")] = None,
) -> None:
    """Replicate the papers: train a Transformer from nothing, score, ablate, prune and relate; stopped, it goes on."""
    from headroles.experiments.preparation import prepared
    from headroles.experiments.replication import Recipe
    from headroles.experiments.replication import replicate as run

    sizes: dict[str, Any] = {"width": width, "layers": layers, "heads": heads, "dropout": dropout}
    training: dict[str, Any] = {
        "epochs": epochs,
        "batch": batch,
        "rate": rate,
        "n_resamples": n_resamples,
        "seed": seed,
    }
    pruning: dict[str, Any] = {"tune_epochs": tune_epochs, "tune_pairs": tune_pairs}
    pruning |= {"encoder_keep": shares(encoder_keep), "keep": shares(keep)}
    recipe = Recipe(**sizes, **training, **pruning)
    chosen = None if only is None else [name.strip() for name in only.split(",")]
    run(study, prepared(folder), recipe, weights=weights, only=chosen, told=say)
    list_figures(sorted(study.glob("*.png")), study)


def specialise(
    folder: Annotated[Path, typer.Argument(help="Folder of headroles prepare.")],
    output: Annotated[Path, typer.Option(help="Folder for the models and for unfinished training.")],
    arm: Annotated[Literal["A", "B", "C", "C-shuffled", "E"], typer.Option(help="How the encoder begins.")] = "C",
    seed: Annotated[int, typer.Option(help="Seed of the weights and of training.")] = 0,
    texts: Annotated[Path | None, typer.Option(help="More sentences for the masked language model.")] = None,
    probe: Annotated[list[Path] | None, typer.Option(help="CoNLL-U to score heads on in training; repeatable.")] = None,
    limit: Annotated[int, typer.Option(help="Sentences of each such file.", min=1)] = 300,
    size: Annotated[list[str] | None, typer.Option(help="A field of Recipe, as width=256; repeatable.")] = None,
    study: Annotated[Path | None, typer.Option(help="Folder for a copy of the table of heads.")] = None,
) -> None:
    """Train a translator whose encoder begins untrained, as a masked language model or pretrained; it resumes."""
    import pandas as pd

    from headroles.data.readers import read
    from headroles.experiments.preparation import prepared
    from headroles.experiments.specialists.arms import Recipe
    from headroles.experiments.specialists.arms import specialise as run
    from headroles.tables.io import save_table

    sizes: dict[str, Any] = {
        name: int(value) if value == int(value) else value for name, value in map(assignment, size or [])
    }
    data = prepared(folder)
    probed = [data.parsed[:limit], *(read(one, limit=limit) for one in probe or ())]
    more = None if texts is None else read(texts)
    table = run(output, data, arm, seed=seed, recipe=Recipe(**sizes), texts=more, probed=probed)
    if study is not None:
        save_table(table, study / f"probes-{arm}-{seed}.parquet")
    last = table[(table["rank"] == 0) & (table["phase"] == "translation") & (table["step"] == table["step"].iloc[-1])]
    rows = last.set_index(pd.Index(last["corpus"] + " " + last["score"], name="best head"))
    show_table(rows[["step", "layer", "head", "value", "baseline"]], f"arm {arm}, seed {seed}")
