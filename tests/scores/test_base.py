"""Every score conforms: sums add over any split, order and padding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.attending import collate, columns, rows
from helpers.letters import DETERMINISTIC, corpus, same, sums, tokenizer, total
from hypothesis import given

import headroles as hr
from headroles.scores.base import Score
from headroles.scores.registry import list_scores

SHARES = {"share", "accuracy"}  # the first word of the docstring of a score whose every column is in [0, 1] ...
RANGES = {  # ... and the columns of which that does not say it
    "confidence": (0, 1),
    "sink[special]": (0, 1),
    "sink[first]": (0, 1),
    "position[offset]": (-2, 2),
    "alignment[monotone]": (-1, 1),
    "alignment[diagonal]": (0, 1),
    "distance": (0, math.inf),
    "entropy": (0, math.inf),
}
COUNTS = (".words",)  # what columns end in that say how many there were, 0 where there were none


# --- the suite ------------------------------------------------------------------------------------------------------


def split(score, rows, _, whole):
    """The sums of a batch are those of its parts."""
    for cut in range(1, len(rows)):
        parts = [sums(score, collate(part)) for part in (rows[:cut], rows[cut:])]
        same(whole, {name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def order(score, rows, _, whole):
    same(whole, {name: values.flip(0) for name, values in sums(score, collate(rows[::-1])).items()})


def padding(score, rows, _, whole):
    same(whole, sums(score, collate(rows, extra=3)))


def leading_dimensions(score, rows, observation, whole):
    """Resamples are finished together as each by itself."""
    weights = torch.from_numpy(np.random.default_rng(0).poisson(1.0, (2, 3, len(rows)))).double()
    heads_per_batch = score.compute(total(whole, weights))
    for i in np.ndindex(2, 3):
        same({name: values[i] for name, values in heads_per_batch.items()}, score.compute(total(whole, weights[i])))
    assert all(values.shape == (2, 3, observation.weights.shape[1]) for values in heads_per_batch.values())


def purity(score, rows, observation, whole):
    """What is seen is not changed, and seen again is the same."""
    same(sums(score, observation), whole)
    before = collate(rows)
    for seen, fresh in ((observation, before), (observation.queries, before.queries), (observation.keys, before.keys)):
        for name in ("weights",) if seen is observation else ("ids", "content"):
            assert torch.equal(getattr(seen, name), getattr(fresh, name))


def ranges(score, _, __, whole):
    share = (type(score).__doc__ or "").split()[0].lower() in SHARES
    for name, values in score.compute(total(whole)).items():
        low, high = RANGES.get(name, (0, 1) if share and not name.endswith(COUNTS) else (-math.inf, math.inf))
        there = values[~values.isnan()]
        assert ((there >= low - 1e-6) & (there <= high + 1e-6)).all(), (name, values)


def nothing_only_where_nothing_was(score, _, observation, whole):
    """NaN stands where there was nothing to do, for all heads alike, and is nowhere else; nothing is infinite."""
    found = score.compute(total(whole))
    lacking = any((values == 0).any() for values in total(score.denominators(observation)).values())
    for name, values in found.items():
        assert not values.isinf().any(), name
        assert not values.isnan().any() or (lacking and values.isnan().all()), name
    never = score.compute({name: 0 * values for name, values in total(whole).items()})
    for name, values in never.items():
        assert (values == 0).all() if name.endswith(COUNTS) else values.isnan().all(), name


SUITE = (split, order, padding, leading_dimensions, purity, columns, ranges, nothing_only_where_nothing_was)


def conform(score):
    """Run the suite on a score, for many batches of the kinds it is for."""

    @DETERMINISTIC
    @given(rows(score.kinds))
    def run(rows):
        observation = collate(rows)
        whole = sums(score, observation)
        for check in SUITE:
            check(score, rows, observation, whole)

    run()


@pytest.mark.parametrize("name", [name for name, cls in list_scores().items() if issubclass(cls, Score)])
def test_every_score_conforms(name):
    conform(list_scores()[name]())


# --- a score that a reader writes -----------------------------------------------------------------------------------


def untouched():
    """A new score, in fifteen lines."""

    @dataclass(frozen=True)
    class Untouched(Score):
        """Share of real keys that no real query looks at most."""

        def update(self, observation):
            top = observation.top[1][..., None] == torch.arange(
                observation.weights.shape[-1]
            )  # [batch, heads, query, key]
            touched = (top & observation.queries.content[:, None, :, None]).any(2)
            return {"rest": (observation.keys.content[:, None] & ~touched).sum(-1)}

        def denominators(self, observation):
            return {"keys": observation.keys.content.sum(-1, keepdim=True)}

        def compute(self, sums):
            return {"untouched": sums["rest"] / sums["keys"]}

    return Untouched


@pytest.mark.usefixtures("forgotten")
def test_a_new_score_is_one_like_any_other():
    new = untouched()
    conform(new())
    assert list_scores()["untouched"] is new
    table = hr.score(zoo.tiny("marian"), tokenizer(), corpus(), ["untouched", "confidence"], n_resamples=20)
    assert list(table) == [f"{name}{end}" for name in ("untouched", "confidence") for end in ("", ".low", ".high")]
    assert table.notna().all(axis=None)
    pd.testing.assert_frame_equal(
        hr.score(zoo.tiny("marian"), tokenizer(), corpus(), new(), n_resamples=20), table.filter(like="untouched")
    )


@pytest.mark.usefixtures("forgotten")
def test_no_new_score_takes_a_name_of_ours():
    ours = list_scores()["rarity"]
    own = type("Rarity", (Score,), {})
    assert own.name() == "rarity"
    assert list_scores()["rarity"] is ours
