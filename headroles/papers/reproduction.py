"""Reproduce the papers' artefacts from finished studies (without torch), or from a model, and judge their claims."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import pandas as pd

from headroles.papers.bench import Bench
from headroles.papers.verdicts import Missing, Reproduced
from headroles.plots import gallery
from headroles.tables.arguments import one_of
from headroles.tables.io import load_table, replacing, save_table
from headroles.tables.study import Study

if TYPE_CHECKING:
    from headroles.papers.workflow import Workflow
    from headroles.training.hf_trainer import TrainOptions

Paper = Literal["voita2019", "michel2019", "budhraja2020"]
PAPERS: tuple[Paper, ...] = get_args(Paper)
DOTS = 110  # an inch, of a picture: most stay below 100 kB
Make = Callable[[Bench], Reproduced]


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
    chosen, name = _paper_of(paper, artefact)
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
    return written(bench, kept.folder, chosen, name, command=command, overwrite=overwrite)


def _paper_of(paper: str | None, artefact: str | None) -> tuple[Paper | None, str | None]:
    """Return a paper and an artefact, also if the artefact is named in place of the paper."""
    known = next((name for name in PAPERS if name == paper), None)
    if known is not None and artefact is not None:
        one_of("artefact", artefact, artefacts(known))
    if known is not None or (paper is None and artefact is None):
        return known, artefact
    papers = [name for name in PAPERS if artefact is None and paper in artefacts(name)]
    if len(papers) > 1:
        raise ValueError(f"paper of {paper!r} must be one of {', '.join(papers)}, got none; try {papers[0]} {paper}")
    if not papers:
        one_of("paper", paper, PAPERS, ", or an artefact of one, such as voita2019 fig1a")
    return papers[0], paper


def _workflow(study: Path, model: str, data: Path, limit: int | None, device: str | None, **options: Any) -> Workflow:
    """Load a model, as a classifier if the data have labels, into the workflow that computes its tables."""
    from headroles.models.loading import load, place
    from headroles.papers.workflow import Workflow, material
    from headroles.training.trainer import load_classifier

    corpora = material(data, limit=limit)
    labelled = corpora.train[0].label is not None
    loaded, tokenizer = load_classifier(model, corpora.train) if labelled else load(model)
    return Workflow(study, place(loaded, device), tokenizer, corpora, **options)


def artefacts(paper: Paper) -> dict[str, Make]:
    """Return the functions that reproduce the artefacts of a paper, by name, in its order."""
    module = vars(import_module(f"headroles.papers.{one_of('paper', paper, PAPERS)}"))
    return {name: make for name, make in module.items() if f"{name}_claim" in module}


def written(
    bench: Bench,
    folder: str | Path,
    paper: Paper | None = None,
    artefact: str | None = None,
    *,
    command: str = "",
    overwrite: bool = False,
) -> pd.DataFrame:
    """Write artefacts into `folder`/papers/PAPER; return the table of `reproduce`.

    Each has its table as NAME.parquet; its picture, where the paper has one, as NAME.png; and as NAME.json the claim,
    its rule, its verdict and reason, and the tables it is from with their provenance. An artefact that cannot be made
    does not stop the others.
    """  # noqa: DOC201
    place, rows = Path(folder) / "papers", []
    if not overwrite:
        _check_same(bench, place)
    for name in PAPERS if paper is None else (paper,):
        for label, make in artefacts(name).items():
            if artefact in (None, label):
                rows.append({"paper": name, "artefact": label} | _made(bench, make, place / name / label, command))
    return pd.DataFrame(rows)


def _check_same(bench: Bench, place: Path) -> None:
    """Raise FileExistsError if a folder has artefacts of none of the studies of the bench."""
    studies = {folder.resolve().name for folder in bench.folders}
    for file in sorted(place.glob("*/*.json")):
        used = {name.partition("/")[0] for name in json.loads(file.read_text(encoding="utf-8"))["tables"]}
        if used and not used & studies:
            raise FileExistsError(
                f"{place} holds artefacts of other studies: {file.stem} is of {', '.join(sorted(used))}, these are of "
                f"{', '.join(sorted(studies))}; name another --study, or give --overwrite"
            )


def _made(bench: Bench, make: Make, place: Path, command: str) -> dict[str, object]:
    bench.used = []
    try:
        artefact = make(bench)
        axes = None if artefact.draw is None else artefact.draw()
    except (Missing, ValueError) as error:  # plots raise ValueError for tables that they cannot draw
        for suffix in (".parquet", ".png", ".json"):
            place.with_suffix(suffix).unlink(missing_ok=True)  # of an earlier run
        return {"made": False, "holds": None, "answer": "not made", "why": str(error)}
    verdict = artefact.verdict
    row = {"holds": verdict.holds, "answer": verdict.answer, "why": verdict.why}
    attrs = [load_table(path).attrs for path in bench.used]
    first = [[*table.get("signatures", {}).values(), table.get("recipe", "")][0] for table in attrs]
    signatures = list(dict.fromkeys(filter(None, first)))  # each once; of a table without any its cache key
    source, ours = str(artefact.table.attrs.get("source", "")), " AND ".join(signatures) or "computed from a formula"
    table = artefact.table.rename(columns=str).rename_axis(columns=None)
    table.attrs = {"signatures": {name: source if name.startswith("paper") else ours for name in map(str, table)}}
    save_table(table, place.with_suffix(".parquet"))
    if axes is not None:
        gallery.save(axes, place.with_suffix(".png"), dpi=DOTS)
    studies = [(path, next(filter(path.is_relative_to, bench.folders), path.parent)) for path in bench.used]
    facts = {
        "paper": place.parent.name,
        "artefact": place.name,
        "what": inspect.getdoc(make),
        "claim": artefact.claim.text,
        **row,
        "rule": artefact.claim.rule,
        "numbers": source,
        "tables": [f"{at.resolve().name}/{path.relative_to(at).as_posix()}" for path, at in studies],
        "signatures": signatures,
        "command": command,
        "headroles": version("headroles"),
    }
    with replacing(place.with_suffix(".json")) as draft:
        draft.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {"made": True, **row}
