"""Roles at the edges of their thresholds, their stability from resamples, and no torch above the line."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headroles.analysis import role_rules
from headroles.analysis.intervals import rounded
from headroles.analysis.role_rules import ROLES, Role, roles
from headroles.tables import frame
from headroles.tables.io import load_table, save_table

DETERMINISTIC = settings(derandomize=True, database=None, deadline=None, max_examples=100)
SYNTAX = "syntax[nsubj dep>head]"
nan = float("nan")


def table(columns, draws=None, *, index=None):
    """A signed table of one layer; `draws` are the resampled values of each head."""
    size = len(next(iter(columns.values())))
    index = frame.index({("enc-self", 0): size}) if index is None else index
    resampled = {name: np.array(rows, dtype=np.float32) for name, rows in (draws or {}).items()}
    return frame.table(columns, index, {name: f"score:{name}" for name in columns}, draws=resampled)


def shares(**bounds):
    return st.lists(st.floats(0, 1, **bounds), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("column", "value", "variant", "held"),
    [
        ("position[-1]", 0.9, "positional[-1]", True),
        ("position[+1]", 0.9, "positional[+1]", True),
        ("position[+1]", 9 / 10, "positional[+1]", True),
        ("position[-1]", 0.9 - 1e-6, "positional[-1]", False),
        ("rarity", 0.5, "rare", False),
        ("rarity", 0.5 + 1e-6, "rare", True),
        ("sink[special]", 0.5, "sink[special]", False),
        ("sink[first]", 0.5 + 1e-6, "sink[first]", True),
        ("induction", 0.5, "induction", False),
        ("induction", 0.5 + 1e-6, "induction", True),
        ("duplicate", 0.5, "duplicate", False),
        ("duplicate", 0.5 + 1e-6, "duplicate", True),
        ("retrieval", 0.1, "retrieval", False),
        ("retrieval", 0.1 + 1e-6, "retrieval", True),
        ("retrieval-norm", 0.1 + 1e-6, "retrieval-norm", True),
        ("position-norm[-1]", 0.9 - 1e-6, "positional-norm[-1]", False),
        ("position-nosink[+1]", 0.9, "positional-nosink[+1]", True),
        ("alignment[monotone]", 0.5, "alignment[monotone]", True),
        ("alignment[monotone]", 0.5 - 1e-6, "alignment[monotone]", False),
    ],
)
def test_a_role_at_its_threshold(column, value, variant, held):
    told = roles(table({column: [value]}))
    assert list(told) == [variant, f"{variant}.value", f"{variant}.margin", f"{variant}.stability"]
    assert told[variant].tolist() == [held]
    assert told[f"{variant}.value"].tolist() == [value]


@pytest.mark.parametrize(
    ("accuracy", "baseline", "held"),
    [(0.594, 0.494, True), (0.593, 0.494, False), (0.1, 0.0, True), (0.3, 0.2, True), (0.8, 0.7, True)],
)  # fmt: skip
def test_a_margin_of_ten_points_is_enough(accuracy, baseline, held):
    told = roles(table({SYNTAX: [accuracy], f"{SYNTAX}.baseline": [baseline]}))
    assert told["syntactic[nsubj dep>head]"].tolist() == [held]
    assert told["syntactic[nsubj dep>head].value"].tolist() == [accuracy]
    assert told["syntactic[nsubj dep>head].margin"].tolist() == [accuracy - baseline - 0.1]


def test_roles_without_the_sink_stand_in_for_those_with_it():
    values = {"position[-1]": [0.95, 0.1, 0.1], "position-nosink[-1]": [0.96, 0.92, 0.1], "sink[first]": [0, 0.9, 0.9]}
    told = roles(table(values | {"rarity": [0.6, 0.1, 0.1]}))
    assert role_rules.names(told) == ["positional[-1]", "positional-nosink[-1]", "rare", "sink[first]"]
    shown = role_rules.prefer_nosink_roles(told)
    assert role_rules.names(shown) == ["positional[-1]", "rare", "sink[first]"]  # of rare there is no other
    assert shown["positional[-1]"].tolist() == [True, True, False]
    assert shown["positional[-1].value"].tolist() == [0.96, 0.92, 0.1]
    assert told["positional[-1]"].tolist() == [True, False, False]
    assert set(shown.attrs["signatures"]) == {*shown}
    usual = roles(table({"rarity": [0.6]}))
    pd.testing.assert_frame_equal(role_rules.prefer_nosink_roles(usual), usual)


def test_only_columns_of_scores_make_roles():
    names = ["position[-2]", "position[best]", "position[offset]", "position[-1].low", "alignment[diagonal]",
             "confidence", f"{SYNTAX}.high", "rarity.high", "position[-1]"]  # fmt: skip
    assert role_rules.names(roles(table({name: [1.0] for name in names}))) == ["positional[-1]"]


def test_a_column_with_brackets_is_its_own_name():
    """As a regular expression the brackets would be a set of letters."""
    made = table({"pattern[last share]": [0.9, 0.1]})
    assert roles(made, [Role("last", "pattern[last share]", 0.5)])["last"].tolist() == [True, False]


def test_a_table_is_tellable_where_one_of_its_columns_makes_a_role():
    assert role_rules.assignable(table({"confidence": [0.1], "rarity": [0.1]}))
    assert not role_rules.assignable(table({"confidence": [0.1], "rarity.low": [0.1]}))
    assert role_rules.assignable(table({"confidence": [0.1]}), [Role("sure", "confidence", 0.9)])


def test_every_role_but_the_sink_is_of_heads_that_do_something():
    assert sorted([*role_rules.SPECIAL, "sink"]) == sorted(one.name for one in ROLES)


def test_margins_are_those_of_the_nearest_role_that_does_something():
    made = table({"rarity": [0.4, 0.9, nan], "position[-1]": [0.7, 0.95, nan], "sink[first]": [1.0, 1.0, 1.0]})
    found = role_rules.margins(made)
    assert found.tolist() == pytest.approx([-0.1, 0.4, nan], nan_ok=True)
    assert (found.name, found.index.equals(made.index)) == ("margin", True)
    assert role_rules.margins(made, ["positional"]).tolist() == pytest.approx([-0.2, 0.05, nan], nan_ok=True)


def test_a_head_can_have_several_roles():
    made = table({"position[-1]": [0.95, 0.2], "position[+1]": [0, 0.9], "rarity": [0.7, 0.6], "sink[first]": [0.1, 0]})
    told = roles(made)
    assert role_rules.names(told) == ["positional[-1]", "positional[+1]", "rare", "sink[first]"]
    assert told[role_rules.names(told)].to_numpy().tolist() == [[True, False, True, False], [False, True, True, False]]
    assert told.index.equals(made.index)


@pytest.mark.slow
@DETERMINISTIC
@given(values=shares(), limits=st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted), strictly=st.booleans())
def test_roles_are_monotone_in_their_thresholds(values, limits, strictly):
    made = table({"rarity": values}, {"rarity": [values[::-1]] * len(values)})
    low, high = (roles(made, [Role("some", "rarity", limit, strictly=strictly)]) for limit in limits)
    assert (low["some"] | ~high["some"]).all()
    assert (low["some.stability"] >= high["some.stability"]).all()


@pytest.mark.slow
@DETERMINISTIC
@given(values=shares(width=32), limit=st.floats(0, 1, width=32), strictly=st.booleans())
def test_stability_is_the_share_of_resamples_that_have_the_role(values, limit, strictly):
    """A head whose resamples are all its value is wholly stable, whichever it is; the share is counted exactly."""
    far = [value for value in values if value == limit or abs(value - limit) > 2 * role_rules.COARSE]
    made = table({"rarity": [0.0]}, {"rarity": [far]}) if far else table({"rarity": [0.0]})
    told = roles(made, [Role("some", "rarity", limit, strictly=strictly)])
    having = [value > limit if strictly else value >= limit for value in far]
    assert told["some.stability"].tolist() == pytest.approx([np.mean(having) if far else nan], nan_ok=True)


def test_stability_of_a_margin_is_that_over_the_baseline_of_the_same_resample():
    made = table(
        {SYNTAX: [0.6, 0.6], f"{SYNTAX}.baseline": [0.4, 0.4]},
        {SYNTAX: [[0.6, 0.5, 0.7, 0.4], [0.6, 0.6, 0.6, 0.6]],
         f"{SYNTAX}.baseline": [[0.5, 0.45, 0.3, 0.4], [0.2, 0.55, 0.5, 0.45]]},
    )  # fmt: skip
    assert roles(made)["syntactic[nsubj dep>head].stability"].tolist() == [2 / 4, 3 / 4]


@pytest.mark.parametrize("value", [0.9, 0.3, 0.7])
def test_resamples_at_the_threshold_have_the_role_though_they_are_rounded(value):
    made = table({"position[-1]": [value]}, {"position[-1]": rounded(np.full((1, 5), value))})
    told = roles(made, thresholds={"positional": value})
    assert told["positional[-1]"].tolist() == [True]
    assert told["positional[-1].stability"].tolist() == [1]


def test_resamples_with_just_the_margin_have_the_role_though_both_sides_are_rounded():
    margin = 819.9 * 2**-13  # of steps that are kept: some baselines are rounded up, and their accuracies down
    baseline = np.linspace(0.5, 0.89, 1000)[None]
    made = table(
        {SYNTAX: [0.7], f"{SYNTAX}.baseline": [0.6]},
        {SYNTAX: rounded(baseline + margin), f"{SYNTAX}.baseline": rounded(baseline)},
    )
    told = roles(made, thresholds={"syntactic": margin})
    assert told["syntactic[nsubj dep>head].stability"].tolist() == [1]


@pytest.mark.parametrize(
    ("values", "resampled", "held", "stability"),
    [
        ([0.9], [[0.9, nan, nan, 0.8]], [True], [0.5]),
        ([0.9, nan], [[0.9, 0.9], [nan, nan]], [True, False], [1, nan]),
        ([0.9], None, [True], [nan]),
    ],
)
def test_without_a_value_or_resamples_there_is_no_role_or_no_stability(values, resampled, held, stability):
    made = table({"rarity": values, "sink[first]": values}, None if resampled is None else {"rarity": resampled})
    told = roles(made)
    assert told["rare"].tolist() == held
    assert told["rare.stability"].tolist() == pytest.approx(stability, nan_ok=True)
    assert (told["rare"].dtype, told["rare.stability"].dtype) == (bool, float)
    assert told["sink[first].stability"].isna().all()  # another column, without resamples


def test_stability_follows_rows_that_were_turned_or_left_out():
    made = table({"rarity": [0.9, 0.1, 0.6]}, {"rarity": [[0.9, 0.8], [0.9, 0.1], [0.2, 0.1]]})
    for part in (made, made.iloc[::-1], made.iloc[1:], made[made["rarity"] > 0.5]):
        told = roles(part)["rare.stability"]
        expected = pd.Series([1, 0.5, 0], index=made.index, dtype=float)[part.index]
        assert told.tolist() == expected.tolist()


def test_a_threshold_can_be_changed_and_is_signed():
    made = table({"rarity": [0.6, 0.9], "sink[first]": [0.6, 0.9]})
    told = roles(made, thresholds={"rare": 0.8})
    assert told["rare"].tolist() == [False, True]
    assert told["sink[first]"].tolist() == [True, True]
    expected = f"score:rarity|role:{Role('rare', 'rarity', 0.8, strictly=True)}"
    assert {frame.provenance(told, f"rare{part}") for part in ("", ".value", ".stability")} == {expected}


def test_a_role_of_ones_own():
    wide = Role("wide", r"entropy", 2.0)
    far = Role("back", r"position\[-(\d)\]", 0.3)
    told = roles(table({"entropy": [1.9, 2.0], "position[-2]": [0.3, 0.2]}), [wide, far])
    assert role_rules.names(told) == ["wide", "back[2]"]
    assert told[["wide", "back[2]"]].to_numpy().tolist() == [[False, True], [True, False]]


def test_the_roles_a_head_has_are_listed():
    index = frame.index({("enc-self", 0): 2, ("cross", 0): 1})
    columns = {"position[-1]": [0.2, 0.95, nan], "rarity": [0.6, 0.7, 0.8]}
    told = roles(table(columns, {"rarity": [[1], [0], [1]]}, index=index))
    listed = role_rules.held(told)
    rows = [("enc-self", 0, 0, "rare", 0.6, 1.0), ("enc-self", 0, 1, "positional[-1]", 0.95, nan),
            ("enc-self", 0, 1, "rare", 0.7, 0.0), ("cross", 0, 0, "rare", 0.8, 1.0)]  # fmt: skip
    expected = pd.DataFrame(rows, columns=["kind", "layer", "head", "role", "value", "stability"])
    pd.testing.assert_frame_equal(listed, expected, check_dtype=False)
    none = role_rules.held(roles(table({"rarity": [0.1, nan]})))
    assert (len(none), list(none)) == (0, list(expected))


def test_roles_are_listed_by_the_names_of_heads():
    index = frame.index({("enc-self", 0): 2, ("cross", 0): 1})
    columns = {"position[-1]": [0.95, 0.2, nan], "rarity": [0.6, 0.1, 0.8], "rarity-nosink": [0.7, 0.2, 0.2]}
    columns |= {"sink[special]": [0.1, 0.6, 0.1], "sink[first]": [0.1, 0.7, 0.1]}
    told = roles(table(columns, index=index))
    listed = {"enc-self L0H0": "positional[-1], rare", "enc-self L0H1": "sink"}  # rare without the sink, a sink once
    assert role_rules.by_head(told).to_dict() == listed
    assert str(role_rules.by_head(roles(table({"rarity": [0.1, 0.6]})))).startswith("head\nL0H1    rare\n")


def test_roles_that_are_shown_as_one_are_sure_if_one_of_them_is():
    told = roles(table({"sink[special]": [0.8, 0.8], "sink[first]": [0.9, 0.9], "rarity": [0.6, 0.6]}))
    told = told.assign(**{"sink[special].stability": [1.0, 0.9], "sink[first].stability": 0.93, "rare.stability": 0.94})
    doubts = role_rules.listed(told).groupby(["head", "text"])["unsure"].agg(list).to_dict()
    assert doubts == {(0, "rare"): [True], (0, "sink"): [False] * 2, (1, "rare"): [True], (1, "sink"): [True] * 2}


def test_the_roles_of_a_head_are_listed_in_the_order_of_the_table():
    told = roles(table({name: [1.0] * 30 for name in ("sink[first]", "rarity", "position[-1]", "induction")}))
    assert role_rules.held(told)["role"].tolist() == role_rules.names(told) * 30


@pytest.mark.slow
def test_from_scores_to_figures_and_the_report_no_torch_is_needed(tmp_path):
    save_table(table({"rarity": np.linspace(0, 1, 6)}, {"rarity": np.ones((6, 4))}), tmp_path / "heads.parquet")
    code = "import sys, headroles as hr\nplace = sys.argv[1]\nhr.roles(place); hr.plot(place)\n"
    code += "hr.report(place, f'{place}/r.html'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "stanza", "captum"} & {*done.stdout.split()}
    assert len(role_rules.held(load_table(tmp_path / "roles.parquet"))) == 3
    assert {"heatmap-rarity.png", "roles-enc-self.png", "r.html"} <= {path.name for path in tmp_path.iterdir()}


def test_a_column_that_was_assigned_has_no_stability():
    values = {"rarity": np.linspace(0.9, 0.1, 6), "confidence": np.full(6, 0.1)}
    draws = {name: np.repeat(column[:, None], 8, 1) for name, column in values.items()}
    made = frame.table(values, frame.index({("enc-self", 0): 6}), "by:hand", draws=draws)
    assert roles(made)["rare.stability"].notna().all()
    made["rarity"] = made["confidence"]
    assert roles(made)["rare.stability"].isna().all()
