"""The map of a budget shows exactly the table: an effect for each group, a frame around those that keep their cache."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

from headroles import plots
from headroles.tables import frame

matplotlib.use("agg")


def table(layers, groups=3):
    """A budget: layer 1 has a window."""
    rows = [("dec-self", layer, group) for layer in layers for group in range(groups)]
    index = pd.MultiIndex.from_tuples(rows, names=["kind", "layer", "group"])
    effect = np.random.default_rng(0).normal(0.1, 0.2, len(index))
    kept = (effect >= np.sort(effect)[-4]).astype(float)
    columns = {"effect": effect, "retrieval": kept, "streaming": 1 - kept}
    return frame.signed(pd.DataFrame(columns, index=index), "model:toy|sink:4|recent:256|shared:dec-self=3")


@pytest.mark.parametrize("deep", [False, True])
def test_a_map_has_the_effects_and_the_frames_of_the_table(deep):
    budget = table([0, 2, 3, *range(4, 20)] if deep else [0, 2, 3])
    ax = plots.budget(budget)
    drawn = ax.collections[0].get_array().reshape(-1, 20 if deep else 3)
    cells = drawn.T if deep else drawn  # [layer, group]
    for (_, layer, group), effect in budget["effect"].items():
        assert cells[layer, group] == pytest.approx(effect)
    assert np.ma.masked_invalid(cells[1]).mask.all()
    framed = [patch for patch in ax.patches if isinstance(patch, Rectangle) and not patch.get_fill()]
    places = sorted((int(patch.get_x()), int(patch.get_y()))[:: 1 if deep else -1] for patch in framed)
    assert places == [(layer, group) for _, layer, group in budget.index[budget["retrieval"] == 1]]
    low, high = ax.collections[0].get_clim()
    assert -low == high == budget["effect"].abs().max()
    assert ax.get_legend().get_texts()[0].get_text() == f"keeps its whole cache (4 of {len(budget)})"
    assert "key-value head" in (ax.get_ylabel() if deep else ax.get_xlabel())
    assert not ax.collections[1:]  # no lines between groups
    plt.close("all")


def test_another_table_is_refused():
    with pytest.raises(ValueError, match="not a table of hr.cache_budget"):
        plots.budget(table([0, 1])[["effect"]])
