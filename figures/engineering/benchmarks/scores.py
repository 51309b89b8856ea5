"""How much scoring every head costs over the bare forward?

Prints, all from one run on the same batches: the processor time of one pass of `score` over that of the bare forward
(eager, `output_attentions=True`; medians of paired repeats), the peak memory of each in a process of its own, and the
time over one pass of one sentence at a time: by `score` itself, and for encoders by the loops of `tests/reference`.
OMP_NUM_THREADS=1 makes processor time the time a quiet machine takes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Annotated

import torch
import typer
from reference import attention as slow
from timing import keep, mebibytes, ratio, times_of

import headroles as hr
from headroles.models.head_model import HeadModel

SCORES = ["confidence", "position", "rarity", "entropy", "sink", "distance", "alignment"]


def main(
    model: str,
    corpus: str,
    target: Annotated[str | None, typer.Argument()] = None,
    limit: int = 300,
    repeats: int = 5,
    max_tokens: int = 4096,
    peak: Annotated[str | None, typer.Option(help="Run bare, scores or syntax alone: print its peak memory.")] = None,
) -> None:
    runs = _runs(*hr.load(model), hr.read(corpus, target, limit=limit), max_tokens)
    if peak:
        runs[peak]()
        print(mebibytes())
        return
    keep(_ratios(runs, repeats) | _peaks(), "scores")


def _runs(model, tokenizer, corpus: hr.Corpus, max_tokens: int) -> dict[str, Callable[[], object]]:
    kinds = {site.kind for site in hr.attention_sites(model)}
    scores = [name for name in SCORES if set(hr.list_scores()[name].kinds) & kinds]
    handle = HeadModel.of(model, tokenizer)
    groups = list(handle.batches(handle.encode(corpus), max_tokens=max_tokens))

    def bare() -> None:
        before = model.config._attn_implementation
        model.set_attn_implementation("eager")
        with torch.inference_mode():
            for batch in groups:
                handle.forward(batch, output_attentions=True)
        model.set_attn_implementation(before)

    def singly() -> None:
        for sentence in corpus[:50]:
            hr.score(model, tokenizer, hr.Corpus("one", (sentence,)), scores, n_resamples=0)

    runs: dict[str, Callable[[], object]] = {
        "bare": bare,
        "scores": lambda: hr.score(model, tokenizer, corpus, scores, max_tokens=max_tokens),
        "syntax": lambda: hr.score(model, tokenizer, corpus, [*scores, "syntax"], max_tokens=max_tokens),
        "singly": singly,
        "together": lambda: hr.score(model, tokenizer, corpus[:50], scores, n_resamples=0, max_tokens=max_tokens),
    }
    if kinds == {"enc-self"}:
        runs["loops"] = lambda: slow.scores(model, tokenizer, corpus[:50])
    return runs


def _ratios(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, object]:
    times_of(runs, 1)  # to warm up
    times = times_of(runs, repeats)
    over = {
        name: ratio(times[name], times[other], 3)
        for name, other in [("scores", "bare"), ("syntax", "bare"), ("singly", "together"), ("loops", "together")]
        if name in runs
    }
    return {
        "threads": torch.get_num_threads(),
        "time, all scores but syntax / bare forward": over["scores"],
        "time, all scores with syntax / bare forward": over["syntax"],
        "time, one sentence at a time / one pass": over["singly"],
        "time, one sentence at a time in plain loops / one pass": over.get("loops"),
    }


def _peaks() -> dict[str, float]:
    """Peak memory in MiB of a process that does one thing."""
    command = [sys.executable, *sys.argv]
    names = ("bare", "scores", "syntax")
    found = {
        name: subprocess.run([*command, "--peak", name], capture_output=True, text=True, check=True) for name in names
    }
    return {f"peak MiB, {name}": round(float(run.stdout.split()[-1])) for name, run in found.items()}
