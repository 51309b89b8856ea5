"""Studies: folders of tables, each computed once and stored with the cache key it was made from (no torch)."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import tempfile
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote

import pandas as pd
from filelock import BaseFileLock, FileLock, Timeout

from headroles._restoration import Changes, block
from headroles.tables.columns import table_of, without_ends
from headroles.tables.frame import fields, join, listed, only, sign
from headroles.tables.io import check_writable, expanded, load_table, notes, notes_in, save_table

ALSO = "|also:|"  # between the cache keys of a table of columns that were computed one after the other
LOCK = ".lock"  # held by the process and thread that writes into the folder
MAKING = ".making-"  # begins the name of a file that is locked while a table is computed; what it is made from follows
log = logging.getLogger(__name__)


class Study:
    """A folder of tables of one model, each computed once.

    A finished table is kept even if a later one fails. A table of another model, or one that would replace a table of
    another corpus, is refused. With `overwrite` it is computed, and tables of the other model or corpus are removed.
    Several processes and threads may write into one study at once.

    Args:
        folder: The folder of the tables. It is made when the first table is saved. `~` is the home folder.
        work: Folder for unfinished work and for the weights of pruned models; by default the same.
        overwrite: Whether tables of another model or corpus may be replaced.

    Raises:
        NotADirectoryError: If `folder` is a file, or a link to nothing.
    """

    def __init__(self, folder: str | Path, *, work: str | Path | None = None, overwrite: bool = False) -> None:
        self.folder = expanded(folder)
        self._warned: dict[str, str] = {}  # outdated tables of the last warning
        self.work = self.folder if work is None else expanded(work)
        self.overwrite = overwrite
        self.temporary: tempfile.TemporaryDirectory[str] | None = None  # which lives as long as the study
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            what = "a file" if self.folder.exists() else "a link to nothing"
            raise NotADirectoryError(f"{self.folder} is {what}; a study is a folder of tables")

    def keep(
        self, name: str, recipe: str, compute: Callable[[], pd.DataFrame], *, joined: Collection[str] = ()
    ) -> pd.DataFrame:
        """Return the stored table if `recipe` made it; compute and save it otherwise.

        A table made with other options is computed again, with a warning. If columns are computed one after the
        other (`joined`), the stored columns of other scores are kept beside the new ones, each with its own
        provenance.

        Args:
            name: Name of the table, without suffix.
            recipe: Cache key: the provenance of model, corpus and options from which the table follows.
            compute: Function that makes the table.
            joined: Fields of the cache key that say which columns the table has.

        Returns:
            The table.

        Raises:
            ValueError: If the stored file is damaged.
        """  # noqa: DOC502
        stored = self._stored(name)
        if stored is not None and recipe in _recipes(stored):
            log.info("%s: reused from %s", name, self.path(name))
            return stored
        if not self.claim(name, recipe) and stored is not None and not joined:
            log.warning("%s was made with other options: computed again", self.path(name))
        with _announced(self.folder, name, recipe):
            table = compute()
        table.attrs["recipe"] = recipe
        return self.save(name, table, joined=joined)

    def save(self, name: str, table: pd.DataFrame, *, joined: Collection[str] = ()) -> pd.DataFrame:
        """Save a table, unless the study has got tables of another model or corpus in the meantime.

        Args:
            name: Name of the table, without suffix.
            table: The table, with provenance.
            joined: Fields of its cache key that say which columns it has, as of `keep`; other stored columns are kept
                beside.

        Returns:
            The table as it is stored.

        Raises:
            FileExistsError: If the study has tables of another model, or the stored table is of another corpus.
        """  # noqa: DOC502
        recipe = _origin(table.attrs.get("recipe"), table.attrs.get("signatures"))
        with _locked(self.folder):
            outdated = self.claim(name, recipe)
            if joined and name not in outdated and (stored := self._stored(name)) is not None:
                table = self._joined(name, stored, table, joined)
            save_table(table, self.path(name))
            self.remove(outdated)
        return table

    def _stored(self, name: str) -> pd.DataFrame | None:
        """Load the table `name`, or None if there is none; ValueError with a hint if it is damaged."""
        try:
            return self.load(name) if self.has(name) else None
        except ValueError as error:
            raise ValueError(f"{error}; remove the file to compute it again") from error

    def _joined(self, name: str, stored: pd.DataFrame, table: pd.DataFrame, joined: Collection[str]) -> pd.DataFrame:
        """Join the columns of a table and the stored ones of other scores."""
        recipe: str = table.attrs.get("recipe") or ""  # a table of survival has none
        scores = {_score(table, column) for column in map(str, table) if recipe} - {None}
        others = [
            column
            for column in map(str, stored)
            if not {column, column.rpartition(".")[0]} & {*table} and _score(stored, column) not in scores
        ]
        like = [
            text for text in _recipes(stored) if {key for key, _ in {*fields(text)} ^ {*fields(recipe)}} <= {*joined}
        ]
        unlike = [text for text in _recipes(stored) if text not in like]
        if unlike and others:
            log.warning("%s: columns made with other options stay beside: %s", self.path(name), listed(others))
        if unlike and len(others) < len(stored.columns):
            again = [column for column in map(str, stored) if column not in others]
            log.warning("%s: made with other options, computed again: %s", self.path(name), listed(again))
            unlike = []  # they may have made columns that are replaced
        table = join(only(stored, others), table) if others else table
        if recipe:
            table.attrs["recipe"] = ALSO.join([*unlike, *like, recipe])
        return table

    def holds(self, name: str, recipe: str) -> bool:
        """Return whether the stored table was made by this cache key."""
        kept = notes(self.path(name)) if self.has(name) else None
        return kept is not None and recipe in (kept["recipe"] or "").split(ALSO)

    def claim(self, name: str, recipe: str) -> dict[str, str]:
        """Check, before the work is done, that the table `name` may be made from `recipe`.

        Args:
            name: Name of the table, without suffix.
            recipe: Its cache key.

        Returns:
            Outdated tables that `overwrite` allows to remove, and what they were made from, for `remove` once the new
            table is saved.

        Raises OSError if the folder is not writable, and FileExistsError if the study has tables of another model or
        the stored table is of another corpus.
        """
        self.check_writable()
        origins = self._announcements() | self._made_from()
        shares_model = table_of(name).one_model
        same_model = [table for table in origins if table == name or (shares_model and table_of(table).one_model)]
        if others := [table for table in same_model if _differ(_model(origins[table]), _model(recipe))]:
            outdated = origins if shares_model else {table: origins[table] for table in others}
            return self._refuse("model", _model(recipe), _model(origins[others[0]]), others, outdated)
        if name in origins and name != "relate" and _differ(_corpus(origins[name]), _corpus(recipe)):
            old = set(filter(None, _corpus(origins[name])))
            derived = [table for table, text in origins.items() if table_of(table).derived and _reads(text, old)]
            outdated = {table: origins[table] for table in sorted({name, *derived})}
            return self._refuse("corpus", _corpus(recipe), _corpus(origins[name]), [name], outdated)
        return {}

    def remove(self, outdated: dict[str, str]) -> None:
        """Remove the tables that `claim` returned, unless they have been replaced since."""
        origins = self._made_from() if outdated else {}
        for name in (name for name, text in outdated.items() if origins.get(name) == text):
            self.path(name).unlink(missing_ok=True)

    def check_writable(self) -> None:
        """Raise OSError if the folder is not writable, before hours of work."""
        check_writable(self.folder, "study folder")

    def load(self, name: str) -> pd.DataFrame:
        """Load the table `name`.

        Args:
            name: Name of the table, without suffix.

        Returns:
            The table.

        Raises:
            FileNotFoundError: If it is not in the folder; with the names of the tables that are.
        """
        if not self.has(name):
            hint = f"; make it with headroles {command}" if (command := table_of(name).command) else ""
            hint += f" {shlex.quote(str(self.folder))}" if command == "roles" else ""
            raise FileNotFoundError(f"no table {name!r} in {self.folder}; there are: {listed(self.names())}{hint}")
        return load_table(self.path(name))

    def scores(self) -> pd.DataFrame:
        """Load and join the tables of scores, effects of ablation, and survival.

        Returns:
            The joined table.

        Raises:
            FileNotFoundError: If the study has none of them.
        """
        names = [name for name in self.names() if table_of(name).is_outcome]
        if not names:
            raise FileNotFoundError(f"no scores in {self.folder}; make them with headroles score or headroles ablate")
        return join(*map(self.load, names))

    def has(self, name: str) -> bool:
        """Return whether the folder holds the table `name`."""
        return self.path(name).is_file()

    def names(self) -> list[str]:
        """Return the names of the tables in the folder; files of another origin are left out, with a warning."""
        return [*notes_in(self.folder)]

    def path(self, name: str) -> Path:
        """Return the file of the table `name`."""
        return self.folder / f"{name}.parquet"

    def _repr_html_(self) -> str:
        """Show the tables of the study, their sizes and corpora in a notebook."""
        from headroles.tables.frame import shown

        rows = []
        for name, stored in notes_in(self.folder).items():
            signatures = stored["signatures"] or {}
            facts = dict(fields(next(iter(signatures.values()), "")))
            row = {"table": name, "rows": stored["rows"], "columns": ", ".join(without_ends(signatures))}
            rows.append(row | {part: facts.get(part, "") for part in ("model", "corpus")})
        return shown(f"Study {self.folder}: {len(rows)} tables", rows)

    def _made_from(self) -> dict[str, str]:
        """Cache key of each of our tables in the folder, or its first signature."""
        return {name: _origin(notes["recipe"], notes["signatures"]) for name, notes in notes_in(self.folder).items()}

    def _announcements(self) -> dict[str, str]:
        """Return the tables that other processes are making, and what from."""
        made = {}
        for place in self.folder.glob(f"{MAKING}*"):
            try:
                with FileLock(place, blocking=False):
                    place.unlink()  # of a killed run
            except Timeout:
                text = unquote(place.name.removeprefix(MAKING))
                made[dict(fields(text))["table"]] = text
            except FileNotFoundError:  # finished just now
                continue
        return made

    def _refuse(
        self, what: str, got: tuple[str, ...], expected: tuple[str, ...], others: list[str], outdated: dict[str, str]
    ) -> dict[str, str]:
        """Return the outdated tables; raise FileExistsError unless overwriting is allowed."""
        if not self.overwrite:
            known = notes_in(self.folder).get(others[0])
            texts = known["signatures"] if known is not None else None
            name = dict(fields(next(iter((texts or {}).values()), ""))).get(what, f"one {what}")
            name = name if known is not None else "another process is at work on it"
            old, new = (", ".join(filter(None, digests)) for digests in (got, expected))
            raise FileExistsError(
                f"study {self.folder} holds another {what}: got {old}; expected {new} ({name}), "
                f"from which its tables {', '.join(others)} were made; name another study, or give --overwrite, "
                f"which removes {', '.join(outdated)}"
            )
        if self._warned != outdated:  # `save` claims again what `keep` has claimed
            log.warning("%s: replacing and removing tables of another %s: %s", self.folder, what, ", ".join(outdated))
        self._warned = outdated
        return outdated


def kept(
    study: Study | str | Path | None,
    name: str,
    key: Callable[[], str],
    compute: Callable[[], pd.DataFrame],
    *,
    joined: Collection[str] = (),
) -> pd.DataFrame:
    """Return the table `name` of a study, computed if needed; without a study compute it.

    Args:
        study: The study or its folder; None to keep nothing.
        name: Name of the table, without suffix.
        key: Makes the cache key; not called without a study.
        compute: Makes the table.
        joined: Fields of the cache key that say which columns the table has (`Study.keep`).

    Returns:
        The table.
    """
    return compute() if study is None else study_at(study).keep(name, key(), compute, joined=joined)


def study_at(place: Study | str | Path | None) -> Study:
    """Return a study, that of a folder, or of a temporary folder that is removed with it."""
    if isinstance(place, Study):
        return place
    if place is not None:
        return Study(place)
    temporary = tempfile.TemporaryDirectory(prefix="headroles-")
    study = Study(temporary.name)
    study.temporary = temporary
    return study


def _recipes(table: pd.DataFrame) -> list[str]:
    """Return the cache keys that made the columns of a table."""
    return list(filter(None, (table.attrs.get("recipe") or "").split(ALSO)))


@block
def _locked(changes: Changes, folder: Path) -> None:
    """Keep other processes and threads from writing into a folder within the block."""
    lock = FileLock(folder / LOCK)
    changes.add(partial(_release, lock))
    _acquire(lock, folder)


@block
def _announced(changes: Changes, folder: Path, name: str, recipe: str) -> None:
    """Show within the block what `name` is being made from: others are refused before their work, not after it."""
    parts = {key: value for key, value in fields(recipe) if key in ("weights", "before", "text", "trained_on")}
    if not folder.exists():
        changes.add(partial(_remove_empty, folder))
    lock = FileLock(folder / f"{MAKING}{quote(sign(table=name, **parts), safe='')}")
    changes.add(partial(_release, lock))
    with contextlib.suppress(Timeout):  # where another process makes the same
        _acquire(lock, folder, blocking=False)


def _acquire(lock: BaseFileLock, folder: Path, *, blocking: bool = True) -> None:
    """Make a folder and take a lock in it, also where another writer removes the empty folder in between."""
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=blocking)
            return
    raise OSError(f"cannot write into study folder {folder}: it is removed again and again; name another")


def _release(lock: BaseFileLock) -> None:
    if lock.is_locked:
        with contextlib.suppress(OSError):
            Path(lock.lock_file).unlink()  # those who wait for it make a new one
        lock.release()


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # the table was made, or others write here
        folder.rmdir()


def _origin(recipe: str | None, signatures: dict[str, str] | None) -> str:
    """Return the cache key of a table, or the first of its signatures that names a model."""
    texts = [recipe or "", *(signatures or {}).values()]
    return next((text for text in texts if any(_model(text))), texts[0])


def _score(table: pd.DataFrame, column: str) -> str | None:
    """Return the score that the provenance of a column names."""
    return dict(fields(table.attrs.get("signatures", {}).get(column, ""))).get("score")


def _model(text: str) -> tuple[str, ...]:
    """Digest of the weights in a cache key or signature; of `weight-change`, of the weights before."""
    return (next((value for key, value in fields(text) if key in ("weights", "before")), ""),)


def _corpus(text: str) -> tuple[str, ...]:
    """Digests of the training corpus and of the corpus read last."""
    values = dict(fields(text))
    return values.get("trained_on", ""), values.get("text", "")


def _reads(text: str, digests: set[str]) -> bool:
    """Whether a signature names one of these corpora, also in nested signatures."""
    return any(key in ("text", "trained_on") and value.partition(" ")[0] in digests for key, value in fields(text))


def _differ(old: tuple[str, ...], new: tuple[str, ...]) -> bool:
    return any(first and second and first != second for first, second in zip(old, new, strict=True))
