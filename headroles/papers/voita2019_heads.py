"""Voita et al. 2019, sections 4 and 5: relevance, confidence and functions of the encoder's heads (no torch)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headroles import plots
from headroles.analysis import role_rules
from headroles.analysis.summaries import best_heads
from headroles.papers import verdicts as v
from headroles.papers.bench import Bench, RequiredTable, functions, trees
from headroles.papers.verdicts import Holds, Interval, Missing, Reproduced, Verdict
from headroles.plots.axes import new_axes
from headroles.tables import frame
from headroles.tables.columns import Column, of_name
from headroles.tables.io import load_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from headroles.data.corpus import Sentence
    from headroles.models.masking import Head
    from headroles.papers.workflow import Workflow

MUCH = 1.5  # of an equal share of relevance (our choice; the paper's largest is 1.6)
COUNT = 10  # untrained models, with the seeds 1 to 10
ROLES = ("positional", "syntactic", "rare")
KNOWN = 0.95, 0.05  # of the resamples in which a head has a role: sure, possible
BOTH = ("nsubj dep>head", "nsubj head>dep", "obj dep>head", "obj head>dep")  # of Table 1
MARGIN = 0.10 - 1e-9  # over the best fixed offset (section 5.2)
RARE = 0.50  # more than: the role "rare"
LONGEST = 14  # words of a sentence in figures of attention


# --- section 4: relevance and confidence ------------------------------------------------------------------------------


@RequiredTable(
    "untrained",
    "scores of untrained models of the same shape",
    "headroles reproduce voita2019 fig1a --model MODEL --data FOLDER",
    "untrained",
    columns=("most", "correlation"),
)
def _untrained_models(run: Workflow) -> list[Path]:
    """Keep the largest share of relevance, and the correlation of confidence with it, of several untrained models."""
    from headroles.models import identity, loading

    study, corpus = run.study("relevance"), run.material.dev
    weights = identity.weights_digest(loading.untrained(run.model))
    key = f"{weights} {identity.tokens(run.tokenizer)} {corpus.hash} {COUNT}"
    study.keep("untrained", key, lambda: _untrained_scores(run))
    return [study.path("untrained")]


def _untrained_scores(run: Workflow) -> pd.DataFrame:
    """Score untrained models; `most` is in equal shares of the layer, `correlation` of ranks within layers."""
    from headroles.models import loading
    from headroles.scores import score

    rows, signature = [], ""  # of the first
    for seed in range(1, COUNT + 1):
        model = loading.untrained(run.model, seed=seed)
        scores = score(model, run.tokenizer, run.material.dev, ["confidence", "relevance"], n_resamples=2)
        name = next(iter(of_name(scores, "relevance", "size")))
        pair = v.rows_of_kind(scores)[["confidence", name]]
        equal = pair[name].groupby(level="layer").transform("size")
        correlation = float(v.within_layers(pair)["spearman"])
        rows.append({"seed": seed, "most": float((pair[name] * equal).max()), "correlation": correlation})
        signature = signature or frame.provenance(scores, name)
    return frame.signed(pd.DataFrame(rows), signature)


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
    yes, head = layers.count(True), "layer {layer:.0f} head {head:.0f}".format(**table.iloc[row])
    if math.isnan(chance):  # no layer can have clearly more, nor clearly not
        yes = [share.above(MUCH) for share in most].count(True)
    more = "clearly more" if not math.isnan(chance) else f"more than {MUCH} equal shares"
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
    numbers["untrained"] = _untrained_bound(bench, "correlation")
    return v.judged(fig1b_claim, numbers, lambda: _draw_ranked(pair))


@v.claim(
    "Heads of large relevance are confident, with few exceptions.",
    """Holds if the rank correlation of confidence with relevance, within layers, is above 0 with its interval, and
    the correlation above the bound that an untrained model of the same shape exceeds with p = 0.01; fails if it is
    below 0.""",
)
def fig1b_claim(table: pd.DataFrame) -> Verdict:
    correlation = Interval.from_row(table.set_index("what").loc["rank correlation with relevance"], "ours")
    chance = table["untrained"].iloc[0]
    text = f"rank correlation with relevance within layers {correlation}; {v.untrained_in_words(chance)}"
    return Verdict(v.unless_unsure(correlation.above(0), bool(correlation.value > chance)), text)


def _relevance(table: pd.DataFrame) -> str:
    """Return the column of relevance shares, by preference of the rules `cp`, which are the paper's equations."""
    names = [name for name in of_name(table, "relevance", "size") if len(Column.parse(name).words) == 1]
    return "relevance[cp].size" if "relevance[cp].size" in names else names[0]


def _untrained_bound(bench: Bench, column: str) -> float:
    """Return the bound that an untrained model of the same shape exceeds with p = 0.01; NaN without their table."""
    try:
        return v.prediction_bound([*bench.table("untrained")[column]])
    except Missing:
        return math.nan


def _draw_ranked(pair: pd.DataFrame) -> Axes:
    """Draw the first column, the heads of each layer by falling values of the second, with their numbers."""
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
    parts = [
        True if sure > 0 else False if possible == 0 else None
        for sure, possible in zip(table["sure"], table["possible"], strict=True)
    ]
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
    "The rule of Fig. 1c, on each corpus.",
)
def fig2_claim(table: pd.DataFrame) -> Verdict:
    verdicts = {str(corpus): fig1c_claim(part) for corpus, part in table.groupby("corpus", sort=False)}
    text = "; ".join(f"{corpus}: {verdict.why}" for corpus, verdict in verdicts.items())
    return Verdict(v.all_hold(verdict.holds for verdict in verdicts.values()), text)


@RequiredTable(
    "offsets",
    "distances between words and their heads",
    "headroles score MODEL CORPUS, on a corpus with trees",
    "offsets",
)
def _offsets(run: Workflow) -> list[Path]:
    return [path.with_name("offsets.parquet") for path in functions(run)]


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
    known = v.paper_numbers("voita2019-table1")["relation"].unique()
    holds = v.all_hold(Interval(*row).above(least) for row in table[["share", "low", "high"]].to_numpy())
    holds = v.unless_unsure(holds, {*known} <= {*table["relation"]})
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
    """Judge whether heads exceed the baseline by 0.10; `join` makes one answer of those of the rows."""
    gain = table["ours"] - table["baseline"]
    best = table.iloc[gain.argmax()]
    margins = table[["ours", "low", "high"]].sub(table["baseline"], axis=0)
    heads = int(table.get("of", pd.Series(1)).iloc[0])
    numbers = f"{Interval(best['ours'], best['low'], best['high'])} against {best['baseline']:.2f}"
    text = f"{(gain >= MARGIN).sum()} of {len(table)} reach it; most for {best['relation']} {best['way']}: {numbers}"
    return Verdict(join(Interval(*row).widened(heads).above(MARGIN) for row in margins.to_numpy()), text)


def _name(table: pd.DataFrame, first: pd.DataFrame) -> str:
    """Return the corpus of a table of scores, with the model if it differs from that of the first table."""
    model, corpus = (v.signature_field(table, name, "confidence") for name in ("model", "corpus"))
    weights, known = (v.signature_field(scores, "weights", "confidence") for scores in (table, first))
    return corpus.partition("+")[0] + ("" if weights == known else f" ({model})")


def _roles(bench: Bench, table: pd.DataFrame) -> pd.DataFrame:
    """Assign roles; of scores without resamples, how stable they are is read from the table of roles beside them."""
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
    """Draw confidence and functions side by side; a panel is a table of scores, its roles and its corpus."""
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


@RequiredTable(
    "attention",
    "attention of the rarest head on sentences",
    "headroles reproduce voita2019 fig5 --model MODEL --data FOLDER",
    "attention-rare",
)
def _attention(run: Workflow) -> list[Path]:
    """Keep the attention of the encoder head that attends most often to the rarest token, on three short sentences."""
    from headroles.models import identity

    scores = load_table(functions(run)[0])
    rarity = v.rows_of_kind(scores)["rarity"]
    if rarity.isna().all():
        raise Missing("no sentence with trees has a token outside the 500 most frequent of the training corpus")
    rarest, corpus = rarity.index[int(rarity.argmax())], run.material.sentences or trees(run)
    short = [sentence for sentence in corpus if len(sentence.text.split()) <= LONGEST][:3]
    study, key = run.study("functions"), f"{identity.weights_digest(run.model)} {rarest} {corpus.hash}"
    study.keep("attention-rare", key, lambda: _token_attention(run, short, rarest))
    return [study.path("attention-rare")]


def _token_attention(run: Workflow, sentences: Sequence[Sentence], head: Head) -> pd.DataFrame:
    """Return the attention of a head, a row per query and key; `rarest` is the first least frequent content token."""
    from headroles.models import identity
    from headroles.models.tokens import vocabulary
    from headroles.scores import attention_matrix

    tokenizer, special = run.tokenizer, vocabulary.special(run.tokenizer, run.model)
    counts = Counter(token for sentence in run.frequencies for token in tokenizer(sentence.text)["input_ids"])
    rows = []
    for number, sentence in enumerate(sentences):
        weights = attention_matrix(run.model, tokenizer, sentence, head).to_numpy()
        ids = tokenizer(sentence.text)["input_ids"]
        content = [place for place, token in enumerate(ids) if token not in special]
        rarest = min(content, key=lambda place: counts[ids[place]])
        tokens = tokenizer.convert_ids_to_tokens(ids)
        rows += [
            (number, *head, query, key, tokens[key], weights[query, key], key in content, key == rarest)
            for query in range(len(ids))
            for key in range(len(ids))
        ]
    columns = ["sentence", *frame.LEVELS, "query", "key", "token", "weight", "counted", "rarest"]
    fields = {"model": identity.model_name(run.model), "weights": identity.weights_digest(run.model)}
    return frame.signed(pd.DataFrame(rows, columns=columns), frame.sign(**fields, counted_in=run.frequencies.hash))


def fig5(bench: Bench) -> Reproduced:
    """Show the attention of the rare-word head on sentences, token by token."""
    table = bench.table("attention")
    rows = []
    for name, part in table.groupby("sentence", sort=False):
        tokens = part.drop_duplicates("key").set_index("key")
        content = tokens.index[tokens["counted"]]
        keys = _weights(part)[content].idxmax(axis=1)[content]
        rows.append((name, len(keys), int(tokens.loc[keys, "rarest"].sum())))
    counts = pd.DataFrame(rows, columns=["sentence", "queries", "hits"])
    return v.judged(fig5_claim, counts, lambda: _draw_sentences(table))


@v.claim(
    "In a sentence the rare-word head attends to the least frequent token.",
    "Holds if more than half of the tokens of the sentences attend to it most, with the interval of that share.",
)
def fig5_claim(table: pd.DataFrame) -> Verdict:
    hits, queries = int(table["hits"].sum()), int(table["queries"].sum())
    part = v.share(hits, queries)
    return Verdict(part.above(RARE), f"{hits} of {queries} tokens attend to it most, {part}")


def rare(bench: Bench) -> Reproduced:
    """Show the head of each layer that attends most often to the rarest token (section 5.3, text)."""
    table = v.rows_of_kind(bench.table("functions"))[v.with_bounds("rarity")]
    if table["rarity"].isna().all():
        raise Missing("no sentence has a token outside the 500 most frequent; try headroles score on more sentences")
    return v.judged(rare_claim, v.with_paper(v.best_of_layers(table, "rarity"), "voita2019-rare", "layer"))


@v.claim(
    "A head of the first layer attends to the rarest word of the sentence.",
    "Holds if the interval of the best head of layer 0 is above 0.50.",
)
def rare_claim(table: pd.DataFrame) -> Verdict:
    row = table.set_index("layer").loc[0]
    rarity = Interval.from_row(row, "rarity")
    text = f"layer 0 head {row['head']:.0f} attends to it in {rarity} of the cases, the best head of any layer in "
    return Verdict(rarity.above(RARE), f"{text}{table['rarity'].max():.2f}")


def _weights(part: pd.DataFrame) -> pd.DataFrame:
    return part.pivot_table(index="query", columns="key", values="weight")


def _draw_sentences(table: pd.DataFrame) -> Axes:
    parts = [part for _, part in table.groupby("sentence", sort=False)]
    axes = new_axes((10, 10), cell=0.4, panels=len(parts))
    for ax, part in zip(axes, parts, strict=True):
        wide = _weights(part)
        names = [*part.drop_duplicates("key").set_index("key")["token"].loc[wide.columns]]
        plots.attention(wide.set_axis(names, axis=0).set_axis(names, axis=1), vmax=1, ax=ax)
    axes[0].set_title("layer {layer} head {head}".format(**parts[0].iloc[0]))
    return axes[0]
