"""Claims about ablation of one head, and of all but one can hold, not hold, and not be decided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import cases, frame, judged, worth

from headroles.papers.bench import Bench
from headroles.papers.michel2019 import effects
from headroles.tables import frame as heads
from headroles.tables.io import save_table


def single(*relative: float) -> pd.DataFrame:
    """Effects of heads, shares of the score, each with an interval of one percent to each side."""
    middle = np.array(relative)
    columns = {"kind": "enc-self", "layer": 0, "head": range(len(middle)), "relative": middle}
    return worth(pd.DataFrame(columns | {"relative.low": middle - 0.01, "relative.high": middle + 0.01}))


def redundant(near: int, far: int, significant: int = 8, better: int = 4) -> pd.DataFrame:
    return worth(frame("significant near far of better", (significant, near, far, 96, better)))


def kept(p: float, *costs: tuple[float, float, float]) -> pd.DataFrame:
    rows = [("enc-self", layer, p if layer else 0.5, *cost, 0.027) for layer, cost in enumerate(costs)]
    return worth(frame("kind layer p cost cost.low cost.high little", *rows))


RULES = {  # tables with which a claim holds, does not hold, and cannot be decided
    "fig1": (single(*[0.001] * 20, 0.2), single(*[0.1] * 20), single(0.1, 0.001, 0.2, 0.002)),
    "table1": (redundant(88, 2), redundant(2, 88), redundant(40, 40)),
    "table2": (
        kept(0.001, *[(0.0, -0.01, 0.01)] * 3, (1, 0.5, 2)),
        kept(0.001, *[(0.0, -0.01, 0.01)] * 2, *[(1, 0.5, 2)] * 2),
        kept(0.5, *[(0.02, 0, 0.1)] * 4),  # none is worse at p < 0.01, and none is sure to be as good
    ),
    "table5": (
        kept(0.001, *[(0.0, -0.01, 0.01)] * 2, *[(1, 0.5, 2)] * 2),
        kept(0.001, (0.0, -0.01, 0.01), *[(1, 0.5, 2)] * 3),
        kept(0.5, *[(0.02, 0, 0.1)] * 4),
    ),
    "table3": (
        kept(0.5, *[(0.0, -0.01, 0.01)] * 3), kept(0.001, *[(0.1, 0.05, 0.2)] * 3), kept(0.5, *[(0.0, -0.1, 0.1)] * 3)
    ),
    "table6": (
        kept(0.5, *[(0.0, -0.01, 0.01)] * 3), kept(0.001, *[(0.1, 0.05, 0.2)] * 3), kept(0.5, *[(0.0, -0.1, 0.1)] * 3)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "table", "answer"), cases(effects, RULES))
def test_a_rule_says_yes_no_and_that_it_cannot_be_decided(rule, table, answer):
    judged(rule, table, answer)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("ends", [(-0.01, 0.01), (0.02, 0.1), (np.nan, np.nan)])
def test_where_all_heads_are_worth_little_it_shows_nothing_that_one_is(name, ends):
    assert getattr(effects, f"{name}_claim")(worth(RULES[name][0], *ends)).holds is None


def test_four_heads_for_the_worse_are_too_few_to_refute_a_half():
    """0 of 4 has p 0.125 by the exact binomial test, 0 of 6 p 0.031; Wilson's interval of 0 of 4 is [0, 0.49]."""
    assert effects.table1_claim(redundant(70, 0, 4, 0)).holds is None
    assert effects.table1_claim(redundant(70, 0, 6, 0)).holds is False


def test_changes_of_a_loss_are_nats_and_not_shares():
    """Those of a loss have the bound 0.03 nats, whatever the loss is."""
    table = worth(single(*[0.001] * 20, 0.018), 2, 4).assign(metric="loss", **{"all.metric": "loss"})
    assert effects.fig1_claim(table).why == (
        "21 of 21 heads change it by less than 0.03 nats with their intervals, 0 by more; the largest change is 0.018 "
        "nats (layer 0 head 20); all of them cost 3.000 [2.000, 4.000] nats"
    )


def best_of(folder: Path, **of: str) -> Bench:
    """A study of a classifier that keeps its best heads, and effects of single heads by another model or text."""
    facts = {"weights": "w", "text": "t"}
    index = heads.index({("enc-self", 0): 2})
    for name, columns, signature in (
        ("best-accuracy-zero", {"head": [0], "effect": [0.0], "low": [-0.01], "high": [0.01], "p": [0.5]}, facts),
        (
            "ablation-accuracy-head-zero",
            {f"ablation[accuracy]{end}": [-0.1, 0.0] for end in ("", ".low", ".high", ".p", ".holm")},
            facts | of,
        ),
    ):
        rows = index[:1].droplevel("head") if "effect" in columns else index
        text = "|".join(
            f"{key}:{value}" for key, value in (signature | {"metric": "Accuracy()", "intact": "0.9"}).items()
        )
        save_table(heads.table(columns, rows, text), folder / f"{name}.parquet")
    return Bench([folder])


@pytest.mark.parametrize(("of", "little"), [({}, 0.027), ({"text": "u"}, np.nan), ({"weights": "v"}, np.nan)])
def test_the_whole_score_is_that_of_the_same_model_and_text(tmp_path, of, little):
    assert effects.table3(best_of(tmp_path, **of)).table["little"].tolist() == pytest.approx([little], nan_ok=True)


def test_half_of_the_significant_heads_must_be_for_the_better():
    """The paper's 4 of 8 are; of one head, or of none, it cannot be said."""
    assert effects.table1_claim(redundant(90, 0, 8, 4)).holds is True
    assert [effects.table1_claim(redundant(90, 0, *of)).holds for of in ((0, 0), (1, 0), (13, 0), (26, 26))] == [
        *(None, None, False, False)
    ]
    assert "nan" not in effects.table1_claim(redundant(90, 0, 0, 0)).why


@pytest.mark.parametrize("name", ["table2", "table3", "table5", "table6"])
def test_one_head_is_not_enough_where_it_is_surely_worse(name):
    """As in the Marian: little is lost in all layers, and in most of them it is lost at the paper's p."""
    rule = getattr(effects, f"{name}_claim")
    little = [(0.01, 0.005, 0.02)] * 18
    assert rule(kept(0.5, *little)).holds is True
    assert rule(kept(0.001, *little)).holds is None
    gained = [(-0.01, -0.02, -0.005)] * 18  # sure, and for the better
    assert rule(kept(0.001, *gained)).holds is True
