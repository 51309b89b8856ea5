"""Alignment of tokens and words: the token ids of a sentence, the word of each, and views of a batch of them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headroles.data.corpus import Chat, Sentence, Span, Tokens
from headroles.models.tokens import chat, languages

NO_WORD = -1  # the word of a token that belongs to none
MARKS = ("▁", "##", "@@", "</w>", "Ġ")  # how slow tokenizers mark word boundaries in tokens


@dataclass(frozen=True)
class TokenizedSentence:
    """One sentence as the encoder or the decoder reads it: token ids and, for each, the index of its word."""

    ids: list[int]
    words: list[int]
    sentence: Sentence
    types: list[int] | None = None  # token type ids of a sentence pair, if the model reads them
    of_text: list[bool] | None = None  # which tokens are of the texts of a chat, not of its template
    answer: int | None = None  # place of the first token of the assistant's turn in a chat; None: there is none
    read: int | None = None  # number of tokens after which the model has written the rest itself; None: it wrote none

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def in_text(self) -> list[bool]:
        """Which tokens are not of a chat template."""
        return [True] * len(self) if self.of_text is None else self.of_text

    @property
    def counted(self) -> list[bool] | None:
        """Which tokens count as queries and next tokens; None for all."""
        if self.of_text is None and self.read is None:
            return None
        return [is_in and place >= (self.read or 0) for place, is_in in enumerate(self.in_text)]


def dependencies(sentence: Sentence | None, words: Iterable[int]) -> Iterator[tuple[int, int, str]]:
    """Yield dependent, head and relation of each dependency of `sentence` between two of `words`."""
    known = {*words} - {NO_WORD}
    if sentence is not None:
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if word in known and head in known:
                yield word, head, relation


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
        """The same tokens; the first of any sort is not content. It is one view, so that what it keeps is kept."""
        first = self.attention_mask.int().argmax(-1, keepdim=True)
        return replace(self, content=self.content.scatter(1, first, value=False), kept={})

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

    def dependencies(self) -> Iterator[tuple[int, int, int, str]]:
        """Yield row, dependent, head and relation of each dependency between two words with tokens of their own."""
        for row, (sentence, words) in enumerate(zip(self.sentences, self.words.tolist(), strict=True)):
            for dependent, head, relation in dependencies(sentence, words):
                yield row, dependent, head, relation


def pieces(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Sentence], *, words: bool = True, target: bool = False
) -> list[TokenizedSentence]:
    """Return the tokens of sentences, special ones included, and the word of each, `NO_WORD` without `words`.

    Words come from the character offsets of a fast tokenizer. The tokens of a slow tokenizer are the bytes of the text,
    or they are searched for in it, where an unknown token stands for the text between its neighbours. Sentences with a
    `second` text are read as pairs; those of a `target` as the decoder's. Chats are read in the tokenizer's chat
    template.

    Raises:
        ValueError: If only some of the sentences have a second text.
    """
    if not target and (chats := [sentence for sentence in sentences if isinstance(sentence, Chat)]):
        return _of_chats(tokenizer, chats, len(sentences))
    texts = [sentence.text for sentence in sentences]
    seconds = [sentence.second for sentence in sentences]
    in_pairs = any(seconds) and not target
    if in_pairs and not all(seconds):
        lacking = seconds.count(None) + seconds.count("")
        raise ValueError(
            f"texts and pairs of texts are mixed: got {lacking} of {len(seconds)} sentences without a second text; "
            f"expected all or none; try each part alone"
        )
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


def _of_chats(tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Chat], count: int) -> list[TokenizedSentence]:
    """The tokens of chats. Those with a character of a text are of the text; words are those of the user's turn."""
    if len(sentences) < count:
        raise ValueError(f"some texts are chats: got {len(sentences)} of {count} sentences; expected all or none")
    chats = chat.rendered(tokenizer, sentences)
    encoding = tokenizer(
        [written.text for written in chats],
        add_special_tokens=False,  # the template has them
        return_offsets_mapping=tokenizer.is_fast,
        return_attention_mask=False,
        verbose=False,
    )
    rows = []
    for i, (sentence, written, ids) in enumerate(zip(sentences, chats, encoding["input_ids"], strict=True)):
        known = encoding["offset_mapping"][i] if tokenizer.is_fast else _offsets(tokenizer, written.text, ids)
        offsets = [span or (0, 0) for span in known]
        inside = [[max(span[0], start) < min(span[1], end) for start, end in written.places] for span in offsets]
        in_sentence = [
            (max(span[0] - written.shift, 0), span[1] - written.shift) if turns[0] else None
            for span, turns in zip(offsets, inside, strict=True)
        ]
        owners, answers = word_of(sentence, in_sentence), [any(turns[1:]) for turns in inside]
        answer = answers.index(True) if any(answers) else None
        rows.append(TokenizedSentence(list(ids), owners, sentence, of_text=[*map(any, inside)], answer=answer))
    return rows


def word_of(sentence: Sentence, offsets: Sequence[Span | None]) -> list[int]:
    """Return for each token the word that holds its first character that is not a space, NO_WORD for none.

    A word in which no token starts shares the token that it is in with another word (`."` of byte-level BPE). Then all
    tokens of both are of no word, as are those of words that do not spell the text (French "du" = "de" + "le").
    """
    owner = {c: i for i, span in enumerate(sentence.spans) if span for c in range(*span)}
    words = [_owner(sentence.text, span, owner) for span in offsets]
    lost = {*owner.values()} - {*words}
    if not lost:
        return words
    pairs = zip(words, offsets, strict=True)
    sharing = {word for word, span in pairs if span and any(owner.get(c) in lost for c in range(*span))}
    return [NO_WORD if word in sharing else word for word in words]


def _owner(text: str, span: Span | None, owner: dict[int, int]) -> int:
    if span is None:
        return NO_WORD
    solid = (c for c in range(*span) if not text[c : c + 1].isspace())
    return owner.get(next(solid, -1), NO_WORD)


def _offsets(tokenizer: PreTrainedTokenizerBase, text: str, ids: Sequence[int]) -> list[Span | None]:
    """Find the tokens of a slow tokenizer one after the other in the text."""
    if (in_bytes := _offsets_of_bytes(tokenizer, text, ids)) is not None:
        return in_bytes
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    bare = not any(map(_is_mark, unicodedata.normalize("NFKD", "".join(tokens))))  # the tokenizer strips accents
    folded, origin = _folded(text, bare=bare)
    places: list[Span | None] = []  # in the folded text
    unknown: list[int] = []  # the unknown tokens since the last one that was found
    at = 0
    special = {*tokenizer.all_special_tokens, *tokenizer.convert_ids_to_tokens(sorted(languages.ids(tokenizer)))}
    for token in tokens:
        piece, _ = _folded(_unmarked(token))
        places.append(None)
        if token == tokenizer.unk_token:
            unknown.append(len(places) - 1)
        elif token not in special and piece:
            start = folded.find(piece, at + len(unknown))  # an unknown token is a character or more
            between = _stretches(folded, at, start)
            if start < 0 or len(between) > len(unknown):
                raise ValueError(
                    f"{type(tokenizer).__name__} gives no character offsets, and its piece {token!r} was not found in "
                    f"{text!r} from character {[*origin, len(text)][at]} on; "
                    "expected tokens that spell the text; try scores that need no words: all but syntax"
                )
            _share(between, unknown, places)
            at, unknown = start + len(piece), []
            places[-1] = start, at
    _share(_stretches(folded, at, len(folded)), unknown, places)
    return [place and (origin[place[0]], origin[place[1] - 1] + 1) for place in places]


def _offsets_of_bytes(tokenizer: PreTrainedTokenizerBase, text: str, ids: Sequence[int]) -> list[Span | None] | None:
    """The character of each token if the tokens are the bytes of the text (ByT5, Perceiver); None if they are not."""
    special = {*tokenizer.all_special_tokens}
    tokens = [None if token in special else token for token in tokenizer.convert_ids_to_tokens(list(ids))]
    if [token for token in tokens if token is not None] != [chr(byte) for byte in text.encode(errors="surrogatepass")]:
        return None
    characters = (number for number, character in enumerate(text) for _ in character.encode(errors="surrogatepass"))
    places = [None if token is None else next(characters) for token in tokens]
    return [None if place is None else (place, place + 1) for place in places]


def _is_mark(character: str) -> bool:
    return unicodedata.category(character) == "Mn"


def _folded(text: str, *, bare: bool = False) -> tuple[str, list[int]]:
    """Normalise as tokenizers do, `bare` without accents, and return the original position of each character."""
    parts = [unicodedata.normalize("NFKD", character).casefold() for character in text]
    if bare:
        parts = ["".join(letter for letter in part if not _is_mark(letter)) for part in parts]
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
