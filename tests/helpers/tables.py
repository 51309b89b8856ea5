"""Tables of random numbers, and what makes two tables the same."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from headroles.tables import frame

DETERMINISTIC = settings(
    derandomize=True, database=None, deadline=None, max_examples=30, suppress_health_check=list(HealthCheck)
)
SIZES = {("enc-self", 0): 3, ("enc-self", 1): 2, ("dec-self", 0): 2, ("cross", 0): 1}
INDEX = frame.index(SIZES)
TAKEN = "resamples:"  # where resamples are kept; hypothesis finds the word in our source, and draws it now and then
NAMES = st.sampled_from(["kind", "head", "a[b c].d"]) | st.text(st.characters(codec="utf-8"), max_size=12).filter(
    lambda name: not name.startswith(TAKEN)
)


def table(*names, draws=(), index=INDEX, seed=0):
    """A table of random numbers, `draws` of its columns with resamples."""
    rng = np.random.default_rng(seed)
    columns = {name: rng.normal(size=len(index)) for name in names}
    resampled = {name: rng.normal(size=(len(index), 6)).astype(np.float32) for name in draws}
    return frame.table(columns, index, {name: f"score:{name}|seed:{seed}" for name in names}, draws=resampled)


def same(one, other):
    """The same values, rows, signatures, recipe and resamples."""
    pd.testing.assert_frame_equal(one, other, check_index_type=not one.empty)
    assert one.index.equals(other.index)
    assert list(one.index.names) == list(other.index.names)
    mine, theirs = frame.resamples(one), frame.resamples(other)
    assert {name: one.attrs[name] for name in one.attrs if name != "resamples"} == {
        name: other.attrs[name] for name in other.attrs if name != "resamples"
    }
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name])
        assert mine[name].dtype == theirs[name].dtype == np.float32
