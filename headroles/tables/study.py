"""Studies: folders of tables, each computed once and stored with the cache key it was made from (no torch)."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import cast

import pandas as pd
from filelock import FileLock

from headroles.tables.arguments import several
from headroles.tables.columns import TABLES, Column, table_of, without_ends
from headroles.tables.frame import fields, join, listed, only, provenance, rows, shown
from headroles.tables.frame import table as head_table
from headroles.tables.io import check_writable, expanded, load_table, notes_in, save_table

ALSO = "|also:|"  # between the cache keys of a table with columns of several calls
LOCK = ".lock"  # held by the process and thread that writes into the folder
log = logging.getLogger(__name__)


class Study:
    """A folder of tables of one model, each computed once.

    A table of another model, or one that would replace a table of another corpus, is refused. With `overwrite` it is
    computed, and tables of the other model or corpus are removed. Several processes and threads may write into one
    study at once.

    Args:
        folder: The folder of the tables, made with the first of them. `~` is the home folder.
        work: Folder for unfinished work and for the weights of pruned models; by default the same.
        overwrite: Whether tables of another model or corpus may be replaced.

    Raises:
        NotADirectoryError: If `folder` is a file.
    """

    def __init__(self, folder: str | Path, *, work: str | Path | None = None, overwrite: bool = False) -> None:
        self.folder = expanded(folder)
        self.work = self.folder if work is None else expanded(work)
        self.overwrite = overwrite
        self._announced: set[tuple[str, str]] = set()  # outdated tables that a warning has named, and their cache keys
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise NotADirectoryError(f"study must be a folder of tables, got the file {self.folder}")

    def keep(
        self, name: str, recipe: str, compute: Callable[[], pd.DataFrame], *, joined: Collection[str] = ()
    ) -> pd.DataFrame:
        """Return the stored table if `recipe` made it; compute and save it otherwise.

        `recipe` is the cache key: the provenance of model, corpus and options from which the table follows. A table
        made with other options is computed again, with a warning. `joined` are fields of the key that say which columns
        the table has: stored columns of other scores stay next to the new ones. A damaged file raises ValueError.
        """
        stored = self._stored(name)
        if stored is not None and recipe in _recipes(stored):
            log.info("%s: reused from %s", name, self.path(name))
            return stored
        if not self.claim(name, recipe) and stored is not None and not joined:
            log.warning("%s was made with other options: computed again", self.path(name))
        table = compute()
        table.attrs["recipe"] = recipe
        return self.save(name, table, joined=joined)

    def save(self, name: str, table: pd.DataFrame, *, joined: Collection[str] = ()) -> pd.DataFrame:
        """Return a table, with provenance, as it is stored now, by the rules of `keep` and `claim`."""
        recipe = _origin(table.attrs.get("recipe"), table.attrs.get("signatures"))
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / LOCK):
            outdated = self.claim(name, recipe)
            if joined and name not in outdated and (stored := self._stored(name)) is not None:
                table = self._joined(name, stored, table, joined)
            save_table(table, self.path(name))
            self.remove(outdated)
        return table

    def _stored(self, name: str) -> pd.DataFrame | None:
        """Load the table `name`; None if there is none."""
        try:
            return self.load(name) if self.has(name) else None
        except ValueError as error:
            raise ValueError(f"{error}; remove the file to compute it again") from error

    # Each call of `hr.score` adds its scores to one table. Columns of other scores stay. All columns of the same score
    # are replaced, so that no interval stays next to another estimate. The table has the cache keys of all calls that
    # made its columns. A stored key is `like` the new one if they differ in the choice of columns (`joined`) alone. An
    # `unlike` key may have made a column that is replaced: then it is forgotten, and its call will compute again.
    def _joined(self, name: str, stored: pd.DataFrame, table: pd.DataFrame, joined: Collection[str]) -> pd.DataFrame:
        """Join the columns of a table with the stored columns of other scores."""
        recipe: str = table.attrs.get("recipe") or ""  # a table of survival has none
        scores = {_score(table, column) for column in map(str, table) if recipe} - {None}
        kept, replaced = list[str](), list[str]()
        for column in map(str, stored):
            is_new = {column, column.rpartition(".")[0]} & {*table} or _score(stored, column) in scores
            (replaced if is_new else kept).append(column)
        keys = _recipes(stored)
        like = [key for key in keys if {name for name, _ in {*fields(key)} ^ {*fields(recipe)}} <= {*joined}]
        unlike = [key for key in keys if key not in like]
        if unlike and kept:
            log.warning("%s: columns made with other options are kept: %s", self.path(name), listed(kept))
        if unlike and replaced:
            log.warning("%s: made with other options, computed again: %s", self.path(name), listed(replaced))
            unlike = []
        table = join(only(stored, kept), table) if kept else table
        if recipe:
            table.attrs["recipe"] = ALSO.join([*unlike, *like, recipe])
        return table

    # A study is of one model: a table of other weights is refused by FileExistsError, before the work is done and again
    # when it is saved, because another process may have saved one in between. Tables may be of several corpora, but a
    # table does not silently become one of another corpus. The cache key of a table, or without a key the provenance of
    # its columns, says what it was made from. With `overwrite`, once the new table is saved, all tables of the other
    # model are removed, or the tables derived from the other corpus.
    def claim(self, name: str, recipe: str) -> dict[str, str]:
        """Return outdated tables to `remove` later, and their keys; FileExistsError if `recipe` may not make `name`."""
        self.check_writable()
        origins, shares_model = self._made_from(), table_of(name).one_model
        same_model = [table for table in origins if table == name or (shares_model and table_of(table).one_model)]
        if others := [table for table in same_model if _differ("model", origins[table], recipe)]:
            outdated = origins if shares_model else {table: origins[table] for table in others}
            return self._overwritten("model", recipe, others, outdated)
        if name in origins and name != "relate" and _differ("corpus", origins[name], recipe):
            old = set(filter(None, _digests("corpus", origins[name])))
            derived = [table for table, text in origins.items() if table_of(table).derived and _reads(text, old)]
            outdated = {table: origins[table] for table in sorted({name, *derived})}
            return self._overwritten("corpus", recipe, [name], outdated)
        return {}

    def _overwritten(self, what: str, recipe: str, others: list[str], outdated: dict[str, str]) -> dict[str, str]:
        """Return the outdated tables if they may be removed, and log them once; raise FileExistsError otherwise."""
        if self.overwrite:
            if outdated.items() - self._announced:  # `save` claims again what `keep` has claimed
                log.warning("%s: replacing tables of another %s: %s", self.folder, what, ", ".join(outdated))
            self._announced |= outdated.items()
            return outdated
        texts = notes_in(self.folder)[others[0]]["signatures"] or {}
        name = dict(fields(next(iter(texts.values()), ""))).get(what, f"one {what}")
        got, expected = (", ".join(filter(None, _digests(what, text))) for text in (recipe, outdated[others[0]]))
        raise FileExistsError(
            f"study {self.folder} holds another {what}: got {got}; expected {expected} ({name}), "
            f"from which its tables {', '.join(others)} were made; name another study, or give --overwrite, "
            f"which removes {', '.join(outdated)}"
        )

    def remove(self, outdated: dict[str, str]) -> None:
        """Remove the tables that `claim` returned, unless they have been replaced since."""
        origins = self._made_from() if outdated else {}
        for name in (name for name, text in outdated.items() if origins.get(name) == text):
            self.path(name).unlink(missing_ok=True)

    def check_writable(self) -> None:
        """Raise OSError if the folder is not writable, before hours of work."""
        check_writable(self.folder, "study folder")

    def load(self, name: str) -> pd.DataFrame:
        """Load the table `name`; raise FileNotFoundError, with the names of all tables, if there is none."""
        if not self.has(name):
            table = table_of(name)
            hint = f"; make it with {table.made_with(self.folder)}" if table.command else ""
            raise FileNotFoundError(f"no table {name!r} in {self.folder}, which has {listed(self.names())}{hint}")
        return load_table(self.path(name))

    def lacks(self, what: str) -> FileNotFoundError:
        """Return the error of a study without tables to work on, with the command that makes some."""
        return FileNotFoundError(f"no {what} in {self.folder}; make them with {TABLES['heads'].made_with(self.folder)}")

    def scores(self) -> pd.DataFrame:
        """Load and join the tables of scores, effects of ablation, and survival; FileNotFoundError without any."""
        names = [name for name in self.names() if table_of(name).is_outcome]
        if not names:
            raise self.lacks("scores")
        return join(*map(self.load, names))

    def has(self, name: str) -> bool:
        """Return whether the folder holds the table `name`."""
        return self.path(name).is_file()

    def names(self) -> list[str]:
        """Return the names of the tables; files of another origin are left out, with a warning."""
        return [*notes_in(self.folder)]

    def path(self, name: str) -> Path:
        """Return the file of the table `name`."""
        return self.folder / f"{name}.parquet"

    def _repr_html_(self) -> str:
        """Show the tables of the study, their sizes and corpora in a notebook."""
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


def kept(
    study: Study | str | Path | None,
    name: str,
    key: Callable[[], str],
    compute: Callable[[], pd.DataFrame],
    *,
    joined: Collection[str] = (),
) -> pd.DataFrame:
    """Return the table `name` of a study, kept under the key that `key` makes; without a study compute it."""
    return compute() if study is None else as_study(study).keep(name, key(), compute, joined=joined)


Place = pd.DataFrame | Study | str | Path


def as_study(place: Study | str | Path | None) -> Study:
    """Return a study as it is, the study in a folder, or one in a temporary folder that is removed with it."""
    if isinstance(place, Study):
        return place
    if place is not None:
        return Study(place)
    study = Study(tempfile.mkdtemp(prefix="headroles-"))
    weakref.finalize(study, shutil.rmtree, study.folder, ignore_errors=True)
    return study


def as_table(place: Place, name: str = "") -> pd.DataFrame:
    """Return a table as it is, the one in a file, or the table `name` of a study; without a name its scores."""
    if isinstance(place, pd.DataFrame):
        return place
    if (study := study_of(place)) is None:
        return load_table(cast(Path, place))
    return study.load(name) if name else study.scores()


def study_of(place: Place) -> Study | None:
    """Return the study at a place; None for a table, or the file of one."""
    if isinstance(place, pd.DataFrame) or (not isinstance(place, Study) and Path(place).is_file()):
        return None
    return as_study(place)


def as_tables(places: Place | Sequence[Place]) -> pd.DataFrame:
    """Join the columns of several places, each once; columns of several seeds are averaged."""
    if isinstance(places, pd.DataFrame):
        return places
    tables: list[pd.DataFrame] = []
    for place in several(cast(Sequence[Place], places)):  # a path by itself is one
        table = as_table(place)
        repeated = [name for earlier in tables for name in earlier if name in table]
        if repeated:
            log.info("%s: %d columns of an earlier study are left out", place, len(repeated))
        table = only(table, [name for name in map(str, table) if name not in repeated])
        if table.shape[1]:
            tables.append(table)
    return _over_seeds(join(*tables))


def _over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Average columns that differ only by a seed, as in `survival[random 36 seed 0]`."""
    seeds: dict[str, list[str]] = {}
    for name in map(str, table):
        if (short := str(Column.parse(name).without_seed)) != name:
            seeds.setdefault(short, []).append(name)
    if not seeds:
        return table
    means = {name: table[columns].mean(axis=1) for name, columns in seeds.items()}
    signed = {name: f"{provenance(table, columns[0])}|seeds:{len(columns)}" for name, columns in seeds.items()}
    averaged = {name for columns in seeds.values() for name in columns}
    rest = only(table, [name for name in map(str, table) if name not in averaged])
    return join(rest, head_table(means, rows(table), signed))


def _recipes(table: pd.DataFrame) -> list[str]:
    """Return the cache keys that made the columns of a table."""
    return list(filter(None, (table.attrs.get("recipe") or "").split(ALSO)))


def _origin(recipe: str | None, signatures: dict[str, str] | None) -> str:
    """Return the cache key of a table, or the first of its signatures that names a model."""
    texts = [recipe or "", *(signatures or {}).values()]
    return next((text for text in texts if any(_digests("model", text))), texts[0])


def _score(table: pd.DataFrame, column: str) -> str | None:
    """Return the score that the provenance of a column names."""
    return dict(fields(table.attrs.get("signatures", {}).get(column, ""))).get("score")


def _digests(what: str, text: str) -> list[str]:
    """Digests in a cache key or signature: of the weights, or of the training corpus and the corpus read last."""
    if what == "corpus":
        return [dict(fields(text)).get(key, "") for key in ("trained_on", "text")]
    return [
        next((value for key, value in fields(text) if key in ("weights", "before")), "")
    ]  # before: of `weight-change`


def _reads(text: str, digests: set[str]) -> bool:
    """Return whether a signature names one of these corpora, also in nested signatures."""
    return any(key in ("text", "trained_on") and value.partition(" ")[0] in digests for key, value in fields(text))


def _differ(what: str, old: str, new: str) -> bool:
    digests = zip(_digests(what, old), _digests(what, new), strict=True)
    return any(first and second and first != second for first, second in digests)
