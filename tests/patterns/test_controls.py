"""Controls: shifted and shuffled patterns are as sharp, elsewhere, and do not depend on what else is in the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers import zoo
from helpers.imposed import at, table
from helpers.letters import corpus, observation, tokens_of

import headroles as hr
from headroles.models.replacements import needing
from headroles.patterns import Absent, Dependency, Shift, Shuffle, Where
from headroles.patterns.simple import First, Induction, Offset, Previous, Rarest, Special, Streaming, Uniform

KINDS = ("enc-self", "dec-self")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", [-3, -1, 1, 2, 9])
def test_a_shift_moves_or_is_reflected(kind, by):
    special, size = (0, 5), 7
    seen = observation(torch.ones(size, size), kind=kind, special=special)
    expected = []
    for query in range(size):
        target = query - 1
        sees = lambda key: 0 <= key < size and key not in special and (kind != "dec-self" or key <= query)  # noqa: B023, E731
        places = [place for place in (target + by, target - by) if sees(place)] if sees(target) else []
        expected.append(at(places[0], size).tolist() if places else [0.0] * size)
    assert table(Shift(Previous(), by), seen) == expected
    assert any(map(any, expected)) == (by != 9)


@pytest.mark.parametrize("by", [-1, 1])
def test_of_the_first_and_the_last_token_each_is_shifted_inwards(by):
    seen = observation(torch.ones(6, 6), special=(0, 5))
    half = (at(1, 6) + at(4, 6)) / 2
    assert table(Special(), seen)[1:5] == [((at(0, 6) + at(5, 6)) / 2).tolist()] * 4
    assert table(Shift(Special(), by), seen)[1:5] == [half.tolist()] * 4


@pytest.mark.parametrize(
    "control", [Shift(Offset(-3), -1), Shift(Offset(-1), -1), Shuffle(Offset(-1)), Shuffle(First())]
)
def test_controls_are_within_the_window(control):
    size, window = 12, 4
    places = torch.arange(size)
    apart = places[:, None] - places
    seen = replace(
        observation(torch.ones(size, size), kind="dec-self"), allowed=((apart >= 0) & (apart < window))[None, None]
    )
    weights = torch.tensor(table(control, seen))
    own = torch.tensor(table(control.pattern, seen))
    assert not weights[(apart < 0) | (apart >= window)].any()
    assert (weights.sum(-1) == own.sum(-1)).all()  # where the pattern applies, its control does
    assert (weights != own).any(-1)[own.any(-1)].float().mean() > 0.5


@pytest.mark.parametrize("pattern", [Previous(), First(), Special(), Streaming(2, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_shuffled_weights_are_the_same_on_keys_that_may_be_seen(pattern, kind):
    weights = torch.rand(9, 9).tril() if kind == "dec-self" else torch.rand(9, 9)
    seen = observation(weights / weights.sum(-1, keepdim=True), kind=kind, special=(0, 8))
    own, shuffled = (made.targets(seen).reshape(9, 9) for made in (pattern, Shuffle(pattern)))
    moved = shuffled.sum(-1) > 0
    assert int(moved.sum()) >= (5 if kind == "enc-self" else 3)
    assert torch.equal(shuffled[moved].sort(-1).values, own[moved].sort(-1).values)
    assert not shuffled[:, [0, 8]].any()
    assert kind == "enc-self" or not shuffled.triu(1).any()
    lost = ~moved & (own.sum(-1) > 0)  # more targets than keys
    keys = torch.arange(9).clamp(max=7) if kind == "dec-self" else torch.full((9,), 7)
    assert ((own > 0).sum(-1) > keys)[lost].all()


def test_a_shuffle_has_a_seed():
    seen = observation(torch.ones(20, 20))
    same, again, other = (table(Shuffle(Offset(-1), seed), seen) for seed in (0, 0, 1))
    assert same == again
    places = [[max(range(20), key=row.__getitem__) for row in rows[1:]] for rows in (same, other)]
    assert places[0] != places[1]
    assert len(set(places[0])) > 8


def test_a_shuffle_is_the_same_however_long_the_longest_text_is():
    short, long = (
        torch.tensor(table(Shuffle(First()), observation(torch.ones(n, n), kind="dec-self"))) for n in (9, 40)
    )
    assert torch.equal(short, long[:9, :9])
    model, text = zoo.tiny("gpt2"), corpus(8)
    effects = [
        hr.ablate(
            model, tokens_of("gpt2"), text, replacement=Shuffle(Previous()), n_resamples=0, max_tokens=size,
        ).iloc[:, 0]
        for size in (64, 4096)
    ]  # fmt: skip
    assert effects[0].abs().max() > 1e-2
    assert effects[0].to_numpy() == pytest.approx(effects[1].to_numpy(), abs=1e-5 * effects[0].abs().max())


def test_another_pattern_where_one_applies():
    ids = [7, 8, 9, 7, 8, 5, 9, 8]
    seen = observation(torch.ones(8, 8), kind="dec-self", ids=ids)
    where = [sum(row) > 0 for row in table(Induction(), seen)]
    assert where == [word in ids[:place] for place, word in enumerate(ids)]
    expected = [at(place - 1, 8).tolist() if applies else [0.0] * 8 for place, applies in enumerate(where)]
    assert table(Where(Induction(), Previous()), seen) == expected
    assert Where(Induction(), Previous()).label == "where=induction,previous"
    of_words = Where(Dependency("obj"), Rarest())
    assert of_words.needs == needing("trees", "counts")
    assert of_words.kinds == Dependency.kinds


def test_absent_heads_put_out_nothing_where_a_pattern_applies():
    model, text = zoo.tiny("gpt2"), corpus(3)
    options = {"n_resamples": 0, "sets": {"one": [("dec-self", 1, 2)]}}
    everywhere, zero, nowhere = (
        hr.ablate(model, tokens_of("gpt2"), text, replacement=made, **options).iloc[0, 0]
        for made in (Absent(Uniform()), "zero", Absent(Offset(-100)))
    )
    assert everywhere == pytest.approx(zero, rel=1e-6)
    assert abs(zero) > 1e-4
    assert nowhere == pytest.approx(0, abs=1e-6)
