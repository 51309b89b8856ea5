"""The widget of a study in a real JupyterLab, driven by a browser: cards, brushing, a sentence typed by hand."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from helpers import planted
from helpers.commands import saved
from helpers.processes import ENVIRONMENT

import headroles as hr

FLAGS = ["--no-sandbox", "--disable-dev-shm-usage"]
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
    hr.score(
        planted.model(),
        planted.tokenizer(),
        planted.corpus()[:10],
        ["confidence"],
        study=place / "study",
        n_resamples=0,
    )
    cells = [nbformat.v4.new_code_cell(text) for text in (SHOW, AFTER)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, place / "explore.ipynb")
    return place


@pytest.fixture(scope="module")
def lab(place: Path) -> Iterator[str]:
    """The address of a JupyterLab in that folder."""
    folders = {name: str(place / ".jupyter") for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    options = [
        "--no-browser",
        "--allow-root",
        "--IdentityProvider.token=",
        "--ServerApp.port=0",
        f"--ServerApp.root_dir={place}",
    ]
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        *options,
        "--LabApp.news_url=None",
        "--ServerApp.disable_check_xsrf=True",
    ]
    log = (place / "lab.log").open("w")
    with (
        log,
        subprocess.Popen(
            command, cwd=place, env=ENVIRONMENT | folders, stderr=log, stdout=log, start_new_session=True
        ) as server,
    ):
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
def test_a_study_is_explored_in_jupyterlab(lab, place):
    if (chromium := shutil.which("chromium")) is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no browser; apt-get install chromium")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=chromium, args=FLAGS)
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
        assert report.locator("#card-title").inner_text() == "Layer 1, head 3"
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
        browser.close()
    facts = json.loads(seen.read_text())
    expected = {(0, 1), (0, 2), (1, 1), (1, 2), (1, 7)}
    assert {(layer, head) for _, layer, head in facts["selection"]} == expected
    assert facts["masked"] == 5
    assert opened == f"Layer {facts['head'][1]}, head {facts['head'][2]}"
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
