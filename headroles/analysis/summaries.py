"""Summaries of head tables that figures and papers show, computed apart from drawing (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit

from headroles.analysis import intervals, role_rules
from headroles.analysis.association import finite, values
from headroles.analysis.intervals import Array, Bools, Whole, pearson, rank_correlation, spearman, strata, with_ends
from headroles.analysis.seeds import shared_scores
from headroles.tables import frame
from headroles.tables.columns import Column, of_name
from headroles.tables.declared import carried
from headroles.tables.frame import LEVELS, described
from headroles.tables.study import Study, as_tables

THIRDS = ("lower", "middle", "upper")  # of the layers
LOW, HIGH = -0.1, 1.1  # limits of the stretched Concrete variable (Voita et al. 2019, section 6.1)


def best_heads(table: pd.DataFrame) -> pd.DataFrame:
    """Find the best head of each dependency relation and way.

    Args:
        table: Table of `hr.score` with syntax, of one kind.

    Returns:
        One row per relation and way: accuracy with its interval, best fixed offset, number of words.

    Raises:
        ValueError: For a table without syntax.
    """
    names = [name for name in of_name(table, "syntax") if table[name].notna().any()]
    if not names:
        raise ValueError(f"no values of syntax: got {described(table)}; make them with hr.score(..., ['syntax'])")
    rows = []
    for name in names:
        place = int(table[name].argmax())
        row, (layer, head) = table.iloc[place], (table.index.get_level_values(level)[place] for level in LEVELS[1:])
        rest = (row.get(f"{name}.{part}", np.nan) for part in ("low", "high", "baseline", "words"))
        rows.append((*Column.parse(name).words, f"L{layer}H{head}", row[name], *rest))
    columns = ["relation", "way", "name", "accuracy", "low", "high", "baseline", "words"]
    return pd.DataFrame(rows, columns=columns)


def correlations(first: pd.Series[float], second: pd.Series[float]) -> pd.DataFrame:
    """Correlate measurements of the same heads on two corpora.

    Returns:
        One row for all heads and one for each kind: `heads`, `pearson` and `spearman`, with 95 % intervals over heads
        after Fisher's z: of Pearson's with the spread of bootstrap resamples, of Spearman's by Bonett and Wright
        (2000). They are NaN for fewer than eight heads and for a perfect correlation.
    """
    both = of_both(first, second)
    parts = {"all": both} | {str(kind): part for kind, part in both.groupby(level="kind", sort=False, observed=True)}
    rows: dict[str, dict[str, float]] = {}
    for name, part in parts.items() if len(parts) > 2 else [("all", both)]:
        drawn = np.random.default_rng(0).integers(len(part), size=(1000, len(part)))
        heads = np.concatenate([np.arange(len(part))[None], drawn])  # [1 + resamples, heads]
        x, y = (part[column].to_numpy() for column in part)
        (r, *draws), rank = pearson(x[heads], y[heads]).tolist(), float(spearman(x[None], y[None])[0])
        rows[name] = {"heads": len(part)}
        rows[name] |= with_ends("pearson", r, intervals.correlation(r, np.array(draws), len(part)))
        rows[name] |= with_ends("spearman", rank, rank_correlation(rank, len(part)))
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("heads of")
    return frame.signed(table, "correlations over heads; see the two studies")


def of_both(first: pd.Series[float], second: pd.Series[float]) -> pd.DataFrame:
    """Return measurements of the same heads side by side, at least three."""
    both = pd.DataFrame({"one": finite(first), "other": finite(second)}).dropna()
    if len(both) < 3 or len(both) < max(len(first), len(second)):
        got = f"got {len(first)} and {len(second)} rows, {len(both)} in common"
        raise ValueError(f"the tables are of different heads: {got}; expected at least three, the same in both")
    return both


def agreement(
    table: pd.DataFrame | Study | str | Path | Sequence[str | Path], columns: Sequence[str], other: str
) -> pd.DataFrame:
    """Compute Spearman's correlation of columns with another column.

    Bounds are 1.96 standard deviations of the resamples of the table to either side. Quantiles would lie too low,
    because resampling adds noise to both sides of a correlation.

    Args:
        table: Table of heads; or studies and files of one model; a column comes from the first that has it.
        columns: Columns to correlate.
        other: The other column.

    Returns:
        One row per column, sorted: `all`, the correlation over all heads, and `within`, its mean over the layers of a
        kind in which both vary, each with `.low` and `.high`, the bounds of a 95 % interval.

    Raises:
        ValueError: If the table lacks a column.
    """
    table = as_tables(table)
    if missing := [name for name in (*columns, other) if name not in table]:
        known = f"columns must be some of {frame.listed(shared_scores(table))}"
        raise ValueError(f"{known}, got {frame.listed(missing)}; try hr.join with the table that has it")
    draws = frame.resamples(table, wanted := {*columns, other})
    count = min(part.shape[1] for part in draws.values()) if draws.keys() == wanted else 0
    layers = strata(table.index)

    def drawn(column: str) -> Array:
        observed = table[column].to_numpy(float)[:, None]  # [heads, 1]
        return np.concatenate([observed, draws[column][:, :count]], axis=1) if count else observed

    rows, against = [], drawn(other)
    for column in columns:
        scores = drawn(column)
        over_all = spearman(scores.T, against.T)
        parts = _varied(scores[:, 0], against[:, 0], layers)
        within = np.mean([spearman(scores[part].T, against[part].T) for part in parts] or [np.nan * over_all], axis=0)
        rows.append(with_ends("all", over_all[0], _bounds(over_all)) | with_ends("within", within[0], _bounds(within)))
    result = pd.DataFrame(rows, index=pd.Index(columns, name="score"))
    return frame.signed(result, frame.provenance(table, other)).sort_values("all", ascending=False)


def score_correlations(
    table: pd.DataFrame | Study | str | Path | Sequence[str | Path], columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Correlate all scores of heads with each other, over the heads of a table.

    Args:
        table: Table of heads; scores, effects of ablation and survival side by side (`hr.join`). Or studies and files
            of one model: of a column in several the first is taken, and columns of several seeds are averaged.
        columns: Columns to correlate; by default all measurements that vary.

    Returns:
        One row per pair of columns, the largest |`all`| first: `first`, `second`, `heads` that have both; `all`,
        Spearman's correlation over these heads, and `within`, its mean over the layers of a kind in which both vary.
        Each has `.low` and `.high`, a 95 % interval with heads as the sample (Bonett and Wright 2000; within layers of
        as many heads less the layers but one); NaN for fewer than eight heads and for a perfect correlation.

    Raises:
        ValueError: For an unknown column, or fewer than two that vary.
    """
    table = as_tables(table)
    frame.check_once(table)
    known = {name: values(table, name) for name in shared_scores(table)}
    varied = [name for name, column in known.items() if column.nunique() > 1]
    chosen = varied if columns is None else list(columns)
    if len(chosen) < 2 or not set(chosen) <= set(varied):
        raise ValueError(f"columns must be two or more of {frame.listed(varied)}, got {frame.listed(chosen)}")
    layers = strata(table.index)
    rows = [
        {"first": first, "second": second}
        | _correlation(known[first].to_numpy(float), known[second].to_numpy(float), layers)
        for first, second in combinations(chosen, 2)
    ]
    result = pd.DataFrame(rows).sort_values("all", key=np.abs, ascending=False, kind="stable", ignore_index=True)
    return frame.signed(result, frame.sign(correlations="spearman"), frame.sources(table, chosen), carried(table))


def _correlation(first: Array, second: Array, layers: Whole) -> dict[str, float]:
    """Rank correlations of two columns [heads], over all heads and within layers, with intervals."""
    both = np.isfinite(first) & np.isfinite(second)
    row: dict[str, float] = {"heads": int(both.sum())}
    for name, groups in (("all", [both] if both.sum() > 2 else []), ("within", _varied(first, second, layers))):
        ranks = [float(spearman(first[None, group], second[None, group])[0]) for group in groups]
        rank = float(np.mean(ranks)) if ranks else np.nan
        ends = rank_correlation(rank, sum(int(group.sum()) for group in groups) - max(len(groups) - 1, 0))
        row |= with_ends(name, rank, ends)
    return row


def _varied(first: Array, second: Array, layers: Whole) -> list[Bools]:
    """Return the heads of each layer that have both columns [heads], if these are three or more and both vary."""
    both = np.isfinite(first) & np.isfinite(second)
    parts = [both & (layers == layer) for layer in np.unique(layers)]
    return [part for part in parts if part.sum() > 2 and np.ptp(first[part]) > 0 and np.ptp(second[part]) > 0]


def _bounds(draws: Array) -> tuple[float, float]:
    """Return bounds around the first value, from the spread of the others."""
    known = draws[1:][~np.isnan(draws[1:])]
    half = 1.96 * float(known.std()) if len(known) else np.nan
    low, high = np.clip([draws[0] - half, draws[0] + half], -1.0, 1.0)
    return low, high


def thirds(table: pd.DataFrame) -> pd.DataFrame:
    """Count the heads left in the lower, middle and upper third of the layers.

    Args:
        table: Columns `survival[...]` over the heads of one kind.

    Returns:
        A row per column of survival: `KIND lower`, `KIND middle`, `KIND upper`, and `.of`, the numbers before pruning.
        Thirds are of equal size if the number of layers allows it.
    """
    kind, layers = str(table.index.get_level_values("kind")[0]), table.index.get_level_values("layer")
    numbers, places = np.unique(layers, return_inverse=True)
    third = np.digitize(places, [len(numbers) / 3, len(numbers) * 2 / 3])
    parts = {f"{kind} {name}": table[third == place] for place, name in enumerate(THIRDS)}
    counts = {name: part[sizes_of(table)].sum().astype(int) for name, part in parts.items()}
    return pd.DataFrame(counts | {f"{name}.of": len(part) for name, part in parts.items()})


def sizes_of(table: pd.DataFrame) -> list[str]:
    """Return the columns of survival in a table; raise ValueError without any."""
    columns = of_name(table, "survival")
    if not columns or list(table.index.names) != LEVELS:
        expected = "columns survival[...] over heads, as of hr.prune"
        raise ValueError(f"not a table of survival: got {described(table)}; expected {expected}")
    return columns


def functions(roles: pd.DataFrame) -> pd.DataFrame:
    """Count the heads of each kind and family of roles: kind, function, count (Voita et al. 2019, Fig. 8)."""
    shown = role_rules.prefer_nosink_roles(roles)
    has = pd.DataFrame({name: shown[variants].any(axis=1) for name, variants in role_rules.families(shown).items()})
    has = has.T.groupby(lambda family: Column.parse(family).plain.name, sort=False).any().T
    names = has.idxmax(axis=1).where(has.any(axis=1), "none").where(has.sum(axis=1) < 2, "several")
    named = zip(roles.index.get_level_values("kind"), names, strict=True)
    counts = pd.Series(list(named)).value_counts(sort=False)
    return pd.DataFrame([(*key, count) for key, count in sorted(counts.items())], columns=["kind", "function", "count"])  # type: ignore[misc]


def gate_density(gates: Array, log_alpha: float, temperature: float = 0.5) -> tuple[Array, float, float]:
    """Return the density of a Hard Concrete gate between 0 and 1, P(gate = 0) and P(gate = 1) (Louizos et al. 2018)."""
    soft = (gates - LOW) / (HIGH - LOW)
    logits = temperature * (np.log(soft) - np.log1p(-soft)) - log_alpha
    density = temperature * expit(logits) * expit(-logits) / (soft * (1 - soft)) / (HIGH - LOW)
    zero = expit(temperature * np.log(-LOW / HIGH) - log_alpha)
    return density, zero, expit(log_alpha - temperature * np.log((1 - LOW) / (HIGH - 1)))
