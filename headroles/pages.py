"""A corpus as pages of tokens: one page, or where it is streamed one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import batches, processes
from headroles.batches import Batch, Encoded
from headroles.streams import Stream
from headroles.text import Corpus


class Pages:
    """The pages of a corpus, gone through once; `read` counts what was on them: sentences, too long, tokens ..."""

    def __init__(self, corpus: Corpus | Stream, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
        self.corpus, self.tokenizer, self.model = corpus, tokenizer, model
        self.streamed = isinstance(corpus, Stream)
        self.read: Counter[str] = Counter()
        self._rest = self._encoded()
        self.first = next(self._rest)

    def batches(self, budget: int) -> Iterator[Batch]:
        """The batches of all pages; of several processes each gets its share."""
        for page in chain([self.first], self._rest):
            yield from batches.batches(page, self.model, budget=budget, part=_part())

    def number(self, budget: int) -> int | None:
        """How many batches that will be; None for a stream, which has not been read."""
        return None if self.streamed else len(batches.groups(self.first, budget, _part()))

    def _encoded(self) -> Iterator[Encoded]:
        start = 0
        for part in self.corpus.parts() if isinstance(self.corpus, Stream) else [self.corpus]:
            page = batches.encode(part, self.tokenizer, self.model)
            found = {"too_long": page.too_long, "unaligned": page.unaligned, "tokens": page.tokens}
            self.read.update({"sentences": len(page.source)} | found)
            yield replace(page, numbers=[start + number for number in page.numbers])
            start += len(part)


def _part() -> tuple[int, int]:
    return processes.rank(), processes.count()
