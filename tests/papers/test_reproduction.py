"""Artefacts are reproduced from a model and a folder of data."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest
from helpers import zoo
from helpers.commands import run
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.papers.voita2019 import relevance
from headroles.tables.io import load_table

matplotlib.use("agg")


@pytest.mark.slow
def test_a_model_and_a_folder_of_data_make_what_an_artefact_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relevance, "COUNT", 2)  # untrained models
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


def test_a_model_wants_data_and_nothing_beside_it() -> None:
    cases = {("--model", "x"): "--model", ("--model", "x", "--from", "y"): "--from and --model", (): "none"}
    for given, got in cases.items():
        told = run("reproduce", *given)
        assert told.code == 2
        assert told.err.startswith("headroles: the source of tables must be --from STUDY, or --model MODEL with --data")
        assert told.err.endswith(f"got {got}\n")
