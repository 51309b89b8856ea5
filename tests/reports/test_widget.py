"""The widget of a study, with and without a browser: cards, brushing, a sentence typed by hand."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from helpers import planted, zoo
from helpers.commands import saved
from helpers.processes import ENVIRONMENT
from helpers.reports import decoded, studied, told

import headroles as hr
from headroles.plots.styling import style_table
from headroles.tables import frame

SENTENCE = "the a with near ."
SECONDS = 120_000  # the patience with a machine that does much else, in milliseconds
SHOW = """import headroles as hr
model, tokenizer = hr.load("model")
explorer = hr.explore("study", model, tokenizer)
explorer"""
AFTER = """import json, pathlib
chosen, masked = list(explorer.selection), hr.head_mask(model, explorer.selection)
facts = {"selection": chosen, "head": explorer.head, "masked": int((masked == 0).sum())}
_ = pathlib.Path("seen.json").write_text(json.dumps(facts, default=str))"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a study, and a notebook that explores it."""
    nbformat, *_ = map(pytest.importorskip, ("nbformat", "jupyterlab", "anywidget"))  # all of them take seconds
    place = tmp_path_factory.mktemp("lab")
    saved(place / "model")
    given = planted.model(), planted.tokenizer(), planted.corpus()[:10]
    hr.score(*given, ["confidence"], study=place / "study", n_resamples=0)
    cells = [nbformat.v4.new_code_cell(text) for text in (SHOW, AFTER)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, place / "explore.ipynb")
    return place


@pytest.fixture(scope="module")
def lab(place: Path) -> Iterator[str]:
    """The address of a JupyterLab in that folder."""
    folders = {name: str(place / ".jupyter") for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    options = ["--no-browser", "--allow-root", "--IdentityProvider.token=", "--LabApp.news_url=None"]
    options += ["--ServerApp.port=0", f"--ServerApp.root_dir={place}", "--ServerApp.disable_check_xsrf=True"]
    command = [sys.executable, "-m", "jupyterlab", *options]
    log = (place / "lab.log").open("w")
    options = {"cwd": place, "env": ENVIRONMENT | folders, "stderr": log, "stdout": log, "start_new_session": True}
    with log, subprocess.Popen(command, **options) as server:
        try:
            yield _address(place / ".jupyter", server)
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(30)


def _address(runtime: Path, server: subprocess.Popen[bytes]) -> str:
    for _ in range(240):
        for file in runtime.glob("jpserver-*.json"):
            address = json.loads(file.read_text())["url"]
            try:
                urlopen(f"{address}api").close()
            except URLError:
                continue
            return str(address)
        assert server.poll() is None, "JupyterLab ended"
        time.sleep(0.25)
    raise TimeoutError("JupyterLab did not start")


@pytest.mark.slow
def test_a_study_is_explored_in_jupyterlab(browser, lab, place):
    page = browser.new_page(viewport={"width": 1500, "height": 1300})
    page.set_default_timeout(SECONDS)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(f"{lab}lab/tree/explore.ipynb?reset")
    _execute(page, 0)
    report = page.frame_locator("iframe[title=headroles]")
    cells = report.locator("#maps .map").first.locator(".cell")
    cells.first.wait_for()
    assert cells.count() == 16

    cells.nth(3).click()  # layers are drawn downward: layer 1, head 3
    assert report.locator("#card-title").inner_text() == "L1H3"
    report.locator("#card .close").click()
    assert report.locator("#card").is_hidden()

    first, last = (cells.nth(number).bounding_box() for number in (1, 10))  # layers 1 and 0, heads 1 and 2
    page.mouse.move(first["x"] + 4, first["y"] + 4)
    page.mouse.down()
    page.mouse.move(last["x"] + 2, last["y"] + 2)
    page.mouse.move(last["x"] + 5, last["y"] + 5)
    page.mouse.up()
    assert report.locator("#selected").inner_text() == "4 heads are selected"
    assert report.locator("#card").is_hidden()  # a drag is no click
    cells.nth(7).focus()
    page.keyboard.press("s")
    assert report.locator("#selected").inner_text() == "5 heads are selected"

    report.locator("#notebook input").fill(SENTENCE)
    report.locator("#notebook form button").click()
    report.locator("#card table.matrix").wait_for()
    assert report.locator("#card p.sentence").inner_text() == SENTENCE
    opened = report.locator("#card-title").inner_text()

    _execute(page, 1)
    seen = place / "seen.json"
    for _ in range(SECONDS // 100):
        if seen.is_file():
            break
        page.wait_for_timeout(100)
    page.close()
    facts = json.loads(seen.read_text())
    expected = {(0, 1), (0, 2), (1, 1), (1, 2), (1, 7)}
    assert {(layer, head) for _, layer, head in facts["selection"]} == expected
    assert facts["masked"] == 5
    assert opened == f"L{facts['head'][1]}H{facts['head'][2]}"
    assert not faults


def _execute(page, number):
    """Run a cell; JupyterLab drops what is run while it still connects to the kernel."""
    cell = page.locator(".jp-Notebook .jp-Cell").nth(number)
    for _ in range(60):
        cell.locator(".cm-content").click()
        page.keyboard.press("Shift+Enter")
        page.wait_for_timeout(1000)
        if cell.locator(".jp-InputPrompt").first.inner_text().strip() not in ("", "[ ]:"):
            return
    raise TimeoutError(f"cell {number} was not run")


TYPED = "the old dog <b> near a cat ."


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> hr.Study:
    """Scores and roles of the planted model."""
    study = hr.Study(tmp_path_factory.mktemp("planted") / "study")
    given = planted.model(), planted.tokenizer(), planted.corpus()[:20]
    table = hr.score(*given, ["confidence", "position"], study=study, n_resamples=20)
    hr.save_table(hr.roles(table), study.path("roles"))
    return study


# --- the widget -----------------------------------------------------------------------------------------------------


def test_the_widget_shows_the_page_of_the_report(study, tmp_path):
    page = hr.explore(study, title="T").page
    plain = hr.report(study, tmp_path / "report.html", title="T").read_text()
    theirs, ours = told(page), told(plain)
    assert theirs.pop("notebook") == {"attention": False}
    assert ours.pop("notebook") is None
    assert theirs == ours
    assert 'id: "notebook"' not in plain  # the script of notebooks is in them alone
    assert 'id: "notebook"' in page


def test_the_selection_is_an_index_for_ablation_and_pruning(study):
    explorer = hr.explore(study)
    assert list(explorer.selection) == []
    explorer.selected = [2, 11]
    expected = hr.models.head_index(planted.model())[[2, 11]]
    assert explorer.selection.names == frame.LEVELS
    assert list(explorer.selection) == list(expected)
    assert study.load("heads").loc[explorer.selection].shape[0] == 2
    assert torch.equal(hr.head_mask(planted.model(), explorer.selection), hr.head_mask(planted.model(), list(expected)))
    given = planted.model(), planted.tokenizer(), planted.corpus()[:3]
    effects = hr.ablate(*given, sets={"mine": explorer.selection}, metric="agreement")
    assert list(effects.index) == ["mine"]
    smaller = hr.remove_heads(deepcopy(planted.model()), explorer.selection)
    assert not set(explorer.selection) & set(hr.models.head_index(smaller))


def test_the_opened_head_is_known(study):
    explorer = hr.explore(study)
    assert explorer.head is None
    explorer.opened = 9
    assert explorer.head == ("enc-self", 1, 1)


def test_attention_on_a_typed_sentence_is_that_of_the_model(study):
    explorer = hr.explore(study, planted.model(), planted.tokenizer())
    assert told(explorer.page)["notebook"] == {"attention": True}
    entry = explorer.attention(TYPED)
    assert entry["text"] == TYPED
    for row in (0, 11):
        matrix = hr.attention_matrix(planted.model(), planted.tokenizer(), TYPED, explorer.heads[row])
        assert entry["tokens"]["enc-self"]["keys"] == list(matrix)
        weights = np.reshape(decoded(entry["weights"][row]), matrix.shape) / 1000
        np.testing.assert_allclose(weights, matrix, atol=0.00101)


@pytest.mark.slow
def test_without_anywidget_the_error_names_the_extra(study):
    code = (
        "import sys; sys.modules['anywidget'] = None\nimport headroles as hr\n"
        f"try: hr.explore({str(study.folder)!r})\nexcept ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = "explore needs anywidget: got no module 'anywidget'; in a checkout: pip install '.[notebooks]'"
    assert done.stdout.strip() == said


# --- what objects show ----------------------------------------------------------------------------------------------


def test_a_corpus_shows_its_size_and_first_sentences():
    target = hr.Sentence("ein <i>Haus</i>")
    corpus = hr.Corpus("c & d", tuple(hr.Sentence(f"a <b> {n}", target=target, label="x") for n in range(9)))
    shown = corpus._repr_html_()
    assert "<p>Corpus c &amp; d: 9 sentences, 9 with a translation, 9 with a label</p>" in shown
    assert "<b>" not in shown
    assert "<i>" not in shown
    assert shown.count("<tr") == 6
    assert all(f"a &lt;b&gt; {n}" in shown for n in range(5))
    assert "with a tree" in planted.corpus()[:2]._repr_html_()


def test_a_study_shows_its_tables(study, tmp_path):
    (study.folder / "foreign.parquet").write_bytes(b"junk")
    shown = study._repr_html_()
    (study.folder / "foreign.parquet").unlink()
    assert f"Study {study.folder}: 3 tables" in shown
    for name in study.names():
        table = study.load(name)
        assert re.search(rf"<td>{name}</td>\s*<td>{len(table)}</td>", shown)
    assert "confidence, position[-" in shown
    assert ".low" not in shown
    assert "0 tables" in hr.Study(tmp_path / "none")._repr_html_()


def test_attention_sites_show_themselves():
    sites = hr.attention_sites(zoo.tiny("marian"))
    assert repr(sites).splitlines()[0] == f"{len(sites)} attention sites, {sum(site.heads for site in sites)} heads"
    assert repr(sites).splitlines()[1].endswith(f"{sites[0].heads} heads of {sites[0].size} in {sites[0].name}")
    assert len(repr(sites).splitlines()) == len(sites) + 1
    assert "Linear" not in repr(sites[0])
    shown = sites._repr_html_()
    heads = sum(site.heads for site in sites)
    assert f"<p>{len(sites)} attention sites, {heads} heads</p>" in shown
    assert all(f"<td>{site.name}</td>" in shown for site in sites)
    assert sites == list(sites)


def test_a_table_of_roles_is_coloured_where_a_head_has_the_role(study):
    roles = study.load("roles")
    html = style_table(roles).to_html()
    held = [name for name in hr.analysis.role_rules.names(roles) if roles[name].any()]
    shown = style_table(roles).data
    assert list(shown) == held
    for name in held:
        assert [text.split(" ")[0] for text in shown[name]] == [f"{value:.2f}" for value in roles[f"{name}.value"]]
    coloured = re.findall(r"((?:#T_\w+,?\s*)+)\{\s*background-color", html)
    assert sum(group.count("#T_") for group in coloured) == roles[held].sum().sum()


@pytest.mark.slow
def test_the_report_of_a_study_of_several_kinds_is_explored(tmp_path):
    explorer = hr.explore(studied(tmp_path / "study", tokens=3))
    assert len(explorer.heads) == 144
    assert explorer.heads[0] == ("enc-self", 0, 0)
