"""Michel et al. 2019, "Are sixteen heads": each figure and table, from the tables of a bench (no torch)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from headroles import plots
from headroles.experiments.papers.artefact import (
    LITTLE,
    Claim,
    Holds,
    Reproduced,
    Verdict,
    above,
    at_stake,
    below,
    beside,
    every,
    judged,
    less,
    printed,
    provided,
    said,
    wilson,
    within,
)
from headroles.experiments.papers.stakes import VALUES, better, costs, rises, scale, stake
from headroles.experiments.papers.tables import Bench, Missing, field, metric_of, of_kind
from headroles.plots.axes import new_axes
from headroles.plots.effects import correlations, effect_of

ENDS = ("", ".low", ".high")
NAMES = {"bleu": "BLEU", "chrf": "chrF"}


def fig1(bench: Bench) -> Reproduced:
    """The score with one head closed: a histogram over heads, the whole model's as a line."""
    effects = _foremost(bench.table("single"))
    name, metric = effect_of(effects), metric_of(effects)
    intact = float(field(effects, "intact", name))
    table = effects[[f"{name}{end}" for end in ENDS]].set_axis([f"change{end}" for end in ENDS], axis=1)
    relative = (table / scale(metric, intact)).add_prefix("relative.").rename(columns=_shortened)
    table = table.assign(score=intact + effects[name]).join(relative)
    table[[f"all{end}" for end in ENDS]] = stake(bench)
    return judged(fig1_claim, table.reset_index(), lambda: _histogram(effects, metric, intact))


def table1(bench: Bench) -> Reproduced:
    """The change of the score when each head is closed: layers by heads, how many are significant."""
    table = bench.table("single")
    effects, name, metric = _foremost(table), effect_of(table), metric_of(table)
    sure = effects[f"{name}.p"] < SURE
    wide = effects[name].unstack("head").droplevel("kind").rename(columns=lambda head: f"head {head}")
    counted = {"significant": sure, "better": sure & (effects[name] * better(metric) > 0)}
    ends = effects[[f"{name}.low", f"{name}.high"]] / scale(metric, float(field(effects, "intact", name)))
    little = pd.Series([within(low, high, LITTLE) for low, high in ends.to_numpy()], effects.index, dtype=object)
    counted |= {"near": little.eq(True), "far": little.eq(False)}
    found = wide.assign(**{name_: flags.groupby(level="layer").sum() for name_, flags in counted.items()})
    found["of"] = effects.groupby(level="layer").size()
    theirs = printed("michel2019-table1")
    if len(wide) == 6 and "cross" in table.index.unique("kind"):  # as the paper's model
        found["paper"] = theirs.groupby("layer").size().reindex(range(6), fill_value=0)
    found[[f"all{end}" for end in ENDS]] = stake(bench)
    found = found.reset_index()
    found.attrs["source"] = theirs.attrs["source"]
    return judged(table1_claim, found)


def table2(bench: Bench) -> Reproduced:
    """The change with only the best head of a layer kept, of each layer of a translation model."""
    return _kept(bench, "best", "table2", table2_claim)


def table3(bench: Bench) -> Reproduced:
    """The change with only the best head of a layer kept, of each layer of a classifier."""
    return _kept(bench, "best", "table3", table3_claim)


def table5(bench: Bench) -> Reproduced:
    """Table 2 with the head chosen on other examples (here: on the other half)."""
    return _kept(bench, "halves", "table5", table5_claim)


def table6(bench: Bench) -> Reproduced:
    """Table 3 with the head chosen on other examples (here: on the other half)."""
    return _kept(bench, "halves", "table6", table6_claim)


def fig2(bench: Bench) -> Reproduced:
    """The effects of the same heads on two corpora, against each other: a panel for each other corpus."""
    one, *others = _of_other_texts(bench.tables("single"))
    name = effect_of(one)
    names = [field(table, "corpus", name).partition("+")[0] for table in (one, *others)]
    parts = []
    for other, corpus in zip(others, names[1:], strict=True):
        told = correlations(one[name], other[name]).reset_index().assign(corpus=corpus)
        told["pearson.rest"] = _without_largest(one[name], other[name])
        parts.append(told if len(told) > 1 else told.replace({"heads of": {"all": "enc-self"}}))
    kind = "translation" if "cross" in one.index.unique("kind") else "encoder"
    theirs = printed("michel2019-fig2")
    found = pd.concat(parts, ignore_index=True)
    found["paper"] = float(theirs.loc[theirs["model"] == kind, "paper"].iloc[0])
    found["paper"] = found["paper"].where(found["heads of"] == "enc-self")
    found[[f"all{end}" for end in ENDS]] = stake(bench)
    found.attrs["source"] = theirs.attrs["source"]
    return judged(fig2_claim, found, lambda: _agreements(one, others, names))


def fig3(bench: Bench) -> Reproduced:
    """The score when heads are closed by importance and by their single effects."""
    return _curves(bench, "fig3", fig3_claim)


def fig6(bench: Bench) -> Reproduced:
    """The score on other tasks when heads are closed by importance."""
    return _curves(bench, "fig6", fig6_claim)


def fig4(bench: Bench) -> Reproduced:
    """The score when heads of one kind are closed by importance."""
    table: Any = bench.table("kinds")
    own = table[table["order"].str.endswith(" by importance")].reset_index(drop=True)
    whole = own.loc[own["closed"] == 0, VALUES].iloc[0]
    found = own.assign(kind=own["order"].str.partition(" ")[0], **costs(own, whole, metric_of(table)))
    found = found[["kind", "closed", "share", *VALUES, *(f"cost{end}" for end in ENDS)]]
    return judged(fig4_claim, found, lambda: plots.curves(own, label=_label(table)))


def fig5(bench: Bench) -> Reproduced:
    """What closing heads keeps of the score at each epoch."""
    table: Any = bench.table("dynamics")
    parts = []
    for _, part in table.groupby("step"):
        rows = part.loc[[(part["share"] - 0.4).abs().idxmin()]]
        whole = part.loc[part["closed"] == 0, VALUES].iloc[0]
        cost = costs(rows, whole, metric_of(table))
        kept = {"kept": 1 - cost["cost"], "kept.low": 1 - cost["cost.high"], "kept.high": 1 - cost["cost.low"]}
        parts.append(rows[["epoch", "step", "share"]].assign(score=whole["value"], **kept, paired="change" in rows))
    found = beside(pd.concat(parts, ignore_index=True), "michel2019-fig5", "epoch")
    return judged(fig5_claim, found, lambda: plots.dynamics(table, label=_label(table)))


def table4(bench: Bench) -> Reproduced:
    """The speed with half of the heads cut out, in batches of several sizes."""
    table = bench.table("efficiency")
    half = table.loc[(table["share"] - 0.5).abs().idxmin(), "share"]
    rows = table[(table["way"] == "cut") & (table["share"] == half)]
    columns = ["batch", "speed", "speed.sd", "speedup", "speedup.low", "speedup.high", "allowed"]
    return judged(table4_claim, beside(rows[columns].reset_index(drop=True), "michel2019-table4", "batch"))


def heads_share(bench: Bench) -> Reproduced:
    """What share of parameters one head has, and all of them (section 4.3, text)."""
    table = bench.table("efficiency").query("way == 'cut'").drop_duplicates("closed")
    whole, cut = table.iloc[0], table.loc[table["closed"].idxmax()]
    each = (whole["parameters"] - cut["parameters"]) / cut["closed"]
    counts = bench.table("single").groupby(level=["kind", "layer"]).size()
    rows = [("one head of its layer", 1 / counts.max())]
    rows += [("one head of all parameters", each / whole["parameters"])]
    rows += [("attention of all parameters", counts.sum() * each / whole["parameters"])]
    found = pd.DataFrame(rows, columns=["what", "ours"])
    return judged(heads_share_claim, beside(found, "michel2019-heads_share", "what"))


def _foremost(table: Any) -> Any:
    """The rows of the encoder, or of the only kind there is: what the paper shows."""
    kinds = table.index.unique("kind")
    return of_kind(table, "enc-self" if "enc-self" in kinds else kinds[0])


def _of_other_texts(tables: list[Any]) -> list[Any]:
    """Tables of one metric, each of another text; of the first metric of which there are two. Raises Missing."""
    for name in dict.fromkeys(map(effect_of, tables)):
        alike = [table for table in tables if effect_of(table) == name]
        each: dict[str, Any] = {}
        for table in alike:
            each.setdefault(field(table, "text", name), table)
        if len(each) > 1:
            return [*each.values()]
    raise Missing("Fig. 2 compares two corpora, and heads were closed on one; headroles ablate MODEL OTHER closes them")


def _kept(bench: Bench, need: str, name: str, claim: Claim) -> Reproduced:
    """One head kept in each layer, with the paper's numbers; `cost` is what is lost of the metric."""
    table: Any = bench.table(need)
    translation = "cross" in table.index.unique("kind")
    if translation != (name in ("table2", "table5")):
        told = "a translation model" if translation else "no translation model"
        raise Missing(
            f"the paper's {name} is of {'a classifier' if translation else 'a translation model'}; this is {told}"
        )
    metric = metric_of(table)
    found = table.rename(columns=lambda column: column.removeprefix("effect.")).reset_index()
    sign = better(metric)
    found["cost"] = -sign * found["effect"]
    low, high = (found["high"], found["low"]) if sign > 0 else (found["low"], found["high"])
    found = found.assign(**{"cost.low": -sign * low, "cost.high": -sign * high, "metric": metric})
    found["little"] = LITTLE * scale(metric, _intact(bench.tables("single"), metric))
    found[[f"all{end}" for end in ENDS]] = stake(bench)
    return judged(claim, beside(found, f"michel2019-{name}", ["kind", "layer"]))


def _intact(tables: list[Any], metric: str) -> float:
    """The score of the whole model, of the metric, on the first corpus of which there is one; else NaN."""
    found = [float(field(table, "intact", effect_of(table))) for table in tables if metric_of(table) == metric]
    return found[0] if found else float("nan")


def _curves(bench: Bench, figure: str, claim: Claim) -> Reproduced:
    """Curves by importance, by single effects and by chance, with the share that the paper's tasks can do without."""
    table: Any = bench.table("curves")
    metric = metric_of(table)
    wanted = table["order"].str.fullmatch(r"importance|ablation\[.*\]|random \d+")
    rows = table[wanted].reset_index(drop=True)
    whole = rows.loc[rows["closed"] == 0, VALUES].iloc[0]
    rows = rows.assign(paired="change" in rows, **costs(rows, whole, metric))
    known = printed("michel2019-fig3")
    theirs = known[(known["figure"] == figure) & (known["metric"] == metric)]
    if len(theirs):
        place = (rows["share"] - theirs["paper"].iloc[0]).abs().where(rows["order"] == "importance").idxmin()
        rows.loc[place, ["paper", "task"]] = theirs.iloc[0][["paper", "task"]]
    else:
        rows["paper"] = float("nan")
    rows.attrs["source"] = known.attrs["source"]
    return judged(claim, rows, lambda: plots.curves(table[wanted], label=_label(table)))


def _shortened(name: str) -> str:
    return name.replace("relative.change", "relative")


def _histogram(effects: Any, metric: str, intact: float) -> Any:
    """The histogram of effects, its axis in the metric itself."""
    from matplotlib.ticker import MaxNLocator

    ax = plots.histogram(effects)
    low, high = ax.get_xlim()
    ticks = [at for at in MaxNLocator(6).tick_values(intact + low, intact + high) if low < at - intact < high]
    ax.set_xticks([at - intact for at in ticks], [f"{at:.5g}" for at in ticks])
    ax.set_xlabel(f"{NAMES.get(metric, metric)} with one head closed (dashed: none, {intact:.4g})")
    return ax


def _agreements(one: Any, others: list[Any], names: list[str]) -> Any:
    """A panel for each other corpus: the effects of the same heads there against those here."""
    axes = new_axes((10, 11), cell=0.42, panels=len(others))
    for other, corpus, ax in zip(others, names[1:], axes, strict=True):
        plots.agreement(_foremost(one), _foremost(other), names=(names[0], corpus), ax=ax)
    return axes[0]


def _without_largest(one: Any, other: Any) -> list[float]:
    """Pearson's correlation without the two largest effects here: of all heads, and of each kind."""
    both = pd.concat([one, other], axis=1, keys=["one", "other"]).dropna()
    kinds = [part for _, part in both.groupby(level="kind", sort=False, observed=True)]
    parts = [both, *(kinds if len(kinds) > 1 else [])]
    rest = [part.drop(part["one"].abs().nlargest(2).index) for part in parts]
    return [float(part["one"].corr(part["other"])) for part in rest]


def _label(table: Any) -> str:
    return NAMES.get(metric_of(table), metric_of(table))


SURE = 0.01  # the paper's p
COSTS = ["cost", "cost.low", "cost.high"]
THIRD = 0.28, 0.38  # what counts as "about a third" (our choice)


def fig1_claim(table: Any) -> Verdict:
    """Closing a single head changes the score little for most heads.

    Holds if more than half of the heads change it by less than 3 % (of a loss, 0.03 nats): the interval of each such
    change lies inside that bound, and that of their share above a half; and closing all heads costs more than that.
    Fails if more than half change it by more, in the same way.
    """
    little = [within(low, high, LITTLE) for low, high in table[["relative.low", "relative.high"]].to_numpy()]
    worst = table.loc[table["relative"].abs().idxmax()]
    name = f"layer {worst['layer']} head {worst['head']}"
    return _most(little.count(True), little.count(False), table, f"the most {100 * worst['relative']:+.1f} % ({name})")


def table1_claim(table: Any) -> Verdict:
    """Most heads are redundant at test time: 8 of 96 change BLEU at p < 0.01, half of them for the better.

    The rule of Fig. 1: a head without p < 0.01 is not yet one without an effect.
    """
    hits, ups = int(table["significant"].sum()), int(table["better"].sum())
    text = f"{hits} have p < 0.01 (uncorrected), {ups} of them for the better"
    return _most(int(table["near"].sum()), int(table["far"].sum()), table, text)


def _most(near: int, far: int, table: Any, text: str) -> Verdict:
    of = int(table["of"].sum()) if "of" in table else len(table)
    found = True if above(*wilson(near, of), 0.5) else False if above(*wilson(far, of), 0.5) else None
    why = f"{near} of {of} heads change it by less than 3 % with their intervals, {far} by more; {text}; {_all(table)}"
    return Verdict(provided(found, at_stake(table)), why)


def _all(table: Any) -> str:
    """What removing all heads costs, in words."""
    ends = (100 * table[["all", "all.low", "all.high"]].iloc[0]).tolist()
    return (
        "nothing says what all heads are worth" if ends[0] != ends[0] else f"all of them cost {said(*ends, digits=0)} %"
    )


def table2_claim(table: Any) -> Verdict:
    """One head is enough in most layers of a translation model, though it was trained with many.

    Holds if in more than half of the layers keeping only the best head costs less than 3 % of the score (of a loss,
    0.03 nats) with the end of its interval, and closing all heads costs more; fails if in half of them it costs more,
    with its interval.
    """
    return _enough(table, more=True)


def table3_claim(table: Any) -> Verdict:
    """One head is enough in every layer of a classifier.

    Holds if in every layer keeping only the best head costs less than 3 % of the score (of a loss, 0.03 nats) with the
    end of its interval, and closing all heads costs more; fails if in one it costs more, with its interval.
    """
    return _all_enough(table)


def table5_claim(table: Any) -> Verdict:
    """Also when the head is chosen on other examples, one is enough in half of the layers.

    Holds if in at least half of the layers keeping only that head costs less than 3 % of the score (of a loss, 0.03
    nats) with the end of its interval, and closing all heads costs more; fails if in more than half it costs more, with
    its interval.
    """
    return _enough(table, more=False)


def table6_claim(table: Any) -> Verdict:
    """Also when the head is chosen on other examples, one is enough in every layer of a classifier.

    The rule of Table 3.
    """
    return _all_enough(table)


def _enough(table: Any, *, more: bool) -> Verdict:
    near, text = _kept_heads(table)
    yes, no, half = near.count(True), near.count(False), len(near) / 2
    found = True if yes > half or (yes == half and not more) else False if no > half or (no == half and more) else None
    return Verdict(provided(found, at_stake(table)), text)


def _all_enough(table: Any) -> Verdict:
    near, text = _kept_heads(table)
    return Verdict(provided(every(near), at_stake(table)), text)


def _kept_heads(table: Any) -> tuple[list[Holds], str]:
    """In which layers one head costs less than a little, in which more, and that in words."""
    near = [below(row["cost.low"], row["cost.high"], row["little"]) for _, row in table.iterrows()]
    worst = table.loc[table["cost"].idxmax()]
    bad = int(((table["p"] < SURE) & (table["cost"] > 0)).sum())
    text = f"less than {worst['little']:.3f} is lost in {near.count(True)} of {len(near)} layers, more in "
    text += f"{near.count(False)}; worse at p < 0.01 (uncorrected) in {bad}; the most is lost in {worst['kind']} layer "
    return near, f"{text}{worst['layer']}, {said(*worst[COSTS], digits=3)}; {_all(table)}"


def fig2_claim(table: Any) -> Verdict:
    """Heads that matter on one corpus matter on another: Pearson's correlation 0.56 and 0.68.

    Holds if the rank correlation over the encoder's heads, which does not rest on a few large effects, is above 0 with
    its interval on every other corpus, and closing all heads costs more than 3 % of the score.
    """
    rows = table[table["heads of"] == "enc-self"]
    found = every(above(row["spearman.low"], row["spearman.high"], 0) for _, row in rows.iterrows())
    told = ", ".join(
        f"{row['corpus']} rank correlation {said(*row[['spearman', 'spearman.low', 'spearman.high']])}, Pearson's "
        f"{said(row['pearson'])}, {said(row['pearson.rest'])} without the two largest effects"
        for _, row in rows.iterrows()
    )
    return Verdict(provided(found, at_stake(table)), f"{told}; {_all(table)}")


def fig3_claim(table: Any) -> Verdict:
    """Some 20 % (translation) or 40 % (BERT) of the heads go by importance without a noticeable loss.

    Holds if closing that share costs less than 3 % of the score, with the interval of the cost, and closing all heads
    more than that.
    """
    return _harmless(table)


def fig6_claim(table: Any) -> Verdict:
    """On other tasks too: 60 % go on SST-2, 50 % on CoLA and MRPC, 20 % in a small translation model.

    The rule of Fig. 3, at the share of the task with the same metric.
    """
    return _harmless(table)


def _harmless(table: Any) -> Verdict:
    curve = table[table["order"] == "importance"]
    rows = curve[curve["paper"].notna()]
    if rows.empty:
        return Verdict(None, "the paper has no task of this metric")
    row, last = rows.iloc[0], curve.loc[curve["share"].idxmax()]
    cost = said(*(100 * row[["cost", "cost.low", "cost.high"]]), digits=1)
    found = below(row["cost.low"], row["cost.high"], LITTLE)
    found = provided(found, above(last["cost.low"], last["cost.high"], LITTLE))
    return Verdict(found, f"with {100 * row['share']:.0f} % closed {cost} % of the score is lost{_unpaired(table)}")


def _unpaired(table: Any) -> str:
    return "" if table["paired"].all() else " (an interval as if the two scores varied apart: too wide)"


def fig4_claim(table: Any) -> Verdict:
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


def table4_claim(table: Any) -> Verdict:
    """Cutting out half of the heads makes inference faster, by 17.5 % in large batches.

    Holds if the speed-up in the largest batch is above 1 with its interval.
    """
    row = table.loc[table["batch"].idxmax()]
    numbers = said(row["speedup"], row["speedup.low"], row["speedup.high"])
    return Verdict(above(row["speedup.low"], row["speedup.high"], 1), f"{numbers} in batches of {row['batch']:.0f}")


def heads_share_claim(table: Any) -> Verdict:
    """Attention has about a third of a model's parameters.

    Holds if its share is from 28 to 38 %.
    """
    share = table.set_index("what").loc["attention of all parameters", "ours"]
    return Verdict(bool(THIRD[0] <= share <= THIRD[1]), f"{100 * share:.0f} % of the parameters are attention's")


def fig5_claim(table: Any) -> Verdict:
    """Early in training a model needs its heads; later 40 % go within 85 to 90 % of the score.

    Holds if closing 40 % keeps a smaller share of the score at the first epoch than at the last, and there at least
    0.85, each with its interval, and what is kept rises over all epochs (Kendall's tau, p < 0.05); fails if the first
    keeps more, or the last less than 0.85.
    """
    ends = ["kept", "kept.low", "kept.high"]
    first, last = table.iloc[0], table.iloc[-1]
    parts: list[Holds] = [below(*less(first[ends], last[ends])[1:], 0)]
    parts += [above(last["kept.low"], last["kept.high"], 0.85)]
    told = " and ".join(f"{said(*row[ends])} at epoch {row['epoch']:.0f}" for row in (first, last))
    return Verdict(
        provided(every(parts), rises(table, "kept", "epoch")), f"closing 40 % keeps {told}{_unpaired(table)}"
    )
