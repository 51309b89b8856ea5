"""A study: a folder of tables, each computed once and kept by the recipe it was made from (no torch)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from headroles import heads

log = logging.getLogger(__name__)


class Study:
    """A folder of tables; a finished table stays whatever happens to the next.

    What is not finished, and the weights of pruned models, are in the folder `work`, by default the same.
    """

    def __init__(self, folder: str | Path, *, work: str | Path | None = None) -> None:
        self.folder = Path(folder)
        self.work = self.folder if work is None else Path(work)
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is a file; a study is a folder of tables")

    def keep(self, name: str, recipe: str, compute: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """The table `name`: what is in the folder if `recipe` made it, otherwise computed now and saved.

        `recipe` says what the table follows from: a signature of model, corpus and options. A table of another recipe
        is computed anew, said in the log.
        """
        if self.has(name):
            try:
                table = self.load(name)
            except ValueError as error:
                raise ValueError(f"{error}; remove the file to have it made again") from error
            if table.attrs.get("recipe") == recipe:
                log.info("%s: kept from %s", name, self.path(name))
                return table
            log.warning("%s was made from another model, corpus or options: computed anew", self.path(name))
        table = compute()
        table.attrs["recipe"] = recipe
        heads.save(table, self.path(name))
        return table

    def load(self, name: str) -> pd.DataFrame:
        """The table `name`. Raises FileNotFoundError, with the tables there are, if it is not in the folder."""
        if not self.has(name):
            raise FileNotFoundError(
                f"no table {name!r} in {self.folder}; there are: {', '.join(self.names()) or 'none'}"
            )
        return heads.load(self.path(name))

    def scores(self) -> pd.DataFrame:
        """All tables of the study with a row per head and numbers, joined: scores, effects of ablation, survival.

        Raises FileNotFoundError if there is none.
        """
        found = [
            self.load(name) for name in self.names() if name == "heads" or name.startswith(("ablation-", "survival-"))
        ]
        if not found:
            raise FileNotFoundError(f"no scores in {self.folder}; make them with headroles score or headroles ablate")
        return heads.join(*found)

    def has(self, name: str) -> bool:
        """Whether the folder holds the table `name`."""
        return self.path(name).is_file()

    def names(self) -> list[str]:
        """The tables in the folder."""
        return sorted(path.stem for path in self.folder.glob("*.parquet"))

    def path(self, name: str) -> Path:
        """The file of the table `name`."""
        return self.folder / f"{name}.parquet"
