"""Registry of scores: every class by its name, and instances for names."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from headroles.scores.base import Measure, Score, Weights


def list_scores() -> dict[str, type[Measure]]:
    """Return all score classes by name.

    Your own subclasses of `Score` and `GradientScore` are included, except where a built-in score has the same name.

    Returns:
        Classes by name, in alphabetical order.
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


def named(scores: str | Measure | Iterable[str | Measure], weights: Weights = "attention") -> list[Measure]:
    """Return score instances for names and instances.

    Args:
        scores: one name or instance, or several of either.
        weights: "norm" for attention scores by norms; "attention" leaves instances as they are.

    Returns:
        The instances in the order given; a name stands for its class with default options.

    Raises:
        ValueError: if a name is unknown, a label is repeated, no score is given, or weights are given for none.
    """
    chosen: list[Measure] = []
    known = list_scores()
    for item in [scores] if isinstance(scores, str | Measure) else scores:
        if isinstance(item, str) and item not in known:
            raise ValueError(f"unknown score {item!r}; known: {', '.join(known)}")
        if not isinstance(item, str | Measure):
            raise ValueError(f"unknown score: got {item!r}; expected a name or an instance such as Position()")
        new = known[item]() if isinstance(item, str) else item
        new = replace(new, weights=weights) if isinstance(new, Score) and weights != "attention" else new
        if any(new.label == score.label for score in chosen):
            raise ValueError(f"duplicate score {new.label!r}; expected each score once")
        chosen.append(new)
    if not chosen:
        raise ValueError(f"no score given; known: {', '.join(known)}")
    if weights != "attention" and not any(isinstance(score, Score) for score in chosen):
        raise ValueError(
            f"no score has weights: got weights={weights!r} with {', '.join(score.label for score in chosen)}; "
            f"expected an attention score such as 'confidence'"
        )
    return chosen
