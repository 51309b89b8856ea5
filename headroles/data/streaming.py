"""Streaming corpora: files of any length, read in parts of constant size (no torch)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from headroles.data.conllu import columns
from headroles.data.corpus import Corpus, Sentence, as_chat, digested
from headroles.data.entries import Form, check_limit, complete, entries, rows, stem, suffix, text_pair
from headroles.data.hf_datasets import LABELS
from headroles.data.lines import check_file
from headroles.data.pairs import FIELDS

PART = 4096  # sentences in memory at once


class StreamingCorpus:
    """Sentences of one or two files, read again on every iteration.

    The lines of two files correspond.

    One sentence a line; `.conllu` has trees, `.tsv` two columns that are translations of each other, or minimal pairs
    or pairs of texts without labels by the names in its header, as in `headroles.read`; `.gz` is unpacked. Blank lines,
    and pairs with a blank side, are left out. A line may have 1 MiB.

    Args:
        source: The file.
        target: File of the translations.
        name: Name of the corpus; by default from the files' names.
        part: Number of sentences that are in memory, tokenised and sorted by length at once.
        limit: Number of sentences to read from the beginning; the rest of the file is left unread.
        chat: Whether each text is the user's turn of a chat, and its translation the answer, as of `headroles.read`.
        links: File of word links, as of `headroles.read`.

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
        chat: bool = False,
        links: str | Path | None = None,
    ) -> None:
        check_limit(limit)
        self.limit, self.chat = limit, chat
        self.source, self.target, self.part = Path(source), None if target is None else Path(target), part
        self.links = None if links is None else Path(links)
        if chat and links is not None:
            raise ValueError("links= are of sentence pairs: got chat=True too; leave out one of the two")
        for path in self._files:
            check_file(path)
        self.name = name or stem(*self._texts)
        self._hashed: tuple[object, str] | None = None  # state of the files, and their hash

    @property
    def _texts(self) -> list[Path]:
        return [self.source] if self.target is None else [self.source, self.target]

    @property
    def _files(self) -> list[Path]:
        return self._texts if self.links is None else [*self._texts, self.links]

    @property
    def hash(self) -> str:
        """First 12 hexadecimal digits of the SHA-256 of the files as they are now; with a limit, of the sentences."""
        state = self._state()
        if self._hashed is None or self._hashed[0] != state:
            text = self._digest() if self.limit is None else digested(self)
            self._check_unchanged(state)
            latest = max(path.stat().st_ctime for path in self._files)
            if time.time() - latest < 1:  # a change within one tick of the file system's clock would not show
                return text
            self._hashed = state, text
        return self._hashed[1]

    def _digest(self) -> str:
        digest = hashlib.sha256(b"chat" if self.chat else b"")
        for path in self._files:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()[:12]

    def _state(self) -> list[tuple[int, ...]]:
        """What changes when a file is written to or replaced."""
        stats = [path.stat() for path in self._files]
        return [(of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns) for of in stats]

    def _check_unchanged(self, state: list[tuple[int, ...]]) -> None:
        for path, before, now in zip(self._files, state, self._state(), strict=True):
            if before != now:
                raise ValueError(f"{path} changed while it was read; try again when it is complete")

    def __iter__(self) -> Iterator[Sentence]:
        """Iterate over the sentences; ValueError with path and line where a file is malformed, or if it changes."""
        state = self._state()
        is_table = self.target is None and suffix(self.source) == ".tsv"
        header = next(rows(self.source)) if is_table else []
        if {*header} & {*LABELS}:
            raise ValueError(
                f"{self.source} has {columns(header)}; a streamed table is of two columns that translate each other; "
                "read others with headroles.read"
            )
        form: Form | None = "parallel" if is_table and not ({*FIELDS} <= {*header} or text_pair(header)) else None
        sentences = entries(self.source, self.target, form, links=self.links)
        whole = complete(sentences, ", ".join(map(str, self._texts)), self.limit)
        yield from map(as_chat, whole) if self.chat else whole
        self._check_unchanged(state)

    def parts(self) -> Iterator[Corpus]:
        """Iterate over corpora of `part` sentences.

        Yields:
            The next part, under the name of the whole corpus.
        """
        sentences = iter(self)
        while part := tuple(islice(sentences, self.part)):
            yield Corpus(self.name, part)
