"""A side of a batch: what its tokens are, and the words and sentences they belong to."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from headroles.pieces import aligned
from headroles.text import Sentence


@dataclass(frozen=True)
class Side:
    """One side of a batch. Real tokens are neither padding nor special (EOS, CLS, SEP, BOS; unknown words are real)."""

    ids: Tensor  # [batch, token]
    present: Tensor  # bool [batch, token]: not padding
    real: Tensor  # bool [batch, token]
    words: Tensor  # [batch, token]: index of the token's word, NO_WORD for none
    sentences: tuple[Sentence | None, ...]
    kept: dict[Hashable, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def take(self, rows: Tensor) -> Side:
        """The examples at `rows`, in this order, as often as they are named."""
        ids, present, real, words = (each[rows] for each in (self.ids, self.present, self.real, self.words))
        return Side(ids, present, real, words, tuple(self.sentences[row] for row in rows.tolist()))

    def span(self, start: int, stop: int) -> Side:
        """The tokens from `start` to before `stop`; itself if that is all of them."""
        if (start, stop) == (0, self.ids.shape[1]):
            return self
        ids, present, real, words = (each[:, start:stop] for each in (self.ids, self.present, self.real, self.words))
        return Side(ids, present, real, words, self.sentences)

    def keep(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """What `make` gives, made once for all layers: for what a score needs of the tokens, not of the attention."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    @cached_property
    def parsed(self) -> Tensor:
        """Which sentences have a tree of whose words each has a piece of its own: bool [batch]."""
        rows = zip(self.sentences, self.words.tolist(), strict=True)
        flags = [sentence is not None and sentence.has_tree and aligned(sentence, row) for sentence, row in rows]
        return torch.tensor(flags, device=self.ids.device)
