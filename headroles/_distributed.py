"""Processes: which of those that `accelerate launch` started this is, and how they share out work."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


def count() -> int:
    """How many processes work together; 1 unless a launcher started them."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def rank() -> int:
    """The number of this process among them."""
    return int(os.environ.get("RANK") or 0) if count() > 1 else 0


def local_rank() -> int:
    """Its number among those of this machine: the GPU that is its own."""
    return int(os.environ.get("LOCAL_RANK") or 0) if count() > 1 else 0


def first() -> bool:
    """Whether this process is the one that speaks and writes tables."""
    return rank() == 0


def spread(items: list[Any], run: Callable[[int, Any], T], shown: Callable[[list[Any]], Any]) -> list[T]:
    """`run(number, item)` of every item, in order: each process runs its share, and all of them get all results.

    `shown` wraps the list of a process's own items for a progress bar.
    """
    own = list(enumerate(items))[rank() :: count()]
    found = gathered([(number, run(number, item)) for number, item in shown(own)])
    return [value for _, value in sorted(found, key=lambda pair: pair[0])]


def gathered(own: list[T]) -> list[T]:
    """The lists of all processes, one after the other; every process gets all of it."""
    if count() == 1:
        return own
    from accelerate.utils import gather_object

    _join()
    found: list[T] = gather_object(own)
    return found


def summed(own: Tensor) -> Tensor:
    """The sum of the tensors that the processes give, all of one shape; every process gets it."""
    if count() == 1:
        return own
    from accelerate.utils import reduce

    _join()
    found: Tensor = reduce(own, "sum")
    return found


@cache
def _join() -> None:
    """Make the processes one group, until this one ends."""
    import torch
    from accelerate import PartialState

    state = PartialState(cpu=not torch.cuda.is_available())
    if state.num_processes != count():
        raise RuntimeError(f"{count()} processes were started, and {state.num_processes} work together")
    atexit.register(state.destroy_process_group)
