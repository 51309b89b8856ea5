"""The commands that reproduce the papers: their figures and tables, and replications from scratch."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import headroles as hr
from headroles.cli import options
from headroles.cli.arguments import names, numbers, pairs_of, study_of
from headroles.cli.console import list_figures, say, show_claims, show_rows, show_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headroles.papers.reproduction import Reproduction

SOURCES = "expected one of --from STUDY, --model MODEL with --data FOLDER, or --tiny"


def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="Paper: voita2019, michel2019 or budhraja2020; by default all.")
    ] = None,
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
    limit: options.Limit = None,
    rate: options.Rate = 2e-5,
    batch: options.Batch = 32,
    gate_rate: Annotated[float, typer.Option(help="Learning rate of gates.")] = 0.1,
    scratch_epochs: Annotated[int, typer.Option(help="Epochs of trainings from scratch.", min=1)] = 10,
    scratch_rate: Annotated[float, typer.Option(help="Learning rate of trainings from scratch.")] = 2e-3,
    overwrite: options.Overwrite = False,
    device: options.Device = None,
) -> None:
    """Reproduce the figures and tables of the papers, with their numbers, and judge whether each claim holds."""
    from headroles.papers import reproduction
    from headroles.papers.claims import paper_of

    source, name = paper_of(paper, artefact)
    sources = [option for option, value in {"--from": folders, "--model": model, "--tiny": tiny}.items() if value]
    if len(sources) != 1 or (model is None) != (data is None):
        got = " and ".join(sources) or "no study and no model"
        raise ValueError(f"nothing to reproduce {artefact or paper or 'the papers'} from: got {got}; {SOURCES}")
    place = study_of(study or (folders[0] if folders else Path("study"))).folder
    command = shlex.join(["headroles", *sys.argv[1:]])
    verdicts: Iterable[Reproduction] = ()
    if tiny:
        verdicts = reproduction.on_toys(place, source, name, command=command)
    elif folders:
        verdicts = [reproduction.from_studies(folders, place, source, name, command=command, overwrite=overwrite)]
    elif model and data:
        workflow = reproduction.workflow_of(
            place,
            model,
            data,
            limit=limit,
            device=device,
            metric=metric,
            gate_rate=gate_rate,
            tune={"rate": rate, "batch": batch},
            scratch={"rate": scratch_rate, "batch": batch, "epochs": scratch_epochs},
            overwrite=overwrite,
        )
        verdicts = [reproduction.from_model(workflow, source, name, command=command, overwrite=overwrite)]
    _show_all(verdicts, name)


def _show_all(several: Iterable[Reproduction], artefact: str | None) -> None:
    """Print verdicts, and the table of a single artefact; raise RuntimeError, with the reasons, if none was made."""
    reasons: dict[str, None] = {}
    made = False
    for title, study, paper, rows in several:
        if title:
            say(title)
        table = study / "papers" / str(paper) / f"{artefact}.parquet"
        if artefact is not None and table.is_file():
            show_rows(hr.load_table(table), f"{paper} {artefact}")
        show_claims(rows)
        say(f"written: {study / 'papers'}, {rows['made'].sum()} of {len(rows)} artefacts")
        made = made or bool(rows["made"].any())
        reasons |= {f"{row.artefact} of {row.paper}: {row.why}": None for row in rows.itertuples()}
    if not made:
        raise RuntimeError(f"nothing was made: {'; '.join(reasons)}")


def prepare(
    pairs: Annotated[
        list[str], typer.Argument(help="Sentence pairs: a table of two columns, or SOURCE,TARGET; .gz too.")
    ],
    output: Annotated[Path, typer.Option(help="New folder for the parts and the tokenizer.")],
    other: Annotated[str | None, typer.Option(help="Test pairs of another domain.")] = None,
    parsed: Annotated[
        str | None,
        typer.Option(help="CONLLU,TARGET on which roles are assigned; by default drawn from the pairs and parsed."),
    ] = None,
    held_out: Annotated[
        int, typer.Option(help="Number of sentences of dev, of test, and at most of --other.", min=1)
    ] = 1000,
    trees: Annotated[int, typer.Option(help="Number of sentences drawn to be parsed.", min=1)] = 1000,
    limit: Annotated[int | None, typer.Option(help="Largest number of training pairs; by default all.", min=1)] = None,
    pieces: Annotated[int, typer.Option(help="Pieces of the tokenizer, of both languages.", min=100)] = 8000,
    longest: Annotated[int, typer.Option(help="Largest number of words of a sentence.", min=1)] = 50,
    language: options.Language = "en",
    models: options.StanzaModels = None,
    download: options.Download = None,
    seed: options.Seed = 0,
) -> None:
    """Clean and split sentence pairs, parse a part, and train a tokenizer, for headroles replicate."""
    further, treed = (None if text is None else pairs_of(text) for text in (other, parsed))
    counts = hr.papers.prepare(
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
    folder: options.Prepared,
    study: options.Study = Path("study"),
    weights: Annotated[
        Path | None, typer.Option(help="Folder for models and unfinished work; by default STUDY-weights.")
    ] = None,
    width: Annotated[int, typer.Option(help="Width of the model.", min=1)] = 512,
    layers: Annotated[int, typer.Option(help="Layers of the encoder, and of the decoder.", min=1)] = 6,
    heads: Annotated[int, typer.Option(help="Heads of each attention.", min=1)] = 8,
    dropout: Annotated[float, typer.Option(help="Dropout.", min=0, max=1)] = 0.1,
    epochs: options.Epochs = 20,
    batch: options.Batch = 512,
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
    n_resamples: options.Resamples = 1000,
    seed: options.Seed = 0,
    only: Annotated[str | None, typer.Option(help="Stages to run, such as train,score; by default all.")] = None,
) -> None:
    """Replicate the papers: train a Transformer from scratch, score, ablate, prune and relate; resumes if stopped."""
    from headroles.papers.replication import Recipe

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
        encoder_keep=tuple(map(float, numbers(encoder_keep))),
        keep=tuple(map(float, numbers(keep))),
        n_resamples=n_resamples,
        seed=seed,
    )
    data = hr.papers.prepared(folder)
    hr.papers.replicate(study, data, recipe, weights=weights, only=names(only), report=say)
    list_figures(sorted(study.glob("*.png")), study)
