"""Curves are plain loops over closed heads, their plots the table, and a comparison is kept table by table."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from helpers import zoo
from helpers.close import bound, close
from helpers.commands import run
from helpers.letters import corpus, tokens_of
from helpers.messages import line as said
from helpers.messages import whole
from helpers.traces import _traces

import headroles as hr
from headroles import plots
from headroles.ablation.compare_scores import ABLATION, agreement, compare
from headroles.ablation.curves import ablation_curve, areas
from headroles.analysis.intervals import bootstrap_counts
from headroles.models import batching, masking
from headroles.models import heads as families
from headroles.models.head_model import HeadModel
from headroles.scores.objectives import objective
from headroles.tables import frame

METRICS = ["agreement", "loss", "top"]


@cache
def orders(name):
    """All heads from the first to the last, and three of them."""
    every = list(families.head_index(zoo.tiny(name)))
    return {"all": every, "three": every[-1:-4:-1]}


@cache
def drawn(name, metric="agreement", *, steps=4, n_resamples=20, given=None, **options):
    options = {"n_resamples": n_resamples, "steps": steps, "metric": metric} | options
    return ablation_curve(zoo.tiny(name), tokens_of(name), given or corpus(6), orders(name), **options)


@cache
def read(name):
    """A model, and the corpus as one batch."""
    model = zoo.tiny(name)
    encoded = batching.encode(corpus(6), tokens_of(name), model)
    return model, list(batching.batches(encoded, model, max_tokens=10**6))


@cache
def by_hand(name, metric, masked):
    """The sums and counts of a metric of each sentence when heads are closed: two of [sentence]."""
    model, groups = read(name)
    fitted = objective(metric, HeadModel(model)).fit(HeadModel(model), groups)
    (batch,) = groups
    with torch.no_grad(), hr.mask_heads(model, masking.head_mask(model, masked)):
        found = fitted.targets(model(**batch.inputs), batch)
    back = np.argsort(batch.numbers)
    sums = torch.where(found.counted, found.values, 0.0).sum(-1)[back]
    return sums.double().numpy(), found.counted.sum(-1)[back].double().numpy()


# --- curves ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
def test_every_point_is_that_of_a_plain_loop(metric):
    table = drawn("gpt2", metric)
    for row in table.itertuples():
        order = orders("gpt2")[row.order]
        sums, counts = by_hand("gpt2", metric, tuple(order[: row.closed]))
        assert row.value == pytest.approx(sums.sum() / counts.sum(), rel=bound(1))
        assert row.share == row.closed / len(order)


def test_a_curve_starts_at_the_intact_model_and_ends_where_all_of_its_heads_are_masked():
    table = drawn("marian")
    for name, part in table.groupby("order"):
        assert part["closed"].tolist() == {"all": [0, 6, 12, 18, 24], "three": [0, 1, 2, 3]}[name]
        assert part["share"].iloc[[0, -1]].tolist() == [0, 1]
        assert part.iloc[0][["value", "low", "high"]].tolist() == [1, 1, 1]
    assert table["order"].unique().tolist() == ["all", "three"]
    assert table["value"].between(0, 1).all()
    assert table["value"].min() < 0.9


@pytest.mark.parametrize("metric", METRICS)
def test_points_are_those_of_a_plain_loop_and_intervals_of_the_resamples_that_scores_have(metric):
    table = drawn("marian", metric, n_resamples=50, seed=3)
    weights = bootstrap_counts(range(6), 50, 3)[1:]
    for row in table.itertuples():
        order = orders("marian")[row.order]
        sums, counts = by_hand("marian", metric, tuple(order[: row.closed]))
        assert row.value == pytest.approx(sums.sum() / counts.sum(), rel=bound(1))
        assert row.share == row.closed / len(order)
        bounds = np.nanquantile(weights @ sums / (weights @ counts), [0.025, 0.975])
        close([row.low, row.high], bounds)


def test_changes_are_paired():
    """Against the intact model in the same resamples: narrower than if the two varied apart."""
    table = drawn("marian", "loss", n_resamples=50, seed=3)
    weights = bootstrap_counts(range(6), 50, 3)
    intact = np.divide(*(weights @ each for each in by_hand("marian", "loss", ())))
    for row in table.to_dict("records"):
        sums, counts = by_hand("marian", "loss", tuple(orders("marian")[row["order"]][: row["closed"]]))
        changes = weights @ sums / (weights @ counts) - intact
        expected = [changes[0], *np.nanquantile(changes[1:], [0.025, 0.975])]
        close([row[f"change{end}"] for end in ("", ".low", ".high")], expected, size=intact)


@pytest.mark.slow
def test_batches_do_not_matter():
    pd.testing.assert_frame_equal(drawn("marian", max_tokens=20), drawn("marian"), rtol=0, atol=bound(1))
    pd.testing.assert_frame_equal(drawn("bert", "loss", max_tokens=20), drawn("bert", "loss"), rtol=0, atol=bound(5))


def test_heads_may_be_replaced_by_something_else_than_nothing():
    zero, uniform = (drawn("bert", "loss", replacement=replacement) for replacement in ("zero", "uniform"))
    first = zero["share"] == 0
    np.testing.assert_allclose(zero["value"][first], uniform["value"][first], rtol=1e-6)
    assert not np.allclose(zero["value"][~first], uniform["value"][~first])
    assert "fill:uniform" in frame.provenance(uniform, "value").split("|")


def test_a_signature_says_what_was_masked_and_measured():
    fields = dict(field.partition(":")[::2] for field in frame.provenance(drawn("gpt2"), "value").split("|"))
    expected = {"model": "GPT2LMHeadModel", "corpus": "letters", "text": corpus(6).hash, "examples": "6"}
    expected |= {"metric": "Agreement()", "fill": "zero", "resamples": "20", "seed": "0"}
    assert expected.items() <= fields.items()


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training):
    model = zoo.tiny("gpt2").train(training)
    before = _traces(model)
    table = ablation_curve(model, tokens_of("gpt2"), corpus(6), orders("gpt2"), steps=4, n_resamples=20)
    assert _traces(model) == before
    pd.testing.assert_frame_equal(table, drawn("gpt2"))  # and was measured without dropout


def test_without_resamples_there_are_no_intervals():
    table = drawn("gpt2", n_resamples=0)
    assert table[["low", "high"]].isna().all(axis=None)
    found = areas(table)
    assert found[["area.low", "area.high"]].isna().all(axis=None)
    pd.testing.assert_series_equal(found["area"], areas(drawn("gpt2"))["area"])


def test_resamples_without_a_sentence_are_left_out():
    """Of two sentences every seventh resample draws none."""
    table = drawn("gpt2", given=corpus(2), n_resamples=100)
    assert not bootstrap_counts(range(2), 100, 0)[1:].any(1).all()
    assert table[["low", "high"]].notna().all(axis=None)
    assert areas(table).notna().all(axis=None)


def test_areas_are_trapezoids_best_first():
    table = drawn("marian", n_resamples=50)
    found = areas(table)
    assert found.index.name == "order"
    assert found["area"].is_monotonic_decreasing
    parts = {name: part for name, part in table.groupby("order")}
    for name, row in found.iterrows():
        part = parts[name]
        steps, heights = np.diff(part["share"]), (part["value"].to_numpy()[1:] + part["value"].to_numpy()[:-1]) / 2
        assert row["area"] == pytest.approx(steps @ heights)
        weights = bootstrap_counts(range(6), 50, 0)[1:]
        pairs = [by_hand("marian", "agreement", tuple(orders("marian")[name][:masked])) for masked in part["closed"]]
        draws = [weights @ sums / (weights @ counts) for sums, counts in pairs]
        bounds = np.nanquantile(np.trapezoid(draws, part["share"], axis=0), [0.025, 0.975])
        close([row["area.low"], row["area.high"]], bounds)
    assert frame.provenance(found, "area") == frame.provenance(table, "value")


ONE, TWO = ("enc-self", 0, 0), ("enc-self", 0, 1)


@pytest.mark.parametrize(
    ("order", "steps", "size"), [([ONE, TWO, ONE], 2, 3), ([ONE, TWO], 0, 2), ([ONE], -1, 1), ([], 2, 0)]
)
def test_rankings_that_cannot_be_masked(order, steps, size):
    message = (
        f"order 'mine' of {size} heads cannot be masked in {steps} steps; give each head once, and at least one step"
    )
    with pytest.raises(ValueError, match=whole(message)):
        ablation_curve(zoo.tiny("bert"), tokens_of("bert"), corpus(3), {"mine": order}, steps=steps)


def test_heads_and_metrics_that_there_are_not():
    given = zoo.tiny("bert"), tokens_of("bert"), corpus(3)
    message = "no head ('enc-self', 2, 0) in BertForMaskedLM, which has enc-self 2 layers of 4 heads"
    with pytest.raises(ValueError, match=whole(message)):
        ablation_curve(*given, {"mine": [ONE, ("enc-self", 2, 0)]})
    message = "metric 'bleu' needs a translation model; BertForMaskedLM writes none"
    with pytest.raises(ValueError, match=whole(message)):
        ablation_curve(*given, {"mine": [ONE]}, metric="bleu")


# --- plots ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def table():
    """Two orders and three random ones."""
    rng = np.random.default_rng(0)
    rows = [
        (name, share, value, value - 0.1, value + 0.1)
        for name in ("cp", "confidence", "random 0", "random 1", "random 2")
        for share, value in zip((0.0, 0.5, 1.0), rng.random(3), strict=True)
    ]
    return pd.DataFrame(rows, columns=["order", "share", "value", "low", "high"])


def band(collection):
    """The lower and upper edge of a filled band: share -> (low, high)."""
    corners = collection.get_paths()[0].vertices
    return {x: (corners[corners[:, 0] == x, 1].min(), corners[corners[:, 0] == x, 1].max()) for x in set(corners[:, 0])}


def test_every_order_is_a_line_with_its_interval(table):
    ax = plots.curves(table, label="what is left")
    lines, bands = ax.get_lines()[1:], ax.collections[1:]
    for line, filled in zip(lines, bands, strict=True):
        part = table[table["order"] == line.get_label()]
        assert np.array_equal(line.get_xydata(), part[["share", "value"]])
        assert band(filled) == {row.share: (row.low, row.high) for row in part.itertuples()}
        assert filled.get_facecolor()[0, :3].tolist() == pytest.approx(list(matplotlib.colors.to_rgb(line.get_color())))
    labels = ["random", "confidence", "cp"]  # chance, then the best first
    assert [line.get_label() for line in ax.get_lines()] == labels
    assert [text.get_text() for text in ax.get_legend().get_texts()] == labels
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_xlim()) == ("share of heads ablated", "what is left", (0, 1))


@pytest.mark.parametrize("many", [12, 30])
def test_no_two_of_many_orders_look_alike_and_none_is_left_out(table, many):
    part = table[table["order"] == "cp"]
    ax = plots.curves(pd.concat([part.assign(order=f"order {i}") for i in range(many)]))
    assert {line.get_label() for line in ax.get_lines()} == {f"order {i}" for i in range(many)}
    looks = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in ax.get_lines()]
    assert len(set(looks)) == many
    assert not [color for color, *_ in looks if len(set(color)) == 1]  # grey is chance


def test_random_orders_are_one_grey_line_in_a_band(table):
    ax = plots.curves(table)
    chance = table[table["order"].str.startswith("random")].groupby("share")["value"]
    line = ax.get_lines()[0]
    assert np.array_equal(line.get_xydata(), chance.mean().reset_index())
    assert len(set(matplotlib.colors.to_rgb(line.get_color()))) == 1
    edges = chance.agg(["min", "max"])
    assert band(ax.collections[0]) == {share: tuple(row) for share, row in edges.iterrows()}


def test_without_random_orders_there_is_no_grey_line(table):
    figure, given = plt.subplots()
    ax = plots.curves(table[table["order"] == "cp"], ax=given)
    assert ax is given
    assert [line.get_label() for line in ax.get_lines()] == ["cp"]
    assert len(ax.collections) == 1
    assert figure.axes == [ax]


def test_what_is_no_table_of_curves(table):
    message = "not a table of hr.ablation_curve: got "
    for wrong in (table.drop(columns="low"), [1, 2]):
        with pytest.raises(ValueError, match=rf"\A{re.escape(message)}"):
            plots.curves(wrong)


# --- comparison -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_agreement_is_spearmans():
    index = families.head_index(zoo.tiny("marian"))
    rng = np.random.default_rng(0)
    names = ["one", "two", "three"]
    columns = {name: rng.integers(0, 9, len(index)).astype(float) for name in names}  # with ties
    draws = {
        name: (values[:, None] + rng.normal(size=(len(index), 30))).astype(np.float32)
        for name, values in columns.items()
    }
    table = frame.table(columns, index, "signed", draws=draws)
    found = agreement(table, names[:2], "three")
    assert found["all"].is_monotonic_decreasing
    layers = [part.index for _, part in table.groupby(level=["kind", "layer"])]

    def expected(one, other):
        within = [scipy.stats.spearmanr(one[layer], other[layer]).statistic for layer in layers]
        return scipy.stats.spearmanr(one, other).statistic, np.mean(within)

    for name in names[:2]:
        assert found.loc[name, ["all", "within"]].tolist() == pytest.approx(expected(table[name], table["three"]))
        pairs = zip(draws[name].T, draws["three"].T, strict=True)
        resampled = [expected(*(pd.Series(each, index) for each in pair)) for pair in pairs]
        half, middle = 1.96 * np.std(resampled, axis=0), found.loc[name, ["all", "within"]].to_numpy(float)
        low, high = np.maximum(middle - half, -1), np.minimum(middle + half, 1)
        np.testing.assert_allclose(found.loc[name, ["all.low", "within.low"]].astype(float), low)
        np.testing.assert_allclose(found.loc[name, ["all.high", "within.high"]].astype(float), high)


def test_agreement_without_resamples_has_no_bounds():
    index = families.head_index(zoo.tiny("bert"))
    table = frame.table({"one": np.arange(8.0), "two": np.arange(8.0)[::-1]}, index, "signed")
    found = agreement(table, ["one"], "two")
    assert found.loc["one", ["all", "within"]].tolist() == pytest.approx([-1, -1])
    assert found[["all.low", "all.high", "within.low", "within.high"]].isna().all(axis=None)


def test_heads_that_are_all_alike_have_no_ranks():
    index = families.head_index(zoo.tiny("bert"))
    draws = {"flat": np.ones((8, 5), np.float32), "two": np.random.default_rng(0).random((8, 5)).astype(np.float32)}
    table = frame.table({"flat": np.ones(8), "two": np.arange(8.0)}, index, "signed", draws=draws)
    assert agreement(table, ["flat"], "two").isna().all(axis=None)


RULES = ["cp", "voita"]
COMPARED = {"confidence", "importance", "relevance[cp].size", "relevance[cp logit].size", "relevance[voita].size"}
COMPARED |= {"relevance[voita logit].size"}
OPTIONS = {"rules": RULES, "seeds": 2, "n_resamples": 20}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison on a few sentences: its study, and what it returned."""
    study = hr.Study(tmp_path_factory.mktemp("compared"))
    return study, compare(zoo.tiny("marian"), tokens_of("marian"), corpus(6), corpus(20)[6:], study=study, **OPTIONS)


@pytest.mark.slow
def test_a_comparison_keeps_its_tables(compared):
    study, (found, area) = compared
    assert {"heads", "curves", "areas", "agreement"} <= set(study.names())
    assert set(found.index) == COMPARED
    assert set(area.index) == COMPARED | {ABLATION, "random 0", "random 1"}
    pd.testing.assert_frame_equal(_bare(study.load("agreement")), _bare(found))
    pd.testing.assert_frame_equal(_bare(study.load("areas")), _bare(area))
    pd.testing.assert_frame_equal(_bare(found), _bare(agreement(study.load("heads"), list(found.index), ABLATION)))
    assert found["all"].between(-1, 1).all()


def _bare(table):
    return table.copy(deep=False).rename_axis(columns=None).set_axis(table.columns, axis=1)


def test_the_least_relevant_heads_are_masked_first(compared):
    study, (_, area) = compared
    table, curves = study.load("heads"), study.load("curves")
    for name in ("confidence", "relevance[cp].size"):
        order = {name: table[name].sort_values(kind="stable").index.tolist()}
        alone = ablation_curve(zoo.tiny("marian"), tokens_of("marian"), corpus(20)[6:], order, n_resamples=20)
        kept = curves[curves["order"] == name].reset_index(drop=True)
        pd.testing.assert_frame_equal(_bare(kept), _bare(alone), rtol=0, atol=bound(1))
        np.testing.assert_allclose(area.loc[name], areas(alone).loc[name], rtol=0, atol=bound(1))


def test_a_second_comparison_computes_nothing_again(compared):
    study, (found, area) = compared
    names = ("heads", "curves", "areas")
    before = {name: study.path(name).stat().st_mtime_ns for name in names}
    again = compare(zoo.tiny("marian"), tokens_of("marian"), corpus(6), corpus(20)[6:], study=study, **OPTIONS)
    assert {name: study.path(name).stat().st_mtime_ns for name in names} == before
    for one, other in zip(again, (found, area), strict=True):
        pd.testing.assert_frame_equal(_bare(one), _bare(other))


def test_an_encoder_without_a_head_is_compared_by_its_states(tmp_path):
    study, encoder = hr.Study(tmp_path), zoo.tiny("bert").base_model
    found, area = compare(
        encoder, tokens_of("bert"), corpus(6), corpus(20)[6:], study=study, **OPTIONS | {"rules": ["cp"]}
    )
    assert set(found.index) == {name for name in COMPARED if "voita" not in name}
    table = study.load("heads")
    for column in ("importance", "relevance[cp]", ABLATION):
        assert "objective:Similarity()" in frame.provenance(table, column).split("|")
    assert area["area"].between(-1, 1).all()


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny masked language model as a checkpoint."""
    place = tmp_path_factory.mktemp("model")
    zoo.tiny("bert").save_pretrained(place)
    tokens_of("bert").save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "letters.txt"
    path.write_text("".join(f"{sentence.text}\n" for sentence in corpus(20)))
    return path


@pytest.mark.slow
def test_score_prints_where_relevance_ends_up(folder, text, tmp_path):
    common = ["--study", tmp_path, "--limit", 5, "--resamples", 10, "--device", "cpu"]
    done = run("score", folder, text, "--scores", "relevance,confidence", "--rules", "cp,attn", *common, figures=True)
    assert (done.code, done.err) == (0, "")
    for rules in ("cp", "attn"):
        shares = r"inputs -?[\d.]+ %, biases -?[\d.]+ %, residue -?[\d.]+ %"
        assert re.search(rf"^relevance by {rules}, shares of the target: {shares}$", done.out, re.M)
    tables = {"heads", "conservation-cp", "conservation-attn"}
    assert tables <= set(hr.Study(tmp_path).names())
    figures = {
        "relevance-cp-enc-self.png",
        "relevance-attn-enc-self.png",
        "conservation-cp.png",
        "conservation-attn.png",
    }
    assert figures <= {path.name for path in Path(tmp_path).iterdir()}
    table = hr.Study(tmp_path).load("heads")
    assert "sentences:5" in frame.provenance(table, "relevance[cp]").split("|")
    assert {"relevance[cp]", "relevance[attn].size", "confidence"} <= set(table)


def test_unknown_rules_are_one_line(folder, text, tmp_path):
    done = run("score", folder, text, "--scores", "relevance", "--rules", "magic", "--study", tmp_path / "study")
    assert done == said("unknown rules 'magic'; known: cp, cp-gate, attn, voita, voita-exact, gradient")
    assert not (tmp_path / "study").exists()
