"""Batches: a tokenised corpus, and the inputs of a model for groups of sentences of similar length."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import compress
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from headroles._changes import Changes
from headroles.data.corpus import Corpus, Linked, Prompt, Sentence
from headroles.models import speech
from headroles.models.dummy_inputs import classifies, has_decoder, reads_source_twice
from headroles.models.parts import has_non_token_head, is_scaled_by_input
from headroles.models.tokens import languages, vocabulary
from headroles.models.tokens.alignment import NO_WORD, TokenizedSentence, dependencies, pieces
from headroles.tables.arguments import number
from headroles.tables.frame import Kind

ONE: dict[str, bool | int] = {"do_sample": False, "num_return_sequences": 1, "return_dict_in_generate": False}
LOGITS = 2**28  # numbers in the logits of one forward pass: 1 GiB in float32; a loss and its gradient hold them often
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h
Together = Literal["any", "equal-length", "single"]
LONGEST = 256  # tokens of a model's own output, if neither its positions nor its generation config limit it

log = logging.getLogger(__name__)
_unread: WeakKeyDictionary[PreTrainedModel, set[str]] = WeakKeyDictionary()  # corpora with translations, by hash


@dataclass(frozen=True)
class Encoded:
    """A tokenised corpus: the sentences that fit the model, and their numbers in the corpus."""

    corpus: Corpus
    numbers: list[int]
    source: list[TokenizedSentence]
    target: list[TokenizedSentence] | None
    too_long: int  # number of sentences left out because they are longer than the model's positions
    special: frozenset[int]
    padding: int
    together: Together  # which texts may share a batch, so that each has the numbers it has alone
    greedy: int  # positions of the greedy output that stands in for missing targets; 0 without it
    decoder_reads_source: bool = False  # because it writes no text
    language: Mapping[str, int | str] = field(default_factory=dict)  # options of `generate` for the language of output
    max_new_tokens: int | None = None  # of that greedy output, if they are limited
    vocabulary: int = 0  # logits of each token
    feature_extractor: Any = None  # makes the source of sound

    def counts(self, side: str) -> Counter[int]:
        """Count each token id that is not special in the sentences of `side`: "source" or "target"."""
        sentences: Iterable[TokenizedSentence] = getattr(self, side) or ()
        skipped = self.special | {speech.FRAME}
        return Counter(i for row in sentences for i in compress(row.ids, row.in_text) if i not in skipped)

    def take(self, numbers: Iterable[int]) -> Encoded:
        """Return the sentences with these numbers in the corpus; `too_long` stays."""
        wanted = set(numbers)
        rows = [row for row, place in enumerate(self.numbers) if place in wanted]
        target = [self.target[row] for row in rows] if self.target else None
        source = [self.source[row] for row in rows]
        return replace(self, numbers=[self.numbers[row] for row in rows], source=source, target=target)

    @cached_property
    def totals(self) -> Counter[str]:
        """Count sentences, words and dependencies of trees, those without tokens, and all tokens, special ones too."""
        counts = Counter({"sentences": len(self.source), "too_long": self.too_long, "unaligned": 0})
        for row in (row for row in [*self.source, *(self.target or ())] if row.sentence.has_tree):
            size, arcs = len(row.sentence.spans), len(row.sentence.heads) - row.sentence.heads.count(-1)
            counts["words"] += size
            counts["unaligned"] += size - len({*row.words} - {NO_WORD})
            counts["dependencies"] += arcs
            counts["uncounted"] += arcs - sum(1 for _ in dependencies(row.sentence, row.words))
        counts["tokens"] = sum(map(len, self.source)) + sum(map(len, self.target or ()))
        return counts

    @property
    def linked(self) -> bool:
        """Whether words of sources and targets are linked, or of texts that a language model reads as one."""
        pairs = (row.sentence for row in self.source if isinstance(row.sentence, Linked) and not self.greedy)
        return any((pair.target is None) == (self.target is None) for pair in pairs)


@dataclass(frozen=True)
class TokenView:
    """The tokens of a batch that one side of attention reads.

    Content tokens are neither padding nor special tokens (EOS, CLS, SEP, BOS). Unknown words are content tokens.
    """

    ids: Tensor  # [batch, token]
    attention_mask: Tensor  # bool [batch, token]: not padding
    content: Tensor  # bool [batch, token]
    words: Tensor  # [batch, token]: index of the token's word, NO_WORD for none
    sentences: tuple[Sentence | None, ...]
    kept: dict[Hashable, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def without_first(self) -> TokenView:
        """The same tokens, but the first (of any sort) is not content; cached, so that its own results are kept."""
        first = self.attention_mask.int().argmax(-1, keepdim=True)
        return replace(self, content=self.content.scatter(1, first, value=False), kept={})

    @cached_property
    def following(self) -> TokenView:
        """Each token in the place of the one before: at the step that predicts it. The last place has none."""
        moved = {name: getattr(self, name).roll(-1, dims=1) for name in ("ids", "content", "words")}
        moved["content"][:, -1], moved["words"][:, -1] = False, NO_WORD
        return replace(self, **moved, kept={})

    def take(self, rows: Tensor) -> TokenView:
        """Return the examples at `rows`, in this order; a row may be repeated."""
        return self._at(rows, tuple(self.sentences[row] for row in rows.tolist()))

    def span(self, start: int, stop: int) -> TokenView:
        """Return the tokens from `start` to before `stop`; the view itself if those are all tokens."""
        if (start, stop) == (0, self.ids.shape[1]):
            return self
        return self._at((slice(None), slice(start, stop)), self.sentences)

    def _at(self, index: Tensor | tuple[slice, slice], sentences: tuple[Sentence | None, ...]) -> TokenView:
        ids, attention_mask, content, words = self.ids, self.attention_mask, self.content, self.words
        return TokenView(ids[index], attention_mask[index], content[index], words[index], sentences)

    def keep(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """Return the result of `make`, computed once per key: it may depend on the tokens, but not on the layer."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def dependencies(self) -> Iterator[tuple[int, int, int, str]]:
        """Yield row, dependent, head and relation of each dependency between two words with tokens of their own."""
        for row, (sentence, words) in enumerate(zip(self.sentences, self.words.tolist(), strict=True)):
            for dependent, head, relation in dependencies(sentence, words):
                yield row, dependent, head, relation


@dataclass(frozen=True)
class Batch:
    """Some sentences of a corpus: the arguments of the model, and token views of the source and the target."""

    numbers: tuple[int, ...]  # of the sentences in the corpus
    inputs: dict[str, Tensor]
    source: TokenView
    target: TokenView | None
    labels: Tensor | None = None  # [batch, token]: the next token for each decoder input, -100 for none
    is_generated: bool = False  # whether the target is the model's own greedy output
    counted: Tensor | None = None  # bool [batch, token]: source tokens that count as queries; None: all
    learned: Tensor | None = None  # bool [batch, token]: source tokens that count as next tokens; None: all
    prompt: Tensor | None = None  # [batch, token]: the ids after which the decoder writes; None: its start token

    def take(self, rows: Tensor) -> Batch:
        """Return the examples at `rows`, in this order; a row may be repeated."""
        numbers = tuple(self.numbers[row] for row in rows.tolist())
        inputs = {name: value[rows] for name, value in self.inputs.items()}
        target = None if self.target is None else self.target.take(rows)
        labels = None if self.labels is None else self.labels[rows]
        marks = [None if mark is None else mark[rows] for mark in (self.counted, self.learned, self.prompt)]
        return Batch(numbers, inputs, self.source.take(rows), target, labels, self.is_generated, *marks)

    @cached_property
    def _queries(self) -> TokenView:
        """The source as queries."""
        if self.counted is None:
            return self.source
        return replace(self.source, content=self.source.content & self.counted, kept={})

    def queries(self, kind: Kind) -> TokenView:
        """Return the token view on the query side of heads of `kind`."""
        return self._queries if self.target is None or kind == "enc-self" else self.target

    def keys(self, kind: Kind) -> TokenView:
        """Return the token view on the key side of heads of `kind`."""
        return self.source if self.target is None or kind != "dec-self" else self.target


def encode(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, *, words: bool = True
) -> Encoded:
    """Tokenise `corpus` for `model`; sentences longer than its positions are left out, and counted."""
    if not len(corpus):
        raise ValueError(f"corpus {corpus.name!r} is empty")
    if has_decoder(model) and corpus.chat:
        raise ValueError(
            f"chat=True (--chat) needs a model that reads and writes one text, got {type(model).__name__}, which has "
            f"an encoder and a decoder"
        )
    has_target = has_decoder(model) and not reads_source_twice(model)
    is_sound = speech.check_side(corpus, model)
    read = partial(speech.frames, model=model) if is_sound else partial(pieces, words=words, answers=not has_target)
    source, target = read(tokenizer, corpus.sentences), None
    if is_sound:
        target = speech.transcripts(source, tokenizer, words=words)
    elif has_target:
        languages.check(tokenizer, type(model).__name__, [sentence.text for sentence in corpus])
        target = _targets(corpus, tokenizer, words=words)
    elif any(sentence.target and not isinstance(sentence, Prompt) for sentence in corpus):
        _warn_unread(model, corpus)
    ids = (i for sentence in [*source, *(target or ())] for i in sentence.ids)
    vocabulary.check_fit(tokenizer, model, max(ids, default=0))
    most = max(map(len, source), default=0)
    limit, longest = (vocabulary.positions(tokenizer, model, target=side, longest=most) for side in (False, True))
    limit = vocabulary.NO_LIMIT if is_sound else min(limit, longest) if reads_source_twice(model) else limit
    kept = [i for i, row in enumerate(source) if len(row) <= limit and (target is None or len(target[i]) <= longest)]
    allowed = f"{limit}" if target is None or limit == longest else f"{limit} (targets: {longest})"
    if not kept:
        raise ValueError(
            f"corpus {corpus.name!r} must have a sentence of at most {allowed} tokens, the model's limit, got none; "
            f"split them"
        )
    if len(kept) < len(corpus):
        log.warning("%d of %d sentences left out: longer than %s tokens", len(corpus) - len(kept), len(corpus), allowed)
    shift = partial(shifted, model)
    beginning = partial(speech.language, source[0]) if is_sound else partial(languages.beginning, shift=shift)
    reads_source = has_decoder(model) and target is None and not model.can_generate()
    ends = _end_tokens(corpus, source, model) if reads_source else set()
    return Encoded(
        corpus=corpus,
        numbers=kept,
        source=[source[i] for i in kept],
        target=[target[i] for i in kept] if target else None,
        too_long=len(corpus) - len(kept),
        special=vocabulary.special(tokenizer, model) | {*(tokenizer.added_tokens_decoder if is_sound else ())},
        padding=vocabulary.padding(tokenizer, model),
        together="single" if one_example_per_batch(model) or len(ends) > 1 else "any",
        greedy=longest if has_decoder(model) and target is None and not reads_source else 0,
        decoder_reads_source=reads_source,
        language=beginning(tokenizer) if has_target else {},
        vocabulary=getattr(model.get_output_embeddings(), "out_features", 0),
        feature_extractor=speech.extractor(model, tokenizer) if is_sound else None,
    )


def _warn_unread(model: PreTrainedModel, corpus: Corpus) -> None:
    """Warn once of translations that a model does not read."""
    if corpus.hash not in _unread.setdefault(model, set()):
        _unread[model].add(corpus.hash)
        log.warning(
            "translations are not read: got %s, which reads only the texts; try chat=True (--chat), with which a "
            "decoder reads them as answers",
            type(model).__name__,
        )


def _targets(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, *, words: bool) -> list[TokenizedSentence] | None:
    """Return the tokens of all targets; None if one is missing."""
    targets = [sentence.target for sentence in corpus if sentence.target]
    if len(targets) == len(corpus):
        return pieces(tokenizer, targets, words=words, target=True)
    if targets:
        text = "%d of %d sentences have no translation: the model's own output is read for all"
        log.warning(text, len(corpus) - len(targets), len(corpus))
    return None


def one_example_per_batch(model: PreTrainedModel) -> bool:
    """Return whether a model reads one example at a time: it can't recognise padding, or batches change its scales."""
    if has_non_token_head(model) and not model.config.is_encoder_decoder and vocabulary.model_padding(model) is None:
        return True  # it may read the last token; GPT-2's classifier, for one, refuses a batch of several examples
    of_each_class = {(type(module), type(getattr(module, "weight", None))): module for module in model.modules()}
    return any(is_scaled_by_input(module, model.dtype) for module in of_each_class.values())


def _end_tokens(corpus: Corpus, source: Sequence[TokenizedSentence], model: PreTrainedModel) -> set[int]:
    """Return how many end tokens the texts of a decoder have: classifiers read the state at the last one."""
    if _shifted_source({"input_ids": torch.tensor([source[0].ids], device=model.device)}, model) is None:
        raise ValueError(
            f"{type(model).__name__} needs targets for its decoder, got corpus {corpus.name!r} without; try a model "
            f"that writes (cls='AutoModelForSeq2SeqLM')"
        )
    end = getattr(model.config, "eos_token_id", None)
    if not isinstance(end, int):
        return set()
    counts = [sentence.ids.count(end) for sentence in source]
    if 0 in counts and classifies(model):
        raise ValueError(
            f"each text for {type(model).__name__} must have the end token {end}, got {counts.count(0)} of "
            f"{len(counts)} texts of corpus {corpus.name!r} without; try the tokenizer of its checkpoint"
        )
    return set(counts)


def groups(encoded: Encoded, max_tokens: int, part: tuple[int, int] = (0, 1)) -> list[list[int]]:
    """Return the rows of each batch; fewer than `max_tokens` allows if the vocabulary is large."""
    number("max_tokens", max_tokens, least=1, whole=True)
    most = min(max_tokens, LOGITS // encoded.vocabulary) if encoded.vocabulary else max_tokens
    sides = filter(None, (encoded.source, encoded.target))
    sizes = [tuple(map(len, row)) for row in zip(*sides, strict=True)]  # of source and target
    apart = sizes if encoded.together == "equal-length" else [()] * len(sizes)  # where it differs, batches do
    rows: list[list[int]] = []
    for i in sorted(range(len(sizes)), key=lambda i: (-max(sizes[i]), apart[i], i)):
        is_room = rows and max(sizes[rows[-1][0]]) * (len(rows[-1]) + 1) <= most
        if is_room and encoded.together != "single" and apart[i] == apart[rows[-1][0]]:
            rows[-1].append(i)
        else:
            rows.append([i])
    return rows[part[0] :: part[1]]


def make_batch(rows: Sequence[int], encoded: Encoded, model: PreTrainedModel) -> Batch:
    """Return the batch of some rows of a tokenised corpus."""
    sentences = [encoded.source[i] for i in rows]
    ids = _padded([row.ids for row in sentences], encoded.padding)
    source = _view(ids, sentences, encoded, model)
    inputs = {"input_ids": source.ids, "attention_mask": source.attention_mask.long()}
    if encoded.feature_extractor is not None:
        read = speech.features(sentences, encoded.feature_extractor)
        inputs = {"input_features": read.to(model.device, model.dtype)}
    if any(types := [row.types or [] for row in sentences]):
        inputs["token_type_ids"] = _padded(types, 0).to(model.device)
    numbers = tuple(encoded.numbers[i] for i in rows)
    if not has_decoder(model):
        sides = [row.counted for row in sentences], [row.learned for row in sentences]
        marks = [[mark for mark in side if mark is not None] for side in sides]  # of all rows, or of none
        counted, learned = (_padded(side, False).to(model.device) if side else None for side in marks)
        return Batch(numbers, inputs, source, None, counted=counted, learned=learned)
    labels, is_generated, prompt = None, False, None
    if encoded.feature_extractor is not None:
        prompt = torch.tensor([row.prompt for row in sentences], device=model.device)
    if encoded.decoder_reads_source:
        shifted_ids = _shifted_source(inputs, model)
        assert shifted_ids is not None  # as `encode` has found out
        target = _view(shifted_ids.cpu(), sentences, encoded, model, shifted=True)
    elif encoded.target:
        sentences = [encoded.target[i] for i in rows]
        written = _padded([row.ids for row in sentences], encoded.padding)
        target = _view(shifted(model, written), sentences, encoded, model, shifted=True)
        learned = _padded([row.learned or [True] * len(row) for row in sentences], False)  # all but a prompt
        labels = torch.where(learned, written, -100).to(model.device)
    else:
        target, is_generated = _generated(_greedy(inputs, model, encoded, prompt), encoded, model), True
        labels = torch.where(target.attention_mask, target.ids.roll(-1, dims=1), -100)
        if prompt is not None:  # of the output of Whisper the end token is not known, as it was cut off
            labels = torch.where(target.content.roll(-1, dims=1), labels, -100)
        labels[:, -1] = -100  # the token after the last one is not known
    inputs["decoder_input_ids"] = target.ids
    return Batch(numbers, inputs, source, target, labels, is_generated, prompt=prompt)


def _view(
    ids: Tensor,
    rows: Sequence[TokenizedSentence],
    encoded: Encoded,
    model: PreTrainedModel,
    *,
    shifted: bool = False,  # by the decoder's start token, which may have the id of a word
) -> TokenView:
    """Return the token view of sentences; their padded ids are [batch, token]."""
    attention_mask = _padded([[True] * len(row) for row in rows], False)
    in_text = _padded([row.in_text for row in rows], False)
    words = _padded([[NO_WORD, *row.words[:-1]] if shifted else row.words for row in rows], NO_WORD)
    content = attention_mask & in_text & ~torch.isin(ids, torch.tensor(sorted(encoded.special)))
    if shifted:
        content[:, 0] = False
    ids, attention_mask, content, words = (tensor.to(model.device) for tensor in (ids, attention_mask, content, words))
    return TokenView(ids, attention_mask, content, words, tuple(row.sentence for row in rows))


def _generated(ids: Tensor, encoded: Encoded, model: PreTrainedModel) -> TokenView:
    """Return the token view of greedy output before its end token, the start token included."""
    config = model.generation_config
    ends = torch.tensor([] if config.eos_token_id is None else config.eos_token_id).flatten()
    ended = torch.isin(ids[:, 1:], ends).cumsum(-1) > 0
    attention_mask = torch.cat([torch.ones_like(ended[:, :1]), ~ended], dim=-1)
    content = attention_mask & ~torch.isin(ids, torch.tensor(sorted(encoded.special)))
    content[:, 0] = False
    words = torch.full_like(ids, NO_WORD)
    ids, attention_mask, content, words = (tensor.to(model.device) for tensor in (ids, attention_mask, content, words))
    return TokenView(ids, attention_mask, content, words, (None,) * len(ids))


def keep_memory() -> None:
    """Let glibc keep up to 2 GiB that tensors have freed for the next ones, for the rest of the process (mallopt(3)).

    By default each tensor above 32 MiB gets new pages from the system, which sets them to zero: a fifth of the time of
    ablating all heads of a small translator on a CPU.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # not in musl
            libc.mallopt(M_MMAP_MAX, 0)
            libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def _padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    longest = max(1, *map(len, rows))  # rows without any token are padding
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def _shifted_source(inputs: Mapping[str, Tensor], model: PreTrainedModel) -> Tensor | None:
    """Return the token ids that a model makes for its decoder by default: [batch, token]; None if it makes none."""

    def stop(_: object, __: object, kwargs: Mapping[str, Any]) -> None:
        raise _DecoderIds(kwargs["input_ids"])

    states = BaseModelOutput(last_hidden_state=torch.zeros(*inputs["input_ids"].shape, 1, device=model.device))
    with Changes(model) as changes:  # the encoder does not run, and the decoder ends the forward
        changes.hook(model.get_decoder(), stop, with_kwargs=True)
        try:
            model(**inputs, encoder_outputs=states)
        except _DecoderIds as error:
            return error.ids
    return None


class _DecoderIds(Exception):
    """The decoder was called with these token ids."""

    def __init__(self, ids: Tensor | None) -> None:
        self.ids = ids


def _greedy(inputs: dict[str, Tensor], model: PreTrainedModel, encoded: Encoded, prompt: Tensor | None) -> Tensor:
    """Generate greedy output, as long as the generation config and the positions allow."""
    limit: dict[str, Any] = {} if prompt is None else {"decoder_input_ids": prompt}
    if encoded.max_new_tokens is not None:
        beginning = 1 if prompt is None else prompt.shape[1]
        limit |= {"max_new_tokens": min(encoded.max_new_tokens, encoded.greedy - beginning), "max_length": None}
    elif not model.generation_config.max_new_tokens:
        limit |= {"max_length": longest_output(model, encoded.greedy)}
    with torch.no_grad():
        written: Tensor = model.generate(**inputs, num_beams=1, **ONE, **limit, **encoded.language).cpu()  # type: ignore[operator]
    return written if prompt is None else torch.cat([prompt.cpu(), written], dim=1)  # which Whisper leaves out


def longest_output(model: PreTrainedModel, positions: int) -> int:
    """Return the maximum length of a model's own output: that of its generation config, otherwise `LONGEST`.

    It is never longer than the positions of the decoder. Without a limit `generate` would write 20 tokens.
    """
    return min(positions, model.generation_config.max_length or LONGEST)


def shifted(model: PreTrainedModel, labels: Tensor) -> Tensor:
    """Return the decoder inputs for `labels`, [batch, token]: the start token, then all labels but the last."""
    shift: Callable[..., Tensor] | None = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is not None:
        return shift(labels=labels)
    config = model.config
    return torch.cat([torch.full_like(labels[:, :1], config.decoder_start_token_id), labels[:, :-1]], dim=1)
