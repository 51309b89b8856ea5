"""Claims about pruning of the encoder can hold, not hold, and not be decided."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from helpers.artefacts import cases, frame, judged, put, worth

from headroles.papers.bench import Bench
from headroles.papers.voita2019 import encoder_pruning


def sizes(low: float, high: float) -> pd.DataFrame:
    rows = (48, 48, 0, 0, 0), (24, 48, 0, 0, 0), (10, 48, 0.02, low, high)
    return worth(frame("heads of cost cost.low cost.high", *rows))


def left(*few: float) -> pd.DataFrame:
    return frame("heads none", (48, 34), (30, 18), few)


FORMULAS = encoder_pruning.fig6(Bench([])).table
RULES = {  # tables with which a claim holds, does not hold, and cannot be decided
    "fig6": (FORMULAS, FORMULAS.assign(**{"ours P(0)": 0.5}), None),
    "fig7": (sizes(0.0, 0.02), sizes(0.04, 0.1), sizes(0.0, 0.05)),
    "fig8": (left(8, 0), frame("heads none", (48, 2), (12, 10)), left(8, 5)),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "table", "answer"), cases(encoder_pruning, RULES))
def test_a_rule_says_yes_no_and_that_it_cannot_be_decided(rule, table, answer):
    judged(rule, table, answer)


def test_costs_of_a_loss_are_nats():
    table = sizes(0.029, 0.037).assign(metric="loss", **{"all.metric": "loss"})
    assert encoder_pruning.fig7_claim(table).why == (
        "with 10 of 48 heads left the control's score loses 0.020 [0.029, 0.037] nats, without any and without "
        "training 0.500 nats"
    )


def swept(folder: Path, name: str, value: float, **more: object) -> Bench:
    columns = {"enc-self": [48, 10], "value": [36.0, value], "low": [35.9, value - 0.1], "high": [36.1, value + 0.1]}
    changes = {"change": [0, value - 36], "change.low": [0, value - 36.1], "change.high": [0, value - 35.9]}
    put(folder / f"{name}.parquet", columns | changes | more, "model:m|metric:BLEU(beams=1)")
    return Bench([folder])


@pytest.mark.parametrize(
    "other", ["sparsity-l0-dec-self-enc-self", "sparsity-l0-cross-enc-self", "sparsity-importance-enc-self"]
)
def test_only_gates_of_the_encoder_are_shown(tmp_path, other):
    """Tables of other kinds and strategies come earlier by the alphabet."""
    swept(tmp_path, other, 10.0)
    bench = swept(tmp_path, "sparsity-l0-enc-self", 35.9)
    assert encoder_pruning.fig7(bench).table.set_index("heads")["value"].loc[10].max() == 35.9


def test_formulas_are_the_papers():
    assert FORMULAS["ours P(0)"].tolist() == pytest.approx([0.232, 0.039, 0.858], abs=5e-4)
