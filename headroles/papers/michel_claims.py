"""The claims of Michel et al. 2019: a docstring says claim and rule, the function tells from the artefact's table."""

from __future__ import annotations

from typing import Any

from headroles.papers.verdict import LITTLE, Holds, Verdict, above, below, every, less, said, wilson

SURE = 0.01  # the paper's p
COSTS = ["cost", "cost.low", "cost.high"]
THIRD = 0.28, 0.38  # what counts as "about a third" (our choice)


def fig1(table: Any) -> Verdict:
    """Closing a single head changes the score little for most heads.

    Holds if more than half of the heads change it by less than 3 %, with the interval of that share.
    """
    near, of = int((table["relative"].abs() < LITTLE).sum()), len(table)
    worst = table.loc[table["relative"].abs().idxmax()]
    name = f"layer {worst['layer']} head {worst['head']}"
    text = f"{near} of {of} heads change it by less than 3 %; the most {100 * worst['relative']:+.1f} % ({name})"
    return Verdict(above(*wilson(near, of), 0.5), text)


def table1(table: Any) -> Verdict:
    """Most heads are redundant at test time: 8 of 96 change BLEU at p < 0.01, half of them for the better.

    Holds if fewer than half of the heads change the score at p < 0.01 (uncorrected, as in the paper), with the interval
    of that share.
    """
    hits, of = int(table["significant"].sum()), int(table["of"].sum())
    low, high = wilson(hits, of)
    ups = int(table["better"].sum())
    return Verdict(below(low, high, 0.5), f"{hits} of {of} heads have p < 0.01, {ups} of them for the better")


def table2(table: Any) -> Verdict:
    """One head is enough in most layers of a translation model, though it was trained with many.

    Holds if in more than half of the layers keeping only the best head is not worse at p < 0.01 (where it is not, a
    difference is not shown, which is not the same as none).
    """
    return _enough(table, 0.5)


def table3(table: Any) -> Verdict:
    """One head is enough in every layer of a classifier.

    Holds if in no layer keeping only the best head is worse at p < 0.01, and each interval's end is within 3 % of the
    score.
    """
    return _all_enough(table)


def table5(table: Any) -> Verdict:
    """Also when the head is chosen on other examples, one is enough in half of the layers.

    Holds if in at least half of the layers keeping only that head is not worse at p < 0.01.
    """
    return _enough(table, 0.5 - 1e-9)


def table6(table: Any) -> Verdict:
    """Also when the head is chosen on other examples, one is enough in every layer of a classifier.

    The rule of Table 3.
    """
    return _all_enough(table)


def _enough(table: Any, share: float) -> Verdict:
    bad = table[(table["p"] < SURE) & (table["cost"] > 0)]
    worst = table.loc[table["cost"].idxmax()]
    text = f"in {len(table) - len(bad)} of {len(table)} layers one head is not worse at p < 0.01"
    return Verdict(len(bad) < (1 - share) * len(table), f"{text}; the worst is {worst['kind']} layer {worst['layer']}")


def _all_enough(table: Any) -> Verdict:
    bad = table[(table["p"] < SURE) & (table["cost"] > 0)]
    near = every(below(row["cost.low"], row["cost.high"], LITTLE * row["score"]) for _, row in table.iterrows())
    worst = table.loc[table["cost"].idxmax()]
    cost = said(*worst[["cost", "cost.low", "cost.high"]], digits=3)
    text = f"worse at p < 0.01 in {len(bad)} of {len(table)} layers; the most is lost in layer {worst['layer']}, {cost}"
    return Verdict(False if len(bad) else None if near is False else near, text)


def fig2(table: Any) -> Verdict:
    """Heads that matter on one corpus matter on another: Pearson's correlation 0.56 and 0.68.

    Holds if the correlation over the encoder's heads is above 0 with its interval on every other corpus.
    """
    rows = table[table["heads of"] == "enc-self"]
    ends = ["pearson", "pearson.low", "pearson.high"]
    told = ", ".join(f"{row['corpus']} {said(*row[ends])}" for _, row in rows.iterrows())
    found = every(above(row["pearson.low"], row["pearson.high"], 0) for _, row in rows.iterrows())
    return Verdict(found, told)


def fig3(table: Any) -> Verdict:
    """Some 20 % (translation) or 40 % (BERT) of the heads go by importance without a noticeable loss.

    Holds if closing that share costs less than 3 % of the score, with the interval of the cost.
    """
    return _harmless(table)


def fig6(table: Any) -> Verdict:
    """On other tasks too: 60 % go on SST-2, 50 % on CoLA and MRPC, 20 % in a small translation model.

    The rule of Fig. 3, at the share of the task with the same metric.
    """
    return _harmless(table)


def _harmless(table: Any) -> Verdict:
    rows = table[(table["order"] == "importance") & table["paper"].notna()]
    if rows.empty:
        return Verdict(None, "the paper has no task of this metric")
    row = rows.iloc[0]
    cost = said(*(100 * row[["cost", "cost.low", "cost.high"]]), digits=1)
    found = below(row["cost.low"], row["cost.high"], LITTLE)
    return Verdict(found, f"with {100 * row['share']:.0f} % closed {cost} % of the score is lost{_unpaired(table)}")


def _unpaired(table: Any) -> str:
    return "" if table["paired"].all() else " (an interval as if the two scores varied apart: too wide)"


def fig4(table: Any) -> Verdict:
    """Cross-attention breaks first: beyond 60 % it collapses, while the other kinds keep most of the score.

    Holds if 80 % of its heads cost more, with the interval, than 80 % of the heads of either other kind; fails if they
    cost less than those of one of them.
    """
    rows = table.loc[(table["share"] - 0.8).abs().groupby(table["kind"]).idxmin()].set_index("kind")[COSTS]
    if "cross" not in rows.index or len(rows) < 2:
        return Verdict(None, f"the curves are of {len(rows)} kind of heads")
    rest = rows.drop(index="cross")
    parts = [above(*less(rows.loc["cross"], other)[1:], 0) for _, other in rest.iterrows()]
    told = ", ".join(f"{kind} {said(*(100 * row), digits=0)} %" for kind, row in rows.iterrows())
    return Verdict(every(parts), f"lost with 80 % closed: {told}")


def table4(table: Any) -> Verdict:
    """Cutting out half of the heads makes inference faster, by 17.5 % in large batches.

    Holds if the speed-up in the largest batch is above 1 with its interval.
    """
    row = table.loc[table["batch"].idxmax()]
    numbers = said(row["speedup"], row["speedup.low"], row["speedup.high"])
    return Verdict(above(row["speedup.low"], row["speedup.high"], 1), f"{numbers} in batches of {row['batch']:.0f}")


def heads_share(table: Any) -> Verdict:
    """Attention has about a third of a model's parameters.

    Holds if its share is from 28 to 38 %.
    """
    share = table.set_index("what").loc["attention of all parameters", "ours"]
    return Verdict(bool(THIRD[0] <= share <= THIRD[1]), f"{100 * share:.0f} % of the parameters are attention's")


def fig5(table: Any) -> Verdict:
    """Early in training a model needs its heads; later 40 % go within 85 to 90 % of the score.

    Holds if closing 40 % keeps a smaller share of the score at the first epoch than at the last, and there at least
    0.85, each with its interval; fails if the first keeps more, or the last less than 0.85.
    """
    ends = ["kept", "kept.low", "kept.high"]
    first, last = table.iloc[0], table.iloc[-1]
    parts: list[Holds] = [below(*less(first[ends], last[ends])[1:], 0)]
    parts += [above(last["kept.low"], last["kept.high"], 0.85)]
    told = " and ".join(f"{said(*row[ends])} at epoch {row['epoch']:.0f}" for row in (first, last))
    return Verdict(every(parts), f"closing 40 % keeps {told}{_unpaired(table)}")
