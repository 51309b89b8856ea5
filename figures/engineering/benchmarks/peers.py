"""What others take to do the same? With the extra `[bench]`.

Four jobs (all attention statistics, ablating every head, relevance of every head, a forward without half of the heads)
on random models of base size (a Marian of 6+6 layers and a GPT-2 of 6, d 512, 8 heads, 8,000 words) and random
sentences, by us, TransformerLens, nnsight and captum, all with the same weights, in one run: processor time over ours
(medians of paired repeats), peak memory over ours (a process of its own for each; of ablation with eight heads), and
the largest difference of the numbers from ours. A tool that does not do a job has a row that says why. Then how the
cost grows with heads, length and corpus. OMP_NUM_THREADS=1 makes processor time the time a quiet machine takes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import attention
import attributing
import closing
import growth as costs
import halving
import pandas as pd
import torch
import transformers
import typer
from setting import MODELS, Job, Setting, installed, setting
from timing import mebibytes, ratio, timed

JOBS = {"statistics": attention.JOB, "ablation": closing.JOB, "relevance": attributing.JOB, "pruning": halving.JOB}
PEERS = ("transformer-lens", "nnsight", "captum", "bertviz", "inseq")
Found = dict[str, Any]
Rows = dict[str, Found]
Peaks = dict[str, tuple[float, float]]


def main(
    jobs: Annotated[list[str], typer.Option(help=f"Of {', '.join(JOBS)}; none: growth alone.")] = list(JOBS),
    models: Annotated[list[str], typer.Option(help=f"Of {', '.join(MODELS)}.")] = list(MODELS),
    repeats: Annotated[int, typer.Option(help="Of ablation; three and ten times as many of the others.")] = 1,
    sentences: Annotated[int | None, typer.Option(help="Of each job, in place of its own; without memory.")] = None,
    growth: bool = True,
    memory: Annotated[bool, typer.Option(help="Read from /proc, which Linux has.")] = True,
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny models, to see that all runs.")] = False,
    output: Annotated[Path | None, typer.Option(help="A file for the numbers; other jobs there stay.")] = None,
) -> None:
    transformers.logging.set_verbosity_error()
    found: Found = {"setting": _machine(sentences)}
    sized = {key: _sized(job, sentences) for key, job in JOBS.items()}
    measured = [(job, name) for name in models for job in jobs] if memory and not sentences else []
    peaks = {(job, name): _peaks(JOBS[job], name, tiny) for job, name in measured}
    for name in models:  # after all peaks: each is of a copy of this process, which is still small
        for key in jobs:
            job = sized[key]
            compared(job, _setting(job, name, tiny=True), 1)  # to warm up: imports, and what is made once
            rows = compared(job, _setting(job, name, tiny=tiny), repeats, peaks.get((key, name)))
            found.setdefault("jobs", {}).setdefault(job.name, {})[name] = rows
            print(f"\n{job.name}, {name}\n{_table(rows)}", flush=True)
            if key == "pruning":
                left = halving.parameters(_setting(job, name, tiny=tiny))
                found.setdefault("left", {})[name] = left
                print(f"(share of parameters left: {left['all']}, of those of attention {left['attention']})")
            _save(found, output)
    if growth:
        found["growth"] = costs.grown(repeats, costs.FEW if tiny else costs.POINTS)
        print(f"\n{costs.table(found['growth'])}")
    found["setting"]["load at the end"] = round(os.getloadavg()[0], 2)
    print(f"\n{json.dumps(found['setting'], indent=1)}")
    _save(found, output)


def _save(found: Found, place: Path | None) -> None:
    if place is None:
        return
    known: Found = json.loads(place.read_text()) if place.exists() else {}
    jobs = known.get("jobs", {})
    for name, models in found.get("jobs", {}).items():
        jobs[name] = jobs.get(name, {}) | models
    parts = {part: known.get(part, {}) | found[part] for part in ("left", "growth") if part in found}
    place.write_text(json.dumps(known | found | parts | {"jobs": jobs}, indent=1) + "\n")


def compared(job: Job, of: Setting, repeats: int, peaks: Peaks | None = None) -> Rows:
    """A row for each tool: time and memory over ours, the largest difference of its numbers; or why there is none."""
    times, results, rows = _run(job, of, repeats * job.repeats)
    first = next(iter(job.tools))
    for name, mine in times.items():
        tool, (peak, own) = job.tools[name], (peaks or {}).get(name, (None, None))
        rows[name] = {
            "time / ours": ratio(mine, times[first]),
            "memory / ours": peak and round(peak / peaks[first][0], 2),  # type: ignore[index]
            "largest difference": tool.against and difference(results[name], results[tool.against]),
            "seconds": round(statistics.median(mine), 3),
            "peak MiB": peak and round(peak),
            "MiB of the job": own and round(own),
            "note": tool.note,
        }
    rows[first]["largest number"] = float(f"{results[first].abs().max().max():.3g}")
    return {name: rows[name] for name in job.tools} | {name: {"why not": why} for name, why in job.cannot.items()}


def _run(job: Job, of: Setting, repeats: int) -> tuple[dict[str, list[float]], dict[str, pd.DataFrame], Rows]:
    """Processor times and what came out, in turns; a tool that fails has a row that says how."""
    times: dict[str, list[float]] = {}
    results: dict[str, pd.DataFrame] = {}
    rows: Rows = {}
    runs: dict[str, Callable[[], pd.DataFrame]] = {}
    for _ in range(repeats):
        for name in (name for name in job.tools if name not in rows):
            try:
                run = runs[name] = runs.get(name) or job.tools[name].make(of)
                results[name], seconds = timed(run)
                times.setdefault(name, []).append(seconds)
            except Exception as error:  # others may fail in any way
                if name == next(iter(job.tools)):
                    raise
                rows[name] = {"why not": f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"}
    return times, results, rows


def difference(one: pd.DataFrame, other: pd.DataFrame) -> float:
    """The largest difference of two tables of the same rows and columns, where both have a number."""
    if set(one) != set(other) or not one.index.equals(other.index):
        raise ValueError(f"these are not of the same: {sorted(set(one) ^ set(other), key=str)}")
    if not one[list(other)].isna().equals(other.isna()):
        raise ValueError("these have no number in different places")
    return float(f"{(one[list(other)] - other).abs().max().max():.2g}")


def _peaks(job: Job, name: str, tiny: bool) -> Peaks:
    """The peak memory in MiB of each tool that works, in a process of its own, and how much of it the job took."""
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        found = {tool: pool.apply(_peak, (job.name, name, tool, tiny)) for tool in job.tools}
    return {tool: peak for tool, peak in found.items() if peak is not None}


def _peak(of: str, name: str, tool: str, tiny: bool) -> tuple[float, float] | None:
    job = next(job for job in JOBS.values() if job.name == of)
    try:
        run = job.tools[tool].make(_setting(job, name, tiny=tiny, alone=True, few=closing.TOGETHER))
        Path("/proc/self/clear_refs").write_text("5")  # what was needed to load the tool is forgotten
        before = mebibytes("VmRSS")
        run()
    except Exception:  # the row of its time says why
        return None
    return mebibytes(), mebibytes() - before


def _setting(job: Job, name: str, *, tiny: bool, **options: Any) -> Setting:
    if tiny:
        return setting(MODELS[name](100, layers=2, width=32, heads=4), 4, 6, **options)
    return setting(MODELS[name](), *job.size, **options)


def _table(rows: Rows) -> str:
    shown = ["time / ours", "memory / ours", "largest difference", "seconds", "peak MiB", "MiB of the job"]
    ran = {name: {column: row[column] for column in shown} for name, row in rows.items() if "why not" not in row}
    first = next(iter(rows))
    lines = [pd.DataFrame(ran).T.to_string(na_rep="-"), f"(largest number: {rows[first]['largest number']})"]
    said = {name: row.get("why not") or row["note"] for name, row in rows.items()}
    return "\n".join([*lines, *(f"  {name}: {text}" for name, text in said.items() if text)])


def _sized(job: Job, sentences: int | None) -> Job:
    return replace(job, size=(sentences or job.size[0], job.size[1]))


def _machine(sentences: int | None) -> Found:
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "packages": {name: installed_elsewhere(name) for name in PEERS},
        "sentences, words": {job.name: _sized(job, sentences).size for job in JOBS.values()},
        "load at the start": round(os.getloadavg()[0], 2),
        "headroles": version("headroles"),
    }


def installed_elsewhere(name: str) -> str:
    """What `installed` says, asked in a process of its own: this one stays as small as it is."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(partial(installed, name))
