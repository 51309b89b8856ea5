"""Several processes: their number and rank, work spread over them, its progress, and modules that FSDP has wrapped."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor, nn

Item = TypeVar("Item")
T = TypeVar("T")
WRAPPED = "FSDPModule"  # of torch: the second base class of a module that FSDP wraps, after one made for it
DTYPES = ("param_dtype", "output_dtype")  # of its policy of precision, which change numbers


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
    even: bool = False  # whether each has to do as much work as the others, who otherwise wait for it

    def evenly(self, items: Iterable[T]) -> Iterator[T | None]:
        """Yield the items of this process, and None after them while another one has items, if work has to be even."""
        left = iter(items)
        while (item := next(left, None)) is not None or self.even:
            if self.even and not any(self.gathered([item is not None])):
                return
            yield item

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


def gathers(model: nn.Module) -> bool:
    """Return whether modules gather their weights in each forward (FSDP), which begins with that of the root."""
    return any(class_of(module) is not type(module) for module in model.modules())


def class_of(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module, of one that FSDP wraps that from before."""
    classes = type(module).__mro__
    return classes[2] if len(classes) > 2 and classes[1].__name__ == WRAPPED else classes[0]


def precision(module: nn.Module) -> dict[str, str]:
    """Return the dtypes to which FSDP converts the weights, inputs and outputs of a module, by name."""
    if class_of(module) is type(module):
        return {}
    policy = module._get_fsdp_state()._mp_policy  # type: ignore[operator]
    return {name: str(dtype) for name in DTYPES if (dtype := getattr(policy, name))}
