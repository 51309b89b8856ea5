"""What a report says of heads is what the tables say."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from helpers.reports import SIZES, flat, same, told

import headroles as hr
from headroles.analysis import role_rules
from headroles.analysis.role_rules import VERDICTS
from headroles.reports import results
from headroles.reports.contents import fate, measured, prunings
from headroles.reports.sources import Table
from headroles.tables import frame
from headroles.tables.io import save_table


@pytest.mark.slow
def test_measurements_are_those_of_the_tables(study, html):
    data, index = told(html), frame.index(SIZES)
    assert [tuple(head) for head in data["heads"]] == list(index)
    tables = {
        "made/heads": study.load("heads"),
        "made/ablation-loss-head-zero": study.load("ablation-loss-head-zero"),
        "made/circuits": study.load("circuits"),
    }
    assert [one["name"] for one in data["columns"]] == [
        *("confidence", "alignment[monotone]", "ablation[loss]", "copying", "position[-1]", "syntax[nsubj dep>head]")
    ]
    for column in data["columns"]:
        table = tables[column["from"]]
        same(column["values"], table[column["name"]])
        for part in {"low", "high", "p", "holm", "bh", "words", "baseline"} & set(column):
            same(column[part], table[f"{column['name']}.{part}"])
        ranks = table[column["name"]].groupby(level="kind").rank(ascending=False, method="min")
        same([one and one[0] for one in column["rank"]], ranks)
        assert column["of"] == {kind: int(table[column["name"]].xs(kind).notna().sum()) for kind in frame.KINDS}
        assert column["about"].endswith(".")


@pytest.mark.parametrize("metric", ["loss", "bleu"])
def test_the_head_that_costs_most_ranks_first_and_equal_ones_share_their_ranks(metric, tmp_path):
    (column,) = told(flat(metric, tmp_path).read_text())["columns"]
    assert column["rank"] == [[1, 1] if row == 5 else [2, 8] for row in range(8)]
    assert column["harm"] == (1 if metric == "loss" else -1)


def test_roles_are_those_of_the_table(study, html):
    data, held = told(html), role_rules.held(study.load("roles"))
    found = [
        (*head, one["name"], one["values"][row])
        for row, head in enumerate(data["heads"])
        for one in data["roles"]
        if one["held"][row]
    ]
    assert len(found) == len(held) > 10
    assert [one[:4] for one in found] == list(held[[*frame.LEVELS, "role"]].itertuples(index=False, name=None))
    same([one[4] for one in found], held["value"])
    assert {one["family"] for one in data["families"]} == {"positional", "syntactic", "alignment"}
    assert all(re.fullmatch("#[0-9a-f]{6}", one["colour"]) for one in data["families"])


def test_pruning_is_that_of_the_tables(study, html):
    data, table = told(html), study.load("survival-l0")
    (pruning,) = data["prunings"]
    assert [one["size"] for one in pruning["sizes"]] == [72, 10]
    for one in pruning["sizes"]:
        same(one["held"], table[f"survival[l0 {one['size']}]"])
        same(one["open"], table[f"survival[l0 {one['size']}].open"])
    assert set(pruning["fate"]) == {
        *("kept with 72 and 10 heads", "kept with 72 heads, pruned with 10", "pruned with 72 and 10 heads")
    }
    gates = {one["name"]: one for one in data["gates"]}
    assert list(gates) == ["l0-72", "l0-10"]
    history = study.load("gates-l0-10").set_index([*frame.LEVELS, "step"])["open"]
    steps = gates["l0-10"]["steps"]
    assert (len(steps), steps[0], steps[-1]) == (40, 0, 59)
    assert gates["l0-10"]["open"][5] == [round(100 * history["enc-self", 0, 5, step]) for step in steps]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(36, 1), (24, 1), (16, 0), (8, 0)], "kept with 24 heads, pruned with 16"),
        ([(36, 1), (24, 1)], "kept with 36 and 24 heads"),
        ([(36, 0)], "pruned with 36 heads"),
        ([(36, 0), (24, 1), (16, 1), (8, 1)], "pruned with 36 heads, kept with 24, 16 and 8 heads"),
        (
            [(9, 1), (8, 0), (7, 1), (6, 0)],
            "kept with 9 heads, pruned with 8 heads, kept again with 7 heads, pruned again with 6 heads",
        ),
    ],
)  # fmt: skip
def test_what_became_of_a_head_is_said_in_words(sizes, expected):
    assert fate(sizes) == expected


def test_a_pruning_of_one_kind_says_nothing_of_the_others(tmp_path):
    index = frame.index({("enc-self", 0): 2, ("cross", 0): 2})
    columns = {
        "survival[random 1 enc-self]": [1.0, 0, 1, 1],
        "survival[random 1 enc-self].order": [np.nan, 1, np.nan, np.nan],
    }
    save_table(frame.table(columns, index, "model:a"), tmp_path / "survival-random-enc-self.parquet")
    (found,) = told(hr.report(tmp_path, tmp_path / "r.html").read_text())["prunings"]
    assert (found["name"], found["kinds"], found["of"]) == ("random enc-self", ["enc-self"], 2)
    assert found["fate"] == ["kept with 1 heads", "pruned with 1 heads", None, None]
    assert found["sizes"][0]["order"] == [None, 1.0, None, None]


def test_tests_of_roles_are_those_of_the_table(study):
    heads = [":".join(map(str, head)) for head in study.load("heads").index[:2]]
    index = pd.MultiIndex.from_tuples([(heads[0], "sink"), (heads[1], "sink"), ("all 2", "sink")])
    columns = {"explained": [0.75, float("nan"), 0.5], "explained.low": [0.5, float("nan"), 0.25]}
    columns |= {"explained.high": [1.0, float("nan"), 0.75], "verdict": [VERDICTS[0], VERDICTS[3], VERDICTS[2]]}
    table = pd.DataFrame(columns, index=index.set_names(["heads", "role"]))
    found = results.tests([Table("mine", "role-tests-loss", table)], [*study.load("heads").index])
    assert found == [
        {"row": 0, "role": "sink", "explained": [0.75, 0.5, 1.0], "verdict": VERDICTS[0], "mark": "whole"}
        | {"from": "mine/role-tests-loss"},
        {"row": 1, "role": "sink", "explained": [None] * 3, "verdict": VERDICTS[3], "mark": "open"}
        | {"from": "mine/role-tests-loss"},
    ]


def test_how_an_effect_was_estimated_and_when_heads_were_pruned_are_no_measurements():
    rows = frame.index({("enc-self", 0): 3})
    effects = {"ablation[loss]": [0.1, 0.2, 0.3], "ablation[loss].slope": 0.4, "ablation[loss].explained": 0.2}
    survival = {"survival[importance 1]": [1, 0, 0], "survival[importance 1].order": [3, 2, 1]}
    made = [
        Table("made", name, frame.table(columns, rows, "model:made"))
        for name, columns in (("ablation-loss-head-zero", effects), ("survival-importance", survival))
    ]
    assert [one["name"] for one in measured(made[:1], [*rows])[0]] == ["ablation[loss]"]
    (pruning,) = prunings(made[1:], [*rows])
    assert pruning["fate"] == ["kept with 1 heads", "pruned with 1 heads", "pruned with 1 heads"]
