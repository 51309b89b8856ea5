"""The pictures of the study of PLAN.md, from its tables: python figures/questions/role-tests/picture.py."""

from __future__ import annotations

from math import nan
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D
from table import PREVIOUS, beside_its_layer, rows_of

import headroles as hr
from headroles.analysis.role_rules import names
from headroles.patterns.of_roles import pattern_of

HERE = Path(__file__).parent
MODELS = {"smollm2": "SmolLM2-135M-Instruct", "gemma3": "Gemma 3 270M", "minilm": "MiniLM", "mpnet": "MPNet base"}
TRANSLATORS = {"translator": "demo translator", "marian": "small Marian"}
WORDS = {
    "induction": "induction",
    "duplicate": "duplicate token",
    "offset=-1": "previous token",
    "offset=1": "next token",
    "diagonal": "diagonal",
    "first": "first token (sinks)",
}
PARTS = {"": "", "-repeated": "", "-previous": " on repeats"}
SHOWN = {
    "role_pattern": ("the pattern of their role: it is what they do", "o", "C0"),
    "mean": ("their mean output", "^", "C7"),
    "wrong": ("as sharp elsewhere, the cheapest of three", "D", "C1"),
    "placebo_removed": ("other heads of their layers removed", "X", "C5"),
    "placebo_pattern": ("other heads of their layers under this pattern", "P", "C2"),
}
SINKS = ("sink",)
MOST = 0.45  # of the tokens, at least, of roles whose heads are drawn together: induction has half of a repeated text
LEAST = 0.02  # share of tokens to which the pattern of a head in the picture applies


def tested(name: str) -> pd.DataFrame:
    """The tested heads of a model, with the names of their roles; without sinks and patterns of few tokens."""
    roles = {
        pattern.label: role
        for role in names(rows_of(HERE / "roles.parquet", model=name))
        if not role.startswith(SINKS) and (pattern := pattern_of(role)) is not None
    }
    tables = [rows_of(HERE / "tests.parquet", model=name, part=part) for part in ("", "repeated")]
    tables = [table for table in tables if not table.empty]
    parts = [
        table[table.index.get_level_values("role").isin(roles)].rename(index=roles, level="role") for table in tables
    ]
    together = pd.concat([part[part["applies"] >= LEAST] for part in parts])
    together.attrs = tables[0].attrs
    return together


def shares() -> pd.DataFrame:
    """What all heads of a role cost together, and other heads, in shares of what removing the first costs.

    In every model, of a role that applies to half of the tokens or nearly, and where removal costs something for sure.
    """
    rows, columns = [], [f"{cost}{end}" for cost in SHOWN for end in ("", ".low", ".high")]
    for role, words in WORDS.items():
        for part, where in PARTS.items():
            for name, model in (MODELS | TRANSLATORS).items():
                if (row := _together(name, part, role)) is None:
                    continue
                count = row.name[0].removeprefix("all ") if row.name[0].startswith("all ") else "1"
                shown = {column: row.get(column, nan) / row["removed"] for column in columns}
                shown |= {
                    "role_pattern.low": 1 - row["explained.high"],
                    "role_pattern.high": 1 - row["explained.low"],
                }  # paired
                what = {"role": f"{words}{where}", "model": model, "heads": int(count), "removed": row["removed"]}
                rows.append({**what, **shown, "verdict": row["verdict"]})
    return pd.DataFrame(rows)


def _together(name: str, part: str, role: str) -> pd.Series | None:
    """Return the row of all heads of a role, if it applies to half of the tokens or nearly and removal costs."""
    table = rows_of(HERE / "tests.parquet", model=name, part=part.removeprefix("-"))
    found = table[table.index.get_level_values("role") == role] if len(table) else table
    if part == "-previous" and len(found):
        found = beside_its_layer(found, PREVIOUS[name])
    if found.empty or not (found.index[-1][0].startswith("all ") or len(found) == 1):
        return None
    row = found.iloc[-1]
    return None if row["applies"] < MOST or pd.isna(row["explained"]) else row


def draw_shares() -> None:
    """Draw the costs of the heads of each role together, in shares of the cost of removal."""
    rows = pd.read_csv(HERE / "shares.csv")
    figure, ax = plt.subplots(figsize=(9, 1.7 + 0.45 * len(rows)), layout="constrained")
    for y, row in enumerate(rows.to_dict("records")):
        for place, (cost, (_, marker, color)) in enumerate(SHOWN.items()):
            height = y + 0.15 * (place - (len(SHOWN) - 1) / 2)
            is_hollow = cost == "role_pattern" and not row["verdict"].startswith("its role")
            ax.plot([row[f"{cost}.low"], row[f"{cost}.high"]], [height] * 2, color=color, linewidth=1.4)
            ax.plot(
                row[cost], height, marker, color=color, markersize=5, markerfacecolor="white" if is_hollow else color
            )
    for y in range(1, len(rows)):
        if rows["role"][y] != rows["role"][y - 1]:
            ax.axhline(y - 0.5, color="0.85", linewidth=0.8)
    for x, words in ((0, "as intact"), (1, "as removed")):
        ax.axvline(x, color="0.4", linestyle=":", linewidth=1)
        ax.annotate(words, (x, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=9)
    ax.set_xscale("symlog", linthresh=2, linscale=1.5)
    ticks = [-0.5, 0, 0.5, 1, 2, 5, 10, 20, 50]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    names = [f"{row.role}: {row.heads} of {row.model}" for row in rows.itertuples()]
    ax.set_yticks(range(len(rows)), names)
    label = "cost, as a share of what removing these heads costs (logarithmic from 2 on)"
    ax.set(xlabel=label, xlim=(-0.7, 1.2 * rows[[*SHOWN]].max(axis=None)), ylim=(len(rows) - 0.4, -0.6))
    ax.spines[["top", "right"]].set_visible(False)
    marks = [Line2D([], [], color=color, marker=marker, label=words) for words, marker, color in SHOWN.values()]
    words = "the same, where it is not shown to be what they do"
    marks.insert(1, Line2D([], [], color="C0", marker="o", markerfacecolor="white", label=words))
    figure.legend(handles=marks, loc="outside lower center", ncols=2, frameon=False, fontsize=9)


def draw_roles() -> None:
    """Draw the costs of each head of every model that has a table of tests."""
    tables = {name: tested(name) for name in MODELS}
    alone = {
        name: table[~table.index.get_level_values("heads").str.startswith("all ")] for name, table in tables.items()
    }
    most = max(map(len, alone.values()))
    figure, axes = plt.subplots(2, 2, figsize=(15, 2.4 + 0.6 * most), layout="constrained")
    for ax, (name, table) in zip(axes.flat, alone.items(), strict=True):
        hr.plots.role_costs(table, ax=ax)
        ax.set_title(MODELS[name])
        ax.locator_params(axis="x", nbins=4)
        if ax is not axes[0, 1]:
            ax.get_legend().remove()
    plt.figure(figure)


def main() -> None:
    """Write the costs of the heads of each role together: shares.csv."""
    shares().to_csv(HERE / "shares.csv", index=False, float_format="%.4f")


if __name__ == "__main__":
    main()
