"""The command `reproduce`: the figures and tables of the papers, from saved tables, a model of one's own, or toys."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headroles.experiments import Device
from headroles.screen import say, show_claims, show_rows

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
    device: Device = None,
) -> None:
    """Draw every figure and table of the papers: their numbers beside ours, and whether each claim holds here."""
    given = [name for name, value in (("--from", folders), ("--model", model), ("--tiny", tiny)) if value]
    if len(given) != 1 or (model is None) != (data is None):
        said = f"; got {' and '.join(given)}" if given else ""
        raise ValueError(f"expected one of --from STUDY, --model MODEL with --data FOLDER, or --tiny{said}")
    place = study or (folders[0] if folders else Path("study"))
    if tiny:
        _toys(place, paper, artefact)
    elif folders:
        _show(folders, None, place, paper, artefact)
    else:
        tune = {"rate": rate, "batch": batch}
        scratch = {"rate": scratch_rate, "batch": batch, "epochs": scratch_epochs}
        options = {"metric": metric, "gate_rate": gate_rate, "tune": tune, "scratch": scratch}
        _show([place], _workshop(place, str(model), data, limit, device, options).make, place, paper, artefact)


def _workshop(place: Path, model: str, data: Any, limit: int | None, device: str | None, options: Any) -> Any:
    """What makes the tables of a model; one that has no head for classes gets one where the data have labels."""
    from headroles.models import load
    from headroles.models import place as put
    from headroles.papers.making import Workshop
    from headroles.papers.material import material
    from headroles.training import classifier

    corpora = material(data, limit=limit)
    labelled = corpora.train[0].label is not None
    loaded, tokenizer = classifier(model, corpora.train) if labelled else load(model)
    return Workshop(place, put(loaded, device), tokenizer, corpora, **options)


def _show(folders: list[Path], make: Any, place: Path, paper: Any, artefact: str | None) -> Any:
    from headroles.heads import load
    from headroles.papers.bench import Bench
    from headroles.papers.running import reproduce as run

    found = run(Bench(folders, make), place, paper, artefact, command=shlex.join(["headroles", *sys.argv[1:]]))
    table = place / "papers" / str(paper) / f"{artefact}.parquet"
    if artefact is not None and table.is_file():
        show_rows(load(table), f"{paper} {artefact}")
    show_claims(found)
    say(f"written: {place / 'papers'}, {found['made'].sum()} of {len(found)} artefacts")
    return found


def _toys(place: Path, paper: Paper | None, artefact: str | None) -> None:
    """All artefacts, each on the toy that has what it needs. Raises RuntimeError where one could be made on neither."""
    import pandas as pd

    from headroles.papers.tiny import workshops

    made = []
    for name, workshop in workshops(place).items():
        for one in (one for one in TOYS[name] if paper in (None, one)):
            say(f"a toy {name.replace('translation', 'translator')}, {one}:")
            made.append(_show([place / name], workshop.make, place / name, one, artefact))
    each = pd.concat(made).groupby(["paper", "artefact"])["made"].any()
    if not each.all():
        raise RuntimeError(f"not made on any toy: {', '.join(map(' '.join, each.index[~each]))}")
