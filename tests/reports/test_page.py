"""The report says what the tables say, escapes what they hold, and works in a real browser."""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import unicodedata
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pypdf
import pytest
from helpers import planted, zoo
from helpers.commands import run, saved
from helpers.letters import corpus, tokens_of
from helpers.messages import whole
from helpers.reports import (
    EVIL,
    IMAGE,
    SIZES,
    signed,
    studied,
    told,
)

import headroles as hr
from headroles.analysis import role_rules
from headroles.data.readers import write
from headroles.models.head_model import HeadModel
from headroles.models.identity import weights_digest
from headroles.plots.labels import label_of
from headroles.reports import page as page_module
from headroles.reports.contents import fate
from headroles.tables import frame
from headroles.tables.io import save_table
from headroles.tables.study import Study

LACKS = {  # section -> the sentence that stands where its table is not there
    "heads": "There are no scores in these tables; <code>headroles score</code> makes them.",
    "ablation-loss-single-zero": "No ablation is in these tables; <code>headroles ablate</code> makes it.",
    "circuits": "Nothing that the weights alone say (copying, succession) is in these tables; "
    "<code>hr.copying</code> makes it.",
    "roles": "No roles are in these tables; <code>headroles roles</code> assigns them by scores.",
    "sizes-l0": "No model pruned to several sizes is in these tables; <code>headroles sparsity-sweep</code> makes it.",
    "curves-loss": "No curves are in these tables; <code>headroles ablation-curve</code> makes them.",
    "relate": "No comparison of roles with outcomes is in these tables; <code>headroles relate</code> makes it.",
    "attention": "There is no attention on example sentences; <code>headroles attention-examples</code> makes it.",
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The same with short sentences."""
    return studied(tmp_path_factory.mktemp("small") / "made", tokens=3)


def same(found: Any, expected: Any) -> None:
    numbers = [np.nan if one is None else one for one in found]
    np.testing.assert_allclose(numbers, np.asarray(expected, float), rtol=1e-6, atol=0)


# --- what the page says is what the tables say -----------------------------------------------------------------------


@pytest.mark.slow
def test_measurements_are_those_of_the_tables(study, html):
    data, index = told(html), frame.index(SIZES)
    assert [tuple(head) for head in data["heads"]] == list(index)
    tables = {
        "made/heads": study.load("heads"),
        "made/ablation-loss-single-zero": study.load("ablation-loss-single-zero"),
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


def flat(metric: str, folder: Path) -> Path:
    """A report of a model in which 7 of 8 heads have no effect, and one costs 6.89: harm alone."""
    index, name = frame.index({("enc-self", 0): 4, ("enc-self", 1): 4}), f"ablation[{metric}]"
    effect = np.where(np.arange(8) == 5, 6.89 if metric == "loss" else -6.89, 0.0)
    tests = {f"{name}.{test}": np.ones(8) for test in ("p", "holm", "bh")}
    save_table(frame.table({name: effect} | tests, index, "model:toy|weights:abc"), folder / "ablation-x.parquet")
    return hr.report(folder, folder / "report.html")


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
        "survival[random 1 enc-self].turn": [np.nan, 1, np.nan, np.nan],
    }
    save_table(frame.table(columns, index, "model:a"), tmp_path / "survival-random-enc-self.parquet")
    (found,) = told(hr.report(tmp_path, tmp_path / "r.html").read_text())["prunings"]
    assert (found["name"], found["kinds"], found["of"]) == ("random enc-self", ["enc-self"], 2)
    assert found["fate"] == ["kept with 1 heads", "pruned with 1 heads", None, None]
    assert found["sizes"][0]["turn"] == [None, 1.0, None, None]


def test_curves_and_sizes_are_those_of_the_tables(study, html):
    data = told(html)
    table = study.load("curves-loss")
    (curves,) = data["curves"]
    rows = [(line["name"], *point) for line in curves["lines"] for point in line["points"]]
    table["order"] = table["order"].map(label_of)  # words, not the names of columns
    assert rows == list(table[["order", "closed", "share", "value", "low", "high"]].itertuples(index=False, name=None))
    (sizes,) = data["sizes"]
    assert (sizes["label"], curves["label"]) == ("loss (nats)", "loss (nats)")
    assert [one["heads"] for one in sizes["rows"]] == [144, 72, 10]
    assert [one["value"] for one in sizes["rows"]] == study.load("sizes-l0")[
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
        same(sentence["weights"][row], (1000 * rows.loc[tuple(head), "weights"]).round())


# --- what is not there, and what is there twice ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("lacking", LACKS)
def test_a_section_without_its_table_says_so_in_a_sentence(small, tmp_path, lacking):
    for path in small.folder.glob("*.parquet"):
        if path.stem != lacking:
            (tmp_path / path.name).symlink_to(path)
    html = hr.report(tmp_path, tmp_path / "report.html").read_text()
    assert [name for name, sentence in LACKS.items() if sentence in html] == [lacking]


def test_a_page_of_curves_alone_has_no_heads(tmp_path):
    save_table(
        signed({"order": ["a", "a"], "closed": [0, 1], "share": [0, 1.0], "value": [2.0, 1], "low": 1.0, "high": 3.0}),
        tmp_path / "curves.parquet",
    )
    html = hr.report([tmp_path], tmp_path / "report.html").read_text()
    assert told(html)["heads"] == []
    assert len(told(html)["curves"]) == 1
    lacking = [name for name, sentence in LACKS.items() if sentence in html]
    assert lacking == [name for name in LACKS if name not in ("curves-loss", "circuits")]  # of decoders alone


def test_later_folders_add_the_columns_the_earlier_ones_lack(small, tmp_path):
    index, other = frame.index(SIZES), tmp_path / "later"
    zeros = frame.table(
        {"confidence": np.zeros(144), "importance": np.arange(144.0)}, index, "model:toy|weights:abc|score:Other()"
    )
    save_table(zeros, other / "heads.parquet")
    save_table(signed({"a": [1]}), other / "evaluation.parquet")
    html = hr.report([small, str(other)], tmp_path / "report.html").read_text()
    columns = {one["name"]: one for one in told(html)["columns"]}
    assert columns["confidence"]["from"] == "made/heads"
    assert columns["importance"]["from"] == "later/heads"
    same(columns["importance"]["values"], np.arange(144))
    assert "confidence of later/heads." in html
    assert "model:toy|weights:abc|score:Other()" in html
    assert "not part of this page: later/evaluation." in html


def test_folders_of_one_name_are_distinguished(tmp_path):
    index = frame.index({("enc-self", 0): 2})
    for name, column in (("a", "confidence"), ("b", "entropy")):
        save_table(
            frame.table({column: [0.1, 0.2]}, index, f"model:x|weights:{name}"), tmp_path / name / "study/heads.parquet"
        )
    html = hr.report([tmp_path / "a/study", tmp_path / "b/study"], tmp_path / "report.html").read_text()
    assert [one["from"] for one in told(html)["columns"]] == ["a/study/heads", "b/study/heads"]
    assert "<title>The heads of x</title>" in html
    assert "The tables were made from more than one set of weights." in html


def test_tables_of_another_model_are_refused(small, tmp_path):
    save_table(frame.table({"a": [1.0, 2.0]}, frame.index({("enc-self", 0): 2}), "model:x"), tmp_path / "heads.parquet")
    message = (
        f"{small.folder} (ablation-loss-single-zero) and {tmp_path} (heads) are of different heads: 144 and 2, "
        "2 in common; a report is of one model"
    )
    with pytest.raises(ValueError, match=whole(message)):
        hr.report([small, tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_gates_of_heads_the_model_lacks_are_refused(tmp_path):
    save_table(frame.table({"a": [1.0, 2.0]}, frame.index({("enc-self", 0): 2}), "model:x"), tmp_path / "heads.parquet")
    history = {"kind": ["enc-self"], "layer": [3], "head": [0], "step": [0], "open": [0.5]}
    save_table(signed(history), tmp_path / "gates-l0-1.parquet")
    message = (
        f"{tmp_path} (heads) and {tmp_path} (gates-l0-1) are of different heads: 2 and 1, 0 in common; "
        "a report is of one model"
    )
    with pytest.raises(ValueError, match=whole(message)):
        hr.report(tmp_path, tmp_path / "report.html")


def test_a_folder_without_tables_is_refused_also_beside_others(small, tmp_path):
    message = f"nothing to report in {tmp_path}; make tables with headroles score or headroles ablate"
    for given in (tmp_path, [small, tmp_path]):
        with pytest.raises(FileNotFoundError, match=whole(message)):
            hr.report(given, tmp_path / "report.html")
    with pytest.raises(ValueError, match=whole("no study to report: got none; expected at least one folder of tables")):
        hr.report([], tmp_path / "report.html")


def test_a_folder_that_is_given_twice_is_read_once(small, tmp_path):
    data = told(hr.report([small, small.folder], tmp_path / "report.html").read_text())
    assert len(data["curves"]) == 1


def test_a_table_that_is_none_of_ours_is_refused(tmp_path):
    save_table(signed({"a": [1]}), tmp_path / "curves.parquet")
    message = (
        "not a table of hr.ablation_curve: got a DataFrame (a) with 1 rows, index None; "
        "expected columns closed, high, low, order, share, value"
    )
    with pytest.raises(ValueError, match=whole(message)):
        hr.report(tmp_path, tmp_path / "report.html")


# --- one file, safe and small ----------------------------------------------------------------------------------------


def test_nothing_in_the_tables_or_the_title_becomes_markup(html):
    assert len(re.findall(r"<script\b", html)) == 2
    assert len(re.findall(r"</script\b", html)) == 2
    assert EVIL not in html
    assert "<img" not in html
    assert "<h1>Heads &lt;/script&gt;&lt;script&gt;window.hacked = 1&lt;/script&gt;</h1>" in html
    data = told(html)
    assert data["title"] == f"Heads {EVIL}"
    assert data["attention"][0]["tokens"]["cross"]["queries"][1] == EVIL


def test_the_script_puts_text_in_as_text(html):
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", html)


def test_the_page_names_nothing_outside_itself(html):
    addresses = set(re.findall(r"https?://[^\"'\s)]+", html))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a namespace, which is not fetched
    assert not re.findall(r"<link|@import|url\(", html)
    assert "default-src 'none'" in html


def test_a_page_of_a_translation_model_is_small(html):
    assert len(told(html)["heads"]) == 144
    assert len(html.encode()) < 5_000_000


def test_a_heavy_page_is_said_to_be_heavy(small, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(page_module, "HEAVY", 1000)
    with caplog.at_level(logging.WARNING, logger="headroles.reports.page"):
        path = hr.report(small, tmp_path / "report.html")
    size = path.stat().st_size / 1e6
    assert caplog.messages == [
        f"the report has {size:.1f} MB; attention on fewer or shorter sentences makes it smaller"
    ]


# --- attention on example sentences ----------------------------------------------------------------------------------


def greedy(name: str) -> Any:
    return corpus(5, trees=False, translated=name == "marian")


@pytest.mark.parametrize("name", ["marian", "bert", "gpt2"])
def test_attend_keeps_what_attention_gives(tmp_path, name):
    model, tokenizer, sentences = zoo.tiny(name), tokens_of(name), greedy(name)
    table = hr.attention_examples(model, tokenizer, sentences, limit=3, study=Study(tmp_path))
    assert list(table.groupby("sentence", sort=False).groups) == [0, 1, 2]
    assert [tuple(head) for head in table[table["sentence"] == 1][frame.LEVELS].to_numpy()] == list(
        hr.models.head_index(model)
    )
    fields = dict(frame.fields(frame.provenance(table, "weights")))
    assert (fields["weights"], fields["corpus"]) == (weights_digest(model), "letters")
    for row in table.iloc[::5].itertuples():
        whole_one = hr.attention_matrix(model, tokenizer, sentences[row.sentence], (row.kind, row.layer, row.head))
        assert (list(row.queries), list(row.keys)) == (list(whole_one.index), list(whole_one.columns))
        np.testing.assert_allclose(row.weights, whole_one.to_numpy().ravel(), atol=0.00051)
    again = Study(tmp_path).load("attention")
    assert [list(one) for one in again["queries"]] == [list(one) for one in table["queries"]]
    np.testing.assert_array_equal(np.concatenate(again["weights"]), np.concatenate(table["weights"]))


def test_attend_runs_one_forward_for_each_sentence(tmp_path, monkeypatch):
    model, seen, forward = zoo.tiny("marian"), [], HeadModel.forward_body
    monkeypatch.setattr(HeadModel, "forward_body", lambda *given: seen.append(1) or forward(*given))
    hr.attention_examples(model, tokens_of("marian"), greedy("marian"), limit=2, study=Study(tmp_path))
    hr.attention_examples(model, tokens_of("marian"), greedy("marian"), limit=2, study=Study(tmp_path))  # kept
    assert len(seen) == 2


def test_without_translations_the_decoder_reads_its_own_output(tmp_path):
    table = hr.attention_examples(
        zoo.tiny("marian"), tokens_of("marian"), corpus(2, trees=False, translated=False), study=Study(tmp_path)
    )
    assert "|decoder:greedy|" in frame.provenance(table, "weights")
    assert table.loc[table["kind"] == "cross", "queries"].map(len).min() > 0
    assert table["target"].notna().all()
    assert table["sentence"].nunique() == 2


def test_attend_refuses_no_sentences(tmp_path):
    message = "number of sentences out of range: got limit=0; expected 1 or more"
    with pytest.raises(ValueError, match=whole(message)):
        hr.attention_examples(zoo.tiny("bert"), tokens_of("bert"), greedy("bert"), limit=0, study=Study(tmp_path))


def test_attention_that_is_not_finite_is_refused(tmp_path):
    model = zoo.tiny("bert")
    model.bert.encoder.layer[1].attention.self.query.weight.data.fill_(float("nan"))
    message = (
        r"\Athe attention of enc-self layer 1 is not finite on sentence \d of the corpus; "
        r"look for NaN or infinite weights in BertForMaskedLM: 1,024 of 1,024 in "
        r"bert.encoder.layer.1.attention.self.query.weight\Z"
    )
    with pytest.raises(ValueError, match=message):
        hr.attention_examples(model, tokens_of("bert"), greedy("bert"), study=Study(tmp_path))


def test_the_commands_make_a_page_from_a_model(tmp_path):
    model, study, output = saved(tmp_path / "model"), tmp_path / "study", tmp_path / "new" / "page.html"
    trees = write(planted.corpus()[:20], tmp_path / "planted.conllu")
    done = run("attention-examples", model, trees, "--limit", 2, "--study", study)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == f"attention of every head on 2 sentences is in {study}"
    done = run("report", study, "--output", output, "--title", "Mine & yours")
    assert done == (0, f"written: {output}\n", "")
    assert "<title>Mine &amp; yours</title>" in output.read_text()
    assert len(told(output.read_text())["attention"]) == 2
    assert run("report", tmp_path) == (
        2, "", f"headroles: nothing to report in {tmp_path}; make tables with headroles score or headroles ablate\n"
    )  # fmt: skip


# --- in a real browser -----------------------------------------------------------------------------------------------

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = shutil.which("chromium")
    if path is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "no browser to test the report in; apt-get install chromium"
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=path, args=FLAGS)
        yield made
        made.close()


@pytest.fixture
def opened(browser, study, html) -> Iterator[Any]:
    """The page from disk; what it logs, throws and asks for is looked at in the end."""
    assert html
    address, said = (study.folder / "report.html").as_uri(), []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"thrown: {error}"))
    page.on("request", lambda request: request.url == address or said.append(f"asked for {request.url}"))
    page.goto(address)
    yield page
    hacked = page.evaluate("window.hacked")
    context.close()
    assert said == []
    assert hacked is None


PLACES = 3  # decimals of a column whose largest value is below one


def cell_of(page: Any, label: str, row: int) -> Any:
    return page.locator(f"[role=grid][aria-label='{label}'] [data-row='{row}']")


def title_of(page: Any) -> str:
    return f"{page.text_content('#card .kind')} / {page.text_content('#card-title')}"


@pytest.mark.slow
def test_a_click_on_a_head_opens_its_card_with_the_numbers_of_the_tables(opened, study):
    head, row = ("dec-self", 2, 5), 48 + 2 * 8 + 5
    table, effects_table = study.load("heads"), study.load("ablation-loss-single-zero")
    assert opened.locator("#card").is_hidden()
    cell = cell_of(opened, "confidence, decoder self-attention", row)
    rank = int(table["confidence"].xs("dec-self").rank(ascending=False)[2, 5])
    value, low, high = (f"{table.loc[head, f'confidence{end}']:.{PLACES}f}" for end in ("", ".low", ".high"))
    label = f"layer 2 head 5: confidence {value}, 95 % interval {low} to {high}, rank {rank} of 48"
    assert cell.get_attribute("aria-label") == label
    cell.click()
    assert title_of(opened) == "decoder self-attention / Layer 2, head 5"
    text = opened.inner_text("#card")
    assert f"{value} [{low}, {high}]" in " ".join(text.split())
    assert f"{rank} of 48" in text
    assert f"{effects_table.loc[head, 'ablation[loss].holm']:.3f}".replace("0.000", "< 0.001") in text
    assert told((study.folder / "report.html").read_text())["prunings"][0]["fate"][row] in text
    held = role_rules.held(study.load("roles")).query("kind == 'dec-self' and layer == 2 and head == 5")
    assert [name in text for name in held["role"]] == [True] * len(held)
    assert opened.evaluate("location.hash") == "#dec-self-2-5"


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["loss", "bleu"])
def test_harm_is_red_and_no_effect_has_no_colour(browser, metric, tmp_path):
    page = browser.new_page()
    page.goto(flat(metric, tmp_path).as_uri())
    page.emulate_media(color_scheme="light")
    cells = page.locator("#maps .cell")
    assert page.locator("#maps .scale").inner_text().split() == ["−6.89", "6.89"]
    paint = "(one) => getComputedStyle(one).backgroundColor"
    drawn = [cells.nth(4 * (row < 4) + row % 4).evaluate(paint) for row in range(8)]  # layer 1 stands above layer 0
    variables = "(name) => getComputedStyle(document.documentElement).getPropertyValue(name)"
    paints = {}
    for name in ("--low", "--minus"):
        paper = page.evaluate(variables, name)
        paints[name] = page.evaluate(
            f"(paper) => {{ const one = document.querySelector('#tip'); one.style.background = "
            f"`color-mix(in oklab, ${{paper}} 100%, white)`; return ({paint})(one); }}", paper
        )  # fmt: skip
    assert drawn == [paints["--minus"] if row == 5 else paints["--low"] for row in range(8)]
    page.locator("#heads th button", has_text="effect on").click()
    assert page.locator("#heads tbody th").first.inner_text() == "layer 1 head 1"  # what costs most comes first
    cells.nth(0).click()
    assert "2–8 of 8" in page.inner_text("#card")
    assert "Rank 1 of the encoder self-attention heads costs the model most" in page.inner_text("#card")
    page.close()


@pytest.mark.slow
def test_the_keyboard_moves_and_opens_cards(opened):
    first = cell_of(opened, "confidence, encoder self-attention", 0)
    first.focus()
    for key in ("ArrowRight", "ArrowUp", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowDown"):
        opened.keyboard.press(key)
    assert opened.evaluate("document.activeElement.dataset.row") == "1"
    assert opened.locator("[aria-label='confidence, encoder self-attention'] [tabindex='0']").count() == 1
    opened.keyboard.press("End")
    opened.keyboard.press("Enter")
    assert title_of(opened) == "encoder self-attention / Layer 0, head 7"
    assert opened.evaluate("document.activeElement.id") == "card-title"
    opened.click("#card [data-way=up]")
    assert title_of(opened) == "encoder self-attention / Layer 1, head 7"
    assert opened.locator("#card [data-way=right]").is_disabled()
    opened.keyboard.press("Escape")
    assert opened.locator("#card").is_hidden()
    assert opened.evaluate("document.activeElement.dataset.row") == "7"


@pytest.mark.slow
def test_filters_change_the_rows_and_the_count_that_is_announced(opened, study):
    held = role_rules.held(study.load("roles"))
    rows, count = opened.locator("#heads tbody tr"), opened.locator("#count")
    assert count.get_attribute("aria-live") == "polite"
    assert (rows.count(), count.text_content()) == (144, "144 of 144 heads")
    opened.select_option("#filters [name=role]", "alignment")
    expected = len(held[held["role"] == "alignment[monotone]"])
    assert 0 < expected < 144
    assert (rows.count(), count.text_content()) == (expected, f"{expected} of 144 heads")
    opened.select_option("#filters [name=role]", "none")
    free = 144 - len(held[frame.LEVELS].drop_duplicates())
    assert rows.count() == free
    opened.select_option("#filters [name=role]", "")
    opened.select_option("#filters [name=kind]", "cross")
    opened.fill("#filters [name=text]", "layer 3 head")
    assert (rows.count(), count.text_content()) == (8, "8 of 144 heads")


@pytest.mark.slow
def test_a_column_sorts_up_and_down_with_what_is_missing_last(opened, study):
    column = study.load("heads")["alignment[monotone]"]
    header = opened.locator("#heads th", has_text="monotone alignment")
    first = opened.locator("#heads tbody tr").first
    for way, best in (("descending", column.idxmax()), ("ascending", column.idxmin())):
        header.locator("button").click()
        assert header.get_attribute("aria-sort") == way
        assert first.locator("th").inner_text() == f"layer {best[1]} head {best[2]}"
        assert "no value" in opened.locator("#heads tbody tr").last.text_content()
    relations = opened.locator("#relations")
    assert "NaN" not in opened.inner_text("body")
    assert f"no head has the role {EVIL}" in relations.inner_text()


@pytest.mark.slow
def test_dark_and_light(opened):
    def paper() -> str:
        return opened.evaluate("getComputedStyle(document.documentElement).backgroundColor")

    light, button = paper(), opened.locator("#theme")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert (paper() != light, button.get_attribute("aria-pressed")) == (True, "true")
    button.click()
    assert paper() == light
    opened.emulate_media(color_scheme="dark")
    assert paper() == light  # what was chosen by hand stays
    opened.reload()
    assert (paper() != light, button.get_attribute("aria-pressed")) == (True, "true")
    opened.emulate_media(media="print")
    assert paper() == "rgb(255, 255, 255)"


@pytest.mark.slow
def test_attention_is_shown_as_matrix_and_as_arcs_and_tokens_as_text(opened, study):
    table = study.load("attention")
    row = table[
        (table["kind"] == "cross") & (table["layer"] == 5) & (table["head"] == 1) & (table["sentence"] == 1)
    ].iloc[0]
    cell_of(opened, "confidence, cross-attention", 96 + 41).click()
    opened.click("#card [aria-label^='sentence 2']")
    matrix = opened.locator("#card .matrix")
    assert matrix.locator("tbody th").all_inner_texts() == list(row["queries"])
    best = int(np.argmax(row["weights"]))
    tip = matrix.locator("tbody td").nth(best).get_attribute("data-tip")
    size = len(row["keys"])
    assert tip == f"{row['queries'][best // size]} looks at {row['keys'][best % size]}: {row['weights'][best]:.2f}"
    assert IMAGE in opened.inner_text("#card .target")
    opened.click("#card [data-key=view]")
    assert opened.locator("#card .arcs path").count() == int((row["weights"].round(3) >= 0.05).sum())
    assert EVIL in opened.text_content("#card .arcview")
    opened.click("#card .thumb >> nth=3")
    assert title_of(opened) == "cross-attention / Layer 5, head 3"


@pytest.mark.slow
def test_a_link_to_a_head_opens_its_card(opened):
    opened.goto(opened.url + "#cross-4-2")
    opened.reload()
    assert title_of(opened) == "cross-attention / Layer 4, head 2"


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_wider_than_the_window(opened, width):
    opened.set_viewport_size({"width": width, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    cell_of(opened, "roles, cross-attention", 96 + 9).click()
    card = opened.locator("#card").bounding_box()
    assert card["x"] + card["width"] <= width
    assert opened.evaluate("document.getElementById('page').inert") == (width == 400)
    opened.click("#card .close")
    assert opened.evaluate("document.activeElement.dataset.row") == "105"


@pytest.mark.slow
def test_everything_that_can_be_used_has_a_name_for_a_screen_reader(opened):
    cell_of(opened, "roles, encoder self-attention", 0).click()
    opened.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    nodes = opened.context.new_cdp_session(opened).send("Accessibility.getFullAXTree")["nodes"]
    shown = [node for node in nodes if not node.get("ignored")]
    named = {"button", "gridcell", "link", "combobox", "searchbox", "grid", "region", "image", "table", "heading"}
    found = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in shown if "role" in node]
    assert [one for one in found if one[0] in named and not one[1].strip()] == []
    kinds = [kind for kind, _ in found]
    assert kinds.count("gridcell") > 144 * 5
    assert {"main", "banner", "navigation", "complementary", "status"} <= set(kinds)


@pytest.mark.slow
def test_print_has_every_section_the_open_card_and_no_controls(opened):
    cell_of(opened, "confidence, encoder self-attention", 3).click()
    opened.emulate_media(media="print")
    for name in ("overview", "roles", "pruning", "curves", "relate", "table", "sources"):
        assert opened.locator(f"#{name}").is_visible()
    assert opened.locator("#card-title").is_visible()
    assert not any(one.is_visible() for one in opened.locator(".controls").all())
    assert opened.evaluate("getComputedStyle(document.body).fontVariantLigatures") == "none"
    opened.evaluate(
        "document.querySelectorAll('main > section:not([aria-labelledby=table])').forEach(part => part.remove())"
    )
    written = (page.extract_text() for page in reversed(pypdf.PdfReader(io.BytesIO(opened.pdf())).pages))
    pages = (unicodedata.normalize("NFKC", text) for text in written)  # fonts have ligatures
    rows = list(islice((page for page in pages if len(re.findall(r"layer \d+ head \d+", page)) > 10), 3))
    assert len(rows) > 1
    assert all("confidence" in page for page in rows)  # a table over several pages repeats its head
