"""Artefacts are reproduced from studies, or from a model and a folder of data, each with its claim and verdict."""

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
from helpers import zoo
from helpers.artefacts import WANTED, put, with_cost_of_all
from helpers.commands import run
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.papers import michel2019, voita2019, workflow
from headroles.papers.bench import Bench
from headroles.papers.reproduction import PAPERS, artefacts, reproduce, written
from headroles.papers.verdicts import paper_numbers, wmt_numbers
from headroles.tables import frame as heads
from headroles.tables.io import load_table, save_table

matplotlib.use("agg")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_artefact_is_there_with_its_claim(paper):
    assert set(artefacts(paper)) == set(WANTED[paper].split())
    for name, make in artefacts(paper).items():
        assert len(inspect.getsource(make).splitlines()) <= 35
        assert inspect.getdoc(make)
        claim = getattr(sys.modules[make.__module__], f"{name}_claim")
        assert claim.text.endswith(".")
        assert re.match(r"(Holds if|The rule of)", claim.rule)


REFUSALS = {  # call, error, subject and value
    "artefact": (lambda: reproduce("voita2019", "fig99", folders=["x"]), ValueError, "artefact .*'fig99'.*'fig9'"),
    "paper": (lambda: reproduce("vaswani2017", folders=["x"]), ValueError, "paper .*michel2019.*'vaswani2017'"),
    "artefact without its paper": (lambda: reproduce(None, "fig1", folders=["x"]), ValueError, "paper .* None"),
    "several papers": (lambda: reproduce("fig3", folders=["x"]), ValueError, "'fig3' .* voita2019, michel2019"),
    "no source": (lambda: reproduce(), ValueError, "--from STUDY, or --model .*, got none$"),
    "no data": (lambda: reproduce(model="x"), ValueError, "--from STUDY, or --model .*, got --model$"),
    "two sources": (
        lambda: reproduce(model="x", data="y", folders=["z"]), ValueError, "got --from and --model and --data$"
    ),
    "folder": (lambda: Bench(["nowhere"]).table("single"), FileNotFoundError, "no folder nowhere"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_reproduce_refuses(name):
    call, error, message = REFUSALS[name]
    with pytest.raises(error, match=message):
        call()


def test_the_rules_hold_on_the_papers_own_numbers():
    kinds_ = wmt_numbers("voita2019-fig9")
    whole_ = {"enc-self": 48, "dec-self": 48, "cross": 48, "of": 144, "heads": 144}
    kinds_ = pd.concat([pd.DataFrame([whole_]), kinds_], ignore_index=True)
    assert voita2019.fig9_claim(kinds_).holds is True
    layers = paper_numbers("voita2019-fig10").assign(heads=kinds_["heads"][1:].to_numpy())
    layers = layers.assign(**{f"{name}.of": 16 for name in layers if name.endswith(("er", "le"))})
    assert voita2019.fig10_claim(layers).holds is True
    counts = paper_numbers("voita2019-fig8").rename(columns={"paper.none": "none"})
    assert voita2019.fig8_claim(counts).holds is True
    sinks = counts.assign(none=0, sink=counts["none"])
    assert voita2019.fig8_claim(sinks) == voita2019.fig8_claim(counts)
    bleu = paper_numbers("voita2019-fig7").assign(cost=lambda rows: 1 - rows["paper"] / 29.6).dropna(subset="paper")
    bleu = with_cost_of_all(bleu.assign(**{"cost.low": bleu["cost"], "cost.high": bleu["cost"]}))
    assert voita2019.fig7_claim(bleu).holds is True
    for name in ("table2", "table5", "table3", "table6"):
        rows = paper_numbers(f"michel2019-{name}")
        rows = rows.assign(cost=-rows["paper"], p=np.where(rows["paper.sure"] == 1, 0.001, 0.5), little=np.nan)
        table = with_cost_of_all(rows.assign(**{"cost.low": np.nan, "cost.high": np.nan}))
        told = getattr(michel2019, f"{name}_claim")(table)
        assert told.holds is None  # they are printed without intervals, and p >= 0.01 is no equivalence


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
    found = written(Bench([study]), study, "voita2019", "fig7", command="headroles reproduce")
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
    again = written(Bench([study]), study, "voita2019", "fig7")
    assert not again["made"].any()
    assert list(place.iterdir()) == []  # nothing is left of what can no longer be made


def test_what_cannot_be_drawn_and_a_model_without_the_layer_of_the_paper_do_not_stop_the_others(tmp_path):
    columns = {"position[-1]": [0.5], **{f"syntax[obj dep>head]{end}": [0.4] for end in ("", ".baseline", ".words")}}
    columns |= {"rarity": [0.5], "rarity.low": [0.4], "rarity.high": [0.6]}
    save_table(heads.table(columns, heads.index({("enc-self", 1): 1}), "model:m"), tmp_path / "heads.parquet")
    told = written(Bench([tmp_path]), tmp_path, "voita2019").set_index("artefact")
    assert told["made"][["fig1c", "fig4", "fig6", "rare"]].tolist() == [True, False, True, False]


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


@pytest.mark.slow
def test_a_model_and_a_folder_of_data_make_what_an_artefact_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "COUNT", 2)  # untrained models
    hr.save(zoo.tiny("marian"), tokens_of("marian"), tmp_path / "model")
    (tmp_path / "data").mkdir()
    for part in ("train", "dev", "test"):
        for name, side in (("source", corpus(12)), ("target", [one.target for one in corpus(12)])):
            (tmp_path / "data" / f"{part}.{name}.txt").write_text("".join(f"{one.text}\n" for one in side))
    command = ["reproduce", "voita2019", "fig1b", "--data", tmp_path / "data", "--study", tmp_path / "study"]
    found = run(*command, "--model", tmp_path / "model")
    assert (found.code, "fig1b" in found.out) == (0, True), found.err
    table = load_table(tmp_path / "study" / "papers" / "voita2019" / "fig1b.parquet")
    scored = load_table(tmp_path / "study" / "relevance" / "heads.parquet")
    confidence = scored.loc["enc-self", "confidence"]
    assert table["ours"].tolist()[:2] == [confidence.max(), confidence.min()]
