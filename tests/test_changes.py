"""Changes: undone when a block is left or fails, or at the next call where an interrupt kept it from ending."""

from __future__ import annotations

import copy
import random
import signal
import sys
from contextlib import ExitStack, suppress
from functools import partial

import pytest
import torch
from helpers import zoo
from helpers.interrupts import MASK, OPERATIONS, Attack, by_signal, difference, left_by, logits, masked, state, subject
from helpers.worded import of_words
from torch.overrides import BaseTorchFunctionMode, _get_current_function_mode_stack

import headroles as hr
from headroles import _changes
from headroles._changes import Changes
from headroles.models import attention_hooks
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


# --- public calls -----------------------------------------------------------------------------------------------------


def held(value):
    """What is in an attribute of a module: what containers hold, the values of plain ones, which object another is."""
    if isinstance(value, dict):
        return {key: held(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [held(one) for one in value]
    return value if isinstance(value, bool | int | float | str) else id(value)


def read(model, size=7):
    """Inputs of this size; of BigBird, which changes itself at short ones, longer."""
    size += 36 * hasattr(model.config, "block_size")
    return zoo.inputs(model, source=size, target=size)


def everything(model):
    """All that a model holds, and its outputs for a short and a longer text."""
    configs = [vars(config) for config in attention_hooks.configs_of(model.modules())]
    with torch.no_grad():
        outputs = [model(**read(model, size))[0] for size in (4, 16)]
    return {
        "outputs": torch.cat([output.flatten() for output in outputs]),
        "weights": torch.cat(
            [value.flatten().double() for value in [*model.parameters(), *model.buffers()]]
        ).nan_to_num(),
        "gradients": [(value.requires_grad, value.grad is None) for value in model.parameters()],
        "attributes": {name: held(vars(module)) for name, module in model.named_modules()},
        "configs": copy.deepcopy([*configs, vars(model.generation_config) if model.can_generate() else {}]),
    }


def captured(model):
    with hr.capture_attention(model, lambda *_: None):
        model(**read(model))


def muted(model, replacement=None):
    with hr.mask_heads(model, torch.zeros(len(hr.models.head_index(model))), replacement):
        model(**read(model))


SHORT = {"n_resamples": 0}
OF_ALL = {
    "sites": hr.attention_sites,
    "capture": captured,
    "mask": muted,
    "uniform": partial(muted, replacement="uniform"),
}
OF_TEXT = {
    "score": lambda *given: hr.score(*given, ["confidence", "importance"], **SHORT),
    "relevance": lambda *given: hr.score(*given, ["relevance"], **SHORT),
    "ablate": lambda *given: hr.ablate(*given, unit="layer", **SHORT),
    "evaluate": lambda *given: hr.evaluate(*given, ["loss", "agreement"], **SHORT),
    "prune": lambda *given: hr.prune(*given, "importance", keep=3, remove=False),
}
OF_FEW = {
    "norm": lambda *given: hr.score(*given, ["confidence"], weights="norm", **SHORT),
    "direct": lambda *given: hr.score(*given, ["direct"], **SHORT),
    "attribute": lambda *given: hr.attribute(*given, n_steps=2, **SHORT),
    "examples": hr.attention_examples,
    "shapley": lambda *given: hr.shapley_values(*given, n_permutations=2, **SHORT),
    "budget": lambda *given: hr.cache_budget(*given, keep=1, by="l0", recent=4, steps=1),
    "efficiency": lambda model, *_: hr.efficiency(model, shares=[0.5], batches=[2], length=4, repeats=2),
}


@pytest.mark.filterwarnings("ignore:This model config")
@pytest.mark.parametrize("name", zoo.variants([*zoo.USUAL, "whisper", "vit", "bert2gpt2", "deberta-v2", "big_bird"]))
def test_a_public_call_leaves_the_model_as_it_was(name):
    model = zoo.tiny(name) if name in zoo.ZOO else hr.tiny_model(name)
    words, size = [str(number) for number in range(60)], 38 if name == "big_bird" else 16
    target = hr.Sentence("9 8 7")
    text = hr.Corpus("c", tuple(hr.Sentence(" ".join(words[10 : 10 + n]), target=target) for n in (3, size)))
    calls = {key: partial(call, model) for key, call in OF_ALL.items()}
    if model.main_input_name == "input_ids":
        given = model, of_words(words, "3", pad_token="1"), text
        more = OF_TEXT | (OF_FEW if name in ("bert", "llama", "marian") else {})
        calls |= {key: partial(call, *given) for key, call in more.items()}
    before = everything(model)
    for call, run in calls.items():
        with suppress(ValueError):  # what is refused changes nothing, either
            run()
        for what, now in everything(model).items():
            same = torch.equal(now, before[what]) if isinstance(now, torch.Tensor) else now == before[what]
            assert same, (call, what)


# --- interrupts -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_next_call_undoes_what_an_interrupt_at_any_line_leaves(name):
    most = 40 if name in [*OPERATIONS][:5] else 20  # of single blocks more; tests/tools/interrupts.py tries thousands
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
