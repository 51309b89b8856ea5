"""Michel et al. 2019, "Are sixteen heads": each figure and table, from the tables of a bench (no torch)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headroles import plots
from headroles.maps import new_axes
from headroles.outcomes import correlations, effect_of
from headroles.papers import michel_claims as claims
from headroles.papers.bench import SMALLER_IS_BETTER, Bench, Missing, field, gains, metric_of, of_kind
from headroles.papers.printed import beside, printed
from headroles.papers.reproduced import Claim, Reproduced, judged
from headroles.papers.verdict import less

ENDS = ("", ".low", ".high")
VALUES = ["value", "low", "high"]
NAMES = {"bleu": "BLEU", "chrf": "chrF"}


def fig1(bench: Bench) -> Reproduced:
    """The score with one head closed: a histogram over heads, the whole model's as a line."""
    from matplotlib.ticker import MaxNLocator

    effects = _foremost(bench.table("single"))
    name, metric = effect_of(effects), metric_of(effects)
    intact = float(field(effects, "intact", name))
    table = effects[[name]].set_axis(["change"], axis=1).assign(score=intact + effects[name])
    table["relative"] = table["change"] / abs(intact)
    ax = plots.histogram(effects)
    low, high = ax.get_xlim()
    ticks = [at for at in MaxNLocator(6).tick_values(intact + low, intact + high) if low < at - intact < high]
    ax.set_xticks([at - intact for at in ticks], [f"{at:.5g}" for at in ticks])
    ax.set_xlabel(f"{NAMES.get(metric, metric)} with one head closed (dashed: none, {intact:.4g})")
    return judged(claims.fig1, table.reset_index(), ax)


def table1(bench: Bench) -> Reproduced:
    """The change of the score when each head is closed: layers by heads, how many are significant."""
    table = bench.table("single")
    effects, name = _foremost(table), effect_of(table)
    sure = effects[f"{name}.p"] < claims.SURE
    wide = effects[name].unstack("head").droplevel("kind").rename(columns=lambda head: f"head {head}")
    better = sure & (effects[name] * _better(metric_of(effects)) > 0)
    found = wide.assign(significant=sure.groupby(level="layer").sum(), better=better.groupby(level="layer").sum())
    found["of"] = effects.groupby(level="layer").size()
    theirs = printed("michel2019-table1")
    if len(wide) == 6 and "cross" in table.index.unique("kind"):  # as the paper's model
        found["paper"] = theirs.groupby("layer").size().reindex(range(6), fill_value=0)
    found = found.reset_index()
    found.attrs["source"] = theirs.attrs["source"]
    return judged(claims.table1, found)


def table2(bench: Bench) -> Reproduced:
    """The change with only the best head of a layer kept, of each layer of a translation model."""
    return _kept(bench, "best", "table2", claims.table2)


def table3(bench: Bench) -> Reproduced:
    """The change with only the best head of a layer kept, of each layer of a classifier."""
    return _kept(bench, "best", "table3", claims.table3)


def table5(bench: Bench) -> Reproduced:
    """Table 2 with the head chosen on other examples (here: on the other half)."""
    return _kept(bench, "halves", "table5", claims.table5)


def table6(bench: Bench) -> Reproduced:
    """Table 3 with the head chosen on other examples (here: on the other half)."""
    return _kept(bench, "halves", "table6", claims.table6)


def fig2(bench: Bench) -> Reproduced:
    """The effects of the same heads on two corpora, against each other: a panel for each other corpus."""
    one, *others = _of_other_texts(bench.tables("single"))
    name = effect_of(one)
    names = [field(table, "corpus", name).partition("+")[0] for table in (one, *others)]
    axes = new_axes((10, 11), cell=0.42, panels=len(others))
    parts = []
    for other, corpus, ax in zip(others, names[1:], axes, strict=True):
        told = correlations(one[name], other[name]).reset_index().assign(corpus=corpus)
        parts.append(told if len(told) > 1 else told.replace({"heads of": {"all": "enc-self"}}))
        plots.agreement(_foremost(one), _foremost(other), names=(names[0], corpus), ax=ax)
    kind = "translation" if "cross" in one.index.unique("kind") else "encoder"
    theirs = printed("michel2019-fig2")
    found = pd.concat(parts, ignore_index=True)
    found["paper"] = float(theirs.loc[theirs["model"] == kind, "paper"].iloc[0])
    found["paper"] = found["paper"].where(found["heads of"] == "enc-self")
    found.attrs["source"] = theirs.attrs["source"]
    return judged(claims.fig2, found, axes[0])


def fig3(bench: Bench) -> Reproduced:
    """The score when heads are closed by importance and by their single effects."""
    return _curves(bench, "fig3", claims.fig3)


def fig6(bench: Bench) -> Reproduced:
    """The score on other tasks when heads are closed by importance."""
    return _curves(bench, "fig6", claims.fig6)


def fig4(bench: Bench) -> Reproduced:
    """The score when heads of one kind are closed by importance."""
    table: Any = bench.table("kinds")
    own = table[table["order"].str.endswith(" by importance")].reset_index(drop=True)
    whole = own.loc[own["closed"] == 0, VALUES].iloc[0]
    found = own.assign(kind=own["order"].str.partition(" ")[0], **_costs(own, whole, metric_of(table)))
    found = found[["kind", "closed", "share", *VALUES, *(f"cost{end}" for end in ENDS)]]
    return judged(claims.fig4, found, plots.curves(own, label=_label(table)))


def fig5(bench: Bench) -> Reproduced:
    """What closing heads keeps of the score at each epoch."""
    table: Any = bench.table("dynamics")
    parts = []
    for _, part in table.groupby("step"):
        rows = part.loc[[(part["share"] - 0.4).abs().idxmin()]]
        whole = part.loc[part["closed"] == 0, VALUES].iloc[0]
        cost = _costs(rows, whole, metric_of(table))
        kept = {"kept": 1 - cost["cost"], "kept.low": 1 - cost["cost.high"], "kept.high": 1 - cost["cost.low"]}
        parts.append(rows[["epoch", "step", "share"]].assign(score=whole["value"], **kept, paired="change" in rows))
    found = beside(pd.concat(parts, ignore_index=True), "michel2019-fig5", "epoch")
    return judged(claims.fig5, found, plots.dynamics(table, label=_label(table)))


def table4(bench: Bench) -> Reproduced:
    """The speed with half of the heads cut out, in batches of several sizes."""
    table = bench.table("efficiency")
    half = table.loc[(table["share"] - 0.5).abs().idxmin(), "share"]
    rows = table[(table["way"] == "cut") & (table["share"] == half)]
    columns = ["batch", "speed", "speed.sd", "speedup", "speedup.low", "speedup.high", "allowed"]
    return judged(claims.table4, beside(rows[columns].reset_index(drop=True), "michel2019-table4", "batch"))


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
    return judged(claims.heads_share, beside(found, "michel2019-heads_share", "what"))


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
    better = _better(metric)
    found["cost"] = -better * found["effect"]
    low, high = (found["high"], found["low"]) if better > 0 else (found["low"], found["high"])
    found = found.assign(**{"cost.low": -better * low, "cost.high": -better * high, "metric": metric})
    if not translation:
        found["score"] = _intact(bench.table("single"), metric)
    return judged(claim, beside(found, f"michel2019-{name}", ["kind", "layer"]))


def _intact(effects: Any, metric: str) -> float:
    """The score of the whole model, of the metric, or NaN where the effects are of another."""
    return float(field(effects, "intact", effect_of(effects))) if metric_of(effects) == metric else float("nan")


def _curves(bench: Bench, figure: str, claim: Claim) -> Reproduced:
    """Curves by importance, by single effects and by chance, with the share that the paper's tasks can do without."""
    table: Any = bench.table("curves")
    metric = metric_of(table)
    wanted = table["order"].str.fullmatch(r"importance|ablation\[.*\]|random \d+")
    rows = table[wanted].reset_index(drop=True)
    whole = rows.loc[rows["closed"] == 0, VALUES].iloc[0]
    rows = rows.assign(paired="change" in rows, **_costs(rows, whole, metric))
    known = printed("michel2019-fig3")
    theirs = known[(known["figure"] == figure) & (known["metric"] == metric)]
    if len(theirs):
        place = (rows["share"] - theirs["paper"].iloc[0]).abs().where(rows["order"] == "importance").idxmin()
        rows.loc[place, ["paper", "task"]] = theirs.iloc[0][["paper", "task"]]
    else:
        rows["paper"] = float("nan")
    rows.attrs["source"] = known.attrs["source"]
    return judged(claim, rows, plots.curves(table[wanted], label=_label(table)))


def _costs(rows: Any, whole: Any, metric: str) -> dict[str, Any]:
    """What is lost, as a share of the whole model's score, with an interval; paired where the table has changes."""
    if "change" in rows:
        changes = rows[["change", "change.low", "change.high"]].to_numpy()
    else:
        changes = np.array([less(row, whole) for row in rows[VALUES].to_numpy()])
    value, low, high = (-gains(changes, metric) / abs(whole["value"])).T
    return {"cost": value, "cost.low": high, "cost.high": low}


def _better(metric: str) -> int:
    return -1 if metric in SMALLER_IS_BETTER else 1


def _label(table: Any) -> str:
    return NAMES.get(metric_of(table), metric_of(table))
