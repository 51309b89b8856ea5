"""A report opens with what its tables say, in sentences."""

from __future__ import annotations

import re
from pathlib import Path

import headroles as hr
from headroles.reports import findings

FIGURES = Path(__file__).resolve().parents[2] / "figures"


def test_the_page_of_minilm_says_its_roles_as_its_table_has_them(tmp_path):
    html = hr.report(FIGURES / "minilm/pud", tmp_path / "report.html").read_text()
    roles = hr.load_table(FIGURES / "minilm/pud/roles.parquet")
    held = roles[[name for name in roles if roles[name].dtype == bool]]
    counts = held.T.groupby(held.columns.str.partition("[").get_level_values(0)).any().T.sum()
    first = re.search(r'<p class="found">(.*?)</p>', html)
    assert first is not None
    assert first[1].startswith(f"{held.any(axis=1).sum()} of {len(held)} heads have a role: ")
    assert {f"{count} {name}" for name, count in counts.items() if count} == {*first[1][:-1].split(": ")[1].split(", ")}
    places = [html.index(f'id="{name}"') for name in ("roles", "rolemaps", "overview", "table", "lacks", "sources")]
    assert places == sorted(places)
    assert 'id="curves"' not in html  # no section of what there is not
    assert "<code>headroles ablate</code> makes it." in html[html.index('id="lacks"') :]


def test_the_page_of_a_marian_says_the_head_that_costs_most(tmp_path):
    html = hr.report(FIGURES / "multi30k-en-de/ablation", tmp_path / "report.html").read_text()
    effects = hr.load_table(FIGURES / "multi30k-en-de/ablation/ablation-loss-head-zero.parquet")
    assert effects["ablation[loss]"].idxmax() == ("dec-self", 1, 0)
    assert "Most is lost without layer 1 head 0 of decoder self-attention (effect on loss +0.0321)" in html


def test_what_pruning_costs_and_that_no_head_has_a_role():
    sizes = {"name": "l0", "label": "BLEU", "of": 24, "decimals": 1}
    rows = [{"heads": 24, "change": [0.0]}, {"heads": 6, "change": [-1.25, -2, 0]}]
    role = {"family": "rare", "held": [0, 0]}
    data = {"heads": [["enc-self", 0, 0]] * 2, "kinds": {"enc-self": ""}, "roles": [role], "columns": []}
    assert findings.findings(data | {"sizes": [sizes | {"rows": rows}]}) == [
        "None of the 2 heads has a role.",
        "Pruned to 6 of 24 heads left (l0), BLEU changes by −1.2.",
    ]


def test_the_head_that_costs_most_is_one_that_was_ablated_alone():
    heads = [["dec-self", 0, 0], ["dec-self", 0, 1]]
    columns = [
        {"name": f"ablation[agreement{unit}]", "label": "effect", "harm": -1, "values": values, "decimals": 2}
        for unit, values in ((" all_but_one", [-0.9, -0.1]), (" group", [-0.8, -0.1]), ("", [-0.1, -0.5]))
    ]
    data = {"heads": heads, "kinds": {"dec-self": ""}, "roles": [], "columns": columns, "sizes": []}
    assert findings.findings(data) == ["Most is lost without layer 0 head 1 (effect −0.50)."]
    assert findings.findings(data | {"columns": columns[:2]}) == []
