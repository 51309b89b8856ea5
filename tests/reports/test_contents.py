"""What a report says is what the tables say: its first sentences, heads, and results of whole studies."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from helpers.letters import tokens_of
from helpers.reports import EVIL, IMAGE, SIZES, decoded, flat, interval, same, told

import headroles as hr
from headroles.analysis import role_rules
from headroles.analysis.role_rules import VERDICTS
from headroles.plots.labels import label_of
from headroles.reports import contents
from headroles.reports.contents import fate, measured, prunings
from headroles.reports.sources import Table
from headroles.tables import frame
from headroles.tables.io import save_table


@pytest.mark.slow
def test_measurements_are_those_of_the_tables(study, html):
    data, index = told(html), frame.index(SIZES)
    assert [tuple(head) for head in data["heads"]] == list(index)
    tables = {f"made/{name}": study.load(name) for name in ("heads", "ablation-loss-head-zero", "circuits")}
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
    assert column["harm"] == 1
    assert max(column["values"]) == column["values"][5] == 6.89  # a cost, by every metric


def test_heads_that_all_have_one_value_have_no_ranks():
    values = pd.Series([2.0, 2, 2, 1, 3], pd.MultiIndex.from_tuples([("a", 0)] * 3 + [("b", 0)] * 2))
    assert contents._ranks(values)["rank"] == [None, None, None, [2, 2], [1, 1]]


def test_roles_are_those_of_the_table(study, html):
    data, held = told(html), role_rules.held(study.load("roles"))
    rows = [(row, head, one) for row, head in enumerate(data["heads"]) for one in data["roles"]]
    found = [(*head, one["name"], one["values"][row]) for row, head, one in rows if one["held"][row]]
    assert len(found) == len(held) > 10
    assert [one[:4] for one in found] == list(held[[*frame.LEVELS, "role"]].itertuples(index=False, name=None))
    same([one[4] for one in found], held["value"])
    assert {one["family"] for one in data["families"]} == {"positional", "syntactic", "alignment"}
    assert all(re.fullmatch("#[0-9a-f]{6}", one["colour"]) for one in data["families"])


def test_a_sink_is_sure_on_the_page_if_one_of_its_variants_is():
    scores = frame.table(
        {f"sink[{of}]": [0.8, 0.9] for of in ("special", "first")}, frame.index({("enc-self", 0): 2}), "a:1"
    )
    roles = role_rules.roles(scores).assign(**{"sink[special].stability": [1, 0.9], "sink[first].stability": 0.93})
    table = SimpleNamespace(kind=SimpleNamespace(part="roles"), frame=roles, signatures={}, folder="mine", name="roles")
    page = contents.roles([table], [*roles.index])
    assert {role["name"]: role["unsure"] for role in page["roles"]} == {"sink[special]": [1], "sink[first]": [1]}


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
    name = "survival[random 1 enc-self]"
    columns = {name: [1.0, 0, 1, 1], f"{name}.order": [np.nan, 1, np.nan, np.nan]}
    save_table(frame.table(columns, index, "model:a"), tmp_path / "survival-random-enc-self.parquet")
    (found,) = told(hr.report(tmp_path, tmp_path / "r.html").read_text())["prunings"]
    assert (found["name"], found["kinds"], found["of"]) == ("random enc-self", ["enc-self"], 2)
    assert found["fate"] == ["kept with 1 heads", "pruned with 1 heads", None, None]
    assert found["sizes"][0]["order"] == [None, 1.0, None, None]


def test_tests_of_roles_are_those_of_the_table(study):
    heads = [":".join(map(str, head)) for head in study.load("heads").index[:2]]
    index = pd.MultiIndex.from_tuples([(heads[0], "sink"), (heads[1], "sink"), ("all 2", "sink")])
    columns = {"explained": [0.75, float("nan"), 0.5], "explained.low": [0.5, float("nan"), 0.25]}
    columns |= {
        "role_pattern": 0.25,
        "placebo_removed": 0.125,
        "placebo_pattern": -0.5,
        "explained.high": [1.0, float("nan"), 0.75],
        "verdict": [VERDICTS[0], VERDICTS[3], VERDICTS[2]],
    }
    table = pd.DataFrame(columns, index=index.set_names(["heads", "role"]))
    frame.signed(table.insert(0, "removed", 0.5) or table, "corpus:repeated-25|examples:9")
    found = contents.tests([Table("mine", "role-tests-loss", table)], [*study.load("heads").index])
    where = "9 sequences of 25 random tokens, each repeated once"
    shared = {"role": "sink", "from": "mine/role-tests-loss", "on": where, "costs": [0.5, 0.25, 0.125, -0.5]}
    assert found == [
        shared | {"row": 0, "explained": [0.75, 0.5, 1.0], "verdict": VERDICTS[0], "mark": "whole"},
        shared | {"row": 1, "explained": [None] * 3, "verdict": VERDICTS[3], "mark": "open"},
    ]
    assert [*contents.tested_together([Table("mine", "role-tests-loss", table)])] == [
        f"All 2 heads with the pattern sink together: {VERDICTS[2]}; removed they cost 0.5, under exactly this pattern "
        f"0.25, as many other heads 0.125 and -0.5 (on {where})."
    ]


def test_how_an_effect_was_estimated_and_when_heads_were_pruned_are_no_measurements():
    rows = frame.index({("enc-self", 0): 3})
    effects = {"ablation[loss]": [0.1, 0.2, 0.3], "ablation[loss].slope": 0.4, "ablation[loss].explained": 0.2}
    survival = {"survival[importance 1]": [1, 0, 0], "survival[importance 1].order": [3, 2, 1]}
    tables = {"ablation-loss-head-zero": effects, "survival-importance": survival}
    made = [Table("made", name, frame.table(columns, rows, "model:made")) for name, columns in tables.items()]
    assert [one["name"] for one in measured(made[:1], [*rows])[0]] == ["ablation[loss]"]
    (pruning,) = prunings(made[1:], [*rows])
    assert pruning["fate"] == ["kept with 1 heads", "pruned with 1 heads", "pruned with 1 heads"]


def test_curves_and_sizes_are_those_of_the_tables(study, html):
    data = told(html)
    table = study.load("curves-loss")
    (curves,) = data["curves"]
    rows = [(line["name"], *point) for line in curves["lines"] for point in line["points"]]
    table["order"] = table["order"].map(label_of)  # words, not the names of columns
    assert rows == list(table[["order", "masked", "share", "value", "low", "high"]].itertuples(index=False, name=None))
    (sizes,) = data["sizes"]
    assert (sizes["label"], curves["label"]) == ("loss (nats)", "loss (nats)")
    assert [one["heads"] for one in sizes["rows"]] == [144, 72, 10]
    values = study.load("sparsity-l0")[["value", "low", "high"]].to_numpy().tolist()
    assert [one["value"] for one in sizes["rows"]] == values
    assert sizes["rows"][2]["change"] == [1.0, 0.9, 1.1]


def test_missing_numbers_of_roles_and_outcomes_are_none_beside_their_note(html):
    known, missing = told(html)["relate"]["rows"]
    assert known["difference"] == [0.25, 0.26, 0.27]
    assert (known["within"], known["p"], known["note"]) == ([0.37, 0.38, 0.39], 0.4, "")
    assert missing["note"] == f"no head has the role {EVIL}"
    assert {name: missing[name] for name in ("difference", "within", "p", "bh")} == dict.fromkeys(
        ("difference", "within", "p", "bh")
    )
    assert "NaN" not in html


def test_attention_is_that_of_the_table(study, html):
    data, table = told(html), study.load("attention")
    assert len(data["attention"]) == 3
    rows = table[(table["sentence"] == 2)].set_index(frame.LEVELS)
    sentence = data["attention"][2]
    assert sentence["target"] == f"Ziel 2 {IMAGE}"
    assert sentence["tokens"]["cross"]["keys"] == list(rows.loc[("cross", 3, 4), "keys"])
    for row, head in enumerate(data["heads"]):
        same(decoded(sentence["weights"][row]), (1000 * rows.loc[tuple(head), "weights"]).round())


def test_budgets_are_those_of_the_tables_also_alone(tmp_path):
    rows = [("dec-self", layer, group) for layer in (0, 2) for group in range(2)]
    index = pd.MultiIndex.from_tuples(rows, names=["kind", "layer", "group"])
    kept = [0.0, 1, 0, 0]
    columns = interval("effect", np.array([0.5, 2, -0.25, 0])) | {"effect.p": [0.5, 0.01, 1, np.nan]}
    columns |= {"retrieval": kept, "streaming": 1 - np.array(kept)}
    table = frame.signed(pd.DataFrame(columns, index=index), "model:toy|weights:abc|sink:4|recent:256")
    save_table(table, tmp_path / "budget-l0.parquet")
    page = hr.report(tmp_path, tmp_path / "report.html").read_text(encoding="utf-8")
    data = told(page)
    (budget,) = data["budgets"]
    assert (budget["name"], budget["sink"], budget["recent"], budget["decimals"]) == ("l0", 4, 256, 2)
    assert [(row["layer"], row["group"]) for row in budget["rows"]] == [row[1:] for row in rows]
    assert [row["kept"] for row in budget["rows"]] == [False, True, False, False]
    assert [row["effect"] for row in budget["rows"]][1] == [2, 1.99, 2.02]
    assert [row["p"] for row in budget["rows"]] == [0.5, 0.01, 1, None]
    assert data["heads"] == []
    assert "headroles cache-budget" not in page
    (picture,) = hr.plot(tmp_path)
    assert picture.name == "budget-l0.png"


FIGURES = Path(__file__).resolve().parents[2] / "figures/models"


def test_the_page_of_minilm_says_its_roles_as_its_table_has_them(tmp_path):
    html = hr.report(FIGURES / "minilm/pud", tmp_path / "report.html").read_text()
    roles = hr.load_table(FIGURES / "minilm/pud/roles.parquet")
    held = roles[[name for name in roles if roles[name].dtype == bool]]
    counts = held.T.groupby(held.columns.str.partition("[").get_level_values(0)).any().T.sum()
    first = re.search(r'<p class="found">(.*?)</p>', html)
    assert first is not None
    assert first[1].startswith(f"{held.any(axis=1).sum()} of {len(held)} heads have a role: ")
    words, where, _ = re.split(r"( on .*)\.$", first[1].split(": ")[1])
    assert {f"{count} {name}" for name, count in counts.items() if count} == {*words.split(", ")}
    assert f"{where}." == " on 1000 sentences of en_pud-ud-test."
    places = [html.index(f'id="{name}"') for name in ("roles", "rolemaps", "overview", "table", "lacks", "sources")]
    assert places == sorted(places)
    assert 'id="curves"' not in html  # no section of what there is not
    assert "<code>headroles ablate MODEL CORPUS --study pud</code> makes them." in html


def test_the_page_of_a_marian_says_the_head_that_costs_most(tmp_path):
    html = hr.report(FIGURES / "multi30k-en-de/ablation", tmp_path / "report.html").read_text()
    effects = hr.load_table(FIGURES / "multi30k-en-de/ablation/ablation-loss-head-zero.parquet")
    assert effects["ablation[loss]"].idxmax() == ("dec-self", 1, 0)
    ends = [f"{effects.loc[('dec-self', 1, 0), f'ablation[loss].{end}']:+.4f}" for end in ("low", "high")]
    where = "1000 sentences of test_2016_flickr.en+test_2016_flickr.de"
    assert (
        f"On {where} most is lost without dec-self L1H0 (effect on loss, as a cost: +0.0321 [{', '.join(ends)}])"
        in html
    )


def test_what_pruning_costs_and_that_no_head_has_a_role():
    sizes = {"name": "l0", "label": "BLEU", "of": 24, "decimals": 1}
    rows = [{"heads": 24, "change": [0.0]}, {"heads": 6, "change": [-1.25, -2, 0]}]
    role = {"family": "rare", "held": [0, 0], "on": "9 sentences of a"}
    data = {"heads": [["enc-self", 0, 0]] * 2, "kinds": {"enc-self": ""}, "roles": [role], "columns": []}
    data["prunings"] = [{"name": "importance group", "of": 2, "sizes": [{"size": 1, "held": [0, 1]}]}]
    assert contents.findings(data | {"sizes": [sizes | {"rows": rows}]}) == [
        "None of the 2 heads has a role.",
        "Roles that were measured: rare.",
        "Pruned to 6 of 24 heads left (l0), BLEU changes by −1.2.",
    ]
    assert contents.findings(data | {"sizes": [], "roles": [role | {"held": [1, 1]}]})[-1] == (
        "Pruned to 1 of 2 heads left (importance group), the removed heads include 1 of 2 rare."
    )


def test_where_groups_were_pruned_heads_are_counted(tmp_path):
    model = hr.tiny_model("llama", num_attention_heads=8, num_key_value_heads=4)
    study, texts = hr.Study(tmp_path), hr.Corpus("letters", (hr.Sentence("a b c d"), hr.Sentence("b a d c")))
    hr.prune(model, tokens_of("llama"), texts, "random", keep=6, unit="group", study=study)
    (pruning,) = told(hr.report(study, tmp_path / "report.html").read_text())["prunings"]
    (size,) = pruning["sizes"]
    assert (pruning["unit"], pruning["of"], size["size"], sum(size["held"])) == ("group", 16, 12, 12)
    assert {text for text in pruning["fate"]} == {"kept with 12 heads", "pruned with 12 heads"}


def test_the_head_that_costs_most_is_one_that_was_ablated_alone():
    heads = [["dec-self", 0, 0], ["dec-self", 0, 1]]
    shared = {"label": "effect", "harm": 1, "decimals": 2, "on": "9 sentences of a"}
    columns = [
        shared | {"name": f"ablation[agreement{unit}]", "values": values}
        for unit, values in ((" all_but_one", [0.9, 0.1]), (" group", [0.8, 0.1]), ("", [0.1, 0.5]))
    ]
    data = {"heads": heads, "kinds": {"dec-self": ""}, "roles": [], "columns": columns, "sizes": [], "prunings": []}
    assert contents.findings(data) == ["On 9 sentences of a most is lost without L0H1 (effect, as a cost: +0.50)."]
    assert contents.findings(data | {"columns": columns[:2]}) == []
    tested = columns[2] | {"holm": [1.0, 0.4], "low": [0.0, -0.1], "high": [0.2, 1.1]}
    assert contents.findings(data | {"columns": [tested]}) == [
        "On 9 sentences of a no head has a sure effect (p < 0.01, corrected); most without L0H1: +0.50 [−0.10, +1.10]."
    ]
