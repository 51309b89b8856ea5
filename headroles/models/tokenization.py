"""Tokens and words: the token ids of a sentence and the word of each; what tokenizer and model must agree on."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headroles.data.corpus import Sentence, Span, Tokens
from headroles.models.pruned import known_config
from headroles.models.sites import hint

NO_WORD = -1  # the word of a token that belongs to none
MARKS = ("▁", "##", "@@", "</w>", "Ġ")  # how slow tokenizers mark word boundaries in tokens


@dataclass(frozen=True)
class TokenizedSentence:
    """One sentence as the encoder or the decoder reads it: token ids and, for each, the index of its word."""

    ids: list[int]
    words: list[int]
    sentence: Sentence
    types: list[int] | None = None  # token type ids of a sentence pair, if the model reads them

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def aligned(self) -> bool:
        """Whether each word of the sentence is aligned to at least one token."""
        return aligned(self.sentence, self.words)


def aligned(sentence: Sentence, words: Sequence[int]) -> bool:
    """Return whether each word of `sentence` is among `words`, the word indices of its tokens."""
    return set(range(len(sentence.spans))) <= set(words)


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
        """Return the result of `make`, computed once per key: for what depends on the tokens but not on the layer."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    @cached_property
    def parsed(self) -> Tensor:
        """Mask of the sentences with a dependency tree and a token for each word: bool [batch]."""
        rows = zip(self.sentences, self.words.tolist(), strict=True)
        flags = [sentence is not None and sentence.has_tree and aligned(sentence, row) for sentence, row in rows]
        return torch.tensor(flags, device=self.ids.device)


def pieces(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Sentence], *, words: bool = True, target: bool = False
) -> list[TokenizedSentence]:
    """Return the tokens of sentences, special ones included, and the word of each, `NO_WORD` without `words`.

    Words come from the character offsets of a fast tokenizer. The tokens of a slow tokenizer are searched for in the
    text, where an unknown token stands for the text between its neighbours. Sentences with a `second` text are read as
    pairs if all have one; those of a `target` as the decoder's.
    """
    texts = [sentence.text for sentence in sentences]
    seconds = [sentence.second for sentence in sentences]
    in_pairs = all(seconds) and not target
    words = words and any(sentence.spans for sentence in sentences)
    with_offsets = words and tokenizer.is_fast
    encoding = tokenizer(
        text=None if target else texts,
        text_pair=seconds if in_pairs else None,
        text_target=texts if target else None,
        add_special_tokens=True,
        return_offsets_mapping=with_offsets,
        return_attention_mask=False,
        verbose=False,
    )
    rows = []
    for i, (sentence, ids) in enumerate(zip(sentences, encoding["input_ids"], strict=True)):
        if isinstance(sentence, Tokens):
            rows.append(TokenizedSentence(list(sentence.ids), [NO_WORD] * len(sentence.ids), sentence))
            continue
        owners = [NO_WORD] * len(ids)
        if with_offsets:
            first = [number == 0 for number in encoding.sequence_ids(i)]
            offsets = [
                span if is_in else None for span, is_in in zip(encoding["offset_mapping"][i], first, strict=True)
            ]
            owners = word_of(sentence, offsets)
        elif words:
            text = f"{sentence.text} {sentence.second}" if in_pairs else sentence.text
            owners = word_of(sentence, _offsets(tokenizer, text, ids))
        types = encoding["token_type_ids"][i] if in_pairs and "token_type_ids" in encoding else None
        rows.append(TokenizedSentence(list(ids), owners, sentence, types))
    return rows


def word_of(sentence: Sentence, offsets: Sequence[Span | None]) -> list[int]:
    """Return for each token the word that holds its first character that is not a space, NO_WORD for none."""
    owner = {c: i for i, span in enumerate(sentence.spans) if span for c in range(*span)}
    return [_owner(sentence.text, span, owner) for span in offsets]


def _owner(text: str, span: Span | None, owner: dict[int, int]) -> int:
    if span is None:
        return NO_WORD
    solid = (c for c in range(*span) if not text[c : c + 1].isspace())
    return owner.get(next(solid, -1), NO_WORD)


def _offsets(tokenizer: PreTrainedTokenizerBase, text: str, ids: Sequence[int]) -> list[Span | None]:
    """Find the tokens of a slow tokenizer one after the other in the text."""
    folded, origin = _folded(text)
    places: list[Span | None] = []  # in the folded text
    unknown: list[int] = []  # the unknown tokens since the last one that was found
    at = 0
    for token in tokenizer.convert_ids_to_tokens(list(ids)):
        piece, _ = _folded(_unmarked(token))
        places.append(None)
        if token == tokenizer.unk_token:
            unknown.append(len(places) - 1)
        elif token not in tokenizer.all_special_tokens and piece:
            start = folded.find(piece, at + len(unknown))  # an unknown token is a character or more
            between = _stretches(folded, at, start)
            if start < 0 or len(between) > len(unknown):
                raise ValueError(
                    f"{type(tokenizer).__name__} gives no character offsets, and its piece {token!r} was not found in "
                    f"{text!r} from character {[*origin, len(text)][at]} on; "
                    "load a fast tokenizer (use_fast=True) to align words with tokens"
                )
            _share(between, unknown, places)
            at, unknown = start + len(piece), []
            places[-1] = start, at
    _share(_stretches(folded, at, len(folded)), unknown, places)
    return [place and (origin[place[0]], origin[place[1] - 1] + 1) for place in places]


def _folded(text: str) -> tuple[str, list[int]]:
    """Normalise the text as tokenizers do, and return the original position of each of its characters."""
    parts = [unicodedata.normalize("NFKD", character).casefold() for character in text]
    return "".join(parts), [number for number, part in enumerate(parts) for _ in part]


def _unmarked(token: str) -> str:
    for mark in MARKS:
        token = token.replace(mark, "")
    return token


def _stretches(text: str, start: int, end: int) -> list[Span]:
    """The spans between white space in a part of the text."""
    return [match.span() for match in re.compile(r"\S+").finditer(text, start, end)]


def _share(stretches: list[Span], unknown: list[int], places: list[Span | None]) -> None:
    """Assign each unknown token its stretch of the text; those left over share the last."""
    for number, piece in enumerate(unknown if stretches else ()):
        places[piece] = stretches[min(number, len(stretches) - 1)]


TARGET = "target_tokenizer.json"


class Bilingual(PreTrainedTokenizerFast):
    """A fast tokenizer with a second vocabulary for `text_target=` and decoding.

    `paired` creates it, `load` reads it. Special tokens have the same ids in both vocabularies.
    """

    target: Tokenizer

    def _switch_to_target_mode(self) -> None:
        self._tokenizer, self._source = self.target, self._tokenizer

    def _switch_to_input_mode(self) -> None:
        self._tokenizer = self.__dict__.pop("_source", self._tokenizer)

    def _decode(
        self,
        token_ids: int | list[int],
        skip_special_tokens: bool = False,  # noqa: FBT002 - as in transformers
        clean_up_tokenization_spaces: bool | None = None,
        **options: object,
    ) -> str:
        self._switch_to_target_mode()
        try:
            return super()._decode(token_ids, skip_special_tokens, clean_up_tokenization_spaces, **options)
        finally:
            self._switch_to_input_mode()

    def save_pretrained(self, save_directory: str | PathLike[str], *args: Any, **options: Any) -> tuple[str, ...]:
        """Save the tokenizer, and the one for targets beside it as `target_tokenizer.json`."""
        plain: PreTrainedTokenizerFast = deepcopy(self)
        plain.__class__ = PreTrainedTokenizerFast
        files: tuple[str, ...] = plain.save_pretrained(save_directory, *args, **options)
        self.target.save(str(Path(save_directory) / TARGET))
        return files


def paired(source: PreTrainedTokenizerBase, target: PreTrainedTokenizerFast) -> Bilingual:
    """Return a tokenizer that reads sources as `source` and targets as `target`, both fast."""
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=deepcopy(source.backend_tokenizer),
        model_max_length=min(source.model_max_length, target.model_max_length),
        **source.special_tokens_map,
    )
    tokenizer.__class__, tokenizer.target = Bilingual, target.backend_tokenizer
    return tokenizer  # type: ignore[no-any-return]


def load(folder: str | Path) -> Bilingual | None:
    """Load the bilingual tokenizer of a folder; None if it holds none."""
    if not (Path(folder) / TARGET).is_file():
        return None
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.__class__, tokenizer.target = Bilingual, Tokenizer.from_file(str(Path(folder) / TARGET))
    return tokenizer  # type: ignore[no-any-return]


SPARE, SPARED = 1024, 0.1  # number and share of embeddings that may belong to no token: tables are padded for speed
FEW = 0.05  # share of tokens that may differ: special tokens do, between versions of a tokenizer
ROLES = ("bos", "eos", "cls", "sep", "pad")
_vocabularies: WeakKeyDictionary[PreTrainedModel, dict[str, int] | None] = WeakKeyDictionary()
_checked: WeakKeyDictionary[PreTrainedModel, WeakSet[PreTrainedTokenizerBase]] = WeakKeyDictionary()


def check_belongs(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Raise ValueError if a tokenizer does not belong to a model; tokens may have been added to it.

    The vocabulary is compared with the one the model was loaded with, or with the one in the model's folder. Where
    neither is known, the tokenizer has to have about as many tokens as the model has embeddings, or the special tokens
    of the model's config. A model of images or sound accepts any tokenizer.

    Raises:
        ValueError: The tokenizer has tokens without an embedding, another vocabulary, or other special tokens.
    """
    if tokenizer in _checked.setdefault(model, WeakSet()):
        return
    try:
        size = vocabulary(model)
    except ValueError:  # images or sound
        return
    ids, kind = tokenizer.get_vocab(), type(tokenizer).__name__
    added = tokenizer.get_added_vocab()
    largest = max((number for token, number in ids.items() if token not in added), default=0)
    wrong = ""
    if largest >= size:
        wrong = f"{kind} has tokens up to {largest}, {type(model).__name__} has embeddings for {size}"
    elif (reference := _vocabulary_of(model)) is not None and (count := _n_different(ids, reference)):
        common = min(len(ids), len(reference))
        wrong = f"{count} of the {common} tokens of {kind} have other ids in the model's own tokenizer"
    elif size - largest > max(SPARE, SPARED * size) and (roles := _different_roles(tokenizer, model)):
        wrong = (
            f"{kind} has {len(ids)} tokens, {type(model).__name__} has embeddings for {size}, and its config has "
            f"other ids for {', '.join(roles)}"
        )
    if wrong:
        raise ValueError(f"the tokenizer does not fit the model: {wrong}; load both from one checkpoint")
    _checked[model].add(tokenizer)


def _vocabulary_of(model: PreTrainedModel) -> dict[str, int] | None:
    """The vocabulary that the model was loaded with, or that of its folder; None if neither is known."""
    if model not in _vocabularies:
        folder = getattr(model.config, "name_or_path", "")
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, **known_config(model)
            )
            words: dict[str, int] = tokenizer.get_vocab()
            _vocabularies[model] = words if set(words) - set(tokenizer.all_special_tokens) else None
        except Exception:  # noqa: BLE001 - besides transformers', those of safetensors and of tokenizers, which are bare
            _vocabularies[model] = None
    return _vocabularies[model]


def _n_different(ids: dict[str, int], reference: dict[str, int]) -> int:
    """Count the tokens of the smaller vocabulary with another id, or none, in the larger; 0 if there are few."""
    small, large = sorted((ids, reference), key=len)
    count = sum(large.get(token) != number for token, number in small.items())
    return count if count > FEW * len(small) else 0


def _different_roles(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> list[str]:
    """The special tokens with different ids in the tokenizer and in the model's config."""
    names = [f"{role}_token_id" for role in ROLES]
    pairs = {name: (getattr(tokenizer, name, None), getattr(model.config, name, None)) for name in names}
    return [
        name.removesuffix("_id").replace("_", " ")
        for name, (given, expected) in pairs.items()
        if given is not None
        and expected is not None
        and given not in (expected if isinstance(expected, list) else [expected])
    ]


def remember(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Note that a tokenizer was loaded together with a model."""
    _vocabularies[model] = tokenizer.get_vocab()


def check_fit(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, largest: int) -> None:
    """Raise ValueError if the model has no embedding for `largest`, the largest token id of a corpus."""
    size = vocabulary(model)
    if largest >= size:
        raise ValueError(
            f"the tokenizer does not fit the model: {type(tokenizer).__name__} gives token {largest}, "
            f"{type(model).__name__} has embeddings for {size}; load both from one checkpoint"
        )


def vocabulary(model: PreTrainedModel) -> int:
    """Return the number of token ids for which the model has embeddings."""
    try:
        size = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except (NotImplementedError, AttributeError):  # what transformers raises of models with several tables, or none
        size = None
    if size is None:
        raise ValueError(f"{type(model).__name__} has no table of token embeddings{hint(model)}")
    return int(size)


def special(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> frozenset[int]:
    """Return the ids of special tokens: EOS, BOS, CLS, SEP, padding and start.

    A model may pad or start with the token of unknown words. That token counts as a word; the attention mask marks
    padding.
    """
    ends: set[int | None] = {getattr(tokenizer, f"{role}_token_id", None) for role in ("bos", "eos", "cls", "sep")}
    ends |= {getattr(model.config, "decoder_start_token_id", None)} - {tokenizer.unk_token_id}
    ids = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id} | ends
    return frozenset(number for number in ids if number is not None)


def positions(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """Return the number of positions of the model; a very large number if nothing limits it."""
    config = model.config
    limits = [tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or 10**9]
    offset = getattr(model.base_model, "embeddings", None)
    padding = getattr(getattr(offset, "position_embeddings", None), "padding_idx", None)
    if padding is not None:  # RoBERTa counts positions from padding_idx + 1
        limits[1] -= padding + 1
    return int(min(limits))


def padding(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """Return the id that pads a batch: that of the padding token or, without one, of the end token."""
    config = model.config
    candidates = (tokenizer.pad_token_id, getattr(config, "pad_token_id", None), tokenizer.eos_token_id, 0)
    return int(next(i for i in candidates if i is not None))
