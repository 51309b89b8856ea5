"""Temporary changes of a model: each is recorded before it is made, and undone when its block is left.

Changes that an interrupt (Ctrl-C) leaves, at the first instruction of `__exit__` or during an undo, stay recorded. The
next call of headroles undoes them (`heal`), unless Python has done so before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Self
from weakref import ref

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from transformers import PreTrainedModel

KINDS = ("pre_hooks_with_kwargs", "hooks_with_kwargs", "hooks_always_called", "pre_hooks", "hooks")
HOOKS = tuple(f"_forward_{kind}" for kind in KINDS)  # where a module has its hooks, and their options
opened: list[Changes] = []  # all blocks with changes that are not undone yet


class Hook(partial[Any]):
    """A hook that is not copied with the model: `copy.deepcopy` inside a block gives an intact model."""

    def __deepcopy__(self, _: dict[int, Any]) -> Hook:
        return Hook(lambda *_, **__: None)


class _Exit:
    # How do we know that a block is over? Python holds the exit of a `with` statement as long as its block is open,
    # and no traceback holds it. So each statement gets its own exit, to which `is_open` is a weak reference; it heals
    # when it dies. (`ExitStack` asks the class: its blocks count as open until they are left.)
    def __get__(self, changes: Changes | None, _: type) -> Callable[..., None]:
        if changes is None:
            return Changes.leave
        leave = partial(Changes.leave, changes)
        changes.is_open = ref(leave, heal)
        return leave


class Changes:
    """A block in which a model, used by one thread, is changed. Blocks are left in reverse order."""

    def __init__(self, model: PreTrainedModel, begin: Callable[[Changes], object] = lambda _: None) -> None:
        self.model, self.begin, self.undos = model, begin, list[Callable[[], object]]()
        self.by_example = False  # whether they are of the examples of one batch, each its own
        self.is_open: Callable[[], object] = lambda: True

    def __enter__(self) -> Self:
        heal()
        self.was_left, self.gradients = False, torch.is_grad_enabled()
        opened.append(self)
        try:
            if dynamo := sys.modules.get("torch._dynamo.eval_frame"):  # compiled modules would not see the hooks
                self.undos.append(partial(dynamo._set_stance, dynamo._stance))
                torch.compiler.set_stance("force_eager")
            self.begin(self)
        except BaseException:
            self.undo()
            raise
        return self

    __exit__ = _Exit()

    def leave(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave the block, and undo blocks that are over but were not left."""
        heal()
        self.undo()
        if kind is not None and not issubclass(kind, Exception):  # an interrupt may have kept `no_grad` from ending
            torch.set_grad_enabled(self.gradients)

    def set(self, thing: object, name: str, value: object) -> None:
        """Set an attribute of a module or config itself, not of its class."""
        had, values = name in vars(thing), vars(thing)
        self.undos.append(partial(values.__setitem__, name, values[name]) if had else partial(values.pop, name, None))
        values[name] = value

    def hook(self, module: nn.Module, function: Callable[..., Any], *, after: bool = False, **options: bool) -> None:
        """Call a function before each forward of a module, or after it."""
        hook = Hook(function)
        self.undos.append(partial(_unhook, module, hook))  # first: an undo may run before its change, and twice
        register: Any = module.register_forward_hook if after else module.register_forward_pre_hook
        register(hook, **options)

    def undo(self) -> None:
        """Undo all changes, the last one first; after an interrupt, start over."""
        self.was_left = True
        for undo in reversed(self.undos):
            undo()
        self.undos = []
        if self in opened:
            opened.remove(self)


def heal(_: object = None) -> None:
    """Undo blocks that are over but were not left, inner blocks first; called at every entry."""
    for changes in [block for block in reversed(opened) if block.was_left or block.is_open() is None]:
        changes.undo()
    modes: list[Any] = _get_current_function_mode_stack()
    for mode in [mode for mode in modes if getattr(mode, "has_ended", False)]:  # torch may bring one back
        mode.off()


def _unhook(module: nn.Module, hook: Hook) -> None:
    """Remove a hook, also after an interrupted registration."""
    for number in [number for name in HOOKS for number, value in vars(module)[name].items() if value is hook]:
        for name in HOOKS:
            vars(module)[name].pop(number, None)
