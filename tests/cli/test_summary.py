"""A summary says what was left out and why; --json is the table; every next command works, and those it prints."""

from __future__ import annotations

import json
import logging
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from helpers.commands import run
from helpers.letters import tokens_of

import headroles as hr
from headroles.cli import commands
from headroles.cli.console import record
from headroles.cli.options import Command
from headroles.cli.summary import _following, summarised
from headroles.tables import frame


@pytest.mark.slow
def test_json_is_the_table_of_the_library_and_nothing_else(model, text, tmp_path):
    done = run("score", model, text, "--study", tmp_path / "new", "--resamples", 0, "--json")
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out)
    assert result["command"][:3] == ["headroles", "score", str(model)]
    roles = hr.load_table(tmp_path / "new" / "roles.parquet")
    (table,) = result["tables"]
    assert table["title"].endswith("of 16 heads have a role; 6 sentences are few")
    read = pd.DataFrame(table["rows"]).set_index(["kind", "layer", "head"]).astype(dict(roles.dtypes))
    pd.testing.assert_frame_equal(read, frame.bare(roles), check_index_type=False, rtol=1e-14)
    assert result["left_out"]["syntax"].startswith("the corpus has no dependency trees")
    assert result["next"][-1] == f"headroles report {tmp_path / 'new'}"


def test_json_of_effects_has_every_head(model, text, tmp_path):
    done = run("ablate", model, text, "--study", tmp_path / "new", "--resamples", 5, "--metric", "agreement", "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["tables"][0]["rows"]
    table = hr.load_table(tmp_path / "new" / "ablation-agreement-head-zero.parquet")
    assert [row["ablation[agreement]"] for row in rows] == pytest.approx(
        table["ablation[agreement]"].tolist(), rel=1e-14
    )


@pytest.mark.slow
def test_the_summary_says_what_was_measured_and_what_was_left_out_and_why(model, text, tmp_path, caplog):
    study = tmp_path / "new"
    for _ in range(2):  # computed, then kept
        done = run("score", model, text, "--study", study, "--resamples", 0)
        lines = done.out.splitlines()
        summary = lines[next(i for i, row in enumerate(lines) if row.startswith("measured of ")) :]
        assert summary.pop(1).startswith(f"tables are in {study}; headroles plot ")
        assert summary[0].startswith("measured of 16 heads of ")
        assert summary[0].endswith(": confidence, position, entropy, sink, distance on 6 sentences of few")
        assert [row.split(": ")[:2] for row in summary[1:3]] == [["left out", "syntax"], ["left out", "alignment"]]
        assert summary[2].endswith(": it is for cross heads, and the model has only enc-self heads")
        warned = [text for text in caplog.messages if text.startswith("rarity of enc-self heads is NaN: ")]
        assert len(warned) + len(summary[3:]) == 1  # and no next command: this is no terminal
        caplog.clear()


def test_a_terminal_is_shown_the_next_command(study, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert f"next: headroles report {study.folder}" in run("roles", study.folder).out


def test_what_is_left_out_for_one_reason_is_one_line(capsys, monkeypatch):
    left_out = {"a": "no trees", "b": "a stream", "c": "no trees"}
    monkeypatch.setattr(commands, "run", lambda *_: record().left_out.update(left_out))
    summarised(Command("demo"))(as_json=False, study="x")
    assert capsys.readouterr().out.splitlines() == ["left out: a, c: no trees", "left out: b: a stream"]


def test_what_was_warned_of_is_not_said_again(capsys, monkeypatch):
    def warn(*_: object) -> None:
        for _ in range(3):
            logging.getLogger("headroles.scores").warning("rarity is NaN: few texts")
        record().left_out.update({"rarity is NaN": "few texts", "syntax": "no trees"})

    monkeypatch.setattr(commands, "run", warn)
    summarised(Command("demo"))(as_json=False, study="x")
    assert capsys.readouterr().out.splitlines() == ["left out: syntax: no trees"]
    summarised(Command("demo"))(as_json=True, study="x")
    assert json.loads(capsys.readouterr().out)["warnings"] == ["rarity is NaN: few texts"]


def test_the_next_command_reads_the_corpus_as_this_one_did():
    given = {"model": "m", "corpus": "c", "target": None, "study": "s", "works": "loss", "chat": True, "cls": None}
    assert next(_following("score", given)) == "headroles ablate m c --metric loss --study s --chat"


PLACEHOLDER = {"MODEL", "CORPUS"}  # what no command can know


def followed(*command: object) -> list[str]:
    """Run a command and all that follow from it; return those that followed."""
    left, done = [shlex.join(map(str, command))], dict[str, list[str]]()
    while left:
        words = left.pop(0)
        end = run(*shlex.split(words), "--json")
        assert end.code == 0, (words, end.err)
        done[words] = [line.removeprefix("headroles ") for line in json.loads(end.out)["next"]]
        left += [line for line in done[words] if not {*line.split()} & PLACEHOLDER and line not in {*done, *left}]
    return list(done)[1:]


@pytest.mark.slow
@pytest.mark.parametrize("first", ["score", "ablate"])
def test_the_hints_for_an_encoder_work(model, text, tmp_path, monkeypatch, first):
    monkeypatch.chdir(tmp_path)
    metric = ("--metric", "agreement") if first == "ablate" else ()
    lines = followed(first, model, text, "--study", "mine", "--resamples", 20, *metric)
    assert f"ablate {model} {text} --metric agreement --study mine" in lines  # it has no loss
    assert {"relate mine mine --study mine", "report mine"} <= {*lines}
    assert ("score" in [line.split()[0] for line in lines]) == (first == "ablate")


def test_the_hint_for_induction_is_a_test_on_repeated_tokens_that_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hr.save(hr.tiny_model("llama"), tokens_of("llama"), "model")
    Path("text.txt").write_text("a b c d\nb a d c e\n")
    lines = run("score", "model", "text.txt", "--resamples", 2, "--study", "mine").out.splitlines()
    drawn = next(line for line in lines if line.startswith("measured of ")).rpartition("; ")[2]
    assert re.fullmatch(r"induction, duplicate on 100 sequences of \d+ random tokens, each repeated once", drawn)
    done = run("roles", "mine", "--threshold", "induction=0", "--json")
    test, *_ = json.loads(done.out)["next"]
    assert test == "headroles test-roles MODEL repeated-tokens --roles induction --study mine"
    page = hr.report("mine", "page.html").read_text()
    assert f"<code>{test}</code> makes them." in page
    assert f"8 induction on {drawn.partition(' on ')[2]}." in page
    done = run(*test.replace("MODEL", "model").split()[1:], "--limit", 2, "--heads", "L0H0", "--resamples", 2)
    assert (done.code, done.err) == (0, "")
    assert f"roles looked for in 8 heads of model: induction on {drawn.partition(' on ')[2]}" in done.out


@pytest.mark.slow
@pytest.mark.parametrize("target", [False, True])
def test_the_hints_for_a_translator_work(tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    for name, lines in (("en", ["I see a dog.", "He reads books."]), ("de", ["Ich sehe einen Hund.", "Er liest."])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    words = ["en", *["de"] * target]
    lines = followed("score", "translator", *words, "--limit", 2, "--study", "mine", "--resamples", 20)
    assert f"ablate translator {' '.join(words)} --metric loss --study mine --limit 2" in lines
