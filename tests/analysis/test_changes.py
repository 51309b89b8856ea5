"""Changes count who kept, lost or took over a role, and hold the true difference of two models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.relations import index, told
from scipy import stats

import headroles as hr
from headroles.analysis import changes, intervals
from headroles.analysis.intervals import Array
from headroles.tables import frame


def test_drift_counts_who_kept_lost_left_and_took_over():
    before = told(index(layers=1, many=6), rarity=[1, 1, 1, 0, 0, 0])
    left = frame.index({("enc-self", 0): [0, 1, 3, 5]})
    after = told(left, rarity=[1, 0, 1, 0])
    row = hr.role_changes(before, after).iloc[0].drop("role")
    assert row.to_dict() == {"before": 3, "kept": 1, "lost": 1, "removed": 1, "unknown": 0, "new": 1, "after": 2}
    several = hr.role_changes(before, {6: before, 4: after})
    assert several[["heads", "after"]].to_numpy().tolist() == [[6, 3], [4, 2]]


def test_a_role_that_was_not_measured_afterwards_is_unknown():
    """By another corpus or another list of scores: a variant, a whole role, or single heads without a number."""
    heads = index(layers=1, many=5)
    before = told(heads, rarity=[1, 1, 0, 0, 0], minus=[1, 1, 0, 0, 0], plus=[0, 0, 1, 0, 0])
    after = told(heads, plus=[0, 0, 0, 1, 0])
    table = hr.role_changes(before, after).set_index("role")
    columns = ["before", "kept", "lost", "removed", "unknown", "new", "after"]
    assert table.loc["positional", columns].tolist() == [3, 0, 1, 0, 2, 1, 1]  # of two the previous token
    assert table.loc["rare", columns].tolist() == [2, 0, 0, 0, 2, 0, 0]
    assert hr.role_changes(after, before)[columns].iloc[0].tolist() == [1, 0, 1, 0, 0, 1, 1]
    missing = hr.role_changes(told(heads, rarity=[1, 1, 0, np.nan, 0]), told(heads, rarity=[1, np.nan, np.nan, 1, 1]))
    assert missing[columns].iloc[0].tolist() == [2, 1, 0, 0, 1, 1, 2]


# --- two models ------------------------------------------------------------------------------------------------------

INDEX = frame.index({("enc-self", 0): 3, ("enc-self", 1): 3})
HELD = "position[-1]"


def shares(hits: Array, tokens: Array, *, text: str = "a", resamples: int = 200, seed: int = 0) -> Any:
    """A table of shares of tokens, by hits of [heads, sentences], with intervals and resamples as of `hr.score`."""
    counts = intervals.bootstrap_counts(range(len(tokens)), resamples, seed)
    drawn = (hits @ counts.T) / (tokens @ counts.T)
    totals = np.broadcast_to(tokens @ counts.T, drawn.shape)
    low, high = intervals.share(drawn, totals[:, 0], intervals.clusters(totals))
    columns = {HELD: drawn[:, 0], f"{HELD}.low": low, f"{HELD}.high": high}
    index = INDEX if len(hits) == len(INDEX) else frame.index({("enc-self", 0): len(hits)})
    signature = f"model:m|text:{text}|resamples:{resamples}|seed:{seed}|score:Position()"
    return frame.table(columns, index, signature, draws={HELD: drawn[:, 1:].astype(np.float32)})


def measured_twice(random: Any, *, heads: int = 6, sentences: int = 60, same: bool = True) -> list[Any]:
    """Tables of two models with chances .7 and .9 of a hit, whose sentences are hard for both if they are the same."""
    tokens = random.integers(5, 15, sentences).astype(float)
    ease = random.normal(size=(2, heads, sentences))
    ease[1] = ease[0] if same else ease[1]
    means = stats.norm.ppf([0.7, 0.9]) * np.sqrt(1.5)
    chances = [stats.norm.cdf(mean + one * np.sqrt(0.5)) for mean, one in zip(means, ease, strict=True)]
    hits = [random.binomial(tokens.astype(int), chance) for chance in chances]
    return [shares(part, tokens, text="a" if same else f"text {place}") for place, part in enumerate(hits)]


@pytest.mark.parametrize("same", [True, False])
def test_changes_and_their_ends_are_those_of_a_loop_over_heads(same):
    first, second = measured_twice(np.random.default_rng(0), same=same)
    table = hr.compare_models(first, second.sample(frac=1, random_state=1))
    draws = [frame.resamples_of(one, HELD) for one in (first, second)]
    for row, head in enumerate(INDEX):
        (a, l1, u1), (b, l2, u2) = (one.loc[head].tolist() for one in (first, second))
        r = np.corrcoef(draws[0][row], draws[1][row])[0, 1] if same else 0.0
        low = b - a - np.sqrt((b - l2) ** 2 + (u1 - a) ** 2 - 2 * r * (b - l2) * (u1 - a))
        high = b - a + np.sqrt((u2 - b) ** 2 + (a - l1) ** 2 - 2 * r * (u2 - b) * (a - l1))
        found = table.loc[head, [f"{HELD}.change{end}" for end in ("", ".low", ".high")]]
        np.testing.assert_allclose(found.to_numpy(float), [b - a, low, high], rtol=0, atol=1e-6)
    assert hr.provenance(table, f"{HELD}.change") == (
        f"compare:second less first|match:place|first:{hr.provenance(first, HELD)}|second:{hr.provenance(second, HELD)}"
    )


def test_intervals_hold_the_true_change_and_pairs_make_them_as_narrow_as_it_varies():
    for same in (True, False):
        random = np.random.default_rng(1)
        tables = [hr.compare_models(*measured_twice(random, heads=100, same=same)) for _ in range(6)]
        low, high, change = (
            np.concatenate([table[f"{HELD}.change{end}"] for table in tables]) for end in (".low", ".high", "")
        )
        assert 0.92 < ((low <= 0.2) & (high >= 0.2)).mean() < 0.98
        spread = 2 * stats.norm.ppf(0.975) * change.std()  # independent ones vary more
        assert (high - low).mean() == pytest.approx(spread, rel=0.1)


def test_without_resamples_or_with_an_unknown_seed_there_is_no_interval_on_the_same_text():
    first, second = measured_twice(np.random.default_rng(0))
    for other in (frame.bare(second), shares(np.ones((6, 60)), np.ones(60), seed=1)):
        table = hr.compare_models(first, other)
        assert table[f"{HELD}.change"].notna().all()
        assert table[[f"{HELD}.change.low", f"{HELD}.change.high"]].isna().all(axis=None)
    plain = frame.table({HELD: np.ones(6)}, INDEX, "text:a")
    assert list(hr.compare_models(plain, plain)) == ["gained", "lost", "unsure", f"{HELD}.change"]


def test_a_head_without_a_number_correlates_with_nothing(recwarn):
    """Such as rarity, where a text has no rare token: numpy warned of the mean of nothing."""
    one, other = np.array([[np.nan] * 3, [1, 2, 4], [1, 2, 4], [1, 1, 1]]), np.array([[1, 2, 4]] * 2 + [[4, 2, 1]] * 2)
    expected = [0, 1, np.corrcoef(one[2], other[2])[0, 1], 0]
    np.testing.assert_allclose(changes._correlations(one, other), expected, atol=1e-12)
    assert not recwarn.list


def test_roles_are_gained_and_lost_where_both_were_scored_and_unsure_near_the_threshold():
    tokens = np.full(40, 10.0)
    hits = [np.outer(rate, tokens) for rate in ([1, 0, 1, 0, 0, 1.0], [0, 1, 1, 0, 0, 1.0])]
    hits[1][3] = np.where(np.arange(40) < 36, 10, 1)  # .91, less in many resamples
    first, second = (shares(part, tokens) for part in hits)
    first = frame.join(first, frame.table({"rarity": np.ones(6)}, INDEX, "text:a"))
    table = hr.compare_models(first, second)
    assert table["lost"].tolist() == ["positional[-1]", "", "", "", "", ""]
    assert table["gained"].tolist() == ["", "positional[-1]", "", "positional[-1]", "", ""]
    assert table["unsure"].tolist() == ["", "", "", "positional[-1]", "", ""]
    assert f"{HELD}.change" in table
    assert "rarity.change" not in table


def test_matched_heads_of_a_shuffled_model_do_not_change(tmp_path):
    first, _ = measured_twice(np.random.default_rng(2))
    moved = [2, 0, 1, 4, 5, 3]  # the old number of each head
    values = {name: first[name].to_numpy()[moved] for name in first}
    draws = {HELD: frame.resamples_of(first, HELD)[moved]}
    second = frame.table(values, INDEX, hr.provenance(first, HELD), draws=draws)
    table = hr.compare_models(first, second, match=True)
    assert table["match.head"].tolist() == [1, 2, 0, 2, 0, 1]
    assert table[f"{HELD}.change"].abs().max() == 0
    assert (table[f"{HELD}.change.low"] <= 0).all()
    assert (table[f"{HELD}.change.high"] >= 0).all()
    assert not table["gained"].any()
    assert hr.compare_models(first, second)[f"{HELD}.change"].abs().max() > 0.01
    for name, part in (("a", first), ("b", second)):
        hr.Study(tmp_path / name).save("heads", part)
    pd.testing.assert_frame_equal(hr.compare_models(tmp_path / "a", hr.Study(tmp_path / "b"), match=True), table)
