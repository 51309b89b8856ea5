"""Voita et al. 2019: relevance, confidence and functions of heads, and pruning by learnt gates (no torch)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats

from headroles import plots
from headroles.analysis import role_rules
from headroles.analysis.summaries import LOW, THIRDS, best_heads, thirds
from headroles.papers import verdicts as v
from headroles.papers.bench import Bench, cost_of_all_heads, length_of_training
from headroles.papers.verdicts import CLEAR, LITTLE, VALUES, Holds, Interval, Missing, Reproduced, Verdict
from headroles.plots.axes import new_axes
from headroles.plots.pruning import FUNCTIONS
from headroles.tables import frame
from headroles.tables.columns import Column, of_name
from headroles.tables.frame import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MUCH = 1.5  # of an equal share of relevance (our choice; the paper's largest is 1.6)
ROLES = ("positional", "syntactic", "rare")
KNOWN = 0.95, 0.05  # of the resamples in which a head has a role: sure, possible
BOTH = ("nsubj dep>head", "nsubj head>dep", "obj dep>head", "obj head>dep")  # of Table 1
MARGIN = 0.10 - 1e-9  # over the best fixed offset (section 5.2)
RARE = 0.50  # more than: the role "rare"
FEW = 10 / 48  # of the encoder's heads that remain when 38 of 48 are removed
LARGEST_RATIO = 2  # of the steps of trainings that are comparable (our choice)


# --- section 4: relevance and confidence ------------------------------------------------------------------------------


def fig1a(bench: Bench) -> Reproduced:
    """Show the relevance of the encoder's heads, within each layer by falling relevance."""
    table = bench.table("relevance")
    name = _relevance(table)
    shares = v.rows_of_kind(table)[v.with_bounds(name)].set_axis(v.with_bounds("share"), axis=1)
    best = v.best_of_layers(shares, "share")
    best["equal"] = 1 / shares.groupby(level="layer").size().to_numpy()
    best["untrained"] = _untrained_bound(bench, "most")
    best = v.with_paper(best, "voita2019-fig1a", "layer")
    return v.judged(fig1a_claim, best, lambda: plots.relevance(table[name], kind="enc-self"))


@v.claim(
    "A few heads of a layer have clearly more than an equal share of its relevance.",
    """Holds if in more than half of the layers the interval of the largest share is above 1.5 equal shares, and above
    the bound that the largest share of any layer of an untrained model of the same shape exceeds with p = 0.01
    (Student's prediction interval over several of them); fails if in half of the layers it is below one of the two.""",
)
def fig1a_claim(table: pd.DataFrame) -> Verdict:
    times = table[v.with_bounds("share")].div(table["equal"], axis=0)
    row, chance = times["share"].argmax(), table["untrained"].iloc[0]
    most = v.intervals(times, "share")
    layers = [v.all_hold(share.above(bound) for bound in (MUCH, chance)) for share in most]
    yes, more = layers.count(True), "clearly more"
    if math.isnan(chance):  # no layer can have clearly more, nor clearly not
        yes, more = [share.above(MUCH) for share in most].count(True), f"more than {MUCH} equal shares"
    head = "layer {layer:.0f} head {head:.0f}".format(**table.iloc[row])
    text = f"in {yes} of {len(layers)} layers a head has {more}; the most of any head has {head}, {most[row]}"
    return Verdict(v.most_hold(layers), f"{text} equal shares; {v.untrained_in_words(chance)}")


def fig1b(bench: Bench) -> Reproduced:
    """Show the confidence of the encoder's heads, in the order of their relevance."""
    table = v.rows_of_kind(bench.table("relevance"))
    pair = table[["confidence", _relevance(table)]]
    places = {"largest": table["confidence"].argmax(), "smallest": table["confidence"].argmin()}
    rows = [(name, *table[v.with_bounds("confidence")].iloc[place]) for name, place in places.items()]
    rows += [("rank correlation with relevance", *v.within_layers(pair)[v.with_bounds("spearman")])]
    numbers = v.with_paper(pd.DataFrame(rows, columns=["what", *v.with_bounds("ours")]), "voita2019-fig1b", "what")
    numbers["untrained"] = [math.nan, math.nan, _untrained_bound(bench, "correlation")]
    return v.judged(fig1b_claim, numbers, lambda: _draw_ranked(pair))


@v.claim(
    "Heads of large relevance are confident, with few exceptions.",
    """Holds if the rank correlation of confidence with relevance, within layers, is above 0 with its interval, and
    the correlation above the bound that an untrained model of the same shape exceeds with p = 0.01; fails if it is
    below 0.""",
)
def fig1b_claim(table: pd.DataFrame) -> Verdict:
    row = table.set_index("what").loc["rank correlation with relevance"]
    correlation, chance = Interval.from_row(row, "ours"), float(table["untrained"].iloc[-1])
    text = f"rank correlation with relevance within layers {correlation}; {v.untrained_in_words(chance)}"
    return Verdict(v.unless_unsure(correlation.above(0), bool(correlation.value > chance)), text)


def _relevance(table: pd.DataFrame) -> str:
    """Return the column of relevance shares, by preference of the rules `cp`, which are the paper's equations."""
    names = [name for name in of_name(table, "relevance", "size") if len(Column.parse(name).words) == 1]
    return "relevance[cp].size" if "relevance[cp].size" in names else names[0]


def _untrained_bound(bench: Bench, column: str) -> float:
    """Return the bound that an untrained model of the same shape exceeds with p = 0.01; NaN without their table."""
    table = bench.first("untrained")
    return math.nan if table is None else v.prediction_bound([*table[column]])


def _draw_ranked(pair: pd.DataFrame) -> Axes:
    """Draw the first column, the heads of each layer in the order of the second."""
    ranks = pair.iloc[:, 1].groupby(level="layer").rank(ascending=False, method="first").astype(int) - 1
    kinds, layers, heads = (pair.index.get_level_values(name) for name in ("kind", "layer", "head"))
    index = pd.MultiIndex.from_arrays([kinds, layers, ranks], names=["kind", "layer", "head"])
    values = pair.iloc[:, 0].set_axis(index).sort_index()
    ax = plots.heatmap(values, annotate=pd.Series(heads.astype(str), index), kind="enc-self")
    ax.set_xlabel("head, by falling relevance; its number in the cell")
    return ax


# --- sections 5.1 and 5.2: functions ----------------------------------------------------------------------------------


def fig1c(bench: Bench) -> Reproduced:
    """Show the functions of the encoder's heads."""
    roles = _roles(bench, bench.table("functions"))
    counts = v.with_paper(_function_counts(v.rows_of_kind(roles)), "voita2019-fig1c", "function")
    return v.judged(fig1c_claim, counts, lambda: plots.roles(roles, kind="enc-self"))


@v.claim(
    "Important encoder heads have functions: positional, syntactic, and one that attends to rare words.",
    "Holds if some head has each function in 95 % of the resamples; fails if no head has one of them in 5 %.",
)
def fig1c_claim(table: pd.DataFrame) -> Verdict:
    known = zip(table["sure"], table["possible"], strict=True)
    parts = [True if sure > 0 else False if possible == 0 else None for sure, possible in known]
    counted = zip(table["function"], table["heads"], strict=True)
    counts = ", ".join(f"{name} {Interval(count):.0f}" for name, count in counted)
    return Verdict(v.all_hold(parts), f"of {table['of'].iloc[0]:.0f} encoder heads: {counts}")


def fig2(bench: Bench) -> Reproduced:
    """Show the confidence and functions of heads on other corpora or in other models, at most two."""
    first, *others = bench.tables("functions")[:3]
    if not others:
        raise Missing("Fig. 2 needs two tables of scores: got one; try headroles score on another corpus")
    panels = [(table, _roles(bench, table), _name(table, first)) for table in others]
    parts = [_function_counts(v.rows_of_kind(roles)).assign(corpus=name) for _, roles, name in panels]
    counts = v.with_paper(pd.concat(parts, ignore_index=True), "voita2019-fig2", "function")
    return v.judged(fig2_claim, counts, lambda: _draw_corpora(panels))


@v.claim(
    "The same functions are found in models of other language pairs (here: on each other corpus that was scored).",
    "The rule of Fig. 1c, on each corpus. Cannot be said if no head has a function on any: there is none to find.",
)
def fig2_claim(table: pd.DataFrame) -> Verdict:
    verdicts = {str(corpus): fig1c_claim(part) for corpus, part in table.groupby("corpus", sort=False)}
    text = "; ".join(f"{corpus}: {verdict.why}" for corpus, verdict in verdicts.items())
    holds = v.all_hold(verdict.holds for verdict in verdicts.values())
    return Verdict(holds if (table["possible"] > 0).any() else None, text)


def fig3(bench: Bench) -> Reproduced:
    """Show the relative positions of the words of each dependency: a histogram per relation."""
    table = bench.table("offsets")
    relations = table.groupby("relation", sort=False)["count"]
    rows = table.loc[relations.idxmax(), ["relation", "offset", "count", "share"]]
    totals = rows["relation"].map(relations.sum())
    rows[["low", "high"]] = [v.share(count, total)[1:] for count, total in zip(rows["count"], totals, strict=True)]
    printed = v.paper_numbers("voita2019-table1").drop_duplicates("relation")[["relation", "paper.baseline"]]
    rows = rows.merge(printed.set_axis(["relation", "paper"], axis=1), on="relation")
    return v.judged(fig3_claim, rows, lambda: plots.offsets(table)[0])


@v.claim(
    "Words of a dependency are often at the same relative position, which is the baseline for a head.",
    """Holds if for each of the paper's relations the commonest position has, with its interval, at least the paper's
    smallest share.""",
)
def fig3_claim(table: pd.DataFrame) -> Verdict:
    least = table["paper"].min() - 0.005  # the paper's are rounded to two digits
    shares = ", ".join(f"{row.relation} {row.share:.2f}" for row in table.itertuples())
    holds = v.all_hold(Interval(*row).above(least) for row in table[["share", "low", "high"]].to_numpy())
    holds = v.unless_unsure(holds, {*v.paper_numbers("voita2019-table1")["relation"]} <= {*table["relation"]})
    return Verdict(holds, f"commonest position: {shares}; the paper's smallest is {table['paper'].min():.2f}")


def fig4(bench: Bench) -> Reproduced:
    """Show the best head of each relation and direction beside the best fixed offset: bars."""
    table = bench.table("functions")
    return v.judged(fig4_claim, _dependencies(table), lambda: plots.dependency(table, kind="enc-self"))


@v.claim(
    "Some heads find a dependency much better than any fixed offset does.",
    """Holds if in some row the interval of the best head, widened for all heads (Bonferroni), is 0.10 above the
    baseline; fails if no head reaches that.""",
)
def fig4_claim(table: pd.DataFrame) -> Verdict:
    return _margins(table, v.any_holds)


def table1(bench: Bench) -> Reproduced:
    """Show the best head of each relation and direction beside the best fixed offset: numbers."""
    return v.judged(table1_claim, _dependencies(bench.table("functions")))


@v.claim(
    "Subjects and objects are found 0.10 better than by any fixed offset, both from the verb and to it.",
    """Holds if that is so for nsubj and obj in both directions, with the intervals of the heads' accuracies, widened
    for all heads (Bonferroni).""",
)
def table1_claim(table: pd.DataFrame) -> Verdict:
    rows = table[(table["relation"] + " " + table["way"]).isin(BOTH)]
    verdict = _margins(rows, v.all_hold)
    return verdict._replace(holds=v.unless_unsure(verdict.holds, rows["ours"].count() == len(BOTH)))


def _dependencies(table: pd.DataFrame) -> pd.DataFrame:
    """Return the best head of each relation and direction, the best fixed offset, and the paper's numbers."""
    rows = v.rows_of_kind(table)
    best = best_heads(rows).rename(columns={"accuracy": "ours"}).assign(of=len(rows))
    return v.with_paper(best, "voita2019-table1", ["relation", "way"])


def _margins(table: pd.DataFrame, join: Callable[[Iterable[Holds]], Holds]) -> Verdict:
    """Judge whether heads exceed the baseline by 0.10; `join` combines the answers of the rows."""
    gain = table["ours"] - table["baseline"]
    best = table.iloc[gain.argmax()]
    margins = table[["ours", "low", "high"]].sub(table["baseline"], axis=0)
    heads = int(table.get("of", pd.Series(1)).iloc[0])
    numbers = f"{Interval(best['ours'], best['low'], best['high'])} against {best['baseline']:.2f}"
    text = f"{(gain >= MARGIN).sum()} of {len(table)} reach it; most for {best['relation']} {best['way']}: {numbers}"
    return Verdict(join(Interval(*row).widened(heads).above(MARGIN) for row in margins.to_numpy()), text)


def _name(table: pd.DataFrame, first: pd.DataFrame) -> str:
    """Return the corpus of a table of scores, with the model if the first table is of another."""
    model, corpus = (v.signature_field(table, name, "confidence") for name in ("model", "corpus"))
    weights, known = (v.signature_field(scores, "weights", "confidence") for scores in (table, first))
    return corpus.partition("+")[0] + ("" if weights == known else f" ({model})")


def _roles(bench: Bench, table: pd.DataFrame) -> pd.DataFrame:
    """Assign roles; if scores have no resamples, read their stability from the table of roles beside them."""
    roles = role_rules.roles(table)
    stable = [f"{name}.stability" for name in role_rules.names(roles)]
    if roles[stable].isna().all(axis=None) and (kept := bench.beside(table, "roles")) is not None:
        known = [name for name in stable if name in kept]
        same = [name for name in known if frame.provenance(kept, name) == frame.provenance(roles, name)]
        roles[same] = kept[same]
    return roles


def _function_counts(roles: pd.DataFrame) -> pd.DataFrame:
    """Count the heads that have each function, surely and possibly; NaN if that is unknown."""
    rows = []
    for family in ROLES:
        variants = [name for name in role_rules.names(roles) if Column.parse(name).name == family]
        stability = roles[[f"{name}.stability" for name in variants]].max(axis=1)
        sampled = stability.notna().any()
        counts: list[float] = [roles[variants].any(axis=1).sum()]
        counts += [(stability >= part).sum() if sampled else np.nan for part in KNOWN]
        known = roles[[f"{name}.value" for name in variants]].notna().any(axis=None)
        rows.append((family, *(count if known else np.nan for count in counts), len(roles)))
    return pd.DataFrame(rows, columns=["function", "heads", "sure", "possible", "of"])


def _draw_corpora(panels: Sequence[tuple[pd.DataFrame, pd.DataFrame, str]]) -> Axes:
    """Draw confidence and functions next to each other; a panel is a table of scores, its roles and its corpus."""
    import matplotlib.pyplot as plt

    index = v.rows_of_kind(panels[0][1]).index
    deep, wide = (index.get_level_values(level).max() + 1 for level in ("layer", "head"))
    size = (2 * (wide * 0.5 + 1.2), len(panels) * (deep * 0.5 + 1.2))
    _, grid = plt.subplots(len(panels), 2, figsize=size, layout="constrained", squeeze=False)
    most = max(v.rows_of_kind(table)["confidence"].max() for table, _, _ in panels)  # one scale for all panels
    for (left, right), (table, roles, name) in zip(grid, panels, strict=True):
        confidence = plots.heatmap(table["confidence"], kind="enc-self", vmax=most, ax=left)
        confidence.set_title(f"confidence on {name}", fontsize=9)
        plots.roles(roles, kind="enc-self", legend=False, ax=right).set_title(f"functions on {name}", fontsize=9)
    first: Axes = grid[0, 0]
    return first


# --- section 5.3: rare words ------------------------------------------------------------------------------------------


def fig5(bench: Bench) -> Reproduced:
    """Show the attention of the rare-word head on sentences, token by token."""
    table = bench.table("attention")
    rows = []
    for name, part in table.groupby("sentence", sort=False):
        tokens = part.drop_duplicates("key").set_index("key")
        content = tokens.index[tokens["counted"]]
        weights = part.pivot_table(index="query", columns="key", values="weight")
        keys = weights[content].idxmax(axis=1)[content]
        rows.append((name, len(keys), *tokens.loc[keys, ["rarest", "rarest.two"]].sum().astype(int)))
    counts = pd.DataFrame(rows, columns=["sentence", "queries", "hits", "hits.two"])
    return v.judged(fig5_claim, counts, lambda: _draw_sentences(table))


@v.claim(
    "In a sentence the rare-word head attends to the least frequent token.",
    "Holds if more than half of the tokens of the sentences attend to it most, with the interval of that share.",
)
def fig5_claim(table: pd.DataFrame) -> Verdict:
    queries, hits, two = (int(table[name].sum()) for name in ("queries", "hits", "hits.two"))
    part = v.share(hits, queries)
    text = f"{hits} of {queries} tokens attend to it most, {part}; to one of the two least frequent {two}"
    return Verdict(part.above(RARE), text)


def rare(bench: Bench) -> Reproduced:
    """Show the head of each layer that attends most often to the rarest token (section 5.3, text)."""
    table = v.rows_of_kind(bench.table("functions"))[v.with_bounds("rarity")]
    if table["rarity"][table.index.get_level_values("layer") == 0].isna().all():
        why = "layer 0 has no encoder heads, or no sentence has a token outside the 500 most frequent"
        raise Missing(f"{why}; try headroles score on more sentences")
    return v.judged(rare_claim, v.with_paper(v.best_of_layers(table, "rarity"), "voita2019-rare", "layer"))


@v.claim(
    "A head of the first layer attends to the rarest word of the sentence.",
    "Holds if the interval of the best head of layer 0 is above 0.50. Cannot be said to fail if tokens were counted in "
    "the scored sentences: most are rare there, and a head of rare words may be below 0.50.",
)
def rare_claim(table: pd.DataFrame) -> Verdict:
    row = table.set_index("layer").loc[0]
    rarity = Interval.from_row(row, "rarity")
    text = f"layer 0 head {row['head']:.0f} attends to it in {rarity} of the cases, the best head of any layer in "
    holds = rarity.above(RARE)
    if not holds and "frequencies:self" in str(table.attrs):
        return Verdict(None, f"{text}{table['rarity'].max():.2f}; tokens were counted in these sentences")
    return Verdict(holds, f"{text}{table['rarity'].max():.2f}")


def _draw_sentences(table: pd.DataFrame) -> Axes:
    parts = [part for _, part in table.groupby("sentence", sort=False)]
    axes = new_axes((10, 10), cell=0.4, panels=len(parts))
    for ax, part in zip(axes, parts, strict=True):
        wide = part.pivot_table(index="query", columns="key", values="weight")
        names = [*part.drop_duplicates("key").set_index("key")["token"].loc[wide.columns]]
        plots.attention(wide.set_axis(names, axis=0).set_axis(names, axis=1), vmax=1, ax=ax)
    axes[0].set_title("layer {layer} head {head}".format(**parts[0].iloc[0]))
    return axes[0]


# --- section 6: pruning by learnt gates -------------------------------------------------------------------------------


def fig6(_: Bench) -> Reproduced:
    """Show the Hard Concrete distribution for three values of log alpha; needs no table."""
    printed = v.paper_numbers("voita2019-fig6")
    alpha = printed["log alpha"].to_numpy(float)
    edge = 0.5 * np.log(-LOW / (1 - LOW))  # temperature times the logit at which a gate becomes larger than 0
    ours = {"ours P(0)": 1 / (1 + np.exp(alpha - edge)), "ours P(1)": 1 / (1 + np.exp(-alpha - edge))}
    return v.judged(fig6_claim, printed.assign(**ours), lambda: plots.densities([*alpha]))


@v.claim(
    "Hard Concrete gates are exactly 0 or exactly 1 with probabilities above zero.",
    "Holds if P(0) and P(1) are the paper's, to its two digits.",
)
def fig6_claim(table: pd.DataFrame) -> Verdict:
    worst = max((table[f"ours {part}"] - table[f"paper {part}"]).abs().max() for part in ("P(0)", "P(1)"))
    return Verdict(bool(worst <= 0.0055), f"the largest difference from the paper's numbers is {worst:.3f}")


def fig7(bench: Bench) -> Reproduced:
    """Show the score of the model with fewer encoder heads."""
    table = bench.table("sizes-encoder")
    sizes, metric = table.assign(heads=table["enc-self"], of=table["enc-self"].iloc[0]), v.metric_of(table)
    ours = sizes[["heads", "of", *VALUES, *v.with_bounds("change")]]
    ours = ours.assign(**v.costs(sizes, sizes.iloc[0], metric))
    rows = v.with_sizes(ours, v.paper_numbers("voita2019-fig7"))
    rows = rows.assign(metric=metric, **cost_of_all_heads(bench, table, "enc-self"))
    return v.judged(fig7_claim, rows, lambda: plots.survival(sizes, label=v.metric_label(table)))


@v.claim(
    "Most encoder heads can be removed at little cost: 38 of 48 for 0.15 BLEU, 44 of 48 for 0.25.",
    """Holds if the largest size with at most 21 % of the heads costs less than 3 % of the score (of a loss, 0.03
    nats) of a control that was trained as long, with its interval, and removing all the encoder's heads without
    training costs more than that.""",
)
def fig7_claim(table: pd.DataFrame) -> Verdict:
    sizes = table[table["cost"].notna() & (table["heads"] / table["of"] <= FEW + 0.01)]
    if sizes.empty:
        return Verdict(None, "no size has so few heads")
    row = sizes.iloc[sizes["heads"].argmax()]
    cost, first = Interval.from_row(row, "cost"), table.iloc[0]
    lost = v.cost_in_words(cost, first.get("metric", ""))
    lost_without = v.cost_in_words(Interval(row["all"]), first.get("all.metric", ""))
    text = f"with {row['heads']:.0f} of {row['of']:.0f} heads left the control's score loses {lost}, without any and "
    holds = v.unless_unsure(cost.below(LITTLE), v.removal_costs(table))
    return Verdict(holds, f"{text}without training {lost_without}")


def fig8(bench: Bench) -> Reproduced:
    """Show how many of the remaining encoder heads have each function."""
    table = bench.table("functions-encoder")
    encoder = table[table["kind"] == "enc-self"]
    wide = encoder.pivot_table(index="heads", columns="function", values="count", fill_value=0, observed=True)
    wide = wide.reindex(columns=["none", *FUNCTIONS], fill_value=0).rename_axis(columns=None)
    ours = wide.assign(of=wide.sum(axis=1).max(), heads=wide.sum(axis=1), **_first(bench, table, wide.index))
    ours = ours.reset_index(drop=True)
    rows = v.with_sizes(ours, v.paper_numbers("voita2019-fig8"))
    return v.judged(fig8_claim, rows, lambda: plots.functions(table, kind="enc-self"))


def _first(bench: Bench, table: pd.DataFrame, sizes: pd.Index[int]) -> dict[str, Any]:
    """Count the heads with a function in the whole model, `first`, and how many of them remain, `first.left`."""
    whole = sizes.max()
    roles = bench.beside(table, f"roles-l0-enc-self-{whole}")
    if roles is None or (survival := bench.beside(table, "survival-l0-enc-self")) is None:
        return {"first": math.nan, "first.left": math.nan}
    names = [name for name in role_rules.names(roles) if Column.parse(name).name in ROLES]
    first = v.rows_of_kind(roles)[names].any(axis=1)
    left = survival.loc[first.index[first]]
    remain = [left[f"survival[l0 {size} enc-self]"].sum() if size < whole else len(left) for size in sizes]
    return {"first": len(left), "first.left": remain}


@v.claim(
    "Heads with functions are the last to be pruned.",
    """Holds if, where at most a quarter of the heads remains, heads with a function are a larger share than in the
    whole model (Fisher's exact test, p < 0.05); fails if they are a smaller one. A sink has no function. Functions are
    assigned again after pruning; how many of the heads that had one before remain is beside it.""",
)
def fig8_claim(table: pd.DataFrame) -> Verdict:
    rows = table[table["none"].notna()].sort_values("heads")
    rows = rows.assign(none=rows["none"] + rows.get("sink", 0))
    intact, few = rows.iloc[-1], rows[rows["heads"] <= rows["heads"].max() / 4]
    if few.empty:
        return Verdict(None, "no size has a quarter of the heads or fewer")
    counts = [[row["heads"] - row["none"], row["none"]] for row in (few.iloc[-1], intact)]
    now, first = (f"{held:.0f} of {held + none:.0f}" for held, none in counts)
    text = f"{now} remaining heads have a function, {first} in the model with all heads"
    kept = few.iloc[-1].reindex(["first", "first.left"])
    if kept["first"] > 0:
        chance = kept["first"] * few.iloc[-1]["heads"] / intact["heads"]
        text += f"; of the {kept['first']:.0f} that had one {kept['first.left']:.0f} remain, {chance:.1f} by chance"
    if not counts[0][0] and not counts[1][0]:
        return Verdict(None, f"{text}: no function can survive")
    more, fewer = (stats.fisher_exact(counts, side).pvalue < CLEAR for side in ("greater", "less"))
    return Verdict(True if more else False if fewer else None, text)


def fig9(bench: Bench) -> Reproduced:
    """Show how many heads of each kind remain at each size."""
    sizes = bench.table("sizes")
    printed = v.wmt_numbers("voita2019-fig9").rename(columns={kind: f"paper.{kind}" for kind in KINDS})
    rows = v.with_sizes(sizes[["heads", "of", *KINDS]], printed)
    return v.judged(fig9_claim, rows, lambda: plots.by_kind(sizes))


@v.claim(
    "The encoder's heads are pruned first, those of cross-attention last.",
    """Holds if at every size the encoder keeps the smallest share of its heads, at the smallest size cross-attention
    the largest, and where at most half of all heads remains the encoder has fewer than a random draw leaves
    (hypergeometric, p < 0.05), and in most of these sizes cross-attention keeps the largest share. Fails if at some
    size the encoder has more heads than a random draw leaves, or at the smallest cross-attention fewer.""",
)
def fig9_claim(table: pd.DataFrame) -> Verdict:
    rows = table[(table["heads"] < table["of"]) & table["enc-self"].notna()].sort_values("heads")
    kinds = rows[["enc-self", "dec-self", "cross"]]
    intact = table[table["heads"] == table["of"]].dropna(subset="enc-self").iloc[0]
    shares = kinds / intact[kinds.columns].astype(float)
    smallest = shares["enc-self"] <= shares.min(axis=1)
    more = [_beyond_random(row, intact) for _, row in rows.iterrows()]
    parts = [False if unlikely else bool(part) or None for part, unlikely in zip(smallest, more, strict=True)]
    last = shares["cross"].iloc[0] > shares[["enc-self", "dec-self"]].iloc[0].max()
    parts.append(False if _beyond_random(rows.iloc[0], intact, "cross", -1) else bool(last) or None)
    counts = ", ".join(f"{kind} {int(count)}" for kind, count in kinds.iloc[0].items())
    text = f"with {rows['heads'].iloc[0]:.0f} of {rows['of'].iloc[0]:.0f} heads left: {counts}"
    half = shares[rows["heads"] <= rows["of"] / 2]
    most = int((half["cross"] > half[["enc-self", "dec-self"]].max(axis=1)).sum())
    sure = most > len(half) / 2 and _beyond_random(rows.loc[half.index[-1]], intact, "enc-self", -1)
    text += f"; cross-attention keeps the largest share in {most} of {len(half)} sizes with at most half"
    return Verdict(v.unless_unsure(v.all_hold(parts), sure), f"{text} (one training for each size)")


def _beyond_random(row: pd.Series, intact: pd.Series, kind: str = "enc-self", sign: int = 1) -> bool:
    """Return whether more (with `sign` -1, fewer) heads of a kind remain than a random draw leaves."""
    draw = stats.hypergeom(row["of"], intact[kind], row["heads"])
    return bool((draw.sf(row[kind] - 1) if sign > 0 else draw.cdf(row[kind])) < CLEAR)


def fig10(bench: Bench) -> Reproduced:
    """Show how many decoder heads remain in the lower, middle and upper layers at each size."""
    survival = bench.table("survival")
    left = thirds(v.rows_of_kind(survival, "dec-self")).join(thirds(v.rows_of_kind(survival, "cross")))
    ours = left.assign(heads=survival[left.index].sum().to_numpy(int), of=len(survival))
    printed = v.paper_numbers("voita2019-fig10").add_prefix("paper.").rename(columns={"paper.of": "of"})
    printed["heads"] = v.wmt_numbers("voita2019-fig9")["heads"]
    return v.judged(fig10_claim, v.with_sizes(ours, printed), lambda: plots.by_third(survival)[0])


@v.claim(
    "The decoder's self-attention heads survive in its lower layers, those of cross-attention in the upper ones.",
    """Holds if, at each size with at most half of all heads, the lower third of the layers keeps a larger share of its
    decoder's self-attention heads than the upper third, and a smaller one of cross-attention, and at the largest of
    these sizes both together are beyond chance (Fisher's exact test, p < 0.05); fails if for one of the two kinds the
    opposite is true at each size.""",
)
def fig10_claim(table: pd.DataFrame) -> Verdict:
    rows = table[(table["heads"] <= table["of"] / 2) & table["cross lower"].notna()]
    if rows.empty or not rows[["dec-self lower.of", "dec-self upper.of"]].all(axis=None):
        return Verdict(None, "no size has half of the heads or fewer, or there are too few layers for thirds")
    parts, counts, row = [], [], rows.iloc[rows["heads"].argmax()]
    for kind, sign in (("dec-self", 1), ("cross", -1)):
        lower, upper = (rows[f"{kind} {third}"] / rows[f"{kind} {third}.of"] for third in ("lower", "upper"))
        more = sign * (lower - upper)
        parts.append(True if (more > 0).all() else False if (more < 0).all() else None)
        counts.append(f"{kind} " + ", ".join(f"{row[f'{kind} {third}']:.0f}" for third in THIRDS))
    text = f"in the lower, middle and upper third with {row['heads']:.0f} heads left: {'; '.join(counts)}"
    ends = ["dec-self lower", "cross upper"], ["dec-self upper", "cross lower"]  # both expected places, and the others
    left = [[sum(row[name] for name in names), sum(row[f"{name}.of"] for name in names)] for names in ends]
    p = stats.fisher_exact([[count, total - count] for count, total in left], "greater").pvalue
    holds = v.unless_unsure(v.all_hold(parts), bool(p < CLEAR))
    return Verdict(holds, f"{text} ({len(rows)} sizes, one training each)")


def table2(bench: Bench) -> Reproduced:
    """Show models with the surviving heads: fine-tuned with gates, and trained from scratch."""
    table, pair = bench.table("scratch"), ("finetuned", "scratch")
    ours = table.rename(columns=dict(zip("edc", KINDS, strict=True)))
    ours = ours.assign(of=int(bench.table("sizes")["of"].iloc[0]), heads=ours[[*KINDS]].sum(axis=1))
    both = zip(*(v.intervals(ours, name) for name in pair), strict=True)
    gaps = [finetuned.minus(scratch) for finetuned, scratch in both]
    ours[v.with_bounds("gap")] = v.gains(np.array(gaps), v.metric_of(table))
    steps = {name: length_of_training(bench, table, name)["steps"] for name in ("base", *pair)}
    ours = ours.assign(**{"steps.finetuned": steps["base"] + steps["finetuned"], "steps.scratch": steps["scratch"]})
    printed = v.wmt_numbers("voita2019-table2").rename(columns={name: f"paper.{name}" for name in pair})
    return v.judged(table2_claim, v.with_sizes(ours, printed, [*KINDS, "heads", "of"]))


@v.claim(
    "A model of the surviving heads that is trained from scratch is worse than the pruned one.",
    """Holds if it is worse, with its interval, at some size, and better at none. Not comparable where one of the
    two had more than twice the steps of the other, those before pruning counted, or the steps are unknown.""",
)
def table2_claim(table: pd.DataFrame) -> Verdict:
    rows = table[table["finetuned"].notna() & (table["heads"] < table["of"])]
    gaps = dict(zip(rows["heads"], v.intervals(rows, "gap"), strict=True))
    pruned, scratch = rows[["steps.finetuned", "steps.scratch"]].iloc[0]
    alike = bool(pruned <= LARGEST_RATIO * scratch and scratch <= LARGEST_RATIO * pruned)  # no, if unknown
    text = ", ".join(f"{heads:.0f} heads {gap:.1f}" for heads, gap in gaps.items())
    text = f"pruned is better than from scratch by: {text}; trained, before and in pruning, for "
    text += f"{Interval(pruned):.0f} steps against {Interval(scratch):.0f}"
    return Verdict(v.combine_votes(gap.above(0) for gap in gaps.values()) if alike else None, text, alike)


def gates(bench: Bench) -> Reproduced:
    """Show P(gate != 0) of the encoder's heads over training, a panel for each size (the blog's animation)."""
    tables = sorted(bench.tables("gates"), key=lambda table: -_size(table))
    heads = [v.rows_of_kind(table.set_index(["kind", "layer", "head"])) for table in tables]
    ends = [table.loc[table["step"] == table["step"].max(), "open"] for table in heads]
    counts = {"heads": [*map(_size, tables)], "of": [*map(len, ends)]}
    counts |= {"undecided": [int(end.between(0.1, 0.9).sum()) for end in ends]}
    counts |= {"masked": [int((end < 0.1).sum()) for end in ends]}
    return v.judged(gates_claim, pd.DataFrame(counts), lambda: _draw_histories(tables, counts["heads"]))


@v.claim(
    "In training every gate converges to almost 0 or almost 1.",
    """Holds if at most a tenth of all gates has P(gate != 0) from 0.1 to 0.9 at the end, with the interval of that
    share, and at each size some gates are below 0.1 (before training none is).""",
)
def gates_claim(table: pd.DataFrame) -> Verdict:
    undecided, total = int(table["undecided"].sum()), int(table["of"].sum())
    part = v.share(undecided, total)
    text = f"{undecided} of {total} gates are undecided, {part}; {table['masked'].sum()} are pruned"
    return Verdict(v.unless_unsure(part.below(0.1), bool((table["masked"] > 0).all())), text)


def _size(history: pd.DataFrame) -> int:
    return int(str(history.attrs["file"]).removesuffix(".parquet").rpartition("-")[2])


def _draw_histories(tables: Sequence[pd.DataFrame], sizes: Sequence[int]) -> Axes:
    count = len(tables[0].query("kind == 'enc-self' and step == step.max()"))
    axes = new_axes((count, 26), cell=0.13, panels=len(tables))
    for ax, table, size in zip(axes, tables, sizes, strict=True):
        plots.gates(table, kind="enc-self", ax=ax).set_title(f"{size} heads left")
    for mesh in (ax.collections[0] for ax in axes[:-1]):
        mesh.colorbar.remove()  # type: ignore[union-attr]
    return axes[0]
