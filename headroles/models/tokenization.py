"""Words and pieces: the token ids of a sentence and, for each token, the word it belongs to."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import transformers
from tokenizers import Tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headroles.data.corpus import Sentence, Span, Tokens
from headroles.models import submodels

NO_WORD = -1  # the word of a token that belongs to none
MARKS = ("▁", "##", "@@", "</w>", "Ġ")  # how slow tokenizers write word boundaries into pieces


@dataclass(frozen=True)
class TokenizedSentence:
    """One sentence as one side of a model reads it: token ids and, for each, the index of its word."""

    ids: list[int]
    words: list[int]
    sentence: Sentence
    types: list[int] | None = None  # which text of a sentence pair each token is of, where the model asks

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def aligned(self) -> bool:
        """Whether each word of the sentence has a piece of its own."""
        return aligned(self.sentence, self.words)


def aligned(sentence: Sentence, words: Sequence[int]) -> bool:
    """Whether each word of `sentence` is among `words`, the words of its pieces."""
    return set(range(len(sentence.spans))) <= set(words)


def pieces(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Sentence], *, words: bool = True, target: bool = False
) -> list[TokenizedSentence]:
    """Tokenise sentences (as translations where `target`); `words` asks which word each token belongs to.

    A fast tokenizer tells by its offsets; the pieces of a slow one are looked for in the text, where an unknown one
    stands for what is between its neighbours. Raises ValueError where they are not found in it.
    """
    texts = [sentence.text for sentence in sentences]
    seconds = [sentence.second for sentence in sentences]
    given: dict[str, Any] = {"text_target" if target else "text": texts, "add_special_tokens": True}
    if all(seconds) and not target:
        given["text_pair"] = seconds
    words = words and any(sentence.spans for sentence in sentences)
    with_offsets = words and tokenizer.is_fast
    encoding = tokenizer(**given, return_offsets_mapping=with_offsets, return_attention_mask=False, verbose=False)
    found = []
    for i, (sentence, ids) in enumerate(zip(sentences, encoding["input_ids"], strict=True)):
        if isinstance(sentence, Tokens):
            found.append(TokenizedSentence(list(sentence.ids), [NO_WORD] * len(sentence.ids), sentence))
            continue
        owners = [NO_WORD] * len(ids)
        if with_offsets:
            first = [owner == 0 for owner in encoding.sequence_ids(i)]
            offsets = [span if mine else None for span, mine in zip(encoding["offset_mapping"][i], first, strict=True)]
            owners = word_of(sentence, offsets)
        elif words:
            both = f"{sentence.text} {sentence.second}" if "text_pair" in given else sentence.text
            owners = word_of(sentence, _walked(tokenizer, both, ids))
        types = encoding["token_type_ids"][i] if "text_pair" in given and "token_type_ids" in encoding else None
        found.append(TokenizedSentence(list(ids), owners, sentence, types))
    return found


def word_of(sentence: Sentence, offsets: Sequence[Span | None]) -> list[int]:
    """For each token the index of the word that holds its first character that is not a space, NO_WORD for none."""
    owner = {c: i for i, span in enumerate(sentence.spans) if span for c in range(*span)}
    return [_owner(sentence.text, span, owner) for span in offsets]


def _owner(text: str, span: Span | None, owner: dict[int, int]) -> int:
    if span is None:
        return NO_WORD
    solid = (c for c in range(*span) if not text[c : c + 1].isspace())
    return owner.get(next(solid, -1), NO_WORD)


def _walked(tokenizer: PreTrainedTokenizerBase, text: str, ids: Sequence[int]) -> list[Span | None]:
    """Offsets for a slow tokenizer, by finding its pieces one after the other in the text."""
    folded, origin = _folded(text)
    places: list[Span | None] = []  # in the folded text
    unknown: list[int] = []  # the unknown pieces since the last one found
    at = 0
    for token in tokenizer.convert_ids_to_tokens(list(ids)):
        piece, _ = _folded(_unmarked(token))
        places.append(None)
        if token == tokenizer.unk_token:
            unknown.append(len(places) - 1)
        elif token not in tokenizer.all_special_tokens and piece:
            start = folded.find(piece, at + len(unknown))  # an unknown piece is a character or more
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
    """The text with nothing left that tokenizers normalise, and for each of its characters the one it was."""
    parts = [unicodedata.normalize("NFKD", character).casefold() for character in text]
    return "".join(parts), [number for number, part in enumerate(parts) for _ in part]


def _unmarked(token: str) -> str:
    for mark in MARKS:
        token = token.replace(mark, "")
    return token


def _stretches(text: str, start: int, end: int) -> list[Span]:
    """What is not white space in a part of the text."""
    return [found.span() for found in re.compile(r"\S+").finditer(text, start, end)]


def _share(stretches: list[Span], unknown: list[int], places: list[Span | None]) -> None:
    """Give each unknown piece its stretch of the text; those left over stand in the last."""
    for number, piece in enumerate(unknown if stretches else ()):
        places[piece] = stretches[min(number, len(stretches) - 1)]


TARGET = "target_tokenizer.json"


class Bilingual(PreTrainedTokenizerFast):
    """A fast tokenizer whose `text_target=` is read, and whose output is written, with the pieces of `target`.

    Made by `paired`; `load` reads what `save_pretrained` saved. Special tokens have the same ids on both sides.
    """

    target: Tokenizer

    def _switch_to_target_mode(self) -> None:
        self._tokenizer, self._source = self.target, self._tokenizer

    def _switch_to_input_mode(self) -> None:
        self._tokenizer = self.__dict__.pop("_source", self._tokenizer)

    def _decode(self, *args: Any, **options: Any) -> Any:
        self._switch_to_target_mode()
        try:
            return super()._decode(*args, **options)
        finally:
            self._switch_to_input_mode()

    def save_pretrained(self, save_directory: Any, *args: Any, **options: Any) -> Any:
        """Save the tokenizer of sources as any other, that of targets beside it."""
        plain: Any = deepcopy(self)
        plain.__class__ = PreTrainedTokenizerFast
        files = plain.save_pretrained(save_directory, *args, **options)
        self.target.save(str(Path(save_directory) / TARGET))
        return files


def paired(source: PreTrainedTokenizerBase, target: PreTrainedTokenizerFast) -> Bilingual:
    """A tokenizer of sources like `source` and of targets like `target`, both fast."""
    made: Any = PreTrainedTokenizerFast(
        tokenizer_object=deepcopy(source.backend_tokenizer),
        model_max_length=min(source.model_max_length, target.model_max_length),
        **source.special_tokens_map,
    )
    made.__class__, made.target = Bilingual, target.backend_tokenizer
    return made  # type: ignore[no-any-return]


def load(folder: str | Path) -> Bilingual | None:
    """The bilingual tokenizer that a folder holds, or None where it holds none."""
    if not (Path(folder) / TARGET).is_file():
        return None
    made: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    made.__class__, made.target = Bilingual, Tokenizer.from_file(str(Path(folder) / TARGET))
    return made  # type: ignore[no-any-return]


SPARE, SPARED = 1024, 0.1  # embeddings, and the share of them, that no token needs to have: tables are padded for speed
FEW = 0.05  # share of tokens that may differ: special tokens do, between versions of a tokenizer
ROLES = ("bos", "eos", "cls", "sep", "pad")
_OWN: WeakKeyDictionary[PreTrainedModel, dict[str, int] | None] = WeakKeyDictionary()  # vocabularies
_CHECKED: WeakKeyDictionary[PreTrainedModel, WeakSet[PreTrainedTokenizerBase]] = WeakKeyDictionary()


def vocabulary(model: PreTrainedModel) -> int:
    """How many token ids the model has embeddings for."""
    try:
        size = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except (NotImplementedError, AttributeError):  # what transformers raises of models with several tables, or none
        size = None
    if size is None:
        raise ValueError(f"{type(model).__name__} has no table of token embeddings{submodels.hint(model)}")
    return int(size)


def tokens(tokenizer: PreTrainedTokenizerBase) -> str:
    """The class of a tokenizer and the first 12 hexadecimal digits of the SHA-256 of its vocabulary."""
    pairs = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    return f"{type(tokenizer).__name__}-{hashlib.sha256(repr(pairs).encode()).hexdigest()[:12]}"


def check_fit(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, largest: int) -> None:
    """Raises ValueError if `largest`, the largest token a tokenizer gave, is none of the model's."""
    size = vocabulary(model)
    if largest >= size:
        raise ValueError(
            f"the tokenizer does not fit the model: {type(tokenizer).__name__} gives token {largest}, "
            f"{type(model).__name__} has embeddings for {size}; load both from one checkpoint"
        )


def remember(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Note that a tokenizer was loaded together with a model."""
    _OWN[model] = tokenizer.get_vocab()


def check_belongs(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Raise ValueError for a tokenizer that is not the model's.

    That is one with tokens beyond the embeddings; one of another vocabulary than that which the model was loaded with,
    or than that in the folder it is from; and, where neither is known, one with far fewer tokens than there are
    embeddings and other special tokens than the model's config says. Tokens may have been added.
    """
    if tokenizer in _CHECKED.setdefault(model, WeakSet()):
        return
    try:
        size = vocabulary(model)
    except ValueError:  # of pictures or sound
        return
    given, kind = tokenizer.get_vocab(), type(tokenizer).__name__
    added = tokenizer.get_added_vocab()
    largest = max((number for token, number in given.items() if token not in added), default=0)
    wrong = ""
    if largest >= size:
        wrong = f"{kind} has tokens up to {largest}, {type(model).__name__} has embeddings for {size}"
    elif (own := _own(model)) is not None and (other := _apart(given, own)):
        wrong = (
            f"{other} of the {min(len(given), len(own))} tokens of {kind} have other ids in the model's own tokenizer"
        )
    elif size - largest > max(SPARE, SPARED * size) and (roles := _other_roles(tokenizer, model)):
        wrong = (
            f"{kind} has {len(given)} tokens, {type(model).__name__} has embeddings for {size}, and its config has "
            f"other ids for {', '.join(roles)}"
        )
    if wrong:
        raise ValueError(f"the tokenizer does not fit the model: {wrong}; load both from one checkpoint")
    _CHECKED[model].add(tokenizer)


def _own(model: PreTrainedModel) -> dict[str, int] | None:
    """The vocabulary that the model was loaded with, or that is in the folder it is from; None without any."""
    if model not in _OWN:
        place = getattr(model.config, "name_or_path", "")
        try:
            made = transformers.AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
            words: dict[str, int] = made.get_vocab()
            _OWN[model] = words if set(words) - set(made.all_special_tokens) else None
        except Exception:  # noqa: BLE001 - besides transformers', those of safetensors and of tokenizers, which are bare
            _OWN[model] = None
    return _OWN[model]


def _apart(one: dict[str, int], other: dict[str, int]) -> int:
    """How many tokens of the smaller vocabulary have another id, or none, in the larger; 0 for a few of them."""
    small, large = sorted((one, other), key=len)
    count = sum(large.get(token) != number for token, number in small.items())
    return count if count > FEW * len(small) else 0


def _other_roles(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> list[str]:
    """The special tokens that the tokenizer and the model's config have under different ids."""
    names = [f"{role}_token_id" for role in ROLES]
    pairs = {name: (getattr(tokenizer, name, None), getattr(model.config, name, None)) for name in names}
    return [
        name.removesuffix("_id").replace("_", " ")
        for name, (own, told) in pairs.items()
        if own is not None and told is not None and own not in (told if isinstance(told, list) else [told])
    ]
