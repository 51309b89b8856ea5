"""The benchmarks: tools that do the same job give the same numbers; what is timed is what is told."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
import torch
from helpers.letters import tokens_of

import headroles as hr

FOLDER = Path(__file__).resolve().parents[2] / "figures/engineering/benchmarks"
PEERS = {"TransformerLens": "transformer_lens", "nnsight": "nnsight"}
RAGGED = ["a b c d e f", "g h", "i j k"]


@pytest.fixture(scope="module")
def tools():
    return _module("tools")


@pytest.fixture(scope="module")
def make(tools):  # noqa: ARG001 - make imports it by its name
    return _module("make")


def _module(name: str):
    """Load a script of the folder; other folders have a `make`, too."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if name == "tools":
        sys.modules["tools"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["marian", "llama", "bert"])
def of(request, tools):
    name = request.param
    targets = [hr.Sentence(text[:5]) if name == "marian" else None for text in RAGGED]
    corpus = hr.Corpus("ragged", tuple(hr.Sentence(text, target=to) for text, to in zip(RAGGED, targets, strict=True)))
    setting = tools.Setting(hr.tiny_model(name), tokens_of(name), corpus)
    assert not setting.batches[0].source.attention_mask.all()
    return setting


@pytest.mark.slow
@pytest.mark.parametrize("job", ["score", "ablate", "gradient x output", "half of the heads"])
@pytest.mark.filterwarnings("ignore:Input Tensor 0 has a dtype of torch.int64:UserWarning")  # captum's, of token ids
def test_tools_that_do_the_same_job_give_the_same_numbers(of, make, job):
    if not of.writes and job not in ("score", "ablate"):
        pytest.skip("an encoder without a loss")
    job = make.JOBS[job]
    runs, failed, tables = make.made(job, of)
    absent = {name for name in job.ways if name in PEERS and find_spec(PEERS[name]) is None}
    assert absent <= set(failed) <= set(PEERS)
    assert set(runs) == set(tables) == set(job.ways) - set(failed)
    same = {way: make.difference(tables["headroles"], tables[way]) for way in job.same if way in tables}
    assert all(apart < 1e-5 for apart in same.values()), same


def test_padding_is_left_out_of_the_statistics_in_plain_torch(of, make, tools):
    assert make.difference(tools.scored_plainly(of)(), tools.scored(of)()) < 1e-5


def test_a_tool_that_gives_something_else_is_not_compared(make):
    one = pd.DataFrame({"a": [1.0, 2.0], "b": [0.0, torch.nan]})
    assert make.difference(one + 0.5, one) == 0.2
    with pytest.raises(ValueError, match=r"^tables must be of the same, got \['b'\]$"):
        make.difference(one[["a"]], one)
    with pytest.raises(ValueError, match=r"^tables must have numbers in the same places$"):
        make.difference(one.fillna(0.0), one)


def test_a_line_through_two_sizes_gives_the_fixed_seconds_and_those_of_a_token(make, monkeypatch):
    """Of a clock that says .5 s and .01 s a token for us, 0 and .02 for the loop."""
    seconds = {"headroles": (0.5, 0.01), "plain loop": (0.0, 0.02)}
    job = make.Job({way: lambda of, way=way: lambda: (way, of.tokens) for way in seconds}, ())
    monkeypatch.setitem(make.JOBS, "score", job)
    monkeypatch.setattr(make, "timed", lambda run: (None, seconds[run()[0]][0] + seconds[run()[0]][1] * run()[1]))
    sizes = itertools.count(1)
    setting = lambda total: type("Of", (), {"tokens": 100 * next(sizes)})()  # noqa: ARG005, E731
    found = {(row["way"], row["what"]): row["value"] for row in make.scored(setting, 100, 3)}
    assert found["headroles", "fixed, s"] == pytest.approx(0.5)
    assert found["headroles", "per token / plain loop"] == pytest.approx(0.5)
    assert found["plain loop", "fixed, s"] == pytest.approx(0)
