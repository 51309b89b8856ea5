"""Commands whose streams are closed or whose folder is gone say so in a sentence, and two at once lose nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers import zoo
from helpers.commands import ended, run, started
from helpers.letters import corpus, tokens_of
from helpers.processes import ENVIRONMENT

import headroles as hr

COMMAND = f"{sys.executable} -m headroles"


def shell(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", code], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)


@pytest.mark.slow
def test_closed_streams_and_a_removed_folder(tmp_path):
    hr.Study(tmp_path / "study").keep("heads", "k", lambda: hr.tables.frame.table({"a": [1.0]}, INDEX, "model:m"))
    assert shell(f"{COMMAND} report study --output a.html 2>&-", tmp_path).returncode == 0
    assert (tmp_path / "a.html").is_file()
    done = shell(f"mkdir gone; cd gone; rmdir ../gone; {COMMAND} report {tmp_path}/study", tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == ("headroles: the working directory is not there any more; change to another")


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
    def score(model: str, text: str, scores: str, study: str) -> subprocess.Popen[str]:
        words = ("--scores", scores, "--resamples", "0", "--study", models / study)
        return started("--no-figures", "score", models / model, models / f"{text}.txt", *words)

    pairs = {
        "scores": (("a", "a", "confidence"), ("a", "a", "entropy")),
        "models": (("a", "a", "confidence"), ("b", "a", "confidence")),
        "corpora": (("a", "a", "confidence"), ("a", "b", "confidence")),
    }
    for study, both in pairs.items():
        ends = [ended(process) for process in [score(*words, study) for words in both]]
        codes = sorted(end.code for end in ends)
        assert codes == ([0, 0] if study == "scores" else [0, 2]), ends
        if codes[1]:
            (refused,) = (end.err for end in ends if end.code)
            assert f"holds another {'model' if study == 'models' else 'corpus'}: got " in refused
    assert sorted(hr.Study(models / "scores").load("heads")) == ["confidence", "entropy"]


def test_a_fifo_is_no_output(models):
    run("score", models / "a", models / "a.txt", "--study", models / "study", "--scores", "confidence")
    subprocess.run(["mkfifo", models / "fifo"], check=True)
    done = run("report", models / "study", "--output", models / "fifo")
    assert (done.code, done.err) == (
        2,
        f"headroles: {models / 'fifo'} is a device or FIFO; expected the name of a file\n",
    )
    assert (models / "fifo").is_fifo()
