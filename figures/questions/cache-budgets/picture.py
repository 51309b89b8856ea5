"""The picture of the study of PLAN.md, from its tables."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.ticker import PercentFormatter

HERE = Path(__file__).parent
RANKINGS = {
    "integrated-gradients": "integrated gradients",
    "l0": "L0 gates",
    "ablation": "streaming one by one",
    "kvpress": "kvpress' rule, rewritten",
    "retrieval": "retrieval score",
    "distant": "distant attention",
    "random": "random",
}


def drawn() -> None:
    """Draw the change of SmolLM2's loss of answers by the bytes that a cache keeps; Gemma has three groups alone."""
    table = pd.read_csv(HERE / "losses.csv").query("model == 'smollm2' and what == 'answer'")
    ends = table[table["ranking"].isin(["full", "streaming"])]
    figure, ax = plt.subplots(figsize=(8.6, 4), layout="constrained")
    for colour, (ranking, name) in zip(sns.color_palette("colorblind"), RANKINGS.items(), strict=False):
        line = pd.concat([ends, table[table["ranking"] == ranking]]).sort_values("bytes")
        ax.plot(line["bytes"], line["effect"], marker="o", ms=4, lw=1.6, label=name, color=colour)
        ax.fill_between(line["bytes"], line["effect.low"], line["effect.high"], alpha=0.13, lw=0, color=colour)
    ax.axhline(0, color="0.5", lw=0.8, ls="--")
    ax.set(title="SmolLM2-135M-Instruct", xlabel="bytes of the cache at 1,000 tokens, of the full cache's")
    ax.set_ylabel("change of the loss of answers\n(nats per token; more is worse)")
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.legend(title="groups chosen by", frameon=False, loc="upper left", bbox_to_anchor=(1, 1), alignment="left")
    sns.despine(ax=ax)
