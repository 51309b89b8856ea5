"""Michel et al. 2019: ablating one head, all but one, heads on other corpora and by importance; speed (no torch)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pandas as pd
from scipy import stats

from headroles import plots
from headroles.analysis.summaries import correlations
from headroles.papers import verdicts as v
from headroles.papers.bench import Bench, cost_of_all_heads
from headroles.papers.verdicts import CLEAR, LITTLE, SURE, VALUES, Claim, Holds, Interval, Missing, Reproduced, Verdict
from headroles.plots.axes import new_axes
from headroles.plots.effects import effect_of
from headroles.tables.declared import harm, signature_of
from headroles.tables.frame import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HALF = 0.2, 0.8  # shares that "half of them" may have with their intervals (our choice)
THIRD = 0.28, 0.38  # "about a third" (our choice)
ENOUGH = 0.85  # of the score (section 6)
MOST = 0.5  # of the score, or nats of a loss: what a kind that "keeps most of the score" may lose (our choice)


# --- one head ---------------------------------------------------------------------------------------------------------


def fig1(bench: Bench) -> Reproduced:
    """Show the score with one head ablated: a histogram over heads, the whole model's score as a line."""
    effects = _encoder_rows(bench.table("single"))
    name, intact = effect_of(effects), _intact(effects)
    metric, changes = v.metric_of(effects), effects[v.with_bounds(name)].set_axis(v.with_bounds("change"), axis=1)
    relative = (changes / v.scale(metric, intact)).set_axis(v.with_bounds("relative"), axis=1)
    table = changes.assign(score=intact + effects[name], metric=metric).join(relative)
    table = table.assign(**cost_of_all_heads(bench, effects)).reset_index()
    return v.judged(fig1_claim, table, lambda: _draw_histogram(effects, intact))


@v.claim(
    "Ablating a single head changes the score little for most heads.",
    """Holds if more than half of the heads change it by less than 3 % (of a loss, 0.03 nats): the interval of each
    such change lies inside that bound, and that of their share above a half; and ablating all heads costs more than
    that. Fails if more than half change it by more, in the same way.""",
)
def fig1_claim(table: pd.DataFrame) -> Verdict:
    little = [change.within(LITTLE) for change in v.intervals(table, "relative")]
    worst = table.iloc[table["relative"].abs().argmax()]
    change = v.cost_in_words(Interval(worst["relative"]), worst.get("metric", ""))
    text = f"the largest change is {change} (layer {worst['layer']} head {worst['head']})"
    return _most_change_little(little.count(True), little.count(False), len(table), text, table)


def table1(bench: Bench) -> Reproduced:
    """Show the change of the score when each head is ablated: layers by heads, how many are significant."""
    table = bench.table("single")
    effects, name, metric = _encoder_rows(table), effect_of(table), v.metric_of(table)
    sure = effects[f"{name}.p"] < SURE
    wide = effects[name].unstack("head").droplevel("kind").rename(columns=lambda head: f"head {head}")
    relative = effects[v.with_bounds(name)] / v.scale(metric, _intact(effects))
    little = pd.Series([Interval(*row).within(LITTLE) for row in relative.to_numpy()], effects.index, dtype=object)
    flags = {"significant": sure, "better": sure & (effects[name] * v.sign_of(metric) > 0)}
    flags |= {"near": little.eq(True), "far": little.eq(False)}
    counts = wide.assign(**{flag: heads.groupby(level="layer").sum() for flag, heads in flags.items()})
    counts["of"] = effects.groupby(level="layer").size()
    printed = v.paper_numbers("michel2019-table1")
    if len(wide) == 6 and _is_translation(table):  # as the paper's model
        counts["paper"] = printed.groupby("layer").size().reindex(range(6), fill_value=0)
    counts = counts.assign(metric=metric, **cost_of_all_heads(bench, table)).reset_index()
    return v.judged(table1_claim, v.with_source(counts, table, printed))


@v.claim(
    "Most heads are redundant at test time: 8 of 96 change BLEU at p < 0.01, half of them for the better.",
    """Holds if the rule of Fig. 1 does, and the share of the heads with p < 0.01 that are for the better lies from a
    fifth to four fifths with its interval (the paper's 4 of 8 do); fails if that of Fig. 1 does, or if that share
    is not a half (exact binomial test, p < 0.05).""",
)
def table1_claim(table: pd.DataFrame) -> Verdict:
    names = ("near", "far", "of", "significant", "better")
    near, far, total, significant, better = (int(table[name].sum()) for name in names)
    part = v.share(better, significant)
    text = f"{significant} have p < 0.01 (uncorrected), {better} of them for the better"
    verdict = _most_change_little(near, far, total, f"{text}, a share of {part}" if significant else text, table)
    half = True if part.low > HALF[0] and part.high < HALF[1] else None
    if significant and stats.binomtest(better, significant).pvalue < CLEAR:
        half = False
    return verdict._replace(holds=v.all_hold([verdict.holds, half]))


def _most_change_little(near: int, far: int, total: int, text: str, table: pd.DataFrame) -> Verdict:
    holds = True if v.share(near, total).above(0.5) else False if v.share(far, total).above(0.5) else None
    little = "0.03 nats" if table.iloc[0].get("metric") == "loss" else "3 %"
    text = f"{near} of {total} heads change it by less than {little} with their intervals, {far} by more; {text}"
    return Verdict(v.unless_unsure(holds, v.removal_costs(table)), f"{text}; {v.cost_of_all_in_words(table)}")


def _is_translation(table: pd.DataFrame) -> bool:
    return "cross" in table.index.unique("kind")


def _encoder_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of the encoder, which the paper shows; of a model without encoder, of its first kind."""
    kinds = table.index.unique("kind")
    return v.rows_of_kind(table, "enc-self" if "enc-self" in kinds else kinds[0])


def _intact(table: pd.DataFrame) -> float:
    """Return the score of the intact model, from the provenance of its effects."""
    return float(v.signature_field(table, "intact", effect_of(table)))


def _draw_histogram(effects: pd.DataFrame, intact: float) -> Axes:
    """Draw the histogram of effects, its axis in units of the metric."""
    from matplotlib.ticker import MaxNLocator

    ax = plots.histogram(effects)
    name = effect_of(effects)
    worse = harm(name, signature_of(effects, name))  # the histogram is of costs
    low, high = sorted(intact + worse * end for end in ax.get_xlim())
    ticks = [at for at in MaxNLocator(6).tick_values(low, high) if low < at < high]
    ax.set_xticks([worse * (at - intact) for at in ticks], [f"{at:.5g}" for at in ticks])
    ax.set_xlim(*(worse * (end - intact) for end in (low, high)))  # the metric grows to the right
    ax.set_xlabel(f"{v.metric_label(effects)} with one head ablated (dashed: none, {intact:.4g})")
    return ax


# --- all but one head of a layer --------------------------------------------------------------------------------------


def table2(bench: Bench) -> Reproduced:
    """Show the change with only the best head of a layer kept, for each layer of a translation model."""
    return _one_kept(bench, "best", "table2", table2_claim)


@v.claim(
    "One head is enough in most layers of a translation model, though it was trained with many.",
    """Holds if in more than half of the layers one head is enough: keeping only the best costs less than 3 % of the
    score (of a loss, 0.03 nats) with the end of its interval, and is not worse at the paper's p < 0.01; and ablating
    all heads costs more. Fails if in half of the layers it costs more, with its interval.""",
)
def table2_claim(table: pd.DataFrame) -> Verdict:
    return _enough(table, v.most_hold)


def table3(bench: Bench) -> Reproduced:
    """Show the change with only the best head of a layer kept, for each layer of a classifier."""
    return _one_kept(bench, "best", "table3", table3_claim)


@v.claim(
    "One head is enough in every layer of a classifier.",
    """Holds if in every layer one head is enough, as in Table 2, and ablating all heads costs more; fails if in one
    keeping only the best costs more than 3 % of the score (of a loss, 0.03 nats), with its interval.""",
)
def table3_claim(table: pd.DataFrame) -> Verdict:
    return _enough(table, v.all_hold)


def table5(bench: Bench) -> Reproduced:
    """Show Table 2 with the head chosen on other examples (here: on the other half)."""
    return _one_kept(bench, "halves", "table5", table5_claim)


@v.claim(
    "Also when the head is chosen on other examples, one is enough in half of the layers.",
    """Holds if in at least half of the layers that head is enough, as in Table 2, and ablating all heads costs more;
    fails if in more than half keeping only it costs more than 3 % of the score (of a loss, 0.03 nats), with its
    interval.""",
)
def table5_claim(table: pd.DataFrame) -> Verdict:
    return _enough(table, v.half_hold)


def table6(bench: Bench) -> Reproduced:
    """Show Table 3 with the head chosen on other examples (here: on the other half)."""
    return _one_kept(bench, "halves", "table6", table6_claim)


table6_claim = v.claim(
    "Also when the head is chosen on other examples, one is enough in every layer of a classifier.",
    "The rule of Table 3.",
)(table3_claim)


def _one_kept(bench: Bench, required: str, name: str, judge: Claim) -> Reproduced:
    """Return the effects of keeping one head per layer, `cost` with larger values worse, and the paper's numbers."""
    table = bench.table(required)
    expected = "a translation model" if name in ("table2", "table5") else "a classifier"
    if _is_translation(table) != (expected == "a translation model"):
        got = "a translation model" if _is_translation(table) else "a classifier or language model"
        raise Missing(f"the paper's {name} shows {expected}; got {got}")
    metric = v.metric_of(table)
    rows = table.rename(columns=lambda column: column.removeprefix("effect.")).reset_index()
    effects = [Interval(*row).scaled(-v.sign_of(metric)) for row in rows[["effect", "low", "high"]].to_numpy()]
    rows[v.with_bounds("cost")] = effects
    intact = next((_intact(effects) for effects in bench.tables("single") if _alike(effects, table)), math.nan)
    rows = rows.assign(metric=metric, little=LITTLE * v.scale(metric, intact), **cost_of_all_heads(bench, table))
    return v.judged(judge, v.with_paper(rows, f"michel2019-{name}", ["kind", "layer"]))


def _alike(effects: pd.DataFrame, table: pd.DataFrame) -> bool:
    """Return whether effects of single heads are of the same model, text and metric as a table."""
    names, column = ("weights", "text"), effect_of(effects)
    same = all(v.signature_field(effects, name, column) == v.signature_field(table, name) for name in names)
    return same and v.metric_of(effects) == v.metric_of(table)


def _enough(table: pd.DataFrame, join: Callable[[Iterable[Holds]], Holds]) -> Verdict:
    """Judge layers with one head kept: in each it must cost little, and not be surely worse by the paper's test."""
    little = [cost.below(bound) for cost, bound in zip(v.intervals(table, "cost"), table["little"], strict=True)]
    worse = ((table["p"] < SURE) & (table["cost"] > 0)).tolist()
    layers = [v.unless_unsure(holds, not bad) for holds, bad in zip(little, worse, strict=True)]
    worst = table.iloc[table["cost"].argmax()]
    text = f"one head is enough in {layers.count(True)} of {len(table)} layers: less than {worst['little']:.3f} is "
    text += f"lost in {little.count(True)}, more in {little.count(False)}; worse at p < 0.01 (uncorrected) in "
    text += f"{sum(worse)}; the most is lost in {worst['kind']} layer {worst['layer']}, "
    text += f"{Interval.from_row(worst, 'cost'):.3f}; {v.cost_of_all_in_words(table)}"
    return Verdict(v.unless_unsure(join(layers), v.removal_costs(table)), text)


# --- other corpora ----------------------------------------------------------------------------------------------------


def fig2(bench: Bench) -> Reproduced:
    """Show the effects of the same heads on two corpora against each other: a panel for each other corpus."""
    first, *others = _of_other_texts(bench.tables("single"))
    names = [v.signature_field(table, "corpus", effect_of(first)).partition("+")[0] for table in (first, *others)]
    rows = _correlated(first, others, names)
    printed = v.paper_numbers("michel2019-fig2")
    paper = printed.set_index("model")["paper"]["translation" if _is_translation(first) else "encoder"]
    rows = rows.assign(untrained=_of_untrained(bench), paper=rows["heads of"].map({"enc-self": float(paper)}))
    rows = v.with_source(rows.assign(**cost_of_all_heads(bench, first)), rows, printed)
    return v.judged(fig2_claim, rows, lambda: _draw_agreements(first, others, names))


@v.claim(
    "Heads that matter on one corpus matter on another: Pearson's correlation 0.56 and 0.68.",
    """Holds if the rank correlation over the encoder's heads, which does not depend on a few large effects, is
    above 0 with its interval on every other corpus, and above the largest of an untrained model of the same shape; and
    ablating all heads costs more than 3 % of the score (of a loss, 0.03 nats).""",
)
def fig2_claim(table: pd.DataFrame) -> Verdict:
    rows = table[table["heads of"] == "enc-self"]
    ranks, chance = v.intervals(rows, "spearman"), table["untrained"].iloc[0]
    holds = v.unless_unsure(v.all_hold(rank.above(0) for rank in ranks), v.all_hold(r.above(chance) for r in ranks))
    text = ", ".join(
        f"{row['corpus']} rank correlation {rank}, Pearson's {Interval(row['pearson'])}, "
        f"{Interval(row['pearson.rest'])} without the two largest effects"
        for rank, (_, row) in zip(ranks, rows.iterrows(), strict=True)
    )
    text += f"; {v.untrained_in_words(chance)}; {v.cost_of_all_in_words(table)}"
    return Verdict(v.unless_unsure(holds, v.removal_costs(table)), text)


def _correlated(first: pd.DataFrame, others: list[pd.DataFrame], names: list[str]) -> pd.DataFrame:
    """Correlate the effects on the first corpus with those on each other: a row for all heads and for each kind."""
    name, parts = effect_of(first), []
    for other, corpus in zip(others, names[1:], strict=True):
        part = correlations(first[name], other[name]).reset_index().assign(corpus=corpus)
        part["pearson.rest"] = _without_largest(first[name], other[name])
        parts.append(part if len(part) > 1 else part.replace({"heads of": {"all": "enc-self"}}))
    return pd.concat(parts, ignore_index=True)


def _of_untrained(bench: Bench) -> float:
    """Return the largest rank correlation of the encoder's heads of an untrained model; NaN without its tables."""
    try:
        first, *others = _of_other_texts(bench.untrained.tables("single")) if bench.untrained else []
    except (Missing, ValueError):
        return math.nan
    rows = _correlated(first, others, [""] * (1 + len(others)))
    return float(rows.loc[rows["heads of"] == "enc-self", "spearman"].max())


def _of_other_texts(tables: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Select a model's tables of different texts, by the first metric with two; raise Missing without any."""
    model = v.signature_field(tables[0], "weights", effect_of(tables[0]))
    for name in dict.fromkeys(map(effect_of, tables)):
        texts: dict[str, pd.DataFrame] = {}
        for table in tables:
            if effect_of(table) == name and v.signature_field(table, "weights", name) == model:
                texts.setdefault(v.signature_field(table, "text", name), table)
        if len(texts) > 1:
            return [*texts.values()]
    raise Missing("Fig. 2 compares two corpora, got effects on one; try headroles ablate MODEL OTHER")


def _without_largest(first: pd.Series[float], other: pd.Series[float]) -> list[float]:
    """Return Pearson's correlation without the two largest effects: of all heads, and of each kind."""
    pairs = pd.concat([first, other], axis=1, keys=["first", "other"]).dropna()
    kinds = [part for _, part in pairs.groupby(level="kind", sort=False, observed=True)]
    rest = [part.drop(part["first"].abs().nlargest(2).index) for part in (pairs, *(kinds if len(kinds) > 1 else []))]
    return [float(part["first"].corr(part["other"])) for part in rest]


def _draw_agreements(first: pd.DataFrame, others: list[pd.DataFrame], names: list[str]) -> Axes:
    axes = new_axes((10, 11), cell=0.42, panels=len(others))
    for other, corpus, ax in zip(others, names[1:], axes, strict=True):
        plots.agreement(_encoder_rows(first), _encoder_rows(other), names=(names[0], corpus), ax=ax)
    return axes[0]


# --- ablating by importance, speed, the course of training ------------------------------------------------------------


def fig3(bench: Bench) -> Reproduced:
    """Show the score when heads are ablated by importance and by their single effects."""
    return _curves(bench, "fig3", fig3_claim)


@v.claim(
    "Some 20 % (translation) or 40 % (BERT) of the heads can be ablated by importance without a noticeable loss.",
    """Holds if ablating that share, to five points, costs less than 3 % of the score, with the interval of the cost,
    and ablating all heads more than that; by importance normalised within layers, where there is such a curve.""",
)
def fig3_claim(table: pd.DataFrame) -> Verdict:
    rows, by = table[table["paper"].notna()].set_index("order"), ranking_of(table)
    curve = table[table["order"] == by]
    if rows.empty:
        return Verdict(None, "the paper has no task of this metric, or the curve no step within 5 points of its share")
    row = rows.loc[by]
    cost, most = (Interval.from_row(step, "cost") for step in (row, curve.iloc[curve["share"].argmax()]))
    if math.isnan(cost.value):
        return Verdict(None, "the score of the whole model is 0, of which nothing can be lost")
    text = f"with {100 * row['share']:.0f} % ablated {v.RANKINGS[by]}, {cost.scaled(100):.1f} % of the score is lost"
    if len(rows) > 1:
        text += f" (by raw importance {Interval.from_row(rows.loc['importance'], 'cost').scaled(100):.1f})"
    text += _unpaired(table)
    return Verdict(v.unless_unsure(cost.below(LITTLE), most.above(LITTLE)), text)


def fig6(bench: Bench) -> Reproduced:
    """Show the score on other tasks when heads are ablated by importance."""
    return _curves(bench, "fig6", fig6_claim)


fig6_claim = v.claim(
    "On other tasks too: 60 % can be ablated on SST-2, 50 % on CoLA and MRPC, 20 % in a small translation model.",
    "The rule of Fig. 3, at the share of the task with the same metric.",
)(fig3_claim)


def _curves(bench: Bench, figure: str, judge: Claim) -> Reproduced:
    """Return curves by importance, by single effects and by chance, with the paper's harmless share of heads."""
    table = bench.table("curves")
    metric = v.metric_of(table)
    wanted = table["order"].str.fullmatch(r"importance(\[layer\])?|-?ablation\[.*\]|random \d+")
    rows = table[wanted].reset_index(drop=True)
    intact = rows.loc[rows["masked"] == 0, VALUES].iloc[0]
    rows = rows.assign(paired="change" in rows, **v.costs(rows, intact, metric), paper=math.nan)
    known = v.paper_numbers("michel2019-fig3")
    printed = known[(known["figure"] == figure) & (known["metric"] == metric)]
    if len(printed):
        for by in v.RANKINGS:
            place = v.nearest(rows[rows["order"] == by], printed["paper"].iloc[0]).index
            rows.loc[place, ["paper", "task"]] = printed[["paper", "task"]].to_numpy()[: len(place)]
    rows.attrs["source"] = known.attrs["source"]
    return v.judged(judge, rows, lambda: plots.curves(table[wanted], label=v.metric_label(table)))


def ranking_of(table: pd.DataFrame) -> str:
    """Return the ranking by importance that curves have: as the paper's, or without it raw."""
    return next(by for by in v.RANKINGS if table["order"].str.endswith(by).any())


def _unpaired(table: pd.DataFrame) -> str:
    return "" if table["paired"].all() else " (an interval as if the two scores varied independently: too wide)"


def fig4(bench: Bench) -> Reproduced:
    """Show the score when heads of one kind are ablated by importance."""
    table = bench.table("kinds")
    by = ranking_of(table)
    curves = table[table["order"].str.endswith(f" by {by}")].reset_index(drop=True)
    intact = curves.loc[curves["masked"] == 0, VALUES].iloc[0]
    metric = v.metric_of(table)
    kinds = curves["order"].str.partition(" ")[0]
    rows = curves.assign(kind=kinds, by=by, metric=metric, **v.costs(curves, intact, metric))
    rows = rows[["kind", "by", "masked", "share", "metric", *VALUES, *v.with_bounds("cost")]]
    return v.judged(fig4_claim, rows, lambda: plots.curves(curves, label=v.metric_label(table)))


@v.claim(
    "Cross-attention breaks first: beyond 60 % it collapses, while the other kinds keep most of the score.",
    """Holds if 80 % of its heads, to five points, cost more than half of the score, with the interval, and more than
    80 % of the heads of either other kind, which cost less than half of it (of a loss, half a nat); fails if they
    cost less than those of another kind, and those of that kind more than 3 % of the score (0.03 nats).""",
)
def fig4_claim(table: pd.DataFrame) -> Verdict:
    rows = pd.concat([v.nearest(part, 0.8) for _, part in table.groupby("kind", sort=False, observed=True)])
    lost = dict(zip(map(str, rows["kind"]), v.intervals(rows, "cost"), strict=True))
    if {*lost} != {*KINDS}:
        return Verdict(None, f"of three kinds, {len(lost)} have a step within 5 points of 80 %")
    cross, metric = lost.pop("cross"), rows.iloc[0].get("metric", "")
    firsts = [cross.minus(cost).above(0) for cost in lost.values()]
    if not v.any_holds(
        first is False and cost.above(LITTLE) for first, cost in zip(firsts, lost.values(), strict=True)
    ):
        firsts = [first or None for first in firsts]
    collapses = v.all_hold([cross.above(MOST), *(cost.below(MOST) for cost in lost.values())])
    text = ", ".join(f"{kind} {v.cost_in_words(cost, metric)}" for kind, cost in (lost | {"cross": cross}).items())
    text = f"lost with 80 % ablated {v.RANKINGS[rows['by'].iloc[0]]}: {text}"
    return Verdict(v.unless_unsure(v.all_hold(firsts), collapses), text)


def fig5(bench: Bench) -> Reproduced:
    """Show the share of the score that remains after ablation at each epoch."""
    table = bench.table("dynamics")
    parts = []
    for _, part in table.groupby("step"):
        rows = v.nearest(part, 0.4)
        intact = part.loc[part["masked"] == 0, VALUES].iloc[0]
        cost = v.costs(rows, intact, v.metric_of(table))
        kept = {"kept": 1 - cost["cost"], "kept.low": 1 - cost["cost.high"], "kept.high": 1 - cost["cost.low"]}
        parts.append(rows[["epoch", "step", "share"]].assign(score=intact["value"], **kept, paired="change" in rows))
    if not sum(map(len, parts)):
        raise Missing("Fig. 5 shows 40 % of the heads ablated: got no step within 5 points of it")
    rows = v.with_paper(pd.concat(parts, ignore_index=True), "michel2019-fig5", "epoch")
    rows = rows.assign(metric=v.metric_of(table))
    return v.judged(fig5_claim, rows, lambda: plots.dynamics(table, label=v.metric_label(table)))


@v.claim(
    "Early in training a model needs its heads; later 40 % can be ablated within 85 to 90 % of the score.",
    """Holds if ablating 40 % keeps a smaller share of the score at the first epoch than at the last, and there at
    least 0.85, each with its interval, and this share rises over all epochs (Kendall's tau, p < 0.05); fails if the
    first keeps more, or the last less than 0.85. Undecided of a loss, of which no share is kept.""",
)
def fig5_claim(table: pd.DataFrame) -> Verdict:
    ends = table.iloc[[0, -1]]
    if ends.iloc[0].get("metric") == "loss":
        return Verdict(None, f"the rule asks for 0.85 of a score; got a loss, {ends['score'].iloc[-1]:.3f} at the end")
    first, last = v.intervals(ends, "kept")
    rises = bool(stats.kendalltau(table["epoch"], table["kept"], alternative="greater").pvalue < CLEAR)
    holds = v.unless_unsure(v.all_hold([first.minus(last).below(0), last.above(ENOUGH)]), rises)
    epochs = zip((first, last), ends["epoch"], strict=True)
    text = " and ".join(f"{kept} at epoch {epoch:.3g}" for kept, epoch in epochs)
    return Verdict(holds, f"ablating 40 % keeps {text}{_unpaired(table)}")


def table4(bench: Bench) -> Reproduced:
    """Show the speed with half of the heads removed, in batches of several sizes."""
    table = bench.table("efficiency")
    rows = table[(table["way"] == "cut") & table["share"].isin(v.nearest(table, 0.5)["share"])].reset_index(drop=True)
    if rows.empty:
        raise Missing("Table 4 shows half of the heads removed: got no share within 5 points of it")
    columns = ["batch", "speed", "speed.sd", *v.with_bounds("speedup"), "allowed"]
    return v.judged(table4_claim, v.with_paper(rows[columns], "michel2019-table4", "batch"))


@v.claim(
    "Removing half of the heads makes inference faster, by 17.5 % in large batches.",
    "Holds if the speed-up in the largest batch is above 1 with its interval.",
)
def table4_claim(table: pd.DataFrame) -> Verdict:
    row = table.iloc[table["batch"].argmax()]
    speedup = Interval.from_row(row, "speedup")
    return Verdict(speedup.above(1), f"{speedup} in batches of {row['batch']:.0f}")


def heads_share(bench: Bench) -> Reproduced:
    """Show the share of parameters of one head, and of all heads (section 4.3, text)."""
    table = bench.table("efficiency").query("way == 'cut'").drop_duplicates("masked")
    intact, cut = table.iloc[0], table.iloc[table["masked"].argmax()]
    head = (intact["parameters"] - cut["parameters"]) / cut["masked"]
    counts = bench.table("single").groupby(level=["kind", "layer"]).size()
    names = ["one head of its layer", "one head of all parameters", "attention of all parameters"]
    ours = [1 / counts.max(), head / intact["parameters"], counts.sum() * head / intact["parameters"]]
    shares = v.with_paper(pd.DataFrame({"what": names, "ours": ours}), "michel2019-heads_share", "what")
    return v.judged(heads_share_claim, shares)


@v.claim("Attention has about a third of a model's parameters.", "Holds if its share is from 28 to 38 %.")
def heads_share_claim(table: pd.DataFrame) -> Verdict:
    share = table.set_index("what")["ours"]["attention of all parameters"]
    return Verdict(bool(THIRD[0] <= share <= THIRD[1]), f"{100 * share:.0f} % of the parameters are attention's")
