"""Studies in figures/: what is committed has a row and is used; pictures show what their tables say."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import studies
import typer
from studies import FIGURES, ROOT
from typer.testing import CliRunner

STUDIES = studies.declared()
PICTURES = [(folder, picture) for folder, study in STUDIES.items() for picture in study.get("picture", [])]
DRAWN = [(folder, picture) for folder, picture in PICTURES if "code" in picture]
SOURCES = (".py", ".toml", ".md")  # scripts, declarations and plans are of the row of their folder
MOST, BYTES, WORDS = 350, 12_000_000, 3000
HIDDEN = re.compile(r"__pycache__|/\.")


def committed() -> list[Path]:
    """What a commit would hold: what git ignores in figures/ is hidden."""
    return [path for path in FIGURES.rglob("*") if path.is_file() and not HIDDEN.search(str(path.relative_to(ROOT)))]


def test_few_files_are_committed():
    paths = committed()
    assert len(paths) <= MOST
    assert sum(path.stat().st_size for path in paths) <= BYTES


def test_every_file_belongs_to_a_row():
    declared = {FIGURES / folder / picture["file"] for folder, picture in PICTURES}
    for folder, study in STUDIES.items():
        for table in study.get("table", []):
            found = {path for pattern in table["files"] for path in (FIGURES / folder).glob(pattern)}
            assert found or not table["made"], (folder, table["files"])
            assert len(re.findall(r"\d{4}-\d\d-\d\d [0-9a-f]{8}$", table["made"])) == bool(found), (folder, table)
            declared |= found
    others = {path for path in committed() if path.suffix in SOURCES and path.parent != FIGURES}
    assert {path for path in others if not any(path.is_relative_to(FIGURES / folder) for folder in STUDIES)} == set()
    own = {path for path in committed() if path.parent == FIGURES}
    assert {path.name for path in own} == {"README.md", "studies.py", "studies.toml"}
    assert sorted({*committed()} - others - own - declared) == []
    assert sorted(declared - {*committed()}) == []


def test_every_picture_of_a_page_has_a_row():
    shown = {
        (page, picture)
        for page in [ROOT / "README.md", *(ROOT / ".docs").rglob("*.md")]
        if not {"generated", "_build", "templates"} & {*page.parts}
        for picture in re.findall(r"!\[[^\]]*\]\([./]*figures/([^)\s]+)", page.read_text(encoding="utf-8"))
    }
    assert len(shown) > 20
    rows = {f"{folder}/{picture['file']}" for folder, picture in PICTURES}
    assert {(page, picture) for page, picture in shown if picture not in rows} == set()


def test_the_list_is_what_its_command_writes():
    text = (FIGURES / "README.md").read_text(encoding="utf-8")
    assert text == studies.readme(), "run python figures/studies.py"
    assert len(text.split()) <= WORDS


def test_every_folder_says_what_it_needs_and_what_is_left(monkeypatch, tmp_path):
    monkeypatch.setenv("DATA", str(tmp_path))
    app = typer.Typer()
    studies.add(app, FIGURES / "questions/survival")
    said = CliRunner().invoke(app, ["data"], catch_exceptions=False).output
    assert "missing: $DATA/data/multi30k: github.com/multi30k/dataset" in said
    said = CliRunner().invoke(app, ["tables"], catch_exceptions=False).output
    assert "done: power.csv\n    python figures/questions/survival/make.py power\n" in said
    for folder in STUDIES:
        text = (FIGURES / folder / "make.py").read_text(encoding="utf-8")
        named = ("def data(", "def tables(", "def pictures(")
        assert "\nadd(app, " in text or all(name in text for name in named), folder


def test_a_pooled_table_gives_back_each_of_its_tables(tmp_path):
    path = tmp_path / "pooled.parquet"
    first = pd.DataFrame({"a": [1, 2], "has": [True, False]}, index=pd.Index(["x", "y"], name="head"))
    first.attrs = {"signatures": {"a": "model:m", "has": "model:m"}}
    second = pd.DataFrame({"b": [0.5], "text": ["z"]})
    for table, model in ((first, "m"), (second, "n"), (first + first, "m")):
        studies.put_rows(table, path, model=model)
    again = studies.rows_of(path, model="m")
    pd.testing.assert_frame_equal(again, first + first)
    assert again.attrs == first.attrs
    pd.testing.assert_frame_equal(studies.rows_of(path, model="n"), second)
    assert studies.rows_of(path, model="o").empty
    assert len(pd.read_parquet(path)) == 3


def test_a_digest_is_of_what_is_drawn():
    def drawn(height: float, title: str = "one") -> str:
        figure, ax = plt.subplots()
        ax.plot([0, 1], [0, height])
        ax.bar([0], [height])
        ax.set_title(title)
        return studies.digest(figure)

    assert drawn(1) == drawn(1.000001)
    assert len({drawn(1), drawn(1.01), drawn(1, "two")}) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "picture"), DRAWN, ids=[f"{folder}/{one['file']}" for folder, one in DRAWN])
def test_a_picture_shows_what_its_tables_say(folder, picture):
    figure = studies.draw(picture, FIGURES / folder)
    assert picture["of"] in [text.get_text() for text in figure.texts]
    assert studies.digest(figure) == studies.digest_of(FIGURES / folder / picture["file"])
