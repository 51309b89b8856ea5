"""Tables that artefacts need: how each is found in a study, and how it is computed for a model (no torch)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd

from headroles.tables import frame
from headroles.tables.declared import quality
from headroles.tables.io import load_table, save_table

if TYPE_CHECKING:
    from headroles.data.corpus import Corpus
    from headroles.papers.workflow import Workflow

METRICS = ("bleu", "chrf", "accuracy", "matthews", "f1", "agreement", "perplexity", "loss")  # the papers' own first
Make = Callable[["Workflow"], list[Path]]
TOKENS = "-(?:zh|char|intl|none|(?:ja|ko)-mecab|spm|flores101|flores200|spBLEU-1K)"  # tokenisations of `bleu-zh` ...
METRIC = rf"(?P<metric>{'|'.join(METRICS)})(?:{TOKENS})?"


class Missing(LookupError):
    """An artefact cannot be made; the message names the missing table and the command that makes it."""


@dataclass(frozen=True)
class Need:
    """A table that artefacts need: its description, the command that makes it, its file name and content."""

    what: str
    command: str
    names: str  # pattern of file names without .parquet; a group "metric" puts the papers' metrics first
    make: Make  # computes its files, the foremost first; raises Missing if the model or material lacks what it takes
    _: KW_ONLY
    columns: tuple[str, ...] = ()  # patterns, each of which must match a column
    values: tuple[str, ...] = ()  # a column, and the values that it must have
    trains: bool = False  # whether it takes training


NEEDS: dict[str, Need] = {}


def relevance(run: Workflow) -> list[Path]:
    """Score the heads on the dev corpus."""
    return [run.score(run.study("relevance"), run.material.dev, ["confidence", "importance", "relevance"])]


NEEDS["relevance"] = Need(
    "scores with confidence and relevance",
    "headroles score MODEL CORPUS --scores confidence,relevance",
    r"(.*-)?heads",
    relevance,
    columns=("confidence", r"relevance\[[^ ]*\]\.size"),
)


def functions(run: Workflow) -> list[Path]:
    """Score the heads on the sentences with trees."""
    corpora = {"functions": trees(run), "functions-other": run.material.other_trees}
    return [
        run.score(run.study(name), corpus, reference=run.frequencies)
        for name, corpus in corpora.items()
        if corpus is not None
    ]


NEEDS["functions"] = Need(
    "scores with position, syntax and rarity",
    "headroles score MODEL CORPUS, on a corpus with trees",
    r"(.*-)?heads",
    functions,
    columns=(r"position\[-1\]", r"syntax\[.*\]\.baseline", "rarity"),
)


def single(run: Workflow) -> list[Path]:
    """Ablate each head on the test corpus, and on another domain."""
    files = []
    for name, corpus in (("ablation", run.material.test), ("ablation-other", run.material.other)):
        if corpus is not None:
            run.ablate(run.study(name), corpus)
            files.append(run.study(name).path(f"ablation-{run.metric}-head-zero"))
    return files


NEEDS["single"] = Need(
    "effects of ablating each head", "headroles ablate MODEL CORPUS", rf"ablation-{METRIC}-head-zero(-other)?", single
)


NEEDS["curves"] = Need(
    "curves of heads ablated cumulatively by importance",
    "headroles ablation-curve MODEL CORPUS --by importance",
    rf"curves-{METRIC}",
    lambda run: [_cumulative(run, None)],
    values=("order", "importance"),
)


NEEDS["kinds"] = Need(
    "curves of heads of each kind ablated cumulatively by importance",
    "headroles ablation-curve MODEL CORPUS --by importance --kind each",
    rf"curves-{METRIC}-each",
    lambda run: [_cumulative(run, "each")],
)


def _cumulative(run: Workflow, kind: Literal["each"] | None) -> Path:
    """Ablate heads by importance; of all kinds together also by their effects and at random."""
    from headroles.ablation.cumulative.curves import orders

    scores = frame.join(load_table(relevance(run)[0]), load_table(single(run)[0]))
    effect = f"{'-' if quality(run.metric).better > 0 else ''}ablation[{run.metric}]"
    columns = ["importance"] if kind else ["importance", effect]
    return run.curves(orders(scores, columns, kind=kind, seeds=0 if kind else 3), kind)


def _trainings(run: Workflow) -> list[Path]:
    """Compute the steps and epochs of retraining, of training from scratch, and before pruning (NaN: unknown)."""
    rows: list[dict[str, str | float]] = [{"what": "base", "steps": run.base, "epochs": math.nan}]
    for name, options in {"retrained": run.tune, "finetuned": run.tune, "scratch": run.scratch}.items():
        steps = math.ceil(len(run.material.train) / options.get("batch", 32)) * options["epochs"]
        rows.append({"what": name, "steps": steps, "epochs": float(options["epochs"])})
    table = frame.signed(pd.DataFrame(rows), frame.sign(corpus=run.material.train.name))
    return [save_table(table, run.study("pruning").path("trainings"))]


NEEDS["trainings"] = Need(
    "lengths of training of the compared models",
    "headroles reproduce voita2019 table2 --model MODEL --data FOLDER",
    "trainings",
    _trainings,
    columns=("what", "steps", "epochs"),
)


def trees(run: Workflow) -> Corpus:
    """Return the sentences with trees; raise Missing without any."""
    if run.material.trees is None:
        raise Missing("functions need sentences with trees; put trees.conllu into the folder of data")
    return run.material.trees


def only_translation(run: Workflow) -> None:
    """Raise Missing unless the model translates."""
    if not run.translation:
        raise Missing("the paper shows a translation model; this model is not one")
