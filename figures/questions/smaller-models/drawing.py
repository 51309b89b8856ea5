"""The primary contrast of the study, and its picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from headroles.analysis.intervals import holm

PRIMARY = {"texts": "news", "trained": "all", "way": "ablation", "context": 2000}
STYLES = {"groups": "o-", "layers": "s--", "blocks": "^:"}


def primary(losses: pd.DataFrame, speed: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Compare pruned groups with dropped layers at equal time of generation, and write contrasts.csv.

    Returns:
        A row per context, way of training and choosing, texts and size: the loss of both, their difference with a 95 %
        interval over texts, and p and Holm's p of the primary contrast. Blank where no two numbers of layers have times
        on either side.
    """
    rows = []
    timed = speed[speed["phase"].eq("generation")].set_index(["what", "way", "size", "context"])["time"]
    for (trained, texts, way, size), _ in losses[losses["what"].eq("groups")].groupby(
        ["trained", "texts", "way", "size"]
    ):
        pruned = _of(losses, "groups", way, size, trained, texts)
        for context in timed.index.get_level_values("context").unique():
            by_time = {0: (1.0, _of(losses, "whole", "", 0, trained, texts))}
            for count in losses.loc[losses["what"].eq("layers") & losses["way"].eq("effect"), "size"].unique():
                found = _of(losses, "layers", "effect", count, trained, texts)
                if len(found) and ("layers", "effect", count, context) in timed.index:
                    by_time[int(count)] = timed["layers", "effect", count, context], found
            if ("groups", way, size, context) not in timed.index:
                continue
            time = timed["groups", way, size, context]
            row = {"trained": trained, "texts": texts, "way": way, "size": size, "context": context, "time": time}
            rows.append(row | _difference(pruned, time, by_time))
    table = pd.DataFrame(rows)
    is_primary = np.logical_and.reduce([table[name].eq(value) for name, value in PRIMARY.items()])
    table["p"] = table["p"].where(is_primary)
    tested = table["p"].notna()
    table.loc[tested, "p.holm"] = holm(table.loc[tested, "p"].to_numpy())
    table.to_csv(folder / "contrasts.csv", index=False, float_format="%.5g", lineterminator="\n")
    return table[is_primary]


def _of(losses: pd.DataFrame, what: str, way: str, size: int, trained: str, texts: str) -> np.ndarray:
    values = {"what": what, "way": way, "size": size, "trained": trained, "texts": texts}
    rows = losses[np.logical_and.reduce([losses[name].eq(value) for name, value in values.items()])]
    return rows.sort_values("text")["loss"].to_numpy()


def _difference(pruned: np.ndarray, time: float, by_time: dict[int, tuple[float, np.ndarray]]) -> dict[str, float]:
    """Return the loss of groups minus that of layers at the same time, interpolated text by text."""
    known = sorted((t, losses) for t, losses in by_time.values() if len(losses) == len(pruned)) if len(pruned) else []
    above = [(t, losses) for t, losses in known if t >= time]
    below = [(t, losses) for t, losses in known if t < time]
    if not above or not below:
        return {"loss": pruned.mean() if len(pruned) else np.nan, "p": np.nan}
    (slow, more), (fast, less) = above[0], below[-1]
    share = (slow - time) / (slow - fast)
    layers = (1 - share) * more + share * less
    differences = pruned - layers
    mean, half = differences.mean(), stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    p = stats.ttest_1samp(differences, 0).pvalue
    return {
        "loss": pruned.mean(),
        "layers": layers.mean(),
        "difference": mean,
        "difference.low": mean - half,
        "difference.high": mean + half,
        "p": p,
    }


def drawn(losses: pd.DataFrame, speed: pd.DataFrame) -> Figure:
    """Draw loss on news against time of generation after 2,000 tokens, a panel per way of training."""
    trainings = {"no": "not retrained", "lora": "100,000 tokens of LoRA", "all": "100,000 tokens, all weights"}
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), sharex=True, sharey=True, layout="constrained")
    times = speed[speed["phase"].eq("generation") & speed["context"].eq(2000)].set_index(["what", "way", "size"])[
        "time"
    ]
    for ax, (trained, title) in zip(axes, trainings.items(), strict=True):
        rows = losses[losses["texts"].eq("news") & losses["trained"].eq(trained)]
        means = rows.groupby(["what", "way", "size"])["loss"].mean()
        start = means.get(("whole", "", 0))
        chance = rows[rows["way"].str.startswith("chance")]
        for number, (what, way) in enumerate(
            dict.fromkeys((w, y.split(" 0")[0]) for w, y, _ in means.index if w != "whole")
        ):
            if way.startswith("chance"):
                continue
            points = [(times[what, way, size], means[what, way, size]) for w, y, size in means.index
                      if (w, y) == (what, way) and (what, way, size) in times.index]  # fmt: skip
            points = sorted([(1.0, start), *points], reverse=True)
            ax.plot(*zip(*points, strict=True), STYLES[what], ms=4, lw=1.2, color=f"C{number}", label=f"{what}: {way}")
        if len(chance):
            points = chance.groupby(["way", "size"])["loss"].mean()
            points = [
                (times["groups", way, size], loss)
                for (way, size), loss in points.items()
                if ("groups", way, size) in times.index
            ]
            ax.plot(*zip(*points, strict=True), "x", color="0.6", ms=4, label="groups: chance") if points else None
        ax.set(title=title, xlabel="time of a new token after 2,000 tokens,\nas a share of the whole model's")
        ax.invert_xaxis()
    axes[0].set_ylabel("loss on news, nats per token")
    axes[0].set_ylim(top=7)
    axes[0].legend(fontsize=6.5, frameon=False)
    figure.suptitle("SmolLM2-135M-Instruct in llama.cpp, one thread; 40 news texts of 500 tokens")
    return figure
