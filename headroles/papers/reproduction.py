"""Reproduce the papers' artefacts from finished studies (without torch), from a model, or on toys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from headroles.papers import claims
from headroles.papers.bench import Bench
from headroles.papers.claims import Paper
from headroles.tables.study import Study

if TYPE_CHECKING:
    from headroles.papers.workflow import Workflow
    from headroles.training.hf_trainer import TrainOptions

SOURCES = "expected one of --from STUDY, --model MODEL with --data FOLDER, or --tiny"
TOYS: dict[str, tuple[Paper, ...]] = {  # the papers of each toy
    "translation": ("voita2019", "michel2019"),
    "classifier": ("michel2019", "budhraja2020"),
}


class Reproduction(NamedTuple):
    """Verdicts of artefacts, as of `papers.claims.reproduce`, and the study that keeps them."""

    title: str
    study: Path
    paper: Paper | None
    artefact: str | None
    rows: pd.DataFrame


def reproduce(
    paper: str | None = None,
    artefact: str | None = None,
    *,
    folders: Sequence[str | Path] = (),
    model: str | None = None,
    data: str | Path | None = None,
    tiny: bool = False,
    study: str | Path | None = None,
    metric: str | None = None,
    limit: int | None = None,
    rate: float = 2e-5,
    batch: int = 32,
    gate_rate: float = 0.1,
    scratch_epochs: int = 10,
    scratch_rate: float = 2e-3,
    overwrite: bool = False,
    device: str | None = None,
    command: str = "",
) -> Iterator[Reproduction]:
    """Reproduce the papers' figures, and judge their claims.

    The paper's numbers stand beside them. The tables are those of finished studies, computed for a model, or computed
    for toy models.

    Args:
        paper: Paper: voita2019, michel2019 or budhraja2020; by default all.
        artefact: Figure, table or claim of the paper, such as fig7; by default all.
        folders: Study with tables, in place of a model; repeatable.
        model: Hub id or folder of a model, to compute missing tables.
        data: Folder with train, dev, test, other, trees: .tsv, or .source.txt and .target.txt, .conllu.
        tiny: Reproduce on toy models, in a few minutes.
        study: Folder for the results; by default the first study with tables, or study.
        metric: Metric; by default bleu, or accuracy of a classifier.
        limit: Number of sentences to read from the start of each file; by default all.
        rate: Peak learning rate of the weights.
        batch: Examples of a step, on each process.
        gate_rate: Learning rate of gates.
        scratch_epochs: Number of epochs of trainings from scratch.
        scratch_rate: Learning rate of trainings from scratch.
        overwrite: Remove tables of another model or corpus from the folder.
        device: PyTorch device; by default a GPU if available.
        command: The command that is written beside each artefact.

    Returns:
        The verdicts, one entry per study and paper, as they are finished.

    Raises:
        ValueError: If there is not exactly one source of tables, or the paper or the artefact is unknown.
    """
    chosen, name = claims.paper_of(paper, artefact)
    sources = [option for option, value in {"--from": folders, "--model": model, "--tiny": tiny}.items() if value]
    if len(sources) != 1 or (model is None) != (data is None):
        got = " and ".join(sources) or "no study and no model"
        raise ValueError(f"nothing to reproduce {artefact or paper or 'the papers'} from: got {got}; {SOURCES}")
    places = [Path(folder) for folder in folders]
    kept = Study(study or (places[0] if places else "study"))
    kept.check_writable()
    if tiny:
        return on_toys(kept.folder, chosen, name, command=command)
    if model is None or data is None:
        return iter([from_studies(places, kept.folder, chosen, name, command=command, overwrite=overwrite)])
    workflow = workflow_of(
        kept.folder,
        model,
        Path(data),
        limit=limit,
        device=device,
        metric=metric,
        gate_rate=gate_rate,
        tune={"rate": rate, "batch": batch},
        scratch={"rate": scratch_rate, "batch": batch, "epochs": scratch_epochs},
        overwrite=overwrite,
    )
    return iter([from_model(workflow, chosen, name, command=command, overwrite=overwrite)])


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
        "",
        study,
        paper,
        artefact,
        claims.reproduce(bench, study, paper, artefact, command=command, overwrite=overwrite),
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
    from headroles.papers.workflow import Workflow, material
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
    rows = claims.reproduce(bench, study, paper, artefact, command=command, overwrite=overwrite)
    return Reproduction(title, study, paper, artefact, rows)


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
