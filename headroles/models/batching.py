"""Batches: a tokenised corpus, and the inputs of a model for groups of sentences of similar length."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import compress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from headroles._changes import Changes
from headroles.data.corpus import Corpus, Linked, Sentence
from headroles.models.dummy_inputs import classifies, has_decoder, reads_source_twice
from headroles.models.sites import is_scaled_by_input
from headroles.models.tokens import languages, vocabulary
from headroles.models.tokens.alignment import NO_WORD, TokenizedSentence, dependencies, pieces
from headroles.models.tokens.alignment import TokenView as TokenView
from headroles.tables.frame import Kind, is_whole

if TYPE_CHECKING:
    from headroles.models.head_model import HeadModel

ONE: dict[str, bool | int] = {"do_sample": False, "num_return_sequences": 1, "return_dict_in_generate": False}
LOGITS = 2**28  # numbers in the logits of one forward pass: 1 GiB in float32; a loss and its gradient hold them often
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
    greedy: int  # positions of the greedy output that stands in for missing targets; 0 without it
    again: bool = False  # whether the decoder reads the source, because it writes no text
    begins: Mapping[str, int] = field(default_factory=dict)  # options of `generate` for the language of output
    new: int | None = None  # the most tokens of that greedy output, if they are limited
    vocabulary: int = 0  # logits of each token

    def counts(self, side: str) -> Counter[int]:
        """Count each token id that is not special in the sentences of `side`: "source" or "target"."""
        sentences: Iterable[TokenizedSentence] = getattr(self, side) or ()
        return Counter(i for row in sentences for i in compress(row.ids, row.in_text) if i not in self.special)

    def take(self, numbers: Iterable[int]) -> Encoded:
        """Return the sentences with these numbers in the corpus; `too_long` stays."""
        wanted = set(numbers)
        rows = [row for row, number in enumerate(self.numbers) if number in wanted]
        target = [self.target[row] for row in rows] if self.target else None
        source = [self.source[row] for row in rows]
        return replace(self, numbers=[self.numbers[row] for row in rows], source=source, target=target)

    @cached_property
    def alignment(self) -> Counter[str]:
        """Count words and dependencies of the trees, and those among them without tokens of their own."""
        counts = Counter({"unaligned": 0})
        for row in (row for row in [*self.source, *(self.target or ())] if row.sentence.has_tree):
            size, arcs = len(row.sentence.spans), len(row.sentence.heads) - row.sentence.heads.count(-1)
            counts["words"] += size
            counts["unaligned"] += size - len({*row.words} - {NO_WORD})
            counts["dependencies"] += arcs
            counts["uncounted"] += arcs - sum(1 for _ in dependencies(row.sentence, row.words))
        return counts

    @property
    def linked(self) -> bool:
        """Whether words of sources and targets are linked."""
        return self.target is not None and any(isinstance(row.sentence, Linked) for row in self.source)

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
    counted: Tensor | None = None  # bool [batch, token]: source tokens that count as queries and next tokens; None: all

    def take(self, rows: Tensor) -> Batch:
        """Return the examples at `rows`, in this order; a row may be repeated."""
        numbers = tuple(self.numbers[row] for row in rows.tolist())
        inputs = {name: value[rows] for name, value in self.inputs.items()}
        target = None if self.target is None else self.target.take(rows)
        labels = None if self.labels is None else self.labels[rows]
        counted = None if self.counted is None else self.counted[rows]
        return Batch(numbers, inputs, self.source.take(rows), target, labels, self.own, counted)

    @cached_property
    def _asking(self) -> TokenView:
        """The source as queries."""
        if self.counted is None:
            return self.source
        return replace(self.source, content=self.source.content & self.counted, kept={})

    def queries(self, kind: Kind) -> TokenView:
        """Return the token view on the query side of heads of `kind`."""
        return self._asking if self.target is None or kind == "enc-self" else self.target

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
    has_target = has_decoder(model) and not reads_source_twice(model)
    if has_decoder(model) and corpus.chat:
        raise ValueError(
            f"chat templates are for models that read and write one text: got {type(model).__name__}, which has an "
            f"encoder and a decoder; expected a decoder or an encoder alone; try without chat=True (--chat)"
        )
    if has_target:
        languages.check(tokenizer, type(model).__name__, [sentence.text for sentence in corpus])
    targets = [sentence.target if has_target else None for sentence in corpus]
    target = None
    if all(targets):
        target = pieces(tokenizer, [sentence for sentence in targets if sentence], words=words, target=True)
    elif any(targets):
        missing = sum(sentence is None for sentence in targets)
        log.warning(
            "%d of %d sentences have no translation: the model's own output is read for all", missing, len(corpus)
        )
    ids = (i for sentence in [*source, *(target or ())] for i in sentence.ids)
    vocabulary.check_fit(tokenizer, model, max(ids, default=0))
    limit, longest = (vocabulary.positions(tokenizer, model, target=side) for side in (False, True))
    limit = min(limit, longest) if reads_source_twice(model) else limit
    kept = [i for i, row in enumerate(source) if len(row) <= limit and (target is None or len(target[i]) <= longest)]
    allowed = f"{limit}" if target is None or limit == longest else f"{limit} (targets: {longest})"
    if not kept:
        raise ValueError(
            f"corpus {corpus.name!r} has no sentence of at most {allowed} tokens, as many as the model reads; split "
            f"them"
        )
    if len(kept) < len(corpus):
        log.warning("%d of %d sentences left out: longer than %s tokens", len(corpus) - len(kept), len(corpus), allowed)
    again = has_decoder(model) and target is None and not model.can_generate()
    ends = _ends(corpus, source, model) if again else set()
    return Encoded(
        numbers=kept,
        source=[source[i] for i in kept],
        target=[target[i] for i in kept] if target else None,
        too_long=len(corpus) - len(kept),
        special=vocabulary.special(tokenizer, model),
        padding=vocabulary.padding(tokenizer, model),
        alone=reads_alone(model) or len(ends) > 1,
        greedy=longest if has_decoder(model) and target is None and not again else 0,
        again=again,
        begins=languages.beginning(tokenizer, partial(shifted, model)) if has_target else {},
        vocabulary=getattr(model.get_output_embeddings(), "out_features", 0),
    )


def reads_alone(model: PreTrainedModel) -> bool:
    """Return whether a model reads one example at a time: it can't recognise padding, or others change its scales."""
    of_each_class = {(type(module), type(getattr(module, "weight", None))): module for module in model.modules()}
    return vocabulary.pools_blindly(model) or any(
        is_scaled_by_input(module, model.dtype) for module in of_each_class.values()
    )


def _ends(corpus: Corpus, source: Sequence[TokenizedSentence], model: PreTrainedModel) -> set[int]:
    """The numbers of end tokens in a text that a decoder reads again: classifiers read the state at the last one."""
    if _own_decoder_input({"input_ids": torch.tensor([source[0].ids], device=model.device)}, model) is None:
        raise ValueError(
            f"{type(model).__name__} needs a text for its decoder: got corpus {corpus.name!r} without targets; "
            f"expected targets, or a model that writes; try cls='AutoModelForSeq2SeqLM'"
        )
    end = getattr(model.config, "eos_token_id", None)
    if not isinstance(end, int):
        return set()
    counts = [sentence.ids.count(end) for sentence in source]
    if 0 in counts and classifies(model):
        raise ValueError(
            f"{type(model).__name__} reads a text at its end token: got {counts.count(0)} of {len(counts)} texts of "
            f"corpus {corpus.name!r} without token {end}; expected one in each; try the tokenizer of its checkpoint"
        )
    return set(counts)


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
    in_text = _padded([row.in_text for row in sentences], False)
    source = _view(ids, attention_mask, words, [row.sentence for row in sentences], encoded, model, in_text)
    inputs = {"input_ids": source.ids, "attention_mask": source.attention_mask.long()}
    if any(types := [row.types or [] for row in sentences]):
        inputs["token_type_ids"] = _padded(types, 0).to(model.device)
    numbers = tuple(encoded.numbers[i] for i in rows)
    if not has_decoder(model):
        counted = None
        if marks := [mark for row in sentences if (mark := row.counted) is not None]:  # of all rows, or of none
            counted = _padded(marks, False).to(model.device)
        return Batch(numbers, inputs, source, None, counted=counted)
    if encoded.again:
        target = _source_again(rows, inputs, encoded, model)
        return Batch(numbers, inputs | {"decoder_input_ids": target.ids}, source, target)
    written = [encoded.target[i] for i in rows] if encoded.target else None
    target, labels = _target(written, inputs, encoded, model)
    inputs["decoder_input_ids"] = target.ids
    return Batch(numbers, inputs, source, target, labels, own=written is None)


def groups(encoded: Encoded, max_tokens: int, part: tuple[int, int] = (0, 1)) -> list[list[int]]:
    """Return the rows of each batch that `batches` yields: fewer than `max_tokens` allows of a large vocabulary."""
    if not is_whole(max_tokens, least=1):
        raise ValueError(f"max_tokens must be at least 1: got {max_tokens!r}; expected tokens of a batch, such as 4096")
    most = fitting(encoded, max_tokens)
    sides = filter(None, (encoded.source, encoded.target))
    lengths = [max(map(len, row)) for row in zip(*sides, strict=True)]
    rows: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if rows and not encoded.alone and lengths[rows[-1][0]] * (len(rows[-1]) + 1) <= most:
            rows[-1].append(i)
        else:
            rows.append([i])
    return rows[part[0] :: part[1]]


def fitting(encoded: Encoded, max_tokens: int) -> int:
    """Return the most tokens of one forward pass: at most `max_tokens`, and so many that their logits are `LOGITS`."""
    return min(max_tokens, LOGITS // encoded.vocabulary) if encoded.vocabulary else max_tokens


def _target(
    rows: list[TokenizedSentence] | None, inputs: dict[str, Tensor], encoded: Encoded, model: PreTrainedModel
) -> tuple[TokenView, Tensor]:
    """The token view of the decoder (a start token, then the reference or its own greedy output) and its labels."""
    if rows is None:
        ids = _greedy(inputs, model, encoded)
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


def _source_again(
    rows: Sequence[int], inputs: Mapping[str, Tensor], encoded: Encoded, model: PreTrainedModel
) -> TokenView:
    """The token view of a decoder that reads the source, one place later, as the model's own forward makes it."""
    sentences = [encoded.source[i] for i in rows]
    attention_mask = _padded([[True] * len(row) for row in sentences], False)
    words = _padded([[NO_WORD, *row.words[:-1]] for row in sentences], NO_WORD)
    ids = _own_decoder_input(inputs, model)
    assert ids is not None  # as `encode` has found out
    return _view(ids.cpu(), attention_mask, words, [row.sentence for row in sentences], encoded, model, started=True)


def _own_decoder_input(inputs: Mapping[str, Tensor], model: PreTrainedModel) -> Tensor | None:
    """The token ids that a model gives its decoder where it gets none: [batch, token]; None if it has no rule."""

    def stop(_: object, __: object, kwargs: Mapping[str, Any]) -> None:
        raise _Read(kwargs["input_ids"])

    states = BaseModelOutput(last_hidden_state=torch.zeros(*inputs["input_ids"].shape, 1, device=model.device))
    with Changes(model) as changes:  # the encoder does not run, and the decoder ends the forward
        changes.hook(model.get_decoder(), stop, with_kwargs=True)
        try:
            model(**inputs, encoder_outputs=states)
        except _Read as read:
            return read.ids
    return None


class _Read(Exception):
    """The decoder was called with these token ids."""

    def __init__(self, ids: Tensor | None) -> None:
        self.ids = ids


def longest_output(model: PreTrainedModel, positions: int) -> int:
    """Return the most tokens of a model's own output: as many as its generation config allows, otherwise `LONGEST`.

    It is never longer than the positions of the decoder. Without a limit `generate` would write 20 tokens.
    """
    return min(positions, model.generation_config.max_length or LONGEST)


def _greedy(inputs: dict[str, Tensor], model: PreTrainedModel, encoded: Encoded) -> Tensor:
    """Greedy output as long as the generation config allows, otherwise `LONGEST`, and at most the positions."""
    limit: dict[str, int | None] = {}
    if encoded.new is not None:
        limit = {"max_new_tokens": min(encoded.new, encoded.greedy - 1), "max_length": None}
    elif not model.generation_config.max_new_tokens:
        limit = {"max_length": longest_output(model, encoded.greedy)}
    with torch.no_grad():
        written: Tensor = model.generate(**inputs, num_beams=1, **ONE, **limit, **encoded.begins).cpu()  # type: ignore[operator]
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
    in_text: Tensor | None = None,  # which tokens may be content; None: all
    *,
    started: bool = False,  # whether the first token is the decoder's start token, which may have the id of a word
) -> TokenView:
    content = attention_mask & ~torch.isin(ids, torch.tensor(sorted(encoded.special)))
    if in_text is not None:
        content &= in_text
    if started:
        content[:, 0] = False
    ids, attention_mask, content, words = (x.to(model.device) for x in (ids, attention_mask, content, words))
    return TokenView(ids, attention_mask, content, words, tuple(sentences))


def _padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    longest = max(1, *map(len, rows))  # rows without any token are padding
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


class Pages:
    """A corpus, tokenised; `read` counts its sentences, tokens, and the sentences left out."""

    def __init__(self, corpus: Corpus, model: HeadModel, change: Callable[[Encoded], Encoded] | None = None) -> None:
        self.corpus, self.model = corpus, model
        page = model.encode(corpus)
        self.first = page if change is None else change(page)
        counts = {"sentences": len(self.first.source), "too_long": self.first.too_long, **self.first.alignment}
        self.read = Counter({**counts, "tokens": self.first.tokens})
        self._part = model.axis.rank, model.axis.count

    def batches(self, max_tokens: int) -> Iterator[Batch]:
        """Yield the batches; each of several processes gets its share."""
        return self.model.batches(self.first, max_tokens=max_tokens, part=self._part)

    def number(self, max_tokens: int) -> int:
        """Return the number of batches."""
        return len(groups(self.first, max_tokens, self._part))


def shifted(model: PreTrainedModel, labels: Tensor) -> Tensor:
    """Return the decoder inputs for `labels`, [batch, token]: the start token, then all labels but the last."""
    shift: Callable[..., Tensor] | None = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is not None:
        return shift(labels=labels)
    config = model.config
    return torch.cat([torch.full_like(labels[:, :1], config.decoder_start_token_id), labels[:, :-1]], dim=1)
