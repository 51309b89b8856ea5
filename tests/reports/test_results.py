"""What a report says of studies is what the tables say."""

from __future__ import annotations

import numpy as np
import pandas as pd
from helpers.reports import EVIL, IMAGE, decoded, interval, same, told

import headroles as hr
from headroles.plots.labels import label_of
from headroles.tables import frame
from headroles.tables.io import save_table


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
    assert [one["value"] for one in sizes["rows"]] == study.load("sparsity-l0")[
        ["value", "low", "high"]
    ].to_numpy().tolist()
    assert sizes["rows"][2]["change"] == [1.0, 0.9, 1.1]


def test_missing_numbers_of_roles_and_outcomes_are_none_beside_their_note(html):
    known, missing = told(html)["relate"]["rows"]
    assert known["difference"] == [0.25, 0.26, 0.27]
    assert (known["within"], known["p"], known["note"]) == ([0.43, 0.44, 0.45], 0.46, "")
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
