"""Reproduce the papers' artefacts from finished studies (without torch), from a model, or on toys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from headroles.papers.bench import Bench
from headroles.papers.claims import Paper, reproduce

if TYPE_CHECKING:
    from headroles.papers.workflow import Workflow
    from headroles.training.hf_trainer import TrainOptions

TOYS: dict[str, tuple[Paper, ...]] = {  # the papers of each toy
    "translation": ("voita2019", "michel2019"),
    "classifier": ("michel2019", "budhraja2020"),
}


class Reproduction(NamedTuple):
    """Verdicts of artefacts, as of `papers.claims.reproduce`, and the study that keeps them."""

    title: str
    study: Path
    paper: Paper | None
    rows: pd.DataFrame


def from_studies(
    folders: Sequence[Path],
    study: Path,
    paper: Paper | None = None,
    artefact: str | None = None,
    *,
    command: str = "",
    overwrite: bool = False,
) -> Reproduction:
    """Reproduce artefacts from the tables of studies, beside those of an untrained model where there are any."""
    bench = Bench(folders)
    if untrained := [folder / "untrained" for folder in folders if (folder / "untrained").is_dir()]:
        bench.untrained = Bench(untrained, shared=bench)
    return Reproduction(
        "", study, paper, reproduce(bench, study, paper, artefact, command=command, overwrite=overwrite)
    )


def workflow_of(
    study: Path,
    model: str,
    data: Path,
    *,
    limit: int | None,
    device: str | None,
    metric: str | None,
    gate_rate: float,
    tune: TrainOptions,
    scratch: TrainOptions,
    overwrite: bool,
) -> Workflow:
    """Load a model, as a classifier if the data have labels, into the workflow that computes its tables."""
    from headroles.models.loading import load, place
    from headroles.papers.preparation import material
    from headroles.papers.workflow import Workflow
    from headroles.training.trainer import load_classifier

    corpora = material(data, limit=limit)
    labelled = corpora.train[0].label is not None
    loaded, tokenizer = load_classifier(model, corpora.train) if labelled else load(model)
    return Workflow(
        study,
        place(loaded, device),
        tokenizer,
        corpora,
        metric=metric or "",
        gate_rate=gate_rate,
        tune=tune,
        scratch=scratch,
        overwrite=overwrite,
    )


def from_model(
    workflow: Workflow,
    paper: Paper | None = None,
    artefact: str | None = None,
    *,
    title: str = "",
    trains: bool = False,
    command: str = "",
    overwrite: bool = False,
) -> Reproduction:
    """Reproduce artefacts of a model, of which missing tables are computed, beside an untrained model."""
    study = workflow.folder
    bench = Bench([study], workflow)
    bench.untrained = Bench([study / "untrained"], workflow.untrained(trains=trains), shared=bench)
    rows = reproduce(bench, study, paper, artefact, command=command, overwrite=overwrite)
    return Reproduction(title, study, paper, rows)


def on_toys(
    study: Path, paper: Paper | None = None, artefact: str | None = None, *, command: str = ""
) -> Iterator[Reproduction]:
    """Yield verdicts on a toy translator and a toy classifier; raise RuntimeError for artefacts made on neither."""
    from headroles.papers.tiny import workflows

    made: list[pd.DataFrame] = []
    for name, workflow in workflows(study).items():
        for toy_paper in (known for known in TOYS[name] if paper in (None, known)):
            title = f"a toy {name.replace('translation', 'translator')}, {toy_paper}:"
            verdicts = from_model(workflow, toy_paper, artefact, title=title, trains=True, command=command)
            made.append(verdicts.rows)
            yield verdicts
    flags = pd.concat(made).groupby(["paper", "artefact"])["made"].any()
    if not flags.all():
        raise RuntimeError(f"not made on any toy: {', '.join(map(' '.join, flags.index[~flags]))}")
