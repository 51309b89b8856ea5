"""Processes of their own that import nothing: forks of a server, one per test process, that has imported it all."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import pkgutil
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple
from unittest import mock

import headroles

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80"}
WITHOUT_GPU = ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": ""}
SERVER = WITHOUT_GPU | {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # a command sets it too late for what is imported
    "PYTHONHASHSEED": "7",  # other hashes than in this process
}
COMMAND = "from headroles.cli.main import main\nmain()"
IMPORTED = [  # all that a command brings in, so that no fork has to
    *("accelerate.utils", "matplotlib.backends.backend_agg", "matplotlib.pyplot", "pandas.core.methods.to_dict"),
    *("PIL.PngImagePlugin", "pandas", "pyarrow.parquet", "pydantic.main", "pydantic.type_adapter", "sacrebleu"),
    *("scipy.stats", "seaborn", "sentencepiece", "torch.utils.flop_counter", "transformers.generation.utils"),
    *(f"transformers.models.auto.{name}_auto" for name in ("modeling", "tokenization")),
    *(f"transformers.models.{name}.modeling_{name}" for name in ("bert", "marian")),
    "transformers.trainer_seq2seq",
    *(name for _, name, _ in pkgutil.walk_packages(headroles.__path__, "headroles.") if not name.endswith("__main__")),
    __name__,
]


class Run(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


class Fork:
    """A process that runs code as `python -c` does, with the part of the interface of `subprocess.Popen` in use."""

    def __init__(self, code: str, *arguments: object, env: Mapping[str, str] = ENVIRONMENT) -> None:
        self._place = Path(mkdtemp(prefix="headroles-fork-"))
        given = code, [str(argument) for argument in arguments], dict(env), self._place
        self._process: Any = server().Process(target=_run, args=given)
        self._process.start()
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = 600) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            self.send_signal(signal.SIGKILL)
            self._process.join()
            raise TimeoutError(f"killed after {timeout} s; it said: {self.said()}")
        return code

    def said(self, name: str = "err") -> str:
        """What it has written so far."""
        path = self._place / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def communicate(self, timeout: float = 600) -> tuple[str, str]:
        self.wait(timeout)
        return self.said("out"), self.said("err")

    @property
    def returncode(self) -> int | None:
        return self.poll()


@cache
def server() -> Any:
    """The context of the server, which runs from now on, and forks what others of this process start, too."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with mock.patch.dict(os.environ, SERVER | {"PYTHONPATH": os.pathsep.join(sys.path)}):
        forkserver.ensure_running()
    return context


def _run(code: str, arguments: list[str], env: dict[str, str], place: Path) -> None:
    """In the fork: run the code."""
    gc.freeze()
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["-c", *arguments]
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # until the end
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    try:
        exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """As on a full disk, no file of this process can grow longer than so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def together(code: str, *arguments: object, processes: int = 2) -> Run:
    """Processes that work together, as a launcher starts them; if one fails, the others end too."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = WITHOUT_GPU | {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"ACCELERATE_USE_CPU": "false", "ACCELERATE_MIXED_PRECISION": "no"}
    ranks = map(str, range(processes))
    forks = [Fork(code, *arguments, env=shared | {"RANK": rank, "LOCAL_RANK": rank}) for rank in ranks]
    while None in (codes := [fork.poll() for fork in forks]):
        if any(codes):
            for fork in forks:
                with suppress(ProcessLookupError):  # it has ended by itself
                    fork.send_signal(signal.SIGKILL)
        time.sleep(0.01)
    out, err = ("".join(fork.said(name) for fork in forks) for name in ("out", "err"))
    return Run(next(filter(None, codes), 0), out, err)
