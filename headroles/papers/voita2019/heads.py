"""Voita et al. 2019, sections 5.1 and 5.2: functions of the encoder's heads (no torch)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headroles import plots
from headroles.analysis import role_rules
from headroles.analysis.summaries import best_heads
from headroles.papers.artefact import (
    Holds,
    Interval,
    Reproduced,
    Verdict,
    beside,
    claim,
    every,
    judged,
    printed,
    provided,
    share,
    some,
)
from headroles.papers.bench import Bench, field, of_kind
from headroles.papers.needs import NEEDS, Missing, Need, functions
from headroles.tables import frame
from headroles.tables.columns import Column

if TYPE_CHECKING:
    from matplotlib.axes import Axes


ROLES = ("positional", "syntactic", "rare")
KNOWN = 0.95, 0.05  # of the resamples in which a head has a role: sure, possible
BOTH = ("nsubj dep>head", "nsubj head>dep", "obj dep>head", "obj head>dep")  # of Table 1
MARGIN = 0.10 - 1e-9  # over the best fixed offset (section 5.2)


def fig1c(bench: Bench) -> Reproduced:
    """Show the functions of the encoder's heads."""
    roles = _roles(bench, bench.table("functions"))
    counts = beside(_function_counts(of_kind(roles)), "voita2019-fig1c", "function")
    return judged(fig1c_claim, counts, lambda: plots.roles(roles, kind="enc-self"))


@claim(
    "Important encoder heads have functions: positional, syntactic, and one that attends to rare words.",
    "Holds if some head has each function in 95 % of the resamples; fails if no head has one of them in 5 %.",
)
def fig1c_claim(table: pd.DataFrame) -> Verdict:
    parts = [
        True if sure > 0 else False if possible == 0 else None
        for sure, possible in zip(table["sure"], table["possible"], strict=True)
    ]
    counts = ", ".join(
        f"{name} {Interval(count):.0f}" for name, count in zip(table["function"], table["heads"], strict=True)
    )
    return Verdict(every(parts), f"of {table['of'].iloc[0]:.0f} encoder heads: {counts}")


def fig2(bench: Bench) -> Reproduced:
    """Show the confidence and functions of heads on other corpora or in other models, at most two."""
    first, *others = bench.tables("functions")[:3]
    if not others:
        raise Missing("Fig. 2 needs two tables of scores: got one; try headroles score on another corpus")
    names = [_name(table, first) for table in others]
    roles = [_roles(bench, table) for table in others]
    parts = [_function_counts(of_kind(table)).assign(corpus=name) for table, name in zip(roles, names, strict=True)]
    counts = beside(pd.concat(parts, ignore_index=True), "voita2019-fig2", "function")
    panels = [*zip(others, roles, names, strict=True)]
    return judged(fig2_claim, counts, lambda: _draw_corpora(panels))


@claim(
    "The same functions are found in models of other language pairs (here: on each other corpus that was scored).",
    "The rule of Fig. 1c, on each corpus.",
)
def fig2_claim(table: pd.DataFrame) -> Verdict:
    verdicts = {str(corpus): fig1c_claim(part) for corpus, part in table.groupby("corpus", sort=False)}
    text = "; ".join(f"{corpus}: {verdict.why}" for corpus, verdict in verdicts.items())
    return Verdict(every(verdict.holds for verdict in verdicts.values()), text)


NEEDS["offsets"] = Need(
    "distances between words and their heads",
    "headroles score MODEL CORPUS, on a corpus with trees",
    "offsets",
    lambda run: [path.with_name("offsets.parquet") for path in functions(run)],
)


def fig3(bench: Bench) -> Reproduced:
    """Show the relative positions of the words of each dependency: a histogram per relation."""
    table = bench.table("offsets")
    relations = table.groupby("relation", sort=False)["count"]
    rows = table.loc[relations.idxmax(), ["relation", "offset", "count", "share"]]
    totals = rows["relation"].map(relations.sum())
    rows[["low", "high"]] = [share(count, total)[1:] for count, total in zip(rows["count"], totals, strict=True)]
    theirs = printed("voita2019-table1").drop_duplicates("relation")[["relation", "paper.baseline"]]
    rows = rows.merge(theirs.set_axis(["relation", "paper"], axis=1), on="relation")
    return judged(fig3_claim, rows, lambda: plots.offsets(table)[0])


@claim(
    "Words of a dependency are often at the same relative position, which is the baseline for a head.",
    """Holds if for each of the paper's relations the commonest position has, with its interval, at least the paper's
    smallest share.""",
)
def fig3_claim(table: pd.DataFrame) -> Verdict:
    least = table["paper"].min() - 0.005  # the paper's are rounded to two digits
    shares = ", ".join(f"{row.relation} {row.share:.2f}" for row in table.itertuples())
    known = printed("voita2019-table1")["relation"].unique()
    holds = every(Interval(*row).above(least) for row in table[["share", "low", "high"]].to_numpy())
    holds = provided(holds, {*known} <= {*table["relation"]})
    return Verdict(holds, f"commonest position: {shares}; the paper's smallest is {table['paper'].min():.2f}")


def fig4(bench: Bench) -> Reproduced:
    """Show the best head of each relation and direction beside the best fixed offset: bars."""
    table = bench.table("functions")
    return judged(fig4_claim, _dependencies(table), lambda: plots.dependency(table, kind="enc-self"))


@claim(
    "Some heads find a dependency much better than any fixed offset does.",
    """Holds if in some row the interval of the best head, widened for all heads (Bonferroni), is 0.10 above the
    baseline; fails if no head reaches that.""",
)
def fig4_claim(table: pd.DataFrame) -> Verdict:
    return _margins(table, some)


def table1(bench: Bench) -> Reproduced:
    """Show the best head of each relation and direction beside the best fixed offset: numbers."""
    return judged(table1_claim, _dependencies(bench.table("functions")))


@claim(
    "Subjects and objects are found 0.10 better than by any fixed offset, both from the verb and to it.",
    """Holds if that is so for nsubj and obj in both directions, with the intervals of the heads' accuracies, widened
    for all heads (Bonferroni).""",
)
def table1_claim(table: pd.DataFrame) -> Verdict:
    rows = table[(table["relation"] + " " + table["way"]).isin(BOTH)]
    verdict = _margins(rows, every)
    return verdict._replace(holds=provided(verdict.holds, rows["ours"].count() == len(BOTH)))


def _margins(table: pd.DataFrame, joined: Callable[[Iterable[Holds]], Holds]) -> Verdict:
    """Judge whether heads exceed the baseline by 0.10, the answers of the rows joined by `every` or `some`."""
    gain = table["ours"] - table["baseline"]
    best = table.iloc[gain.argmax()]
    margins = table[["ours", "low", "high"]].sub(table["baseline"], axis=0)
    of = int(table.get("of", pd.Series(1)).iloc[0])
    numbers = f"{Interval(best['ours'], best['low'], best['high'])} against {best['baseline']:.2f}"
    text = f"{(gain >= MARGIN).sum()} of {len(table)} reach it; most for {best['relation']} {best['way']}: {numbers}"
    return Verdict(joined(Interval(*row).widened(of).above(MARGIN) for row in margins.to_numpy()), text)


def _name(table: pd.DataFrame, first: pd.DataFrame) -> str:
    """Return the corpus of a table of scores, with the model if it differs from that of the first table."""
    model, corpus = (field(table, name, "confidence") for name in ("model", "corpus"))
    same = field(table, "weights", "confidence") == field(first, "weights", "confidence")
    return corpus.partition("+")[0] + ("" if same else f" ({model})")


def _roles(bench: Bench, table: pd.DataFrame) -> pd.DataFrame:
    """Assign roles; of scores without resamples, how stable they are is read from the table of roles beside them."""
    roles = role_rules.roles(table)
    stable = [f"{name}.stability" for name in role_rules.names(roles)]
    if roles[stable].isna().all(axis=None) and (kept := bench.beside(table, "roles")) is not None:
        same = [
            name for name in stable if name in kept and frame.provenance(kept, name) == frame.provenance(roles, name)
        ]
        roles[same] = kept[same]
    return roles


def _function_counts(roles: pd.DataFrame) -> pd.DataFrame:
    """Count the heads that have each function, surely and possibly; NaN if that is unknown."""
    rows = []
    for family in ROLES:
        variants = [name for name in role_rules.names(roles) if Column.parse(name).name == family]
        stability = roles[[f"{name}.stability" for name in variants]].max(axis=1)
        sampled = stability.notna().any()
        counts: list[float] = [roles[variants].any(axis=1).sum()]
        counts += [(stability >= part).sum() if sampled else np.nan for part in KNOWN]
        known = roles[[f"{name}.value" for name in variants]].notna().any(axis=None)
        rows.append((family, *(count if known else np.nan for count in counts), len(roles)))
    return pd.DataFrame(rows, columns=["function", "heads", "sure", "possible", "of"])


def _dependencies(table: pd.DataFrame) -> pd.DataFrame:
    """Return the best head of each relation and direction, the best fixed offset, and the paper's numbers."""
    best = best_heads(of_kind(table)).rename(columns={"accuracy": "ours"}).assign(of=len(of_kind(table)))
    return beside(best, "voita2019-table1", ["relation", "way"])


def _draw_corpora(panels: Sequence[tuple[pd.DataFrame, pd.DataFrame, str]]) -> Axes:
    """Draw confidence and functions side by side; a panel is a table of scores, its roles and its corpus."""
    import matplotlib.pyplot as plt

    deep, wide = (of_kind(panels[0][1]).index.get_level_values(level).max() + 1 for level in ("layer", "head"))
    size = (2 * (wide * 0.5 + 1.2), len(panels) * (deep * 0.5 + 1.2))
    _, grid = plt.subplots(len(panels), 2, figsize=size, layout="constrained", squeeze=False)
    most = max(of_kind(table)["confidence"].max() for table, _, _ in panels)  # one scale for all panels
    for (left, right), (table, roles, name) in zip(grid, panels, strict=True):
        confidence = plots.heatmap(table["confidence"], kind="enc-self", vmax=most, ax=left)
        confidence.set_title(f"confidence on {name}", fontsize=9)
        plots.roles(roles, kind="enc-self", legend=False, ax=right).set_title(f"functions on {name}", fontsize=9)
    first: Axes = grid[0, 0]
    return first
