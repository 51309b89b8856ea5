"""Claims: rules that can say yes, no and undecided, and their tables."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import CLAIMS, WANTED, michel2019, put, voita2019, worth
from helpers.messages import whole

from headroles.papers.artefact import of_wmt, printed
from headroles.papers.bench import Bench, stake
from headroles.papers.claims import PAPERS, artefacts, reproduce
from headroles.tables import frame as heads
from headroles.tables.io import load_table

matplotlib.use("agg")


ROOT = Path(__file__).resolve().parents[2]


# --- what there is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS)
def test_every_artefact_is_there_with_its_claim(paper):
    assert set(artefacts(paper)) == set(WANTED[paper].split())
    for name, make in artefacts(paper).items():
        assert len(inspect.getsource(make).splitlines()) <= 35
        assert inspect.getdoc(make)
        claim = getattr(CLAIMS[paper], f"{name}_claim")
        assert claim.text.endswith(".")
        assert re.match(r"(Holds if|The rule of)", claim.rule)


def test_what_there_is_not():
    known = ", ".join(artefacts("voita2019"))
    with pytest.raises(
        ValueError, match=whole(f"unknown artefact of voita2019 'fig99'; did you mean 'fig9'; known: {known}")
    ):
        reproduce(Bench([]), "nowhere", "voita2019", "fig99")
    with pytest.raises(ValueError, match=whole("unknown paper 'vaswani2017'; known: " + ", ".join(PAPERS))):
        artefacts("vaswani2017")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match=whole("no folder nowhere; give the folder of a study")):
        Bench(["nowhere"]).table("single")


# --- the rules ------------------------------------------------------------------------------------------------------


def test_the_rules_hold_on_the_papers_own_numbers():
    kinds_ = of_wmt("voita2019-fig9")
    whole_ = {"enc-self": 48, "dec-self": 48, "cross": 48, "of": 144, "heads": 144}
    kinds_ = pd.concat([pd.DataFrame([whole_]), kinds_], ignore_index=True)
    assert voita2019.fig9_claim(kinds_).holds is True
    layers = printed("voita2019-fig10").assign(heads=kinds_["heads"][1:].to_numpy())
    layers = layers.assign(**{f"{name}.of": 16 for name in layers if name.endswith(("er", "le"))})
    assert voita2019.fig10_claim(layers).holds is True
    counts = printed("voita2019-fig8").rename(columns={"paper.none": "none"})
    assert voita2019.fig8_claim(counts).holds is True
    sinks = counts.assign(none=0, sink=counts["none"])
    assert voita2019.fig8_claim(sinks) == voita2019.fig8_claim(counts)
    bleu = printed("voita2019-fig7").assign(cost=lambda rows: 1 - rows["paper"] / 29.6).dropna(subset="paper")
    bleu = worth(bleu.assign(**{"cost.low": bleu["cost"], "cost.high": bleu["cost"]}))
    assert voita2019.fig7_claim(bleu).holds is True
    for name in ("table2", "table5", "table3", "table6"):
        rows = printed(f"michel2019-{name}")
        rows = rows.assign(cost=-rows["paper"], p=np.where(rows["paper.sure"] == 1, 0.001, 0.5), little=np.nan)
        told = getattr(michel2019, f"{name}_claim")(worth(rows.assign(**{"cost.low": np.nan, "cost.high": np.nan})))
        assert told.holds is None  # they are printed without intervals, and p >= 0.01 is no equivalence


# --- from saved tables ----------------------------------------------------------------------------------------------


def pruned(folder: Path) -> Path:
    """A study with what became of an encoder of 48 heads."""
    columns = {"heads": [144, 120, 106], "of": 144, "enc-self": [48, 24, 10], "dec-self": 48, "cross": 48}
    columns |= {"value": [30.0, 30.1, 29.9], "low": [29, 29.1, 28.9], "high": [31, 31.1, 30.9]}
    columns |= {"change": [0, 0.1, -0.1], "change.low": [0, -0.1, -0.3], "change.high": [0, 0.3, 0.1]}
    put(folder / "sparsity-l0-enc-self.parquet", columns, "model:m|metric:BLEU(beams=1)")
    curve_ = {"order": "enc-self by importance", "masked": [0, 48], "share": [0, 1], "value": [30.0, 20.0]}
    curve_ |= {"low": [29, 19], "high": [31, 21], "change": [0, -10], "change.low": [0, -11], "change.high": [0, -9]}
    put(folder / "curves-bleu-each.parquet", curve_, "model:m|metric:BLEU(beams=1)")
    return folder


def test_an_artefact_is_written_with_its_claim_and_what_it_is_from(tmp_path):
    study = pruned(tmp_path / "mine")
    found = reproduce(Bench([study]), study, "voita2019", "fig7", command="headroles reproduce")
    assert found.to_dict("records") == [
        {
            "paper": "voita2019", "artefact": "fig7", "made": True, "holds": True, "answer": "yes",
            "why": "with 10 of 48 heads left the control's score loses 0.3 [-0.3, 1.0] %, without any and without "
            "training 33.3 %",
        }
    ]  # fmt: skip
    place = study / "papers" / "voita2019"
    table = load_table(place / "fig7.parquet").set_index("heads")
    assert table.loc[48, ["value", "paper", "paper.subtitles"]].tolist() == [30.0, 29.60, 32.40]
    assert table.loc[10, ["change", "paper"]].tolist() == [-0.1, 29.45]
    assert heads.provenance(table, "value") == "model:m|metric:BLEU(beams=1)"
    assert heads.provenance(table, "paper").startswith("Voita et al. 2019, Fig. 7")
    facts = json.loads((place / "fig7.json").read_text())
    assert facts["holds"] is True
    assert facts["answer"] == "yes"
    assert facts["tables"] == ["mine/sparsity-l0-enc-self.parquet", "mine/curves-bleu-each.parquet"]
    assert facts["command"] == "headroles reproduce"
    assert (place / "fig7.png").read_bytes().startswith(b"\x89PNG")
    (study / "sparsity-l0-enc-self.parquet").unlink()
    again = reproduce(Bench([study]), study, "voita2019", "fig7")
    assert not again["made"].any()
    assert list(place.iterdir()) == []  # nothing is left of what can no longer be made


@pytest.mark.slow
def test_drawing_again_needs_no_torch(tmp_path):
    study = pruned(tmp_path / "mine")
    code = (
        "import sys\nclass Blocked:\n def find_spec(self, name, *_):\n"
        "  if name in ('torch', 'transformers'): raise ImportError\n"
        "sys.meta_path.insert(0, Blocked())\n"
        f"sys.argv = ['headroles', 'reproduce', 'voita2019', 'fig7', '--from', {str(study)!r}]\n"
        "from headroles.cli.main import main\nmain()"
    )
    environment = os.environ | {"COLUMNS": "200", "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fig7" in done.stdout
    assert f"written: {study / 'papers'}, 1 of 1 artefacts" in done.stdout


# --- costs of all heads ---------------------------------------------------------------------------------------------


def test_what_all_heads_are_worth_is_measured_as_their_effects_are(tmp_path):
    for metric, last in (("bleu", 10.0), ("loss", 5.0)):
        columns = {"order": "importance", "masked": [0, 4], "share": [0, 1], "value": [20.0, last], "change": [0, -9]}
        columns |= {"low": 0, "high": 0, "change.low": [0, -9], "change.high": [0, -9]}
        put(tmp_path / f"curves-{metric}.parquet", columns)
    tables = [pd.DataFrame() for _ in range(3)]
    for table, metric in zip(tables, ("loss", "bleu", "chrf"), strict=True):
        table.attrs["file"] = f"ablation-{metric}-head-zero.parquet"
    assert [stake(Bench([tmp_path]), table)["all"] for table in tables] == [-9, 0.45, 0.45]


@pytest.mark.parametrize("weights", ["a", "b", "c"])
def test_what_all_heads_are_worth_is_that_of_the_same_model(tmp_path, weights):
    """Curves of another model say nothing of this one, and are not among its sources."""
    for name, cost in (("a", -3), ("b", -9)):
        columns = {"order": "importance", "masked": [0, 4], "share": [0, 1], "value": [20.0, 10], "change": [0, cost]}
        columns |= {"low": 0, "high": 0, "change.low": [0, cost], "change.high": [0, cost]}
        put(tmp_path / name / "curves-bleu.parquet", columns, f"model:m|weights:{name}|metric:BLEU(beams=1)")
    table = pd.DataFrame()
    table.attrs |= {"signatures": {"x": f"model:m|weights:{weights}|metric:BLEU(beams=1)"}}
    bench = Bench([tmp_path])
    assert stake(bench, table)["all"] == pytest.approx({"a": 0.15, "b": 0.45, "c": np.nan}[weights], nan_ok=True)
    assert [path.parent.name for path in bench.used] == [weights] * (weights != "c")
