"""The handle of a model: what its blocks change, and restore."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.models import identity
from headroles.models.head_model import HeadModel
from headroles.scores.attention import AttentionPass


@pytest.mark.parametrize("block", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_evaluating_leaves_inference_mode_and_keeps_gradients_as_they_are(block):
    handle = HeadModel(zoo.tiny("bert"))
    with block():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        with handle.evaluating():
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == (before[0], False)
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before


def test_a_handle_is_taken_as_it_is():
    assert HeadModel.of(handle := HeadModel(zoo.tiny("bert"))) is handle


def test_a_score_reads_a_batch_within_ten_files():
    """Files of the package with functions that run from the call that reads a batch to its sums."""
    model, files, reads = zoo.tiny("bert"), set(), False
    root = str(Path(hr.__file__).parent)

    def note(frame, event, _):
        nonlocal reads
        if frame.f_code is AttentionPass.read.__code__ and event in ("call", "return"):
            reads = event == "call"
        if reads and event == "call" and frame.f_code.co_filename.startswith(root):
            files.add(frame.f_code.co_filename)

    hr.attention_sites(model)  # which are found once
    sys.setprofile(note)
    try:
        hr.score(model, tokens_of("bert"), corpus(6), ["confidence"], n_resamples=0)
    finally:
        sys.setprofile(None)
    assert 3 < len(files) <= 10, sorted(files)


def test_a_handle_reads_every_weight_once(monkeypatch):
    model, contents, read = zoo.tiny("bert"), identity._contents, Counter()
    expected = HeadModel(model).weights, identity.identity(model)  # SHA-256 is of the first call
    monkeypatch.setattr(identity, "_contents", lambda value: read.update([value.data_ptr()]) or contents(value))
    handle = HeadModel(model)
    assert (handle.weights, handle.identity) == expected
    assert {read[weight.data_ptr()] for weight in model.parameters()} == {1}
