"""Material: the corpora that the papers' experiments need, from the files of one folder (no torch)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from headroles.corpus import read
from headroles.text import Corpus


class Material(NamedTuple):
    """What is learnt from, told on, measured on; None where the folder has no such file."""

    train: Corpus
    dev: Corpus
    test: Corpus
    other: Corpus | None  # another domain
    trees: Corpus | None
    other_trees: Corpus | None
    sentences: Corpus | None  # a few, to draw the attention on; by default of those with trees


def material(folder: str | Path, *, limit: int | None = None) -> Material:
    """The corpora of a folder; of each the first `limit` sentences.

    `train`, `dev` and `test`, and if they are there `other` (another domain), `trees` and `other_trees` (CoNLL-U),
    `sentences` (a few, to draw attention on): for
    a classifier files such as train.tsv, for a translation model pairs such as train.source.txt and train.target.txt;
    .gz too. Raises FileNotFoundError for a folder without the first three, ValueError for files that are no pair.
    """
    place = Path(folder)
    found = {name: _part(place, name, limit) for name in Material._fields}
    if lacking := [name for name in ("train", "dev", "test") if found[name] is None]:
        raise FileNotFoundError(
            f"no {lacking[0]} in {place}; a folder of data has train, dev and test: .tsv with labels, "
            f"or .source.txt and .target.txt; and if you have them other, trees and other_trees (.conllu), sentences"
        )
    return Material(**found)  # type: ignore[arg-type]


def _part(folder: Path, name: str, limit: int | None) -> Corpus | None:
    files = sorted(folder.glob(f"{name}.*"))
    if len(files) == 1:
        return read(files[0], limit=limit)
    sides = [file.name.split(".")[1] for file in files]
    if files and sides != ["source", "target"]:
        raise ValueError(
            f"expected {name}.source.* and {name}.target.* in {folder}; got {', '.join(f.name for f in files)}"
        )
    return read(*files, limit=limit) if files else None
