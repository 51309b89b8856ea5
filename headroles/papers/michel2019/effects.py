"""Michel et al. 2019, section 3: ablating one head, and all but one of a layer (no torch)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from scipy import stats

from headroles import plots
from headroles.papers.artefact import (
    Claim,
    Holds,
    Interval,
    Reproduced,
    Verdict,
    beside,
    bounded,
    claim,
    every,
    judged,
    printed,
    provided,
    share,
    sourced,
)
from headroles.papers.bench import (
    CLEAR,
    LITTLE,
    Bench,
    amount,
    at_stake,
    better,
    field,
    metric_label,
    metric_of,
    of_kind,
    scale,
    stake,
)
from headroles.papers.needs import METRIC, NEEDS, Missing, Need
from headroles.plots.effects import effect_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from headroles.papers.workflow import Workflow

SURE = 0.01  # the paper's p
HALF = 0.2, 0.8  # shares that "half of them" may have with their intervals (our choice)
UNKNOWN = "the cost of all heads is unknown"


def fig1(bench: Bench) -> Reproduced:
    """Show the score with one head ablated: a histogram over heads, the whole model's score as a line."""
    effects = encoder_rows(bench.table("single"))
    name, intact = effect_of(effects), _intact(effects)
    metric, changes = metric_of(effects), effects[bounded(name)].set_axis(bounded("change"), axis=1)
    relative = (changes / scale(metric, intact)).set_axis(bounded("relative"), axis=1)
    table = changes.assign(score=intact + effects[name], metric=metric).join(relative)
    return judged(fig1_claim, table.assign(**stake(bench, effects)).reset_index(), lambda: _histogram(effects, intact))


@claim(
    "Ablating a single head changes the score little for most heads.",
    """Holds if more than half of the heads change it by less than 3 % (of a loss, 0.03 nats): the interval of each
    such change lies inside that bound, and that of their share above a half; and ablating all heads costs more than
    that. Fails if more than half change it by more, in the same way.""",
)
def fig1_claim(table: pd.DataFrame) -> Verdict:
    little = [Interval.of(row, "relative").within(LITTLE) for _, row in table.iterrows()]
    worst = table.iloc[table["relative"].abs().argmax()]
    change = amount(Interval(worst["relative"]), worst.get("metric", ""))
    text = f"the largest change is {change} (layer {worst['layer']} head {worst['head']})"
    return _most(little.count(True), little.count(False), len(table), text, table)


def table1(bench: Bench) -> Reproduced:
    """Show the change of the score when each head is ablated: layers by heads, how many are significant."""
    table = bench.table("single")
    effects, name, metric = encoder_rows(table), effect_of(table), metric_of(table)
    sure = effects[f"{name}.p"] < SURE
    wide = effects[name].unstack("head").droplevel("kind").rename(columns=lambda head: f"head {head}")
    relative = effects[bounded(name)] / scale(metric, _intact(effects))
    little = pd.Series([Interval(*row).within(LITTLE) for row in relative.to_numpy()], effects.index, dtype=object)
    flags = {"significant": sure, "better": sure & (effects[name] * better(metric) > 0)}
    flags |= {"near": little.eq(True), "far": little.eq(False)}
    counts = wide.assign(**{flag: heads.groupby(level="layer").sum() for flag, heads in flags.items()})
    counts["of"] = effects.groupby(level="layer").size()
    theirs = printed("michel2019-table1")
    if len(wide) == 6 and is_translation(table):  # as the paper's model
        counts["paper"] = theirs.groupby("layer").size().reindex(range(6), fill_value=0)
    return judged(
        table1_claim, sourced(counts.assign(metric=metric, **stake(bench, table)).reset_index(), table, theirs)
    )


@claim(
    "Most heads are redundant at test time: 8 of 96 change BLEU at p < 0.01, half of them for the better.",
    """Holds if the rule of Fig. 1 does, and the share of the heads with p < 0.01 that are for the better lies from a
    fifth to four fifths with its interval (the paper's 4 of 8 do); fails if that of Fig. 1 does, or if that share
    is not a half (exact binomial test, p < 0.05).""",
)
def table1_claim(table: pd.DataFrame) -> Verdict:
    near, far, total, significant, ups = (
        int(table[name].sum()) for name in ("near", "far", "of", "significant", "better")
    )
    better_ones = share(ups, significant)
    text = f"{significant} have p < 0.01 (uncorrected), {ups} of them for the better"
    verdict = _most(near, far, total, f"{text}, a share of {better_ones}" if significant else text, table)
    half = True if better_ones.low > HALF[0] and better_ones.high < HALF[1] else None
    if significant and stats.binomtest(ups, significant).pvalue < CLEAR:
        half = False
    return verdict._replace(holds=every([verdict.holds, half]))


def _most(near: int, far: int, total: int, text: str, table: pd.DataFrame) -> Verdict:
    """Judge whether most heads change the score by little."""
    holds = True if share(near, total).above(0.5) else False if share(far, total).above(0.5) else None
    little = "0.03 nats" if table.iloc[0].get("metric") == "loss" else "3 %"
    text = f"{near} of {total} heads change it by less than {little} with their intervals, {far} by more; {text}"
    return Verdict(provided(holds, at_stake(table)), f"{text}; {cost_of_all(table)}")


def _best(run: Workflow) -> list[Path]:
    study = run.study("ablation")
    run.ablate(study, run.material.test, "all_but_one")
    return [study.path(f"best-{run.metric}-zero")]


NEEDS["best"] = Need(
    "effects of keeping one head per layer",
    "headroles ablate MODEL CORPUS --unit all_but_one",
    rf"best-{METRIC}-zero",
    _best,
)


def table2(bench: Bench) -> Reproduced:
    """Show the change with only the best head of a layer kept, for each layer of a translation model."""
    return _kept(bench, "best", "table2", table2_claim)


@claim(
    "One head is enough in most layers of a translation model, though it was trained with many.",
    """Holds if in more than half of the layers one head is enough: keeping only the best costs less than 3 % of the
    score (of a loss, 0.03 nats) with the end of its interval, and is not worse at the paper's p < 0.01; and ablating
    all heads costs more. Fails if in half of the layers it costs more, with its interval.""",
)
def table2_claim(table: pd.DataFrame) -> Verdict:
    near = _near(table)
    yes, no, half = near.count(True), near.count(False), len(near) / 2
    return _enough(table, True if yes > half else False if no >= half else None)


def table3(bench: Bench) -> Reproduced:
    """Show the change with only the best head of a layer kept, for each layer of a classifier."""
    return _kept(bench, "best", "table3", table3_claim)


@claim(
    "One head is enough in every layer of a classifier.",
    """Holds if in every layer one head is enough, as in Table 2, and ablating all heads costs more; fails if in one
    keeping only the best costs more than 3 % of the score (of a loss, 0.03 nats), with its interval.""",
)
def table3_claim(table: pd.DataFrame) -> Verdict:
    return _enough(table, every(_near(table)))


NEEDS["halves"] = Need(
    "effects of keeping one head per layer, chosen on other examples",
    "headroles ablate MODEL CORPUS --unit all_but_one",
    rf"best-{METRIC}-zero-halves",
    lambda run: [path.with_name(f"{path.stem}-halves.parquet") for path in _best(run)],
)


def table5(bench: Bench) -> Reproduced:
    """Show Table 2 with the head chosen on other examples (here: on the other half)."""
    return _kept(bench, "halves", "table5", table5_claim)


@claim(
    "Also when the head is chosen on other examples, one is enough in half of the layers.",
    """Holds if in at least half of the layers that head is enough, as in Table 2, and ablating all heads costs more;
    fails if in more than half keeping only it costs more than 3 % of the score (of a loss, 0.03 nats), with its
    interval.""",
)
def table5_claim(table: pd.DataFrame) -> Verdict:
    near = _near(table)
    yes, no, half = near.count(True), near.count(False), len(near) / 2
    return _enough(table, True if yes >= half else False if no > half else None)


def table6(bench: Bench) -> Reproduced:
    """Show Table 3 with the head chosen on other examples (here: on the other half)."""
    return _kept(bench, "halves", "table6", table6_claim)


@claim(
    "Also when the head is chosen on other examples, one is enough in every layer of a classifier.",
    "The rule of Table 3.",
)
def table6_claim(table: pd.DataFrame) -> Verdict:
    return _enough(table, every(_near(table)))


def _kept(bench: Bench, need: str, name: str, judge: Claim) -> Reproduced:
    """Return the effects of keeping one head per layer, `cost` with larger values worse, and the paper's numbers."""
    table = bench.table(need)
    ours = "a translation model" if is_translation(table) else "a classifier or language model"
    theirs = "a translation model" if name in ("table2", "table5") else "a classifier"
    if is_translation(table) != (name in ("table2", "table5")):
        raise Missing(f"the paper's {name} shows {theirs}; got {ours}")
    metric = metric_of(table)
    rows = table.rename(columns=lambda column: column.removeprefix("effect.")).reset_index()
    effects = [Interval(*row).scaled(-better(metric)) for row in rows[["effect", "low", "high"]].to_numpy()]
    rows[bounded("cost")] = effects
    whole = next((_intact(single) for single in bench.tables("single") if _alike(single, table)), math.nan)
    rows = rows.assign(metric=metric, little=LITTLE * scale(metric, whole), **stake(bench, table))
    return judged(judge, beside(rows, f"michel2019-{name}", ["kind", "layer"]))


def _alike(single: pd.DataFrame, table: pd.DataFrame) -> bool:
    """Return whether effects of single heads are of the same model, text and metric as a table."""
    return metric_of(single) == metric_of(table) and all(
        field(single, name, effect_of(single)) == field(table, name) for name in ("weights", "text")
    )


def _near(table: pd.DataFrame) -> list[Holds]:
    """Return for each layer whether one head is enough: it costs less than a little, and is not surely worse."""
    return [provided(_is_little(row), not _is_worse(row)) for _, row in table.iterrows()]


def _is_little(row: pd.Series[float]) -> Holds:
    return Interval.of(row, "cost").below(row["little"])


def _is_worse(row: pd.Series[float]) -> bool:
    """Return whether keeping one head of a layer is worse by the paper's test."""
    return bool(row["p"] < SURE and row["cost"] > 0)


def _enough(table: pd.DataFrame, holds: Holds) -> Verdict:
    """Return the verdict on layers with one head kept, with our numbers."""
    worst = table.iloc[table["cost"].argmax()]
    little = [_is_little(row) for _, row in table.iterrows()]
    bad = sum(_is_worse(row) for _, row in table.iterrows())
    text = f"one head is enough in {_near(table).count(True)} of {len(table)} layers: less than {worst['little']:.3f} "
    text += f"is lost in {little.count(True)}, more in {little.count(False)}; worse at p < 0.01 (uncorrected) in {bad}"
    text += f"; the most is lost in {worst['kind']} layer {worst['layer']}, {Interval.of(worst, 'cost'):.3f}"
    text += f"; {cost_of_all(table)}"
    return Verdict(provided(holds, at_stake(table)), text)


def is_translation(table: pd.DataFrame) -> bool:
    """Return whether the heads are those of a translation model."""
    return "cross" in table.index.unique("kind")


def encoder_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of the encoder, which the paper shows; of another model, those of its first kind."""
    kinds = table.index.unique("kind")
    return of_kind(table, "enc-self" if "enc-self" in kinds else kinds[0])


def _intact(table: pd.DataFrame) -> float:
    """Return the score of the whole model, from the provenance of its effects."""
    return float(field(table, "intact", effect_of(table)))


def cost_of_all(table: pd.DataFrame) -> str:
    """Describe the cost of removing all heads in words."""
    cost, metric = Interval.of(table.iloc[0], "all"), table.iloc[0].get("all.metric", "")
    if math.isnan(cost.value):
        return UNKNOWN
    return f"all of them cost {amount(cost, metric) if metric == 'loss' else f'{cost.scaled(100):.0f} %'}"


def _histogram(effects: pd.DataFrame, intact: float) -> Axes:
    """Draw the histogram of effects, its axis in units of the metric."""
    from matplotlib.ticker import MaxNLocator

    ax = plots.histogram(effects)
    low, high = ax.get_xlim()
    ticks = [at for at in MaxNLocator(6).tick_values(intact + low, intact + high) if low < at - intact < high]
    ax.set_xticks([at - intact for at in ticks], [f"{at:.5g}" for at in ticks])
    ax.set_xlabel(f"{metric_label(effects)} with one head ablated (dashed: none, {intact:.4g})")
    return ax
