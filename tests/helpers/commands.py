"""Commands in this process, in forks and in processes of their own."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest
from helpers import planted
from helpers.processes import COMMAND, ENVIRONMENT, Fork, Run
from transformers import BertModel
from transformers.utils import logging as transformers_logging

from headroles.cli import main


def run(*arguments: object, figures: bool = False) -> Run:
    """A command in this process, by default without figures."""
    words = [*map(str, arguments), *["--figures"] * figures]
    out, err = io.StringIO(), io.StringIO()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        with (
            mock.patch.object(sys, "argv", ["headroles", *words]),
            mock.patch.dict(os.environ),
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.raises(SystemExit) as end,
        ):
            main.main()
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
    return Run(int(end.value.code or 0), out.getvalue(), err.getvalue())


def started(*arguments: object) -> subprocess.Popen[str]:
    """A command in a process of its own, from the start of Python on."""
    command = [sys.executable, "-m", "headroles", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def forked(*arguments: object) -> Fork:
    """A command in a fork."""
    return Fork(COMMAND, *arguments)


def ended(process: subprocess.Popen[str] | Fork) -> Run:
    """How that process ended."""
    out, err = process.communicate(timeout=600)
    return Run(int(process.returncode or 0), out, err)


def saved(folder: Path) -> Path:
    """The planted model as a checkpoint: with a pooler, so that transformers misses nothing."""
    model = BertModel(planted.model().config)
    for parameter in model.parameters():
        parameter.data.zero_()
    model.load_state_dict(planted.model().state_dict(), strict=False)
    model.save_pretrained(folder)
    planted.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("model"))


@pytest.fixture
def own(model: Path, tmp_path: Path) -> Path:
    """A checkpoint of one's own, to spoil."""
    return Path(shutil.copytree(model, tmp_path / "own"))


INDEX = {("enc-self", 0): 2, ("enc-self", 1): 2}


def files(place: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in place.rglob("*")}


def cells(out: str) -> list[list[str]]:
    """The cells of each printed line; columns are three spaces apart."""
    return [re.split(" {2,}", text.strip()) for text in out.splitlines()]
