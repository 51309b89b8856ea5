"""Restoration: changes are undone when a block is left, fails or dies; those of open blocks stay."""

from __future__ import annotations

import copy

import pytest
from torch import nn

from headroles import _restoration
from headroles._restoration import Block, Changes, block


@block
def noted(changes: Changes, log: list[str], name: str, *, fails: bool = False) -> str:
    """Write down what is undone."""
    changes.add(lambda: log.append(f"undo {name}"))
    log.append(name)
    if fails:
        raise ValueError(name)
    return name


def test_a_block_undoes_its_changes_the_last_one_first():
    log: list[str] = []
    with noted(log, "a") as name:
        assert name == "a"
        with noted(log, "b"):
            pass
    assert log == ["a", "b", "undo b", "undo a"]
    assert not _restoration.opened()


def test_a_block_that_fails_while_it_begins_is_undone():
    log: list[str] = []
    with pytest.raises(ValueError, match="^a$"), noted(log, "a", fails=True):
        pass
    assert log == ["a", "undo a"]


def test_a_block_that_is_never_left_is_undone_once_it_is_freed():
    log: list[str] = []

    def dies() -> None:
        opened = noted(log, "a")
        opened.__enter__()

    dies()
    _restoration.heal()
    assert log == ["a", "undo a"]


def test_a_block_that_is_open_is_not_undone_by_another():
    log: list[str] = []
    with noted(log, "a"):
        with noted(log, "b"):
            pass
        _restoration.heal()
        assert "undo a" not in log
    assert log[-1] == "undo a"


def test_hooks_leave_with_the_block_and_do_not_travel_with_a_copy():
    module, calls = nn.Linear(2, 2), []

    def begin(changes: Changes) -> None:
        changes.hook(module, lambda *_: calls.append(1))

    with Block(begin):
        twin = copy.deepcopy(module)
        module(module.weight)
        twin(twin.weight)
    module(module.weight)
    assert calls == [1]
    assert not module._forward_pre_hooks


def test_the_end_runs_without_an_error_only():
    log: list[str] = []
    with Block(lambda _: None, lambda: log.append("end")):
        pass
    with pytest.raises(KeyError), Block(lambda _: None, lambda: log.append("never")):
        raise KeyError
    assert log == ["end"]
