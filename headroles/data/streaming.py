"""Streaming corpora: files of any length, read in parts of constant size (no torch)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path

from headroles.data.conllu import columns
from headroles.data.corpus import Corpus, Sentence, digested
from headroles.data.entries import check_limit, complete, entries, rows, stem, suffix
from headroles.data.hf_datasets import LABELS
from headroles.data.lines import check_file

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
        check_limit(limit)
        self.limit = limit
        self.source, self.target, self.part = Path(source), None if target is None else Path(target), part
        for path in self._files:
            check_file(path)
        self.name = name or stem(*self._files)

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
        is_table = self.target is None and suffix(self.source) == ".tsv"
        if is_table and {*(header := next(rows(self.source)))} & {*LABELS}:
            raise ValueError(
                f"{self.source} has {columns(header)}; a streamed table is of two columns that translate each other; "
                "read others with headroles.read"
            )
        sentences = entries(self.source, self.target, "parallel" if is_table else None)
        yield from complete(sentences, ", ".join(map(str, self._files)), self.limit)

    def parts(self) -> Iterator[Corpus]:
        """Iterate over corpora of `part` sentences.

        Yields:
            The next part, under the name of the whole corpus.
        """
        sentences = iter(self)
        while part := tuple(islice(sentences, self.part)):
            yield Corpus(self.name, part)
