"""Saving: neither over another model nor into a study, but over the same model again."""

from __future__ import annotations

import json
import re
from copy import deepcopy

import pytest
from helpers import zoo
from helpers.commands import run
from helpers.letters import tokens_of

import headroles as hr
from headroles.models import loading
from headroles.tables import frame

GONE = "enc-self:0:1,enc-self:1:2"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def whole(tmp_path):
    return hr.save(zoo.tiny("bert"), tokens_of("bert"), tmp_path / "whole")


def test_removing_heads_again_is_the_same_and_another_model_is_refused(whole, tmp_path):
    smaller = tmp_path / "smaller"
    assert run("remove-heads", whole, GONE, "--output", smaller).code == 0
    before = contents(smaller)
    assert run("remove-heads", whole, GONE, "--output", smaller).code == 0
    assert contents(smaller) == before
    for place, there in ((smaller, before), (whole, contents(whole))):
        done = run("remove-heads", whole, "enc-self:0:0", "--output", place)
        assert done.code == 2
        message = (
            f"headroles: {re.escape(str(place))} holds another model: its config.json, model.safetensors would be "
        )
        assert re.fullmatch(
            rf"{message}replaced or stay beside; name another folder, or overwrite it \(--overwrite\)\n", done.err
        )
        assert contents(place) == there
    assert run("remove-heads", whole, "enc-self:0:0", "--output", smaller, "--overwrite").code == 0
    assert len(frame.index({(s.kind, s.layer): s.numbers for s in hr.attention_sites(hr.load(smaller)[0])})) == 7


def test_what_a_killed_run_left_is_completed(whole, tmp_path):
    smaller = tmp_path / "smaller"
    run("remove-heads", whole, GONE, "--output", smaller)
    before = contents(smaller)
    (smaller / "model.safetensors").unlink()
    assert run("remove-heads", whole, GONE, "--output", smaller).code == 0
    assert contents(smaller) == before


def test_weights_in_other_files_do_not_stay_beside(whole, tmp_path):
    place = tmp_path / "sharded"
    place.mkdir()
    (place / "model-00001-of-00002.safetensors").write_bytes(b"a shard")
    with pytest.raises(
        FileExistsError, match=r"its model-00001-of-00002\.safetensors would be replaced or stay beside"
    ):
        hr.save(*hr.load(whole), place)


def test_a_study_is_no_place_for_a_model(whole, tmp_path, monkeypatch):
    study = hr.Study(tmp_path / "study")
    study.keep("heads", "recipe", lambda: frame.table({"a": [1.0]}, frame.index({("enc-self", 0): 1}), "s"))
    before, message = contents(study.folder), f"{study.folder} is a study: it holds heads.parquet; "
    monkeypatch.setattr(loading, "load", lambda *_, **__: pytest.fail("loaded before it was found out"))
    done = run("remove-heads", whole, GONE, "--output", study.folder)
    assert (done.code, done.err) == (2, f"headroles: {message}name another folder for the model\n")
    with pytest.raises(FileExistsError, match=re.escape(message)):
        hr.save(zoo.tiny("bert"), tokens_of("bert"), study.folder)
    assert contents(study.folder) == before


def test_training_does_not_write_over_a_model(whole):
    model = deepcopy(zoo.tiny("marian"))
    before = contents(whole)
    with pytest.raises(ValueError, match=f"^{re.escape(str(whole))} holds a model that was not trained there; give"):
        hr.train(model, tokens_of("marian"), hr.Corpus("a", (hr.Sentence("b", target=hr.Sentence("c")),)), whole)
    assert contents(whole) == before
    assert "headroles" not in json.loads(before["config.json"])
