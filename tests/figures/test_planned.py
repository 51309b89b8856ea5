"""Contrasts of planned studies on small tables with a known answer: Whisper's heads, fewer heads or fewer layers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.scripts import script

from headroles.tables.frame import LEVELS


@pytest.mark.parametrize(("layers", "heads", "p"), [(3, 4, 1 / 64), (6, 8, 1e-5)])  # all choices; some of 262,144
def test_heads_that_pass_are_compared_with_others_of_their_layers(layers, heads, p):
    index = pd.MultiIndex.from_product([["cross"], range(layers + 1), range(heads)], names=LEVELS)
    passes = np.array([head == 1 and layer < layers for _, layer, head in index])  # none in the last layer
    left = pd.Series(np.where([layer == layers for _, layer, _ in index], 0.7, passes), index)
    found = script("models/whisper").contrast(left, passes)
    assert (found["passing"], found["role"], found["other"], found["difference"]) == (layers, 1, 0, 1)
    assert found["p"] == pytest.approx(p, abs=1e-9 if layers == 3 else 4e-5)
    assert script("models/whisper").contrast(left, passes & (index.get_level_values(1) < 2)) == {
        "passing": 2,
        "p": pytest.approx(np.nan, nan_ok=True),
    }


def test_groups_are_compared_with_layers_at_the_same_time():
    """Time .8 lies halfway between 0 layers (1.0) and 2 layers (.6): their losses are 1 and 2, text by text."""
    make = script("questions/smaller-models")
    texts = np.array([0.1, -0.1, 0.2, -0.2])
    found = make._difference(1.2 + 2 * texts, 0.8, {0: (1.0, 1 + texts), 2: (0.6, 2 + texts), 4: (0.3, 9 + texts)})
    assert (found["layers"], found["difference"]) == (pytest.approx(1.5), pytest.approx(-0.3))
    assert np.isnan(make._difference(texts, 0.2, {0: (1.0, texts), 2: (0.6, texts)})["p"])
    rows = [("layers", "effect", 2, 0.9), ("layers", "effect", 4, 0.7), ("layers", "effect", 6, 0.5)]
    rows += [("groups", "ablation", 68, 0.95), ("groups", "importance", 45, 0.6), ("groups", "chance 0", 45, 0.1)]
    speed = pd.DataFrame(rows, columns=["what", "way", "size", "time"]).assign(phase="generation", context=2000)
    assert make._beside(speed) == {2, 4, 6}
