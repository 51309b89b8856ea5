"""The commands that reproduce the papers: their figures and tables, and replications from scratch."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headroles.cli.ablate import Device, Overwrite
from headroles.cli.arguments import assignment, pairs_of, shares, study_of
from headroles.cli.console import list_figures, say, show_claims, show_rows, show_table

if TYPE_CHECKING:
    import pandas as pd

    from headroles.experiments.papers.tables import Bench
    from headroles.experiments.workflow import Workflow

Paper = Literal["voita2019", "michel2019", "budhraja2020"]
TOYS: dict[str, tuple[Paper, ...]] = {  # the papers of each toy
    "translation": ("voita2019", "michel2019"),
    "classifier": ("michel2019", "budhraja2020"),
}


def reproduce(
    paper: Annotated[Paper | None, typer.Argument(help="Paper; by default all.")] = None,
    artefact: Annotated[
        str | None, typer.Argument(help="Figure, table or claim of the paper, such as fig7; by default all.")
    ] = None,
    folders: Annotated[
        list[Path] | None, typer.Option("--from", help="Study with tables, in place of a model; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Hub id or folder of a model, to compute missing tables.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with train, dev, test, other, trees: .tsv, or .source.txt and .target.txt, .conllu."),
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Reproduce on toy models, in a few minutes.")] = False,
    study: Annotated[
        Path | None, typer.Option(help="Folder for the results; by default the first of --from, or study.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Metric; by default bleu, or accuracy of a classifier.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="Number of first examples to read of each file; by default all.", min=1)
    ] = None,
    rate: Annotated[float, typer.Option(help="Learning rate of weights in pruning.")] = 2e-5,
    batch: Annotated[int, typer.Option(help="Examples of a step.", min=1)] = 32,
    gate_rate: Annotated[float, typer.Option(help="Learning rate of gates.")] = 0.1,
    scratch_epochs: Annotated[int, typer.Option(help="Epochs of trainings from scratch.", min=1)] = 10,
    scratch_rate: Annotated[float, typer.Option(help="Learning rate of trainings from scratch.")] = 2e-3,
    overwrite: Overwrite = False,
    device: Device = None,
) -> None:
    """Reproduce the figures and tables of the papers, with their numbers, and judge whether each claim holds."""
    sources = [name for name, value in (("--from", folders), ("--model", model), ("--tiny", tiny)) if value]
    if len(sources) != 1 or (model is None) != (data is None):
        got = f"; got {' and '.join(sources)}" if sources else ""
        raise ValueError(f"expected one of --from STUDY, --model MODEL with --data FOLDER, or --tiny{got}")
    place = study or (folders[0] if folders else Path("study"))
    study_of(place)
    if tiny:
        _toys(place, paper, artefact)
    elif folders:
        _show(folders, None, place, paper, artefact, overwrite=overwrite)
    else:
        from headroles.experiments.preparation import material
        from headroles.experiments.workflow import Training, Workflow
        from headroles.models.loading import load
        from headroles.models.loading import place as put
        from headroles.training.trainer import load_classifier

        corpora = material(str(data), limit=limit)
        labelled = corpora.train[0].label is not None  # a classifier
        loaded, tokenizer = load_classifier(str(model), corpora.train) if labelled else load(str(model))
        workflow = Workflow(
            place,
            put(loaded, device),
            tokenizer,
            corpora,
            metric=metric or "",
            gate_rate=gate_rate,
            tune=Training(rate=rate, batch=batch),
            scratch=Training(rate=scratch_rate, batch=batch, epochs=scratch_epochs),
            overwrite=overwrite,
        )
        _show([place], workflow, place, paper, artefact, overwrite=overwrite)


def _bench(folders: list[Path], workflow: Workflow | None, *, trains: bool) -> Bench:
    """Return the bench of a model, with that of an untrained model beside it."""
    from headroles.experiments.papers.tables import Bench

    bench = Bench(folders, workflow)
    untrained = [folder / "untrained" for folder in folders if workflow or (folder / "untrained").is_dir()]
    if untrained:
        control = workflow and workflow.untrained(trains=trains)
        bench.untrained = Bench(untrained, control, shared=bench)
    return bench


def _show(
    folders: list[Path],
    workflow: Workflow | None,
    place: Path,
    paper: Paper | None,
    artefact: str | None,
    *,
    trains: bool = False,
    overwrite: bool = False,
) -> pd.DataFrame:
    """Reproduce artefacts and print them."""
    from headroles.experiments.papers.running import reproduce as run
    from headroles.tables.io import load_table

    rows = run(
        _bench(folders, workflow, trains=trains),
        place,
        paper,
        artefact,
        command=shlex.join(["headroles", *sys.argv[1:]]),
        overwrite=overwrite,
    )
    table = place / "papers" / str(paper) / f"{artefact}.parquet"
    if artefact is not None and table.is_file():
        show_rows(load_table(table), f"{paper} {artefact}")
    show_claims(rows)
    say(f"written: {place / 'papers'}, {rows['made'].sum()} of {len(rows)} artefacts")
    return rows


def _toys(place: Path, paper: Paper | None, artefact: str | None) -> None:
    """Reproduce each artefact on the toys; raise RuntimeError if one could be made on neither."""
    import pandas as pd

    from headroles.experiments.papers.tiny import workflows

    rows = []
    for name, workflow in workflows(place).items():
        for toy_paper in (known for known in TOYS[name] if paper in (None, known)):
            say(f"a toy {name.replace('translation', 'translator')}, {toy_paper}:")
            rows.append(_show([place / name], workflow, place / name, toy_paper, artefact, trains=True))
    flags = pd.concat(rows).groupby(["paper", "artefact"])["made"].any()
    if not flags.all():
        raise RuntimeError(f"not made on any toy: {', '.join(map(' '.join, flags.index[~flags]))}")


Pairs = Annotated[list[str], typer.Argument(help="Sentence pairs: a table of two columns, or SOURCE,TARGET; .gz too.")]


def prepare(
    pairs: Pairs,
    output: Annotated[Path, typer.Option(help="New folder for the parts and the tokenizer.")],
    other: Annotated[str | None, typer.Option(help="Test pairs of another domain.")] = None,
    parsed: Annotated[
        str | None,
        typer.Option(help="CONLLU,TARGET on which roles are assigned; by default drawn from the pairs and parsed."),
    ] = None,
    held_out: Annotated[
        int, typer.Option(help="Number of sentences each of dev and test, and at most of --other.", min=1)
    ] = 1000,
    trees: Annotated[int, typer.Option(help="Number of sentences drawn to be parsed.", min=1)] = 1000,
    limit: Annotated[int | None, typer.Option(help="Largest number of training pairs; by default all.", min=1)] = None,
    pieces: Annotated[int, typer.Option(help="Pieces of the tokenizer, of both languages.", min=100)] = 8000,
    longest: Annotated[int, typer.Option(help="Largest number of words of a sentence.", min=1)] = 50,
    language: Annotated[str, typer.Option(help="Stanza's code of the source language.")] = "en",
    models: Annotated[Path | None, typer.Option(help="Folder of Stanza models; by default Stanza's own.")] = None,
    download: Annotated[
        Literal["missing", "never"] | None, typer.Option(help="Whether to download missing Stanza models.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
) -> None:
    """Clean and split sentence pairs, parse a part, and train a tokenizer, for headroles replicate."""
    from headroles.experiments.preparation import prepare as run

    further, treed = (None if text is None else pairs_of(text) for text in (other, parsed))
    counts = run(
        output,
        [pairs_of(text) for text in pairs],
        further,
        parsed=treed,
        held_out=held_out,
        trees=trees,
        limit=limit,
        pieces=pieces,
        longest=longest,
        language=language,
        models=models,
        download=download,
        seed=seed,
    )
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
    epochs: Annotated[int, typer.Option(help="Number of epochs.", min=1)] = 20,
    batch: Annotated[int, typer.Option(help="Pairs of a step.", min=1)] = 512,
    rate: Annotated[float | None, typer.Option(help="Peak learning rate; by default 7e-4 for a width of 512.")] = None,
    tune_epochs: Annotated[int, typer.Option(help="Epochs of training for each size of pruning.", min=1)] = 1,
    tune_pairs: Annotated[
        int | None, typer.Option(help="Number of pairs of that training; by default all.", min=1)
    ] = None,
    encoder_keep: Annotated[
        str, typer.Option(help="Shares of the encoder's heads to keep, separated by commas.")
    ] = "0.75,0.5,0.33,0.2,0.125,0.06",
    keep: Annotated[
        str, typer.Option(help="Shares of all heads to keep, separated by commas.")
    ] = "0.75,0.5,0.375,0.25",
    n_resamples: Annotated[int, typer.Option("--resamples", help="Number of bootstrap resamples.", min=0)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of training.")] = 0,
    only: Annotated[str | None, typer.Option(help="Stages to run, such as train,score; by default all.")] = None,
) -> None:
    """Replicate the papers: train a Transformer from scratch, score, ablate, prune and relate; resumes if stopped."""
    from headroles.experiments.preparation import prepared
    from headroles.experiments.replication import Recipe
    from headroles.experiments.replication import replicate as run

    recipe = Recipe(
        width=width,
        layers=layers,
        heads=heads,
        dropout=dropout,
        epochs=epochs,
        batch=batch,
        rate=rate,
        tune_epochs=tune_epochs,
        tune_pairs=tune_pairs,
        encoder_keep=shares(encoder_keep),
        keep=shares(keep),
        n_resamples=n_resamples,
        seed=seed,
    )
    chosen = None if only is None else [name.strip() for name in only.split(",")]
    run(study, prepared(folder), recipe, weights=weights, only=chosen, report=say)
    list_figures(sorted(study.glob("*.png")), study)


def specialise(
    folder: Annotated[Path, typer.Argument(help="Folder of headroles prepare.")],
    output: Annotated[Path, typer.Option(help="Folder for the models and for unfinished training.")],
    arm: Annotated[
        Literal["A", "B", "C", "C-shuffled", "E"],
        typer.Option(
            help="Initial encoder: A and B untrained, C and C-shuffled a masked language model, E pretrained."
        ),
    ] = "C",
    seed: Annotated[int, typer.Option(help="Seed of the weights and of training.")] = 0,
    texts: Annotated[Path | None, typer.Option(help="Text with more sentences for the masked language model.")] = None,
    probe: Annotated[
        list[Path] | None, typer.Option(help="CoNLL-U on which heads are scored during training; repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Number of first sentences of each such file.", min=1)] = 300,
    size: Annotated[list[str] | None, typer.Option(help="Field of Recipe, such as width=256; repeatable.")] = None,
    study: Annotated[Path | None, typer.Option(help="Folder for a copy of the table of heads.")] = None,
) -> None:
    """Train a translator from an untrained, masked-language-model or pretrained encoder; resumes if stopped."""
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
    probed = [data.parsed[:limit], *(read(path, limit=limit) for path in probe or ())]
    more = None if texts is None else read(texts)
    table = run(output, data, arm, seed=seed, recipe=Recipe(**sizes), texts=more, probed=probed)
    if study is not None:
        save_table(table, study / f"probes-{arm}-{seed}.parquet")
    last = table[(table["rank"] == 0) & (table["phase"] == "translation") & (table["step"] == table["step"].iloc[-1])]
    rows = last.set_index(pd.Index(last["corpus"] + " " + last["score"], name="best head"))
    show_table(rows[["step", "layer", "head", "value", "baseline"]], f"arm {arm}, seed {seed}")
