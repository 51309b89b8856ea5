"""Declarations of scores, metrics, roles and rankings: direction, name, unit, colour (no torch).

A class of the user's own declares them by class attributes. The signatures of its columns carry them, so that figures,
reports and relations of a stored table show them as well. Those of the package's own metrics and rankings stand here.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import pandas as pd

from headroles.tables.columns import Column
from headroles.tables.frame import fields, sign

What = Literal["metric", "score", "role", "ranking"]
DECLARES: dict[What, tuple[str, ...]] = {
    "metric": ("better", "title", "unit"),
    "score": ("title", "about", "matters"),
    "role": ("about", "short", "hue"),
    "ranking": ("title",),
}


class Quality(NamedTuple):
    """Direction, name and unit of a metric."""

    better: int  # 1 if larger values are better, -1 if smaller ones are, 0 if not known
    title: str
    unit: str = ""

    def __str__(self) -> str:
        """Return the name with its unit: BLEU, loss (nats)."""
        return self.title + (f" ({self.unit})" if self.unit else "")


METRICS = {
    "loss": Quality(-1, "loss", "nats"),
    "perplexity": Quality(-1, "perplexity"),
    "agreement": Quality(1, "agreement with the intact model"),
    "accuracy": Quality(1, "accuracy"),
    "f1": Quality(1, "F1"),
    "matthews": Quality(1, "matthews"),
    "bleu": Quality(1, "BLEU"),
    "chrf": Quality(1, "chrF"),
    "pair_accuracy": Quality(1, "accuracy on minimal pairs"),
    "pair_difference": Quality(1, "difference of minimal pairs", "nats"),
}
OBJECTIVES = {name: Quality(1, name) for name in ("top", "reference", "class", "similarity")}  # their means
OF = "Of(objective="  # how the mean of an objective is written
RANKINGS = {"l0": "L0", "exactly": "subset selection"}  # strategy -> its title


def declaration(what: What, name: str, thing: object) -> dict[str, object]:
    """Return the declarations of a class or object as provenance fields, such as {"metric.mine.better": -1}."""
    values = {field: getattr(thing, field, None) for field in DECLARES[what]}
    return {f"{what}.{name}.{field}": value for field, value in values.items() if value not in (None, "")}


def declared(what: What, name: str, signature: str) -> dict[str, str]:
    """Return the declarations of a metric, score, role or ranking in a signature: {"better": "-1"}."""
    start = f"{what}.{name}."
    return {key.removeprefix(start): value for key, value in fields(signature) if key.startswith(start)}


def carried(*tables: pd.DataFrame) -> str:
    """Return the declarations in the signatures of tables, for a table that is made of them; "" without any."""
    starts = tuple(f"{what}." for what in DECLARES)
    texts = {text: None for table in tables for text in table.attrs.get("signatures", {}).values()}
    return sign(**{key: value for text in texts for key, value in fields(text) if key.startswith(starts)})


def signature_of(table: pd.DataFrame | pd.Series, column: object) -> str:
    """Return the signature of a column, in its table or alone; "" without one."""
    signatures: dict[str, str] = table.attrs.get("signatures", {})
    return signatures.get(str(column), "")


def quality(metric: str, signature: str = "") -> Quality:
    """Return direction, name and unit of a metric: as declared in a signature, else those of `METRICS`."""
    given = declared("metric", metric, signature)
    base, _, variant = metric.partition("-")  # bleu-zh is a variant of bleu
    if not given and metric in OBJECTIVES:
        return OBJECTIVES[metric]
    if given or base not in METRICS:
        return Quality(int(given.get("better", 0)), given.get("title", metric), given.get("unit", ""))
    return METRICS[base]._replace(title=f"{METRICS[base].title} ({variant})") if variant else METRICS[metric]


def metric_of(signature: str) -> str:
    """Return the metric that a signature names, such as "bleu"; "" if it names none."""
    parts = dict(fields(signature))
    name = parts.get("metric", "").removeprefix(OF).partition("(")[0].lower()
    declaring = (key.split(".")[1] for key in parts if key.startswith("metric.") and key.endswith(".better"))
    objective = next((known for known in OBJECTIVES if name.startswith(known)), name)  # ClassLogit is "class"
    return next(declaring, next((known for known in METRICS if known.replace("_", "") == name), objective))


def harm(column: object, signature: str = "") -> int:
    """Return the sign of harm in a column of effects, by default -1; 0 for other columns."""
    metric = Column.parse(column).metric
    return 0 if metric is None else -(quality(metric, signature).better or 1)
