"""Voita et al. 2019, "Specialized heads": each figure and table, from the tables of a bench (no torch)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from headroles import plots, role
from headroles.heads import KINDS
from headroles.maps import new_axes
from headroles.outcomes import correlations
from headroles.papers import voita_claims as claims
from headroles.papers.bench import Bench, Missing, field, gains, metric_of, of_kind
from headroles.papers.printed import aligned, beside, of_wmt, printed
from headroles.papers.reproduced import Reproduced, judged
from headroles.papers.verdict import less, wilson
from headroles.survivors import FUNCTIONS, LOW

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
    drawn = plots.relevance(table[name], kind="enc-self")
    return judged(claims.fig1a, beside(best, "voita2019-fig1a", "layer"), drawn)


def fig1b(bench: Bench) -> Reproduced:
    """Confidence of the encoder's heads, in the order of their relevance."""
    table: Any = of_kind(bench.table("relevance"))
    pair = table[["confidence", _relevance(table)]]
    inside = pair - pair.groupby(level="layer").transform("mean")
    told = correlations(inside.iloc[:, 0], inside.iloc[:, 1]).loc["all"]
    ends = {"largest": table["confidence"].idxmax(), "smallest": table["confidence"].idxmin()}
    columns = ["confidence", "confidence.low", "confidence.high"]
    rows = [(name, *table[columns].loc[head]) for name, head in ends.items()]
    rows += [("rank correlation with relevance", *told[["spearman", "spearman.low", "spearman.high"]])]
    found = beside(pd.DataFrame(rows, columns=["what", "ours", "ours.low", "ours.high"]), "voita2019-fig1b", "what")
    return judged(claims.fig1b, found, _ranked(pair))


def fig1c(bench: Bench) -> Reproduced:
    """Functions of the encoder's heads."""
    told = role.roles(bench.table("functions"))
    found = beside(_functions(of_kind(told)), "voita2019-fig1c", "function")
    return judged(claims.fig1c, found, plots.roles(told, kind="enc-self"))


def fig2(bench: Bench) -> Reproduced:
    """The same two maps for other corpora or models, at most two, one below the other."""
    import matplotlib.pyplot as plt

    first, *others = bench.tables("functions")[:3]
    if not others:
        raise Missing("Fig. 2 shows other models, and there is one table of scores; headroles score on another corpus")
    names = [_told_on(table, first) for table in others]
    told = [role.roles(table) for table in others]
    parts = [_functions(of_kind(table)).assign(corpus=name) for table, name in zip(told, names, strict=True)]
    found = beside(pd.concat(parts, ignore_index=True), "voita2019-fig2", "function")
    deep, wide = (of_kind(told[0]).index.get_level_values(level).max() + 1 for level in ("layer", "head"))
    size = (2 * (wide * 0.5 + 1.2), len(others) * (deep * 0.5 + 1.2))
    _, grid = plt.subplots(len(others), 2, figsize=size, layout="constrained", squeeze=False)
    for (left, right), table, roles, name in zip(grid, others, told, names, strict=True):
        plots.heatmap(table["confidence"], kind="enc-self", ax=left).set_title(f"confidence on {name}", fontsize=9)
        plots.roles(roles, kind="enc-self", legend=False, ax=right).set_title(f"functions on {name}", fontsize=9)
    return judged(claims.fig2, found, grid[0, 0])


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
    return judged(claims.fig3, found, plots.offsets(table)[0])


def fig4(bench: Bench) -> Reproduced:
    """The best head of each relation and way beside the best fixed offset: bars."""
    table = bench.table("functions")
    return judged(claims.fig4, _dependencies(table), plots.dependency(table, kind="enc-self"))


def table1(bench: Bench) -> Reproduced:
    """The best head of each relation and way beside the best fixed offset: numbers."""
    return judged(claims.table1, _dependencies(bench.table("functions")))


def fig5(bench: Bench) -> Reproduced:
    """The rare-word head on sentences: where each token looks."""
    table = bench.table("attention")
    parts = [part for _, part in table.groupby("sentence", sort=False)]
    axes = new_axes((10, 10), cell=0.4, panels=len(parts))
    rows = []
    for ax, part in zip(axes, parts, strict=True):
        wide = part.pivot_table(index="query", columns="key", values="weight")
        tokens = part.drop_duplicates("key").set_index("key")
        most = wide[tokens.index[tokens["counted"]]].idxmax(axis=1)[tokens.index[tokens["counted"]]]
        rows.append((part["sentence"].iloc[0], len(most), int(tokens.loc[most, "rarest"].sum())))
        names = [*tokens["token"].loc[wide.columns]]
        plots.attention(wide.set_axis(names, axis=0).set_axis(names, axis=1), vmax=1, ax=ax)
    axes[0].set_title("layer {layer} head {head}".format(**parts[0].iloc[0]))
    return judged(claims.fig5, pd.DataFrame(rows, columns=["sentence", "queries", "hits"]), axes[0])


def rare(bench: Bench) -> Reproduced:
    """The head of each layer that looks at the rarest token most (section 5.3, text)."""
    table = of_kind(bench.table("functions"))[["rarity", "rarity.low", "rarity.high"]]
    if table["rarity"].isna().all():
        raise Missing("no sentence has a token outside the 500 most frequent; headroles score on more sentences")
    best = table.loc[table.groupby(level="layer")["rarity"].idxmax()].reset_index().drop(columns="kind")
    return judged(claims.rare, beside(best, "voita2019-rare", "layer"))


def fig6(bench: Bench) -> Reproduced:
    """The Hard Concrete distribution for three values of log alpha; needs no table."""
    assert bench is not None
    theirs = printed("voita2019-fig6")
    alpha = theirs["log alpha"].to_numpy(float)
    edge = 0.5 * np.log(-LOW / (1 - LOW))  # the temperature times the logit of where a gate begins to open
    ours = {"ours P(0)": 1 / (1 + np.exp(alpha - edge)), "ours P(1)": 1 / (1 + np.exp(-alpha - edge))}
    table = theirs.assign(**ours)
    return judged(claims.fig6, table, plots.densities([*alpha]))


def fig7(bench: Bench) -> Reproduced:
    """What the model is worth with fewer encoder heads."""
    table = bench.table("sizes-encoder")
    sizes = table.assign(heads=table["enc-self"], of=table["enc-self"].iloc[0])
    metric = metric_of(table)
    costs = gains(-sizes[[f"change{end}" for end in ENDS]].to_numpy()[:, [0, 2, 1]], metric) / sizes["value"].iloc[0]
    costs = dict(zip(("cost", "cost.low", "cost.high"), costs.T, strict=True))
    kept = ["heads", "of", "value", "low", "high", "change", "change.low", "change.high"]
    found = aligned(sizes[kept].assign(**costs), printed("voita2019-fig7"))
    return judged(claims.fig7, found, plots.survival(sizes, label={"bleu": "BLEU"}.get(metric, metric)))


def fig8(bench: Bench) -> Reproduced:
    """How many of the encoder's heads that are left have which function."""
    table = bench.table("functions-encoder")
    own = table[table["kind"] == "enc-self"]
    wide = own.pivot_table(index="heads", columns="function", values="count", fill_value=0, observed=True)
    wide = wide.reindex(columns=["none", *FUNCTIONS], fill_value=0).rename_axis(columns=None)
    ours = wide.assign(of=wide.sum(axis=1).max(), heads=wide.sum(axis=1)).reset_index(drop=True)
    found = aligned(ours, printed("voita2019-fig8"))
    return judged(claims.fig8, found, plots.functions(table, kind="enc-self"))


def fig9(bench: Bench) -> Reproduced:
    """How many heads of each kind are left at each size."""
    sizes = bench.table("sizes")
    theirs = of_wmt("voita2019-fig9").rename(columns={kind: f"paper.{kind}" for kind in KINDS})
    ours = sizes[["heads", "of", *KINDS]]
    return judged(claims.fig9, aligned(ours, theirs), plots.by_kind(sizes))


def fig10(bench: Bench) -> Reproduced:
    """How many heads of the decoder are left in its lower, middle and upper layers at each size."""
    survival = bench.table("survival")
    thirds = plots.thirds(of_kind(survival, "dec-self")).join(plots.thirds(of_kind(survival, "cross")))
    ours = thirds.assign(heads=survival[thirds.index].sum().to_numpy(int), of=len(survival))
    theirs = printed("voita2019-fig10").add_prefix("paper.").rename(columns={"paper.of": "of"})
    theirs["heads"] = of_wmt("voita2019-fig9")["heads"]
    return judged(claims.fig10, aligned(ours, theirs), plots.by_third(survival)[0])


def table2(bench: Bench) -> Reproduced:
    """Models with the found heads: fine-tuned with gates, and trained from scratch."""
    table = bench.table("scratch")
    ours = table.rename(columns=dict(zip("edc", KINDS, strict=True)))
    ours = ours.assign(of=int(bench.table("sizes")["of"].iloc[0]), heads=ours[[*KINDS]].sum(axis=1))
    pair = (ours[[f"{name}{end}" for end in ENDS]].to_numpy() for name in ("finetuned", "scratch"))
    gaps = gains(np.array([less(one, other) for one, other in zip(*pair, strict=True)]), metric_of(table))
    ours[[f"gap{end}" for end in ENDS]] = gaps
    theirs = of_wmt("voita2019-table2").rename(columns={one: f"paper.{one}" for one in ("finetuned", "scratch")})
    return judged(claims.table2, aligned(ours, theirs, [*KINDS, "heads", "of"]))


def gates(bench: Bench) -> Reproduced:
    """P(gate != 0) of the encoder's heads over training, a panel for each size (the blog's animation)."""
    tables = sorted(bench.tables("gates"), key=lambda table: -_size(table))
    last = [of_kind(table.set_index(["kind", "layer", "head"])) for table in tables]
    ends = [table.loc[table["step"] == table["step"].max(), "open"] for table in last]
    counts = {"heads": [*map(_size, tables)], "of": [*map(len, ends)]}
    counts |= {"undecided": [int(end.between(0.1, 0.9).sum()) for end in ends]}
    axes = new_axes((len(ends[0]), 26), cell=0.13, panels=len(tables))
    for ax, table, size in zip(axes, tables, counts["heads"], strict=True):
        plots.gates(table, kind="enc-self", ax=ax).set_title(f"{size} heads left")
    for mesh in (ax.collections[0] for ax in axes[:-1]):
        mesh.colorbar.remove()  # type: ignore[union-attr]
    return judged(claims.gates, pd.DataFrame(counts), axes[0])


def _relevance(table: pd.DataFrame) -> str:
    """The column of relevance shares: of the rules `cp`, which are the paper's equations, where the table has it."""
    found = [name for name in map(str, table) if re.fullmatch(r"relevance\[[^ ]*\]\.size", name)]
    return "relevance[cp].size" if "relevance[cp].size" in found else found[0]


def _ranked(pair: pd.DataFrame) -> Any:
    """A map of the first column, the heads of each layer in falling order of the second, with their numbers."""
    ranks = pair.iloc[:, 1].groupby(level="layer").rank(ascending=False, method="first").astype(int) - 1
    numbers = pd.Series(pair.index.get_level_values("head").astype(str), pair.index)
    values, texts = pair.iloc[:, 0], numbers
    for each in (values, texts):
        each.index = pd.MultiIndex.from_arrays(
            [pair.index.get_level_values("kind"), pair.index.get_level_values("layer"), ranks],
            names=["kind", "layer", "head"],
        )
    ax = plots.heatmap(values.sort_index(), annotate=texts, kind="enc-self")
    ax.set_xlabel("head, by falling relevance; its number in the cell")
    return ax


def _told_on(table: pd.DataFrame, first: pd.DataFrame) -> str:
    """The corpus of a table of scores, with the model if it is another."""
    model, corpus = (field(table, name, "confidence") for name in ("model", "corpus"))
    same = field(table, "weights", "confidence") == field(first, "weights", "confidence")
    return corpus.partition("+")[0] + ("" if same else f" ({model})")


def _functions(told: pd.DataFrame) -> pd.DataFrame:
    """How many heads have each function, surely and possibly."""
    rows = []
    for family in ROLES:
        variants = [name for name in role.names(told) if name.partition("[")[0] == family]
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
