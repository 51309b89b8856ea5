"""Statistics that were silently wrong: ties by rounding, resamples of another column, no spread taken for certainty."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

import headroles as hr
from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import Loss, Perplexity
from headroles.ablation.significance import effects
from headroles.tables import frame


def _roles(index, held):
    """A table of one role."""
    margin = np.where(held, 0.1, -0.1)
    columns = {"rare": held, "rare.value": margin, "rare.margin": margin, "rare.stability": np.ones(len(held))}
    return frame.table(columns, index, "by:hand")


# --- ties of permutations ---------------------------------------------------------------------------------------------


def _exact_p(held, y, layers):
    """Permutation p of a role within layers by all permutations in fractions, not studentised."""
    y, layer_sums, observed = [Fraction(float(value)) for value in y], [], Fraction(0)
    for layer in np.unique(layers):
        places = np.flatnonzero(layers == layer).tolist()
        count = int(held[places].sum())
        if not 0 < count < len(places):
            continue
        total = sum(y[place] for place in places)

        def distance(chosen, total=total, places=places):
            inside = sum(y[place] for place in chosen)
            return inside - len(chosen) * (total - inside) / (len(places) - len(chosen))

        layer_sums.append([distance(chosen) for chosen in itertools.combinations(places, count)])
        observed += distance([place for place in places if held[place]])
    permuted = [abs(sum(sums)) for sums in itertools.product(*layer_sums)]
    return float(np.mean([value >= abs(observed) for value in permuted]))


@pytest.mark.parametrize(
    ("seed", "heads", "offset", "dtype"),
    [(1, 2, 100, float), (7, 2, 1e4, float), (4, 2, 1e4, float), (3, 5, 0.3, float), (4, 3, 100, np.float32)],
)
def test_p_of_a_role_of_one_head_is_that_of_all_permutations(seed, heads, offset, dtype):
    random = np.random.default_rng(seed)
    y = (offset + random.normal(size=3 * heads) * 1e-3).astype(dtype)
    held = np.zeros(3 * heads, bool)
    held[heads + seed % heads] = True
    index = frame.index({("enc-self", layer): heads for layer in range(3)})
    outcomes = frame.table({"importance": y}, index, "by:hand")
    row = hr.relate(_roles(index, held), outcomes, n_resamples=0, n_permutations=4000).iloc[0]
    assert row["p"] == pytest.approx(_exact_p(held, y, np.repeat(range(3), heads)), abs=0.03)


def test_a_role_of_one_head_has_no_standard_error():
    from headroles.analysis.resampling import contrasts

    random = np.random.default_rng(0)
    y, members = random.normal(size=(40, 12)) + 0.1, np.ones((12, 1), bool)
    for values in y:
        assert np.isnan(contrasts(np.eye(12, dtype=bool), values, members)[1]).all()


# --- tests of skewed means --------------------------------------------------------------------------------------------


def _stats(changes, metric=None):
    """Example statistics of variants that change the loss so much: [variant, example]."""
    intact = np.stack([np.ones(changes.shape[1]), np.ones(changes.shape[1])], axis=1)
    masked = {
        frozenset({("enc-self", 0, variant)}): intact + np.stack([row, np.zeros_like(row)], axis=1)
        for variant, row in enumerate(changes)
    }
    return ExampleStats(intact, masked, list(range(len(intact))), 0, metric or Loss())


@pytest.mark.parametrize("shape", ["rare", "lognormal"])
def test_p_of_a_mean_effect_with_rare_large_changes_is_seldom_small(shape):
    random, size = np.random.default_rng(0), (2000, 100)
    if shape == "rare":  # 3 % of the examples change much, the others a little the other way
        changes = np.where(random.random(size) < 0.03, 1, -0.03 / 0.97) + 0.02 * random.normal(size=size)
    else:
        changes = np.exp(random.normal(size=size)) - np.exp(0.5)
    p = effects(_stats(changes), n_resamples=0).columns[".p"]
    assert (p < 0.05).mean() < 0.065  # 0.11 and 0.08 by t


@pytest.mark.parametrize(("sentences", "alike"), [(30, 0.3), (60, 0.6)])
def test_a_mean_weight_at_the_threshold_seldom_exceeds_it(sentences, alike):
    heads, n_resamples, random = 1500, 300, np.random.default_rng(1)
    counts = random.poisson(1.0, (n_resamples, sentences))
    means = random.beta(0.9 * (1 / alike - 1), 0.1 * (1 / alike - 1), (heads, sentences))
    draws = means @ counts.T / counts.sum(1)
    low, high = np.quantile(draws, [0.025, 0.975], axis=1)
    columns = {"sink[first]": means.mean(1), "sink[first].low": low, "sink[first].high": high}
    index = frame.index({("enc-self", 0): heads})
    table = frame.table(columns, index, f"sentences:{sentences}", draws={"sink[first]": draws.astype(np.float32)})
    found = hr.roles(table, thresholds={"sink": 0.9}, test=True)["sink[first].p"]
    assert (found < 0.05).mean() < 0.075  # 0.13 to 0.17 by the interval's percentiles


# --- no spread is not certainty ---------------------------------------------------------------------------------------


def test_an_effect_without_examples_has_no_p_and_is_not_among_the_tests():
    changes = np.random.default_rng(0).normal(1, 1, (3, 40))
    changes[2] = np.nan
    for metric in (Loss(), Perplexity()):
        columns = effects(_stats(changes, metric), n_resamples=200).columns
        assert np.isnan([columns[f".{name}"][2] for name in ("low", "high", "p", "holm", "bh")]).all()
        p = columns[".p"][:2]
        np.testing.assert_allclose(columns[".holm"][:2], np.minimum(2 * p.min(), 1) if len(set(p)) == 1 else
            [max(2 * p.min(), value) if value > p.min() else 2 * value for value in p])  # fmt: skip


def test_a_value_of_one_sentence_differs_from_one_of_two():
    from headroles.analysis.intervals import single

    counts = np.random.default_rng(0).poisson(1.0, (500, 3))
    values = np.array([0.5, 0.2, 0.9])
    with np.errstate(invalid="ignore"):
        draws = np.stack([counts[:, :n] @ values[:n] / counts[:, :n].sum(1) for n in (1, 2, 3)])
    assert single(draws).tolist() == [True, False, False]


def test_a_corpus_of_one_sentence_has_values_and_no_intervals(caplog):
    model = hr.tiny_model("bert")
    from headroles.testing.case import Case

    case = Case(model)
    table = hr.score(model, case.tokenizer, case.corpus[:1], ["confidence", "entropy"], n_resamples=200)
    ends = [name for name in table if name.endswith((".low", ".high"))]
    assert table[["confidence", "entropy"]].notna().all(axis=None)
    assert len(ends) == 4
    assert table[ends].isna().all(axis=None)
    assert "no interval of confidence, entropy: measured on a single sentence" in caplog.text
    role = hr.roles(table, [hr.Role("sharp", "confidence", 0.1)], test=True)
    assert role[["sharp.stability", "sharp.p", "sharp.holm"]].isna().all(axis=None)


def test_rarity_has_no_interval_where_ties_decide_which_tokens_are_frequent(caplog):
    from headroles.testing.case import Case

    case = Case(hr.tiny_model("bert"))
    counts: dict[str, int] = {}
    for word in " ".join(sentence.text for sentence in case.corpus).split():
        counts[word] = counts.get(word, 0) + 1
    repeated = sum(count > 1 for count in counts.values())
    assert 0 < repeated < len(counts)
    for frequent, reference in ((repeated, None), (repeated + 1, None), (repeated + 1, case.corpus)):
        caplog.clear()
        rarity = hr.scores.list_scores()["rarity"](frequent=frequent)
        table = hr.score(case.model, case.tokenizer, case.corpus, [rarity], n_resamples=50, reference=reference)
        known = frequent == repeated or reference is not None
        assert table["rarity"].notna().all()
        assert (table["rarity.low"].notna() == known).all()
        assert frame.resamples(table) is not None
        assert np.isnan(frame.resamples(table).draws["rarity"]).all() != known
        said = f"no interval of rarity: the {frequent} most frequent tokens are not known, since {repeated} occur more"
        assert (said in caplog.text) != known


# --- chance within layers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("match", ["layer", "model", "same"])
def test_heads_that_do_not_return_are_not_stable_because_layers_differ(match):
    index, small = frame.index({("enc-self", layer): 4 for layer in range(4)}), 0
    layer = np.repeat(np.arange(4.0), 4)
    for seed in range(20):
        random = np.random.default_rng(seed)
        tables = [
            frame.table({name: layer + random.normal(size=16) for name in ("entropy", "distance")}, index, "by:hand")
            for _ in range(2)
        ]
        found = hr.stability(tables, match=match, n_permutations=59, seed=seed).set_index(["quantity", "of"])
        small += found.loc[("similarity", "all heads"), "p"] < 0.05
    assert small <= 4  # of 20; more with probability .003. All by heads that change their layer


def test_what_no_permutation_changes_has_no_p():
    index = frame.index({("enc-self", layer): 4 for layer in range(2)})
    tables = [frame.table({"rarity": np.random.default_rng(seed).random(8)}, index, "by:hand") for seed in range(2)]
    found = hr.stability(tables, match="same", n_permutations=59).set_index(["quantity", "of"])
    assert found.loc[("layers", "rare"), ["chance", "chance.low", "p", "holm"]].isna().all()
    assert found.loc[("similarity", "all heads"), "p"] > 0


# --- shares at a ceiling ----------------------------------------------------------------------------------------------


def test_a_share_of_all_examples_has_an_exact_interval():
    from headroles.ablation.evaluation import worth
    from headroles.ablation.metrics import Accuracy
    from headroles.analysis.intervals import exact_share

    for hits, of in ((10, 10), (0, 10), (3, 7), (59, 60)):
        expected = scipy.stats.binomtest(hits, of).proportion_ci(0.95)
        assert exact_share(hits / of, of) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert exact_share(1.0, 10)[0] == pytest.approx(0.6915, abs=1e-4)
    right = np.ones((10, 2))
    found = worth(ExampleStats(right, {}, list(range(10)), 0, Accuracy()))
    assert (found["value"], found["high"]) == (1, 1)
    assert found["low"] == pytest.approx(0.6915, abs=1e-4)  # 1 by the resamples
    right[0, 0] = 0
    assert worth(ExampleStats(right, {}, list(range(10)), 0, Accuracy()))["low"] < 0.9
