"""Prediction-powered effects: predictions are derivatives, estimates are unbiased, intervals cover, tables say so."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.ablations import closing, given, measured
from helpers.close import close
from helpers.letters import corpus, tokens_of
from helpers.objectives import classifier
from helpers.sweeps import singles
from scipy import stats

import headroles as hr
from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import METRICS, Loss
from headroles.ablation.prediction_powered import (
    CHANGED,
    FIRST,
    chances,
    drawn,
    estimate,
    estimates,
    interim_sizes,
    precise,
    run_until_precise,
    sizes,
)
from headroles.ablation.significance import effects
from headroles.ablation.sweep import WORDS, Sweep
from headroles.data.corpus import Corpus, Sentence
from headroles.models.head_model import HeadModel
from headroles.models.heads import head_index
from headroles.tables import frame

# --- the estimator --------------------------------------------------------------------------------------------------


def population(size, seed=0, *, slope=1.0, noise=0.3):
    """Changes, steps and predictions of examples that differ in length and in spread, with a few large ones."""
    rng = np.random.default_rng(seed)
    steps = rng.integers(1, 20, size).astype(float)
    predicted = rng.standard_t(4, size) * np.sqrt(steps)
    change = 0.1 * steps + slope * predicted + noise * rng.normal(size=size) * (1 + np.abs(predicted))
    return change, steps, predicted


def partly(change, count, seed=0):
    """Changes of a random part of the examples, NaN for the rest."""
    kept = np.full(len(change), np.nan)
    rows = np.random.default_rng(seed).permutation(len(change))[:count]
    kept[rows] = change[rows]
    return kept


def test_an_estimate_is_the_jackknifed_regression_at_the_means_of_all_examples():
    change, steps, predicted = population(200)
    part = partly(change, 60)
    rows = np.flatnonzero(np.isfinite(part))
    design = np.stack([np.ones(200), predicted, steps], axis=1)

    def regression(rows):
        return np.linalg.lstsq(design[rows], change[rows])[0]

    at_means = [design.mean(0) @ regression(np.delete(rows, left_out)) for left_out in range(60)]
    whole = design.mean(0) @ regression(rows)
    bias = 59 * (np.mean(at_means) - whole) * (1 - 60 / 200)  # less of it where less of the corpus is left
    found = estimate(part, steps, predicted)
    close(found.effect, (whole - bias) / steps.mean(), dtype=torch.float64, operations=10**4)
    close(found.slope, regression(rows)[1], dtype=torch.float64, operations=10**4)
    assert found.freedom == 57
    assert found.explained == pytest.approx(np.corrcoef(change[rows], predicted[rows])[0, 1] ** 2)
    error = np.std(at_means) * np.sqrt(59 / 60) * 59 / np.sqrt(59) * np.sqrt(1 - 60 / 200) / steps.mean()
    assert found.corpus_error == pytest.approx(error, rel=0.02)  # the jackknife's


def test_with_examples_of_one_length_it_is_the_estimate_of_ppi_plus_plus_with_its_best_lambda():
    for seed in range(5):
        change, _, predicted = population(3000, seed, slope=0.5)
        part = partly(change, 600, seed)
        ablated = np.isfinite(part)
        y, with_y, without = change[ablated], predicted[ablated], predicted[~ablated]
        n, others = len(y), len(without)
        weight = np.cov(y, with_y)[0, 1] / ((1 + n / others) * with_y.var(ddof=1))  # lambda
        mean = weight * without.mean() + (y - weight * with_y).mean()
        error = np.sqrt(weight**2 * without.var() / others + (y - weight * with_y).var() / n)
        found = estimate(part, np.ones(3000), predicted)
        assert abs(found.effect - mean) < 0.05 * error  # less the bias of a fitted slope
        assert found.slope == pytest.approx(weight * (1 + n / others), rel=1e-9)
        assert found.error == pytest.approx(error, rel=0.05)


def test_the_whole_corpus_leaves_nothing_to_estimate():
    change, steps, predicted = population(300)
    found = estimate(change, steps, predicted)
    effect = change.sum() / steps.sum()
    close(found.effect, effect, dtype=torch.float64)
    error = np.std(change - effect * steps, ddof=1) / np.sqrt(300) / steps.mean()
    assert found.error == pytest.approx(error, rel=0.05)  # the jackknife is a little larger
    assert found.whole_error == pytest.approx(error, rel=0.01)
    assert found.corpus_error == 0
    assert found.widening == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("slope", "noise", "factor"), [(0.0, 0.3, 1.0), (1.0, 0.0, 0.0), (-2.0, 0.0, 0.0)])
def test_a_worthless_prediction_costs_nothing_and_a_perfect_one_leaves_no_error(slope, noise, factor):
    errors = []
    for seed in range(30):
        change, steps, predicted = population(1000, seed, slope=slope, noise=noise)
        part = partly(change, 100, seed)
        found, plain = estimate(part, steps, predicted), estimate(part, steps, np.zeros(1000))
        errors.append(found.corpus_error / plain.corpus_error)
    assert np.median(errors) == pytest.approx(factor, abs=0.1)


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0, 2.0])
def test_estimates_are_unbiased_and_their_intervals_cover(slope):
    """Of the effect on the corpus, and of the one in the population that it is drawn from: 0.1 a step."""
    estimates = []
    for seed in range(300):
        change, steps, predicted = population(400, seed, slope=slope)
        estimates.append((estimate(partly(change, 80, seed), steps, predicted), change.sum() / steps.sum()))
    holds(estimates)


def holds(estimates):
    """Whether intervals around estimates hold the effect on their corpus, and the estimates are around it."""
    covered, bias = [], []
    for found, effect in estimates:
        half = stats.t.ppf(0.975, found.freedom) * found.corpus_error
        covered.append([abs(found.effect - effect) < half, abs(found.effect - 0.1) < found.half_width])
        bias.append((found.effect - effect) / found.corpus_error)
    noise = 3 * np.sqrt(0.05 * 0.95 / len(estimates))
    assert np.abs(np.mean(covered, axis=0) - 0.95).max() < 0.01 + noise
    assert abs(np.mean(bias)) < 3 * np.std(bias) / np.sqrt(len(estimates))


def test_influences_resample_to_the_error():
    change, steps, predicted = population(500)
    found = estimate(partly(change, 100), steps, predicted)
    assert abs(found.influence.sum()) < 0.1 * found.error
    assert np.sqrt((found.influence**2).sum()) == pytest.approx(found.error, rel=0.1)


def test_degenerate_examples_have_no_axis():
    ones, rng = np.ones(50), np.random.default_rng(0)
    change = partly(rng.normal(size=50), 20)
    flat = estimate(change, ones, np.zeros(50))
    assert flat.effect == pytest.approx(np.nanmean(change))
    assert (flat.freedom, flat.slope, flat.explained) == (19, 0, 0)
    dead = estimate(partly(np.zeros(50), 20), ones, np.zeros(50))
    assert (dead.effect, dead.error, dead.tested[2], dead.widening, dead.changed) == (0, 0, 1, 1, 0)


# --- examples that are drawn with unequal probabilities --------------------------------------------------------------


def first(sizes, count, rng):
    """Which examples are drawn first, as `run_until_precise` draws them."""
    found = measured(np.ones(len(sizes)), np.zeros((1, len(sizes))))
    return drawn(replace(found, sizes=sizes), found.numbers, rng)[:count]


@pytest.mark.parametrize("count", [5, 60, 150, 199])
def test_chances_are_how_often_an_example_is_among_the_first(count):
    rng, often = np.random.default_rng(0), np.zeros(200)
    size = rng.lognormal(0, 1, 200)
    for _ in range(1000):
        often[first(size, count, rng)] += 1
    expected = chances(size, count)
    assert expected.sum() == pytest.approx(count)
    noise = 4 * np.sqrt(0.25 / 1000)
    near_all = 0.15 if count == 199 else 0.0  # the last example is nearly always the smallest
    assert np.abs(often / 1000 - expected).max() < noise + near_all


def test_equal_sizes_are_drawn_alike_and_equal_chances_change_nothing():
    np.testing.assert_allclose(chances(np.full(50, 3.0), 20), 0.4, rtol=1e-12)
    assert (chances(np.arange(1.0, 51.0), 50) == 1).all()
    change, steps, predicted = population(200)
    part = partly(change, 60)
    one, other = estimate(part, steps, predicted), estimate(part, steps, predicted, np.full(200, 0.3))
    for name in ("effect", "error", "whole_error", "corpus_error", "slope", "explained", "influence"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-12)


def test_larger_examples_are_drawn_more_often_without_bias_and_with_smaller_errors():
    """Changes differ most from their prediction where it is large, so that these examples say most."""
    estimates, errors = [], []
    for seed in range(250):
        change, steps, predicted = population(400, seed)
        size = sizes([predicted])
        chance, rows = chances(size, 80), first(size, 80, np.random.default_rng(seed))
        part = np.full(400, np.nan)
        part[rows] = change[rows]
        found, equal = estimate(part, steps, predicted, chance), estimate(partly(change, 80, seed), steps, predicted)
        effect = change.sum() / steps.sum()
        estimates.append((found, effect))
        errors.append([found.effect - effect, equal.effect - effect])
    holds(estimates)
    unequal, equal = np.mean(np.square(errors), axis=0)
    assert unequal < 0.9 * equal


def test_sizes_without_a_gradient_are_equal():
    assert (sizes([np.zeros(10), np.ones(10)]) == 1).all()
    few = sizes([np.r_[np.zeros(99), 1.0]])
    assert few.mean() == pytest.approx(1)
    assert few.min() > 0.5


def test_how_likely_examples_were_drawn_is_kept_in_the_table():
    found = predicted_stats()
    found = replace(found, sizes=sizes(found.predicted.values()), signature="text")
    again = ExampleStats.of(found.table(), found.metric)
    np.testing.assert_array_equal(again.sizes, found.sizes)
    one, other = (effects(part, n_resamples=0).columns for part in (shown(again, 100), shown(found, 100)))
    np.testing.assert_array_equal(one[""], other[""])
    assert ExampleStats.of(predicted_stats().table(), found.metric).sizes is None


# --- predictions ----------------------------------------------------------------------------------------------------


def differences(name, metric, variant, replacement, step=0.005):
    """Change of the stand-in of each example by central differences in double precision, over the step."""
    model, tokenizer, text = given(name)
    model = model.double()
    try:
        sweep = Sweep(HeadModel(model, tokenizer), text, metric, replacement=replacement)
        (row,) = sweep._gates([variant])
        read = sweep.read
        (batch,) = sweep.batches
        outputs = sweep.outputs.bind(batch)
        values = []
        for sign in (1, -1):
            gates = 1 + sign * step * (row.double() - 1)
            with torch.no_grad(), hr.mask_heads(model, gates, outputs):
                target = metric.targets(read(batch, model(**batch.inputs)))
            values.append(torch.where(target.counted, target.values, 0.0).double().sum(-1).numpy())
        predicted = sweep.predict([variant])
        assert predicted.numbers == list(batch.numbers)
        return (values[0] - values[1]) / (2 * step), predicted.predicted[variant]
    finally:
        model.float()


@pytest.mark.parametrize("replacement", ["zero", "mean", "uniform", "resample", "rescale"])
def test_predictions_are_derivatives_along_the_mask(replacement):
    head = frozenset([("dec-self", 0, 1)])
    expected, found = differences("gpt2", Loss(), head, replacement)
    assert np.abs(expected).max() > 1e-4
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-3 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("name", "metric"), [("marian", "loss"), ("marian", "agreement"), ("classifier", "accuracy"), ("gpt2", "reference")]
)
def test_metrics_are_predicted_by_their_stand_in(name, metric):
    heads = frozenset(list(map(tuple, head_index(given(name)[0])))[:3])
    expected, found = differences(name, hr.ablation.metrics.as_metric(metric), heads, "zero")
    assert np.abs(expected).max() > 1e-6
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-3 * np.abs(expected).max())


# --- when it is enough ----------------------------------------------------------------------------------------------


def predicted_stats(size=400, heads=6, noise=0.2, effect=0.0):
    """Example statistics of all examples, with predictions that are more or less worth."""
    rng = np.random.default_rng(0)
    steps = rng.integers(5, 15, size).astype(float)
    predicted = rng.normal(size=(heads, size)) * np.sqrt(steps)
    changes = predicted + effect * steps + noise * np.arange(heads)[:, None] * rng.normal(size=(heads, size))
    whole = measured(steps, changes)
    return replace(whole, predicted=dict(zip(whole.masked, predicted, strict=True)))


def shown(found, end):
    rows = np.arange(len(found.numbers))[:, None] < end
    return replace(found, masked={key: np.where(rows, values, np.nan) for key, values in found.masked.items()})


def test_a_better_prediction_needs_fewer_examples():
    found, needed = predicted_stats(), {}
    ends = interim_sizes(400)
    for end in ends:
        clear = precise(shown(found, end), list(found.masked), 1.1)
        needed |= {head: end for head, done in enumerate(clear) if done and head not in needed}
    assert needed[0] == ends[0]
    assert list(needed.values()) == sorted(needed.values())
    assert needed[5] > 2 * needed[0]
    assert all(estimates(shown(found, end))[head].widening <= 1.1 for head, end in needed.items())


def test_an_interval_is_not_believed_before_enough_examples_have_changed():
    """A classifier that changes its mind on few sentences: all of the first ones agree."""
    size = 400
    change = np.zeros((1, size))
    change[0, 300 : 300 + CHANGED // 2] = -1
    found = measured(np.ones(size), change, METRICS["accuracy"])
    found = replace(found, predicted={key: np.linspace(-1, 1, size) for key in found.masked})
    for end in (64, 100):
        assert not any(precise(shown(found, end), list(found.masked), 1.1))


@pytest.mark.parametrize(
    ("examples", "expected"),
    [(1, [1]), (64, [64]), (65, [64, 65]), (100, [64, 80, 100]), (200, [64, 80, 100, 125, 156, 195, 200])],
)
def test_interim_sizes_by_hand(examples, expected):
    assert interim_sizes(examples) == expected


SIZE = 200  # sentences


@cache
def sampled(name, replacement="zero", seed=0):
    """A sweep until intervals are precise, and one of the whole corpus, both in the order of the corpus."""
    model = zoo.tiny(name)
    runs = Sweep(HeadModel(model, tokens_of(name)), corpus(SIZE), Loss(), replacement=replacement, seed=seed)
    both = run_until_precise(runs, singles(model), 1.2), runs.run(singles(model))
    return [found.take(np.argsort(found.numbers)) for found in both]


@pytest.mark.parametrize(
    ("name", "replacement"),
    [("marian", "zero"), *(pytest.param("gpt2", word, marks=pytest.mark.slow) for word in WORDS[1:])],
)
def test_run_until_precise_examples_have_the_statistics_of_the_whole_corpus(name, replacement):
    found, expected = sampled(name, replacement)
    assert (found.numbers, found.signature) == (expected.numbers, expected.signature)
    close(found.intact, expected.intact, operations=16)
    assert list(found.masked) == list(expected.masked)
    counts = set()
    for variant, values in found.masked.items():
        rows = np.isfinite(values).all(-1)
        close(values[rows], expected.masked[variant][rows], operations=16)
        assert np.isnan(values[~rows]).all()
        counts.add(int(rows.sum()))
    assert len(counts) > 1
    assert counts <= set(interim_sizes(SIZE))


@pytest.mark.slow
def test_run_until_precise_stops_a_variant_once_it_is_precise():
    found, expected = sampled("marian")
    order = drawn(found, found.numbers, np.random.default_rng(0))
    for variant, values in found.masked.items():
        rows = np.isfinite(values).all(-1)
        end = int(rows.sum())
        assert set(order[:end]) == set(np.flatnonzero(rows))
        for size in (size for size in interim_sizes(SIZE)[:-1] if size <= end):
            measured = np.isin(np.arange(SIZE), order[:size])[:, None]
            part = {variant: np.where(measured, expected.masked[variant], np.nan)}
            assert precise(replace(found, masked=part), [variant], 1.2) == [size == end]


@pytest.mark.slow
def test_run_until_precise_draws_by_the_seed():
    model, rows = zoo.tiny("gpt2"), []
    for seed in (0, 0, 1):
        runs = Sweep(HeadModel(model, tokens_of("gpt2")), corpus(FIRST + 20), Loss(), seed=seed)
        found = run_until_precise(runs, singles(model)[:2], 2.0)
        measured = np.isfinite(found.masked[singles(model)[0]]).all(-1)
        rows.append({number for number, is_run in zip(found.numbers, measured, strict=True) if is_run})
    assert rows[0] == rows[1] != rows[2]
    assert len(rows[0]) == FIRST


def test_run_until_precise_counts_sentences_too_long():
    sentences = [*corpus(8), Sentence("a " * 60, target=Sentence("a"))]
    runs = Sweep(HeadModel(zoo.tiny("marian"), tokens_of("marian")), Corpus("letters", tuple(sentences)), Loss())
    found = run_until_precise(runs, singles(zoo.tiny("marian")), 1.1)
    assert sorted(found.numbers) == list(range(8))
    assert found.too_long == 1
    assert "too_long:1" in found.signature.split("|")


class Similar(Loss):
    """How similar a sentence stays to the one of the corpus that is nearest to it."""

    objective = "similarity"
    better = 1


def test_run_until_precise_metric_that_compares_sentences_reads_all_of_them():
    model, text = zoo.tiny("bert").bert, corpus(80, translated=False)
    runs = Sweep(HeadModel(model, tokens_of("bert")), text, Similar())
    found, expected = run_until_precise(runs, singles(model), 1.1), runs.run(singles(model))
    found, expected = (part.take(np.argsort(part.numbers)) for part in (found, expected))
    close(found.intact, expected.intact, operations=16)
    for variant, values in found.masked.items():
        rows = np.isfinite(values).all(-1)
        close(values[rows], expected.masked[variant][rows], operations=16)


# --- in tables ------------------------------------------------------------------------------------------------------

CASES = {
    "loss": lambda: (zoo.tiny("marian"), tokens_of("marian"), corpus(SIZE)),
    "accuracy": lambda: (classifier(), tokens_of("bert"), answered(SIZE)),
    "agreement": lambda: (zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(SIZE)),
}


def answered(size):
    rows = enumerate(corpus(size, translated=False))
    return Corpus("labelled", tuple(replace(row, label=("yes", "no", "maybe")[i % 3]) for i, row in rows))


@cache
def ablated(metric, **options):
    return hr.ablate(*CASES[metric](), metric=metric, n_resamples=200, **options)


@pytest.mark.slow
@pytest.mark.parametrize("metric", CASES)
def test_a_table_says_on_what_it_rests(metric):
    table, exact = ablated(metric, precision=1.2), ablated(metric)
    name = f"ablation[{metric} precision=1.2]"
    ends = ["", ".low", ".high", ".p", ".holm", ".bh", ".examples", ".slope", ".explained"]
    assert list(table) == [f"{name}{end}" for end in ends]
    fields = dict(field.partition(":")[::2] for field in frame.provenance(table, name).split("|"))
    assert (fields["examples"], fields["estimate"]) == (str(SIZE), "prediction-powered")
    assert fields["drawn"] == "by gradients"
    assert fields["precision"] == "1.2"
    assert table[f"{name}.examples"].between(FIRST, SIZE).all()
    assert table[f"{name}.explained"].between(0, 1).all()
    all_of_it = table[f"{name}.examples"] == SIZE
    close(table.loc[all_of_it, name], exact.loc[all_of_it, f"ablation[{metric}]"], size=10.0, operations=64)
    scale = (exact[f"ablation[{metric}].high"] - exact[f"ablation[{metric}].low"]).clip(lower=1e-9)
    assert ((table[name] - exact[f"ablation[{metric}]"]).abs() < 2.5 * scale).all()
    draws = table.attrs["draws"][name] if "draws" in table.attrs else None
    assert draws is None or len(draws) == len(table)


@pytest.mark.slow
def test_most_of_the_work_is_saved_where_the_gradient_predicts():
    table = ablated("loss", precision=1.2)
    explained, examples = (table[f"ablation[loss precision=1.2].{name}"] for name in ("explained", "examples"))
    assert examples.mean() < 0.7 * SIZE
    assert explained.corr(examples, method="spearman") < -0.5


@pytest.mark.parametrize("unit", ["layer", "all_but_one", "kind"])
def test_sets_of_heads_are_predicted_by_the_sum_of_their_gradients(unit):
    model, tokenizer, text = given("gpt2")
    sweep = Sweep(HeadModel(model, tokenizer), text, Loss())
    variants = list(dict.fromkeys(closing("gpt2", unit)))
    singles = [frozenset([head]) for head in head_index(model)]
    sums, each = sweep.predict(variants).predicted, sweep.predict(singles).predicted
    for variant in variants:
        expected = sum(each[frozenset([head])] for head in variant)
        close(sums[variant], expected, size=max(np.abs(row).max() for row in each.values()), operations=64)
