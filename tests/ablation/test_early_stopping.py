"""What is stopped early decides as the whole corpus would, and what was kept of each example tells the rest."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import hypothesis
import numpy as np
import pandas as pd
import pytest
from helpers import zoo
from helpers.ablations import Stopping, column, files, measured, sweep, terse
from helpers.close import close
from helpers.letters import DETERMINISTIC, corpus, tokens_of
from helpers.objectives import classifier
from helpers.sweeps import equal, singles
from hypothesis import strategies as st
from scipy import stats

from headroles.ablation.early_stopping import FIRST, GROWTH, looks, scores, staged, stopped
from headroles.ablation.effects import ablate
from headroles.ablation.metrics import Loss, Perplexity
from headroles.ablation.significance import effects
from headroles.ablation.sweep import Sweep
from headroles.data.corpus import Corpus, Sentence
from headroles.models.head_model import HeadModel
from headroles.tables import frame

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
@hypothesis.given(st.integers(1, 10**6), st.integers(2, 10**4))
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
@hypothesis.given(SIZES, SHARES)
def test_both_sides_are_treated_alike(z, share):
    assert clear(z, share) == clear(-z, share)


@DETERMINISTIC
@hypothesis.given(SHARES)
def test_a_huge_effect_is_always_clear(share):
    assert clear(4, share)
    assert clear(np.inf, share)
    assert clear(-np.inf, share)
    assert not clear(stats.norm.isf(RISK / 2) - 0.001, share)


def test_no_effect_is_clear_late_and_not_early():
    assert [clear(0, share) for share in (0.05, 0.2, 0.35, 0.4, 0.7, 0.99)] == [False] * 3 + [True] * 3


@DETERMINISTIC
@hypothesis.given(SIZES, SIZES, SHARES)
def test_what_is_not_to_be_found_is_smaller_than_what_may_be(one, other, share):
    """Without a risk no effect is there for sure."""
    small, large = sorted((one, other))
    assert clear(small, share, risk=0) or not clear(large, share, risk=0)


@DETERMINISTIC
@hypothesis.given(SIZES, SHARES, SHARES)
def test_what_is_clear_on_a_part_is_clear_on_a_larger_part(z, one, other):
    early, late = sorted((one, other))
    assert clear(z, late) or not clear(z, early)


@DETERMINISTIC
@hypothesis.given(st.lists(st.floats(-8, 8), max_size=5), SHARES)
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
