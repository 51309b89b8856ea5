"""The maps of the study of PLAN.md: roles above the effect of ablation."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt

import headroles as hr

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import rows_of  # noqa: E402 - of all studies

TITLES = {"smollm2": "SmolLM2-135M-Instruct", "gemma3": "Gemma 3 270M", "mpnet": "MPNet base"}


def drawn(name: str) -> None:
    """Draw the map of a model."""
    effects, roles = (rows_of(HERE / f"{table}.parquet", of=name) for table in ("ablation", "roles"))
    column = effects.columns[0]
    sizes = [hr.plots.roles(roles).figure.get_size_inches(), hr.plots.heatmap(effects[column]).figure.get_size_inches()]
    plt.close("all")
    size = max(each[0] for each in sizes), sum(each[1] for each in sizes)
    figure, (ax, below) = plt.subplots(2, figsize=size, height_ratios=[each[1] for each in sizes], layout="constrained")
    hr.plots.roles(roles, ax=ax)
    ax.set_title(f"{TITLES[name]}: what each head attends to")
    hr.plots.heatmap(effects[column], cbar=False, ax=below)
    below.set_title("what the model loses without each head")
    cost = "rise of the loss, nats a token" if "loss" in str(column) else "fall of agreement with the intact states"
    bar = figure.colorbar(below.collections[0], ax=below, orientation="horizontal", shrink=0.4, aspect=40)
    bar.set_label(cost)
