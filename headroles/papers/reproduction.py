"""Reproduce the papers' artefacts from finished studies (without torch), or from a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from headroles.papers import claims
from headroles.papers.bench import Bench
from headroles.tables.study import Study

if TYPE_CHECKING:
    from headroles.papers.workflow import Workflow
    from headroles.training.hf_trainer import TrainOptions


def reproduce(
    paper: str | None = None,
    artefact: str | None = None,
    *,
    folders: Sequence[str | Path] = (),
    model: str | None = None,
    data: str | Path | None = None,
    study: str | Path | None = None,
    metric: str | None = None,
    limit: int | None = None,
    tune: TrainOptions | None = None,
    overwrite: bool = False,
    device: str | None = None,
    command: str = "",
) -> pd.DataFrame:
    """Reproduce the papers' figures, and judge their claims.

    The paper's numbers stand beside them. The tables are those of finished studies, or computed for a model.

    Args:
        paper: Paper: voita2019, michel2019 or budhraja2020; by default all.
        artefact: Figure, table or claim of the paper, such as fig7; by default all.
        folders: Study with tables, in place of a model; repeatable.
        model: Hub id or folder of a model, to compute missing tables.
        data: Folder with train, dev, test, other, trees: .tsv, or .source.txt and .target.txt, .conllu.
        study: Folder for the results; by default the first study with tables, or study.
        metric: Metric; by default bleu, or accuracy of a classifier.
        limit: Number of sentences to read from the start of each file; by default all.
        tune: Options of training after pruning, as of `hr.train`; by default one epoch.
        overwrite: Remove tables of another model or corpus from the folder.
        device: PyTorch device; by default a GPU if available.
        command: The command that is written beside each artefact.

    Returns:
        A row per artefact: `paper`, `artefact`, `made`, `holds`, `answer`, `why`.

    Raises:
        ValueError: If there is not exactly one source of tables, or the paper or the artefact is unknown.
    """
    chosen, name = claims.paper_of(paper, artefact)
    if bool(folders) == (model is not None) or (model is None) != (data is None):
        given = {"--from": folders, "--model": model, "--data": data}
        got = " and ".join(option for option, value in given.items() if value) or "none"
        raise ValueError(f"the source of tables must be --from STUDY, or --model MODEL with --data FOLDER, got {got}")
    kept = Study(study or next(iter(folders), "study"))
    kept.check_writable()
    if model is None or data is None:
        places = [Path(folder) for folder in folders]
        bench = Bench(places)
        if untrained := [folder / "untrained" for folder in places if (folder / "untrained").is_dir()]:
            bench.untrained = Bench(untrained)
    else:
        options = {"metric": metric or "", "tune": tune or {}, "overwrite": overwrite}
        workflow = _workflow(kept.folder, model, Path(data), limit, device, **options)
        bench, control = Bench([workflow.folder], workflow), workflow.untrained
        bench.untrained = Bench([control.folder], control)
    return claims.reproduce(bench, kept.folder, chosen, name, command=command, overwrite=overwrite)


def _workflow(study: Path, model: str, data: Path, limit: int | None, device: str | None, **options: Any) -> Workflow:
    """Load a model, as a classifier if the data have labels, into the workflow that computes its tables."""
    from headroles.models.loading import load, place
    from headroles.papers.workflow import Workflow, material
    from headroles.training.trainer import load_classifier

    corpora = material(data, limit=limit)
    labelled = corpora.train[0].label is not None
    loaded, tokenizer = load_classifier(model, corpora.train) if labelled else load(model)
    return Workflow(study, place(loaded, device), tokenizer, corpora, **options)
