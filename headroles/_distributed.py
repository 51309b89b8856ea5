"""Several processes: their number and rank, work that is spread over them, and its progress bar."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
MINUTE = 60.0  # seconds between two lines of progress
log = logging.getLogger(__name__)


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
    """The processes that share work: their number, the rank of this one, their group."""

    count: int
    rank: int
    group: Any = None  # None: all processes
    ranks: Any = None  # group of the processes that do the same work as this one, with other parts of the weights

    def gathered(self, values: list[T]) -> list[T]:
        """Concatenate the lists of all processes of the axis, in each of them."""
        if self.count == 1:
            return values
        from torch import distributed

        _join()
        lists: list[list[T]] = [[] for _ in range(self.count)]
        distributed.all_gather_object(lists, values, group=self.group)
        return [value for part in lists for value in part]

    def summed(self, values: Tensor) -> Tensor:
        """Sum tensors of the same shape over all processes of the axis, in each of them."""
        if self.count == 1:
            return values
        from torch import distributed

        _join()
        total = values.contiguous().clone()  # all processes add in one order in memory
        distributed.all_reduce(total, group=self.group)
        return total

    def agreed(self, values: list[T]) -> list[T]:
        """Return the values of the first process that does the same work."""
        if self.ranks is None:
            return values
        from torch import distributed

        shared = [values]
        distributed.broadcast_object_list(shared, group=self.ranks, group_src=0)
        return shared[0]


def launched() -> Axis:
    """Return the axis of all processes that the launcher started."""
    return Axis(count(), rank())


@cache
def _join() -> None:
    """Join the processes in a group until this one ends."""
    import torch
    from accelerate import PartialState

    atexit.register(PartialState(cpu=not torch.cuda.is_available()).destroy_process_group)


def track(
    items: Iterable[T], what: str, total: int | None, advice: Callable[[float], str] | None = None, later: float = 0
) -> Iterator[T]:
    """Yield `items`; the first process shows a bar on a terminal and in notebooks, elsewhere logs a line a minute.

    After the first item it logs how many minutes the others and `later` ones, of the next stages, take, and what
    `advice` says of so many seconds.
    """
    from tqdm.auto import tqdm

    bar = tqdm(items, what, total, leave=False, disable=None if first() else True)  # None: shown on a terminal
    start = last = monotonic()
    for number, item in enumerate(bar, 1):
        yield item
        now = monotonic()
        if number == 1 and first() and (rest := (now - start) * ((total or 1) - 1 + later)) >= MINUTE:
            bar.clear()
            log.info("%s: about %.0f min left%s", what, rest / MINUTE, advice(rest) if advice else "")
        if bar.disable and first() and now - last >= MINUTE:
            last = now
            log.info("%s: %d of %s after %d min", what, number, total or "?", (now - start) // MINUTE)
