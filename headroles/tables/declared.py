"""What a score, metric, role or ranking says of itself, where there is no torch: its direction, name and colour.

A class of the user's own declares it by class attributes, which the signatures of its columns carry from then on, so
that figures, reports and relations of a stored table show it as well. What the package has is known here.
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
RANKINGS = {"l0": "L0", "exactly": "subset selection"}  # strategy -> its title


def declaration(what: What, name: str, thing: object) -> dict[str, object]:
    """Return the provenance fields of what a thing declares, such as {"metric.mine.better": -1}."""
    values = {field: getattr(thing, field, None) for field in DECLARES[what]}
    return {f"{what}.{name}.{field}": value for field, value in values.items() if value not in (None, "")}


def declared(what: What, name: str, signature: str) -> dict[str, str]:
    """Return what a signature says of a thing: {"better": "-1"}."""
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
    """Return direction, name and unit of a metric: of a known one, or as the signature of a column says."""
    said = declared("metric", metric, signature)
    if said or metric not in METRICS:
        return Quality(int(said.get("better", 0)), said.get("title", metric), said.get("unit", ""))
    return METRICS[metric]


def metric_of(signature: str) -> str:
    """Return the metric that a signature names, such as "bleu"; "" if it names none."""
    parts = dict(fields(signature))
    name = parts.get("metric", "").partition("(")[0].lower()
    said = (key.split(".")[1] for key in parts if key.startswith("metric.") and key.endswith(".better"))
    return next(said, next((known for known in METRICS if known.replace("_", "") == name), name))


def harm(column: object, signature: str = "") -> int:
    """Return the sign of harm in a column of effects, by default -1; 0 for other columns."""
    metric = Column.parse(column).metric
    return 0 if metric is None else -(quality(metric, signature).better or 1)
