"""Tables on the console are whole."""

from __future__ import annotations

import json
import logging
import re
import unicodedata

import pandas as pd
import pytest
from helpers import zoo
from helpers.commands import cells, run
from helpers.letters import corpus, tokens_of
from helpers.prunings import wide

import headroles as hr
from headroles.cli import main
from headroles.cli.console import recording
from headroles.cli.results import print_table
from headroles.tables.columns import Printed


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_are_not_truncated_at_the_width_of_the_terminal(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(wide(), Printed("wide"), {})
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    table, printed = wide(), re.sub(r"\s", "", shown)
    assert all(text in printed for n in range(6) for text in (f"{n}.125", f"[{n}.125,{n}.125]"))
    assert all(re.sub(r"\s", "", name) in printed for name in table if "." not in name)
    assert shown.count("b") >= 80


def test_small_numbers_have_three_digits(capsys):
    """Effects on the agreement, which starts at 1, are thousandths."""
    effects = {"change": [0.0029, -0.00004], "change.low": [0.0025, -0.0001], "change.high": [0.0033, 0.00002]}
    print_table(pd.DataFrame(effects | {"share": [0.5, 0.25], "none": [float("nan")] * 2}), Printed("costs"), {})
    shown = capsys.readouterr().out
    assert "0.00290 [0.00250, 0.00330]" in shown
    assert "-0.00004 [-0.00010, 0.00002]" in shown
    assert "0.500" in shown
    print_table(pd.DataFrame({"role": ["a"], "p": [0.00012], "heads": [3.0]}), Printed("tests"), {})
    assert cells(capsys.readouterr().out)[3] == ["a", "< 0.001", "3"]


def test_missing_numbers_are_null(study, capsys):
    with recording(quiet=True) as record:
        record.keep(study.load("heads"), "title")
    values = [row["confidence"] for row in record.tables[0]["rows"]]
    assert values == [0.9, 0.5, None, 0.25]
    assert capsys.readouterr() == ("", "")


# --- names of models, corpora, files and columns steer no terminal ----------------------------------------------------

STEERING = "\x1b[31m\x9b1m\x07\u202e\u2066"
INDEX = hr.tables.frame.index({("enc-self", 0): 4})


def steers(text):
    kinds = {char: unicodedata.category(char) for char in text if char not in "\n\t"}
    return {char for char, kind in kinds.items() if kind == "Cc" or char in "\u202e\u2066"}


def printed(*arguments):
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
    assert "\\x1b[31m\\x9b1m\\x07\\u202e\\u2066" in printed(*scoring).out
    assert printed("report", study, "--output", study / f"page{STEERING}.html").code == 0
    output = study.with_name(f"out{STEERING}")
    assert printed("remove-heads", model, "L0H0", "--output", output).code == 0
    for wrong in ((model, f"nowhere{STEERING}.txt"), (f"./nowhere{STEERING}", text)):
        assert printed("score", *wrong).code == 2
    told = json.loads(printed(*scoring, "--json").out)
    assert any(STEERING in word for word in told["command"])  # which is the name itself once it is read


def test_names_in_tables(tmp_path):
    study = tmp_path / "study"
    names = ("confidence", f"score{STEERING}", f"survival[a{STEERING}]", f"ablation[{STEERING}]")
    provenance = f"model:m{STEERING}|weights:w|corpus:c{STEERING}|text:t"
    table = hr.tables.frame.table({name: [0.0, 1, 0, 1] for name in names}, INDEX, provenance)
    for name in ("heads", f"other{STEERING}"):
        hr.save_table(table, study / f"{name}.parquet")
    (study / f"broken{STEERING}.parquet").write_bytes(b"no table")
    assert printed("report", study, "--output", tmp_path / "page.html").code == 0
    assert printed("plot", study).code == 0
    warning = logging.makeLogRecord({"msg": "broken%s is no table", "args": (STEERING,)})
    assert main._Messages().format(warning).startswith("headroles: broken\\x1b[31m\\x9b1m\\x07")
    assert printed("roles", study).code == 2
    assert printed("relate", study, study).code == 2
