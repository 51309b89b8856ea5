"""Names of models, corpora, files and columns steer no terminal: control and direction characters are written out."""

from __future__ import annotations

import json
import unicodedata

import pytest
from helpers import zoo
from helpers.commands import run
from helpers.letters import corpus, tokens_of

import headroles as hr

STEERING = "\x1b[31m\x9b1m\x07\u202e\u2066"
INDEX = hr.tables.frame.index({("enc-self", 0): 4})


def steers(text):
    kinds = {char: unicodedata.category(char) for char in text if char not in "\n\t"}
    return {char for char, kind in kinds.items() if kind == "Cc" or char in "\u202e\u2066"}


def said(*arguments):
    done = run(*arguments)
    assert not steers(done.out + done.err), done
    return done


@pytest.fixture
def places(tmp_path):
    model, text = tmp_path / f"model{STEERING}", tmp_path / f"text{STEERING}.txt"
    hr.save(zoo.tiny("bert"), tokens_of("bert"), model)
    text.write_text("".join(f"{sentence.text}\n" for sentence in corpus(6)))
    return model, text, tmp_path / f"study{STEERING}"


def test_names_of_files(places):
    model, text, study = places
    scoring = ("score", model, text, "--study", study, "--scores", "confidence", "--resamples", 0)
    assert "\\x1b[31m\\x9b1m\\x07\\u202e\\u2066" in said(*scoring).out
    assert said("report", study, "--output", study / f"page{STEERING}.html").code == 0
    output = study.with_name(f"out{STEERING}")
    assert said("remove-heads", model, "L0H0", "--output", output).code == 0
    for wrong in (("nowhere", text), (model, f"nowhere{STEERING}.txt"), (f"./nowhere{STEERING}", text)):
        assert said("score", *wrong).code == 2
    told = json.loads(said(*scoring, "--json").out)
    assert any(STEERING in word for word in told["command"])  # which is the name itself once it is read


def test_names_in_tables(tmp_path):
    study = tmp_path / "study"
    names = ("confidence", f"score{STEERING}", f"survival[a{STEERING}]", f"ablation[{STEERING}]")
    provenance = f"model:m{STEERING}|weights:w|corpus:c{STEERING}|text:t"
    table = hr.tables.frame.table({name: [0.0, 1, 0, 1] for name in names}, INDEX, provenance)
    for name in ("heads", f"other{STEERING}"):
        hr.save_table(table, study / f"{name}.parquet")
    (study / f"broken{STEERING}.parquet").write_bytes(b"no table")
    assert said("report", study, "--output", tmp_path / "page.html").code == 0
    assert "broken\\x1b[31m" in said("plot", study).out
    assert said("roles", study).code == 2
    assert said("relate", study, study).code == 2
