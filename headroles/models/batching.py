"""What a model reads: a tokenised corpus, and batches of it under a token budget."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import _distributed
from headroles.data.corpus import Corpus, Sentence
from headroles.data.streaming import StreamingCorpus
from headroles.models import loading
from headroles.models.tokenization import NO_WORD, TokenizedSentence, aligned, pieces
from headroles.tables.frame import Kind

ONE: dict[str, Any] = {"do_sample": False, "num_return_sequences": 1, "return_dict_in_generate": False}
LONGEST = 256  # tokens of a model's own output, where neither its positions nor its generation config say

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Encoded:
    """A tokenised corpus: the sentences that fit the model, their numbers in the corpus, and counts of their tokens."""

    numbers: list[int]
    source: list[TokenizedSentence]
    target: list[TokenizedSentence] | None
    too_long: int
    special: frozenset[int]
    padding: int
    greedy: int  # how long the targets an encoder-decoder has to write itself may be; 0 if it has them

    def counts(self, side: str) -> Counter[int]:
        """How often each token id that is not special occurs on the side `source` or `target`."""
        pieces: Iterable[TokenizedSentence] = getattr(self, side) or ()
        return Counter(i for one in pieces for i in one.ids if i not in self.special)

    def take(self, numbers: Iterable[int]) -> Encoded:
        """The same of some sentences, by their numbers in the corpus; `too_long` stays."""
        wanted = set(numbers)
        rows = [row for row, number in enumerate(self.numbers) if number in wanted]
        target = [self.target[row] for row in rows] if self.target else None
        source = [self.source[row] for row in rows]
        return replace(self, numbers=[self.numbers[row] for row in rows], source=source, target=target)

    @property
    def unaligned(self) -> int:
        """How many sides with a tree have a word without a piece of its own: syntax leaves them out."""
        return sum(one.sentence.has_tree and not one.aligned for one in [*self.source, *(self.target or ())])

    @property
    def tokens(self) -> int:
        """The number of tokens of both sides, special ones included."""
        return sum(map(len, self.source)) + sum(map(len, self.target or ()))


@dataclass(frozen=True)
class Batch:
    """Some sentences of a corpus, ready for a model: what it is called with, and what the tokens are."""

    numbers: tuple[int, ...]  # of the sentences in the corpus
    inputs: dict[str, Tensor]
    source: TokenView
    target: TokenView | None
    labels: Tensor | None = None  # [batch, token]: what a decoder with an encoder should write at each step, -100: none
    own: bool = False  # whether the target is the model's own greedy output

    def take(self, rows: Tensor) -> Batch:
        """The examples at `rows`, in this order, as often as they are named."""
        numbers = tuple(self.numbers[row] for row in rows.tolist())
        inputs = {name: value[rows] for name, value in self.inputs.items()}
        target = None if self.target is None else self.target.take(rows)
        labels = None if self.labels is None else self.labels[rows]
        return Batch(numbers, inputs, self.source.take(rows), target, labels, self.own)

    def queries(self, kind: Kind) -> TokenView:
        """The side whose tokens look."""
        return self.source if self.target is None or kind == "enc-self" else self.target

    def keys(self, kind: Kind) -> TokenView:
        """The side whose tokens are looked at."""
        return self.source if self.target is None or kind != "dec-self" else self.target


def encode(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, *, words: bool = True
) -> Encoded:
    """Tokenise `corpus` for `model`; targets become what the decoder should write, its end token included.

    Sentences longer than the model's positions are left out and counted. `words` asks which word each token belongs to.
    Raises ValueError for an empty corpus, for one of which every sentence is too long, and for a tokenizer that does
    not fit the model.
    """
    if not len(corpus):
        raise ValueError(f"corpus {corpus.name!r} is empty")
    loading.check_belongs(tokenizer, model)
    source = pieces(tokenizer, corpus.sentences, words=words)
    targets = [sentence.target for sentence in corpus]
    target = None
    if model.config.is_encoder_decoder and all(targets):
        target = pieces(tokenizer, [one for one in targets if one], words=words, target=True)
    if any(targets) and target is None and model.config.is_encoder_decoder:
        lacking = sum(one is None for one in targets)
        log.warning(
            "%d of %d sentences have no translation: the model's own output is read for all", lacking, len(corpus)
        )
    loading.check_fit(tokenizer, model, max((i for one in [*source, *(target or ())] for i in one.ids), default=0))
    limit = loading.positions(tokenizer, model)
    kept = [i for i, one in enumerate(source) if max(len(one), len(target[i]) if target else 0) <= limit]
    if not kept:
        raise ValueError(
            f"corpus {corpus.name!r} has no sentence of at most {limit} tokens, as many as the model reads; split them"
        )
    if len(kept) < len(corpus):
        log.warning("%d of %d sentences left out: longer than %d tokens", len(corpus) - len(kept), len(corpus), limit)
    return Encoded(
        numbers=kept,
        source=[source[i] for i in kept],
        target=[target[i] for i in kept] if target else None,
        too_long=len(corpus) - len(kept),
        special=loading.special(tokenizer, model),
        padding=loading.padding(tokenizer, model),
        greedy=min(limit, LONGEST) if model.config.is_encoder_decoder and target is None else 0,
    )


def batches(
    encoded: Encoded, model: PreTrainedModel, *, max_tokens: int = 4096, part: tuple[int, int] = (0, 1)
) -> Iterator[Batch]:
    """Batches of sentences of like length, the longest first, each of at most `budget` tokens a side, padding included.

    An encoder-decoder without targets is given the model's own greedy output. A sentence longer than the budget is a
    batch of its own. `part` (p, q) are the p-th and then every q-th of the batches only.
    """
    return (made(rows, encoded, model) for rows in groups(encoded, max_tokens, part))


def made(rows: Sequence[int], encoded: Encoded, model: PreTrainedModel) -> Batch:
    """The batch of some rows of a corpus."""
    source = _source([encoded.source[i] for i in rows], encoded, model)
    inputs = {"input_ids": source.ids, "attention_mask": source.attention_mask.long()}
    if any(types := [encoded.source[i].types or [] for i in rows]):
        inputs["token_type_ids"] = _padded(types, 0).to(model.device)
    numbers = tuple(encoded.numbers[i] for i in rows)
    if not model.config.is_encoder_decoder:
        return Batch(numbers, inputs, source, None)
    written = [encoded.target[i] for i in rows] if encoded.target else None
    target, labels = _target(written, inputs, encoded, model)
    inputs["decoder_input_ids"] = target.ids
    return Batch(numbers, inputs, source, target, labels, own=written is None)


def groups(encoded: Encoded, max_tokens: int, part: tuple[int, int] = (0, 1)) -> list[list[int]]:
    """The rows of each batch that `batches` gives."""
    sides = filter(None, (encoded.source, encoded.target))
    lengths = [max(map(len, row)) for row in zip(*sides, strict=True)]
    return list(islice(grouped(lengths, max_tokens), part[0], None, part[1]))


def grouped(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Positions of `lengths`, the longest first, in groups whose padded size is at most `budget`."""
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if group and lengths[group[0]] * (len(group) + 1) > max_tokens:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def _source(rows: list[TokenizedSentence], encoded: Encoded, model: PreTrainedModel) -> TokenView:
    ids = _padded([one.ids for one in rows], encoded.padding)
    attention_mask = _padded([[True] * len(one) for one in rows], False)
    words = _padded([one.words for one in rows], NO_WORD)
    return _side(ids, attention_mask, words, [one.sentence for one in rows], encoded, model)


def _target(
    rows: list[TokenizedSentence] | None, inputs: dict[str, Tensor], encoded: Encoded, model: PreTrainedModel
) -> tuple[TokenView, Tensor]:
    """The decoder's side as it reads it: its start token, then the reference or its own greedy output; its labels."""
    if rows is None:
        ids = _greedy(inputs, model, encoded.greedy)
        sentences: list[Sentence | None] = [None] * len(ids)
        attention_mask = _until_end(ids, model)
        labels = torch.where(attention_mask, ids.roll(-1, dims=1), -100)
        labels[:, -1] = -100  # what would follow a last token is not known
        side = _side(ids, attention_mask, torch.full_like(ids, NO_WORD), sentences, encoded, model, started=True)
        return side, labels.to(model.device)
    written = _padded([one.ids for one in rows], encoded.padding)
    ids = loading.shifted(model, written)
    attention_mask = _padded([[True] * len(one) for one in rows], False)
    words = _padded([[NO_WORD, *one.words[:-1]] for one in rows], NO_WORD)
    side = _side(ids, attention_mask, words, [one.sentence for one in rows], encoded, model, started=True)
    return side, torch.where(attention_mask, written, -100).to(model.device)


def _greedy(inputs: dict[str, Tensor], model: PreTrainedModel, longest: int) -> Tensor:
    """The model's own output, as long as its generation config allows, otherwise `longest` (generate's own is 20)."""
    config: Any = model.generation_config
    given = {} if config.max_length or config.max_new_tokens else {"max_length": longest}
    with torch.no_grad():
        written: Tensor = model.generate(**inputs, num_beams=1, **ONE, **given).cpu()  # type: ignore[operator]
    return written


def _until_end(ids: Tensor, model: PreTrainedModel) -> Tensor:
    """Which tokens of greedy output come before its end token (the first token is the start): bool [batch, token]."""
    config: Any = model.generation_config
    ends = torch.tensor([] if config.eos_token_id is None else config.eos_token_id).flatten()
    ended = torch.isin(ids[:, 1:], ends).cumsum(-1) > 0
    return torch.cat([torch.ones_like(ended[:, :1]), ~ended], dim=-1)


def _side(
    ids: Tensor,
    attention_mask: Tensor,
    words: Tensor,
    sentences: Sequence[Sentence | None],
    encoded: Encoded,
    model: PreTrainedModel,
    *,
    started: bool = False,  # whether the first token is a decoder's start, whatever else its id stands for
) -> TokenView:
    content = attention_mask & ~torch.isin(ids, torch.tensor(sorted(encoded.special)))
    if started:
        content[:, 0] = False
    ids, attention_mask, content, words = (each.to(model.device) for each in (ids, attention_mask, content, words))
    return TokenView(ids, attention_mask, content, words, tuple(sentences))


def _padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


_KEPT: WeakKeyDictionary[Corpus, tuple[Any, Encoded]] = WeakKeyDictionary()  # for as long as the corpus lives


def tokenised(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Encoded:
    """`encode` without words, kept for the next time the same corpus is asked for with such a tokenizer."""
    sample = "A b."
    ids = [tokenizer(sample)["input_ids"], tokenizer(text_target=sample)["input_ids"]]
    limits = (loading.positions(tokenizer, model), loading.vocabulary(model), model.config.is_encoder_decoder)
    ends = (loading.special(tokenizer, model), loading.padding(tokenizer, model))
    told = (loading.tokens(tokenizer), ids, limits, ends)
    if corpus not in _KEPT or _KEPT[corpus][0] != told:
        _KEPT[corpus] = told, encode(corpus, tokenizer, model, words=False)
    return _KEPT[corpus][1]


class Pages:
    """The pages of a corpus, gone through once; `read` counts what was on them: sentences, too long, tokens ..."""

    def __init__(
        self, corpus: Corpus | StreamingCorpus, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel
    ) -> None:
        self.corpus, self.tokenizer, self.model = corpus, tokenizer, model
        self.streamed = isinstance(corpus, StreamingCorpus)
        self.read: Counter[str] = Counter()
        self._rest = self._encoded()
        self.first = next(self._rest)

    def batches(self, max_tokens: int) -> Iterator[Batch]:
        """The batches of all pages; of several processes each gets its share."""
        for page in chain([self.first], self._rest):
            yield from batches(page, self.model, max_tokens=max_tokens, part=_part())

    def number(self, max_tokens: int) -> int | None:
        """How many batches that will be; None for a stream, which has not been read."""
        return None if self.streamed else len(groups(self.first, max_tokens, _part()))

    def _encoded(self) -> Iterator[Encoded]:
        start = 0
        for part in self.corpus.parts() if isinstance(self.corpus, StreamingCorpus) else [self.corpus]:
            page = encode(part, self.tokenizer, self.model)
            found = {"too_long": page.too_long, "unaligned": page.unaligned, "tokens": page.tokens}
            self.read.update({"sentences": len(page.source)} | found)
            yield replace(page, numbers=[start + number for number in page.numbers])
            start += len(part)


def _part() -> tuple[int, int]:
    return _distributed.rank(), _distributed.count()


@dataclass(frozen=True)
class TokenView:
    """One side of a batch. Real tokens are neither padding nor special (EOS, CLS, SEP, BOS; unknown words are real)."""

    ids: Tensor  # [batch, token]
    attention_mask: Tensor  # bool [batch, token]: not padding
    content: Tensor  # bool [batch, token]
    words: Tensor  # [batch, token]: index of the token's word, NO_WORD for none
    sentences: tuple[Sentence | None, ...]
    kept: dict[Hashable, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def take(self, rows: Tensor) -> TokenView:
        """The examples at `rows`, in this order, as often as they are named."""
        ids, attention_mask, content, words = (
            each[rows] for each in (self.ids, self.attention_mask, self.content, self.words)
        )
        return TokenView(ids, attention_mask, content, words, tuple(self.sentences[row] for row in rows.tolist()))

    def span(self, start: int, stop: int) -> TokenView:
        """The tokens from `start` to before `stop`; itself if that is all of them."""
        if (start, stop) == (0, self.ids.shape[1]):
            return self
        ids, attention_mask, content, words = (
            each[:, start:stop] for each in (self.ids, self.attention_mask, self.content, self.words)
        )
        return TokenView(ids, attention_mask, content, words, self.sentences)

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
