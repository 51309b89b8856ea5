"""Registry of scores: every class by its name, and instances for names."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import cast

import pandas as pd

from headroles.models.batching import Encoded
from headroles.models.sites import Site
from headroles.patterns.base import Pattern
from headroles.scores.accumulator import missing
from headroles.scores.attention_scores import Measured, Resting
from headroles.scores.base import Measure, Score, Weights
from headroles.tables.arguments import one_of, several
from headroles.tables.columns import Column
from headroles.tables.frame import KINDS, Kind

DEFAULT = ("confidence", "position", "syntax", "rarity", "entropy", "sink", "distance", "alignment")
LINKED = ("links",)  # added where words of a corpus are linked
REPEATED = ("induction", "duplicate")  # measured on random tokens, each sequence twice in a row
NEEDED = {  # of a corpus -> what it is called, and what to try without it
    "trees": ("dependency trees", "read CoNLL-U, or make trees with headroles.parse"),
    "links": ("word links", "try headroles.read(source, target, links=...), for a language model .joined()"),
}


def list_scores() -> dict[str, type[Measure]]:
    """Return all score classes by name, in alphabetical order.

    Your own subclasses of `Score` and `GradientScore` are included, except where a built-in score has the same name.
    """
    package = _import_scores()
    classes = [cls for base in Measure.__subclasses__() for cls in base.__subclasses__()]
    classes.sort(key=lambda cls: cls.__module__.startswith(f"{package}."))  # the last of a name wins
    return dict(sorted({cls.name(): cls for cls in classes}.items()))


@cache
def _import_scores() -> str:
    """Import all modules of this package, and return its name."""
    import headroles.scores as package

    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return package.__name__


def named(
    scores: str | Measure | Pattern | Iterable[str | Measure | Pattern],
    weights: Weights = "attention",
    *,
    without_sink: bool = False,
) -> list[Measure]:
    """Return score instances for names and instances, in the same order.

    Args:
        scores: one name, instance or pattern, or several of these.
        weights: "norm" for attention scores by norms; "attention" leaves instances as they are.
        without_sink: whether to add all attention scores without the sink, and `Resting`.

    Raises:
        ValueError: if a name is unknown, a label is repeated, no score is given, or weights or `without_sink` are given
            for none.
    """
    chosen: list[Measure] = []
    known = list_scores()
    for given in several(cast(Iterable[str | Measure | Pattern], scores)):
        item = known[one_of("score", given, known)]() if isinstance(given, str) else given
        item = Measured(item) if isinstance(item, Pattern) else item
        if not isinstance(item, Measure):
            raise ValueError(f"score must be a name or an instance such as Position(), got {item!r}")
        item = replace(item, weights=weights) if isinstance(item, Score) and weights != "attention" else item
        if any(item.label == score.label for score in chosen):
            raise ValueError(f"scores must be different, got {item.label!r} twice")
        chosen.append(item)
    of_attention = [score for score in chosen if isinstance(score, Score)]
    left = [score for score in of_attention if not score.of_sink]
    if not chosen or (weights != "attention" and not of_attention) or (without_sink and not left):
        raise ValueError(
            f"scores must have an attention score such as 'confidence' for weights={weights!r} and "
            f"without_sink={without_sink}, got {', '.join(score.label for score in chosen) or 'none'}"
        )
    return [*chosen, *_without_sink(chosen, left)] if without_sink else chosen


def _without_sink(chosen: list[Measure], scores: list[Score]) -> list[Measure]:
    """Return `scores` without the sink, and `Resting`, except those already chosen."""
    twins = [replace(score, weights="nosink") for score in scores]
    labels = {score.label for score in chosen}
    return [score for score in (Resting(least=twins[0].least), *twins) if score.label not in labels]


def left_out(table: pd.DataFrame, scores: Measure | Iterable[str | Measure] | None = None) -> dict[str, str]:
    """Return which scores a table lacks, or has no numbers of, and why.

    Args:
        table: score table, as of `score`.
        scores: the scores that it was made for; default: `DEFAULT`.

    Returns:
        Name of a score, or "NAME of KINDS heads is NaN" -> the reason.
    """
    chosen = named(DEFAULT if scores is None else scores)
    kinds: set[Kind] = {kind for kind in KINDS if kind in table.index.get_level_values("kind")}
    reasons: dict[str, str] = {}
    for score in chosen:
        if not any(Column.parse(column).name == score.name() for column in table):
            lacking = [
                f"the corpus has no {what}; {advice}" for need, (what, advice) in NEEDED.items() if need in score.needs
            ]
            misfit = _misfit(score, kinds)
            reasons[score.name()] = f"it {misfit}" if misfit else next(iter(lacking), "it was not measured")
    return reasons | missing(table, chosen)


def available(
    scores: Measure | Iterable[str | Measure] | None,
    sites: list[Site],
    encoded: Encoded,
    weights: Weights,
    *,
    without_sink: bool = False,
) -> list[Measure]:
    """Return the given scores, by default all that the model and the corpus allow."""
    if scores is not None:
        chosen = named(scores)
        for fault in filter(None, (_fault(score, sites, encoded) for score in chosen)):
            raise ValueError(fault)
        return chosen
    default = named(DEFAULT + LINKED * encoded.linked, weights, without_sink=without_sink)
    return [score for score in default if not _fault(score, sites, encoded)]


def _fault(score: Measure, sites: list[Site], encoded: Encoded) -> str | None:
    """Return why a score cannot be computed; None if it can."""
    kinds: set[Kind] = {site.kind for site in sites if site.heads}
    if misfit := _misfit(score, kinds):
        return f"score {score.name()!r} {misfit}"
    measured = kinds & set(score.kinds)
    for need, (what, advice) in NEEDED.items():
        if need in score.needs and not measured & kinds_with(need, encoded):
            where = f"corpus {encoded.corpus.name!r} for {' or '.join(sorted(measured))} heads"
            return f"score {score.name()!r} needs {what}, got none in {where}; {advice}"
    return None


def _misfit(score: Measure, kinds: set[Kind]) -> str | None:
    """Return why a score is not for these kinds of heads; None if it is."""
    if kinds & set(score.kinds):
        return None
    return f"is for {' or '.join(score.kinds)} heads, and the model has only {' and '.join(sorted(kinds))} heads"


def kinds_with(need: str, encoded: Encoded) -> set[Kind]:
    """Return the kinds of heads for which the corpus has what a score or a pattern needs."""
    if need == "links":
        return {"dec-self" if encoded.target is None else "cross"} if encoded.linked else set()
    kinds: set[Kind] = set()
    if any(sentence.sentence.has_tree for sentence in encoded.source):
        kinds |= {"enc-self"} if encoded.target is not None or encoded.greedy else {"enc-self", "dec-self"}
    if any(sentence.sentence.has_tree for sentence in encoded.target or ()):
        kinds |= {"dec-self"}
    return kinds
