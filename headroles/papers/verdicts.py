"""Verdicts: the words in which rules judge the claims of papers; imported as `v` (no torch)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from headroles.analysis.intervals import wilson
from headroles.analysis.summaries import correlations
from headroles.tables import frame
from headroles.tables.declared import metric_of as metric_in
from headroles.tables.declared import quality
from headroles.tables.frame import KINDS, Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Draw = Callable[[], Axes]

Holds = bool | None  # None: undecided
Numbers = npt.NDArray[np.float64]
METRICS = ("bleu", "chrf", "accuracy", "matthews", "f1", "agreement", "perplexity", "loss")  # the papers' own first
TOKENS = "-(?:zh|char|intl|none|(?:ja|ko)-mecab|spm|flores101|flores200|spBLEU-1K)"  # tokenisations of `bleu-zh` ...
METRIC = rf"(?P<metric>{'|'.join(METRICS)})(?:{TOKENS})?"
VALUES = ["value", "low", "high"]
LITTLE = 0.03  # of the score of the intact model, or nats of a loss: a small change (our choice)
NEAR = 0.05  # of all heads: how far a curve's step may be from the share that the paper shows (our choice)
CLEAR = 0.05  # p below which a tendency counts as shown (our choice)
SURE = 0.01  # the papers' p
RANKINGS = {  # by importance, Michel's first -> how a verdict names it
    "importance[layer]": "by importance, normalised within layers",
    "importance": "by raw importance, which the paper normalises within layers",
}
NO_VALUE = "the value of untrained models is unknown"
NO_COST = "the cost of all heads is unknown"


class Missing(LookupError):
    """An artefact cannot be made; the message names the missing table and the command that makes it."""


class Verdict(NamedTuple):
    """Whether a claim holds, and why, in one sentence with our numbers."""

    holds: Holds
    why: str
    comparable: bool = True  # False: the models compared here were not trained as long as the paper's

    @property
    def answer(self) -> str:
        """The verdict in words, also where it is undecided or the models are not comparable."""
        return {True: "yes", False: "no", None: "cannot be said"}[self.holds] if self.comparable else "not comparable"


@dataclass(frozen=True)
class Claim:
    """A paper's claim: a function that judges a table by the claim's rule."""

    judge: Callable[[pd.DataFrame], Verdict]
    text: str  # the paper's statement, in short
    rule: str  # when the claim holds

    def __call__(self, table: pd.DataFrame) -> Verdict:
        """Judge a table."""
        return self.judge(table)


def claim(text: str, rule: str) -> Callable[[Callable[[pd.DataFrame], Verdict]], Claim]:
    """Make a claim of the function, or another claim, that judges it; arguments as of `Claim`."""
    return lambda judge: Claim(judge, text, " ".join(rule.split()))


@dataclass(frozen=True, eq=False)
class Reproduced:
    """Our version of one figure or table; its table has columns `paper...` where the paper's numbers are known."""

    table: pd.DataFrame
    claim: Claim
    verdict: Verdict
    draw: Draw | None  # None where the paper has a table


def judged(claim: Claim, table: pd.DataFrame, draw: Draw | None = None) -> Reproduced:
    """Attach the verdict of a claim to a reproduced table or figure."""
    return Reproduced(table, claim, claim(table), draw)


# --- the papers' numbers ----------------------------------------------------------------------------------------------


def paper_numbers(name: str) -> pd.DataFrame:
    """Load the paper's numbers of an artefact, such as `voita2019-fig7`; `attrs["source"]` cites their place."""
    with (files("headroles.papers") / "numbers" / f"{name}.csv").open(encoding="utf-8") as lines:
        source = lines.readline().removeprefix("#").strip()
        table = pd.read_csv(lines)
    table.attrs["source"] = source
    return table


def wmt_numbers(name: str) -> pd.DataFrame:
    """Load the numbers of Voita's larger corpus (WMT), with the number of remaining heads."""
    rows = paper_numbers(name).query("corpus == 'WMT'").drop(columns="corpus").reset_index(drop=True)
    return rows.assign(heads=rows[[*KINDS]].sum(axis=1))


def with_paper(table: pd.DataFrame, name: str, on: str | list[str]) -> pd.DataFrame:
    """Add the paper's numbers of the artefact `name` to our rows."""
    printed = paper_numbers(name)
    return with_source(table.merge(printed, on=on, how="left"), table, printed)


def with_sizes(table: pd.DataFrame, printed: pd.DataFrame, on: Sequence[str] = ("heads", "of")) -> pd.DataFrame:
    """Merge all rows by remaining heads, descending; the paper's rows of models of other sizes last."""
    merged = table.merge(printed, on=[*on], how="outer")
    merged["alike"] = merged["of"] == table["of"].max()
    merged = merged.sort_values(["alike", "heads"], ascending=False, ignore_index=True).drop(columns="alike")
    return with_source(merged, table, printed)


def with_source(merged: pd.DataFrame, table: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """Give a merged table our attributes and the source of the paper's numbers."""
    merged.attrs = {**table.attrs, "source": printed.attrs["source"]}
    return merged


# --- numbers with intervals -------------------------------------------------------------------------------------------


def with_bounds(name: str) -> list[str]:
    """Return the names of the three columns of a number with its interval."""
    return [name, f"{name}.low", f"{name}.high"]


class Interval(NamedTuple):
    """A number with the bounds of its interval, NaN where it has none; `f"{x:.2f}"` shows all three."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def from_row(cls, row: Any, name: str) -> Interval:
        """Read a number and its bounds from the columns `name`, `name.low` and `name.high` of a row."""
        return cls(*(float(row[column]) for column in with_bounds(name)))

    def above(self, bound: float) -> Holds:
        """Return whether the interval lies above a bound; None if the bound is inside it."""
        if math.isnan(self.low) or math.isnan(self.high):
            return None
        return True if self.low > bound else False if self.high < bound else None

    def below(self, bound: float) -> Holds:
        """Return whether the interval lies below a bound; None if the bound is inside it."""
        return self.scaled(-1).above(-bound)

    def within(self, bound: float) -> Holds:
        """Return whether a change is smaller than a bound in either direction (equivalence test by the interval)."""
        inside = -bound < self.low and self.high < bound
        return True if inside else False if self.low > bound or self.high < -bound else None

    def scaled(self, factor: float) -> Interval:
        """Multiply the number and its bounds."""
        return Interval(factor * self.value, *sorted((factor * self.low, factor * self.high)))

    def minus(self, other: Interval) -> Interval:
        """Subtract an independent number; the interval is too wide where the two vary together."""
        down = math.hypot(self.value - self.low, other.high - other.value)
        up = math.hypot(self.high - self.value, other.value - other.low)
        value = self.value - other.value
        return Interval(value, value - down, value + up)

    def widened(self, tests: int, seeds: float = math.nan) -> Interval:
        """Widen a 95 % interval for several tests (Bonferroni), by Student's t of the seeds or by the normal."""
        # too wide where examples make up much of the width: all of it counts as spread of the seeds
        spread = stats.norm() if math.isnan(seeds) else stats.t(seeds - 1)  # NaN of one seed, which decides nothing
        factor = float(spread.isf(0.025 / tests) / spread.isf(0.025))
        value, low, high = self
        return Interval(value, value - (value - low) * factor, value + (high - value) * factor)

    def __format__(self, spec: str) -> str:
        """Format the number and its bounds, each by `spec`; a number without bounds stands alone."""
        if math.isnan(self.value):
            return "undefined"
        value, low, high = (f"{number:z{spec or '.2f'}}" for number in self)
        return value if math.isnan(self.low) else f"{value} [{low}, {high}]"


def intervals(table: pd.DataFrame, name: str) -> list[Interval]:
    """Read a number with its bounds from each row."""
    return [Interval.from_row(row, name) for _, row in table.iterrows()]


def share(count: float, total: float) -> Interval:
    """Return a share of counts with its 95 % interval (Wilson 1927)."""
    if not total:
        return Interval(math.nan)
    return Interval(count / total, *map(float, wilson(np.array(count / total), np.array(total))))


def prediction_bound(values: Sequence[float]) -> float:
    """Return the bound that one more value exceeds with p = 0.01 (Student's prediction interval); NaN for one value."""
    if (count := len(values)) < 2:
        return math.nan
    spread = float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / count)
    return float(np.mean(values)) + float(stats.t.isf(0.01, count - 1)) * spread


# --- answers ----------------------------------------------------------------------------------------------------------


def all_hold(parts: Iterable[Holds]) -> Holds:
    """Return whether all parts hold: no if one fails, undecided without parts."""
    answers = list(parts)
    return False if False in answers else None if None in answers or not answers else True


def any_holds(parts: Iterable[Holds]) -> Holds:
    """Return whether any part holds: no if all fail, undecided without parts."""
    answers = list(parts)
    return True if True in answers else None if None in answers or not answers else False


def most_hold(parts: Iterable[Holds]) -> Holds:
    """Return whether more than half of the parts hold: no if at least half fail."""
    answers = list(parts)
    yes, no, half = answers.count(True), answers.count(False), len(answers) / 2
    return True if yes > half else False if no >= half else None


def half_hold(parts: Iterable[Holds]) -> Holds:
    """Return whether at least half of the parts hold: no if more than half fail."""
    return {True: False, False: True, None: None}[most_hold(None if part is None else not part for part in parts)]


def combine_votes(parts: Iterable[Holds]) -> Holds:
    """Return yes if a part holds and none fails, no if one fails and none holds."""
    answers = set(parts) - {None}
    return answers.pop() if len(answers) == 1 else None


def unless_unsure(answer: Holds, condition: Holds) -> Holds:
    """Turn a yes into undecided unless a condition is sure; a no stays."""
    return None if answer and not condition else answer


# --- what several artefacts read from tables --------------------------------------------------------------------------


def rows_of_kind(table: pd.DataFrame, kind: Kind = "enc-self") -> pd.DataFrame:
    """Select the rows of one kind, the index unchanged; raise Missing for a model without such heads."""
    present = [str(known) for known in KINDS if known in table.index.unique("kind")]
    if kind not in present:
        raise Missing(f"the paper shows {kind} heads; {table.attrs.get('file', 'the table')} has {', '.join(present)}")
    rows: pd.DataFrame = table[table.index.get_level_values("kind") == kind]
    return rows


def best_of_layers(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Select the head of each layer with the largest value of a column, as rows of `layer` and `head`."""
    return table.loc[table.groupby(level="layer")[column].idxmax()].reset_index().drop(columns="kind")


def within_layers(pair: pd.DataFrame) -> pd.Series[float]:
    """Correlate two columns of all heads after subtracting the mean of each layer."""
    inside = pair - pair.groupby(level="layer").transform("mean")
    return correlations(inside.iloc[:, 0], inside.iloc[:, 1]).iloc[0]


def nearest(table: pd.DataFrame, share: float) -> pd.DataFrame:
    """Select the row with the share of ablated heads nearest to one; no row if none is near."""
    gaps = (table["share"] - share).abs()
    row: pd.DataFrame = table[(gaps == gaps.min()) & (gaps <= NEAR)].head(1)
    return row


def signature_field(table: pd.DataFrame, name: str, column: str | None = None) -> str:
    """Return a provenance field of a column, by default of the first with provenance; "" without any."""
    signatures: dict[str, str] = table.attrs.get("signatures", {})
    text = signatures.get(column, "") if column else next(iter(signatures.values()), "")
    return dict(frame.fields(text)).get(name, "")


def metric_of(table: pd.DataFrame) -> str:
    """Return the metric of a table, from its file name or its provenance."""
    named = re.search(METRIC, Path(str(table.attrs.get("file", ""))).stem)
    signed = filter(None, map(metric_in, table.attrs.get("signatures", {}).values()))
    return named["metric"] if named else next(signed, "metric")


def metric_label(table: pd.DataFrame) -> str:
    """Return the name of a table's metric as papers write it."""
    metric = metric_of(table)
    return {"bleu": "BLEU", "chrf": "chrF"}.get(metric, metric)


def sign_of(metric: str) -> int:
    """Return 1 if larger values of a metric are better, else -1."""
    return quality(metric).better or 1


def gains(differences: Numbers, metric: str) -> Numbers:
    """Turn differences of a metric (rows of value, low, high) so that larger is better."""
    return -differences[:, [0, 2, 1]] if sign_of(metric) < 0 else differences


def scale(metric: str, intact: float) -> float:
    """Return the unit of changes of a metric: the score of the intact model, or one nat of a loss."""
    return 1.0 if metric == "loss" else abs(intact)


def costs(rows: pd.DataFrame, intact: pd.Series[float], metric: str) -> dict[str, Numbers]:
    """Return `cost` with its interval: lost shares of the intact score, or nats of a loss; paired with changes."""
    if "change" in rows:
        changes = rows[with_bounds("change")].to_numpy()
    else:
        changes = np.array([Interval(*row).minus(Interval(*intact[VALUES])) for row in rows[VALUES].to_numpy()])
    value, low, high = (-gains(changes, metric) / (scale(metric, intact["value"]) or math.nan)).T
    return {"cost": value, "cost.low": high, "cost.high": low}


def removal_costs(table: pd.DataFrame) -> Holds:
    """Return whether removing all heads costs more than a little, by the columns `all` of a table."""
    return Interval.from_row(table.iloc[0], "all").above(LITTLE)


def cost_in_words(cost: Interval, metric: str) -> str:
    """Describe a cost: per cent of the score, or nats of a loss."""
    if math.isnan(cost.value):
        return "an unknown amount"
    return f"{cost:.3f} nats" if metric == "loss" else f"{cost.scaled(100):.1f} %"


def cost_of_all_in_words(table: pd.DataFrame) -> str:
    """Describe the cost of removing all heads."""
    cost, metric = Interval.from_row(table.iloc[0], "all"), table.iloc[0].get("all.metric", "")
    if math.isnan(cost.value):
        return NO_COST
    return f"all of them cost {cost_in_words(cost, metric) if metric == 'loss' else f'{cost.scaled(100):.0f} %'}"


def untrained_in_words(bound: float) -> str:
    """Describe the bound of untrained models."""
    return NO_VALUE if math.isnan(bound) else f"untrained models reach {bound:.2f}"
