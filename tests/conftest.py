"""What several tests share: the shared folder, a browser, and how many threads each test process has."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

SHARED = Path(os.environ.get("HEADROLES_SHARED", Path(__file__).resolve().parents[2] / "shared"))
os.environ.setdefault("MPLBACKEND", "agg")  # pictures of no window
os.environ["HF_HUB_OFFLINE"] = "1"  # no test waits for the Hub
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # threads of tiny matrices only fight
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; commands that are interrupted
    signal.signal(signal.SIGINT, signal.default_int_handler)  # would ignore it too


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with many slow tests begin first, so that no process is left alone with one at the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of treebanks and models; a test that asks for it is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"no shared folder at {SHARED}; set HEADROLES_SHARED")
    return SHARED


@pytest.fixture(scope="session")
def whisper() -> Path:
    """Whisper tiny.en; skipped where it is absent: `python SHARED/models/whisper_models.py FOLDER` makes it."""
    return _model("whisper-tiny.en")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M; skipped where it is absent: `python SHARED/models/real_models.py FOLDER smollm2` makes it."""
    return _model("smollm2")


def _model(name: str) -> Path:
    folder = Path(os.environ.get("HEADROLES_MODELS", SHARED.parent / "models")) / name
    if not folder.is_dir():
        pytest.skip(f"no model at {folder}; set HEADROLES_MODELS")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; a test that asks for it is skipped where it is absent, but in CI, where that is a failure."""
    if (path := shutil.which("chromium")) is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no browser to test in; apt-get install chromium")
    from playwright.sync_api import sync_playwright

    flags = "no-sandbox disable-gpu disable-dev-shm-usage disable-background-networking disable-quic no-first-run"
    flags += " disable-component-update disable-sync"
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=path, args=[f"--{flag}" for flag in flags.split()])
        yield opened
        opened.close()


gc.set_threshold(50_000, 20, 20)  # tests make many small objects, of which few are in cycles


@pytest.fixture(scope="module", autouse=True)
def _collected() -> None:
    """Set aside what is alive before a file: each training collects garbage, and would go through all of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_figure_left_open() -> Iterator[None]:
    """What a test draws is closed after it: others count the figures that are open."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture
def nothing_shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Drawing neither shows nor saves anything, and leaves matplotlib's settings as they were."""
    import matplotlib.pyplot as plt

    for name in ("show", "savefig"):
        monkeypatch.setattr(plt, name, lambda *_, name=name, **__: pytest.fail(f"plt.{name} was called"))
    before = dict(plt.rcParams)
    yield
    assert dict(plt.rcParams) == before
