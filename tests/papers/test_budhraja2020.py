"""Claims about pruning and fine-tuning can hold, not hold, and not be decided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import cases, frame, gained, judged, put, tuned
from helpers.prunings import learnt
from helpers.trainings import films, tokenizer

from headroles.papers import budhraja2020
from headroles.papers.bench import Bench
from headroles.papers.verdicts import with_bounds
from headroles.papers.workflow import Material, Workflow
from headroles.pruning.weight_changes import alike
from headroles.tables import frame as heads
from headroles.tables.io import load_table, save_table


def chance(low: float, high: float) -> pd.DataFrame:
    columns = "of tuned share heads cost cost.low cost.high"
    rows = ("here", False, 0.5, 36, 0.2, 0.1, 0.3), ("here", True, 0.5, 36, 0.02, low, high)
    return tuned(frame(columns, *rows))


def places(middle: tuple[float, float], consecutive: tuple[float, float]) -> pd.DataFrame:
    rows = [
        (name, f"{name} x", 36, sum(ends) / 2, *ends)
        for name, ends in (("middle", middle), ("consecutive", consecutive))
    ]
    return tuned(frame("question taken heads gain low high", *rows))


def moved(p: float, cv: float, more: tuple[float, float] = (0.01, 0.02)) -> pd.DataFrame:
    row = {"of": "moved[all] of heads", "cv": cv, "largest over mean": 1 + cv, "w": 0.5, "p": p}
    return tuned(pd.DataFrame([row | dict(zip(with_bounds("more"), (sum(more) / 2, *more), strict=True))]))


RULES = {  # tables with which a claim holds, does not hold, and cannot be decided
    "claim1": (chance(0, 0.02), chance(0.1, 0.2), chance(0, 0.1)),
    "claim2": (gained(0.001, -0.001, 0.003), gained(0.1, 0.08, 0.12), gained(0.01, -0.05, 0.07)),
    "claim3": (
        places((0.1, 0.2), (0.1, 0.2)), places((-0.2, -0.1), (0.1, 0.2)), places((-0.1, 0.2), (0.1, 0.2))
    ),
    "claim4": (moved(0.5, 0.05), moved(0.001, 0.3), moved(0.5, 0.05, (-0.01, 0.02))),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "table", "answer"), cases(budhraja2020, RULES))
def test_a_rule_says_yes_no_and_that_it_cannot_be_decided(rule, table, answer):
    judged(rule, table, answer)


def test_claim2_a_strategy_that_is_worse_than_chance_is_no_advantage():
    loses = gained(0.001, -0.001, 0.003)
    loses.loc[1, ["gain", "gain.low", "gain.high"]] = -0.2, -0.21, -0.19
    assert budhraja2020.claim2_claim(loses).holds is None


@pytest.mark.parametrize(
    ("rule", "table"),
    [
        (budhraja2020.claim1_claim, tuned(chance(0.1, 0.2), epochs=0.17)),
        (budhraja2020.claim2_claim, tuned(gained(0.1, 0.08, 0.12), epochs=np.nan)),
        (budhraja2020.claim3_claim, tuned(places((0.1, 0.2), (0.1, 0.2)), epochs=1)),
        (budhraja2020.claim4_claim, tuned(moved(0.001, 0.3), epochs=1)),
    ],
)
def test_what_was_not_trained_alike_is_not_compared(rule, table):
    verdict = rule(table)
    assert (verdict.holds, verdict.comparable, verdict.answer) == (None, False, "not comparable")


# --- what the tables of the claims hold ------------------------------------------------------------------------------


def contest(*rows: tuple[object, ...]) -> dict[str, list[object]]:
    """A comparison by rows of strategy, heads, tuned, value, half width and gain."""
    columns = ["strategy", "heads", "tuned", *with_bounds("value"), *with_bounds("gain")]
    full = [
        (*row[:3], value := row[3], value - row[4], value + row[4], gain := row[5], gain - row[4], gain + row[4])
        for row in rows
    ]
    return frame(" ".join(columns), *full).to_dict("list")


def lengths(folder: Path, epochs: float = 3.0) -> Path:
    return put(folder / "trainings.parquet", {"what": ["retrained"], "steps": [1000], "epochs": [epochs]})


def fought(folder: Path, whole: float, step: float, metric: str = "Loss()", half: float = 0.006) -> Bench:
    """A study of pruning at random, which changes the metric by `step`, and by importance, by half of it.

    Without training nine times as much.
    """
    parts = ("all heads", 72, 0, np.nan), ("random", 36, 1, np.nan), ("importance", 36, 0.5, -0.5)
    rows = [
        (name, heads, tuned, whole + share * times * step, half, gain * times * step)
        for tuned, times in ((False, 9), (True, 1))
        for name, heads, share, gain in parts
    ]
    put(folder / "compare-pruning.parquet", contest(*rows), f"model:m|metric:{metric}")
    lengths(folder)
    return Bench([folder])


def test_the_first_claims_table_has_one_unit_a_metric_and_no_training_that_is_not_ours(tmp_path):
    table = budhraja2020.claim1(fought(tmp_path, 0.8, -0.01, "Accuracy()")).table
    theirs, ours = table[table["of"] != "here"], table[table["of"] == "here"]
    assert ours["metric"].tolist() == ["accuracy"] * 2
    assert theirs["metric"].tolist() == ["accuracy"] * 4 + ["matthews"]
    assert theirs["value"].tolist() == pytest.approx([0.828, 0.898, 0.900, 0.901, 0.548])
    assert theirs["whole"].tolist() == pytest.approx([0.845, 0.915, 0.909, 0.926, 0.560])
    assert theirs["cost"].tolist() == pytest.approx([1 - 82.8 / 84.5, 1.7 / 91.5, 0.9 / 90.9, 2.5 / 92.6, 1.2 / 56])
    assert theirs[["steps", "epochs"]].isna().all(axis=None)
    assert ours["epochs"].tolist() == [3, 3]


@pytest.mark.parametrize("whole", [0.5, 3.5, 8.0])
@pytest.mark.parametrize(("step", "first", "second"), [(0.01, True, True), (0.08, False, False)])
def test_a_little_of_a_loss_is_in_nats_whatever_the_loss(tmp_path, whole, step, first, second):
    bench = fought(tmp_path, whole, step)
    verdict = budhraja2020.claim1(bench).verdict
    assert verdict.holds is first
    assert f"random pruning, after training, loses of the score: {step:.3f} [" in verdict.why
    assert "] nats with 36 heads left; trained" in verdict.why
    assert "%" not in verdict.why
    assert budhraja2020.claim2(bench).verdict.holds is second


def test_a_little_of_a_score_is_a_share(tmp_path):
    bench = fought(tmp_path, 40.0, -0.5, "BLEU(beams=1)", half=0.3)
    verdict = budhraja2020.claim1(bench).verdict
    assert verdict.holds is True
    assert "random pruning, after training, loses of the score: 1.2 [0.2, 2.3] % with 36 heads left" in verdict.why
    assert budhraja2020.claim2(bench).verdict.holds is True


def test_few_seeds_widen_for_many_comparisons_by_t(tmp_path):
    bench = fought(tmp_path, 3.5, 0.08, half=0.02)  # a gain of 0.04 [0.02, 0.06] nats
    assert budhraja2020.claim2(bench).table["seeds"].isna().all()
    put(tmp_path / "compare-pruning-seeds.parquet", {"seed": [0, 1, 2] * 2})
    single = budhraja2020.claim2(bench)
    assert single.table["seeds"].tolist() == [3]
    assert "0.040 [0.020, 0.060] (1 comparisons)" in single.verdict.why
    eight = pd.concat([single.table] * 8, ignore_index=True)
    answers = {seeds: budhraja2020.claim2_claim(eight.assign(seeds=seeds)) for seeds in (3, 10_000, np.nan, 1)}
    assert [verdict.holds for verdict in answers.values()] == [None, False, False, None]
    assert "0.040 [-0.019, 0.099] (8 comparisons)" in answers[3].why
    assert "0.040 [0.012, 0.068] (8 comparisons)" in answers[10_000].why
    assert budhraja2020.claim2_claim(eight.drop(columns="seeds")) == answers[np.nan]


@pytest.mark.parametrize(("seeds", "answer"), [(np.nan, True), (1, None), (3, None)])
def test_three_comparisons_of_a_question_widen_their_intervals(seeds, answer):
    """An interval from 0.05 to 0.35 is above 0 by the normal for three comparisons, not by the t of three seeds."""
    rows = [("middle", "x", 36, 0.2, 0.1, 0.3), *[("consecutive", "x", 36, 0.2, 0.05, 0.35)] * 3]
    table = tuned(frame("question taken heads gain low high", *rows)).assign(seeds=seeds)
    assert budhraja2020.claim3_claim(table).holds is answer


def compensated(folder: Path, *more: float) -> Bench:
    """A study whose heads move alike, with a seed for each `more` in which they move so much more than unpruned."""
    index = heads.index({("enc-self", 0): 8})
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    tables = []
    for seed, surplus in enumerate(more):
        whole = 0.02 + 0.01 * seed + 0.0005 * rng.standard_normal(8)
        whole[:2] += 0.1  # heads that were pruned
        tables.append(heads.table({"moved[all]": whole[2:] + surplus}, index[2:], "model:m|before:w|after:x"))
        save_table(tables[-1], folder / f"weight-change-{seed}.parquet")
        if not np.isnan(surplus):
            full = heads.table({"moved[all]": whole}, index, "model:m|before:w|after:y")
            save_table(full, folder / f"weight-change-whole-{seed}.parquet")
        else:
            tables[-1]["moved[all]"] = whole[2:]
    save_table(alike(tables), folder / "uniformity.parquet")
    lengths(folder)
    return Bench([folder])


def test_heads_that_move_more_without_the_others_make_up_for_them(tmp_path):
    """Seed by seed and of the same heads: seeds differ by more than what pruning adds."""
    made = budhraja2020.claim4(compensated(tmp_path / "more", 0.003, 0.004, 0.005))
    assert made.verdict.holds is True
    assert "they move 0.004 [0.0015, 0.0065] more than without pruning" in made.verdict.why
    row = made.table.set_index("of").loc["moved[all] of heads"]
    assert row["moved"] - row["moved.whole"] == pytest.approx(row["more"]) == pytest.approx(0.004)
    assert budhraja2020.claim4(compensated(tmp_path / "unsure", 0.0, 0.004, 0.008)).verdict.holds is None
    assert budhraja2020.claim4(compensated(tmp_path / "less", -0.003, -0.004, -0.005)).verdict.holds is None


def test_movement_without_its_counterpart_is_undecided(tmp_path):
    bench = compensated(tmp_path, 0.003, 0.004, 0.005)
    for path in tmp_path.glob("weight-change-whole-*"):
        path.unlink()
    verdict = budhraja2020.claim4(bench).verdict
    assert verdict.holds is None
    assert "how much they move without pruning is unknown" in verdict.why


@pytest.mark.slow
def test_a_workflow_trains_with_and_without_pruning(tmp_path):
    material = Material(films(16), films(8, 1), films(8, 2))
    run = Workflow(tmp_path, learnt(), tokenizer(), material, seeds=1, tune={"rate": 1e-3, "batch": 8})
    made = budhraja2020.claim4(Bench([tmp_path], run))
    folder = tmp_path / "weight-change"
    names = {f"weight-change-{arm}{seed}" for arm in ("", "whole-") for seed in range(3)}
    assert {path.stem for path in folder.glob("*.parquet")} == names | {"uniformity"}
    pruned, whole = (load_table(folder / f"weight-change-{name}1.parquet") for name in ("", "whole-"))
    assert (len(pruned), len(whole)) == (4, 8)
    assert (whole["moved[all]"] > 0).all()
    assert made.table[with_bounds("more")].notna().all(axis=None)
    assert "more than without pruning" in made.verdict.why


def test_only_the_length_of_the_same_study_counts(tmp_path):
    """Another study's training was long: it says nothing of this one."""
    study, other = tmp_path / "study", tmp_path / "other"
    fought(other, 3.5, 0.01)
    fought(study / "compare-pruning", 3.5, 0.01)
    (study / "compare-pruning" / "trainings.parquet").unlink()
    (other / "compare-pruning.parquet").unlink()
    bench = Bench([other, study])
    verdict = budhraja2020.claim1(bench).verdict
    assert (verdict.answer, "the length of training is unknown" in verdict.why) == ("not comparable", True)
    assert [path for path in bench.used if path.name == "trainings.parquet"] == []
    lengths(study / "pruning", epochs=2)  # as a workflow keeps it
    assert budhraja2020.claim1(Bench([study, other])).table["epochs"][0] == 2
    lengths(study, epochs=4)
    assert budhraja2020.claim1(Bench([other, study])).table["epochs"][0] == 4
    lengths(study / "compare-pruning", epochs=5)
    assert budhraja2020.claim1(Bench([other, study])).table["epochs"][0] == 5
