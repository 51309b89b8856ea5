"""Fixtures and helpers first written for processes, which several tests share."""

from __future__ import annotations

import subprocess
import sys

from helpers.commands import ENVIRONMENT

LAUNCH = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]


WITHOUT_GPU = ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": ""}


def launched(*arguments):
    """Two processes that work together."""
    command = [sys.executable, *LAUNCH, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=WITHOUT_GPU, **pipes)
