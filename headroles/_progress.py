"""A progress bar on long work: on a terminal and in notebooks, silent elsewhere."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import track as rich_track

from headroles import _distributed

T = TypeVar("T")


def track(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    """Yield `items` and show a bar with the description `what`; `total` is None for an unknown number of items."""
    console = Console(stderr=True)
    shown = (console.is_terminal or console.is_jupyter) and _distributed.first()
    yield from rich_track(items, what, total=total, console=console, disable=not shown, transient=True)
