"""Several processes: their number and rank, work spread over them, and its progress."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")
T = TypeVar("T")


def count() -> int:
    """Return the number of processes; 1 unless a launcher started them."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def rank() -> int:
    """Return the rank of this process, from 0."""
    return int(os.environ.get("RANK") or 0) if count() > 1 else 0


def local_rank() -> int:
    """Return the rank of this process on its machine: the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK") or 0) if count() > 1 else 0


def first() -> bool:
    """Return whether this process is the one that prints and writes tables."""
    return rank() == 0


@dataclass(frozen=True)
class Axis:
    """The processes among which work is shared: their number, the rank of this one, and their group of torch."""

    count: int
    rank: int
    group: Any = None  # None: all processes

    def gathered(self, values: list[T]) -> list[T]:
        """Concatenate the lists of all processes of the axis; each of them gets the result."""
        if self.count == 1:
            return values
        from torch import distributed

        _join()
        lists: list[list[T]] = [[] for _ in range(self.count)]
        distributed.all_gather_object(lists, values, group=self.group)
        return [value for part in lists for value in part]

    def summed(self, values: Tensor) -> Tensor:
        """Sum the tensors of all processes of the axis, which have one shape; each of them gets the sum."""
        if self.count == 1:
            return values
        from torch import distributed

        _join()
        total = values.contiguous().clone()  # all processes add in one order in memory
        distributed.all_reduce(total, group=self.group)
        return total


def launched() -> Axis:
    """Return the axis of all processes that the launcher started."""
    return Axis(count(), rank())


def track(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    """Yield `items` and show a bar, on a terminal and in notebooks, in the first process.

    Args:
        items: What is worked on.
        what: Description of the work.
        total: Number of items; None if it is not known.
    """
    from tqdm.auto import tqdm

    yield from tqdm(items, what, total, leave=False, disable=None if first() else True)  # None: shown on a terminal


def spread(
    items: Sequence[Item],
    run: Callable[[int, Item], T],
    shown: Callable[[list[tuple[int, Item]]], Iterable[tuple[int, Item]]],
) -> list[T]:
    """Call `run(number, item)` on every item; each process runs its share.

    Args:
        items: The same items in every process.
        run: The function; its results must be picklable if there are several processes.
        shown: Wraps the (number, item) pairs of this process in a progress bar.

    Returns:
        The results of all items, in order, in every process.
    """
    share = list(enumerate(items))[rank() :: count()]
    pairs = launched().gathered([(number, run(number, item)) for number, item in shown(share)])
    return [value for _, value in sorted(pairs, key=lambda pair: pair[0])]


@cache
def _join() -> None:
    """Join the processes in a group until this one ends."""
    import torch
    from accelerate import PartialState

    state = PartialState(cpu=not torch.cuda.is_available())
    if state.num_processes != count():
        raise RuntimeError(f"wrong number of processes: got {state.num_processes} in the group; expected {count()}")
    atexit.register(state.destroy_process_group)
