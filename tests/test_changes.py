"""Changes: undone when a block is left or fails, or at the next call where an interrupt kept it from ending."""

from __future__ import annotations

import copy
import random
import signal
import sys
from contextlib import ExitStack
from functools import partial

import pytest
import torch
from helpers import zoo
from helpers.interrupts import MASK, OPERATIONS, Attack, by_signal, difference, left_by, logits, masked, state, subject
from torch.overrides import BaseTorchFunctionMode, _get_current_function_mode_stack

import headroles as hr
from headroles import _changes
from headroles._changes import Changes
from headroles.models.head_model import HeadModel
from headroles.scores.lrp import context


@pytest.fixture
def model():
    """A model whose sites are known."""
    known = subject()
    masked(known)
    return known


def noted(model, log, name):
    """A block that writes down what it does."""

    def begin(changes):
        changes.undos.append(lambda: log.append(f"undo {name}"))
        log.append(name)

    return Changes(model, begin)


def test_changes_are_undone_the_last_one_first(model):
    log = []
    with noted(model, log, "a"), noted(model, log, "b"):
        pass
    assert log == ["a", "b", "undo b", "undo a"]
    assert not _changes.opened


def test_changes_of_a_block_that_fails_are_undone(model):
    log = []

    def begin(changes):
        changes.undos.append(lambda: log.append("undo"))
        changes.set(model, "forward", None)
        raise ValueError("on purpose")

    for block in (Changes(model, begin), Changes(model)):
        with pytest.raises(ValueError, match="on purpose"), block as changes:
            begin(changes)
    assert log == ["undo", "undo"]
    assert "forward" not in vars(model)
    assert not _changes.opened


def test_set_restores_an_attribute_and_its_absence(model):
    config, before = model.config, model.config.hidden_size
    with Changes(model) as changes:
        changes.set(config, "hidden_size", 1)
        changes.set(config, "hidden_size", 2)
        changes.set(config, "new", 3)
        assert (config.hidden_size, config.new) == (2, 3)
    assert config.hidden_size == before
    assert not hasattr(config, "new")


@pytest.mark.parametrize("name", ["mask_heads", "mask_heads uniform", "capture_attention", "lrp_rules", "train_gates"])
def test_a_copy_made_within_a_block_is_intact(model, name):
    expected, copies = logits(model), []
    model.register_forward_hook(lambda *_: copies.append(copy.deepcopy(model)) if not copies else None)
    OPERATIONS[name](model)
    assert torch.equal(logits(copies[0]), expected)
    assert all(type(config._attn_implementation) is str for config in (model.config, copies[0].config))


# --- interrupts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mask_heads uniform", "lrp_rules"])
def test_the_next_call_undoes_what_an_interrupt_at_a_line_leaves(name):
    assert left_by(name, 8) == ({}, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_next_call_undoes_what_an_interrupt_at_any_line_leaves(name):
    most = 80 if name in [*OPERATIONS][:5] else 40  # of single blocks more
    assert left_by(name, most) == ({}, most)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that send signals")
def test_the_next_call_undoes_what_two_signals_leave():
    attack, rng = Attack("mask_heads uniform"), random.Random(0)
    for _ in range(20):
        delays = [1e-5 + 0.008 * rng.random(), 1e-6 + 2e-4 * rng.random()]
        assert attack.run(partial(by_signal, delays))[1] == []


def left_by_interrupts(model, monkeypatch):
    """Interrupt a mask, its undoing, and the undoing after that, which Python reports and swallows."""
    unhook, times = _changes._unhook, []

    def interrupted(*given):
        times.append(given)
        if len(times) < 3:
            raise KeyboardInterrupt
        unhook(*given)

    with monkeypatch.context() as patch:
        patch.setattr(_changes, "_unhook", interrupted)
        patch.setattr(sys, "unraisablehook", lambda _: None)
        with pytest.raises(KeyboardInterrupt) as traceback, hr.mask_heads(model, MASK):
            raise KeyboardInterrupt
    return traceback


@pytest.mark.parametrize("entry", [hr.attention_sites, masked, HeadModel], ids=["sites", "mask", "handle"])
def test_the_next_call_undoes_what_interrupts_leave(model, entry, monkeypatch):
    before, expected = state(model), [logits(model)]
    traceback = left_by_interrupts(model, monkeypatch)
    assert {"hooks", "open", "logits"} <= set(difference(model, before, expected))
    entry(model)
    assert difference(model, before, expected) == []
    assert traceback.type is KeyboardInterrupt


def test_open_blocks_stay_open_when_others_are_undone(model, monkeypatch):
    expected, plain, before = masked(model), logits(model), state(model)
    stack, held = ExitStack(), hr.mask_heads(model, torch.ones(8))
    stack.enter_context(hr.mask_heads(model, MASK))
    held.__enter__()

    def suspended():
        with hr.capture_attention(model, lambda *_: None):
            yield

    generator = suspended()
    next(generator)
    opened = state(model)
    left_by_interrupts(model, monkeypatch)
    hr.attention_sites(model)
    assert state(model) == opened
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=1e-5)  # the block that captures attends eagerly
    generator.close()
    held.__exit__(None, None, None)
    assert torch.equal(logits(model), expected)
    stack.close()
    assert difference(model, before, [plain]) == []


def test_an_outer_block_undoes_inner_ones_that_were_not_left(model, monkeypatch):
    before, plain = state(model), logits(model)
    with hr.mask_heads(model, torch.ones(8), "uniform"):
        traceback = left_by_interrupts(model, monkeypatch)
    assert difference(model, before, [plain]) == []
    assert traceback.type is KeyboardInterrupt


def test_another_model_is_not_touched(model):
    other = zoo.tiny("bert")
    expected = masked(other)
    with hr.mask_heads(other, MASK):
        masked(model)
        assert torch.equal(logits(other), expected)


def test_the_next_call_removes_a_mode_that_torch_brings_back(model):
    before, expected = state(model), [logits(model)]
    mode = context._Mode(context.table("cp"), model)
    mode.end()
    mode.__enter__()
    assert difference(model, before, expected) == ["function modes"]  # it changes no numbers
    hr.attention_sites(model)
    assert difference(model, before, expected) == []


def test_a_function_mode_of_another_stays_on_top(model):
    other = BaseTorchFunctionMode()
    with hr.lrp_rules(model, "cp"), other:
        logits(model)
        assert _get_current_function_mode_stack() == [other]
    assert _get_current_function_mode_stack() == []
