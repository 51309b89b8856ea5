"""Commands end with one clear line, whatever they are given, and nothing is lost."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import planted, zoo
from helpers.commands import ENVIRONMENT, ended, files, forked, run
from helpers.letters import corpus, tokens_of
from helpers.messages import line
from helpers.processes import Fork, full_disk
from helpers.prunings import learnt
from helpers.trainings import films
from helpers.trainings import tokenizer as of_films

import headroles as hr
from headroles.cli import main
from headroles.models import loading
from headroles.tables import frame
from headroles.tables.io import load_table


@pytest.fixture
def study(made: Path, tmp_path: Path) -> Path:
    """A copy of a study with its tables."""
    return Path(shutil.copytree(made, tmp_path / "study"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = hr.Study(tmp_path_factory.mktemp("made"))
    hr.score(planted.model(), planted.tokenizer(), planted.corpus()[:40], n_resamples=5, study=study)
    hr.roles(study)
    return study.folder


@pytest.mark.slow
def test_a_table_that_is_none_is_named_and_stays(study):
    path = study / "heads.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    assert run("roles", study) == line(f"{path} is not a table of headroles: it has no provenance")
    assert (run("plot", study).code, run("plot", study).err) == (0, "")  # which draws the others
    path.write_bytes(b"junk")
    before = files(study)
    assert run("roles", study).err.startswith(f"headroles: {path} is not a table of headroles: ")
    assert files(study) == before


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file sizes")
def test_a_full_disk_leaves_the_tables_there_were(study):
    before = files(study)
    with full_disk(1000):
        end = run("roles", study, "--threshold", "sink=0.1")
    path = re.escape(str(study / "roles.parquet"))
    assert (end.code, end.out) == (2, "")
    assert re.fullmatch(
        rf"headroles: could not write {path}: [^\n]*File too large[^\n]*; what was there before is unchanged\n", end.err
    )
    assert files(study) == before


@pytest.mark.slow
def test_a_pipe_without_a_reader_is_no_error(study):
    command = f"{sys.executable} -m headroles roles {study} | head -1"
    done = subprocess.run(["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert "of 16 heads have a role" in done.stdout
    assert done.stderr == ""


def test_ctrl_c_is_one_line(place, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "load", interrupted)
    before = files(place)
    end = run("score", "model", "text.txt", "--study", "new")
    assert end == (130, "", "headroles: interrupted: run it again to continue\n")
    assert files(place) == before


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
        return run().out

    assert completed("headroles ab").split() == ["ablate", "ablation-curve"]
    assert completed("headroles score --st").split() == ["--study"]


def test_the_demo_has_the_option_of_all_commands():
    import typer

    commands = typer.main.get_command(main.app).commands  # type: ignore[attr-defined]
    folders = {name: {flag for option in command.params for flag in option.opts} for name, command in commands.items()}
    assert all("--study" in flags for name, flags in folders.items() if name in ("score", "demo", "ablate"))
    assert all("--json" in flags for flags in folders.values())


@pytest.mark.slow
def test_commands_run_on_files_and_folders_of_any_name(tmp_path):
    name = "a|b:c,d=e\n[bold] {x} %7C <b> Кошка |replacement:mean|weights:0"
    place = tmp_path / name
    place.mkdir()
    model = hr.save(learnt(), of_films(), place / f"{name} model")
    text = place / f"{name}.tsv"
    text.write_text("label\tsentence\n" + "".join(f"{one.label}\t{one.text}\n" for one in films(12)))
    study = ["--study", place / f"{name} study"]
    few = ["--resamples", 20]
    commands = [
        ["score", model, text, *study, *few, "--scores", "confidence,position,importance"],
        ["ablate", model, text, *study, *few, "--metric", "accuracy"],
        ["sparsity-sweep", model, text, "--held-out", text, "--keep", "6", "--strategy", "importance", *study],
        ["relate", study[1], study[1], *study],
        ["report", study[1], "--output", place / f"{name}.html"],
    ]
    for command in commands:
        done = run(*command)
        assert done.code == 0, done.err
    table = load_table(study[1] / "ablation-accuracy-head-zero.parquet")
    fields = dict(frame.fields(frame.provenance(table, "ablation[accuracy]")))
    assert (fields["corpus"], fields["metric"], fields["replacement"]) == (name, "Accuracy()", "zero")
    assert fields["model"] == f"{name}/{name} model"
    assert "<b>" not in (place / f"{name}.html").read_text()  # what could be a tag is escaped


INDEX = hr.tables.frame.index({("enc-self", 0): 1})


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Two models, a and b, and two texts."""
    for name, factor in (("a", 1), ("b", 2)):
        model, tokenizer = zoo.tiny("bert"), tokens_of("bert")
        for parameter in model.parameters():
            parameter.data.mul_(factor)
        hr.save(model, tokenizer, tmp_path / name)
        (tmp_path / f"{name}.txt").write_text("".join(f"{one.text}\n" for one in corpus(10 * factor)))
    return tmp_path


@pytest.mark.slow
def test_two_commands_at_once_in_one_study(models):
    def score(model: str, text: str, scores: str, study: str) -> Fork:
        words = ("--scores", scores, "--resamples", "0", "--study", models / study)
        return forked("score", models / model, models / f"{text}.txt", *words)

    pairs = {
        "scores": (("a", "a", "confidence"), ("a", "a", "entropy")),
        "models": (("a", "a", "confidence"), ("b", "a", "confidence")),
    }
    for study, both in pairs.items():
        ends = [ended(process) for process in [score(*words, study) for words in both]]
        codes = sorted(end.code for end in ends)
        assert codes == ([0, 0] if study == "scores" else [0, 2]), ends
        if codes[1]:
            (refused,) = (end.err for end in ends if end.code)
            assert "holds another model: got " in refused
    assert sorted(hr.Study(models / "scores").load("heads")) == ["confidence", "entropy"]


def test_a_warning_of_many_steps_is_shown_once():
    shown = main._Messages()
    records = [logging.makeLogRecord({"msg": "%d texts", "args": (number,)}) for number in (1, 2, 1, 1)]
    assert [shown.filter(record) for record in records] == [True, True, False, False]
