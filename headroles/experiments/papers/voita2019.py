"""Voita et al. 2019, "Specialized heads": each figure and table, from the tables of a bench (no torch)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from headroles import plots
from headroles.analysis import role_rules
from headroles.experiments.papers import drawings
from headroles.experiments.papers.artefact import (
    LITTLE,
    TWICE,
    Reproduced,
    Verdict,
    above,
    aligned,
    at_stake,
    below,
    beside,
    every,
    expected,
    judged,
    less,
    of_wmt,
    on_balance,
    printed,
    provided,
    said,
    some,
    wilson,
)
from headroles.experiments.papers.stakes import (
    CLEAR,
    costs,
    placed,
    reached,
    stake,
    trained,
    unlike_chance,
    within_layers,
)
from headroles.experiments.papers.tables import Bench, Missing, field, gains, metric_of, of_kind
from headroles.plots.sparsity import FUNCTIONS, LOW, THIRDS
from headroles.tables.frame import KINDS

ROLES = ("positional", "syntactic", "rare")
ENDS = ("", ".low", ".high")
KNOWN = 0.95, 0.05  # of the resamples in which a head has a role: sure, possible


def fig1a(bench: Bench) -> Reproduced:
    """Relevance of the encoder's heads, those of a layer by falling relevance."""
    table = bench.table("relevance")
    name = _relevance(table)
    shares = of_kind(table)[[name, f"{name}.low", f"{name}.high"]].set_axis(
        ["share", "share.low", "share.high"], axis=1
    )
    layers = shares.groupby(level="layer")["share"]
    best = shares.loc[layers.idxmax()].reset_index().drop(columns="kind")
    best["equal"] = 1 / layers.size().to_numpy()
    best["untrained"] = expected(_reference(bench, "most"))
    found = beside(best, "voita2019-fig1a", "layer")
    return judged(fig1a_claim, found, lambda: plots.relevance(table[name], kind="enc-self"))


def fig1b(bench: Bench) -> Reproduced:
    """Confidence of the encoder's heads, in the order of their relevance."""
    table: Any = of_kind(bench.table("relevance"))
    pair = table[["confidence", _relevance(table)]]
    told = within_layers(pair)
    ends = {"largest": table["confidence"].idxmax(), "smallest": table["confidence"].idxmin()}
    columns = ["confidence", "confidence.low", "confidence.high"]
    rows = [(name, *table[columns].loc[head]) for name, head in ends.items()]
    rows += [("rank correlation with relevance", *told[["spearman", "spearman.low", "spearman.high"]])]
    found = beside(pd.DataFrame(rows, columns=["what", "ours", "ours.low", "ours.high"]), "voita2019-fig1b", "what")
    found["untrained"] = expected(_reference(bench, "correlation"))
    return judged(fig1b_claim, found, lambda: drawings.ranked(pair))


def fig1c(bench: Bench) -> Reproduced:
    """Functions of the encoder's heads."""
    told = role_rules.roles(bench.table("functions"))
    found = beside(_functions(of_kind(told)), "voita2019-fig1c", "function")
    return judged(fig1c_claim, found, lambda: plots.roles(told, kind="enc-self"))


def fig2(bench: Bench) -> Reproduced:
    """The same two maps for other corpora or models, at most two, one below the other."""
    first, *others = bench.tables("functions")[:3]
    if not others:
        raise Missing("Fig. 2 shows other models, and there is one table of scores; headroles score on another corpus")
    names = [_told_on(table, first) for table in others]
    told = [role_rules.roles(table) for table in others]
    parts = [_functions(of_kind(table)).assign(corpus=name) for table, name in zip(told, names, strict=True)]
    found = beside(pd.concat(parts, ignore_index=True), "voita2019-fig2", "function")
    panels = [*zip(others, told, names, strict=True)]
    return judged(fig2_claim, found, lambda: drawings.corpora(panels))


def fig3(bench: Bench) -> Reproduced:
    """Where the other word of a dependency is: a histogram per relation."""
    table = bench.table("offsets")
    rows = table.loc[table.groupby("relation", sort=False)["count"].idxmax(), ["relation", "offset", "count", "share"]]
    of = rows["relation"].map(table.groupby("relation")["count"].sum())
    rows[["low", "high"]] = [wilson(count, all_) for count, all_ in zip(rows["count"], of, strict=True)]
    theirs = printed("voita2019-table1").drop_duplicates("relation")
    found = rows.merge(
        theirs[["relation", "paper.baseline"]].rename(columns={"paper.baseline": "paper"}), on="relation"
    )
    return judged(fig3_claim, found, lambda: plots.offsets(table)[0])


def fig4(bench: Bench) -> Reproduced:
    """The best head of each relation and way beside the best fixed offset: bars."""
    table = bench.table("functions")
    return judged(fig4_claim, _dependencies(table), lambda: plots.dependency(table, kind="enc-self"))


def table1(bench: Bench) -> Reproduced:
    """The best head of each relation and way beside the best fixed offset: numbers."""
    return judged(table1_claim, _dependencies(bench.table("functions")))


def fig5(bench: Bench) -> Reproduced:
    """The rare-word head on sentences: where each token looks."""
    table = bench.table("attention")
    rows = []
    for name, part in table.groupby("sentence", sort=False):
        tokens = part.drop_duplicates("key").set_index("key")
        counted = tokens.index[tokens["counted"]]
        most = drawings.weights(part)[counted].idxmax(axis=1)[counted]
        rows.append((name, len(most), int(tokens.loc[most, "rarest"].sum())))
    found = pd.DataFrame(rows, columns=["sentence", "queries", "hits"])
    return judged(fig5_claim, found, lambda: drawings.sentences(table))


def rare(bench: Bench) -> Reproduced:
    """The head of each layer that looks at the rarest token most (section 5.3, text)."""
    table = of_kind(bench.table("functions"))[["rarity", "rarity.low", "rarity.high"]]
    if table["rarity"].isna().all():
        raise Missing("no sentence has a token outside the 500 most frequent; headroles score on more sentences")
    best = table.loc[table.groupby(level="layer")["rarity"].idxmax()].reset_index().drop(columns="kind")
    return judged(rare_claim, beside(best, "voita2019-rare", "layer"))


def fig6(bench: Bench) -> Reproduced:
    """The Hard Concrete distribution for three values of log alpha; needs no table."""
    assert bench is not None
    theirs = printed("voita2019-fig6")
    alpha = theirs["log alpha"].to_numpy(float)
    edge = 0.5 * np.log(-LOW / (1 - LOW))  # the temperature times the logit of where a gate begins to open
    ours = {"ours P(0)": 1 / (1 + np.exp(alpha - edge)), "ours P(1)": 1 / (1 + np.exp(-alpha - edge))}
    table = theirs.assign(**ours)
    return judged(fig6_claim, table, lambda: plots.densities([*alpha]))


def fig7(bench: Bench) -> Reproduced:
    """What the model is worth with fewer encoder heads."""
    table = bench.table("sizes-encoder")
    sizes = table.assign(heads=table["enc-self"], of=table["enc-self"].iloc[0])
    metric = metric_of(table)
    kept = ["heads", "of", "value", "low", "high", "change", "change.low", "change.high"]
    found = aligned(sizes[kept].assign(**costs(sizes, sizes.iloc[0], metric)), printed("voita2019-fig7"))
    found[[f"all{end}" for end in ENDS]] = stake(bench, "enc-self")
    return judged(fig7_claim, found, lambda: plots.survival(sizes, label={"bleu": "BLEU"}.get(metric, metric)))


def fig8(bench: Bench) -> Reproduced:
    """How many of the encoder's heads that are left have which function."""
    table = bench.table("functions-encoder")
    own = table[table["kind"] == "enc-self"]
    wide = own.pivot_table(index="heads", columns="function", values="count", fill_value=0, observed=True)
    wide = wide.reindex(columns=["none", *FUNCTIONS], fill_value=0).rename_axis(columns=None)
    ours = wide.assign(of=wide.sum(axis=1).max(), heads=wide.sum(axis=1)).reset_index(drop=True)
    found = aligned(ours, printed("voita2019-fig8"))
    return judged(fig8_claim, found, lambda: plots.functions(table, kind="enc-self"))


def fig9(bench: Bench) -> Reproduced:
    """How many heads of each kind are left at each size."""
    sizes = bench.table("sizes")
    theirs = of_wmt("voita2019-fig9").rename(columns={kind: f"paper.{kind}" for kind in KINDS})
    ours = sizes[["heads", "of", *KINDS]]
    return judged(fig9_claim, aligned(ours, theirs), lambda: plots.by_kind(sizes))


def fig10(bench: Bench) -> Reproduced:
    """How many heads of the decoder are left in its lower, middle and upper layers at each size."""
    survival = bench.table("survival")
    thirds = plots.thirds(of_kind(survival, "dec-self")).join(plots.thirds(of_kind(survival, "cross")))
    ours = thirds.assign(heads=survival[thirds.index].sum().to_numpy(int), of=len(survival))
    theirs = printed("voita2019-fig10").add_prefix("paper.").rename(columns={"paper.of": "of"})
    theirs["heads"] = of_wmt("voita2019-fig9")["heads"]
    return judged(fig10_claim, aligned(ours, theirs), lambda: plots.by_third(survival)[0])


def table2(bench: Bench) -> Reproduced:
    """Models with the found heads: fine-tuned with gates, and trained from scratch."""
    table = bench.table("scratch")
    ours = table.rename(columns=dict(zip("edc", KINDS, strict=True)))
    ours = ours.assign(of=int(bench.table("sizes")["of"].iloc[0]), heads=ours[[*KINDS]].sum(axis=1))
    pair = (ours[[f"{name}{end}" for end in ENDS]].to_numpy() for name in ("finetuned", "scratch"))
    gaps = gains(np.array([less(one, other) for one, other in zip(*pair, strict=True)]), metric_of(table))
    ours[[f"gap{end}" for end in ENDS]] = gaps
    ours = ours.assign(**{f"steps.{name}": trained(bench, name, "steps") for name in ("finetuned", "scratch")})
    theirs = of_wmt("voita2019-table2").rename(columns={one: f"paper.{one}" for one in ("finetuned", "scratch")})
    return judged(table2_claim, aligned(ours, theirs, [*KINDS, "heads", "of"]))


def gates(bench: Bench) -> Reproduced:
    """P(gate != 0) of the encoder's heads over training, a panel for each size (the blog's animation)."""
    tables = sorted(bench.tables("gates"), key=lambda table: -_size(table))
    last = [of_kind(table.set_index(["kind", "layer", "head"])) for table in tables]
    ends = [table.loc[table["step"] == table["step"].max(), "open"] for table in last]
    counts = {"heads": [*map(_size, tables)], "of": [*map(len, ends)]}
    counts |= {"undecided": [int(end.between(0.1, 0.9).sum()) for end in ends]}
    counts |= {"closed": [int((end < 0.1).sum()) for end in ends]}
    return judged(gates_claim, pd.DataFrame(counts), lambda: drawings.histories(tables, counts["heads"]))


def _reference(bench: Bench, column: str) -> list[float]:
    """A number of each of some untrained models of the same shape; none where there is no table of them."""
    try:
        return [*bench.table("untrained")[column]]
    except Missing:
        return []


def _relevance(table: pd.DataFrame) -> str:
    """The column of relevance shares: of the rules `cp`, which are the paper's equations, where the table has it."""
    found = [name for name in map(str, table) if re.fullmatch(r"relevance\[[^ ]*\]\.size", name)]
    return "relevance[cp].size" if "relevance[cp].size" in found else found[0]


def _told_on(table: pd.DataFrame, first: pd.DataFrame) -> str:
    """The corpus of a table of scores, with the model if it is another."""
    model, corpus = (field(table, name, "confidence") for name in ("model", "corpus"))
    same = field(table, "weights", "confidence") == field(first, "weights", "confidence")
    return corpus.partition("+")[0] + ("" if same else f" ({model})")


def _functions(told: pd.DataFrame) -> pd.DataFrame:
    """How many heads have each function, surely and possibly."""
    rows = []
    for family in ROLES:
        variants = [name for name in role_rules.names(told) if name.partition("[")[0] == family]
        stable = told[[f"{name}.stability" for name in variants]].max(axis=1)
        counts = [told[variants].any(axis=1).sum(), *((stable >= share).sum() for share in KNOWN)]
        known = told[[f"{name}.value" for name in variants]].notna().any(axis=None)
        rows.append((family, *(count if known else np.nan for count in counts), len(told)))
    return pd.DataFrame(rows, columns=["function", "heads", "sure", "possible", "of"])


def _dependencies(table: pd.DataFrame) -> pd.DataFrame:
    """The best head of each relation and way, with the best fixed offset, and the paper's."""
    found = plots.best_heads(of_kind(table)).rename(columns={"accuracy": "ours"})
    return beside(found.drop(columns="text"), "voita2019-table1", ["relation", "way"])


def _size(history: pd.DataFrame) -> int:
    """How many heads a history of gates ends with, by its file's name."""
    return int(str(history.attrs["file"]).removesuffix(".parquet").rpartition("-")[2])


MUCH = 1.5  # of an equal share of relevance (our choice; the paper's largest is 1.6)
MARGIN = 0.10  # over the best fixed offset (section 5.2)
RARE = 0.50  # more than: the role "rare"
FEW = 10 / 48  # of the encoder's heads that are left when 38 of 48 are gone


def fig1a_claim(table: Any) -> Verdict:
    """A few heads of a layer have clearly more than an equal share of its relevance.

    Holds if the interval of the largest share of any layer is above 1.5 equal shares, and above what the largest share
    of an untrained model of the same shape exceeds with p = 0.01 (Student's prediction interval over several of them).
    """
    times = table[["share", "share.low", "share.high"]].div(table["equal"], axis=0)
    most = times.loc[times["share"].idxmax()]
    name = "layer {layer:.0f} head {head:.0f}".format(**table.loc[times["share"].idxmax()])
    chance = table["untrained"].iloc[0]
    parts = [above(most["share.low"], most["share.high"], bound) for bound in (MUCH, chance)]
    return Verdict(
        None if chance != chance and parts[0] else every(parts),
        f"{name} has {said(*most)} equal shares, the most of any; {reached(chance)}",
    )


def fig1b_claim(table: Any) -> Verdict:
    """Heads of large relevance are confident, with few exceptions.

    Holds if the rank correlation of confidence with relevance, within layers, is above 0 with its interval, and the
    correlation above what an untrained model of the same shape exceeds with p = 0.01; fails if it is below 0.
    """
    row = table.set_index("what").loc["rank correlation with relevance", ["ours", "ours.low", "ours.high"]]
    chance = table["untrained"].iloc[0]
    text = f"rank correlation with relevance within layers {said(*row)}; {reached(chance)}"
    return Verdict(provided(above(row.iloc[1], row.iloc[2], 0), bool(row.iloc[0] > chance)), text)


def fig1c_claim(table: Any) -> Verdict:
    """Important encoder heads have functions: positional, syntactic, and one that looks at rare words.

    Holds if some head has each function in 95 % of the resamples; fails if for one function no head has it in 5 %.
    """
    parts = [True if row.sure > 0 else False if row.possible == 0 else None for row in table.itertuples()]
    counts = ", ".join(f"{row.function} {said(row.heads, digits=0)}" for row in table.itertuples())
    return Verdict(every(parts), f"of {table['of'].iloc[0]:.0f} encoder heads: {counts}")


def fig2_claim(table: Any) -> Verdict:
    """The same functions are found in models of other language pairs (here: wherever else this one was scored).

    The rule of Fig. 1c, on each corpus.
    """
    told = [(corpus, fig1c_claim(part)) for corpus, part in table.groupby("corpus", sort=False)]
    return Verdict(every(each.holds for _, each in told), "; ".join(f"{corpus}: {each.why}" for corpus, each in told))


def fig3_claim(table: Any) -> Verdict:
    """Words of a dependency are often at one and the same relative position, so that a head must beat that.

    Holds if for each relation the commonest position has, with its interval, at least the paper's smallest share.
    """
    least = table["paper"].min() - 0.005  # the paper's are rounded to two digits
    shares = ", ".join(f"{row.relation} {row.share:.2f}" for row in table.itertuples())
    found = every(above(row.low, row.high, least) for row in table.itertuples())
    return Verdict(found, f"commonest position: {shares}; the paper's smallest is {table['paper'].min():.2f}")


def fig4_claim(table: Any) -> Verdict:
    """Some heads find a dependency much better than any fixed offset does.

    Holds if in some row the interval of the best head is 0.10 above the baseline; fails if none reaches it.
    """
    return _over(table, some(_gains(table)))


def table1_claim(table: Any) -> Verdict:
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


def fig5_claim(table: Any) -> Verdict:
    """In a sentence the rare-word head looks at the least frequent token.

    Holds if more than half of the tokens of the sentences look at it most, with the interval of that share.
    """
    hits, of = int(table["hits"].sum()), int(table["queries"].sum())
    low, high = wilson(hits, of)
    return Verdict(above(low, high, RARE), f"{hits} of {of} tokens look at it most, {said(hits / of, low, high)}")


def rare_claim(table: Any) -> Verdict:
    """A head of the first layer looks at the rarest word of the sentence.

    Holds if the interval of the best head of layer 0 is above 0.50.
    """
    row = table.set_index("layer").loc[0]
    numbers = said(row["rarity"], row["rarity.low"], row["rarity.high"])
    most = f"the best of any layer in {table['rarity'].max():.2f}"
    text = f"layer 0 head {row['head']:.0f} looks at it in {numbers} of the cases, {most}"
    return Verdict(above(row["rarity.low"], row["rarity.high"], RARE), text)


def fig6_claim(table: Any) -> Verdict:
    """Hard Concrete gates are exactly 0 or exactly 1 with probabilities above zero.

    Holds if P(0) and P(1) are the paper's, to its two digits.
    """
    worst = max((table[f"ours {part}"] - table[f"paper {part}"]).abs().max() for part in ("P(0)", "P(1)"))
    return Verdict(bool(worst <= 0.0055), f"the largest difference from the paper's numbers is {worst:.3f}")


def fig7_claim(table: Any) -> Verdict:
    """Most encoder heads can go at little cost: 38 of 48 for 0.15 BLEU, 44 of 48 for 0.25.

    Holds if the largest size with at most 21 % of the heads costs less than 3 % of the score of a control that was
    trained as long, with its interval, and removing all the encoder's heads without training costs more than that.
    """
    sizes = table[table["cost"].notna() & (table["heads"] / table["of"] <= FEW + 0.01)]
    if sizes.empty:
        return Verdict(None, "no size has so few heads")
    row = sizes.loc[sizes["heads"].idxmax()]
    cost = said(*(100 * row[["cost", "cost.low", "cost.high"]]), digits=1)
    return Verdict(
        provided(below(row["cost.low"], row["cost.high"], LITTLE), at_stake(table)),
        f"with {row['heads']:.0f} of {row['of']:.0f} heads left {cost} % of the control's score is lost, "
        f"{said(100 * table['all'].iloc[0], digits=0)} % with none and no training",
    )


def fig8_claim(table: Any) -> Verdict:
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


def fig9_claim(table: Any) -> Verdict:
    """The encoder's heads go first, those of cross-attention last.

    Holds if at every size the fewest heads left are the encoder's, and at the smallest the most are of cross-attention,
    and where at most half of all is left the encoder's are fewer than a draw by chance leaves (hypergeometric, p <
    0.05).
    """
    rows = table[(table["heads"] < table["of"]) & table["enc-self"].notna()].sort_values("heads")
    kinds = rows[["enc-self", "dec-self", "cross"]]
    first = (kinds["enc-self"] <= kinds.min(axis=1)).all()
    last = kinds["cross"].iloc[0] > kinds[["enc-self", "dec-self"]].iloc[0].max()
    told = ", ".join(f"{kind} {int(count)}" for kind, count in kinds.iloc[0].items())
    text = (
        f"with {rows['heads'].iloc[0]:.0f} of {rows['of'].iloc[0]:.0f} heads left: {told} (one training for each size)"
    )
    few = rows[rows["heads"] <= rows["of"] / 2]
    return Verdict(provided(bool(first and last), not few.empty and unlike_chance(few.iloc[-1], table)), text)


def fig10_claim(table: Any) -> Verdict:
    """The decoder's own heads stay in its lower layers, those of cross-attention in the upper ones.

    Holds if, at each size with at most half of all heads, the lower third has more of the decoder's own heads than the
    upper, and fewer of cross-attention, and at the largest of these both together are beyond chance (Fisher's exact
    test, p < 0.05); fails if for one of the two kinds it is the other way round at each size.
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
    return Verdict(provided(every(parts), placed(row)), f"{text} ({len(rows)} sizes, one training each)")


def table2_claim(table: Any) -> Verdict:
    """A model of the found heads that is trained from scratch is worse than the pruned one.

    Holds if it is with its interval at some size, and better at none. Not comparable where one of the two had more than
    twice the steps of the other, or nothing says how many.
    """
    rows = table[table["finetuned"].notna() & (table["heads"] < table["of"])]
    gaps = rows[["gap", "gap.low", "gap.high"]].to_numpy()
    told = zip(rows["heads"], gaps, strict=True)
    text = ", ".join(f"{heads:.0f} heads {said(*gap, digits=1)}" for heads, gap in told)
    one, other = rows[["steps.finetuned", "steps.scratch"]].iloc[0]
    found = on_balance(above(low, high, 0) for _, low, high in gaps)
    alike = bool(one <= TWICE * other and other <= TWICE * one)  # no, where it is not known
    text = f"pruned is better than from scratch by: {text}; trained for {said(one, digits=0)} steps against "
    return Verdict(found if alike else None, f"{text}{said(other, digits=0)}", alike)


def gates_claim(table: Any) -> Verdict:
    """In training every gate ends almost wholly open or almost wholly closed.

    Holds if at most a tenth of all gates has P(open) from 0.1 to 0.9 at the end, with the interval of that share, and
    at each size some gates are closed (before training none is).
    """
    hits, of = int(table["undecided"].sum()), int(table["of"].sum())
    low, high = wilson(hits, of)
    text = f"{hits} of {of} gates are undecided, {said(hits / of, low, high)}; {table['closed'].sum()} are closed"
    return Verdict(provided(below(low, high, 0.1), bool((table["closed"] > 0).all())), text)
