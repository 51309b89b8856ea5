"""The committed tables of specialised heads give the committed numbers."""

from __future__ import annotations

from pathlib import Path

import overview
import pandas as pd
import pytest
import several_models

import headroles as hr

FIGURES = Path(overview.__file__).parent


@pytest.mark.slow
def test_the_overview_is_made_of_the_tables_of_the_studies():
    models = {}
    for study, family in overview.STUDIES.items():
        models.setdefault(family, {}).update(overview.models_of(study))
    found = pd.DataFrame([*overview.survivors(models), *overview.ranks(models), *overview.controls()])
    kept = pd.read_csv(FIGURES / "overview.csv")
    pd.testing.assert_frame_equal(found, kept, check_dtype=False, rtol=0, atol=6e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "studies"),
    [
        ("tatoeba/eight.csv", ["captions", "tatoeba"]),
        ("captions/any-length/six.csv", ["captions/any-length/C", "captions/any-length/A-B"]),
        (
            "captions/any-length/fourteen.csv",
            ["captions", "tatoeba", "captions/any-length/A-B", "captions/any-length/C"],
        ),
    ],
)
def test_tests_over_several_studies_are_made_of_their_tables(table, studies, tmp_path):
    overview.together(studies, tmp_path / "table.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "table.csv"), pd.read_csv(FIGURES / table), atol=1.1e-4)


@pytest.mark.parametrize("path", sorted(FIGURES.rglob("pooled-differences.parquet")), ids=lambda path: path.parent.name)
def test_differences_of_controls_are_made_of_their_runs(path):
    found = several_models.differences(hr.load_table(path.with_name("pooled-controls.parquet")))
    kept = hr.load_table(path)
    assert len(kept) >= 3
    pd.testing.assert_frame_equal(found, kept[list(found)], check_dtype=False, rtol=1e-9)
