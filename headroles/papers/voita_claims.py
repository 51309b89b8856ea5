"""The claims of Voita et al. 2019: a docstring says claim and rule, the function tells from the artefact's table."""

from __future__ import annotations

from typing import Any

from scipy import stats

from headroles.papers.verdict import LITTLE, Verdict, above, below, every, on_balance, said, some, wilson
from headroles.survivors import THIRDS

MUCH = 1.5  # of an equal share of relevance (our choice; the paper's largest is 1.6)
MARGIN = 0.10  # over the best fixed offset (section 5.2)
RARE = 0.50  # more than: the role "rare"
FEW = 10 / 48  # of the encoder's heads that are left when 38 of 48 are gone
CLEAR = 0.05  # p below which a tendency counts as shown (our choice)


def fig1a(table: Any) -> Verdict:
    """A few heads of a layer have clearly more than an equal share of its relevance.

    Holds if the interval of the largest share of any layer is above 1.5 equal shares.
    """
    times = table[["share", "share.low", "share.high"]].div(table["equal"], axis=0)
    most = times.loc[times["share"].idxmax()]
    name = "layer {layer:.0f} head {head:.0f}".format(**table.loc[times["share"].idxmax()])
    return Verdict(
        above(most["share.low"], most["share.high"], MUCH),
        f"{name} has {said(*most)} equal shares, the most of any",
    )


def fig1b(table: Any) -> Verdict:
    """Heads of large relevance are confident, with few exceptions.

    Holds if the rank correlation of confidence with relevance, within layers, is above 0 with its interval.
    """
    row = table.set_index("what").loc["rank correlation with relevance", ["ours", "ours.low", "ours.high"]]
    return Verdict(above(row.iloc[1], row.iloc[2], 0), f"rank correlation with relevance within layers {said(*row)}")


def fig1c(table: Any) -> Verdict:
    """Important encoder heads have functions: positional, syntactic, and one that looks at rare words.

    Holds if some head has each function in 95 % of the resamples; fails if for one function no head has it in 5 %.
    """
    parts = [None if row.sure != row.sure else _found(row.sure, row.possible) for row in table.itertuples()]
    counts = ", ".join(f"{row.function} {said(row.heads, digits=0)}" for row in table.itertuples())
    return Verdict(every(parts), f"of {table['of'].iloc[0]:.0f} encoder heads: {counts}")


def _found(sure: int, possible: int) -> bool | None:
    return True if sure else None if possible else False


def fig2(table: Any) -> Verdict:
    """The same functions are found in models of other language pairs (here: wherever else this one was scored).

    The rule of Fig. 1c, on each corpus.
    """
    told = [(corpus, fig1c(part)) for corpus, part in table.groupby("corpus", sort=False)]
    return Verdict(every(each.holds for _, each in told), "; ".join(f"{corpus}: {each.why}" for corpus, each in told))


def fig3(table: Any) -> Verdict:
    """Words of a dependency are often at one and the same relative position, so that a head must beat that.

    Holds if for each relation the commonest position has, with its interval, at least the paper's smallest share.
    """
    least = table["paper"].min() - 0.005  # the paper's are rounded to two digits
    shares = ", ".join(f"{row.relation} {row.share:.2f}" for row in table.itertuples())
    found = every(above(row.low, row.high, least) for row in table.itertuples())
    return Verdict(found, f"commonest position: {shares}; the paper's smallest is {table['paper'].min():.2f}")


def fig4(table: Any) -> Verdict:
    """Some heads find a dependency much better than any fixed offset does.

    Holds if in some row the interval of the best head is 0.10 above the baseline; fails if none reaches it.
    """
    return _over(table, some(_gains(table)))


def table1(table: Any) -> Verdict:
    """Subjects and objects are found 0.10 better than by any fixed offset, both from the verb and to it.

    Holds if that is so for nsubj and obj both ways, with intervals of the head's accuracy.
    """
    rows = table[table["relation"].isin(["nsubj", "obj"])]
    return _over(rows, every(_gains(rows)))


def _gains(table: Any) -> list[bool | None]:
    edge = MARGIN - 1e-9
    return [above(row["low"] - row["baseline"], row["high"] - row["baseline"], edge) for _, row in table.iterrows()]


def _over(table: Any, found: bool | None) -> Verdict:
    gain = table["ours"] - table["baseline"]
    best = table.loc[gain.idxmax()]
    numbers = f"{said(best['ours'], best['low'], best['high'])} against {best['baseline']:.2f}"
    enough = int((gain >= MARGIN - 1e-9).sum())
    return Verdict(found, f"{enough} of {len(table)} reach it; most for {best['relation']} {best['way']}: {numbers}")


def fig5(table: Any) -> Verdict:
    """In a sentence the rare-word head looks at the least frequent token.

    Holds if more than half of the tokens of the sentences look at it most, with the interval of that share.
    """
    hits, of = int(table["hits"].sum()), int(table["queries"].sum())
    low, high = wilson(hits, of)
    return Verdict(above(low, high, RARE), f"{hits} of {of} tokens look at it most, {said(hits / of, low, high)}")


def rare(table: Any) -> Verdict:
    """A head of the first layer looks at the rarest word of the sentence.

    Holds if the interval of the best head of layer 0 is above 0.50.
    """
    row = table.set_index("layer").loc[0]
    numbers = said(row["rarity"], row["rarity.low"], row["rarity.high"])
    most = f"the best of any layer in {table['rarity'].max():.2f}"
    text = f"layer 0 head {row['head']:.0f} looks at it in {numbers} of the cases, {most}"
    return Verdict(above(row["rarity.low"], row["rarity.high"], RARE), text)


def fig6(table: Any) -> Verdict:
    """Hard Concrete gates are exactly 0 or exactly 1 with probabilities above zero.

    Holds if P(0) and P(1) are the paper's, to its two digits.
    """
    worst = max((table[f"ours {part}"] - table[f"paper {part}"]).abs().max() for part in ("P(0)", "P(1)"))
    return Verdict(bool(worst <= 0.0055), f"the largest difference from the paper's numbers is {worst:.3f}")


def fig7(table: Any) -> Verdict:
    """Most encoder heads can go at little cost: 38 of 48 for 0.15 BLEU, 44 of 48 for 0.25.

    Holds if the largest size with at most 21 % of the heads costs less than 3 % of the control's score, with its
    interval.
    """
    sizes = table[table["cost"].notna() & (table["heads"] / table["of"] <= FEW + 0.01)]
    if sizes.empty:
        return Verdict(None, "no size has so few heads")
    row = sizes.loc[sizes["heads"].idxmax()]
    cost = said(*(100 * row[["cost", "cost.low", "cost.high"]]), digits=1)
    return Verdict(
        below(row["cost.low"], row["cost.high"], LITTLE),
        f"with {row['heads']:.0f} of {row['of']:.0f} heads left {cost} % of the score is lost",
    )


def fig8(table: Any) -> Verdict:
    """Heads with functions are the last to be pruned.

    Holds if, where at most a quarter of the heads is left, heads with a function are a larger share than in the whole
    model (Fisher's exact test, p < 0.05); fails if they are a smaller one.
    """
    rows = table[table["none"].notna()].sort_values("heads")
    whole, few = rows.iloc[-1], rows[rows["heads"] <= rows["heads"].max() / 4]
    if few.empty:
        return Verdict(None, "no size has a quarter of the heads or fewer")
    left = few.iloc[-1]
    counts = [[one["heads"] - one["none"], one["none"]] for one in (left, whole)]
    now, first = (f"{held:.0f} of {held + none:.0f}" for held, none in counts)
    text = f"{now} heads left have a function, {first} at first"
    if not counts[0][0] and not counts[1][0]:
        return Verdict(None, f"{text}: there is none to stay")
    more, fewer = (stats.fisher_exact(counts, side).pvalue < CLEAR for side in ("greater", "less"))
    return Verdict(True if more else False if fewer else None, text)


def fig9(table: Any) -> Verdict:
    """The encoder's heads go first, those of cross-attention last.

    Holds if at every size the fewest heads left are the encoder's, and at the smallest the most are of cross-attention.
    """
    rows = table[(table["heads"] < table["of"]) & table["enc-self"].notna()].sort_values("heads")
    kinds = rows[["enc-self", "dec-self", "cross"]]
    first = (kinds["enc-self"] <= kinds.min(axis=1)).all()
    last = kinds["cross"].iloc[0] > kinds[["enc-self", "dec-self"]].iloc[0].max()
    told = ", ".join(f"{kind} {int(count)}" for kind, count in kinds.iloc[0].items())
    text = (
        f"with {rows['heads'].iloc[0]:.0f} of {rows['of'].iloc[0]:.0f} heads left: {told} (one training for each size)"
    )
    return Verdict(bool(first and last), text)


def fig10(table: Any) -> Verdict:
    """The decoder's own heads stay in its lower layers, those of cross-attention in the upper ones.

    Holds if, at each size with at most half of all heads, the lower third has more of the decoder's own heads than the
    upper, and fewer of cross-attention; fails if for one of the two kinds it is the other way round at each size.
    """
    rows = table[(table["heads"] <= table["of"] / 2) & table["cross lower"].notna()]
    if rows.empty or not rows[["dec-self lower.of", "dec-self upper.of"]].all(axis=None):
        return Verdict(None, "no size has half of the heads or fewer, or there are too few layers for thirds")
    parts = []
    for kind, up in (("dec-self", False), ("cross", True)):
        more = rows[f"{kind} upper"] - rows[f"{kind} lower"] if up else rows[f"{kind} lower"] - rows[f"{kind} upper"]
        parts.append(True if (more > 0).all() else False if (more < 0).all() else None)
    row = rows.loc[rows["heads"].idxmax()]
    lines = (
        f"{kind} " + ", ".join(f"{row[f'{kind} {third}']:.0f}" for third in THIRDS) for kind in ("dec-self", "cross")
    )
    text = f"in the lower, middle and upper third with {row['heads']:.0f} heads left: {'; '.join(lines)}"
    return Verdict(every(parts), f"{text} ({len(rows)} sizes, one training each)")


def table2(table: Any) -> Verdict:
    """A model of the found heads that is trained from scratch is worse than the pruned one.

    Holds if it is with its interval at some size, and better at none.
    """
    rows = table[table["finetuned"].notna() & (table["heads"] < table["of"])]
    gaps = rows[["gap", "gap.low", "gap.high"]].to_numpy()
    told = zip(rows["heads"], gaps, strict=True)
    text = ", ".join(f"{heads:.0f} heads {said(*gap, digits=1)}" for heads, gap in told)
    return Verdict(
        on_balance(above(low, high, 0) for _, low, high in gaps), f"pruned is better than from scratch by: {text}"
    )


def gates(table: Any) -> Verdict:
    """In training every gate ends almost wholly open or almost wholly closed.

    Holds if at most a tenth of all gates has P(open) from 0.1 to 0.9 at the end, with the interval of that share.
    """
    hits, of = int(table["undecided"].sum()), int(table["of"].sum())
    low, high = wilson(hits, of)
    return Verdict(below(low, high, 0.1), f"{hits} of {of} gates are undecided, {said(hits / of, low, high)}")
