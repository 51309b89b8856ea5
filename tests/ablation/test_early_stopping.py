"""What is stopped early decides as the whole corpus would, and what was kept of each example tells the rest."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pandas as pd
import pytest
import transformers
from helpers import zoo
from helpers.ablations import Stopping, closing, column, files, mean, measured, sweep, terse
from helpers.close import close
from helpers.letters import DETERMINISTIC, corpus, tokens_of
from helpers.messages import whole
from helpers.objectives import classifier
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headroles.ablation.early_stopping import FIRST, GROWTH, looks, scores, staged, stopped
from headroles.ablation.effects import ablate
from headroles.ablation.example_stats import ExampleStats, written
from headroles.ablation.forward_cache import Replay
from headroles.ablation.metrics import BLEU, F1, METRICS, Accuracy, Loss, Perplexity
from headroles.ablation.significance import best, effects
from headroles.ablation.sweep import Sweep
from headroles.ablation.units import on_disk
from headroles.analysis.intervals import bootstrap_counts
from headroles.analysis.multiple_testing import benjamini_hochberg, holm
from headroles.data.corpus import Corpus, Sentence
from headroles.models import heads as families
from headroles.models.head_model import HeadModel
from headroles.tables import frame
from headroles.tables.io import load_table, save_table
from headroles.tables.study import Study

LEVEL, RISK, MISS = 0.01, 0.001, 0.05  # the defaults of `staged`
SIZE, SMALL = 40, 8  # sentences of a corpus, and of its first look


@contextmanager
def within(seconds):
    """A loop in the block that does not end is ended."""

    def late(*_):
        raise TimeoutError(f"not done in {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_on(found):
    """On which of its examples each variant was run: bool [variant, example]."""
    return np.stack([np.isfinite(each).all(-1) for each in found.masked.values()])


def by_number(found):
    """The same sweep, its examples in the order of the corpus."""
    return found.take(np.argsort(found.numbers))


# --- looks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("examples", "first", "expected"),
    [
        (1000, 256, [256, 384, 576, 864, 1000]),
        (864, 256, [256, 384, 576, 864]),
        (257, 256, [256, 257]),
        (256, 256, [256]),
        (100, 256, [100]),
        (1, 256, [1]),
        (10, 2, [2, 3, 4, 6, 9, 10]),
        (10, 1, [1, 2, 3, 4, 6, 9, 10]),
    ],
)
def test_a_corpus_is_looked_at_after_half_as_many_again_and_at_its_end(examples, first, expected):
    with within(1):
        assert looks(examples, first) == expected


@DETERMINISTIC
@given(st.integers(1, 10**6), st.integers(2, 10**4))
def test_looks_rise_from_the_first_to_the_whole(examples, first):
    ends = looks(examples, first)
    assert ends[0] == min(first, examples)
    assert ends[-1] == examples
    assert all(one < other <= one * GROWTH for one, other in pairwise(ends))


def test_the_first_look_is_the_one_that_is_documented():
    assert looks(FIRST) == [FIRST]
    assert looks(FIRST + 1) == [FIRST, FIRST + 1]


# --- when an effect is clear ----------------------------------------------------------------------------------------

SHARES = st.floats(0.01, 0.99)
SIZES = st.floats(0, 8)


def clear(z, share, *, risk=RISK, miss=MISS):
    return bool(stopped(np.array([z]), share, level=LEVEL, risk=risk, miss=miss)[0])


@DETERMINISTIC
@given(SIZES, SHARES)
def test_both_sides_are_treated_alike(z, share):
    assert clear(z, share) == clear(-z, share)


@DETERMINISTIC
@given(SHARES)
def test_a_huge_effect_is_always_clear(share):
    assert clear(4, share)
    assert clear(np.inf, share)
    assert clear(-np.inf, share)
    assert not clear(stats.norm.isf(RISK / 2) - 0.001, share)


def test_no_effect_is_clear_late_and_not_early():
    assert [clear(0, share) for share in (0.05, 0.2, 0.35, 0.4, 0.7, 0.99)] == [False] * 3 + [True] * 3


@DETERMINISTIC
@given(SIZES, SIZES, SHARES)
def test_what_is_not_to_be_found_is_smaller_than_what_may_be(one, other, share):
    """Without a risk no effect is there for sure."""
    small, large = sorted((one, other))
    assert clear(small, share, risk=0) or not clear(large, share, risk=0)


@DETERMINISTIC
@given(SIZES, SHARES, SHARES)
def test_what_is_clear_on_a_part_is_clear_on_a_larger_part(z, one, other):
    early, late = sorted((one, other))
    assert clear(z, late) or not clear(z, early)


@DETERMINISTIC
@given(st.lists(st.floats(-8, 8), max_size=5), SHARES)
def test_each_effect_is_looked_at_by_itself(sizes, share):
    heads_per_batch = stopped(np.array(sizes), share, level=LEVEL, risk=RISK, miss=MISS)
    assert heads_per_batch.tolist() == [clear(z, share) for z in sizes]


@pytest.mark.parametrize(("z", "share"), [*product([0, -1, 1.7, 2.4, 3], [0.1, 0.3, 0.6, 0.9])])
def test_the_chance_of_a_small_p_at_the_end_is_that_of_a_simulation(z, share):
    """In units in which the whole corpus tells an effect to one standard error, any effect being as likely before."""
    rng = np.random.default_rng(0)
    effect = rng.normal(z / np.sqrt(share), 1 / np.sqrt(share), 400_000)
    rest = rng.normal(effect * np.sqrt(1 - share))  # the z of what has not been run
    end = np.sqrt(share) * z + np.sqrt(1 - share) * rest
    chance = (np.abs(end) > stats.norm.isf(LEVEL / 2)).mean()
    assert clear(z, share, risk=0, miss=chance + 0.01)
    assert not clear(z, share, risk=0, miss=chance - 0.01)


# --- the whole procedure, in numbers --------------------------------------------------------------------------------

HEADS, EXAMPLES = 1000, 1000


def curtailed(found, first=FIRST):
    """A sweep of which a variant is NaN after the look at which it was clear, as `staged` would have it."""
    size, left, masked = len(found.numbers), list(found.masked), {}
    ends = looks(size, first)
    for end in ends[:-1]:
        z = scores(found.take(np.arange(end)), left)
        done = stopped(z, end / size, level=LEVEL, risk=RISK / (len(ends) - 1), miss=MISS)
        after = np.where(np.arange(size) < end, 0, np.nan)[:, None]
        masked |= {each: found.masked[each] + after for each, now in zip(left, done, strict=True) if now}
        left = [each for each in left if each not in masked]
        if not left:
            break
    return replace(found, masked={each: masked.get(each, values) for each, values in found.masked.items()})


def simulated(sizes, seed):
    """A sweep of heads with effects of so many standard errors of the whole corpus, over steps of unequal number."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 20, EXAMPLES).astype(float)
    rest = rng.normal(0, 1, (len(sizes), EXAMPLES)) * np.sqrt(counts)  # its ratio has the error 1 / sqrt(sum)
    return measured(counts, rest + np.outer(sizes, counts / np.sqrt(counts.sum())))


def p_of(found):
    return effects(found, n_resamples=0).columns[".p"]


@pytest.mark.slow
def test_without_any_effect_no_more_is_found_than_was_risked():
    found = curtailed(simulated(np.zeros(HEADS), seed=1))
    allowed = LEVEL + RISK
    assert (p_of(found) < LEVEL).mean() <= allowed + 3 * np.sqrt(allowed * (1 - allowed) / HEADS)
    assert run_on(found).mean() < 0.7  # 0.65


@pytest.mark.slow
def test_what_is_decided_is_what_the_whole_corpus_says():
    rng = np.random.default_rng(2)
    sizes = np.where(rng.random(HEADS) < 0.5, 0, rng.normal(0, 6, HEADS))
    everything = simulated(sizes, seed=3)
    early = curtailed(everything)
    same = (p_of(early) < LEVEL) == (p_of(everything) < LEVEL)
    assert 0.2 < (p_of(everything) < LEVEL).mean() < 0.5
    assert same.mean() >= 0.95
    assert run_on(early).mean() < 0.7  # 0.64


def test_scores_are_effects_in_standard_errors():
    found = simulated(np.array([-3.0, 0.0, 0.5, 20.0]), seed=4)
    z = scores(found, list(found.masked))
    np.testing.assert_allclose(2 * stats.norm.sf(np.abs(z)), p_of(found), atol=1e-12)
    assert np.sign(z).tolist() == np.sign(effects(found, n_resamples=0).columns[""]).tolist()
    boots = scores(replace(found, metric=Perplexity()), list(found.masked))
    np.testing.assert_allclose(boots, z, rtol=0.2, atol=0.2)


def test_an_effect_that_is_always_the_same_is_of_any_size_and_none_is_of_none():
    for metric in (Loss(), Perplexity()):
        found = measured(np.ones(50), np.stack([np.zeros(50), np.ones(50), -np.ones(50)]), metric)
        if metric.name == "loss":
            z = scores(found, list(found.masked))  # as sure as 50 examples can be: p is 2**-49
            assert z.tolist() == [0, -z[2], z[2]]
            assert stats.norm.sf(z[1]) == pytest.approx(2.0**-50)
        assert stopped(scores(found, list(found.masked)), 0.4, level=LEVEL, risk=RISK, miss=MISS).all()


# --- on a model -----------------------------------------------------------------------------------------------------


STOPS = {"first", "level", "risk", "miss", "predict", "early", "precision"}  # options of `staged`


def singles(model):
    return [frozenset([head]) for head in families.head_index(model)]


def early(name="marian", text=None, metric=None, model=None, **options):
    model = model or zoo.tiny(name)
    of_sweep = {
        name: options.pop(name)
        for name in ("folder", "max_tokens", "heads_per_batch", "seed", "replacement")
        if name in options
    }
    runs = Sweep(HeadModel(model, tokens_of(name)), text or corpus(SIZE), metric or Loss(), **of_sweep)
    return staged(runs, singles(model), **{"first": SMALL} | options)


@cache
def everything(name="marian", **options):
    model = zoo.tiny(name)
    return by_number(sweep(model, tokens_of(name), corpus(SIZE), singles(model), Loss(), **options))


@cache
def stopped_early(seed=0):
    return early(seed=seed)


def order(seed=0):
    """In which order the sentences are run."""
    return np.random.default_rng(seed).permutation(SIZE)


def near(one, other):
    close(one, other, operations=16)  # sums over a sentence: 50 nats


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_what_was_run_is_what_the_whole_corpus_gives(seed):
    found = by_number(stopped_early(seed))
    assert found.numbers == list(range(SIZE))
    near(found.intact, everything().intact)
    assert list(found.masked) == list(everything().masked)
    for each, rows in zip(found.masked, run_on(found), strict=True):
        near(found.masked[each][rows], everything().masked[each][rows])
        assert np.isnan(found.masked[each][~rows]).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_variant_is_run_up_to_the_look_at_which_it_is_clear(seed):
    found = run_on(by_number(stopped_early(seed)))
    expected = curtailed(everything().take(order(seed)), first=SMALL)
    assert (found[:, order(seed)] == run_on(expected)).all()
    assert SIZE in set(found.sum(1)) <= set(looks(SIZE, SMALL))
    assert len(set(found.sum(1))) > 2


@pytest.mark.slow
def test_what_was_never_stopped_has_the_statistics_of_the_whole_corpus():
    names = ["", ".low", ".high", ".p"]
    one, other = (effects(found, n_resamples=100).columns for found in (stopped_early(), everything()))
    never = one[".examples"] == SIZE
    assert 0 < never.sum() < len(never)
    for name in names:
        close(one[name][never], other[name][never], size=np.nanmax(everything().intact), operations=16)


def test_no_more_is_run_once_all_is_clear():
    found = early(miss=0.9, risk=0.5)
    end = run_on(found).sum(1).max()
    assert end < SIZE
    assert sorted(found.numbers) == sorted(order()[:end].tolist())
    assert np.isfinite(found.intact).all()
    assert len(found.intact) == end


def test_a_corpus_that_is_no_longer_than_the_first_look_is_a_plain_sweep():
    found = by_number(early(first=SIZE))
    near(found.intact, everything().intact)
    assert run_on(found).all()
    assert found.signature == everything().signature


def equal(one, other):
    assert one.numbers == other.numbers
    assert list(one.masked) == list(other.masked)
    np.testing.assert_array_equal(one.intact, other.intact)
    for key, values in one.masked.items():
        np.testing.assert_array_equal(values, other.masked[key])
    assert (one.signature, one.too_long) == (other.signature, other.too_long)


@pytest.mark.slow
def test_a_seed_decides():
    equal(early(seed=1), stopped_early(1))
    assert stopped_early(0).numbers != stopped_early(1).numbers


@pytest.mark.slow
def test_it_resumes_after_its_last_finished_batch(tmp_path):
    metric, options = Stopping(), {"heads_per_batch": 1, "max_tokens": 40, "folder": tmp_path}
    metric.after = 45
    with pytest.raises(InterruptedError):
        early("gpt2", metric=metric, **options)
    finished = files(tmp_path)
    assert len(finished) > 3
    metric.after = 10**9
    found = early("gpt2", metric=metric, **options)
    assert finished.items() < files(tmp_path).items()
    equal(
        replace(found, metric=None),
        replace(early("gpt2", metric=Stopping(), heads_per_batch=1, max_tokens=40), metric=None),
    )
    kept = files(tmp_path)
    metric.after = 0  # nothing can be measured
    equal(early("gpt2", metric=metric, **options), found)
    assert files(tmp_path) == kept


@pytest.mark.slow
def test_the_signature_is_of_the_whole_corpus():
    fields = dict(field.partition(":")[::2] for field in stopped_early().signature.split("|"))
    expected = {"corpus": "letters", "text": corpus(SIZE).hash, "examples": str(SIZE), "too_long": "0"}
    assert {name: fields[name] for name in expected} == expected


def test_sentences_too_long_are_counted_wherever_they_fall():
    """Of nine sentences the last look has one."""
    place = np.random.default_rng(0).permutation(9)[-1]
    sentences = [*corpus(8)]
    sentences.insert(place, Sentence("a " * 60, target=Sentence("a")))
    found = early(text=Corpus("letters", tuple(sentences)))
    assert sorted(found.numbers) == sorted(set(range(9)) - {place})
    assert found.too_long == 1
    assert "too_long:1" in found.signature.split("|")


@pytest.mark.slow
@pytest.mark.parametrize("replacement", ["uniform", "rescale", "mean", "resample"])
def test_fills_are_those_of_the_whole_corpus(replacement):
    """So is the mean that a head puts out."""
    found, expected = by_number(early("gpt2", replacement=replacement)), everything("gpt2", replacement=replacement)
    assert not run_on(found).all()
    for each, rows in zip(found.masked, run_on(found), strict=True):
        near(found.masked[each][rows], expected.masked[each][rows])


def test_a_metric_that_compares_sentences_knows_them_all():
    model, metric = zoo.tiny("bert").bert, Similar()
    text = corpus(SIZE, translated=False)
    found = by_number(early("bert", text, metric, model))
    expected = by_number(sweep(model, tokens_of("bert"), text, singles(model), metric))
    near(found.intact, expected.intact)
    for each, rows in zip(found.masked, run_on(found), strict=True):
        near(found.masked[each][rows], expected.masked[each][rows])


class Similar(Loss):
    """How similar a sentence stays to the one of the corpus that is nearest to it."""

    objective = "similarity"
    better = 1


# --- in tables ------------------------------------------------------------------------------------------------------

LONG = FIRST + 14  # sentences, of which a first look is a part


def answered(size):
    """The same sentences with labels a classifier may choose."""
    rows = enumerate(corpus(size, translated=False))
    return Corpus("labelled", tuple(replace(one, label=("yes", "no", "maybe")[i % 3]) for i, one in rows))


CASES = {  # metrics that no gradient predicts
    "perplexity": lambda: (zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(LONG), "all_but_one"),
    "bleu": lambda: (terse(), tokens_of("marian"), corpus(LONG), "layer"),
    "f1": lambda: (classifier(), tokens_of("bert"), answered(LONG), "head"),
}


@cache
def ablated(metric, *, early):
    *given, unit = CASES[metric]()
    return ablate(*given, metric=metric, unit=unit, n_resamples=100, early=early)


@pytest.mark.slow
@pytest.mark.parametrize("metric", CASES)
def test_a_table_says_on_how_many_examples_it_rests(metric):
    table, name = ablated(metric, early=True), column(CASES[metric]()[-1], metric).replace("]", " early]")
    assert list(table) == [f"{name}{end}" for end in ("", ".low", ".high", ".p", ".holm", ".bh", ".examples")]
    assert set(table[f"{name}.examples"]) == {FIRST, LONG}
    assert table.notna().all(axis=None)
    assert all("early:True" in frame.provenance(table, each).split("|") for each in table)


@pytest.mark.slow
@pytest.mark.parametrize("metric", CASES)
def test_a_head_that_was_not_stopped_has_the_effect_of_the_whole_corpus(metric):
    early, late = (ablated(metric, early=early) for early in (True, False))
    early.columns = early.columns.str.replace(" early]", "]")
    name = str(late.columns[0])
    assert list(late) == [each for each in early if not each.endswith(".examples")]
    assert not any(field.startswith("early") for field in frame.provenance(late, name).split("|"))
    never = early[f"{name}.examples"] == LONG
    told = [name, f"{name}.low", f"{name}.high", f"{name}.p"]
    pd.testing.assert_frame_equal(early.loc[never, told], late.loc[never, told], rtol=0, atol=1e-4)
    assert not np.allclose(early.loc[~never, name], late.loc[~never, name], rtol=1e-3, atol=0)


def partly(metric, seed=0):
    """A sweep of which each variant was run on some examples of its own, and those."""
    rng = np.random.default_rng(seed)
    found = measured(rng.integers(1, 9, 60).astype(float), rng.normal(0.3, 1, (6, 60)), metric, seed=seed)
    found = replace(found, numbers=rng.permutation(100)[:60].tolist())
    rows = rng.random((6, 60)) < rng.uniform(0.2, 1, (6, 1))
    rows[0] = True
    masks = np.where(rows, 0, np.nan)[..., None]
    masked = {each: values + mask for (each, values), mask in zip(found.masked.items(), masks, strict=True)}
    return replace(found, masked=masked), rows


@pytest.mark.parametrize("metric", [Loss(), Perplexity()], ids=lambda metric: metric.name)
def test_an_effect_is_of_the_part_that_was_run(metric):
    found, rows = partly(metric)
    told = effects(found, n_resamples=200, seed=2)
    for i, (each, values) in enumerate(found.masked.items()):
        own = replace(found, masked={each: values}).take(np.flatnonzero(rows[i]))
        expected = effects(own, n_resamples=200, seed=2)
        for name in ("", ".low", ".high", ".p"):
            np.testing.assert_allclose(told.columns[name][i], expected.columns[name][0], rtol=1e-9)
        np.testing.assert_allclose(told.draws[i], expected.draws[0], rtol=1e-9)
        assert told.columns[".examples"][i] == rows[i].sum()
    np.testing.assert_allclose(told.columns[".holm"], holm(told.columns[".p"]))
    assert told.intact == pytest.approx(metric.compute(found.intact.sum(0)))


# --- the best head of each layer ------------------------------------------------------------------------------------

INDEX = frame.index({("enc-self", 0): 4, ("enc-self", 1): 3, ("cross", 0): 5})
RIGHT = {Loss: -1, Accuracy: 1}  # the sign of what is better


def rest_of(head):
    return frozenset(other for other in INDEX if other[:2] == head[:2] and other != head)


def alone(metric=None, changes=None, seed=0, examples=31):
    """A made-up sweep of closing all but each head of a layer."""
    rng = np.random.default_rng(seed)
    changes = rng.normal(0.1, 1, (len(INDEX), examples)) if changes is None else changes
    found = measured(np.ones(examples), changes, metric, seed=seed)
    masked = dict(zip(map(rest_of, INDEX), found.masked.values(), strict=True))
    return replace(found, masked=masked, numbers=rng.permutation(100)[:examples].tolist(), signature="a:1|b:2")


def by_hand(found, halves, seed, n_resamples):
    """(kind, layer) -> the columns of `best`, by a plain loop over layers and heads."""
    shuffled = np.random.default_rng(seed).permutation(len(found.numbers))
    half = len(shuffled) // 2
    first, second = (shuffled[:half], shuffled[half:]) if halves else (shuffled, shuffled)
    weights = bootstrap_counts([found.numbers[row] for row in second], n_resamples, seed)[1:]
    changes = {head: found.masked[rest_of(head)][:, 0] - found.intact[:, 0] for head in INDEX}
    rows = {}
    for layer in dict.fromkeys(head[:2] for head in INDEX):
        own = [head for head in INDEX if head[:2] == layer]
        kept = max(own, key=lambda head: RIGHT[type(found.metric)] * changes[head][first].mean())
        draws = weights @ changes[kept][second] / weights.sum(1)
        p = stats.ttest_1samp(changes[kept][second], 0).pvalue
        seen = {"chosen": changes[kept][first].mean()} if halves else {}
        effect = {"effect": changes[kept][second].mean(), "effect.p": p}
        effect |= dict(zip(("effect.low", "effect.high"), np.quantile(draws, [0.025, 0.975]), strict=True))
        rows[layer] = {"head": kept[2]} | seen | effect
    return rows


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("metric", [Loss(), Accuracy()], ids=lambda metric: metric.name)
def test_the_best_head_of_each_layer_is_that_of_a_plain_loop(metric, halves):
    for seed in range(3):
        found = alone(metric, seed=seed)
        table = best(found, INDEX, halves=halves, n_resamples=50, seed=seed)
        expected = by_hand(found, halves, seed, 50)
        assert list(table.index) == list(expected)
        assert table.index.names == ["kind", "layer"]
        corrected = ["effect.holm", "effect.bh"]
        assert set(table) == {*next(iter(expected.values())), *corrected}
        for row, values in zip(table.to_dict("records"), expected.values(), strict=True):
            assert {name: row[name] for name in values} == pytest.approx(values, rel=1e-7, abs=1e-9)
        p = table["effect.p"].to_numpy()
        np.testing.assert_allclose(table[corrected].to_numpy().T, [holm(p), benjamini_hochberg(p)])


@pytest.mark.parametrize("metric", [Loss(), Accuracy()], ids=lambda metric: metric.name)
def test_what_is_good_in_one_metric_is_bad_in_another(metric):
    planted = {("enc-self", 0): 2, ("enc-self", 1): 0, ("cross", 0): 4}
    marked = [planted[head[:2]] == head[2] for head in INDEX]
    changes = np.random.default_rng(0).normal(0, 1, (len(INDEX), 40))
    changes += np.where(marked, 3 * RIGHT[type(metric)], 0)[:, None]
    for halves, seed in product((False, True), range(5)):
        table = best(alone(metric, changes, examples=40), INDEX, halves=halves, n_resamples=20, seed=seed)
        assert dict(zip(table.index, table["head"], strict=True)) == planted
        assert (table["effect.holm"] < 0.01).all()


@pytest.mark.slow
@pytest.mark.parametrize("metric", [Loss(), Accuracy()], ids=lambda metric: metric.name)
def test_effects_chosen_and_measured_on_the_same_examples_are_biased_and_on_halves_are_not(metric):
    gains = {False: [], True: []}
    for seed, halves in product(range(30), (False, True)):
        changes = np.random.default_rng(seed).normal(0, 1, (len(INDEX), 20))
        table = best(alone(metric, changes, examples=20), INDEX, halves=halves, n_resamples=0, seed=seed)
        gains[halves].append(RIGHT[type(metric)] * table["effect"].mean())
    means = {halves: np.mean(each) for halves, each in gains.items()}
    errors = {halves: np.std(each) / np.sqrt(len(each)) for halves, each in gains.items()}
    assert means[False] > 7 * errors[False]
    assert abs(means[True]) < 3 * errors[True]


def test_the_best_say_how_they_were_chosen():
    table = best(alone(), INDEX, halves=True, n_resamples=10, seed=4)
    expected = "a:1|b:2|plan:rest|halves:True|resamples:10|seed:4"
    assert {frame.provenance(table, name) for name in table} == {expected}


def test_two_halves_need_two_examples():
    found = alone(examples=2)
    assert len(best(found, INDEX, halves=True, n_resamples=10)) == 3
    with pytest.raises(ValueError, match=whole("too few examples for two halves: got 1; expected 2 or more")):
        best(found.take(np.array([0])), INDEX, halves=True)


# --- what is kept of examples ---------------------------------------------------------------------------------------

SETS = [
    frozenset([("cross", 1, 11), ("enc-self", 0, 2), ("cross", 1, 3)]),
    frozenset(),
    frozenset([("dec-self", 10, 0)]),
    frozenset([("dec-self", 2, 0)]),
]


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_sweep_comes_back_from_a_file(metric, tmp_path):
    rng = np.random.default_rng(0)
    values = rng.normal(3, 1, (1 + len(SETS), 7, 10 if isinstance(metric, (BLEU, F1)) else 2))
    values[2, 3:] = np.nan
    numbers = [5, 2, 9, 0, 30, 1, 7]
    masked = dict(zip(SETS, values[1:], strict=True))
    found = ExampleStats(values[0], masked, numbers, 3, metric, "model:a/b|text:0f|metric:x")
    again = ExampleStats.of(load_table(save_table(found.table(), tmp_path / "examples.parquet")), metric)
    equal(again, found)
    assert again.metric is metric
    assert all(type(number) is int for number in again.numbers)
    if metric.name in ("loss", "perplexity", "accuracy"):
        one, other = (effects(each, n_resamples=30) for each in (found, again))
        np.testing.assert_array_equal(one.draws, other.draws)
        pd.testing.assert_frame_equal(pd.DataFrame(one.columns), pd.DataFrame(other.columns), check_exact=True)


def test_a_table_of_examples_names_what_is_in_it(tmp_path):
    found = measured(np.ones(3), np.zeros((2, 3)))
    table = load_table(save_table(found.table(), tmp_path / "examples.parquet"))
    assert list(table) == ["closed", "example", "sum", "steps"]
    assert table["closed"].tolist() == ["intact"] * 3 + ["dec-self:0:0"] * 3 + ["dec-self:0:1"] * 3
    assert table["example"].tolist() == [0, 1, 2] * 3
    assert {text.partition("|")[0] for text in table.attrs["signatures"].values()} == {"too_long:0"}


def test_sets_of_heads_are_written_in_order():
    words = ["cross:1:3 cross:1:11 enc-self:0:2", "none", "dec-self:10:0", "dec-self:2:0"]
    assert [written(each) for each in SETS] == words


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


def tables(folder):
    """When each table was written, and what is in it."""
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.glob("*.parquet")}


def values_of(table):
    bare = table.copy()
    bare.attrs = {}
    return bare


def test_a_study_keeps_the_statistics_of_each_example(tmp_path):
    study = Study(tmp_path)
    table = kept(study)
    assert study.names() == ["ablation-loss-single-zero", "examples-loss-single-zero"]
    expected = ablate(zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(6), n_resamples=20)
    pd.testing.assert_frame_equal(values_of(table), values_of(expected))
    assert table.attrs["signatures"] == expected.attrs["signatures"]
    model = zoo.tiny("gpt2")
    found = sweep(model, tokens_of("gpt2"), corpus(6), singles(model), Loss())
    equal(ExampleStats.of(study.load("examples-loss-single-zero"), Loss()), found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "early"), [("head", False), ("head", True), ("all_but_one", True), ("layer", False), ("kind", True)]
)
def test_other_statistics_of_a_study_need_no_model(unit, early, tmp_path):
    study, options = Study(tmp_path), {"unit": unit, "early": early}
    kept(study, **options)
    before = tables(tmp_path)
    end = f"loss-{on_disk(unit)}-zero{'-early' if early else ''}.parquet"
    options |= {"n_resamples": 50} if early else {"n_resamples": 50, "seed": 1}  # a seed also says what is run early
    with broken():
        told = kept(study, zoo.tiny("gpt2"), **options)
    expected = ablate(zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(6), **options)
    pd.testing.assert_frame_equal(values_of(told), values_of(expected))
    assert told.attrs["signatures"] == expected.attrs["signatures"]
    assert tables(tmp_path)[f"examples-{end}"] == before[f"examples-{end}"]
    assert tables(tmp_path)[f"ablation-{end}"] != before[f"ablation-{end}"]


def test_a_study_keeps_the_best_heads_of_all_but_one(tmp_path):
    study, model = Study(tmp_path), zoo.tiny("marian")
    kept(study, name="marian", unit="all_but_one", metric="agreement", seed=3)
    names = {f"{name}-agreement-rest-zero" for name in ("ablation", "examples")}
    assert set(study.names()) == names | {"best-agreement-zero", "best-agreement-zero-halves"}
    variants = closing("marian", "all_but_one")
    found = sweep(model, tokens_of("marian"), corpus(6), variants, METRICS["agreement"])
    for name, halves in (("best-agreement-zero", False), ("best-agreement-zero-halves", True)):
        expected = best(found, families.head_index(model), halves=halves, n_resamples=20, seed=3)
        pd.testing.assert_frame_equal(values_of(study.load(name)), values_of(expected))
        assert study.load(name).attrs["signatures"] == expected.attrs["signatures"]


@pytest.mark.parametrize("options", [{"unit": "head"}, {"unit": "layer"}, {"unit": "all_but_one", "early": True}])
def test_other_units_have_no_best_heads(options, tmp_path):
    kept(Study(tmp_path), **options)
    assert not list(tmp_path.glob("best-*"))


def test_one_sentence_has_no_halves(tmp_path):
    kept(Study(tmp_path), text=corpus(1), unit="all_but_one")
    assert [path.name for path in tmp_path.glob("best-*")] == ["best-loss-zero.parquet"]


def test_one_sentence_that_is_not_too_long_has_no_halves(tmp_path):
    kept(Study(tmp_path), text=Corpus("letters", (*corpus(1), Sentence("a " * 60))), unit="all_but_one")
    assert [path.name for path in tmp_path.glob("best-*")] == ["best-loss-zero.parquet"]


def test_a_head_alone_in_its_layer_is_the_best_of_it(tmp_path):
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**zoo.GPT2 | {"n_head": 1})).eval()
    kept(Study(tmp_path), model, unit="all_but_one")
    table = Study(tmp_path).load("best-loss-zero")
    assert table["head"].tolist() == [0, 0]
    assert table["effect"].tolist() == [0, 0]


def longer(model):
    model.generation_config.max_new_tokens = 6
    return model


ELSE = {
    "model": lambda: {"model": terse(seed=1)},
    "corpus": lambda: {"text": corpus(7)},
    "generation": lambda: {"model": longer(zoo.tiny("marian"))},
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ELSE)
def test_what_was_made_from_something_else_is_made_again(what, tmp_path, caplog):
    options = {"metric": "chrf", "unit": "kind", "name": "marian", "text": corpus(3)}
    kept(Study(tmp_path), terse(), **options)
    other = {"model": terse()} | ELSE[what]()
    found = kept(Study(tmp_path, overwrite=True), **options | other)
    expected = ablate(
        other["model"], tokens_of("marian"), other.get("text", corpus(3)), metric="chrf", unit="kind", n_resamples=20
    )
    pd.testing.assert_frame_equal(values_of(found), values_of(expected))
    end = ("was made with other options: computed again", "ablation-chrf-kind-zero", "examples-chrf-kind-zero")
    assert all(message.endswith(end) for message in caplog.messages)
    assert 1 <= len(caplog.messages) <= 2


# --- sets of heads --------------------------------------------------------------------------------------------------

NAMED = {
    "two": [("dec-self", 1, 3), ("dec-self", 0, 1)],
    "none": [],
    "a layer": [("dec-self", 1, head) for head in range(4)],
    "the same two": (("dec-self", 0, 1), ("dec-self", 1, 3)),
    "one": [["dec-self", 0, 0]],
}


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
        assert row[f"ablation[{metric}].p"] == 1


def test_a_set_that_is_named_twice_is_tested_once():
    table = sets()
    assert table.loc["two"].tolist() == table.loc["the same two"].tolist()
    once = table.drop("the same two")
    np.testing.assert_allclose(once["ablation[loss].holm"], holm(once["ablation[loss].p"].to_numpy()))


def test_single_heads_as_sets_are_those_of_ablate():
    every = {str(head): [head] for head in families.head_index(zoo.tiny("gpt2"))}
    table = ablate(zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(6), n_resamples=50)
    close(sets(every), table, size=mean("gpt2", frozenset()))


def test_a_table_of_sets_says_what_was_measured():
    fields = dict(field.partition(":")[::2] for field in frame.provenance(sets(seed=2), "ablation[loss].p").split("|"))
    expected = {
        "corpus": "letters",
        "text": corpus(6).hash,
        "examples": "6",
        "fill": "zero",
        "resamples": "50",
    }
    assert expected | {"seed": "2", "intact": f"{mean('gpt2', frozenset()):.6g}"} == {
        name: fields[name] for name in [*expected, "seed", "intact"]
    }


def test_a_set_with_a_head_that_there_is_not():
    message = "no head ('cross', 0, 0) in GPT2LMHeadModel, which has dec-self 2 layers of 4 heads"
    with pytest.raises(ValueError, match=whole(message)):
        sets({"one": [("dec-self", 0, 0)], "other": [("cross", 0, 0)]})
