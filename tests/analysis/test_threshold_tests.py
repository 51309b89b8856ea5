"""Tests of roles: p of the score test and of t by other ways, what they reject without an effect, and corrections."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.close import close
from helpers.skewness import hall
from scipy import stats

import headroles as hr
from headroles.analysis import intervals
from headroles.analysis.role_rules import Role
from headroles.tables import frame

RARE = [Role("rare", "rarity", 0.5, strictly=True)]
POSITIONAL = [Role("positional", r"position\[([+-]1)\]", 0.9)]
SYNTACTIC = [Role("syntactic", r"syntax\[([^\]]+)\]", 0.1, over=".baseline")]
SYNTAX = "syntax[obj dep>head]"


def table(columns, draws=None, *, sentences=100):
    index = frame.index({("enc-self", 0): len(next(iter(columns.values())))})
    return frame.table(columns, index, f"model:m|sentences:{sentences}", draws=draws)


def sampled(runs, chance, *, sentences=100, alike=0.1, seed=0, resamples=200):
    """Shares of queries in sentences that are alike: a head per run, with its interval and resamples."""
    random = np.random.default_rng(seed)
    weights = np.concatenate([np.ones((1, sentences)), random.poisson(1.0, (resamples, sentences))])
    queries = np.clip(random.lognormal(2.7, 0.5, (runs, sentences)).round(), 2, 60)
    own = random.beta(chance * (1 / alike - 1), (1 - chance) * (1 / alike - 1), (runs, sentences))
    totals = queries @ weights.T
    values = random.binomial(queries.astype(int), own) @ weights.T / totals
    return values, intervals.share(values, totals[:, 0], intervals.clusters(totals))


def named(name, values, ends):
    return {name: values[:, 0], f"{name}.low": ends[0], f"{name}.high": ends[1]}


def test_p_is_that_of_a_score_test_on_as_many_queries_as_the_interval_says():
    shares, queries, sentences = np.array([0.05, 0.3, 0.48, 0.52, 0.6, 0.9]), 400, 30
    ends = intervals.wilson(shares, queries, stats.t.isf(0.025, sentences - 1))
    found = hr.roles(table(named("rarity", shares[:, None], ends), sentences=sentences), RARE, test=True)
    expected = [stats.t.sf((share - 0.5) / math.sqrt(0.25 / queries), sentences - 1) for share in shares]
    close(found["rare.p"], np.maximum(expected, 0.5**30), size=1)


def test_p_is_below_its_half_exactly_where_the_interval_is_above_the_threshold():
    values, ends = sampled(300, 0.55)
    for threshold in (0.45, 0.5, 0.55):
        found = hr.roles(table(named("rarity", values, ends)), RARE, thresholds={"rare": threshold}, test=True)
        assert ((found["rare.p"] < 0.025) == (ends[0] > threshold)).all()
        assert ((found["rare.p"] > 0.975) == (ends[1] < threshold)).all()
    assert (ends[0] > 0.5).any()
    assert (ends[0] < 0.5).any()


def test_a_score_over_its_baseline_has_a_t_test_of_the_difference_that_allows_for_skewness():
    values, _ = sampled(4, 0.6)
    baseline, _ = sampled(4, 0.45, seed=1)
    draws = {SYNTAX: values[:, 1:].astype(np.float32), f"{SYNTAX}.baseline": baseline[:, 1:].astype(np.float32)}
    columns = {SYNTAX: values[:, 0], f"{SYNTAX}.baseline": baseline[:, 0], f"{SYNTAX}.words": np.full(4, 51.0)}
    found = hr.roles(table(columns, draws), SYNTACTIC, test=True)["syntactic[obj dep>head].p"]
    expected = []
    for row in range(4):
        differences = [
            float(a) - float(b) for a, b in zip(draws[SYNTAX][row], draws[f"{SYNTAX}.baseline"][row], strict=True)
        ]
        observed = values[row, 0] - baseline[row, 0]
        error = math.sqrt(sum((one - observed) ** 2 for one in differences) / len(differences))
        skewness = sum((one - observed) ** 3 for one in differences) / len(differences) / error**3
        ratio = (observed - 0.1) / error
        expected.append(stats.t.sf(min(ratio, hall(ratio, skewness)), 50))  # of 51 words, fewer than sentences
    close(found, expected, size=1)


def test_without_an_effect_p_is_seldom_small():
    """Heads at the threshold itself; the binomial of all their queries would reject many of them."""
    runs = 400
    for chance, roles, name in ((0.5, RARE, "rarity"), (0.9, POSITIONAL, "position[-1]")):
        values, ends = sampled(runs, chance)
        p = hr.roles(table(named(name, values, ends)), roles, test=True).filter(like=".p").iloc[:, 0]
        for level in (0.01, 0.05):
            assert (p < level).sum() <= stats.binom.ppf(0.999, runs, 1.3 * level)
        assert (p < 0.1).sum() >= stats.binom.ppf(0.001, runs, 0.05)  # and not because nothing is ever rejected
    values, baseline = sampled(runs, 0.6)[0], sampled(runs, 0.5, seed=1)[0]
    draws = {SYNTAX: values[:, 1:].astype(np.float32), f"{SYNTAX}.baseline": baseline[:, 1:].astype(np.float32)}
    columns = {SYNTAX: values[:, 0], f"{SYNTAX}.baseline": baseline[:, 0]}
    p = hr.roles(table(columns, draws), SYNTACTIC, test=True)["syntactic[obj dep>head].p"]
    assert stats.binom.ppf(0.001, runs, 0.03) <= (p < 0.05).sum() <= stats.binom.ppf(0.999, runs, 0.065)


def test_corrections_are_over_all_heads_and_variants_of_a_role():
    columns = {}
    for name, chance in (("position[-1]", 0.93), ("position[+1]", 0.91)):
        columns |= named(name, *sampled(5, chance, seed=len(columns)))
    columns["position[+1]"][2] = np.nan  # a head that the score does not apply to
    found = hr.roles(table(columns), POSITIONAL, test=True)
    p = np.concatenate([found[f"positional[{way}1].p"] for way in "-+"])
    known = np.flatnonzero(np.isfinite(p))
    assert len(known) == 9
    order, largest = known[np.argsort(p[known])], 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, p[place] * (9 - rank)))
        bh = min(min(1.0, p[other] * 9 / (at + 1)) for at, other in enumerate(order) if at >= rank)
        way, head = "-+"[place // 5], place % 5
        close(found[f"positional[{way}1].holm"].iloc[head], largest)
        close(found[f"positional[{way}1].bh"].iloc[head], bh)
    assert np.isnan(found["positional[+1].holm"].iloc[2])
    assert "|test:one-sided" in frame.provenance(found, "positional[-1].holm")


def test_without_tests_the_table_is_as_before():
    values, ends = sampled(5, 0.5)
    scores = table(named("rarity", values, ends))
    assert list(hr.roles(scores, RARE)) == ["rare", "rare.value", "rare.margin", "rare.stability"]
    assert list(hr.roles(scores, RARE, test=True))[4:] == ["rare.p", "rare.holm", "rare.bh"]


def test_certain_scores_are_no_more_certain_than_their_sentences():
    ends = {"position[-1].low": [1.0, 0.0, 0.9], "position[-1].high": [1.0, 0.0, 0.9]}
    found = hr.roles(table({"position[-1]": [1.0, 0.0, 0.9]} | ends, sentences=5), POSITIONAL, test=True)
    assert found["positional[-1].p"].iloc[:2].tolist() == [1 / 32, 1.0]  # five sentences, all on one side
    assert np.isnan(found["positional[-1].p"].iloc[2])  # at the threshold, and no spread


def test_decisions_are_counted():
    values, ends = sampled(60, 0.5, alike=0.05)
    values[:20], ends = (
        values[:20] + 0.3,
        (np.r_[ends[0][:20] + 0.3, ends[0][20:]], np.r_[ends[1][:20] + 0.3, ends[1][20:]]),
    )
    found = hr.roles(table(named("rarity", values, ends)), RARE, test=True)
    row = hr.analysis.role_decisions(found).loc["rare"]
    held, sure = found["rare"].to_numpy(), found["rare.holm"].to_numpy() < 0.05
    assert not (~held & sure).any()  # what exceeds a threshold significantly exceeds it
    assert row[["heads", "threshold", "holm"]].tolist() == [60, held.sum(), sure.sum()]
    assert row["threshold"] > row["p"] >= row["bh"] >= row["holm"] >= 20


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
