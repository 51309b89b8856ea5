"""The record of what a command printed: lines, tables, warnings, left out; it is kept in the study (no torch)."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import xxhash
from rich.console import Console

from headroles import _distributed
from headroles.cli.signatures import PACKAGE
from headroles.models.weights.at_hand import at_hand

if TYPE_CHECKING:
    import pandas as pd

PRINTED = ".printed-"  # begins the names of files in a study; a digest of the typed words follows
log = logging.getLogger(__name__)


class Rows(TypedDict):
    """A table for --json: its title, and a dictionary for each row."""

    title: str
    rows: list[dict[str, object]]


@dataclass
class Record:
    """What a command printed, with the tables behind it; `quiet`: nothing is printed."""

    quiet: bool = False
    printed: list[str] = field(default_factory=list)  # as it was rendered
    tables: list[Rows] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)  # lines after all others
    words: dict[str, str] = field(default_factory=dict)  # words of the next commands that are no arguments of this one
    following: list[str] = field(default_factory=list)  # next commands to try that no template makes

    def keep(self, table: pd.DataFrame, title: str) -> None:
        """Keep a table; missing numbers become null."""
        named = table if table.index.names == [None] else table.reset_index()
        rows: list[dict[str, object]] = json.loads(named.to_json(orient="records", double_precision=15))
        self.tables.append({"title": title, "rows": rows})


_current: ContextVar[Record] = ContextVar("record")
draws: ContextVar[bool] = ContextVar("draws", default=False)  # whether commands draw the figures of their study


@contextmanager
def recording(*, quiet: bool = False) -> Iterator[Record]:
    """Record what is printed within the block; `quiet`: print nothing."""
    token = _current.set(Record(quiet))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def record() -> Record:
    """Return the record of the running command; outside of one, a record that nobody reads."""
    return _current.get(Record())


class Finished:
    """A command that may be finished already: then what it printed is printed again, and no model is loaded.

    What it printed is kept in a file of its study, with digests of all that it follows from: the typed words, every
    byte of the model's folder and of the other files that are named, the console, versions, and the tables that were in
    the study afterwards. If any of them is another one now, the command runs.

    Args:
        name: Name of the command.
        given: What was typed, by name.
    """

    def __init__(self, name: str, given: Mapping[str, Any]) -> None:
        from headroles.tables.io import expanded

        self.name, self.given, self.study = name, given, expanded(given["study"])
        typed = xxhash.xxh3_64_hexdigest(json.dumps([name, given], default=str).encode())
        self.path = self.study / f"{PRINTED}{typed}.json"
        self.before, self.origin = self._tables(), self._origin()

    def printed(self) -> bool:
        """Print what was printed before and return True, unless it could be different now."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            same: bool = kept["origin"] == self.origin is not None and kept["tables"].items() <= self.before.items()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # there is none, or a damaged one
            return False
        if same:
            warnings = kept["record"].pop("warnings")
            vars(record()).update(kept["record"])
            for text in record().printed:
                Console(quiet=record().quiet).out(text, end="", highlight=False)
            for warning in warnings:
                log.warning(warning)  # which is recorded
        return same

    def keep(self) -> None:
        """Keep what was printed, unless a table or file was replaced meanwhile: by this command, or by another one."""
        from headroles.tables.io import replacing

        tables = self._tables()
        if self.before.items() <= tables.items() and self.origin == self._origin() is not None:
            printed = {key: value for key, value in asdict(record()).items() if key != "quiet"}
            text = json.dumps({"origin": self.origin, "tables": tables, "record": printed})
            with suppress(OSError), replacing(self.path) as draft:
                draft.write_text(text, encoding="utf-8")

    def _tables(self) -> dict[str, str]:
        return {path.name: _digest(path) for path in sorted(self.study.glob("*.parquet")) if path.is_file()}

    def _origin(self) -> str | None:
        """Return a digest of what the command reads besides tables of its study; None unless all of it is in files."""
        with suppress(OSError):
            if _distributed.count() == 1 and not self.given["overwrite"] and (files := self._files()) is not None:
                console, places = Console(), [Path(place) for place in sys.path]
                code = [(path, path.stat()) for path in sorted(PACKAGE.rglob("*.py"))]
                parts = [
                    [console.width, console.is_terminal, console.color_system, console.no_color, console.encoding],
                    [sys.version, *sorted(path.name for place in places for path in place.glob("*.dist-info"))],
                    [(str(path), file.st_size, file.st_mtime_ns) for path, file in code],
                    [(str(path), _digest(path)) for path in files],
                ]
                return xxhash.xxh3_128_hexdigest(json.dumps(parts).encode())
        return None

    def _files(self) -> list[Path] | None:
        """List the named files; None if something else is named, such as a model of the Hub, or a file to write."""
        files = list[Path]()
        for name, value in self.given.items():
            place = Path(at_hand(value)[0] if name == "model" else str(value))
            if value is None or name == "study":
                continue
            if name in ("output", "export") or ".parquet:" in str(value):
                return None
            if name == "model" and ((place / "adapter_config.json").exists() or not (place / "config.json").is_file()):
                return None  # of the Hub, or with weights of another folder
            if place.is_file():
                files.append(place)
            elif place.is_dir():
                inside = (path for path in sorted(place.rglob("*")) if not path.name.startswith("."))
                files += [path for path in inside if path.is_file()]
            elif isinstance(value, Path):
                return None
        return files


def _digest(path: Path) -> str:
    """Return a digest of the bytes of a file."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
