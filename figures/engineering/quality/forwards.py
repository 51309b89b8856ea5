"""How much work ablation is, in forwards of the model.

SHARED and `--work` are those of `predicted.py`, which ablates every head of the small Marian on captions once. From
these numbers corpora of `--size` captions are drawn with replacement, and ways of stopping are simulated on them.
Multiplications are counted on one batch: those of the gradient, of the intact model, and of each head that is ablated,
over those of a forward. Unlike times they do not depend on the machine. Prints, for each way, the share of heads x
examples that are ablated, the forwards per example, the forwards of a loop (one for each head and one without) over
these, and the shares of heads with the decision of the whole corpus at p < 0.01: of all heads, and of those with |z|
more than 1 from the border.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from predicted import LEVEL, everything, ordered, stopped, task
from scipy import stats
from torch.utils.flop_counter import FlopCounterMode

from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import as_metric
from headroles.ablation.prediction_powered import estimates
from headroles.ablation.sweep import Sweep
from headroles.models.head_model import HeadModel

WAYS = ("whole", "1.1")


def main(
    shared: Path,
    size: int = 2500,
    repeats: int = 10,
    work: Annotated[Path, typer.Option(help="For models and finished batches.")] = Path("predicted"),
    output: Path | None = None,
) -> None:
    torch.set_num_threads(1)
    gradient, heads = costs(shared, work)
    report = json.dumps(
        simulated(everything("captions", "loss", shared, work), gradient, heads, size, repeats), indent=1
    )
    print(report)
    if output:
        output.write_text(report + "\n")


def simulated(whole: ExampleStats, gradient: float, heads: np.ndarray, size: int, repeats: int) -> dict[str, object]:
    """Work and decisions of each way of stopping."""
    report: dict[str, object] = {"examples": size, "heads": len(heads), "repeats": repeats}
    report |= {"gradient": round(gradient, 2), "all heads": round(float(heads.sum()), 1)}
    found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    for number in range(repeats):
        rng = np.random.default_rng(number)
        part = ordered(whole.take(rng.integers(len(whole.numbers), size=size)), rng)
        tokens = (
            np.r_[0, np.cumsum(part.intact[:, 1])] / part.intact[:, 1].sum()
        )  # share of those of the first examples
        all_of_it = estimates(part)
        significant = np.array([each.tested[2] for each in all_of_it]) < LEVEL
        z = np.array([abs(each.effect / each.error) if each.error else 0 for each in all_of_it])
        sharp = np.abs(z - stats.norm.isf(LEVEL / 2)) > 1
        for way in WAYS:
            estimated, shares = stopped(part, way)
            same = (np.array([each.tested[2] for each in estimated]) < LEVEL) == significant
            work = tokens[np.round(np.array(shares) * size).astype(int)]
            forwards = (way != "whole") * gradient + work.max() + float(heads @ work)
            found[way].append((float(np.mean(shares)), forwards, float(same.mean()), float(same[sharp].mean())))
    for way, rows in found.items():
        share, forwards, same, clear = np.mean(rows, axis=0)
        report[way] = {"share": round(share, 4), "forwards": round(forwards, 2)}
        report[way] |= {"loop / forwards": round((len(heads) + 1) / forwards, 1)}
        report[way] |= {"same decision": round(same, 4), "same decision, clear": round(clear, 4)}
    return report


def costs(shared: Path, work: Path) -> tuple[float, np.ndarray]:
    """Work of the gradient, and of ablating each head, in forwards."""
    model, tokenizer, corpus = task("captions", shared, work)
    handle = HeadModel.of(model, tokenizer)
    sweep = Sweep(handle, corpus.sample(16), as_metric("loss"), max_tokens=10**5)
    variants, sites = [frozenset([head]) for head in handle.heads], dict[tuple[str, int], float]()
    assert len(sweep.batches) == 1
    forward = counted(lambda: sweep.run([]))
    gradient = counted(lambda: sweep.predict(variants))
    for kind, layer, head in handle.heads:
        if head == 0:
            one = [frozenset([(kind, layer, head)])]
            sites[kind, layer] = counted(lambda one=one: sweep.run(one)) - forward
    return gradient / forward, np.array([sites[kind, layer] / forward for kind, layer, _ in handle.heads])


def counted(run: Callable[[], object]) -> int:
    """Floating-point operations of matrix products."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()
