"""Michel et al. 2019, section 3.4: effects of ablating the same heads on other corpora (no torch)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pandas as pd

from headroles import plots
from headroles.analysis.summaries import correlations
from headroles.papers.artefact import (
    Interval,
    Reproduced,
    Verdict,
    claim,
    every,
    judged,
    printed,
    provided,
    sourced,
)
from headroles.papers.bench import Bench, at_stake, field, reached, stake
from headroles.papers.michel2019.effects import cost_of_all, encoder_rows, is_translation
from headroles.papers.needs import Missing
from headroles.plots.axes import new_axes
from headroles.plots.effects import effect_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def fig2(bench: Bench) -> Reproduced:
    """Show the effects of the same heads on two corpora against each other: a panel for each other corpus."""
    first, *others = _of_other_texts(bench.tables("single"))
    names = [field(table, "corpus", effect_of(first)).partition("+")[0] for table in (first, *others)]
    rows = _correlated(first, others, names)
    theirs = printed("michel2019-fig2")
    paper = theirs.set_index("model")["paper"]["translation" if is_translation(first) else "encoder"]
    rows["untrained"] = _of_untrained(bench)
    rows["paper"] = float(paper)
    rows["paper"] = rows["paper"].where(rows["heads of"] == "enc-self")
    rows = sourced(rows.assign(**stake(bench, first)), rows, theirs)
    return judged(fig2_claim, rows, lambda: _agreements(first, others, names))


def _correlated(first: pd.DataFrame, others: list[pd.DataFrame], names: list[str]) -> pd.DataFrame:
    """Correlate the effects on the first corpus with those on each other: a row for all heads and for each kind."""
    name, parts = effect_of(first), []
    for other, corpus in zip(others, names[1:], strict=True):
        part = correlations(first[name], other[name]).reset_index().assign(corpus=corpus)
        part["pearson.rest"] = _without_largest(first[name], other[name])
        parts.append(part if len(part) > 1 else part.replace({"heads of": {"all": "enc-self"}}))
    return pd.concat(parts, ignore_index=True)


def _of_untrained(bench: Bench) -> float:
    """Return the largest rank correlation of the encoder's heads of an untrained model; NaN without its tables."""
    try:
        first, *others = _of_other_texts(bench.untrained.tables("single")) if bench.untrained else []
    except (Missing, ValueError):
        return math.nan
    rows = _correlated(first, others, [""] * (1 + len(others)))
    return float(rows.loc[rows["heads of"] == "enc-self", "spearman"].max())


@claim(
    "Heads that matter on one corpus matter on another: Pearson's correlation 0.56 and 0.68.",
    """Holds if the rank correlation over the encoder's heads, which does not depend on a few large effects, is
    above 0 with its interval on every other corpus, and above the largest of an untrained model of the same shape; and
    ablating all heads costs more than 3 % of the score (of a loss, 0.03 nats).""",
)
def fig2_claim(table: pd.DataFrame) -> Verdict:
    rows = [row for _, row in table[table["heads of"] == "enc-self"].iterrows()]
    ranks = [Interval.of(row, "spearman") for row in rows]
    chance = table["untrained"].iloc[0]
    holds = provided(every(rank.above(0) for rank in ranks), every(rank.above(chance) for rank in ranks))
    text = ", ".join(
        f"{row['corpus']} rank correlation {Interval.of(row, 'spearman')}, Pearson's {Interval(row['pearson'])}, "
        f"{Interval(row['pearson.rest'])} without the two largest effects"
        for row in rows
    )
    return Verdict(provided(holds, at_stake(table)), f"{text}; {reached(chance)}; {cost_of_all(table)}")


def _of_other_texts(tables: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Select tables of different texts of a model, of the first metric that has two; raise Missing without any."""
    model = field(tables[0], "weights", effect_of(tables[0]))
    for name in dict.fromkeys(map(effect_of, tables)):
        texts: dict[str, pd.DataFrame] = {}
        for table in (table for table in tables if effect_of(table) == name and field(table, "weights", name) == model):
            texts.setdefault(field(table, "text", name), table)
        if len(texts) > 1:
            return [*texts.values()]
    raise Missing("Fig. 2 compares two corpora, got effects on one; try headroles ablate MODEL OTHER")


def _without_largest(first: pd.Series[float], other: pd.Series[float]) -> list[float]:
    """Return Pearson's correlation without the two largest effects: of all heads, and of each kind."""
    both = pd.concat([first, other], axis=1, keys=["first", "other"]).dropna()
    kinds = [part for _, part in both.groupby(level="kind", sort=False, observed=True)]
    rest = [part.drop(part["first"].abs().nlargest(2).index) for part in (both, *(kinds if len(kinds) > 1 else []))]
    return [float(part["first"].corr(part["other"])) for part in rest]


def _agreements(first: pd.DataFrame, others: list[pd.DataFrame], names: list[str]) -> Axes:
    """Draw a panel for each other corpus: the effects of the same heads there against those of the first."""
    axes = new_axes((10, 11), cell=0.42, panels=len(others))
    for other, corpus, ax in zip(others, names[1:], axes, strict=True):
        plots.agreement(encoder_rows(first), encoder_rows(other), names=(names[0], corpus), ax=ax)
    return axes[0]
