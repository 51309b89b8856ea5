"""Batches: a tokenised corpus, and the inputs of a model for groups of sentences of similar length."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import _distributed
from headroles.data.corpus import Corpus, Sentence
from headroles.data.streaming import StreamingCorpus
from headroles.models.tokens import vocabulary
from headroles.models.tokens.alignment import NO_WORD, TokenizedSentence, pieces
from headroles.models.tokens.alignment import TokenView as TokenView
from headroles.tables.frame import Kind

if TYPE_CHECKING:
    from headroles.models.head_model import HeadModel

ONE: dict[str, bool | int] = {"do_sample": False, "num_return_sequences": 1, "return_dict_in_generate": False}
LONGEST = 256  # tokens of a model's own output, if neither its positions nor its generation config limit it

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Encoded:
    """A tokenised corpus: the sentences that fit the model, and their numbers in the corpus."""

    numbers: list[int]
    source: list[TokenizedSentence]
    target: list[TokenizedSentence] | None
    too_long: int  # number of sentences left out because they are longer than the model's positions
    special: frozenset[int]
    padding: int
    alone: bool  # whether each sentence is a batch by itself, because the model does not recognise padding
    greedy: int  # most tokens of the greedy output that stands in for missing targets; 0 without it

    def counts(self, side: str) -> Counter[int]:
        """Count each token id that is not special in the sentences of `side`: "source" or "target"."""
        sentences: Iterable[TokenizedSentence] = getattr(self, side) or ()
        return Counter(i for sentence in sentences for i in sentence.ids if i not in self.special)

    def take(self, numbers: Iterable[int]) -> Encoded:
        """Return the sentences with these numbers in the corpus; `too_long` stays."""
        wanted = set(numbers)
        rows = [row for row, number in enumerate(self.numbers) if number in wanted]
        target = [self.target[row] for row in rows] if self.target else None
        source = [self.source[row] for row in rows]
        return replace(self, numbers=[self.numbers[row] for row in rows], source=source, target=target)

    @property
    def unaligned(self) -> int:
        """The number of sentences with a tree and a word without a token: syntax leaves them out."""
        sentences = [*self.source, *(self.target or ())]
        return sum(sentence.sentence.has_tree and not sentence.aligned for sentence in sentences)

    @property
    def tokens(self) -> int:
        """The number of tokens of sources and targets, special ones included."""
        return sum(map(len, self.source)) + sum(map(len, self.target or ()))


@dataclass(frozen=True)
class Batch:
    """Some sentences of a corpus: the arguments of the model, and token views of the source and the target."""

    numbers: tuple[int, ...]  # of the sentences in the corpus
    inputs: dict[str, Tensor]
    source: TokenView
    target: TokenView | None
    labels: Tensor | None = None  # [batch, token]: the next token for each decoder input, -100 for none
    own: bool = False  # whether the target is the model's own greedy output

    def take(self, rows: Tensor) -> Batch:
        """Return the examples at `rows`, in this order; a row may be repeated."""
        numbers = tuple(self.numbers[row] for row in rows.tolist())
        inputs = {name: value[rows] for name, value in self.inputs.items()}
        target = None if self.target is None else self.target.take(rows)
        labels = None if self.labels is None else self.labels[rows]
        return Batch(numbers, inputs, self.source.take(rows), target, labels, self.own)

    def queries(self, kind: Kind) -> TokenView:
        """Return the token view on the query side of heads of `kind`."""
        return self.source if self.target is None or kind == "enc-self" else self.target

    def keys(self, kind: Kind) -> TokenView:
        """Return the token view on the key side of heads of `kind`."""
        return self.source if self.target is None or kind != "dec-self" else self.target


def encode(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, *, words: bool = True
) -> Encoded:
    """Tokenise `corpus` for `model`; sentences longer than its positions are left out, and counted."""
    if not len(corpus):
        raise ValueError(f"corpus {corpus.name!r} is empty")
    source = pieces(tokenizer, corpus.sentences, words=words)
    targets = [sentence.target for sentence in corpus]
    target = None
    if model.config.is_encoder_decoder and all(targets):
        target = pieces(tokenizer, [sentence for sentence in targets if sentence], words=words, target=True)
    elif model.config.is_encoder_decoder and any(targets):
        missing = sum(sentence is None for sentence in targets)
        log.warning(
            "%d of %d sentences have no translation: the model's own output is read for all", missing, len(corpus)
        )
    ids = (i for sentence in [*source, *(target or ())] for i in sentence.ids)
    vocabulary.check_fit(tokenizer, model, max(ids, default=0))
    limit = vocabulary.positions(tokenizer, model)
    kept = [i for i, sentence in enumerate(source) if max(len(sentence), len(target[i]) if target else 0) <= limit]
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
        special=vocabulary.special(tokenizer, model),
        padding=vocabulary.padding(tokenizer, model),
        alone=vocabulary.pools_blindly(model),
        greedy=min(limit, LONGEST) if model.config.is_encoder_decoder and target is None else 0,
    )


def batches(
    encoded: Encoded, model: PreTrainedModel, *, max_tokens: int = 4096, part: tuple[int, int] = (0, 1)
) -> Iterator[Batch]:
    """Yield batches of similar lengths, the longest first; `part` (p, q) yields only batches p, p + q, p + 2 q ..."""
    return (make_batch(rows, encoded, model) for rows in groups(encoded, max_tokens, part))


def make_batch(rows: Sequence[int], encoded: Encoded, model: PreTrainedModel) -> Batch:
    """Return the batch of some rows of a tokenised corpus."""
    sentences = [encoded.source[i] for i in rows]
    ids = _padded([row.ids for row in sentences], encoded.padding)
    attention_mask = _padded([[True] * len(row) for row in sentences], False)
    words = _padded([row.words for row in sentences], NO_WORD)
    source = _view(ids, attention_mask, words, [row.sentence for row in sentences], encoded, model)
    inputs = {"input_ids": source.ids, "attention_mask": source.attention_mask.long()}
    if any(types := [row.types or [] for row in sentences]):
        inputs["token_type_ids"] = _padded(types, 0).to(model.device)
    numbers = tuple(encoded.numbers[i] for i in rows)
    if not model.config.is_encoder_decoder:
        return Batch(numbers, inputs, source, None)
    written = [encoded.target[i] for i in rows] if encoded.target else None
    target, labels = _target(written, inputs, encoded, model)
    inputs["decoder_input_ids"] = target.ids
    return Batch(numbers, inputs, source, target, labels, own=written is None)


def groups(encoded: Encoded, max_tokens: int, part: tuple[int, int] = (0, 1)) -> list[list[int]]:
    """Return the rows of each batch that `batches` yields."""
    sides = filter(None, (encoded.source, encoded.target))
    lengths = [max(map(len, row)) for row in zip(*sides, strict=True)]
    rows: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if rows and not encoded.alone and lengths[rows[-1][0]] * (len(rows[-1]) + 1) <= max_tokens:
            rows[-1].append(i)
        else:
            rows.append([i])
    return rows[part[0] :: part[1]]


def _target(
    rows: list[TokenizedSentence] | None, inputs: dict[str, Tensor], encoded: Encoded, model: PreTrainedModel
) -> tuple[TokenView, Tensor]:
    """The token view of the decoder (a start token, then the reference or its own greedy output) and its labels."""
    if rows is None:
        ids = _greedy(inputs, model, encoded.greedy)
        sentences: list[Sentence | None] = [None] * len(ids)
        attention_mask = _until_end(ids, model)
        labels = torch.where(attention_mask, ids.roll(-1, dims=1), -100)
        labels[:, -1] = -100  # the token after the last one is not known
        view = _view(ids, attention_mask, torch.full_like(ids, NO_WORD), sentences, encoded, model, started=True)
        return view, labels.to(model.device)
    written = _padded([row.ids for row in rows], encoded.padding)
    ids = shifted(model, written)
    attention_mask = _padded([[True] * len(row) for row in rows], False)
    words = _padded([[NO_WORD, *row.words[:-1]] for row in rows], NO_WORD)
    view = _view(ids, attention_mask, words, [row.sentence for row in rows], encoded, model, started=True)
    return view, torch.where(attention_mask, written, -100).to(model.device)


def _greedy(inputs: dict[str, Tensor], model: PreTrainedModel, longest: int) -> Tensor:
    """Greedy output, as long as the generation config allows, otherwise `longest` (generate's default is 20)."""
    config = model.generation_config
    limit = {} if config.max_length or config.max_new_tokens else {"max_length": longest}
    with torch.no_grad():
        written: Tensor = model.generate(**inputs, num_beams=1, **ONE, **limit).cpu()  # type: ignore[operator]
    return written


def _until_end(ids: Tensor, model: PreTrainedModel) -> Tensor:
    """Mask of the tokens of greedy output before its end token, the start token included: bool [batch, token]."""
    config = model.generation_config
    ends = torch.tensor([] if config.eos_token_id is None else config.eos_token_id).flatten()
    ended = torch.isin(ids[:, 1:], ends).cumsum(-1) > 0
    return torch.cat([torch.ones_like(ended[:, :1]), ~ended], dim=-1)


def _view(
    ids: Tensor,
    attention_mask: Tensor,
    words: Tensor,
    sentences: Sequence[Sentence | None],
    encoded: Encoded,
    model: PreTrainedModel,
    *,
    started: bool = False,  # whether the first token is the decoder's start token, which may have the id of a word
) -> TokenView:
    content = attention_mask & ~torch.isin(ids, torch.tensor(sorted(encoded.special)))
    if started:
        content[:, 0] = False
    ids, attention_mask, content, words = (x.to(model.device) for x in (ids, attention_mask, content, words))
    return TokenView(ids, attention_mask, content, words, tuple(sentences))


def _padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    longest = max(1, *map(len, rows))  # rows without any token are padding
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


class Pages:
    """The pages of a corpus, read once; `read` counts their sentences, tokens, and the sentences left out."""

    def __init__(self, corpus: Corpus | StreamingCorpus, model: HeadModel) -> None:
        self.corpus, self.model = corpus, model
        self.streamed = isinstance(corpus, StreamingCorpus)
        self.read: Counter[str] = Counter()
        self._part = _distributed.rank(), _distributed.count()
        self._rest = self._encoded()
        self.first = next(self._rest)

    def batches(self, max_tokens: int) -> Iterator[Batch]:
        """Yield the batches of all pages; each of several processes gets its share."""
        for page in chain([self.first], self._rest):
            yield from self.model.batches(page, max_tokens=max_tokens, part=self._part)

    def number(self, max_tokens: int) -> int | None:
        """Return the number of batches; None for a stream, which has not been read."""
        return None if self.streamed else len(groups(self.first, max_tokens, self._part))

    def _encoded(self) -> Iterator[Encoded]:
        start = 0
        for part in self.corpus.parts() if isinstance(self.corpus, StreamingCorpus) else [self.corpus]:
            page = self.model.encode(part)
            counts = {"too_long": page.too_long, "unaligned": page.unaligned, "tokens": page.tokens}
            self.read.update({"sentences": len(page.source)} | counts)
            yield replace(page, numbers=[start + number for number in page.numbers])
            start += len(part)


def shifted(model: PreTrainedModel, labels: Tensor) -> Tensor:
    """Return the decoder inputs for `labels`, [batch, token]: the start token, then all labels but the last."""
    shift: Callable[..., Tensor] | None = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is not None:
        return shift(labels=labels)
    config = model.config
    return torch.cat([torch.full_like(labels[:, :1], config.decoder_start_token_id), labels[:, :-1]], dim=1)
