"""The front of the command line: headings, version, completion, JSON for machines, summaries, papers by artefact."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path

import pandas as pd
import pytest
import torch
from helpers import planted, zoo
from helpers.commands import ENVIRONMENT, run
from helpers.messages import line

import headroles as hr
from headroles._distributed import track
from headroles.cli import main
from headroles.cli.commands import Command
from headroles.cli.record import record
from headroles.cli.summary import summarised
from headroles.tables import frame

INDEX = {("enc-self", 0): 2, ("enc-self", 1): 2}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "few.txt"
    path.write_text("".join(f"{sentence.text}\n" for sentence in planted.corpus()[:6]))
    return path


@pytest.fixture
def study(tmp_path: Path) -> hr.Study:
    """A study of four heads with scores and effects."""
    columns = {"position[-1]": [1.0, 0, 0, 0], "confidence": [0.9, 0.5, float("nan"), 0.25]}
    study = hr.Study(tmp_path / "study")
    study.keep("heads", "weights:a", lambda: frame.table(columns, frame.index(INDEX), "model:m|weights:a|corpus:c"))
    return study


def test_every_command_is_under_one_heading_of_the_help():
    shown = run("--help").out
    headings = [f"─ {heading} ─" for heading in main.COMMANDS]
    assert [shown.count(heading) for heading in headings] == [1] * len(headings)
    places = [shown.index(heading) for heading in headings] + [len(shown)]
    for (heading, commands), start, end in zip(main.COMMANDS.items(), places, places[1:], strict=False):
        names = [command.name.replace("_", "-") for command in commands]
        listed = [row.split()[1] for row in shown[start:end].splitlines() if row.startswith("│ ") and row[2] != " "]
        assert listed == names, heading


def test_help_has_a_short_option_too():
    for words in ([], ["score"]):
        short, long = run(*words, "-h"), run(*words, "--help")
        assert (short, short.code, short.err) == (long, 0, "")
        assert re.search(r"--help +-h ", short.out)


@pytest.mark.slow
def test_version_and_help_of_a_command_load_no_torch():
    code = (
        "import sys\n"
        "from headroles.cli.main import main\n"
        "for arguments in (['--version'], ['score', '--help']):\n"
        "    sys.argv[1:] = arguments\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code\n"
        "print([name for name in ('torch', 'transformers', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == (f"headroles {frame.version('headroles')}", "[]")


def test_the_shell_completes_commands_and_options(monkeypatch):
    def completed(words: str) -> str:
        shell = {"_HEADROLES_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        for name, value in shell.items():
            monkeypatch.setenv(name, value)
        return run(figures=True).out

    assert completed("headroles ab").split() == ["ablate", "ablation-curve"]
    assert completed("headroles score --st").split() == ["--stream", "--study"]


@pytest.mark.slow
def test_json_is_the_table_of_the_library_and_nothing_else(model, text, tmp_path):
    done = run("score", model, text, "--study", tmp_path / "new", "--resamples", 0, "--json", figures=True)
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out)
    assert result["command"][:3] == ["headroles", "score", str(model)]
    roles = hr.load_table(tmp_path / "new" / "roles.parquet")
    (table,) = result["tables"]
    assert table["title"].endswith("of 16 heads have a role")
    read = pd.DataFrame(table["rows"]).set_index(["kind", "layer", "head"]).astype(dict(roles.dtypes))
    pd.testing.assert_frame_equal(read, frame.bare(roles), check_index_type=False, rtol=1e-14)
    assert result["left_out"]["syntax"].startswith("the corpus has no dependency trees")
    assert result["next"][-1] == f"headroles report {tmp_path / 'new'}"


def test_json_of_effects_has_every_head(model, text, tmp_path):
    done = run("ablate", model, text, "--study", tmp_path / "new", "--resamples", 5, "--metric", "agreement", "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["tables"][0]["rows"]
    table = hr.load_table(tmp_path / "new" / "ablation-agreement-single-zero.parquet")
    assert [row["ablation[agreement]"] for row in rows] == pytest.approx(
        table["ablation[agreement]"].tolist(), rel=1e-14
    )


def test_missing_numbers_are_null(study, capsys):
    from headroles.cli.record import recording

    with recording(quiet=True) as record:
        record.keep(study.load("heads"), "title")
    values = [row["confidence"] for row in record.tables[0]["rows"]]
    assert values == [0.9, 0.5, None, 0.25]
    assert capsys.readouterr() == ("", "")


def test_an_error_with_json_leaves_the_output_empty(tmp_path):
    end = run("roles", tmp_path / "none", "--json")
    where = tmp_path / "none"
    assert end == line(f"no table 'heads' in {where}; there are: none; make it with headroles score")


@pytest.mark.slow
def test_the_summary_says_what_was_measured_and_what_was_left_out_and_why(model, text, tmp_path):
    study = tmp_path / "new"
    for _ in range(2):  # computed, then kept
        done = run("score", model, text, "--study", study, "--resamples", 0)
        lines = done.out.splitlines()
        summary = lines[next(i for i, row in enumerate(lines) if row.startswith("measured: ")) :]
        assert summary.pop(1).startswith(f"tables are in {study}; headroles plot ")
        assert summary[0].startswith("measured: confidence, position, entropy, sink, distance of 16 heads of ")
        assert summary[0].endswith("on 6 sentences of few")
        assert [row.split(": ")[:2] for row in summary[1:4]] == [
            ["left out", "syntax"],
            ["left out", "alignment"],
            ["left out", "rarity of enc-self heads is NaN"],
        ]
        assert "is for cross heads; the model has enc-self" in summary[2]
        assert len(summary) == 4  # no next command: this is no terminal


def test_a_terminal_is_shown_the_next_command(study, monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert f"next: headroles report {study.folder}" in run("roles", study.folder).out


def test_what_is_left_out_for_one_reason_is_one_line(capsys):
    class Listed(Command):
        def run(self, _):
            record().left_out.update(a="no trees", b="a stream", c="no trees")

    summarised(Listed("demo"))(as_json=False, study="x")
    assert capsys.readouterr().out.splitlines() == ["left out: a, c: no trees", "left out: b: a stream"]


def test_warnings_are_repeated_at_the_end(model, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("the a .\n" + "the " * 60 + "\n")
    done = run("score", model, path, "--study", tmp_path / "new", "--resamples", 0, "--scores", "confidence")
    assert done.out.splitlines()[-1] == "note: 1 of 2 sentences left out: longer than 32 tokens"


def test_nothing_is_left_out_of_what_is_there():
    table = hr.score(
        planted.model(), planted.tokenizer(), planted.corpus()[:30], ["confidence", "syntax"], n_resamples=0
    )
    assert not hr.scores.left_out(table, ["confidence", "syntax"])
    assert set(hr.scores.left_out(table, ["confidence", "alignment"])) == {"alignment"}


# --- heads in writing -----------------------------------------------------------------------------------------------


def test_heads_in_writing_are_understood_wherever_a_head_is_asked_for():
    model, tokenizer, corpus = planted.model(), planted.tokenizer(), planted.corpus()[:4]
    heads = [("enc-self", 0, 2), ("enc-self", 1, 3)]
    expected = hr.head_mask(model, heads)
    for written in (["L0H2", "enc-self:1:3"], "L0H2,L1H3", [heads[0], "L1H3"]):
        assert torch.equal(hr.head_mask(model, written), expected)
    matrix = hr.attention_matrix(model, tokenizer, corpus[0], "L0H2")
    pd.testing.assert_frame_equal(matrix, hr.attention_matrix(model, tokenizer, corpus[0], heads[0]))
    sets = [
        hr.ablate(model, tokenizer, corpus, sets={"both": both}, metric="agreement") for both in (heads, "L0H2,L1H3")
    ]
    pd.testing.assert_frame_equal(*map(frame.bare, sets))
    curves = [
        hr.ablation_curve(model, tokenizer, corpus, {"a": order}, steps=1, n_resamples=0)
        for order in (heads, "L0H2,L1H3")
    ]
    pd.testing.assert_frame_equal(*map(frame.bare, curves))
    smaller = hr.remove_heads(zoo.tiny("bert"), "L0H1")
    assert ("enc-self", 0, 1) not in hr.models.head_index(smaller)


@pytest.mark.parametrize("text", ["L0", "0:1", "magic:0:1", "L0H1 L0H2", ""])
def test_other_writing_is_refused(text):
    with pytest.raises(ValueError, match=f"^head '{text}' is not of the form kind:layer:head, such as enc-self:0:2"):
        hr.head_mask(planted.model(), [text])


def test_a_head_without_a_kind_is_refused_where_there_are_several():
    with pytest.raises(ValueError, match=r"^head 'L0H1' has no kind: got a model with enc-self, dec-self, cross; try "):
        hr.head_mask(zoo.tiny("marian"), "L0H1")


# --- papers ---------------------------------------------------------------------------------------------------------


def test_an_artefact_without_its_paper_is_found(study):
    for paper in (["fig1a"], ["voita2019", "fig1a"]):
        end = run("reproduce", *paper, "--from", study.folder)
        assert end.code == 2
        assert end.err.startswith("headroles: nothing was made: fig1a of voita2019: ")
        assert "headroles score MODEL CORPUS --scores confidence,relevance" in end.err
        assert "not made" in end.out


def test_what_is_made_ends_well(study):
    end = run("reproduce", "voita2019", "fig6", "--from", study.folder)  # of a formula
    assert (end.code, end.err) == (0, "")


def test_an_artefact_of_several_papers_and_one_of_none(study):
    end = run("reproduce", "fig3", "--from", study.folder)
    assert end.err.startswith(
        "headroles: artefact 'fig3' is in several papers: got no paper; expected one of voita2019, "
    )
    end = run("reproduce", "fig99", "--from", study.folder)
    assert end.err.startswith("headroles: no paper 'fig99': expected one of voita2019, michel2019, budhraja2020")


def test_the_demo_has_the_option_of_all_commands():
    import typer

    commands = typer.main.get_command(main.app).commands  # type: ignore[attr-defined]
    folders = {name: {flag for option in command.params for flag in option.opts} for name, command in commands.items()}
    assert all("--study" in flags for name, flags in folders.items() if name in ("score", "demo", "ablate"))
    assert all("--json" in flags for flags in folders.values())


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


def written_by_a_bar(stream):
    """What is written into the stream of errors while some work is done."""
    with redirect_stderr(stream):
        for number in track(range(40), "scoring heads", total=40):
            time.sleep(0.2 if number == 30 else 0.005)  # after a refresh a rate is known
    return stream.getvalue()


def test_long_work_shows_how_much_is_done_and_the_time_left():
    shown = written_by_a_bar(Terminal())
    assert re.search(r"scoring heads: +[1-9]\d%.* \d\d/40 \[00:00<00:0\d, +[\d.]+it/s\]", shown)
    assert shown.endswith("\r")  # and is removed at the end


def test_long_work_shows_nothing_where_nobody_looks_and_in_other_processes(monkeypatch):
    assert written_by_a_bar(io.StringIO()) == ""
    for name, value in {"WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert written_by_a_bar(Terminal()) == ""
