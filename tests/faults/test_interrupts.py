"""Interrupted blocks and functions leave nothing behind, wherever the interrupt comes."""

from __future__ import annotations

import random
import signal
import sys
from contextlib import ExitStack
from functools import partial

import pandas as pd
import pytest
import torch
from helpers.interrupts import (
    OPERATIONS,
    Attack,
    at_event,
    by_signal,
    difference,
    events,
    left_by,
    logits,
    state,
    subject,
)
from helpers.interrupts import other_thread as run_elsewhere

import headroles as hr
from headroles import _restoration
from headroles.scores.lrp import context
from headroles.scores.lrp.context import table

MASK = torch.tensor([0.0, 1, 1, 0, 1, 1, 1, 0])


@pytest.fixture
def model():
    """A model whose sites are known."""
    known = subject()
    masked(known)
    return known


def masked(model):
    with hr.mask_heads(model, MASK):
        return logits(model)


# --- at every line of our code --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_interrupt_at_a_line_leaves_nothing(name):
    found, tried = left_by(name, lambda numbers: numbers[:1], most=12)
    assert (found, tried) == ({}, 12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mask_heads", "ablate", "relevance", "remove_heads"])
def test_an_interrupt_at_many_lines_leaves_nothing(name):
    """At 80 of the calls, lines, returns and errors of all places."""
    found, tried = left_by(name, lambda numbers: {numbers[0], numbers[-1]}, most=80)
    assert (found, tried) == ({}, 80)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that send signals")
@pytest.mark.parametrize("name", ["mask_heads uniform", "lrp_rules"])
def test_signals_leave_nothing(name):
    attack, rng = Attack(name), random.Random(0)
    for _ in range(60):
        assert attack.run(partial(by_signal, [1e-5 + 0.008 * rng.random()])) == ([], [])


# --- interrupts that come while another one is cleared up -----------------------------------------------------------


def left_by_three_interrupts(model, monkeypatch):
    """Interrupt a mask, its undoing, and the undoing after that, which Python reports and swallows."""
    unhook, swallowed, times = _restoration._unhook, [], []

    def interrupted(*args):
        times.append(None)
        if len(times) in (1, 2):
            raise KeyboardInterrupt
        unhook(*args)

    with monkeypatch.context() as patch:
        patch.setattr(_restoration, "_unhook", interrupted)
        patch.setattr(sys, "unraisablehook", swallowed.append)
        with pytest.raises(KeyboardInterrupt), hr.mask_heads(model, MASK):
            raise KeyboardInterrupt
    assert [type(error.exc_value) for error in swallowed] == [KeyboardInterrupt]


@pytest.mark.parametrize("entry", [hr.attention_sites, hr.restore, masked], ids=["sites", "restore", "mask"])
def test_the_next_call_removes_what_three_interrupts_leave(model, entry, monkeypatch):
    before, expected = state(model), [logits(model)]
    left_by_three_interrupts(model, monkeypatch)
    assert {"hooks", "open", "logits"} <= set(difference(model, before, expected))
    entry(model)
    assert difference(model, before, expected) == []


def test_another_thread_enters_after_an_interrupt():
    attack = Attack("mask_heads")
    for number in range(200, 2000, 300):
        attack.run(partial(at_event, number))
        assert run_elsewhere(partial(masked, attack.model))


# --- blocks that are open stay open ---------------------------------------------------------------------------------


def test_open_blocks_stay_open_when_dead_ones_are_removed(model, monkeypatch):
    expected, plain = masked(model), logits(model)
    before = state(model)
    stack, held = ExitStack(), hr.mask_heads(model, torch.ones(8))
    stack.enter_context(hr.mask_heads(model, MASK))
    held.__enter__()

    def suspended():
        with hr.capture_attention(model, lambda *_: None):
            yield

    generator = suspended()
    next(generator)
    opened = state(model)
    left_by_three_interrupts(model, monkeypatch)
    hr.attention_sites(model)
    assert state(model) == opened
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=1e-5)  # the block that captures attends eagerly
    generator.close()
    held.__exit__(None, None, None)
    assert torch.equal(logits(model), expected)
    stack.close()
    assert difference(model, before, [plain]) == []


def test_a_block_that_nothing_holds_ends(model):
    before, plain = state(model), logits(model)
    hr.mask_heads(model, MASK).__enter__()
    assert difference(model, before, [plain]) == []


def test_restore_ends_open_blocks_of_its_thread(model):
    before, plain = state(model), logits(model)
    with hr.mask_heads(model, MASK), hr.lrp_rules(model, "cp"):
        assert hr.restore(model) is model
        assert difference(model, before, [plain]) == []
        with hr.mask_heads(model, MASK):
            assert not torch.equal(logits(model), plain)
    assert difference(model, before, [plain]) == []


def test_restore_leaves_other_models_and_other_threads_alone(model):
    other = subject()
    expected = masked(other)
    with hr.mask_heads(other, MASK):
        hr.restore(model)
        assert run_elsewhere(partial(hr.restore, other))
        assert torch.equal(logits(other), expected)


def test_restore_ends_a_block_that_a_traceback_holds(model):
    """`ExitStack` entered the block, and was interrupted before it noted its exit; the traceback keeps the block."""

    class Interrupted(ExitStack):
        def _push_cm_exit(self, *_):
            raise KeyboardInterrupt

    before, plain = state(model), logits(model)
    with pytest.raises(KeyboardInterrupt) as traceback, Interrupted() as stack:
        stack.enter_context(hr.mask_heads(model, MASK))
    assert "logits" in difference(model, before, [plain])
    hr.restore(model)
    assert difference(model, before, [plain]) == []
    assert traceback.type is KeyboardInterrupt


# --- the mode of rules -----------------------------------------------------------------------------------------------


def test_a_mode_that_torch_brings_back_changes_nothing_until_the_next_call_removes_it(model):
    """torch takes a mode off while it runs, by a generator: one that was interrupted puts it back when it is freed."""
    before, plain = state(model), logits(model)
    mode = context._Mode(table("cp"), model)
    mode.end()
    mode.__enter__()
    assert torch.equal(logits(model), plain)
    assert torch.equal(logits(subject()), plain)
    hr.attention_sites(model)
    assert difference(model, before, [plain]) == []


def test_a_mode_of_another_stays_on_top(model):
    other = torch.overrides.BaseTorchFunctionMode()
    with hr.lrp_rules(model, "cp"), other:
        logits(model)
        assert torch.overrides._get_current_function_mode_stack() == [other]
    assert torch.overrides._get_current_function_mode_stack() == []


# --- locks of a study -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["first", "last"])
def test_an_interrupted_study_can_be_written_to(part, tmp_path):
    """The lock of a folder is given back, wherever the interrupt comes and whoever holds the traceback."""
    values = pd.DataFrame({"confidence": [0.5]}, index=hr.tables.frame.index({("enc-self", 0): [0]}))

    def save(place):
        hr.Study(tmp_path / str(place)).keep("heads", "weights:a|text:b", values.copy)

    save("before")
    places = events(partial(save, "events"))
    chosen = [numbers[0 if part == "first" else -1] for place, numbers in places.items() if "study.py" in place[0]]
    for number in chosen:
        interrupt = at_event(number, partial(save, number))
        assert run_elsewhere(partial(save, number)), interrupt
        assert [path.name for path in (tmp_path / str(number)).iterdir() if path.name.startswith(".")] == []
