"""What a command printed is kept: as numbers, and in its study, to be printed again while all it read is the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import ENVIRONMENT, Run, run
from safetensors.torch import load_file, save_file

import headroles as hr
from headroles.cli import record as of_record
from headroles.cli.commands import Command
from headroles.cli.record import Finished, recording

FEW = ("--study", "study", "--resamples", 5, "--scores", "confidence,position,rarity", "--reference", "other.txt")
SCORE, ABLATE = (
    ("score", "model", "text.txt", *FEW),
    ("ablate", "model", "text.txt", *FEW[:4], "--metric", "agreement"),
)
SECONDS = 3 * 2  # of the processor: the promise, on a machine half as fast
MEASURED = Run(2, "", "headroles: measured\n")


def test_missing_numbers_are_null(study, capsys):
    with recording(quiet=True) as record:
        record.keep(study.load("heads"), "title")
    values = [row["confidence"] for row in record.tables[0]["rows"]]
    assert values == [0.9, 0.5, None, 0.25]
    assert capsys.readouterr() == ("", "")


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run, Run]:
    """A folder with a model, texts and a study of two finished commands, and what these printed."""
    folder = tmp_path_factory.mktemp("finished")
    shutil.copytree(model, folder / "model")
    (folder / "text.txt").write_text("the a .\nnear a .\nwith the a near .\n")
    (folder / "other.txt").write_text("the a with near .\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder, run(*SCORE), run(*ABLATE)


@pytest.fixture
def copied(finished: tuple[Path, Run, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, to work in."""
    folder = Path(shutil.copytree(finished[0], tmp_path / "copied"))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a command that measures end with an error."""

    def fail(*_: object) -> None:
        raise ValueError("measured")

    monkeypatch.setattr(Command, "_measure", fail)


def test_a_finished_command_prints_the_same_and_loads_no_torch(finished, copied):
    code = (
        "import sys, time\nfrom headroles.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
        "print(time.process_time(), *{'torch', 'transformers', 'scipy'} & {*sys.modules})"
    )
    before = (copied / "study" / "heads.parquet").stat().st_mtime_ns
    command = [sys.executable, "-c", code, *map(str, SCORE)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    *lines, last = done.stdout.splitlines(keepends=True)
    seconds, *heavy = last.split()
    assert (finished[1].code, "".join(lines)) == (0, finished[1].out)
    (warning,) = done.stderr.splitlines()
    assert warning.partition("rarity of enc-self heads is NaN")[2] in finished[1].out
    assert (heavy, float(seconds) < SECONDS) == ([], True)
    assert (copied / "study" / "heads.parquet").stat().st_mtime_ns == before


@pytest.mark.usefixtures("measures", "copied")
def test_other_commands_with_a_study_too(finished):
    assert finished[2].code == 0
    assert run(*ABLATE) == finished[2]


def _forget(folder: Path) -> None:
    for path in (folder / "study").glob(f"{of_record.PRINTED}*"):
        path.unlink()


def test_with_json_it_is_the_same(finished, copied, monkeypatch):
    again = json.loads(run(*SCORE, "--json").out)
    _forget(copied)
    whole = json.loads(run(*SCORE, "--json").out)
    assert (again | {"warnings": []}) == whole  # tables that were kept are not warned about
    monkeypatch.setattr(Command, "_measure", None)
    assert run(*SCORE).out == finished[1].out


@pytest.mark.usefixtures("measures", "copied")
def test_figures_are_drawn_if_asked(finished, monkeypatch):
    before = finished[1].out.partition("tables are in")[0]
    monkeypatch.setattr(hr, "plot", lambda study: [study.folder / "roles.png"])  # slow; see test_commands.py
    assert run(*SCORE, figures=True).out.startswith(f"{before}tables are in study, and these figures: roles.png\n")


def _extend(path: Path) -> None:
    path.write_bytes((path.read_bytes() if path.exists() else b"") + b" ")


def _weights(folder: Path) -> None:
    state = load_file(folder / "model" / "model.safetensors")
    name = "encoder.layer.0.attention.self.query.weight"
    state[name][0, 0] += 1  # a file of the same size
    save_file(state, folder / "model" / "model.safetensors", metadata={"format": "pt"})


CHANGES = {
    "weights": _weights,
    "a file of the tokenizer": lambda folder: (folder / "model" / "special.json").write_text("{}"),
    "config": lambda folder: _extend(folder / "model" / "config.json"),
    "corpus": lambda folder: (folder / "text.txt").write_text("the a .\nnear a .\nwith a the near .\n"),
    "reference": lambda folder: (folder / "other.txt").write_text("a the with near .\n"),
    "table": lambda folder: _extend(folder / "study" / "roles.parquet"),
    "no table": lambda folder: (folder / "study" / "heads.parquet").unlink(),
    "damaged": lambda folder: [path.write_text("{") for path in (folder / "study").glob(f"{of_record.PRINTED}*")],
    "another form": lambda folder: [path.write_text("[]") for path in (folder / "study").glob(f"{of_record.PRINTED}*")],
}


@pytest.mark.usefixtures("measures")
@pytest.mark.parametrize("change", CHANGES)
def test_anything_else_that_is_read_is_measured(change, finished, copied):
    assert run(*SCORE) == finished[1]
    CHANGES[change](copied)
    assert run(*SCORE) == MEASURED


@pytest.mark.usefixtures("measures")
@pytest.mark.parametrize(
    "more", [("--seed", 1), ("--limit", 2), ("--overwrite",), ("--dtype", "bfloat16"), ("--chat",)]
)
@pytest.mark.usefixtures("copied")
def test_another_option_is_measured(more):
    assert run(*SCORE, *more) == MEASURED


@pytest.mark.usefixtures("measures")
def test_another_version_or_console_is_measured(finished, copied, monkeypatch):
    with monkeypatch.context() as patch:
        (copied / "more" / "torch-99.dist-info").mkdir(parents=True)
        patch.syspath_prepend(copied / "more")
        assert run(*SCORE) == MEASURED
    with monkeypatch.context() as patch:
        package = shutil.copytree(Path(of_record.PACKAGE) / "cli", copied / "headroles" / "cli")
        patch.setattr(of_record, "PACKAGE", package)  # elsewhere, with other code
        assert run(*SCORE) == MEASURED
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", "70")
        assert run(*SCORE) == MEASURED
    assert run(*SCORE) == finished[1]


def test_weights_that_are_other_ones_are_refused_as_ever(copied):
    _weights(copied)
    assert run(*SCORE).err.startswith("headroles: study study holds another model: got ")


def test_a_table_that_was_replaced_meanwhile_is_not_taken_for_its_own(copied):
    given = {"study": copied / "study", "overwrite": False, "model": "model", "corpus": Path("text.txt")}
    for file, again in (("study/heads.parquet", False), ("text.txt", False), ("study/new.parquet", True)):
        with recording() as record:
            record.lines.append("line")
            command = Finished(file, given)
            _extend(copied / file)  # by another process
            command.keep()
            assert Finished(file, given).printed() == again == command.path.exists()


def test_what_is_not_all_in_files_is_measured(copied, monkeypatch):
    given = {"study": copied / "study", "overwrite": False, "model": "model", "corpus": Path("text.txt")}
    assert Finished("score", given).origin is not None
    (copied / "adapter").mkdir()
    for name in ("config.json", "adapter_config.json"):
        (copied / "adapter" / name).write_text("{}")
    for more in (
        {"model": "owner/name"},
        {"model": "adapter"},
        {"corpus": Path("wmt14/de-en:test")},
        {"corpus": Path("/dev/stdin")},
        {"heads": "tables/survival.parquet:gate"},
        {"output": Path("smaller")},
        {"export": "json"},
        {"overwrite": True},
    ):
        assert Finished("score", given | more).origin is None, more
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Finished("score", given).origin is None
