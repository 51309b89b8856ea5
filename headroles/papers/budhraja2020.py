"""Budhraja et al. 2020, "On the weak link": its claims; its numbers are not known (no torch)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headroles import plots
from headroles.papers import budhraja_claims as claims
from headroles.papers.bench import Bench, gains, metric_of
from headroles.papers.printed import printed
from headroles.papers.reproduced import Reproduced, judged
from headroles.papers.verdict import less

ENDS = ("", ".low", ".high")


def claim1(bench: Bench) -> Reproduced:
    """Heads chosen by chance, before and after training; beside them Prasanna et al. 2020, not the paper's numbers."""
    table = bench.table("contest")
    whole = _whole(table)
    rows = table[table["strategy"] == "random"].assign(of="here", whole=table["tuned"].map(whole["value"]))
    costs = [less(whole.loc[row["tuned"], claims.LEVELS], row[claims.LEVELS]) for _, row in rows.iterrows()]
    rows[[f"cost{end}" for end in ENDS]] = gains(np.array(costs), metric_of(table)) / rows[["whole"]].to_numpy()
    rows["share"] = rows["heads"] / table.loc[table["strategy"] == claims.ALL, "heads"].iloc[0]
    theirs = printed("prasanna2020-claim1")
    others = pd.DataFrame({"of": "Prasanna et al. 2020, " + theirs["task"], "strategy": "random", "tuned": True})
    others = others.assign(value=theirs["random"], whole=theirs["whole"], cost=1 - theirs["random"] / theirs["whole"])
    columns = ["of", "strategy", "heads", "share", "tuned", *claims.LEVELS, "whole", *(f"cost{end}" for end in ENDS)]
    found = pd.concat([rows, others], ignore_index=True)[columns]
    found.attrs["source"] = theirs.attrs["source"]
    return judged(claims.claim1, found, plots.contest(table, label=_label(table))[0])


def claim2(bench: Bench) -> Reproduced:
    """What is gained over chance by each choice of heads, after training."""
    table = bench.table("contest")
    worst = table["strategy"].str.startswith("-")  # that is no way to choose what stays
    rows = table[table["tuned"] & ~worst & ~table["strategy"].isin(["random", claims.ALL])]
    found = rows[["strategy", "heads", "value", *claims.GAIN]].reset_index(drop=True)
    found[claims.GAIN] = gains(found[claims.GAIN].to_numpy(), metric_of(table))
    return judged(claims.claim2, found.assign(whole=_whole(table).loc[True, "value"]))


def claim3(bench: Bench) -> Reproduced:
    """Heads taken from the ends or the middle, from consecutive or alternating layers, after training."""
    table = bench.table("places")
    tuned = table[table["tuned"] & (table["strategy"] != claims.ALL)]
    rows = []
    pairs = [("middle", "ends", "middle")]
    pairs += [("consecutive", f"{place} alternating", place) for place in ("bottom", "middle", "top")]
    for heads, part in tuned.set_index("strategy").groupby("heads", sort=False):
        for question, one, other in pairs:
            if {one, other} <= set(part.index):
                told = gains(
                    np.array([less(part.loc[one, claims.LEVELS], part.loc[other, claims.LEVELS])]), metric_of(table)
                )[0]
                rows.append((question, f"{one} rather than {other}", heads, *told))
    found = pd.DataFrame(rows, columns=["question", "taken", "heads", "gain", "low", "high"])
    return judged(claims.claim3, found, plots.contest(table, label=_label(table))[0])


def claim4(bench: Bench) -> Reproduced:
    """How far the weights of each head moved in fine-tuning, and whether all moved alike."""
    moved = bench.table("compensation")
    drawn = plots.heatmaps(moved["moved[all]"], label="change of the weights, relative")[0]
    return judged(claims.claim4, bench.table("uniformity").reset_index(), drawn)


def _whole(table: Any) -> Any:
    """The rows of nothing gone, by whether they were trained."""
    return table[table["strategy"] == claims.ALL].set_index("tuned")


def _label(table: Any) -> str:
    return {"bleu": "BLEU", "chrf": "chrF"}.get(metric_of(table), metric_of(table))
