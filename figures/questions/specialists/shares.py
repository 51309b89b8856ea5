"""Survival against the share of a head's attention that is on one neighbour, over the translators from scratch."""

from __future__ import annotations

from itertools import combinations, product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from overview import PLACE, ROLES, SCRATCH, STUDIES, models_of, quarter

EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 1.0)  # shares on a neighbour; at the last the role "positional"
AS_IMPORTANT, SHARPEST = "as important as the least of these, below 0.9", "sharpest of their layer"


def shares() -> None:
    """Put survival to a quarter against the share of queries that attend to one neighbour into a table.

    All encoder heads of the 14 translators, 24 each. `survive` is the mean over heads of the share of gate seeds that
    keep the head. Importance is compared as a share of the model's. `p`: labels "positional" exchanged between the
    sharpest heads of a model, exact.
    """
    heads = of_translators()
    is_positional = heads["share"] >= ROLES["positional"]
    masks = {f"share of {low:g} to {high:g}": heads["share"].between(low, high, inclusive="left")
             for low, high in zip(EDGES, EDGES[1:], strict=False)}  # fmt: skip
    masks[AS_IMPORTANT] = ~is_positional & (heads["importance"] >= heads.loc[is_positional, "importance"].min())
    masks |= {f"{SHARPEST}, positional": heads["sharpest"] & is_positional}
    masks |= {f"{SHARPEST}, not positional": heads["sharpest"] & ~is_positional}
    rows = [(what, mask.sum(), heads.loc[mask, "survive"].mean()) for what, mask in masks.items()]
    table = pd.DataFrame(rows, columns=["what", "heads", "survive"])
    table.loc[len(table) - 1, "p"] = _exchanged(heads[heads["sharpest"]], is_positional)
    table.to_csv(PLACE / "shares.csv", index=False, float_format="%.4f")


def of_translators() -> pd.DataFrame:
    """Return the heads of the translators from scratch."""
    return pd.concat({name: _of(model) for study in STUDIES if STUDIES[study] == SCRATCH
                      for name, model in models_of(study).items()}, names=["model"])  # fmt: skip


def _of(model: pd.DataFrame) -> pd.DataFrame:
    """Return share, survival, importance and whether each head is the sharpest of its layer."""
    sharpest = model["confidence"] == model["confidence"].groupby(level="layer").transform("max")
    columns = {"share": model["positional"], "survive": model[quarter(model)], "sharpest": sharpest}
    return pd.DataFrame(columns | {"importance": model["importance"] / model["importance"].sum()})


def _exchanged(heads: pd.DataFrame, is_positional: pd.Series) -> float:
    """Return the share of exchanges of the label within models whose difference is as large, in either direction."""
    sums, parts = [], [part["survive"].to_numpy() for _, part in heads.groupby(level="model")]
    counts = is_positional[heads.index].groupby(level="model").sum()
    for drawn in product(*(combinations(part, n) for part, n in zip(parts, counts, strict=True) if n)):
        sums.append(sum(map(sum, drawn)))
    observed = heads.loc[is_positional[heads.index], "survive"].sum()
    whole, labelled = heads["survive"].sum(), counts.sum()

    def gap(total: np.ndarray) -> np.ndarray:
        return np.abs(total / labelled - (whole - total) / (len(heads) - labelled))

    return float((gap(np.array(sums)) >= gap(observed) - 1e-9).mean())


def drawn() -> None:
    """Draw a mark per head, moved a little up or down, and the mean of each range of shares."""
    heads, bins = of_translators(), pd.read_csv(PLACE / "shares.csv")[: len(EDGES) - 1]
    figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
    moved = heads["survive"] + np.random.default_rng(0).uniform(-0.04, 0.04, len(heads))
    marks = ax.scatter(heads["share"], moved, c=100 * heads["importance"], cmap="viridis_r", s=16, alpha=0.8)
    for low, high, row in zip(EDGES, EDGES[1:], bins.itertuples(), strict=False):
        ax.hlines(row.survive, low, high, color="0.2")
        at, behind = ((low + high) / 2, row.survive - 0.02), {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        ax.annotate(f"{row.survive:.2f} of {row.heads}", at, ha="center", va="top", fontsize=8, bbox=behind)
    ax.set(xlabel="share of queries that attend most to one neighbour", ylabel="share of gate seeds that keep the head")
    ax.set_title(f"{len(heads)} encoder heads of 14 translators, a quarter of each encoder's left", fontsize=10)
    figure.colorbar(marks, label="importance, % of the encoder's (equal: 4.2)")
