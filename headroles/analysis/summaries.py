"""Summaries of tables of heads: what figures and papers show of them, computed apart from drawing (no torch)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.special import expit

from headroles.analysis import role_rules
from headroles.analysis.association import finite
from headroles.analysis.intervals import Array, correlation, rank_correlation
from headroles.analysis.resampling import pearson, spearman
from headroles.tables.columns import ENDS, Column, of_name
from headroles.tables.frame import LEVELS, described, signed

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
        values, rank = pearson(x[heads], y[heads]), float(spearman(x[None], y[None])[0])
        ends = correlation(float(values[0]), values[1:], len(part)), rank_correlation(rank, len(part))
        names = [f"{key}{end}" for key in ("pearson", "spearman") for end in ENDS]
        rows[name] = {"heads": len(part), **dict(zip(names, (values[0], *ends[0], rank, *ends[1]), strict=True))}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("heads of")
    return signed(table, "correlations over heads; see the two studies")


def of_both(first: pd.Series[float], second: pd.Series[float]) -> pd.DataFrame:
    """Return measurements of the same heads side by side; raise ValueError unless there are three, the same in both."""
    both = pd.DataFrame({"one": finite(first), "other": finite(second)}).dropna()
    if len(both) < 3 or len(both) < max(len(first), len(second)):
        raise ValueError(
            f"the tables are of different heads: got {len(first)} and {len(second)} rows, {len(both)} in common; "
            "expected at least three heads, the same in both"
        )
    return both


def thirds(table: pd.DataFrame) -> pd.DataFrame:
    """Count the heads that the lower, middle and upper third of the layers have left.

    Args:
        table: Columns `survival[...]` over the heads of one kind.

    Returns:
        A row per column of survival: `KIND lower`, `KIND middle`, `KIND upper`, and `.of`, the numbers before pruning.
        Thirds are of equal size if the number of layers allows it.
    """
    kind, layers = str(table.index.get_level_values("kind")[0]), table.index.get_level_values("layer")
    third = pd.Series(np.digitize(layers, [len(set(layers)) / 3, len(set(layers)) * 2 / 3]), table.index)
    rows = {}
    for column in sizes_of(table):
        left = [table.loc[third == place, column] for place in range(3)]
        counts = {f"{kind} {name}": int(part.sum()) for name, part in zip(THIRDS, left, strict=True)}
        rows[column] = counts | {f"{kind} {name}.of": len(part) for name, part in zip(THIRDS, left, strict=True)}
    return pd.DataFrame.from_dict(rows, orient="index")


def sizes_of(table: pd.DataFrame) -> list[str]:
    """Return the columns of survival in a table; raise ValueError without any."""
    columns = of_name(table, "survival")
    if not columns or list(table.index.names) != LEVELS:
        raise ValueError(
            f"not a table of survival: got {described(table)}; expected columns survival[...] over heads, as of "
            "hr.prune"
        )
    return columns


def functions(roles: pd.DataFrame) -> pd.DataFrame:
    """Count the heads of each kind and family of roles: kind, function, count (Voita et al. 2019, Fig. 8)."""
    families: dict[tuple[str, int, int], set[str]] = {head: set() for head in roles.index}
    for kind, layer, head, role, *_ in role_rules.held(roles).itertuples(index=False, name=None):
        families[kind, layer, head].add(Column.parse(role).name)
    named = [(head[0], "several" if len(held) > 1 else next(iter(held), "none")) for head, held in families.items()]
    counts = pd.Series(named).value_counts(sort=False)
    return pd.DataFrame([(*key, count) for key, count in sorted(counts.items())], columns=["kind", "function", "count"])  # type: ignore[misc]


def gate_density(gates: Array, log_alpha: float, temperature: float) -> tuple[Array, float, float]:
    """Return the density of a Hard Concrete gate between 0 and 1, P(gate = 0) and P(gate = 1) (Louizos et al. 2018)."""
    soft = (gates - LOW) / (HIGH - LOW)
    logits = temperature * (np.log(soft) - np.log1p(-soft)) - log_alpha
    density = temperature * expit(logits) * expit(-logits) / (soft * (1 - soft)) / (HIGH - LOW)
    zero = expit(temperature * np.log(-LOW / HIGH) - log_alpha)
    return density, zero, expit(log_alpha - temperature * np.log((1 - LOW) / (HIGH - 1)))
