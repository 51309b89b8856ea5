"""Effects of masked heads are those of plain loops, and a study keeps them by what they were made from."""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import cache

import numpy as np
import pandas as pd
import pytest
import sacrebleu
import torch
from helpers import zoo
from helpers.ablations import ALL, closing, column, files, generated, given, looped, mean, sweep, terse, translated
from helpers.close import bound, close
from helpers.letters import STEP, corpus, tokens_of, writing
from helpers.letters import corpus as letters
from helpers.skewness import ends_of_mean
from helpers.sweeps import ablated, equal, singles, traces
from helpers.trainings import films, pairs, tokenised, tokenizer, untrained

import headroles as hr
from headroles import _distributed
from headroles.ablation.effects import UNITS, ablate, evaluate
from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.forward_cache import Replay
from headroles.ablation.metrics import BLEU, METRICS, ChrF, Loss
from headroles.ablation.significance import best
from headroles.ablation.sweep import WORDS, Sweep
from headroles.analysis.intervals import bootstrap_counts, holm
from headroles.data.corpus import Corpus, Sentence, partners
from headroles.models import heads as families
from headroles.models import masking
from headroles.models.head_model import HeadModel
from headroles.patterns import Uniform
from headroles.tables import frame
from headroles.tables.study import Study

MODELS = ["marian", "classifier", "gpt2"]


# --- effects --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "unit", "replacement"),
    [  # every two of them
        (MODELS[(i + j) % len(MODELS)], unit, replacement)
        for i, unit in enumerate(UNITS)
        for j, replacement in enumerate(WORDS)
    ],
)
def test_every_effect_is_that_of_a_plain_loop(name, unit, replacement):
    table = ablated(name, unit=unit, replacement=replacement)
    model, intact = given(name)[0], mean(name, frozenset())
    expected = [mean(name, masked, replacement) - intact for masked in closing(name, unit)]
    roundings = 32 if replacement == "uniform" else 16  # the naive loop attends in another way below the closed heads
    name = column(unit, replacement=replacement)
    close(table[name], expected, size=intact, operations=roundings)
    assert list(table.index) == list(families.head_index(model))
    fields = frame.provenance(table, name).split("|")
    said = {f"intact:{intact:.6g}", f"unit:{unit}", f"replacement:{replacement}", "examples:6"}
    assert said <= set(fields)


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 2])
def test_another_example_does_not_depend_on_the_batch_where_the_model_writes(beams):
    """Nor does it with beams, where the next row was another beam of the same sentence."""
    asked = {"replacement": "resample", "metric": ChrF(beams=beams), "unit": "kind"}
    parts = terse(), tokens_of("marian"), corpus(4)
    expected = ablate(*parts, **asked, n_resamples=0, max_tokens=ALL)
    found = ablate(*parts, **asked, n_resamples=0, max_tokens=160)
    name = column("kind", "chrf", "resample")
    np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-6)
    assert expected[name].abs().gt(0.1).any()


def test_another_example_is_drawn_by_the_seed():
    name = column("head", replacement="resample")
    first, same, second = (ablated("gpt2", replacement="resample", seed=seed) for seed in (0, 0, 1))
    assert first[name].equals(same[name])
    assert not np.allclose(first[name], second[name])
    assert "partners:1" in frame.provenance(second, name).split("|")


@pytest.mark.parametrize("seed", [0, 1])
def test_partners_are_others_of_like_length_and_each_is_one_once(seed):
    lengths = [(3, 4), (9, 9), (3, 4), (5, 2), (3, 4), (7, 1), (7, 1), (5, 3), (20, 1)]
    found = partners(lengths, seed)
    assert sorted(found) == list(range(9))
    assert all(one != other for one, other in enumerate(found))
    buckets = [{0, 2, 4}, {3, 7}, {5, 6}, {1, 8}]
    assert all({one, found[one]} <= next(each for each in buckets if one in each) for one in range(9))
    few = partners([(1,), (2,), (9,)], seed)
    assert sorted(few) == [0, 1, 2]
    assert all(one != other for one, other in enumerate(few))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_agreement_is_with_the_intact_model(name):
    table = ablated(name, metric="agreement", max_tokens=100)
    expected = [mean(name, masked, metric="agreement") - 1 for masked in closing(name, "head")]
    close(table["ablation[agreement]"], expected, size=1)
    assert min(expected) < 0


def test_a_perplexity_is_of_the_whole_corpus():
    table = ablated("gpt2", metric="perplexity")
    expected = [np.exp(mean("gpt2", each)) - np.exp(mean("gpt2", frozenset())) for each in closing("gpt2", "head")]
    close(table["ablation[perplexity]"], expected, size=np.exp(mean("gpt2", frozenset())), operations=256)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training):
    model = zoo.tiny("marian").train(training)
    before = traces(model)
    found = ablate(model, tokens_of("marian"), corpus(6), n_resamples=0, max_tokens=ALL)
    assert traces(model) == before
    pd.testing.assert_frame_equal(found, ablated("marian"))  # and was measured without dropout


# --- statistics -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_intervals_are_of_a_mean_and_resamples_are_of_the_weights_that_scores_have(name):
    table = ablated(name, n_resamples=200, seed=3)
    weights = bootstrap_counts(range(6), 200, 3)[1:]
    drawn = frame.resamples(table)["ablation[loss]"]
    ends = table[["ablation[loss].low", "ablation[loss].high"]].to_numpy()
    for row, masked in enumerate(closing(name, "head")):
        one, other = (looped(name, each) for each in (masked, frozenset()))
        draws = weights @ one[0] / (weights @ one[1]) - weights @ other[0] / (weights @ other[1])
        change = (one[0] - other[0]).sum() / other[1].sum()
        linear = change + (one[0] - other[0] - change * other[1]) / other[1].mean()
        close(ends[row], ends_of_mean(linear), size=other[0] / other[1])
        np.testing.assert_allclose(drawn[row], draws, rtol=STEP, atol=bound(other[0] / other[1]))
    assert (ends[:, 0] <= table["ablation[loss]"]).all()
    assert (table["ablation[loss]"] <= ends[:, 1]).all()


def test_without_resamples_there_are_no_intervals():
    table = ablated("gpt2", metric="perplexity")
    lacking = [f"ablation[perplexity]{end}" for end in (".low", ".high", ".p", ".holm", ".bh")]
    assert table[lacking].isna().all(axis=None)
    assert frame.resamples(table) == {}
    assert ablated("gpt2")["ablation[loss].p"].between(0, 1).all()


@pytest.mark.parametrize("metric", ["loss", "perplexity"])
def test_resamples_without_an_example_are_left_out(metric):
    """Of two sentences every seventh resample draws none."""
    table = ablate(zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(2), metric=metric, n_resamples=100)
    assert table.notna().all(axis=None)


# --- what is written ------------------------------------------------------------------------------------------------

SCORES = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf}


@pytest.mark.parametrize("beams", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_scores_of_what_is_written_are_those_of_sacrebleu(beams):
    model, text = writing("marian"), translated()
    references = [[sentence.target.text for sentence in text]]
    sources = [sentence.text for sentence in text]
    variants = dict.fromkeys(closing("marian", "kind"))
    written = {masked: generated(sources, masking.head_mask(model, masked), beams) for masked in variants}
    intact = generated(sources, masking.head_mask(model, []), beams)
    for metric, max_tokens in ((BLEU(beams), ALL), (ChrF(beams), 320)):
        score = SCORES[metric.name]
        expected = [score(texts, references).score - score(intact, references).score for texts in written.values()]
        assert len(set(expected)) == 3
        options = {"metric": metric, "unit": "kind", "max_tokens": max_tokens, "n_resamples": 0}
        table = ablate(model, tokens_of("marian"), text, **options)
        found = dict(zip(closing("marian", "kind"), table[column("kind", metric.name)], strict=True))
        assert list(found.values()) == pytest.approx(expected, abs=1e-9)


def test_no_more_is_written_than_the_model_has_positions():
    options = {"metric": "chrf", "sets": {"one": [("cross", 1, 2)]}, "n_resamples": 0}
    assert ablate(zoo.tiny("marian"), tokens_of("marian"), corpus(2), **options).iloc[:, 0].notna().all()


# --- in a study -----------------------------------------------------------------------------------------------------


def kept(study, model=None, text=None, name="gpt2", **options):
    options = {"n_resamples": 20} | options
    return ablate(model or zoo.tiny(name), tokens_of(name), text or corpus(6), study=study, **options)


@contextmanager
def broken():
    """No model can be run within the block."""

    def failing(*_, **__):
        raise AssertionError("the model was run")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeadModel, "forward", failing)
        patch.setattr(Replay, "__init__", failing)
        yield


def test_a_study_keeps_the_statistics_of_each_example(tmp_path):
    study = Study(tmp_path)
    table = kept(study)
    assert study.names() == ["ablation-loss-head-zero", "examples-loss-head-zero"]
    expected = ablate(zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(6), n_resamples=20)
    pd.testing.assert_frame_equal(frame.bare(table), frame.bare(expected))
    assert table.attrs["signatures"] == expected.attrs["signatures"]
    model = zoo.tiny("gpt2")
    found = sweep(model, tokens_of("gpt2"), corpus(6), singles(model), Loss())
    equal(ExampleStats.of(study.load("examples-loss-head-zero"), Loss()), found)


@pytest.mark.parametrize(("examples", "offered"), [(160, r"; with precision=1\.1 (\d+) min or more, .*"), (100, "")])
def test_what_takes_minutes_says_so_after_the_first_batch(examples, offered, monkeypatch, caplog):
    monkeypatch.setattr(_distributed, "monotonic", map((600.0).__mul__, range(1000)).__next__)  # 10 minutes a batch
    with caplog.at_level("INFO"):
        ablate(zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(examples), max_tokens=8 * 200, n_resamples=0)
    (first, *lines) = [text for text in caplog.messages if text.startswith("masking heads: ")]
    said = re.fullmatch(rf"masking heads: about (\d+) min left{offered}", first)
    assert said is not None
    assert int(said[1]) == 10 * (len(lines) - 1) > 0  # a line for each batch, ten minutes later
    assert [int(least) for least in said.groups()[1:]] == [round(int(said[1]) * 64 / 160)] * (offered != "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "precision"), [("head", 1), ("head", 1.5), ("all_but_one", 1.5), ("layer", 1), ("kind", 1.5)]
)
def test_other_statistics_of_a_study_need_no_model(unit, precision, tmp_path):
    study, options = Study(tmp_path), {"unit": unit, "precision": precision}
    kept(study, **options)
    assert list(tmp_path.glob("best-*")) == []  # which are of all but one, without precision
    before = files(tmp_path)
    end = f"loss-{unit}-zero{'-precision=1.5' if precision > 1 else ''}.parquet"
    options |= {"n_resamples": 50} | ({"seed": 1} if precision == 1 else {})  # which otherwise draws examples
    with broken():
        told = kept(study, zoo.tiny("gpt2"), **options)
    expected = ablate(zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(6), **options)
    pd.testing.assert_frame_equal(frame.bare(told), frame.bare(expected))
    assert told.attrs["signatures"] == expected.attrs["signatures"]
    assert files(tmp_path)[f"examples-{end}"] == before[f"examples-{end}"]
    assert files(tmp_path)[f"ablation-{end}"] != before[f"ablation-{end}"]


def test_a_study_keeps_the_best_heads_of_all_but_one(tmp_path):
    study, model = Study(tmp_path), zoo.tiny("marian")
    kept(study, name="marian", unit="all_but_one", metric="agreement", seed=3)
    names = {f"{name}-agreement-all_but_one-zero" for name in ("ablation", "examples")}
    assert set(study.names()) == names | {"best-agreement-zero", "best-agreement-zero-halves"}
    variants = closing("marian", "all_but_one")
    found = sweep(model, tokens_of("marian"), corpus(6), variants, METRICS["agreement"])
    for name, halves in (("best-agreement-zero", False), ("best-agreement-zero-halves", True)):
        expected = best(found, families.head_index(model), halves=halves, n_resamples=20, seed=3)
        pd.testing.assert_frame_equal(frame.bare(study.load(name)), frame.bare(expected))
        assert study.load(name).attrs["signatures"] == expected.attrs["signatures"]


@pytest.mark.parametrize("more", [(), (Sentence("a " * 60),), (Sentence("a"),)], ids=["one", "a long", "an empty one"])
def test_one_sentence_has_no_halves(more, tmp_path):
    kept(Study(tmp_path), text=Corpus("letters", (*corpus(1), *more)), unit="all_but_one")
    assert [path.name for path in tmp_path.glob("best-*")] == ["best-loss-zero.parquet"]


def test_a_head_alone_in_its_layer_has_no_rest_and_is_the_best_of_it(tmp_path):
    table = kept(Study(tmp_path), zoo.tiny("gpt2", n_head=1), unit="all_but_one")
    assert (table[[f"ablation[loss all_but_one]{end}" for end in ("", ".low", ".high")]] == 0).all(axis=None)
    assert (table["ablation[loss all_but_one].p"] == 1).all()
    best_heads = Study(tmp_path).load("best-loss-zero")
    assert best_heads[["head", "effect"]].to_numpy().tolist() == [[0, 0], [0, 0]]


# --- sets of heads --------------------------------------------------------------------------------------------------

NAMED = {
    "two": [("dec-self", 1, 3), ("dec-self", 0, 1)], "none": [],
    "a layer": [("dec-self", 1, head) for head in range(4)], "the same two": (("dec-self", 0, 1), ("dec-self", 1, 3)),
    "one": [["dec-self", 0, 0]],
}  # fmt: skip


def sets(given=NAMED, **options):
    return ablate(zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(6), sets=given, **{"n_resamples": 50} | options)


@pytest.mark.parametrize("replacement", ["zero", "mean", "uniform", "rescale"])
def test_sets_have_the_effects_of_plain_loops(replacement):
    table = sets(replacement=replacement)
    masked = [frozenset(map(tuple, given)) for given in NAMED.values()]
    expected = [mean("gpt2", each, replacement) - mean("gpt2", frozenset(), replacement) for each in masked]
    close(table["ablation[loss]"], expected, size=mean("gpt2", frozenset()), operations=32)
    assert list(table.index) == list(NAMED)
    assert table.index.name == "set"
    assert list(table) == [f"ablation[loss]{end}" for end in ("", ".low", ".high", ".p", ".holm", ".bh")]


def test_a_set_without_heads_changes_nothing():
    for metric in ("loss", "perplexity", "agreement"):
        row = sets(metric=metric).loc["none"]
        assert row[[f"ablation[{metric}]{end}" for end in ("", ".low", ".high")]].tolist() == [0, 0, 0]
        np.testing.assert_equal(row[f"ablation[{metric}].p"], np.nan if metric == "agreement" else 1.0)


def test_a_set_that_is_named_twice_is_tested_once():
    table = sets()
    assert table.loc["two"].tolist() == table.loc["the same two"].tolist()
    once = table.drop("the same two")
    np.testing.assert_allclose(once["ablation[loss].holm"], holm(once["ablation[loss].p"].to_numpy()))


def test_a_table_of_sets_says_what_was_measured():
    fields = dict(field.partition(":")[::2] for field in frame.provenance(sets(seed=2), "ablation[loss].p").split("|"))
    expected = {"corpus": "letters", "text": corpus(6).hash, "examples": "6", "replacement": "zero", "resamples": "50"}
    expected |= {"seed": "2", "intact": f"{mean('gpt2', frozenset()):.6g}"}
    assert expected.items() <= fields.items()


def test_in_a_study_each_set_has_its_own_effect_under_its_own_name(tmp_path):
    one, other = [("dec-self", 0, 1)], [("dec-self", 1, 0), ("dec-self", 1, 3)]
    first = sets({"x": one, "y": other}, study=tmp_path)
    assert Study(tmp_path).names() == ["examples-sets-loss-head-zero", "sets-loss-head-zero"]
    measured = sorted(tmp_path.rglob("examples-*"))
    again = sets({"y": one, "x": other}, study=tmp_path)
    assert again.index.tolist() == ["y", "x"]
    np.testing.assert_array_equal(again, first)
    assert sorted(tmp_path.rglob("examples-*")) == measured  # nothing is measured again
    np.testing.assert_array_equal(sets({"x": other}, study=tmp_path), sets({"x": other}))  # other heads of one name


def test_a_pattern_with_the_name_of_a_word_has_columns_and_provenance_of_its_own():
    """The word is for all queries, the pattern for content queries: special ones keep their own attention."""
    parts = zoo.tiny("bert"), tokens_of("bert"), corpus(6)
    options = {"metric": "agreement", "n_resamples": 0}
    both = hr.join(*(hr.ablate(*parts, replacement=each, **options) for each in ("uniform", Uniform())))
    word, pattern = "ablation[agreement uniform]", "ablation[agreement pattern=uniform]"
    assert "|replacement:uniform|" in hr.provenance(both, word)
    assert "|replacement:pattern=uniform|" in hr.provenance(both, pattern)
    assert not np.allclose(both[word], both[pattern], atol=0.01)


@cache
@torch.no_grad()
def looped_sentences(name):
    """Of each sentence: its loss, how many tokens or labels that is the mean of, and whether the choice is right."""
    model, tokens, text = measured(name)
    rows = []
    for number, one in enumerate(text):
        inputs = {"input_ids": tokens(one.text, return_tensors="pt")["input_ids"]}
        if name == "translations":
            labels = tokens(one.target.text, return_tensors="pt")["input_ids"]
        else:
            inputs, labels = tokenised(tokens, text, [number]), torch.tensor([model.config.label2id[one.label]])
        found = model(**inputs, labels=labels)
        right = found.logits.argmax(-1)[0] == labels[0] if labels.ndim == 1 else False
        rows.append((float(found.loss), labels.numel(), float(right)))
    return np.array(rows).T


def measured(name):
    if name == "translations":
        return writing("marian"), tokens_of("marian"), letters(12)
    return untrained(2, initializer_range=0.3), tokenizer(), films(40, 1) if name == "sentences" else pairs()


KINDS = {"sentences": ["accuracy", "loss"], "pairs": ["loss", "accuracy"], "translations": ["loss"]}


@pytest.mark.slow
@pytest.mark.parametrize("max_tokens", [60, 4096])
@pytest.mark.parametrize("name", KINDS)
def test_values_and_intervals_are_those_of_a_plain_loop(name, max_tokens):
    losses, counts, right = looped_sentences(name)
    table = evaluate(*measured(name), KINDS[name], max_tokens=max_tokens, n_resamples=200, seed=3)
    assert list(table.index) == KINDS[name]
    assert (table.index.name, list(table)) == ("metric", ["value", "low", "high"])
    weights = bootstrap_counts(range(len(losses)), 200, 3)
    sums = {"loss": (losses * counts, counts), "accuracy": (right, np.ones(len(right)))}
    for metric, row in table.iterrows():
        one, many = sums[metric]
        draws = weights @ one / (weights @ many)
        expected = [draws[0], *np.quantile(draws[1:], [0.025, 0.975])]
        close(row, expected)
        assert 0 < row["low"] < row["value"] < row["high"]


CHOOSING = ["accuracy", "f1", "matthews", "loss", "perplexity", "agreement", "class"]


def test_rows_are_named_after_the_metrics_and_lie_within_their_intervals():
    table = evaluate(*measured("sentences"), CHOOSING)
    assert list(table.index) == CHOOSING
    pd.testing.assert_frame_equal(evaluate(*measured("sentences"), "accuracy"), table.loc[["accuracy"]])
    assert (table["low"] <= table["value"]).all()
    assert (table["value"] <= table["high"]).all()
    fields = {"corpus:films", f"text:{films(40, 1).hash}", "resamples:1000", "seed:0"}
    for name in table:
        assert fields <= set(frame.provenance(table, name).split("|"))
    found = evaluate(*measured("sentences"), CHOOSING, n_resamples=0)
    assert found[["low", "high"]].isna().all(axis=None)
    assert found["value"].tolist() == table["value"].tolist()


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_is_without_dropout_and_leaves_the_model_as_it_was(training):
    model, tokens, text = measured("sentences")
    expected = evaluate(model, tokens, text, ["loss"])
    model.train(training)
    pd.testing.assert_frame_equal(evaluate(model, tokens, text, ["loss"]), expected)
    assert all(module.training == training for module in model.modules())


def test_metrics_are_kept(tmp_path, monkeypatch):
    given = zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(6), ["loss", "perplexity"]
    alone = hr.evaluate(*given, n_resamples=20)
    pd.testing.assert_frame_equal(hr.evaluate(*given, n_resamples=20, study=tmp_path), alone)
    monkeypatch.setattr(Sweep, "run", lambda *_, **__: pytest.fail("computed again"))
    pd.testing.assert_frame_equal(hr.evaluate(*given, n_resamples=20, study=tmp_path), alone)
