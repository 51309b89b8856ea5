"""The main job in one study folder: score the heads of a model on a corpus, tell their roles, draw the figures."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from headroles import heads, role
from headroles.heads import KINDS
from headroles.pictures import save
from headroles.study import Study
from headroles.text import RELATIONS, Corpus

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headroles.scores import Measure, Relevance

DRAWN = (  # the files `draw` may write
    *("heatmap-*.png", "dependency-*.png", "roles-*.png", "offsets.png"),
    *("relevance-*.png", "conservation-*.png", "ablation-*.png", "curves*.png"),
    *("sizes-*.png", "survival-*.png", "functions-*.png", "gates-*.png"),
    *("compensation-*.png", "contest.png", "efficiency.png", "dynamics.png", "settling.png"),
)
BALANCED = 100  # sentences of the conservation report
MAPS = (  # columns worth a heatmap each, where a study has them
    "confidence",
    "position[best]",
    "rarity",
    "entropy",
    "distance",
    "sink[special]",
    "sink[first]",
    "alignment[monotone]",
    "alignment[diagonal]",
    "importance",
)


def measure(
    study: Study,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    scores: Iterable[str | Measure] | None = None,
    *,
    budget: int = 4096,
    resamples: int = 1000,
    seed: int = 0,
    reference: Corpus | None = None,
) -> pd.DataFrame:
    """The score table of a study: kept if it is there and made from the same model, corpus and options.

    Arguments and errors are those of `score`. Where the corpus has trees, the distances between heads and dependents
    are kept too, as the table `offsets`; for relevance its conservation report on the first sentences, as
    `conservation-RULES`.
    """
    from headroles import models
    from headroles import scores as room

    chosen = None if scores is None else room.named(scores)
    recipe = heads.sign(
        weights=models.revision(model),
        tokenizer=models.tokens(tokenizer),
        text=corpus.hash,
        scores="default" if chosen is None else ",".join(map(repr, chosen)),
        resamples=resamples,
        seed=seed,
        reference="self" if reference is None else reference.hash,
        headroles=version("headroles"),
    )
    options: dict[str, Any] = {"budget": budget, "resamples": resamples, "seed": seed, "reference": reference}

    def compute() -> pd.DataFrame:
        _check_writable(study.folder)
        return room.score(model, tokenizer, corpus, chosen, **options)

    table = study.keep("heads", recipe, compute)
    for one in (one for one in chosen or () if isinstance(one, room.Relevance)):
        _keep_conservation(study, recipe, one, model, tokenizer, corpus[:BALANCED], budget)
    if any(set(RELATIONS) & set(sentence.relations) for sentence in corpus):
        from headroles.corpus import offsets

        study.keep("offsets", heads.sign(text=corpus.hash, headroles=version("headroles")), lambda: offsets(corpus))
    else:
        study.path("offsets").unlink(missing_ok=True)  # of another corpus
    return table


def balances(study: Study) -> dict[str, dict[str, float]]:
    """The conservation report of each rule set a study has, in short: shares of inputs, biases, and the residue."""
    from headroles.lrp import totals

    names = [name for name in study.names() if name.startswith("conservation-")]
    return {name.removeprefix("conservation-"): totals(study.load(name)) for name in names}


def tell(study: Study, *, thresholds: dict[str, float] | None = None) -> pd.DataFrame:
    """The role table of a study, from its score table; saved as `roles`.

    Raises FileNotFoundError if the study has no score table.
    """
    if not study.has("heads"):
        raise FileNotFoundError(f"no score table in {study.folder}; make it with headroles score")
    table = role.roles(study.load("heads"), thresholds=thresholds)
    heads.save(table, study.path("roles"))
    return table


def draw(study: Study) -> list[Path]:
    """Draw every figure that the study's tables allow, as PNG beside them; returns the files.

    Figures of an earlier drawing that the tables no longer allow are removed. Raises FileNotFoundError if the study
    has no tables.
    """
    if not study.names():
        raise FileNotFoundError(f"no tables in {study.folder}; make them with headroles score")
    files = []
    for name, axes in _figures(study):
        files.append(save(axes, study.folder / f"{name}.png"))
    for old in {path for pattern in DRAWN for path in study.folder.glob(pattern)} - set(files):
        old.unlink(missing_ok=True)
    return files


def _check_writable(folder: Path) -> None:
    """Raise now what would otherwise be found out after the scoring."""
    place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise OSError(f"cannot write into study folder {folder}: {error.strerror}; name another") from error


def _keep_conservation(
    study: Study,
    recipe: str,
    score: Relevance,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    budget: int,
) -> None:
    from headroles.lrp import conservation

    options: dict[str, Any] = {"epsilon": score.epsilon, "objective": score.objective, "budget": budget}
    study.keep(
        f"conservation-{score.rules}", recipe, lambda: conservation(model, tokenizer, corpus, score.rules, **options)
    )


def _figures(study: Study) -> Iterator[tuple[str, Any]]:
    from headroles import plots

    if study.has("heads"):
        table = study.load("heads")
        for column in MAPS:
            if column in table and table[column].notna().any():
                yield _slug(f"heatmap {column}"), plots.heatmaps(table[column])[0]
        for column in map(str, table.filter(regex=r"^relevance\[[^ ]*\]\.size$")):
            for kind in _kinds(table[[column]]):
                yield _slug(f"{column.removesuffix('.size')} {kind}"), plots.relevance(table[column], kind=kind)
        for kind in _kinds(table.filter(regex=r"^syntax\[[^.]*$")):
            yield f"dependency-{kind}", plots.dependency(table, kind=kind)
    if study.has("roles"):
        told = study.load("roles")
        for kind in _kinds(told[role.names(told)].where(lambda held: held.astype(bool))):
            yield f"roles-{kind}", plots.roles(told, kind=kind)
    for name in study.names():
        if name.startswith("conservation-"):
            yield _slug(name), plots.conservation(study.load(name))
    for name in study.names():
        if name.startswith("ablation-"):
            effects = study.load(name)
            for kind in _kinds(effects):
                yield _slug(f"{name} {kind}"), plots.ablation(effects, kind=kind)
            if "-single-" in name:
                yield _slug(f"{name} histogram"), plots.histogram(effects)
    for name in (name for name in study.names() if name.partition("-")[0] == "curves"):
        yield _slug(name), plots.curves(study.load(name), label=_measured(study.load(name)))
    yield from _pruned(study)
    if study.has("offsets"):
        yield "offsets", plots.offsets(study.load("offsets"))[0]


def _pruned(study: Study) -> Iterator[tuple[str, Any]]:
    """The figures of pruning."""
    from headroles import plots

    for name in study.names():
        table, first = study.load(name), name.partition("-")[0]
        gone = table[(table.filter(regex=r"\]$") == 0).any(axis=1)] if first == "survival" else table[:0]
        kinds = list(table["kind"].unique()) if first == "functions" else _kinds(gone) if len(gone) else []
        if first == "sizes":
            yield _slug(name), plots.survival(table, label=_measured(table))
            yield _slug(f"{name} kinds"), plots.by_kind(table)
        for kind in kinds:
            drawing: Any = plots.by_layer if first == "survival" else plots.functions
            yield _slug(f"{name} {kind}"), drawing(table, kind=kind)
        if first == "gates":
            yield _slug(name), plots.gates(table)
        if first == "compensation":
            yield _slug(name), plots.heatmaps(table["moved[all]"], label="change of the weights, relative")[0]
        if name == "contest":
            yield name, plots.contest(table, study.load("contest-seeds"), label=_measured(table))[0]
        if name == "efficiency":
            yield name, plots.efficiency(table)
        if name == "dynamics-curves":
            yield "dynamics", plots.dynamics(table, label=_measured(table))
            yield "settling", plots.settling(study.load("dynamics-order"))[0]


def _measured(curves: pd.DataFrame) -> str:
    """What the curves are of, from their signature."""
    found = re.search(r"metric:(\w+)\(", heads.signature(curves, "value"))
    name = found.group(1).lower() if found else "metric"
    return {"agreement": "agreement with the intact model", "bleu": "BLEU", "chrf": "chrF"}.get(name, name)


def _kinds(table: pd.DataFrame) -> list[Any]:
    """The kinds for which a table has any value."""
    present = table.dropna(how="all").index.unique("kind")
    return [kind for kind in KINDS if kind in present]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9+]+", "-", text.lower()).strip("-")
