"""Times of several ways, taken in turns, their ratios, and the peak memory of a process."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")


def times_of(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Processor times of each way, one after the other, so many times."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(timed(run)[1])
    return times


def timed(run: Callable[[], T]) -> tuple[T, float]:
    """What comes back, and the processor time it took; where there is a GPU, the wall time until that has ended."""
    if not torch.cuda.is_available():
        start = time.process_time()
        return run(), time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = run()
    torch.cuda.synchronize()
    return found, time.perf_counter() - start


def device() -> str:
    """The GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def ratio(one: list[float], other: list[float], digits: int = 2) -> float:
    """The median of paired ratios."""
    return round(statistics.median(a / b for a, b in zip(one, other, strict=True)), digits)


def mebibytes(name: str = "VmHWM") -> float:
    """The most memory that this process has held, or VmRSS that it holds, in MiB (Linux; `getrusage` would count the
    parent's too)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def keep(found: object, job: str, output: Path | None = None) -> None:
    """Print what a job found as JSON, and put it into a file, where other jobs stay."""
    print(json.dumps(found, indent=1))
    if output is not None:
        others = json.loads(output.read_text()) if output.is_file() else {}
        output.write_text(json.dumps(others | {job: found}, indent=1, ensure_ascii=False) + "\n")
