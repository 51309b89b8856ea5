"""Checks by several processes: the same rows, the worst of their results, and what is impossible is refused."""

from __future__ import annotations

import pandas as pd
import pytest
from helpers.commands import run
from helpers.messages import whole
from helpers.processes import server

import headroles as hr
from headroles.testing import CHECKS
from headroles.testing.parallel import worst

REFUSED = ["forward", "conserved", "cut"]


@pytest.fixture(scope="module")
def imported():
    """A server from which processes are forked that import nothing."""
    server()


@pytest.mark.slow
@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize(("parallel", "refused"), [("data", []), ("tensor", REFUSED)])
def test_two_processes_pass_the_checks(parallel, refused):
    found = hr.check_model(hr.tiny_model("llama"), processes=2, parallel=parallel)
    assert list(found.index) == list(CHECKS)
    assert list(found) == ["of", "holds", "off", "allowed", "why"]
    assert found.index[found["holds"] == "refused"].tolist() == refused
    assert set(found["holds"].drop(refused)) == {"yes"}
    assert found.loc[refused, "why"].str.startswith("the weights of LlamaForCausalLM are spread over processes").all()


@pytest.mark.slow
@pytest.mark.usefixtures("imported")
def test_the_command_checks_a_model_that_fsdp_wraps(tmp_path):
    hr.tiny_model("gpt2").save_pretrained(tmp_path)
    told = run("check-model", tmp_path, "--processes", 2, "--parallel", "fsdp")
    assert told.code == 0, told.err
    assert told.out.count(" yes ") == len(CHECKS) - len(REFUSED)
    assert told.out.count(" refused ") == len(REFUSED)
    assert "forward, conserved, cut: the weights of FSDPGPT2LMHeadModel are spread over processes: got FSDP" in told.out


def test_the_worst_result_of_a_check_counts():
    rows = [["yes", 0.1, ""], ["not asked", float("nan"), "why"], ["yes", 0.1, ""], ["no", float("nan"), "error"]]
    others = [["yes", 0.2, ""], ["yes", 0.0, ""], ["refused", float("nan"), "sentence"], ["yes", 0.3, ""]]
    tables = [pd.DataFrame(part, list("abcd"), ["holds", "off", "why"]) for part in (rows, others)]
    expected = tables[0].copy()
    expected.loc[list("abc")] = tables[1].loc[list("abc")]
    pd.testing.assert_frame_equal(worst(tables), expected)
    pd.testing.assert_frame_equal(worst(tables[::-1]), expected)


def test_impossible_processes_are_refused():
    model = hr.tiny_model("gpt2")
    for options in ({"processes": 0}, {"processes": 2, "parallel": "pipeline"}):
        given = {"processes": 2, "parallel": "data"} | options
        message = (
            f"unknown processes: got processes={given['processes']}, parallel={given['parallel']!r}; expected a number "
            f"from 1 on, and 'data', 'tensor' or 'fsdp'"
        )
        with pytest.raises(ValueError, match=whole(message)):
            hr.check_model(model, **given)
    message = (
        "GPT2LMHeadModel has no plan for tensor parallelism: got no model.tp_plan; expected one of transformers; try "
        "parallel='fsdp'"
    )
    with pytest.raises(ValueError, match=whole(message)):
        hr.check_model(model, processes=2, parallel="tensor")
