"""Budhraja et al. 2020, "On the weak link": its claims; its numbers are not known (no torch)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headroles import plots
from headroles.experiments.papers.artefact import (
    LITTLE,
    Holds,
    Reproduced,
    Verdict,
    above,
    below,
    every,
    judged,
    less,
    on_balance,
    printed,
    provided,
    said,
    some,
    widened,
    within,
)
from headroles.experiments.papers.stakes import trained
from headroles.experiments.papers.tables import Bench, gains, metric_of

ENDS = ("", ".low", ".high")


def claim1(bench: Bench) -> Reproduced:
    """Heads chosen by chance, before and after training; beside them Prasanna et al. 2020, not the paper's numbers."""
    table = bench.table("contest")
    whole = _whole(table)
    rows = table[table["strategy"] == "random"].assign(of="here", whole=table["tuned"].map(whole["value"]))
    costs = [less(whole.loc[row["tuned"], LEVELS], row[LEVELS]) for _, row in rows.iterrows()]
    rows[[f"cost{end}" for end in ENDS]] = gains(np.array(costs), metric_of(table)) / rows[["whole"]].to_numpy()
    rows["share"] = rows["heads"] / table.loc[table["strategy"] == ALL, "heads"].iloc[0]
    theirs = printed("prasanna2020-claim1")
    others = pd.DataFrame({"of": "Prasanna et al. 2020, " + theirs["task"], "strategy": "random", "tuned": True})
    others = others.assign(value=theirs["random"], whole=theirs["whole"], cost=1 - theirs["random"] / theirs["whole"])
    columns = ["of", "strategy", "heads", "share", "tuned", *LEVELS, "whole", *(f"cost{end}" for end in ENDS)]
    found = pd.concat([rows, others], ignore_index=True)[columns]
    found.attrs["source"] = theirs.attrs["source"]
    return judged(claim1_claim, _how_long(bench, found), lambda: plots.contest(table, label=_label(table))[0])


def claim2(bench: Bench) -> Reproduced:
    """What is gained over chance by each choice of heads, after training."""
    table = bench.table("contest")
    worst = table["strategy"].str.startswith("-")  # that is no way to choose what stays
    rows = table[~worst & ~table["strategy"].isin(["random", ALL])]
    rows = rows[["strategy", "heads", "value", "tuned", *GAIN]].copy()
    rows[GAIN] = gains(rows[GAIN].to_numpy(), metric_of(table))
    names = {name: name.replace("gain", "untuned") for name in GAIN}
    before = rows[~rows["tuned"]].rename(columns=names)[["strategy", "heads", *names.values()]]
    found = rows[rows["tuned"]].drop(columns="tuned").merge(before, on=["strategy", "heads"], how="left")
    return judged(claim2_claim, _how_long(bench, found.assign(whole=_whole(table).loc[True, "value"])))


def claim3(bench: Bench) -> Reproduced:
    """Heads taken from the ends or the middle, from consecutive or alternating layers, after training."""
    table = bench.table("places")
    tuned = table[table["tuned"] & (table["strategy"] != ALL)]
    rows = []
    pairs = [("middle", "ends", "middle")]
    pairs += [("consecutive", f"{place} alternating", place) for place in ("bottom", "middle", "top")]
    for heads, part in tuned.set_index("strategy").groupby("heads", sort=False):
        for question, one, other in pairs:
            if {one, other} <= set(part.index):
                told = gains(np.array([less(part.loc[one, LEVELS], part.loc[other, LEVELS])]), metric_of(table))[0]
                rows.append((question, f"{one} rather than {other}", heads, *told))
    found = pd.DataFrame(rows, columns=["question", "taken", "heads", "gain", "low", "high"])
    return judged(claim3_claim, _how_long(bench, found), lambda: plots.contest(table, label=_label(table))[0])


def claim4(bench: Bench) -> Reproduced:
    """How far the weights of each head moved in fine-tuning, and whether all moved alike."""
    moved = bench.table("compensation")
    found = bench.table("uniformity").reset_index()
    found["moved"] = moved["moved[all]"].mean()
    found["moved.whole"] = found.get("moved.whole", np.nan)  # of training with all heads
    label = "change of the weights, relative"
    found = _how_long(bench, found)
    return judged(claim4_claim, found, lambda: plots.heatmaps(moved["moved[all]"], label=label)[0])


def _how_long(bench: Bench, found: pd.DataFrame) -> pd.DataFrame:
    """The table with how long models were fine-tuned after heads were removed."""
    return found.assign(**{name: trained(bench, "retrained", name) for name in ("steps", "epochs")})


def _whole(table: Any) -> Any:
    """The rows of nothing gone, by whether they were trained."""
    return table[table["strategy"] == ALL].set_index("tuned")


def _label(table: Any) -> str:
    return {"bleu": "BLEU", "chrf": "chrF"}.get(metric_of(table), metric_of(table))


ALL = "all heads"  # the row of nothing gone
LEVELS = ["value", "value.low", "value.high"]
GAIN = ["gain", "gain.low", "gain.high"]
UNEVEN = 0.1  # the spread of heads' mean movement over its mean from which it is not "uniform" (our choice)
SURE = 0.01
QUESTIONS = ("middle", "consecutive")
LEAST = 3  # epochs of all data of the task: what the paper's shortest fine-tuning is taken to be (our choice)


def claim1_claim(table: Any) -> Verdict:
    """A large fraction of heads, chosen by chance, can go at little cost if the model is fine-tuned after it.

    Holds if, with half of the heads or fewer left, chance costs less than 3 % of the score of the whole model after the
    same training, with its interval, at some number of heads, and more without training; fails if it costs more at
    each. Not comparable where the training is shorter than three epochs of all data of the task, or nothing says how
    long.
    """
    here = table[(table["of"] == "here") & (table["share"] <= 0.5 + 1e-9)]
    rows, untuned = here[here["tuned"]], here[~here["tuned"]]
    parts = [below(row["cost.low"], row["cost.high"], LITTLE) for _, row in rows.iterrows()]
    needed = some(above(row["cost.low"], row["cost.high"], LITTLE) for _, row in untuned.iterrows())
    costs = (100 * rows[["cost", "cost.low", "cost.high"]]).to_numpy()
    told = ", ".join(
        f"{said(*cost, digits=1)} % with {heads:.0f}" for cost, heads in zip(costs, rows["heads"], strict=True)
    )
    text = f"of the score is lost by chance, after training: {told} heads left"
    return _tuned(provided(some(parts), needed), text, table)


def claim2_claim(table: Any) -> Verdict:
    """After fine-tuning there is no advantage in choosing heads by importance or place over choosing by chance.

    Holds if every difference from chance is below 3 % of the score in either direction, its interval widened for all
    comparisons (Bonferroni), and without training some is not; fails if such an interval of any is above 0. Not
    comparable as claim 1.
    """
    wide = [widened(row[GAIN], len(table)) for _, row in table.iterrows()]
    better = any(low > 0 for _, low, _ in wide)
    small = every(within(low, high, LITTLE * whole) for (_, low, high), whole in zip(wide, table["whole"], strict=True))
    before = table[["untuned.low", "untuned.high", "whole"]].to_numpy()
    needed = any(within(low, high, LITTLE * whole) is False for low, high, whole in before)
    most = table.loc[table["gain"].idxmax()]
    gain = said(*widened(most[GAIN], len(table)), digits=3)
    text = f"the most is gained by {most['strategy']} with {most['heads']:.0f} heads left, {gain}"
    found = False if better else True if small and needed else None
    return _tuned(found, f"{text} ({len(table)} comparisons)", table)


def _tuned(found: Holds, text: str, table: Any) -> Verdict:
    """A verdict on models after fine-tuning, if that was long enough."""
    epochs, steps = table[["epochs", "steps"]].iloc[0]
    if epochs != epochs:
        return Verdict(None, f"{text}; nothing says how long was trained", comparable=False)
    long = bool(epochs >= LEAST)
    text += f"; trained for {steps:.0f} steps, {epochs:.2g} epochs of the task's data"
    return Verdict(found if long else None, text, long)


def claim3_claim(table: Any) -> Verdict:
    """In an encoder it is better not to take heads from the middle layers, nor from consecutive ones.

    Holds if after training taking from the middle leaves less than taking from the ends, and taking consecutive layers
    less than alternating ones: each with its interval at some number of heads, and the contrary at none. Not comparable
    as claim 1.
    """
    if table.empty:
        return Verdict(None, "no two of the places that the claim compares are in the contest")
    parts: dict[str, list[Holds]] = {name: [] for name in QUESTIONS}
    for row in table.itertuples():
        parts[row.question].append(above(row.low, row.high, 0))
    numbers = table[["gain", "low", "high"]].to_numpy()
    texts = zip(table["taken"], table["heads"], numbers, strict=True)
    told = ", ".join(f"{taken} with {heads:.0f} heads left {said(*gain, digits=3)}" for taken, heads, gain in texts)
    return _tuned(every(on_balance(each) for each in parts.values()), told, table)


def claim4_claim(table: Any) -> Verdict:
    """In fine-tuning the heads that are left all make up for the others: their weights move alike.

    Holds if the heads' mean movements differ by less than a tenth of their mean (coefficient of variation), and it is
    not the same heads that move most each time (Friedman's test over heads, p >= 0.01), and they move more than in the
    same training with no head removed; fails if it is the same heads and the spread is larger. Not comparable as claim
    1.
    """
    row = table.set_index("of").loc["moved[all] of heads"]
    text = f"spread {row['cv']:.2f} of the mean, the largest {row['largest over mean']:.2f} times it; w {row['w']:.2f}"
    alike = bool(row["p"] >= SURE and row["cv"] <= UNEVEN)
    found = True if alike and row["moved"] > row["moved.whole"] else False if _uneven(row) else None
    return _tuned(found, f"{text}, p {row['p']:.2g}", table)


def _uneven(row: Any) -> bool:
    return bool(row["p"] < SURE and row["cv"] > UNEVEN)
