"""The committed tables of specialised heads give the committed numbers."""

from __future__ import annotations

from pathlib import Path

import overview
import pandas as pd
import pytest
import retested
from scipy import stats
from studies import rows_of

FIGURES = Path(overview.__file__).parent


@pytest.mark.slow
def test_the_overview_is_made_of_the_tables_of_the_studies():
    models = {}
    for study, family in overview.STUDIES.items():
        models.setdefault(family, {}).update(overview.models_of(study))
    found = pd.DataFrame([*overview.survivors(models), *overview.ranks(models), *overview.controls()])
    kept = pd.read_csv(FIGURES / "overview.csv")
    pd.testing.assert_frame_equal(found, kept, check_dtype=False, rtol=0, atol=6e-5)


def test_controls_by_one_rule_are_made_of_their_runs():
    found, kept = overview.by_rule(), pd.read_csv(FIGURES / "controls.csv")
    pd.testing.assert_frame_equal(found, kept, check_dtype=False, rtol=0, atol=6e-5)
    runs = rows_of(FIGURES / "controls.parquet", study="captions/any-length/C").query("tuned")
    gaps = []  # by hand
    for _, model in runs.groupby("model"):
        values = {name: [*part["value"]] for name, part in model.groupby("strategy")}
        gaps.append(sum(values["roles"]) / 3 - sum(values["random"]) / 3)
    mean = sum(gaps) / 4
    error = (sum((gap - mean) ** 2 for gap in gaps) / 3 / 4) ** 0.5
    row = kept.query("study == 'captions/any-length/C' and less == 'random'").iloc[0]
    assert row["difference"] == pytest.approx(mean, abs=6e-5)
    assert row["t.p"] == pytest.approx(2 * stats.t.sf(abs(mean) / error, 3), abs=6e-5)
    assert row["t.holm"] == pytest.approx(2 * row["t.p"], abs=2e-4)


def test_tests_of_survival_are_made_of_their_heads():
    """What does not depend on permutations: the mean correlations."""
    models = {name.rpartition(" ")[2]: model for name, model in overview.models_of("tatoeba").items()}
    found = retested.survival_tests(models, (12, 6), one_encoder=False)
    kept = rows_of(FIGURES / "survival.parquet", study="tatoeba")
    columns = ["analysis", "outcome", "predictor", "models", "r", "population"]
    pd.testing.assert_frame_equal(found[columns], kept[columns], rtol=1e-6)


def test_differences_of_controls_are_made_of_their_runs():
    studies = pd.read_parquet(FIGURES / "differences.parquet")["study"].unique()
    assert len(studies) == 4
    for study in studies:
        found = retested.differences(rows_of(FIGURES / "controls.parquet", study=study))
        kept = rows_of(FIGURES / "differences.parquet", study=study)
        assert len(kept) >= 3
        pd.testing.assert_frame_equal(found, kept[list(found)], check_dtype=False, rtol=1e-9, obj=study)
