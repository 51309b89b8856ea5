"""A study: a folder of tables, each computed once and kept by the recipe it was made from (no torch)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from headroles.tables.files import check_writable
from headroles.tables.frame import join
from headroles.tables.io import load_table, save_table
from headroles.tables.io import notes as read_notes
from headroles.tables.signatures import fields

ONE_MODEL = re.compile(  # tables that are all of one model; others are of what became of it, or of none
    r"heads|roles|attention|efficiency|relate|"
    r"(conservation|ablation|examples|best|curves|areas|sizes|survival|contest)(-.*)?"
)
DERIVED = re.compile(r"(roles|offsets|conservation|best|areas|agreement|relate|odds|predictors|drift)(-.*)?")
log = logging.getLogger(__name__)


class Study:
    """A folder of tables of one model; a finished table stays whatever happens to the next.

    What is not finished, and the weights of pruned models, are in the folder `work`, by default the same. A table of
    another model, or one that would replace that of another corpus, is refused; with `overwrite` it is computed, and
    the tables of the other model or corpus are removed.
    """

    def __init__(self, folder: str | Path, *, work: str | Path | None = None, overwrite: bool = False) -> None:
        self.folder = Path(folder)
        self.work = self.folder if work is None else Path(work)
        self.overwrite = overwrite
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is a file; a study is a folder of tables")

    def keep(self, name: str, recipe: str, compute: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """The table `name`: what is in the folder if `recipe` made it, otherwise computed now and saved.

        `recipe` says what the table follows from: a signature of model, corpus and options. A table made by other
        options is computed anew, said in the log; another model or corpus is refused as by `claim`.
        """
        if self.has(name):
            try:
                table = self.load(name)
            except ValueError as error:
                raise ValueError(f"{error}; remove the file to have it made again") from error
            if table.attrs.get("recipe") == recipe:
                log.info("%s: kept from %s", name, self.path(name))
                return table
        gone = self.claim(name, recipe)
        if self.has(name) and not gone:
            log.warning("%s was made by other options: computed anew", self.path(name))
        table = compute()
        table.attrs["recipe"] = recipe
        save_table(table, self.path(name))
        self.remove(gone)
        return table

    def claim(self, name: str, recipe: str) -> dict[str, str]:
        """Make sure, before it is computed, that the table `name` may be made by `recipe`.

        Raises OSError where it could not be written, FileExistsError where the study has tables of another model, or
        the table is there of another corpus. With `overwrite` those are returned, with what was derived from them, for
        `remove` when the new table is there.
        """
        self.check_writable()
        made = self._made_from()
        heads_per_batch = [
            one for one in made if one == name or (ONE_MODEL.fullmatch(one) and ONE_MODEL.fullmatch(name))
        ]
        if others := [one for one in heads_per_batch if _differ(_model(made[one]), _model(recipe))]:
            gone = made if ONE_MODEL.fullmatch(name) else {one: made[one] for one in others}
            return self._refuse("model", _model(recipe), _model(made[others[0]]), others, gone)
        if name in made and name != "relate" and _differ(_corpus(made[name]), _corpus(recipe)):
            old = set(filter(None, _corpus(made[name])))
            derived = [one for one, text in made.items() if DERIVED.fullmatch(one) and old & _read(text)]
            gone = {one: made[one] for one in sorted({name, *derived})}
            return self._refuse("corpus", _corpus(recipe), _corpus(made[name]), [name], gone)
        return {}

    def remove(self, gone: dict[str, str]) -> None:
        """Remove the tables that `claim` returned and that nothing has replaced since."""
        made = self._made_from() if gone else {}
        for name in (name for name, text in gone.items() if made.get(name) == text):
            self.path(name).unlink(missing_ok=True)

    def check_writable(self) -> None:
        """Raise OSError now for a folder in which nothing could be written after hours of work."""
        check_writable(self.folder, "study folder")

    def load(self, name: str) -> pd.DataFrame:
        """The table `name`. Raises FileNotFoundError, with the tables there are, if it is not in the folder."""
        if not self.has(name):
            raise FileNotFoundError(
                f"no table {name!r} in {self.folder}; there are: {', '.join(self.names()) or 'none'}"
            )
        return load_table(self.path(name))

    def scores(self) -> pd.DataFrame:
        """All tables of the study with a row per head and numbers, joined: scores, effects of ablation, survival.

        Raises FileNotFoundError if there is none.
        """
        found = [
            self.load(name) for name in self.names() if name == "heads" or name.startswith(("ablation-", "survival-"))
        ]
        if not found:
            raise FileNotFoundError(f"no scores in {self.folder}; make them with headroles score or headroles ablate")
        return join(*found)

    def has(self, name: str) -> bool:
        """Whether the folder holds the table `name`."""
        return self.path(name).is_file()

    def names(self) -> list[str]:
        """The tables in the folder."""
        return sorted(path.stem for path in self.folder.glob("*.parquet"))

    def path(self, name: str) -> Path:
        """The file of the table `name`."""
        return self.folder / f"{name}.parquet"

    def _made_from(self) -> dict[str, str]:
        """What each table of ours in the folder was made from: its recipe, or its first signature."""
        found = {}
        for name in self.names():
            if (notes := read_notes(self.path(name))) is not None:
                texts = [notes.get("recipe") or "", *(notes.get("signatures") or {}).values()]
                found[name] = next((text for text in texts if any(_model(text))), texts[0])
        return found

    def _refuse(
        self, what: str, got: tuple[str, ...], expected: tuple[str, ...], others: list[str], gone: dict[str, str]
    ) -> dict[str, str]:
        """The tables that have to go. Raises FileExistsError, with what is there, unless that was asked for."""
        if not self.overwrite:
            signed = (read_notes(self.path(others[0])) or {}).get("signatures") or {}
            named = dict(fields(next(iter(signed.values()), ""))).get(what, f"one {what}")
            raise FileExistsError(
                f"study {self.folder} holds another {what}: got {_listed(got)}; expected {_listed(expected)}, "
                f"{named}, as its tables {', '.join(others)} are of; name another study, or give --overwrite, "
                f"which removes {', '.join(gone)}"
            )
        log.warning("%s: tables of another %s are replaced, and removed: %s", self.folder, what, ", ".join(gone))
        return gone


def _model(text: str) -> tuple[str, ...]:
    """The digest of the weights that a recipe or signature begins with; of `compensation`, those before."""
    return (next((value for key, value in fields(text) if key in ("weights", "before")), ""),)


def _corpus(text: str) -> tuple[str, ...]:
    """The digests of the corpus that was trained on, and of that which was read last."""
    found = dict(fields(text))
    return found.get("trained_on", ""), found.get("text", "")


def _read(text: str) -> set[str]:
    """The digests of all corpora that a signature names, also in signatures that it holds."""
    return {value.partition(" ")[0] for key, value in fields(text) if key in ("text", "trained_on")}


def _differ(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return any(first and second and first != second for first, second in zip(one, other, strict=True))


def _listed(digests: tuple[str, ...]) -> str:
    return ", ".join(filter(None, digests))
