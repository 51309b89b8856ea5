"""Committed tables are read, drawn and related as they were: the code knows every name of a column and a file."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pyarrow.parquet as pq
import pytest

import headroles as hr
from headroles.plots.gallery import figures

FIGURES = Path(__file__).resolve().parents[1] / "figures"
STUDIES = sorted({path.parent.relative_to(FIGURES) for path in FIGURES.rglob("*.parquet")}, key=str)
SCORED = [study for study in STUDIES if (FIGURES / study / "heads.parquet").is_file()]
MULTI30K = [
    f"models/multi30k-en-de/{part}" for part in ("ablation", "compare-pruning", "dynamics", "efficiency", "relate")
]
SMALL = ["models/minilm/toy", "models/minilm-sst2/compare-pruning", *MULTI30K]


def test_studies_are_committed_without_resamples():
    assert len(SCORED) > 8
    assert {*SMALL} <= {*map(str, STUDIES)}
    paths = [path for study in STUDIES for path in (FIGURES / study).glob("*.parquet")]
    assert not [path for path in paths if any(name.startswith("resamples:") for name in pq.read_schema(path).names)]


@pytest.mark.slow
def test_every_table_is_read():
    paths = [path for path in FIGURES.rglob("*.parquet") if "provenance" not in pq.read_schema(path).names]
    shapes = {path: hr.load_table(path).shape for path in paths}
    assert [path for path, shape in shapes.items() if 0 in shape] == []


@pytest.mark.slow
def test_roles_are_those_that_were_committed():
    assigned = [FIGURES / study for study in SCORED if (FIGURES / study / "roles.parquet").is_file()]
    assert assigned
    for place in assigned:
        kept, now = hr.load_table(place / "roles.parquet"), hr.roles(hr.load_table(place / "heads.parquet"))
        flags = [name for name in kept if kept[name].dtype == bool]
        assert flags, place
        pd.testing.assert_frame_equal(now[flags], kept[flags], obj=str(place))


def test_relations_are_those_that_were_committed():
    """What does not depend on resamples: the AUC and the difference within layers."""
    place = FIGURES / "models/minilm-sst2"
    kept = hr.load_table(place / "relate" / "relate.parquet").set_index(["role", "outcome"])
    tables = hr.load_table(place / "pud" / "roles.parquet"), hr.load_table(place / "ablation-loss-head-zero.parquet")
    now = hr.relate(*tables, n_resamples=0, n_permutations=19).set_index(["role", "outcome"])
    assert len(now) > 3
    columns = ["auc", "within"]
    pd.testing.assert_frame_equal(now[columns], kept.loc[now.index, columns], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("study", SMALL)
def test_a_figure_of_every_function_is_drawn(study):
    """Of studies that together have a table of every kind; `headroles plot` draws the others alike."""
    tables = hr.Study(FIGURES / study)
    made = {figure.call.func.__name__: figure for figure in figures(tables.names(), tables.load)}
    assert made
    for figure in made.values():
        assert figure.name
        assert figure.draw().has_data()
        plt.close("all")
