"""Tables of artefacts are found by what they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from helpers.artefacts import put
from helpers.messages import whole

from headroles.papers.bench import Bench, gains, metric_of, of_kind
from headroles.papers.claims import artefacts
from headroles.papers.needs import Missing
from headroles.tables import frame as heads
from headroles.tables.io import load_table

matplotlib.use("agg")


ROOT = Path(__file__).resolve().parents[2]


def test_the_papers_metric_comes_first_then_the_study_then_its_own_domain(tmp_path):
    study = tmp_path / "captions-en-de"
    one = {"ablation[loss]": [1.0]}
    files = ["ablation-bleu-head-zero", "ablation-loss-head-zero", "captions/ablation-loss-head-zero"]
    files += ["a/ablation-loss-head-zero"]
    for name in (*files, "papers/x/ablation-bleu-head-zero", ".sweeps/ablation-bleu-head-zero", "other"):
        put(study / f"{name}.parquet", one)
    bench = Bench([study])
    assert [table.attrs["file"] for table in bench.tables("single")] == [
        str(study / f"{name}.parquet") for name in files
    ]
    bench.used = []
    assert metric_of(bench.table("single")) == "bleu"
    assert bench.used == [study / "ablation-bleu-head-zero.parquet"]
    for name in files[1:]:
        put(study / "untrained" / f"{name}.parquet", one)
    untrained = [Path(table.attrs["file"]).parent for table in Bench([study / "untrained"]).tables("single")]
    assert untrained == [study / "untrained" / name for name in (".", "captions", "a")]


@pytest.mark.parametrize(("corpus", "known"), [("pud", True), ("ewt", False), (None, False)])
def test_scores_without_resamples_are_as_stable_as_the_roles_beside_them(tmp_path, corpus, known):
    """The scores of this repository have no resamples; roles of another corpus say nothing about them."""
    minilm = ROOT / "figures" / "minilm"
    shutil.copy(minilm / "pud" / "heads.parquet", tmp_path)
    if corpus:
        shutil.copy(minilm / corpus / "roles.parquet", tmp_path)
    found = artefacts("voita2019")["fig1c"](Bench([tmp_path]))
    counts = found.table.set_index("function")
    assert counts["heads"].tolist() == [2, 6, 0]
    assert found.verdict.holds is (False if known else None)
    sure, possible = counts.loc["syntactic", ["sure", "possible"]]
    if known:
        stable = load_table(tmp_path / "roles.parquet").filter(regex=r"^syntactic.*\.stability$").max(axis=1)
        assert (sure, possible) == ((stable >= 0.95).sum(), (stable >= 0.05).sum()) == (5, 8)
    else:
        assert np.isnan([sure, possible]).all()


def test_less_of_a_loss_is_a_gain():
    differences = np.array([[1, 0.5, 2]])
    assert gains(differences, "loss").tolist() == [[-1, -2, -0.5]]
    assert gains(differences, "bleu").tolist() == [[1, 0.5, 2]]


def test_a_model_without_an_encoder():
    table = heads.table({"a": [1.0]}, heads.index({("dec-self", 0): 1}), "s")
    with pytest.raises(Missing, match=whole("the paper shows enc-self heads; the table has dec-self")):
        of_kind(table)
