"""The claims of Budhraja et al. 2020: a docstring says claim and rule, the function tells from the artefact's table."""

from __future__ import annotations

from typing import Any

from headroles.papers.verdict import LITTLE, Holds, Verdict, above, below, every, on_balance, said, some, widened

ALL = "all heads"  # the row of nothing gone
LEVELS = ["value", "value.low", "value.high"]
GAIN = ["gain", "gain.low", "gain.high"]
UNEVEN = 0.1  # the spread of heads' mean movement over its mean from which it is not "uniform" (our choice)
SURE = 0.01
QUESTIONS = ("middle", "consecutive")


def claim1(table: Any) -> Verdict:
    """A large fraction of heads, chosen by chance, can go at little cost if the model is fine-tuned after it.

    Holds if, with half of the heads or fewer left, chance costs less than 3 % of the score of the whole model after the
    same training, with its interval, at some number of heads; fails if it costs more at each.
    """
    rows = table[(table["of"] == "here") & table["tuned"] & (table["share"] <= 0.5 + 1e-9)]
    parts = [below(row["cost.low"], row["cost.high"], LITTLE) for _, row in rows.iterrows()]
    costs = (100 * rows[["cost", "cost.low", "cost.high"]]).to_numpy()
    told = ", ".join(
        f"{said(*cost, digits=1)} % with {heads:.0f}" for cost, heads in zip(costs, rows["heads"], strict=True)
    )
    return Verdict(some(parts), f"of the score is lost by chance, after training: {told} heads left")


def claim2(table: Any) -> Verdict:
    """After fine-tuning there is no advantage in choosing heads by importance or place over choosing by chance.

    Holds if every gain over chance is below 3 % of the score, its interval widened for all comparisons (Bonferroni);
    fails if such an interval of any is above 0.
    """
    wide = [widened(row[GAIN], len(table)) for _, row in table.iterrows()]
    better = any(low > 0 for _, low, _ in wide)
    small = every(below(low, high, LITTLE * whole) for (_, low, high), whole in zip(wide, table["whole"], strict=True))
    most = table.loc[table["gain"].idxmax()]
    gain = said(*widened(most[GAIN], len(table)), digits=3)
    text = f"the most is gained by {most['strategy']} with {most['heads']:.0f} heads left, {gain}"
    return Verdict(False if better else True if small else None, f"{text} ({len(table)} comparisons)")


def claim3(table: Any) -> Verdict:
    """In an encoder it is better not to take heads from the middle layers, nor from consecutive ones.

    Holds if after training taking from the middle leaves less than taking from the ends, and taking consecutive layers
    less than alternating ones: each with its interval at some number of heads, and the contrary at none.
    """
    if table.empty:
        return Verdict(None, "no two of the places that the claim compares are in the contest")
    parts: dict[str, list[Holds]] = {name: [] for name in QUESTIONS}
    for row in table.itertuples():
        parts[row.question].append(above(row.low, row.high, 0))
    numbers = table[["gain", "low", "high"]].to_numpy()
    texts = zip(table["taken"], table["heads"], numbers, strict=True)
    told = ", ".join(f"{taken} with {heads:.0f} heads left {said(*gain, digits=3)}" for taken, heads, gain in texts)
    return Verdict(every(on_balance(each) for each in parts.values()), told)


def claim4(table: Any) -> Verdict:
    """In fine-tuning the heads that are left all make up for the others: their weights move alike.

    Holds if it is not the same heads that move most each time (Friedman's test over heads, p >= 0.01); fails if it is,
    and the spread of movements over heads is more than a tenth of their mean.
    """
    row = table.set_index("of").loc["moved[all] of heads"]
    text = f"spread {row['cv']:.2f} of the mean, the largest {row['largest over mean']:.2f} times it; w {row['w']:.2f}"
    found = True if row["p"] >= SURE else False if row["cv"] > UNEVEN else None
    return Verdict(found, f"{text}, p {row['p']:.2g}")
