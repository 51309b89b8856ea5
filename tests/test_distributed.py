"""Several processes share work, say it once, and show how far it is."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import time
from contextlib import redirect_stderr
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.ablations import files, terse
from helpers.commands import ended, run
from helpers.letters import corpus, tokens_of
from helpers.processes import COMMAND, WITHOUT_GPU, Fork, together

import headroles as hr
from headroles import _distributed
from headroles._distributed import track
from headroles.ablation.effects import ablate
from headroles.ablation.prediction_powered import interim_sizes
from headroles.data.readers import read
from headroles.tables import frame
from headroles.tables.io import load_table, save_table
from headroles.tables.study import Study

SIZE = 100  # sentences, more than a first look
VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK")
LAUNCH = [  # with `--cpu` accelerate starts a single process; with `--multi_gpu` as many as asked for, GPU or not
    *("--multi_gpu", "--num_processes", "2", "--main_process_port", "0"),
    *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
]
ACCELERATE = "from accelerate.commands.launch import main\nmain()"


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A translation model with its tokenizer, and a corpus with its translations."""
    folder = tmp_path_factory.mktemp("given")
    terse().save_pretrained(folder / "model")
    tokens_of("marian").save_pretrained(folder / "model")
    for name, side in (("source", corpus(SIZE)), ("target", [one.target for one in corpus(SIZE)])):
        (folder / f"{name}.txt").write_text("".join(f"{one.text}\n" for one in side))
    return folder / "model", folder / "source.txt", folder / "target.txt"


@pytest.fixture
def without_a_launcher(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


# --- one process ----------------------------------------------------------------------------------------------------


def place():
    return _distributed.count(), _distributed.rank(), _distributed.local_rank(), _distributed.first()


@pytest.mark.usefixtures("without_a_launcher")
def test_rank_without_a_launcher_is_that_of_the_only_process(monkeypatch):
    assert place() == (1, 0, 0, True)
    monkeypatch.setenv("RANK", "3")  # of something else: there is no other process
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert place() == (1, 0, 0, True)


def test_rank_under_a_launcher_is_that_of_its_variables(monkeypatch):
    for name, value in zip(VARIABLES, ("4", "3", "1"), strict=True):
        monkeypatch.setenv(name, value)
    assert place() == (4, 3, 1, False)
    monkeypatch.setenv("RANK", "0")
    assert _distributed.first()


# --- two processes --------------------------------------------------------------------------------------------------


def written(folder):
    """Names of files."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def alike(one, other):
    """Two folders with the same tables, bit for bit, the same finished batches and the same figures."""
    assert written(one) == written(other)
    for name in Study(one).names():
        first, second = (Study(folder).load(name) for folder in (one, other))
        assert first.attrs["signatures"] == second.attrs["signatures"]
        drawn = [frame.resamples(table) for table in (first, second)]
        assert {column: values.tobytes() for column, values in drawn[0].items()} == {
            column: values.tobytes() for column, values in drawn[1].items()
        }
        first.attrs = second.attrs = {}
        pd.testing.assert_frame_equal(first, second, check_exact=True)
    for path in (one / ".sweeps").iterdir():
        np.testing.assert_array_equal(np.load(path), np.load(other / ".sweeps" / path.name))


def batches_in(folder):
    return list((folder / ".sweeps").glob("*.npy"))


SOME = ["--resamples", "20", "--limit"]
COMMANDS = [  # the last alone draws: that is the same for all
    ["ablate", *SOME, "8", "--max-tokens", "100000"],  # one batch, which one of them measures
    ["ablate", *SOME, "5", "--max-tokens", "50", "--metric", "bleu", "--unit", "all_but_one"],
    ["ablate", *SOME, str(SIZE), "--precision", "1.1", "--unit", "layer"],
    ["ablation-curve", "--figures", "--by", "layer", "--seeds", "1", "--steps", "4", *SOME, "12"],
]
SEVERAL = """
import json
import sys
from headroles.cli import main as cli

for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        cli.main()
    except SystemExit as end:
        if end.code:
            raise
"""


@pytest.mark.slow
def test_two_processes_give_what_one_gives_and_say_it_once(given, tmp_path):
    """The same tables, bit for bit, of what is read, written, sampled and masked in an order."""
    alone, both = tmp_path / "alone", tmp_path / "together"
    commands = [[name, *map(str, given), *rest] for name, *rest in COMMANDS]
    for study in (alone, both):
        ordered(study / str(len(commands) - 1))
    asked = [[*command, "--study", str(both / str(number))] for number, command in enumerate(commands)]
    done = together(SEVERAL, json.dumps(asked))
    assert done.code == 0, done.err
    warnings = re.findall(r"^headroles: (.*)$", done.err, flags=re.MULTILINE)
    assert len(warnings) == len({*warnings}) > 0  # by one process, once
    told = [run(*command, "--study", alone / str(number)) for number, command in enumerate(commands)]
    assert [(each.code, each.err) for each in told] == [(0, "")] * len(commands)
    assert done.out == "".join(each.out for each in told).replace(str(alone), str(both))
    figures = told[-1].out.strip().rpartition(": ")[2].split(", ")
    assert {path.name for path in both.glob("*/*.png") if path.stat().st_size > 1000} == set(figures)
    for number in range(len(commands)):
        alike(alone / str(number), both / str(number))
    assert len(batches_in(both / "1")) > 2
    name, early = "loss-layer-zero-precision=1.1", Study(both / "2")
    examples = early.load(f"ablation-{name}")["ablation[loss layer precision=1.1].examples"]
    assert set(examples) <= set(interim_sizes(SIZE))
    assert len(set(examples)) > 1


MEASURE = """
import sys
import headroles as hr  # noqa: E402
from headroles import _distributed as processes
from headroles.tables.io import save_table
from headroles.data.readers import read

model, source, target, out = sys.argv[1:]
loaded, tokenizer = hr.load(model)
corpus = read(source, target, limit=12)
asked = ["confidence", "position", "rarity", "sink", "alignment", "importance", "relevance"]
for budget in (100, 100_000):  # many batches; one, of which the second process has no share
    table = hr.score(loaded, tokenizer, corpus, asked, max_tokens=budget, n_resamples=20)
    save_table(table, f"{out}-{budget}-{processes.rank()}.parquet")
for strategy in ("importance", "-effect"):
    table = hr.prune(loaded, tokenizer, corpus, strategy, keep=0.5, remove=False)
    save_table(table, f"{out}-{strategy}-{processes.rank()}.parquet")
"""
COUNTED = ["position[-1]", "position[+1]", "position[best]", "rarity"]  # sums of integers


@pytest.mark.slow
def test_two_processes_score_and_prune_what_one_does(given, tmp_path):
    done = together(MEASURE, *given, tmp_path / "two")
    assert done.code == 0, done.err
    assert Fork(MEASURE, *given, tmp_path / "one").wait() == 0
    files_ = sorted(tmp_path.glob("one-*.parquet"))
    assert len(files_) == 4
    for file, rank in product(files_, (0, 1)):
        expected = load_table(file)
        found = load_table(tmp_path / file.name.replace("one-", "two-").replace("-0.", f"-{rank}."))
        assert found.attrs["signatures"] == expected.attrs["signatures"]
        if "00-" not in file.name:
            pd.testing.assert_frame_equal(found, expected, check_exact=True)
            continue
        np.testing.assert_array_equal(found[COUNTED].to_numpy(), expected[COUNTED].to_numpy())
        np.testing.assert_allclose(found.to_numpy(), expected.to_numpy(), rtol=1e-10, atol=1e-12)


def ordered(folder):
    """A study that has something to order heads by."""
    index = frame.index({(kind, layer): 4 for kind in frame.KINDS for layer in (0, 1)})
    save_table(frame.table({"layer": index.get_level_values("layer")}, index, "made:up"), Study(folder).path("heads"))


# --- a process that dies --------------------------------------------------------------------------------------------

MANY = {"unit": "layer", "max_tokens": 80, "n_resamples": 20}  # one sentence a batch
LIMIT = 40  # sentences


def worker(launcher, rank):
    """The process of a rank that the launcher started."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is another's
            continue
        if parent == launcher.pid and f"RANK={rank}".encode() in variables:
            return int(folder.name)
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the process in /proc")
def test_where_accelerate_launches_them_a_process_that_is_killed_ends_all_and_loses_no_finished_batch(given, tmp_path):
    flags = [part for name, value in MANY.items() for part in (f"--{name.removeprefix('n_').replace('_', '-')}", value)]
    command = ["ablate", *given, "--limit", LIMIT, *flags, "--study", tmp_path]
    script = tmp_path / "both.py"
    script.write_text(f"import gc\ngc.disable()\n{COMMAND}\n")  # most of their time is that of imports
    process = Fork(ACCELERATE, *LAUNCH, script, *command, env=WITHOUT_GPU)
    try:
        while len(batches_in(tmp_path)) < 6:
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        os.kill(worker(process, 1), signal.SIGKILL)
        assert ended(process).code != 0
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    finished = {name: each for name, each in files(tmp_path / ".sweeps").items() if name.endswith(".npy")}
    assert Study(tmp_path).names() == []
    assert run(*command).code == 0
    assert finished.items() < files(tmp_path / ".sweeps").items()
    assert 6 <= len(finished) < len(batches_in(tmp_path)) == LIMIT
    expected = ablate(*hr.load(given[0]), read(*given[1:], limit=LIMIT), **MANY)
    found = Study(tmp_path).load("ablation-loss-layer-zero")
    assert found.attrs["signatures"] == expected.attrs["signatures"]
    found.attrs = expected.attrs = {}
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


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


def test_where_there_is_no_terminal_a_line_a_minute_says_how_much_is_done(monkeypatch, caplog):
    monkeypatch.setattr(_distributed, "monotonic", map((25.0).__mul__, range(1000)).__next__)  # 25 seconds an item
    with caplog.at_level("INFO"):
        assert [*track(range(7), "scoring heads", 7, "; or {:.0f} seconds".format)] == [*range(7)]
    assert caplog.messages == [
        "scoring heads: about 2 min left; or 150 seconds",
        "scoring heads: 3 of 7 after 1 min",
        "scoring heads: 6 of 7 after 2 min",
    ]
    caplog.clear()
    with caplog.at_level("INFO"):
        assert [*track(range(2), "scoring heads", 2)] == [0, 1]
    assert caplog.messages == []  # less than a minute was left


def test_long_work_shows_nothing_where_nobody_looks_and_in_other_processes(monkeypatch):
    assert written_by_a_bar(io.StringIO()) == ""
    for name, value in {"WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert written_by_a_bar(Terminal()) == ""
