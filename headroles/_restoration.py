"""Restoration: a block writes down how to undo each change before it makes it, and undoes all when it ends or dies.

An interrupt (Ctrl-C) comes between any two instructions, also at the first one of `__exit__`: a block may end without
being called again. Python keeps the exit of a `with` statement for as long as its block is open, and no traceback
keeps it. So each block has an exit of its own: once that is freed, the block is dead, and its changes are undone at
once. What a second interrupt leaves is undone by the next call of headroles (`heal`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import _GeneratorContextManager
from functools import partial, wraps
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar
from weakref import ReferenceType, ref

if TYPE_CHECKING:
    from torch import nn

P = ParamSpec("P")
T = TypeVar("T")

healers: list[Callable[[], object]] = []  # called at every entry
lock = threading.RLock()  # for a few lines that threads must not run together; entered and left without Python code


class Hook:
    """A hook that a copy of the model does not take along: `copy.deepcopy` inside a block gives an intact model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __deepcopy__(self, _: dict[int, Any]) -> Hook:
        return Hook(_nothing)

    def __reduce__(self) -> tuple[type[Hook], tuple[Callable[..., None]]]:
        return Hook, (_nothing,)


def _nothing(*_: object, **__: object) -> None:
    """Leave inputs and outputs as they are."""


class Changes:
    """The changes of an open block, each written down before it is made."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.modules: frozenset[nn.Module] = frozenset()  # other threads wait with these until the block ends
        self.by_example = False  # whether they are of the examples of one batch, each its own
        self.interrupted = False
        self._undos: list[tuple[Callable[[], object], bool]] = []

    def add(self, undo: Callable[[], object], *, in_thread: bool = False) -> None:
        """Write down how to undo a change that comes next; `undo` may run before the change, and twice.

        With `in_thread`, it runs in the thread of the block only.
        """
        self._undos.append((undo, in_thread))

    def enter(self, block: Block[T]) -> T:
        """Make the changes of another block a part of these."""
        return block.begin(self)

    def hook(self, module: nn.Module, function: Callable[..., Any], *, after: bool = False, **options: bool) -> None:
        """Call a function before each forward of a module, or after it."""
        hook = Hook(function)
        self.add(partial(_unhook, module, hook))
        register: Any = module.register_forward_hook if after else module.register_forward_pre_hook
        register(hook, **options)

    def keep(self) -> None:
        """Let the changes made so far stay."""
        self._undos = []

    def undo(self, *, interrupted: bool = False) -> None:
        """Undo all changes, the last one first; again from the start if it was interrupted."""
        self.interrupted |= interrupted
        for undo, in_thread in reversed(self._undos):
            if self.is_mine() or not in_thread:
                undo()
        _open.pop(self, None)
        self._undos = []  # hooks hold what they have read: logits of a batch would wait for the garbage collector

    def is_mine(self) -> bool:
        """Whether the block belongs to this thread."""
        return self.thread is threading.current_thread()


_open: dict[Changes, ReferenceType[object]] = {}  # of all threads -> what lives as long as the block


def _unhook(module: nn.Module, hook: Hook) -> None:
    """Remove a hook, also after an interrupted registration."""
    for hooks, options in (
        (module._forward_pre_hooks, (module._forward_pre_hooks_with_kwargs,)),
        (module._forward_hooks, (module._forward_hooks_with_kwargs, module._forward_hooks_always_called)),
    ):
        for number in [number for number, value in hooks.items() if value is hook]:
            for numbers in (*options, hooks):
                numbers.pop(number, None)


class _Exit:
    """`__exit__` of a block: a new object for each `with` statement, which nothing else holds."""

    def __get__(self, block: Block[Any] | None, _: type) -> Callable[..., None]:
        if block is None:  # `ExitStack` asks the class, and holds the block itself
            return _leave
        token = partial(_leave, block)
        block.token = ref(token)
        return token


class Block(Generic[T]):
    """A context manager: its changes are undone when it is left, and also when an interrupt prevents that.

    Args:
        begin: Makes the changes.
        end: Called at the end of a block without an error, before the changes are undone.
    """

    def __init__(self, begin: Callable[[Changes], T], end: Callable[[], object] = lambda: None) -> None:
        self.begin, self.end, self.changes = begin, end, Changes()
        self.token: Callable[[], object | None] = lambda: None

    def __enter__(self) -> T:
        heal()
        self.changes = Changes()
        _open[self.changes] = ref(self.token() or self, heal)
        try:
            return self.begin(self.changes)
        except BaseException as error:
            self.changes.undo(interrupted=not isinstance(error, Exception))
            raise

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...

    else:
        __exit__ = _Exit()


def _leave(
    block: Block[Any], kind: type[BaseException] | None, _: BaseException | None, trace: TracebackType | None
) -> None:
    interrupted = kind is not None and not issubclass(kind, Exception)
    try:
        if kind is None:
            block.end()
        if interrupted and trace is not None:
            _close_suspended(trace)
    finally:
        heal()
        if block.changes in _open:
            block.changes.undo(interrupted=interrupted)


def _close_suspended(trace: TracebackType) -> None:
    """End the generators of others (torch's vmap, modes ...) that the interrupt has kept from ending.

    The traceback holds them: they would end when it is freed, in the middle of other work.
    """
    for frame, _ in walk_tb(trace.tb_next):
        manager = frame.f_locals.get("self")
        if isinstance(manager, _GeneratorContextManager) and hasattr(manager, "gen"):  # none yet if it was being made
            manager.gen.close()


def block(function: Callable[Concatenate[Changes, P], T]) -> Callable[P, Block[T]]:
    """Make a block of a function that makes changes: the first argument is given to it when the block begins."""

    @wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> Block[T]:
        return Block(lambda changes: function(changes, *args, **kwargs))

    return made


def opened() -> list[Changes]:
    """Return the changes of all open blocks, of all threads."""
    return list(_open)


def heal(_: object = None) -> None:
    """Undo what dead blocks of this thread, or of threads that have ended, have left: called at every entry."""
    while lock._is_owned():  # type: ignore[attr-defined]
        lock.release()
    for changes, token in reversed(list(_open.items())):  # those within others first
        if token() is None and (changes.is_mine() or not changes.thread.is_alive()):
            changes.undo(interrupted=True)
    for healer in healers:
        healer()
