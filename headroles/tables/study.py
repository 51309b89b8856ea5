"""Studies: folders of tables, each computed once and stored with the cache key it was made from (no torch)."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from pyarrow import parquet

from headroles.tables.frame import fields, join, listed
from headroles.tables.io import check_writable, load_table, save_table
from headroles.tables.io import notes as read_notes

if TYPE_CHECKING:
    from huggingface_hub import HfApi

ONE_MODEL = re.compile(  # tables of one model; the other tables are of models derived from it, or of none
    r"heads|roles|attention|efficiency|relate|gating|"
    r"(conservation|ablation|examples|best|curves|areas|sizes|survival|contest)(-.*)?"
)
DERIVED = re.compile(r"(roles|offsets|conservation|best|areas|agreement|relate|odds|predictors|drift)(-.*)?")
ALSO = "|also:|"  # between the cache keys of a table of columns that were computed one after the other
MADE_BY = {"heads": "score", "roles": "roles", "attention": "attention-examples"}  # tables and their commands
log = logging.getLogger(__name__)


class Study:
    """A folder of tables of one model, each computed once.

    A finished table is kept even if a later one fails. A table of another model, or one that would replace a table of
    another corpus, is refused. With `overwrite` it is computed, and tables of the other model or corpus are removed.

    Args:
        folder: The folder of the tables. It is made when the first table is saved.
        work: Folder for unfinished work and for the weights of pruned models; by default the same.
        overwrite: Whether tables of another model or corpus may be replaced.

    Raises:
        NotADirectoryError: If `folder` is a file.
    """

    def __init__(self, folder: str | Path, *, work: str | Path | None = None, overwrite: bool = False) -> None:
        self.folder = Path(folder)
        self.work = self.folder if work is None else Path(work)
        self.overwrite = overwrite
        self.temporary: tempfile.TemporaryDirectory[str] | None = None  # which lives as long as the study
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is a file; a study is a folder of tables")

    @classmethod
    def from_hub(
        cls,
        repo: str,
        folder: str | Path | None = None,
        *,
        revision: str | None = None,
        local_files_only: bool = False,
        cache: str | Path | None = None,
    ) -> Study:
        """Download a study that `push_to_hub` uploaded.

        Args:
            repo: Name on the Hub, OWNER/NAME.
            folder: Folder for the tables; by default the cache of huggingface_hub, in which nothing should be written.
            revision: Commit, branch or tag.
            local_files_only: Whether to take only what was downloaded before.
            cache: Folder of that cache, if it is another one.

        Returns:
            The study.

        Raises:
            FileNotFoundError: If the data set has no table of headroles.
        """  # noqa: DOC502
        from headroles.tables.hub import fetch

        return cls(fetch(repo, folder, revision=revision, local_files_only=local_files_only, cache=cache))

    def push_to_hub(self, repo: str, *, private: bool = False, message: str = "", api: HfApi | None = None) -> str:
        """Upload the tables, figures and reports of the study to the Hub as a data set, with a card.

        A report is uploaded if it is in the folder: `hr.report(study, study.folder / "report.html")`.

        Args:
            repo: Name on the Hub, OWNER/NAME; the data set is created if needed.
            private: Whether a new data set is private.
            message: Message of the commit.
            api: Client of the Hub; by default that of the user who is logged in.

        Returns:
            The address of the commit.

        Raises:
            FileNotFoundError: If the study has no tables.
        """  # noqa: DOC502
        from headroles.tables.hub import push

        return push(self, repo, private=private, message=message, api=api)

    def keep(
        self, name: str, recipe: str, compute: Callable[[], pd.DataFrame], *, joined: Collection[str] = ()
    ) -> pd.DataFrame:
        """Return the stored table if `recipe` made it; compute and save it otherwise.

        A table made with other options is computed again, with a warning. If only the fields `joined` of the cache key
        differ, such as the scores, the stored columns are kept beside the new ones.

        Args:
            name: Name of the table, without suffix.
            recipe: Cache key: the provenance of model, corpus and options from which the table follows.
            compute: Function that makes the table.
            joined: Fields of the cache key that say which columns the table has.

        Returns:
            The table.

        Raises:
            ValueError: If the stored file is damaged.
        """
        try:
            stored = self.load(name) if self.has(name) else None
        except ValueError as error:
            raise ValueError(f"{error}; remove the file to compute it again") from error
        recipes = [] if stored is None else (stored.attrs.get("recipe") or "").split(ALSO)
        if stored is not None and recipe in recipes:
            log.info("%s: reused from %s", name, self.path(name))
            return stored
        outdated = self.claim(name, recipe)
        joins = bool(recipes) and {key for key, _ in {*fields(recipes[0])} ^ {*fields(recipe)}} <= {*joined}
        if stored is not None and not outdated and not joins:
            log.warning("%s was made with other options: computed again", self.path(name))
        table = compute()
        if stored is not None and joins:
            others = [column for column in stored if column not in table]
            table = join(stored[others], table) if others else table
            recipe = ALSO.join([*recipes, recipe])
        table.attrs["recipe"] = recipe
        save_table(table, self.path(name))
        self.remove(outdated)
        return table

    def holds(self, name: str, recipe: str) -> bool:
        """Return whether the stored table was made by this cache key."""
        notes = read_notes(self.path(name)) if self.has(name) else None
        return recipe in ((notes or {}).get("recipe") or "").split(ALSO)

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
        origins = self._made_from()
        shares_model = ONE_MODEL.fullmatch(name) is not None
        same_model = [table for table in origins if table == name or (shares_model and ONE_MODEL.fullmatch(table))]
        if others := [table for table in same_model if _differ(_model(origins[table]), _model(recipe))]:
            outdated = origins if shares_model else {table: origins[table] for table in others}
            return self._refuse("model", _model(recipe), _model(origins[others[0]]), others, outdated)
        if name in origins and name != "relate" and _differ(_corpus(origins[name]), _corpus(recipe)):
            old = set(filter(None, _corpus(origins[name])))
            derived = [table for table, text in origins.items() if DERIVED.fullmatch(table) and _reads(text, old)]
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
            hint = f"; make it with headroles {MADE_BY[name]}" if name in MADE_BY else ""
            raise FileNotFoundError(f"no table {name!r} in {self.folder}; there are: {listed(self.names())}{hint}")
        return load_table(self.path(name))

    def scores(self) -> pd.DataFrame:
        """Load and join the tables of scores, effects of ablation, and survival.

        Returns:
            The joined table.

        Raises:
            FileNotFoundError: If the study has none of them.
        """
        names = [name for name in self.names() if name == "heads" or name.startswith(("ablation-", "survival-"))]
        if not names:
            raise FileNotFoundError(f"no scores in {self.folder}; make them with headroles score or headroles ablate")
        return join(*map(self.load, names))

    def has(self, name: str) -> bool:
        """Return whether the folder holds the table `name`."""
        return self.path(name).is_file()

    def names(self) -> list[str]:
        """Return the names of the tables in the folder."""
        return sorted(path.stem for path in self.folder.glob("*.parquet"))

    def path(self, name: str) -> Path:
        """Return the file of the table `name`."""
        return self.folder / f"{name}.parquet"

    def _repr_html_(self) -> str:
        """Show the tables of the study, their sizes and corpora in a notebook."""
        from headroles.tables.frame import shown

        rows = []
        for name in self.names():
            if (notes := read_notes(self.path(name))) is None:
                continue  # of another origin, or damaged
            signatures = notes.get("signatures") or {}
            facts = dict(fields(next(iter(signatures.values()), "")))
            count = parquet.read_metadata(self.path(name)).num_rows
            columns = [column for column in signatures if not column.endswith((".low", ".high"))]
            row = {"table": name, "rows": count, "columns": ", ".join(columns)}
            rows.append(row | {part: facts.get(part, "") for part in ("model", "corpus")})
        return shown(f"Study {self.folder}: {len(rows)} tables", rows)

    def _made_from(self) -> dict[str, str]:
        """Cache key of each of our tables in the folder, or its first signature."""
        origins = {}
        for name in self.names():
            if (notes := read_notes(self.path(name))) is not None:
                texts = [notes.get("recipe") or "", *(notes.get("signatures") or {}).values()]
                origins[name] = next((text for text in texts if any(_model(text))), texts[0])
        return origins

    def _refuse(
        self, what: str, got: tuple[str, ...], expected: tuple[str, ...], others: list[str], outdated: dict[str, str]
    ) -> dict[str, str]:
        """Return the outdated tables; raise FileExistsError unless overwriting is allowed."""
        if not self.overwrite:
            texts = (read_notes(self.path(others[0])) or {}).get("signatures") or {}
            name = dict(fields(next(iter(texts.values()), ""))).get(what, f"one {what}")
            old, new = (", ".join(filter(None, digests)) for digests in (got, expected))
            raise FileExistsError(
                f"study {self.folder} holds another {what}: got {old}; expected {new} ({name}), "
                f"from which its tables {', '.join(others)} were made; name another study, or give --overwrite, "
                f"which removes {', '.join(outdated)}"
            )
        log.warning("%s: replacing and removing tables of another %s: %s", self.folder, what, ", ".join(outdated))
        return outdated


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


def _model(text: str) -> tuple[str, ...]:
    """Digest of the weights in a cache key or signature; of `compensation`, of the weights before."""
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
