"""Ablation curves are those of plain loops, start at the intact model, resume, and are kept with their areas."""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import cache, wraps

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.ablations import files, looped
from helpers.close import bound, close
from helpers.commands import run
from helpers.imposed import at, by_loop, tiny
from helpers.letters import corpus, tokens_of
from helpers.sweeps import inputs_of

import headroles as hr
from headroles import plots
from headroles.ablation.curves import ablation_curve, areas, orders
from headroles.analysis.intervals import bootstrap_counts
from headroles.data.corpus import Corpus
from headroles.models import heads as families
from headroles.models import loading
from headroles.models.head_model import HeadModel
from headroles.models.parts import sharing
from headroles.patterns import First, Previous
from headroles.tables import frame
from headroles.tables.io import load_table

matplotlib.use("Agg")
METRICS = ["agreement", "loss", "top"]


@cache
def rankings(name):
    """All heads from the first to the last, and three of them."""
    every = list(families.head_index(zoo.tiny(name)))
    return {"all": every, "three": every[-1:-4:-1]}


@cache
def drawn(name, metric="agreement", *, steps=4, n_resamples=20, given=None, **options):
    options = {"n_resamples": n_resamples, "steps": steps, "metric": metric} | options
    return ablation_curve(zoo.tiny(name), tokens_of(name), given or corpus(6), rankings(name), **options)


# --- curves ---------------------------------------------------------------------------------------------------------


def test_a_curve_starts_at_the_intact_model_and_ends_where_all_of_its_heads_are_masked():
    table = drawn("marian")
    for name, part in table.groupby("order"):
        assert part["masked"].tolist() == {"all": [0, 6, 12, 18, 24], "three": [0, 1, 2, 3]}[name]
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
        order = rankings("marian")[row.order]
        sums, counts = looped("marian", frozenset(order[: row.masked]), metric=metric)
        assert row.value == pytest.approx(sums.sum() / counts.sum(), rel=bound(1))
        assert row.share == row.masked / len(order)
        bounds = np.nanquantile(weights @ sums / (weights @ counts), [0.025, 0.975])
        close([row.low, row.high], bounds)


def test_changes_are_paired():
    """Against the intact model in the same resamples: narrower than if the two varied apart."""
    table = drawn("marian", "loss", n_resamples=50, seed=3)
    weights = bootstrap_counts(range(6), 50, 3)
    intact = np.divide(*(weights @ each for each in looped("marian", frozenset())))
    for row in table.to_dict("records"):
        sums, counts = looped("marian", frozenset(rankings("marian")[row["order"]][: row["masked"]]))
        changes = weights @ sums / (weights @ counts) - intact
        expected = [changes[0], *np.nanquantile(changes[1:], [0.025, 0.975])]
        close([row[f"change{end}"] for end in ("", ".low", ".high")], expected, size=intact)


def test_a_signature_says_what_was_masked_and_measured():
    fields = dict(field.partition(":")[::2] for field in frame.provenance(drawn("gpt2"), "value").split("|"))
    expected = {"model": "GPT2LMHeadModel", "corpus": "letters", "text": corpus(6).hash, "examples": "6"}
    expected |= {"metric": "Agreement()", "replacement": "zero", "resamples": "20", "seed": "0"}
    assert expected.items() <= fields.items()


def test_without_resamples_there_are_no_intervals():
    table = drawn("gpt2", n_resamples=0)
    assert table[["low", "high"]].isna().all(axis=None)
    found = areas(table)
    assert found[["area.low", "area.high"]].isna().all(axis=None)
    pd.testing.assert_series_equal(found["area"], areas(drawn("gpt2"))["area"])


def test_areas_are_trapezoids_best_first():
    table = drawn("marian", n_resamples=50)
    found = areas(table)
    pd.testing.assert_frame_equal(areas(table[table["order"] == "three"].sort_values("value")), found.loc[["three"]])
    with pytest.raises(ValueError, match="must have its resampled values"):
        areas(table.sort_values("value", ignore_index=True))
    assert found.index.name == "order"
    assert found["area"].is_monotonic_decreasing
    parts = {name: part for name, part in table.groupby("order")}
    for name, row in found.iterrows():
        part = parts[name]
        steps, heights = np.diff(part["share"]), (part["value"].to_numpy()[1:] + part["value"].to_numpy()[:-1]) / 2
        assert row["area"] == pytest.approx(steps @ heights)
        weights = bootstrap_counts(range(6), 50, 0)[1:]
        masked = [frozenset(rankings("marian")[name][:count]) for count in part["masked"]]
        pairs = [looped("marian", heads, metric="agreement") for heads in masked]
        draws = [weights @ sums / (weights @ counts) for sums, counts in pairs]
        bounds = np.nanquantile(np.trapezoid(draws, part["share"], axis=0), [0.025, 0.975])
        close([row["area.low"], row["area.high"]], bounds)
    assert frame.provenance(found, "area") == frame.provenance(table, "value")


# --- plots ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def table():
    """Two orders and three random ones."""
    rng = np.random.default_rng(0)
    names = np.repeat(["cp", "confidence", "random 0", "random 1", "random 2"], 3)
    made = pd.DataFrame({"order": names, "share": [0.0, 0.5, 1.0] * 5, "value": rng.random(15)})
    return made.assign(low=made["value"] - 0.1, high=made["value"] + 0.1)


def band(collection):
    """The lower and upper edge of a filled band: share -> (low, high)."""
    corners = collection.get_paths()[0].vertices
    return {x: (corners[corners[:, 0] == x, 1].min(), corners[corners[:, 0] == x, 1].max()) for x in set(corners[:, 0])}


def test_orders_are_lines_with_intervals_and_random_ones_a_grey_line_in_a_band(table):
    ax = plots.curves(table, label="what is left")
    grey, *lines = ax.get_lines()
    for curve, filled in zip(lines, ax.collections[1:], strict=True):
        part = table[table["order"] == curve.get_label()]
        assert np.array_equal(curve.get_xydata(), part[["share", "value"]])
        assert band(filled) == {row.share: (row.low, row.high) for row in part.itertuples()}
        assert filled.get_facecolor()[0, :3].tolist() == pytest.approx([*matplotlib.colors.to_rgb(curve.get_color())])
    labels = ["random", "confidence", "cp"]  # chance, then the best first
    assert [line.get_label() for line in ax.get_lines()] == labels
    assert [text.get_text() for text in ax.get_legend().get_texts()] == labels
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_xlim()) == ("share of heads ablated", "what is left", (0, 1))
    chance = table[table["order"].str.startswith("random")].groupby("share")["value"]
    assert np.array_equal(grey.get_xydata(), chance.mean().reset_index())
    assert len(set(matplotlib.colors.to_rgb(grey.get_color()))) == 1
    assert band(ax.collections[0]) == {share: tuple(row) for share, row in chance.agg(["min", "max"]).iterrows()}
    figure, given = plt.subplots()
    assert plots.curves(table[table["order"] == "cp"], ax=given) is given
    assert [line.get_label() for line in given.get_lines()] == ["cp"]
    assert (len(given.collections), figure.axes) == (1, [given])


# --- orders ---------------------------------------------------------------------------------------------------------

INDEX = frame.index({("enc-self", 0): 4, ("enc-self", 1): 3, ("cross", 0): 5})


def scores():
    """A table of heads: a column without ties, one with, and bounds of an interval."""
    rng = np.random.default_rng(0)
    size = len(INDEX)
    columns = {"one": rng.permutation(size).astype(float), "tied": rng.integers(0, 3, size).astype(float)}
    columns |= {"one.low": columns["one"] - 1, "one.high": columns["one"] + 1}
    return frame.table(columns, INDEX, "made by hand")


@pytest.mark.parametrize("kind", [None, "enc-self", "cross"])
@pytest.mark.parametrize("column", ["one", "tied"])
def test_the_smallest_comes_first_and_with_a_minus_the_largest(column, kind):
    found = orders(scores(), [column, f"-{column}"], kind=kind)
    assert list(found) == [column, f"-{column}"]
    every = [head for head in INDEX if kind in (None, head[0])]
    values = scores()[column]
    assert found[column] == sorted(every, key=lambda head: values[head])
    assert found[f"-{column}"] == found[column][::-1]


@pytest.mark.parametrize("kind", [None, "cross"])
def test_random_orders_have_each_head_once_and_are_the_same_again(kind):
    found = orders(scores(), ["one"], kind=kind, seeds=6)
    assert list(found) == ["one", *(f"random {seed}" for seed in range(6))]
    every = [head for head in INDEX if kind in (None, head[0])]
    assert all(sorted(order) == sorted(every) for order in found.values())
    assert len({tuple(order) for order in found.values()}) == 7
    assert orders(scores(), ["one"], kind=kind, seeds=6) == found
    fewer = orders(scores(), [], kind=kind, seeds=3)
    assert fewer == {name: found[name] for name in ("random 0", "random 1", "random 2")}


# --- going on -------------------------------------------------------------------------------------------------------


@contextmanager
def forwards(model, most=10**9):
    """Counts the forwards of a model within the block, in a list of one; one more than `most` raises."""
    seen, forward = [0], HeadModel.forward

    @wraps(forward)
    def counted(handle, *args, **options):
        seen[0] += handle.model is model
        if seen[0] > most:
            raise InterruptedError("stopped")
        return forward(handle, *args, **options)

    HeadModel.forward = counted  # in the model it would be refused, or change the identity
    try:
        yield seen
    finally:
        HeadModel.forward = forward


SMALL = {"metric": "loss", "steps": 4, "n_resamples": 20, "max_tokens": 160}  # several batches of few sentences


def test_a_curve_resumes_after_its_last_finished_batch(tmp_path):
    model, *rest = inputs_of("gpt2")
    whole_one = ablation_curve(model, *rest, rankings("gpt2"), **SMALL)
    with forwards(model) as all_of_them:
        ablation_curve(model, *rest, rankings("gpt2"), **SMALL)
    with forwards(model, all_of_them[0] - 1), pytest.raises(InterruptedError):  # in the last batch
        ablation_curve(model, *rest, rankings("gpt2"), **SMALL, study=tmp_path)
    finished = files(tmp_path / ".sweeps")
    assert len(finished) > 1
    with forwards(model) as few:
        found = ablation_curve(model, *rest, rankings("gpt2"), **SMALL, study=tmp_path)
    assert few[0] * (len(finished) + 1) == all_of_them[0]  # each batch is as many forwards
    assert finished.items() < files(tmp_path / ".sweeps").items()
    pd.testing.assert_frame_equal(frame.bare(found), frame.bare(whole_one))


def test_a_study_keeps_curves_and_areas_by_what_they_were_made_from(tmp_path, caplog):
    study, (model, *rest) = hr.Study(tmp_path), inputs_of("gpt2")
    first = ablation_curve(model, *rest, rankings("gpt2"), study=study, **SMALL)
    table = ablation_curve(model, *rest, rankings("gpt2"), **SMALL)
    pd.testing.assert_frame_equal(first, table)
    for name, expected in (("curves", table), ("areas", areas(table))):
        pd.testing.assert_frame_equal(frame.bare(study.load(f"{name}-loss")), frame.bare(expected))
    assert study.names() == ["areas-loss", "curves-loss"]
    study.path("areas-loss").unlink()  # made again from the kept statistics
    with forwards(model, 0):
        again = ablation_curve(model, *rest, rankings("gpt2"), study=study, **SMALL)
    pd.testing.assert_frame_equal(frame.bare(again), frame.bare(first))
    pd.testing.assert_frame_equal(frame.bare(study.load("areas-loss")), frame.bare(areas(table)))
    assert all(message.startswith("translations are not read") for message in caplog.messages)


ELSE = {  # what differs, and whether the model runs for it
    "order": (lambda: {"orders": {"all": rankings("gpt2")["all"][::-1], "three": rankings("gpt2")["three"]}}, True),
    "name": (lambda: {"orders": dict(zip(("all", "two"), rankings("gpt2").values(), strict=True))}, False),
    "steps": (lambda: {"steps": 2}, True),
    "replacement": (lambda: {"replacement": "uniform"}, True),
    "seed": (lambda: {"seed": 1}, False),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ELSE)
def test_curves_of_something_else_are_computed_again(what, tmp_path, caplog):
    study = hr.Study(tmp_path, overwrite=True)
    names = ("model", "tokenizer", "corpus")
    first = dict(zip(names, inputs_of("gpt2"), strict=True)) | {"orders": rankings("gpt2")} | SMALL
    ablation_curve(study=study, **first)
    make, runs = ELSE[what]
    other = first | make()
    with forwards(other["model"]) as seen:
        table = ablation_curve(study=study, **other)
    assert bool(seen[0]) == runs
    expected = ablation_curve(**other)
    pd.testing.assert_frame_equal(frame.bare(table), frame.bare(expected))
    pd.testing.assert_frame_equal(frame.bare(study.load("areas-loss")), frame.bare(areas(expected)))
    endings = ("was made with other options: computed again", ": areas-loss, curves-loss")
    messages = [message for message in caplog.messages if not message.startswith("translations are not read")]
    assert all(message.endswith(endings) for message in messages)
    assert 1 <= len(messages) <= 2


def test_metrics_and_kinds_have_tables_of_their_own(tmp_path):
    study, options = hr.Study(tmp_path), {"steps": 1, "n_resamples": 0}
    for one, kind in (("loss", None), ("loss", "dec-self"), ("top", None)):
        ablation_curve(*inputs_of("gpt2"), rankings("gpt2"), metric=one, kind=kind, study=study, **options)
    names = ["loss", "loss-dec-self", "top"]
    assert study.names() == [f"{what}-{name}" for what in ("areas", "curves") for name in names]


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """A terminal as wide as the tables."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Tiny checkpoints, two parallel corpora and a study of the first for each: "news" and "talks"."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("marian", "bert"):
        zoo.tiny(name).save_pretrained(folder / name)
        tokens_of(name).save_pretrained(folder / name)
    for name, part in (("news", corpus(24)[:12]), ("talks", corpus(24)[12:])):
        (folder / f"{name}.en").write_text("".join(f"{sentence.text}\n" for sentence in part))
        (folder / f"{name}.de").write_text("".join(f"{sentence.target.text}\n" for sentence in part))
    return folder


@pytest.fixture(scope="module")
def scored(place):
    """A study with the importance of the heads of an encoder."""
    folder = place / "scored"
    options = ["--study", folder, "--scores", "importance", "--resamples", 0, "--device", "cpu"]
    done = run("score", place / "bert", place / "news.en", *options)
    assert done.code == 0, done.err
    return folder


@pytest.mark.slow
def test_score_prints_where_relevance_ends_up(place, tmp_path):
    options = ["--study", tmp_path, "--limit", 5, "--resamples", 10, "--device", "cpu", "--rules", "cp,attn"]
    done = run("score", place / "bert", place / "news.en", "--scores", "relevance,confidence", *options, figures=True)
    assert (done.code, done.err) == (0, "")
    for rules in ("cp", "attn"):
        shares = r"inputs -?[\d.]+ %, biases -?[\d.]+ %, residue -?[\d.]+ %"
        assert re.search(rf"^relevance by {rules}, shares of the target: {shares}$", done.out, re.M)
        assert (tmp_path / f"relevance-{rules}-enc-self.png").exists()
        assert (tmp_path / f"conservation-{rules}.png").exists()
    table = hr.Study(tmp_path).load("heads")
    assert "sentences:5" in frame.provenance(table, "relevance[cp]").split("|")
    assert {"relevance[cp]", "relevance[attn].size", "confidence"} <= set(table)


@pytest.mark.slow
def test_the_command_masks_by_a_column_both_ways(place, scored):
    common = ["--study", scored, "--seeds", 2, "--steps", 4, "--resamples", 10, "--device", "cpu"]
    by = ["--by", "importance,-importance"]
    done = run("ablation-curve", place / "bert", place / "talks.en", *by, *common, figures=True)
    assert (done.code, done.err) == (0, "")
    table = load_table(scored / "curves-agreement.parquet")
    assert set(table["order"]) == {"importance", "-importance", "random 0", "random 1"}
    assert table["masked"].unique().tolist() == [0, 2, 4, 6, 8]
    model, tokenizer = loading.load(place / "bert")
    listed = orders(hr.Study(scored).scores(), ["importance", "-importance"], seeds=2)
    expected = ablation_curve(model, tokenizer, hr.read(place / "talks.en"), listed, steps=4, n_resamples=10)
    pd.testing.assert_frame_equal(frame.bare(table), frame.bare(expected))
    area = areas(expected)
    pd.testing.assert_frame_equal(frame.bare(load_table(scored / "areas-agreement.parquet")), frame.bare(area))
    rows = re.findall(r"^(\S.*?)  +(-?[\d.]+) \[", done.out, re.M)
    assert rows == [(name, f"{value:.3f}") for name, value in area["area"].items()]
    assert (scored / "curves-agreement.png").exists()
    common = ["--study", scored, "--seeds", 0, "--steps", 1, "--resamples", 0, "--metric", "top", "--device", "cpu"]
    done = run("ablation-curve", place / "bert", place / "talks.en", "--by", "-importance", *common)
    assert (done.code, done.err) == (0, "")
    assert load_table(scored / "curves-top.parquet")["order"].unique().tolist() == ["-importance"]


@pytest.mark.slow
def test_the_plan_rest_prints_the_best_head_of_each_layer(place, tmp_path):
    common = ["--study", tmp_path, "--resamples", 20, "--device", "cpu"]
    done = run("ablate", place / "bert", place / "news.en", "--unit", "all_but_one", *common)
    assert (done.code, done.err) == (0, "")
    titles = (
        f"the best head of each layer{how}, kept alone, its costs: above 0 is harm"
        for how in ("", ", chosen on other examples")
    )
    for name, title in zip(("best-loss-zero", "best-loss-zero-halves"), titles, strict=True):
        part = re.split(rf"^ *{re.escape(title)} *$", done.out, maxsplit=1, flags=re.M)[1]
        table = hr.Study(tmp_path).load(name)
        assert list(table.index) == [("enc-self", 0), ("enc-self", 1)]
        printed = re.findall(r"^(\S+)  +(-?[\d.]+) \[", part, re.M)[: len(table)]
        rows = [(f"L{layer}H{row['head']:.0f}", row) for (_, layer), row in table.iterrows()]
        assert printed == [(label, f"{row['effect']:.3f}") for label, row in rows]
    effects = hr.Study(tmp_path).load("ablation-loss-all_but_one-zero")["ablation[loss all_but_one]"]
    best = effects.groupby(["kind", "layer"], sort=False).idxmin().tolist()  # the loss is better when it is less
    kept = hr.Study(tmp_path).load("best-loss-zero")["head"]
    assert [(*key, head) for key, head in kept.items()] == best
    assert "kept alone" not in run("ablate", place / "bert", place / "news.en", *common).out


def test_hard_coded_heads_are_those_of_a_slow_loop(tmp_path):
    case = tiny("gpt2")
    words = sorted({word for sentence in case.corpus for word in sentence.text.split()})
    texts = Corpus.of([" ".join(words[(3 * row + place) % len(words)] for place in range(8)) for row in range(5)])
    order = [("dec-self", 0, 1), ("dec-self", 1, 2)]
    patterns = {order[0]: Previous(), order[1]: First()}
    options = {"metric": "loss", "n_resamples": 0, "steps": 2, "study": tmp_path}
    removed, hard_coded = (
        hr.ablation_curve(case.model, case.tokenizer, texts, {"mine": order}, replacement=given, **options)["value"]
        for given in ("zero", patterns)
    )
    assert len([*tmp_path.glob("curves-loss*.parquet")]) == 2  # beside each other
    slow = sharing(case.model)
    first, second = hr.attention_sites(slow)
    rows = [torch.tensor([[int(word) for word in sentence.text.split()]]) for sentence in texts]

    def loss():
        with torch.no_grad():
            return np.mean([float(slow(ids, labels=ids).loss) for ids in rows])

    expected = [loss()]
    one_earlier = lambda query, _: at(query - 1, 8) if query else None  # noqa: E731
    with by_loop(slow, first, 1, one_earlier):
        expected.append(loss())
    with by_loop(slow, first, 1, one_earlier), by_loop(slow, second, 2, lambda _, __: at(0, 8)):
        expected.append(loss())
    assert hard_coded.tolist() == pytest.approx(expected, rel=1e-5)
    assert abs(expected[1] - expected[2]) > 1e-3
    assert (removed - hard_coded).abs()[1:].min() > 1e-4
