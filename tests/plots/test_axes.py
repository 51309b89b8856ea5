"""Every figure lies within its page, and tables that cannot be drawn are refused."""

from __future__ import annotations

from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.drawn import assert_within_the_page, column, distances, index, syntax, table_of_roles
from helpers.relations import NOBODY, effects, told
from helpers.relations import index as heads

import headroles as hr
from headroles import plots

pytestmark = pytest.mark.usefixtures("nothing_shown")


@pytest.mark.slow
def test_every_figure_can_be_rendered_and_lies_within_its_page() -> None:
    drawn = [
        plots.heatmap(column(index(enc_self=(6, 12)), name="a name that is rather long [of its detail]")),
        plots.roles(table_of_roles()),
        plots.offsets(distances())[0],
        plots.dependency(syntax()),
    ]
    for ax in drawn:
        assert_within_the_page(ax)


ONE, BOTH = column(index(enc_self=(1, 2))), column(index(enc_self=(1, 2), cross=(1, 2)))
OTHER = pd.DataFrame({"x": [1]})
ROLELESS = told(heads(layers=1), rarity=[0] * 8)
REFUSED = {
    "several kinds": (lambda: plots.heatmap(BOTH), "kind must be one of enc-self, cross, got None"),
    "no such kind": (lambda: plots.heatmap(ONE, kind="dec-self"), "kind must be one of enc-self, got 'dec-self'"),
    "order": (lambda: plots.heatmap(ONE, order="rank"), "order must be one of head, sorted, got 'rank'"),  # type: ignore[arg-type]
    "a table": (lambda: plots.heatmap(ONE.to_frame()), "not a column of numbers: got a DataFrame"),  # type: ignore[arg-type]
    "no numbers": (lambda: plots.heatmap(ONE.astype(object)), "not a column of numbers: got a Series .object."),
    "no values": (lambda: plots.heatmap(ONE * np.nan), "nothing to draw: 'confidence' has no value for any of 2 heads"),
    "no values of any kind": (lambda: plots.heatmaps(BOTH * np.nan), "nothing to draw: .* any of 4 heads"),
    "a list": (lambda: plots.heatmap([0.1, 0.2]), r"not a column of numbers: got \[0.1, 0.2\]"),  # type: ignore[arg-type]
    "no index": (lambda: plots.heatmap(ONE.reset_index(drop=True)), "not a head table: .* 2 rows, index None"),
    "no rows": (lambda: plots.heatmap(ONE.iloc[:0]), "nothing to draw: .* any of 0 heads"),
    "rows twice": (lambda: plots.heatmap(pd.concat([ONE, ONE])), "not a head table: .* 4 rows"),
    "no relevance": (lambda: plots.relevance(ONE * np.nan), "nothing to draw: 'confidence'"),
    "no roles": (lambda: plots.roles(ONE.to_frame()), "not a table of roles: expected columns .stability"),
    "no syntax": (lambda: plots.dependency(ONE.to_frame()), "no values of syntax: got a DataFrame .confidence."),
    "few words": (lambda: plots.dependency(_few()), "nothing to draw: no relation has 10 words; got o→v"),
    "no effects": (lambda: plots.histogram(OTHER), r"not a table of hr.ablate: .* expected one column ablation\[...\]"),
    "other heads": (lambda: plots.agreement(_tested(1), _tested(2)),
        "the tables are of different heads: got 8 and 16 rows, 8 in common"),
    "kind of functions": (
        lambda: plots.functions(OTHER.assign(kind="cross", function="none", count=1, heads=1), kind="enc-self"),
        "kind must be one of cross, got 'enc-self'",
    ),
    "no survival": (lambda: plots.by_layer(OTHER), "not a table of survival: got "),
    "no changes": (lambda: plots.role_changes(hr.role_changes(ROLELESS, {8: ROLELESS})),
        "nothing to draw: no head has a role, before or after"),
    "no relation": (lambda: plots.relation(_unrelated()), f"nothing to draw: {NOBODY}"),
    **{
        f"not of {function.__name__}": (partial(function, OTHER), f"not a table of {made_by}.*: got .*x.* 1 rows")
        for function, made_by in {
            plots.survival: "hr.sparsity_sweep", plots.by_kind: "hr.sparsity_sweep",
            plots.functions: "hr.sparsity_sweep", plots.gates: "hr.prune", plots.compare_pruning: "hr.compare_pruning",
            plots.efficiency: "hr.efficiency", plots.dynamics: "hr.dynamics", plots.settling: "hr.dynamics",
            plots.offsets: "hr.data.offsets", plots.budget: "hr.cache_budget",
            plots.conservation: "headroles.scores.lrp.conservation", plots.relation: "hr.relate"
        }.items()
    },
}  # fmt: skip


def _few() -> pd.DataFrame:
    return syntax().filter(like="obj dep>head").assign(**{"syntax[obj dep>head].words": 2})


def _tested(layers: int) -> pd.DataFrame:
    table = effects(heads(layers=layers), loss=range(8 * layers))
    return table.assign(**{f"ablation[loss].{test}": 0.5 for test in ("p", "holm")})


def _unrelated() -> pd.DataFrame:
    return hr.relate(ROLELESS, effects(heads(layers=1), loss=range(8)), n_resamples=0, n_permutations=9)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_drawn_is_refused_and_leaves_no_figure(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()
    assert plt.get_fignums() == []
