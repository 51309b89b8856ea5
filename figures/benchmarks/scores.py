"""How much scoring every head costs over the bare forward: `python tests/benchmarks/scores.py MODEL CORPUS [TARGET]`.

Prints, all from one run on the same batches: the processor time of one pass of `score` over that of the bare forward
(eager, `output_attentions=True`; medians of paired repeats), the peak memory of each in a process of its own, and the
time over one pass of one sentence at a time: by `score` itself, and for encoders by the loops of `tests/reference`.
OMP_NUM_THREADS=1 makes processor time the time a quiet machine takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from reference import attention as slow

import headroles as hr
from headroles.models import batching
from headroles.models.attention_hooks import without_cache

SCORES = ["confidence", "position", "rarity", "entropy", "sink", "distance", "alignment"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("target", nargs="?")
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--peak", choices=["bare", "scores", "syntax"], help="run this alone and print its peak memory")
    given = parser.parse_args()
    runs = _runs(given)
    if given.peak:
        runs[given.peak]()
        print(_peak())
        return
    print(json.dumps(_ratios(runs, given.repeats) | _peaks(), indent=1))


def _runs(given: argparse.Namespace) -> dict[str, Callable[[], object]]:
    model, tokenizer = hr.load(given.model)
    corpus = hr.read(given.corpus, given.target, limit=given.limit)
    kinds = {site.kind for site in hr.attention_sites(model)}
    scores = [name for name in SCORES if set(hr.list_scores()[name].kinds) & kinds]
    groups = list(batching.batches(batching.encode(corpus, tokenizer, model), model, max_tokens=given.max_tokens))

    def bare() -> None:
        before = model.config._attn_implementation
        model.set_attn_implementation("eager")
        with torch.inference_mode():
            for batch in groups:
                model(**batch.inputs, **without_cache(model), output_attentions=True)
        model.set_attn_implementation(before)

    def singly() -> None:
        for sentence in corpus[:50]:
            hr.score(model, tokenizer, hr.Corpus("one", (sentence,)), scores, n_resamples=0)

    runs: dict[str, Callable[[], object]] = {
        "bare": bare,
        "scores": lambda: hr.score(model, tokenizer, corpus, scores, max_tokens=given.max_tokens),
        "syntax": lambda: hr.score(model, tokenizer, corpus, [*scores, "syntax"], max_tokens=given.max_tokens),
        "singly": singly,
        "heads_per_batch": lambda: hr.score(
            model, tokenizer, corpus[:50], scores, n_resamples=0, max_tokens=given.max_tokens
        ),
    }
    if kinds == {"enc-self"}:
        runs["loops"] = lambda: slow.scores(model, tokenizer, corpus[:50])
    return runs


def _ratios(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, object]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name in runs:  # warm-up
        runs[name]()
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    over = {
        name: round(statistics.median(a / b for a, b in zip(times[name], times[other], strict=True)), 3)
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


def _peak() -> float:
    """The most memory this process has held, in MiB (Linux; `getrusage` would count the parent's too)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def _peaks() -> dict[str, float]:
    """Peak memory in MiB of a process that does one thing."""
    command = [sys.executable, *sys.argv]
    names = ("bare", "scores", "syntax")
    found = {
        name: subprocess.run([*command, "--peak", name], capture_output=True, text=True, check=True) for name in names
    }
    return {f"peak MiB, {name}": round(float(run.stdout.split()[-1])) for name, run in found.items()}


if __name__ == "__main__":
    main()
