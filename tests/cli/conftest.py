"""Fixtures of the tests of commands: a model in a folder, and a copy of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import planted
from helpers.commands import INDEX, model, own

import headroles as hr
from headroles.tables import frame

__all__ = ["model", "own"]


@pytest.fixture
def place(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own to work in: a model, a study with scores, text, a labelled table, an empty folder."""
    (tmp_path / "model").symlink_to(model)
    study = hr.Study(tmp_path / "study")
    index = {("enc-self", 0): 2, ("enc-self", 1): 2}
    study.keep(
        "heads", "recipe", lambda: frame.table({"ablation[loss]": [1.0, 2, 3, 5]}, frame.index(index), "corpus:a")
    )
    texts = {"text.txt": "the a .\n", "prose.conllu": "Hello there.\n", "empty.txt": "", "long.txt": "the " * 99}
    texts["tree.conllu"] = "1\tHi\t_\t_\t_\t_\t0\troot\t_\t_\n\n"
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "labels.tsv").write_text("label\tsentence\n1\tthe a .\n0\tnear .\n")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "few.txt"
    path.write_text("".join(f"{sentence.text}\n" for sentence in planted.corpus()[:6]))
    return path


@pytest.fixture
def study(tmp_path: Path) -> hr.Study:
    """A study of four heads with scores and effects."""
    columns = {"position[-1]": [1.0, 0, 0, 0], "confidence": [0.9, 0.5, float("nan"), 0.25]}
    study = hr.Study(tmp_path / "study")
    study.keep("heads", "weights:a", lambda: frame.table(columns, frame.index(INDEX), "model:m|weights:a|corpus:c"))
    return study
