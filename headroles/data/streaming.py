"""Streaming corpora: files of any length, read in parts of constant size (no torch)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path

from headroles.data.conllu import columns, trees
from headroles.data.corpus import Corpus, Sentence, digested
from headroles.data.hf_datasets import LABELS
from headroles.data.lines import lines
from headroles.data.readers import stem, suffix

PART = 4096  # sentences in memory at once


class StreamingCorpus:
    """Sentences of one or two files, read again on every iteration.

    The lines of two files correspond.

    One sentence a line; `.conllu` has trees, `.tsv` two columns that are translations of each other; `.gz` is unpacked.
    Blank lines, and pairs with a blank side, are left out. A line may have 1 MiB.

    Args:
        source: The file.
        target: File of the translations.
        name: Name of the corpus; by default from the files' names.
        part: Number of sentences that are in memory, tokenised and sorted by length at once.
        limit: Number of sentences to read from the beginning; the rest of the file is left unread.

    Raises:
        ValueError: If `limit` is below 1.
        FileNotFoundError: If a file does not exist.
    """

    def __init__(
        self,
        source: str | Path,
        target: str | Path | None = None,
        *,
        name: str | None = None,
        part: int = PART,
        limit: int | None = None,
    ) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be None or at least 1 sentence; got {limit}")
        self.limit = limit
        self.source, self.target, self.part = Path(source), None if target is None else Path(target), part
        for path in self._files:
            if not path.is_file():
                raise FileNotFoundError(f"no file at {path}")
        self.name = name or "+".join(map(stem, self._files))

    @property
    def _files(self) -> list[Path]:
        return [self.source] if self.target is None else [self.source, self.target]

    @cached_property
    def hash(self) -> str:
        """First 12 hexadecimal digits of the SHA-256 of the files; with a limit, of the sentences."""
        if self.limit is not None:
            return digested(self)
        digest = hashlib.sha256()
        for path in self._files:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()[:12]

    def __iter__(self) -> Iterator[Sentence]:
        """Iterate over the sentences; ValueError with path and line where a file is malformed."""
        return islice(self._all(), self.limit)

    def _all(self) -> Iterator[Sentence]:
        if self.target is not None:
            return self._pairs(_side(self.source), _side(self.target))
        if suffix(self.source) == ".tsv":
            return self._rows()
        return (sentence for sentence in _side(self.source) if sentence.text)

    def parts(self) -> Iterator[Corpus]:
        """Iterate over corpora of `part` sentences.

        Yields:
            The next part, under the name of the whole corpus.

        Raises:
            ValueError: If there is no sentence.
        """
        sentences, empty = iter(self), True
        while part := tuple(islice(sentences, self.part)):
            empty = False
            yield Corpus(self.name, part)
        if empty:
            raise ValueError(f"{', '.join(map(str, self._files))}: expected at least one sentence")

    def _pairs(self, sources: Iterator[Sentence], targets: Iterator[Sentence]) -> Iterator[Sentence]:
        for number, (source, target) in enumerate(zip_longest(sources, targets), 1):
            if source is None or target is None:
                raise ValueError(
                    f"{self.source if source is None else self.target} ends before sentence {number}; parallel files "
                    "need the same number, the n-th of one translating the n-th of the other"
                )
            if source.text and target.text:
                yield replace(source, target=target)

    def _rows(self) -> Iterator[Sentence]:
        rows = ((number, line) for number, line in enumerate(lines(self.source), 1) if line.strip())
        for place, (number, line) in enumerate(rows):
            cells = line.split("\t")
            if len(cells) != 2 or (place == 0 and {*cells} & {*LABELS}):
                raise ValueError(
                    f"{self.source}, line {number}: found {columns(cells)}; a streamed table is of two columns that "
                    "translate each other; read others with headroles.read"
                )
            if all(map(str.strip, cells)):
                yield Sentence(cells[0].strip(), target=Sentence(cells[1].strip()))


def _side(path: Path) -> Iterator[Sentence]:
    if suffix(path) == ".conllu":
        return trees(lines(path), str(path))
    return (Sentence(line.strip()) for line in lines(path))
