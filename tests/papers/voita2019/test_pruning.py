"""Claims about pruning of heads of all kinds can hold, not hold, and not be decided."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import cases, frame, judged, put

from headroles.papers.bench import Bench
from headroles.papers.voita2019 import pruning


def kinds(*small: float, half: tuple[int, int, int] = (9, 31, 32)) -> pd.DataFrame:
    return frame("heads of enc-self dec-self cross", (144, 144, 48, 48, 48), (72, 144, *half), (36, 144, *small))


def thirds(*counts: float) -> pd.DataFrame:
    names_ = [f"{kind} {third}" for kind in ("dec-self", "cross") for third in ("lower", "middle", "upper")]
    row = dict(zip(names_, counts, strict=True)) | {f"{name}.of": 16 for name in names_}
    return pd.DataFrame([row | {"heads": 40, "of": 96}])


def scratch(low: float, high: float, steps: float = 900) -> pd.DataFrame:
    columns = "heads of finetuned gap gap.low gap.high steps.finetuned steps.scratch"
    return frame(columns, (72, 144, 30, (low + high) / 2, low, high, 454, steps))


RULES = {  # tables with which a claim holds, does not hold, and cannot be decided
    "fig9": (kinds(3, 14, 19), kinds(20, 8, 8), kinds(11, 12, 13, half=(22, 24, 26))),
    "fig10": (
        thirds(9, 5, 2, 1, 4, 14), thirds(9, 5, 2, 14, 4, 1), thirds(5, 5, 5, 1, 4, 14)
    ),
    "table2": (scratch(1, 2), scratch(-2, -1), scratch(-0.5, 0.5)),
    "gates": tuple(frame("of undecided closed", (288, count, 9)) for count in (5, 80, 25)),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "table", "answer"), cases(pruning, RULES))
def test_a_rule_says_yes_no_and_that_it_cannot_be_decided(rule, table, answer):
    judged(rule, table, answer)


@pytest.mark.parametrize("table", [scratch(-2, -1, steps=4540), scratch(1, 2, steps=np.nan)])
def test_what_was_not_trained_alike_is_not_compared(table):
    verdict = pruning.table2_claim(table)
    assert (verdict.holds, verdict.comparable, verdict.answer) == (None, False, "not comparable")


@pytest.mark.parametrize(("base", "steps"), [([("base", 9000)], 9454), ([], np.nan)])
def test_the_steps_before_pruning_count(tmp_path, base, steps):
    """A model that was trained for 9,000 steps and pruned in 454 is no fair comparison for one of 900."""
    lengths = [*base, ("finetuned", 454), ("scratch", 900)]
    what, counts = zip(*lengths, strict=True)
    put(tmp_path / "trainings.parquet", {"what": what, "steps": counts, "epochs": np.nan})
    ends = {
        f"{name}{end}": [value] for name, value in (("finetuned", 30), ("scratch", 20)) for end in ("", ".low", ".high")
    }
    put(tmp_path / "scratch.parquet", {"heads": [72], "e": [8], "d": [32], "c": [32], **ends}, "metric:BLEU(beams=1)")
    put(tmp_path / "sparsity-l0.parquet", {"heads": [144, 72], "of": [144, 144], "cross": [48, 32]})
    artefact = pruning.table2(Bench([tmp_path]))
    assert artefact.table["steps.finetuned"].max() == pytest.approx(steps, nan_ok=True)
    assert artefact.verdict.answer == "not comparable"


def test_steps_of_another_study_do_not_count(tmp_path):
    other, study = tmp_path / "other", tmp_path / "study"
    put(other / "trainings.parquet", {"what": ["base", "finetuned", "scratch"], "steps": 100, "epochs": 1.0})
    ends = {f"{name}{end}": [30.0] for name in ("finetuned", "scratch") for end in ("", ".low", ".high")}
    put(study / "scratch.parquet", {"heads": [72], "e": [8], "d": [32], "c": [32], **ends}, "metric:BLEU(beams=1)")
    put(study / "sparsity-l0.parquet", {"heads": [144, 72], "of": [144, 144], "cross": [48, 32]})
    assert pruning.table2(Bench([study, other])).verdict.answer == "not comparable"
    put(study / "trainings.parquet", {"what": ["base", "finetuned", "scratch"], "steps": 100, "epochs": 1.0})
    assert pruning.table2(Bench([other, study])).verdict.answer == "cannot be said"


def test_sizes_of_an_untrained_toy_do_not_satisfy_the_rule_of_fig9():
    """Its gates keep 1, 9 and 8, then 1, 2 and 4 heads of the kinds: the encoder goes first, cross is not the last."""
    rows = (36, 36, 12, 12, 12), (18, 36, 1, 9, 8), (7, 36, 1, 2, 4)
    verdict = pruning.fig9_claim(frame("heads of enc-self dec-self cross", *rows))
    assert (verdict.holds, verdict.why) == (
        None,
        "with 7 of 36 heads left: enc-self 1, dec-self 2, cross 4; cross-attention keeps the largest share in 1 of "
        "2 sizes with at most half (one training for each size)",
    )


def test_a_difference_of_one_head_refutes_nothing():
    yes = kinds(3, 14, 19)
    assert pruning.fig9_claim(yes).holds is True
    more = pd.concat([yes, frame("heads of enc-self dec-self cross", (135, 144, 45, 44, 46))], ignore_index=True)
    assert pruning.fig9_claim(more).holds is None


def test_kinds_with_unlike_numbers_of_heads_are_compared_by_the_share_that_is_kept():
    """The encoder has twice as many heads, and keeps a tenth of them where cross-attention keeps most of its own."""
    rows = (192, 192, 96, 48, 48), (146, 192, 50, 48, 48), (90, 192, 14, 36, 40), (50, 192, 6, 14, 30)
    assert pruning.fig9_claim(frame("heads of enc-self dec-self cross", *rows)).answer == "yes"


@pytest.mark.parametrize(
    ("kept", "answer"),
    [((0.5, 0.5, 0.5, 0.5), "cannot be said"), ((1, 0.25, 0.25, 1), "yes"), ((0.25, 1, 1, 0.25), "no")],
)
def test_thirds_of_unlike_numbers_of_layers_are_compared_by_the_share_that_is_kept(kept, answer):
    """Of eight layers the lower third has three and the upper two: 24 and 16 heads of each kind."""
    names_ = [f"{kind} {third}" for kind in ("dec-self", "cross") for third in ("lower", "middle", "upper")]
    of = dict(zip(names_, (24, 24, 16) * 2, strict=True))
    shares = dict(zip(names_, (kept[0], 0.5, kept[1], kept[2], 0.5, kept[3]), strict=True))
    row = {name: shares[name] * of[name] for name in names_} | {f"{name}.of": of[name] for name in names_}
    assert pruning.fig10_claim(pd.DataFrame([row | {"heads": 72, "of": 192}])).answer == answer
