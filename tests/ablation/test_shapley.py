"""Shapley values: those of an enumeration, with intervals that hold them; a head that does nothing."""

from __future__ import annotations

from itertools import combinations, permutations
from math import comb

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.ablations import given, mean
from helpers.close import bound, close
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.ablation import shapley
from headroles.ablation.metrics import as_metric
from headroles.ablation.shapley import Game
from headroles.ablation.sweep import Sweep
from headroles.models.head_model import HeadModel

HEADS = [("dec-self", 0, 1), ("dec-self", 0, 3), ("dec-self", 1, 0), ("dec-self", 1, 1), ("dec-self", 1, 2)]


def worth(coalition, heads=HEADS):
    """The loss of a plain forward without the other heads."""
    return mean("gpt2", frozenset(head for place, head in enumerate(heads) if place not in coalition))


def subsets(places):
    return [set(chosen) for size in range(len(places) + 1) for chosen in combinations(places, size)]


def enumerated(heads=HEADS):
    """Shapley values: sums over all coalitions (Shapley 1953)."""
    size = len(heads)
    table = {frozenset(chosen): worth(chosen, heads) for chosen in subsets(range(size))}
    values = []
    for head in range(size):
        rest = [frozenset(chosen) for chosen in subsets([other for other in range(size) if other != head])]
        values.append(sum((table[s | {head}] - table[s]) / (size * comb(size - 1, len(s))) for s in rest))
    return np.array(values), table


def game(heads=HEADS, metric="loss", n_resamples=0, seed=0):
    model, tokenizer, text = given("gpt2")
    return Game(Sweep(HeadModel(model, tokenizer), text, as_metric(metric)), heads, n_resamples, seed)


def hits(estimate, expected, runs=40):
    """Share of t intervals over samples that hold the exact value, and the mean of the estimates."""
    found, held = [], []
    for seed in range(runs):
        parts = estimate(seed)
        half = 2.05 * parts.std(0, ddof=1) / np.sqrt(len(parts))
        held.append(np.abs(parts.mean(0) - expected) <= half)
        found.append(parts.mean(0))
    return np.mean(held), np.array(found)


@pytest.mark.slow
def test_estimates_are_unbiased_and_their_intervals_hold_the_enumeration():
    played, (expected, table) = game(), enumerated()
    size = max(map(abs, table.values()))

    def estimate(seed):
        played.seed = seed
        return shapley._permutations(played, 24, 0.0)[0]

    held, found = hits(estimate, expected)
    assert 0.85 < held <= 1
    error = found.std(0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - expected) < 4 * error + bound(size)).all()
    assert np.abs(found.mean(0) - expected).max() < 0.1 * np.abs(expected).max()


@pytest.mark.parametrize("metric", ["loss", "perplexity"])
def test_values_sum_to_the_metric_of_the_whole_minus_that_of_nothing(metric):
    sets = {"none": HEADS}
    table = hr.shapley_values(*given("gpt2"), metric=metric, heads=HEADS, n_permutations=6)
    name = table.columns[0]
    assert name == f"shapley[{metric}]"
    effect = hr.ablate(*given("gpt2"), sets=sets, metric=metric, n_resamples=0).iloc[0, 0]
    intact = hr.evaluate(*given("gpt2"), [metric], n_resamples=0)["value"].iloc[0]
    close(table[name].sum(), -effect, size=intact)
    assert list(table.index) == HEADS
    assert (table[f"{name}.low"] < table[name]).all()
    assert (table[name] < table[f"{name}.high"]).all()


def test_a_truncated_order_is_that_of_a_plain_loop():
    whole, none = worth(range(5)), worth(())
    for truncation in (0.3, 0.7):
        orders = [np.random.default_rng(3).permutation(5)]
        expected = np.zeros(5)
        left, last = set(range(5)), whole
        for head in orders[0]:
            if abs(last - none) < truncation * abs(whole - none):
                break
            left.remove(head)
            expected[head] = last - worth(left)
            last = worth(left)
        options = {"n_permutations": 1, "truncation": truncation, "n_resamples": 0, "seed": 3}
        found = hr.shapley_values(*given("gpt2"), heads=HEADS, **options)
        close(found["shapley[loss]"], expected, size=max(whole, none))
        assert abs(found["shapley[loss]"].sum() - (whole - none)) <= truncation * abs(whole - none)


def test_a_truncated_run_of_many_blocks_leaves_out_at_most_its_share(monkeypatch):
    monkeypatch.setattr(shapley, "BLOCK", 2)
    played = game()
    whole, none = played.values([range(5), ()])[:, 0]
    parts, _ = shapley._permutations(played, 30, 0.5)
    exact, _ = shapley._permutations(played, 30, 0.0)
    cut = parts != exact
    assert cut.any()
    assert not cut.all()
    assert (parts[cut] == 0).all()
    assert (np.abs(parts.sum(1) - (whole - none)) <= 0.5 * abs(whole - none)).all()


def test_a_head_that_writes_nothing_has_no_value():
    model, tokenizer, text = zoo.tiny("gpt2", seed=1), tokens_of("gpt2"), corpus(4)
    with torch.no_grad():
        model.transformer.h[0].attn.c_proj.weight[8:16] = 0  # of head 1; the rows of Conv1D are inputs
    values = hr.shapley_values(model, tokenizer, text, heads=HEADS, n_permutations=3, n_resamples=0)
    loss = hr.evaluate(model, tokenizer, text, ["loss"], n_resamples=0)["value"].iloc[0]
    idle = values.loc[HEADS[0], "shapley[loss]"]
    assert abs(idle) < bound(loss)
    assert values["shapley[loss]"].abs().drop([HEADS[0]]).min() > bound(loss)


def test_a_metric_without_a_gradient_is_divided_exactly():
    """Two heads have two orders: their mean divides by hand what plain ablations say."""
    model, tokenizer, text = given("classifier")
    heads = [("enc-self", 0, 0), ("enc-self", 1, 2)]
    both = hr.evaluate(model, tokenizer, text, ["accuracy"], n_resamples=0)["value"].iloc[0]
    sets = {"none": heads, "first": heads[1:], "second": heads[:1]}  # what is masked where these are left
    none, first, second = (
        both + hr.ablate(model, tokenizer, text, sets=sets, metric="accuracy", n_resamples=0).iloc[:, 0]
    )
    expected = [np.mean([first - none, both - second]), np.mean([second - none, both - first])]
    orders = {tuple(np.random.default_rng(seed).permutation(2)): seed for seed in range(9)}
    assert set(orders) == set(permutations(range(2)))
    options = {"metric": "accuracy", "heads": heads, "n_permutations": 1, "n_resamples": 0}
    tables = [hr.shapley_values(model, tokenizer, text, **options, seed=seed) for seed in orders.values()]
    close(np.mean([table["shapley[accuracy]"] for table in tables], axis=0), expected, size=1)


def test_a_study_keeps_values_and_computes_others_again(tmp_path, monkeypatch):
    options = {"heads": HEADS[:3], "n_resamples": 5, "study": tmp_path, "n_permutations": 2}
    stored = hr.shapley_values(*given("gpt2"), **options)
    plain = hr.shapley_values(*given("gpt2"), **options | {"study": None})
    assert stored.equals(plain)
    assert list(tmp_path.glob("*.parquet")) == [tmp_path / "shapley-loss.parquet"]
    with monkeypatch.context() as patched:
        patched.setattr(Sweep, "run", lambda *_, **__: pytest.fail("computed again"))
        assert hr.shapley_values(*given("gpt2"), **options).equals(stored)
    other = hr.shapley_values(*given("gpt2"), **options | {"heads": HEADS[1:4]})
    assert not other.index.equals(stored.index)
