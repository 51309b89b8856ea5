"""Words and pieces: the token ids of a sentence and, for each token, the word it belongs to."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from headroles.text import Sentence, Span, Tokens

NO_WORD = -1  # the word of a token that belongs to none
MARKS = ("▁", "##", "@@", "</w>", "Ġ")  # how slow tokenizers write word boundaries into pieces


@dataclass(frozen=True)
class Pieces:
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
) -> list[Pieces]:
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
            found.append(Pieces(list(sentence.ids), [NO_WORD] * len(sentence.ids), sentence))
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
        found.append(Pieces(list(ids), owners, sentence, types))
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
