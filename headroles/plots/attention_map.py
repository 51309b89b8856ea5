"""Figures of attention: weights on one sentence, dependency offsets and accuracy, ablation curves (no torch)."""

from __future__ import annotations

from itertools import cycle, product
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headroles.analysis.summaries import best_heads
from headroles.plots.axes import FEW, TITLES, any_of, finish, font, line, needs, new_axes, of_kind
from headroles.plots.labels import label_of, value_label
from headroles.plots.matrix import short
from headroles.plots.styling import hue
from headroles.tables.declared import RELATIONS, metric_of, quality, signature_of
from headroles.tables.frame import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEVEN = (0, 1, 2, 3, 4, 5, 9)  # places in seaborn's "colorblind" of distinct lines, without grey, which is chance
FAR = 10  # words; words farther apart are counted together at the ends of the histograms
LEAST = 10  # words of a relation, below which a bar is noise
STYLES = ("-", ":", "-.")  # of the first seven quantities, of the next seven ...


def attention(weights: pd.DataFrame, *, vmax: float | None = None, ax: Axes | None = None) -> Axes:
    """Draw the attention weights of one head on one sentence.

    Args:
        weights: Table of `hr.attention_matrix`: a row per query token, a column per key token.
        vmax: Upper end of the scale; by default the largest weight.
        ax: Axes to draw on; by default a new figure.
    """
    import seaborn as sns

    keys, queries = ([str(token).replace("$", r"\$") for token in line] for line in (weights.columns, weights.index))
    cell = float(np.clip(7.5 / max(weights.shape), 0.16, 0.4))
    across, up = (0.08 / cell * max(map(len, line)) for line in (queries, keys))  # cells taken by the tokens
    ax = ax or new_axes((weights.shape[0] + up, weights.shape[1] + across), cell=cell)[0]
    bar = ax.inset_axes((1 + 0.15 / cell / len(keys), 0, 0.15 / cell / len(keys), 1))
    sns.heatmap(
        weights.to_numpy(), vmin=0, vmax=vmax, cmap="Blues", square=True, xticklabels=keys, yticklabels=queries,
        cbar_ax=bar, cbar_kws={"label": "weight"}, ax=ax,
    )  # fmt: skip
    size = font(ax, weights.shape, "m") or 4
    ax.tick_params(axis="x", rotation=90, length=0, labelsize=size)
    ax.tick_params(axis="y", rotation=0, length=0, labelsize=size)
    ax.set(xlabel=weights.columns.name or "key", ylabel=weights.index.name or "query")
    return ax


def offsets(table: pd.DataFrame) -> list[Axes]:
    """Draw how far words are from the words that they depend on: a histogram per relation (Voita et al. 2019, Fig. 3).

    Args:
        table: Table of `hr.data.offsets`.
    """
    import matplotlib.pyplot as plt
    import seaborn as sns

    needs(table, {"relation", "offset", "count", "share"}, "hr.data.offsets")
    parts = list(table.groupby("relation", sort=False))
    drawn = new_axes((4, 5), cell=0.42, panels=len(parts))
    for ax, (name, part) in zip(drawn, parts, strict=True):
        near = part.assign(offset=part["offset"].clip(-FAR - 1, FAR + 1))
        sns.histplot(
            near, x="offset", weights="share", discrete=True, color=hue(2), alpha=1, shrink=0.8, linewidth=0, ax=ax
        )
        relation = RELATIONS.get(str(name), [str(name)])[0]
        ax.set(title=f"{relation} (n = {part['count'].sum():,})", xlabel="words", ylabel="")
        ticks = [-FAR - 1, -(FAR // 2), 0, FAR // 2, FAR + 1]
        ax.set_xticks(ticks, [f"<−{FAR}", f"−{FAR // 2}", "0", f"+{FAR // 2}", f">+{FAR}"])
    finish(*drawn)
    drawn[0].set_ylabel("share of the words")
    drawn[0].figure.suptitle("Where the word stands that each depends on:\nwords after it (+) or before it (−)")
    top = max(ax.get_ylim()[1] for ax in drawn)
    plt.setp(drawn, xlim=(-FAR - 1.8, FAR + 1.8), ylim=(0, top))
    return drawn


def dependency(heads: pd.DataFrame, *, kind: Kind | None = None, ax: Axes | None = None) -> Axes:
    """Draw the best head of each dependency relation beside the best fixed offset.

    Accuracies have 95 % intervals; n is the number of query words (Voita et al. 2019, Fig. 4). Relations of fewer than
    ten words are only named.

    Args:
        heads: Table of `hr.score` with syntax.
        kind: The kind of attention; may be left out if the table has one kind.
        ax: Axes to draw on; by default a new figure.
    """
    part, kind = of_kind(heads, kind)
    best = best_heads(part)
    best["text"] = [short(f"syntactic[{words}]") for words in best["relation"] + " " + best["way"]]
    rare = best["words"] < LEAST
    lacks = ", ".join(best["text"][rare])
    best = any_of(best[~rare], f"no relation has {LEAST} words; got {lacks}").reset_index(drop=True)
    ax = ax or new_axes((5, 2 * len(best)), cell=0.4, beside=2.2)[0]
    x = np.arange(len(best)) + 0.4 * best["relation"].ne(best["relation"].shift()).cumsum()
    ax.bar(x - 0.2, best["accuracy"], 0.4, color=hue(2), label="best head, 95 % interval")
    ax.bar(x + 0.2, best["baseline"], 0.4, color="0.75", label="best fixed offset")
    ax.vlines(x - 0.2, best["low"], best["high"], color="0.1", linewidth=1.2)
    for place, name, top in zip(x - 0.2, best["name"], best[["accuracy", "high"]].max(axis=1), strict=True):
        ax.annotate(name, (place, top), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    words = best["words"].map(lambda n: "" if np.isnan(n) else f"\nn = {n:,.0f}")
    ax.set_xticks(x, best["text"] + "\n" + best["relation"] + words, fontsize=8)
    ax.set(title=TITLES[kind], ylabel="accuracy", ylim=(0, 1.06))
    ax.set_xlabel(f"not drawn, of fewer than {LEAST} words: {lacks}" if lacks else "")
    finish(ax)
    return ax


def curves(table: pd.DataFrame, *, label: str = "", ax: Axes | None = None) -> Axes:
    """Draw a metric against the share of ablated heads, with 95 % intervals (Michel et al. 2019, Fig. 3).

    Of more than six orders the four best and the worst have a colour, the others are thin and grey.

    Args:
        table: Table of `hr.ablation_curve`: a line per order of the heads. The orders "random 0", "random 1" ... are
            drawn as one grey line, their mean, in a band from the lowest to the highest.
        label: Name of the metric; by default from the table.
        ax: Axes to draw on; by default a new figure.
    """
    needs(table, {"order", "share", "value", "low", "high"}, "hr.ablation_curve")
    ax = ax or new_axes((9, 12), cell=0.45, beside=3)[0]
    signature, is_random = signature_of(table, "value"), table["order"].str.startswith("random ")
    chance = table[is_random].groupby("share")["value"].agg(["mean", "min", "max"])
    if len(chance):
        ax.fill_between(chance.index, chance["min"], chance["max"], color="0.85", linewidth=0)
        ax.plot(chance.index, chance["mean"], color="0.5", label="random")
    better = quality(metric_of(signature) or "value", signature).better
    means = table[~is_random].groupby("order")["value"].mean()
    best_first = means.sort_values(ascending=better < 0, kind="stable").index
    named = [*best_first] if len(best_first) <= FEW + 1 else [*best_first[: FEW - 1], best_first[-1]]
    others = [name for name in best_first if name not in named]
    for name in others:
        part = table[table["order"] == name]
        text = f"{len(others)} other rankings" if name == others[0] else "_"
        ax.plot(part["share"], part["value"], color="0.7", linewidth=0.8, label=text)
    quantities = list(dict.fromkeys(_quantity(name) for name in named))
    styles = dict(zip(quantities, cycle(product(STYLES, SEVEN)), strict=False))
    for name, marker in zip(named, cycle("osD^vP*X"), strict=False):
        style, place = styles[_quantity(name)]
        style = style if name == _quantity(name) else "--"
        part, text = table[table["order"] == name], label_of(name, signature)
        ends = part["low"], part["high"]
        line(ax, part["share"], part["value"], color=hue(place), label=text, ends=ends, style=style, marker=marker)
    ax.set(xlabel="share of heads ablated", ylabel=label or value_label(table), xlim=(0, 1))
    finish(ax)
    return ax


def _quantity(order: str) -> str:
    """Return the name of a ranking without its denominator: relevance of the layer and of the model share a colour."""
    return order.replace(" logit]", "]")
