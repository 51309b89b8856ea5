"""Alignment of tokens and words: token ids of texts and chats, and the word of each token."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from headroles.data.corpus import Corpus
from headroles.data.sentences import ASSISTANT, Chat, Prompt, Sentence, Span, Tagged, Tokens, Turn
from headroles.models.tokens import languages

NO_WORD = -1  # the word of a token that belongs to none
BOUNDARY = re.compile("▁|##|@@|</w>|Ġ")  # how slow tokenizers mark boundaries of words in tokens
MARK = 0xE000  # the first of the private characters, which stand in the place of the texts of turns


@dataclass(frozen=True)
class TokenizedSentence:
    """Token ids of a sentence as the model reads it, and the index of each token's word."""

    ids: list[int]
    words: list[int]
    sentence: Sentence
    types: list[int] | None = None  # token type ids of a sentence pair, if the model reads them
    of_text: list[bool] | None = None  # which tokens belong to the texts of a chat, not to its template
    of_answer: list[bool] | None = None  # which tokens belong to the answer; None: there is no answer
    prompt_length: int | None = None  # number of tokens before what the model has written, or of a prompt without loss
    prompt: list[int] | None = None  # ids after which the decoder writes the transcript of this sound

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def in_text(self) -> list[bool]:
        """Which tokens do not belong to a chat template."""
        return [True] * len(self) if self.of_text is None else self.of_text

    @property
    def counted(self) -> list[bool] | None:
        """Which tokens count as queries; None for all."""
        if self.of_text is None and self.prompt_length is None:
            return None
        return [is_in and place >= (self.prompt_length or 0) for place, is_in in enumerate(self.in_text)]

    @property
    def learned(self) -> list[bool] | None:
        """Which tokens count as next tokens, in the loss and in training: the answer alone, if there is one."""
        is_wanted = self.of_answer is not None and getattr(self.sentence, "answer_only", True)
        return self.of_answer if is_wanted else self.counted


def dependencies(sentence: Sentence | None, words: Iterable[int]) -> Iterator[tuple[int, int, str]]:
    """Yield dependent, head and relation of each dependency between two of `words`."""
    known = {*words} - {NO_WORD}
    if sentence is not None:
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if word in known and head in known:
                yield word, head, relation


def pieces(
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[Sentence],
    *,
    words: bool = True,
    target: bool = False,
    answers: bool = True,
) -> list[TokenizedSentence]:
    """Return the tokens of sentences, special ones included, and the word of each.

    A token of no word has `NO_WORD`, without `words` all but those of labelled words. Words come from the character
    offsets of a fast tokenizer. The tokens of a slow tokenizer are the bytes of the text, or they are searched for in
    it, where an unknown token stands for the text between its neighbours. Sentences with a `second` text are read as
    pairs; those of a `target` as the decoder's. Chats are read in the tokenizer's chat template, prompts with their
    `answers` as one text. Special tokens that a text already has at its beginning or end are not added.

    Raises:
        ValueError: If only some of the sentences are chats, or have an answer or a second text.
    """
    chats = [sentence for sentence in sentences if isinstance(sentence, Chat) and not target]
    prompts = [sentence for sentence in sentences if isinstance(sentence, Prompt) and answers and not target]
    for what, some in (("are chats", chats), ("have answers", prompts)):
        if some and len(some) < len(sentences):
            raise ValueError(f"some texts {what}: got {len(some)} of {len(sentences)} sentences; expected all or none")
    if chats or prompts:
        return _of_turns(tokenizer, chats or prompts, in_template=bool(chats))
    texts = [sentence.text for sentence in sentences]
    seconds = [sentence.second for sentence in sentences]
    in_pairs = any(seconds) and not target
    if in_pairs and not all(seconds):
        lacking = seconds.count(None) + seconds.count("")
        raise ValueError(
            f"texts and pairs of texts are mixed: got {lacking} of {len(seconds)} sentences without a second text; "
            f"expected all or none; try each part alone"
        )
    words = any(sentence.spans and (words or isinstance(sentence, Tagged)) for sentence in sentences)
    read: dict[str, Any] = {"text_target" if target else "text": texts} | ({"text_pair": seconds} if in_pairs else {})
    rows = []
    for sentence, (ids, offsets, types) in zip(sentences, _encoded(tokenizer, read, offsets=words), strict=True):
        if isinstance(sentence, Tokens):
            rows.append(TokenizedSentence(list(sentence.ids), [NO_WORD] * len(sentence.ids), sentence))
            continue
        owners = [NO_WORD] * len(ids)
        if offsets is not None:
            owners = word_of(sentence, offsets)
        elif words:
            text = f"{sentence.text} {sentence.second}" if in_pairs else sentence.text
            owners = word_of(sentence, _offsets(tokenizer, text, ids))
        rows.append(TokenizedSentence(ids, owners, sentence, types if in_pairs else None))
    return rows


def _encoded(
    tokenizer: PreTrainedTokenizerBase, texts: Mapping[str, Any], *, offsets: bool, special: bool = True
) -> Iterator[tuple[list[int], list[Span | None] | None, list[int] | None]]:
    """Yield of each text the token ids, the characters of tokens of the first text, and the token type ids.

    Only a fast tokenizer knows the characters.
    """
    in_pairs, with_offsets = "text_pair" in texts, offsets and tokenizer.is_fast
    encoding = tokenizer(
        **texts,
        add_special_tokens=special,
        return_offsets_mapping=with_offsets,
        return_attention_mask=False,
        verbose=False,
    )
    before, after = _added(tokenizer, next(iter(texts))) if special else (0, 0)
    for i, ids in enumerate(encoding["input_ids"]):
        kept = _without_doubles(ids, before, after, in_pairs=in_pairs)
        types = encoding["token_type_ids"][i][kept] if "token_type_ids" in encoding else None
        spans = None
        if with_offsets:
            tokens = zip(encoding.sequence_ids(i)[kept], encoding["offset_mapping"][i][kept], strict=True)
            spans = [span if number == 0 else None for number, span in tokens]
        yield list(ids[kept]), spans, types


def _added(tokenizer: PreTrainedTokenizerBase, side: str) -> tuple[int, int]:
    """Count the special tokens, but codes of languages, that a tokenizer adds before a text and after it."""
    ids, bare = (list(tokenizer(**{side: "a"}, add_special_tokens=add)["input_ids"]) for add in (True, False))
    start = next((place for place in range(len(ids)) if bare and ids[place : place + len(bare)] == bare), None)
    if start is None or not languages.ids(tokenizer).isdisjoint(ids[:start]):
        return 0, 0
    return start, len(ids) - start - len(bare)


def _without_doubles(ids: Sequence[int], before: int, after: int, *, in_pairs: bool) -> slice:
    """Return the slice of a text's tokens without doubled special tokens, which were added `before` and `after` it.

    A text that already has the beginning, as a chat template writes it, is complete: no end is added either.
    """  # noqa: DOC201
    stop = len(ids) - after
    begins = 0 < before <= stop - before and ids[:before] == ids[before : 2 * before]
    ends = 0 < after <= stop - before and ids[stop:] == ids[stop - after : stop]
    return slice(before if begins else 0, stop if ends or (begins and not in_pairs) else len(ids))


def _of_turns(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Prompt], *, in_template: bool
) -> list[TokenizedSentence]:
    """Return the tokens of texts with answers; a token with a character of a turn belongs to it."""
    texts = rendered(tokenizer, sentences) if in_template else [*map(_joined, sentences)]  # type: ignore[arg-type]
    whole, rows = [written.text for written in texts], []
    encoded = _encoded(tokenizer, {"text": whole}, offsets=True, special=not in_template)  # the template has them
    for sentence, written, (ids, known, _) in zip(sentences, texts, encoded, strict=True):
        offsets = [span or (0, 0) for span in known or _offsets(tokenizer, written.text, ids)]
        inside = [[max(span[0], start) < min(span[1], end) for start, end in written.places] for span in offsets]
        in_sentence = [
            (max(span[0] - written.shift, 0), span[1] - written.shift) if turns[written.turn] else None
            for span, turns in zip(offsets, inside, strict=True)
        ]
        owners, answers = word_of(sentence, in_sentence), [any(turns[written.turn + 1 :]) for turns in inside]
        of_text = [*map(any, inside)] if in_template else None
        rows.append(TokenizedSentence(ids, owners, sentence, None, of_text, answers if sentence.answer else None))
    return rows


class Rendered(NamedTuple):
    """A chat, or a prompt with its answer, as the model reads it, and the places of its turns."""

    text: str
    places: list[Span]
    turn: int  # which of them is the sentence's own; after it comes the answer, if any
    shift: int  # from characters of the sentence to characters of the whole text


def _joined(sentence: Prompt) -> Rendered:
    """Return a prompt and its answer, which begins with a space unless there is white space between them."""
    text, answer = sentence.text, sentence.answer or ""
    if answer and not (text[-1:].isspace() or answer[0].isspace()):
        answer = f" {answer}"
    return Rendered(text + answer, [(0, len(text)), (len(text), len(text + answer))], 0, 0)


def check_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError for a tokenizer without a chat template."""
    if not tokenizer.chat_template:
        raise ValueError(
            f"{type(tokenizer).__name__} has no chat template: got a corpus that was read with chat=True (--chat), or "
            f"messages; expected the tokenizer of a model that was trained on chats; try texts that are no chats"
        )


def chat_digest(tokenizer: PreTrainedTokenizerBase | None, corpus: Corpus | None) -> dict[str, str]:
    """Return the field of provenance for the text that the template writes around chats.

    The template's text is a part of the identity of the tokenizer. What it writes may depend on the day.
    """
    if tokenizer is None or corpus is None or not corpus.chat:
        return {}
    check_template(tokenizer)
    turns = [(role, chr(MARK + i)) for i, role in enumerate(("user", ASSISTANT))]
    return {"chat": hashlib.sha256(_written(tokenizer, turns).encode()).hexdigest()[:12]}


# A chat template writes more than the texts: turns, a system prompt, the date. It is applied as transformers applies
# it, to the texts of each example. What it writes before, between and after them is known from the template with marks
# in place of the texts, so that every token outside the texts is known to be of the template. Without an answer the
# result ends where the assistant would begin to write.
def rendered(tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Chat]) -> list[Rendered]:
    """Return chats in the tokenizer's template; ValueError if it changes a text."""
    check_template(tokenizer)
    between: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    chats = []
    for sentence in sentences:
        key = sentence.answer is not None, tuple(role for role, _ in sentence.turns)
        if key not in between:
            between[key] = _between(tokenizer, *key)
        chats.append(_placed(tokenizer, sentence, between[key]))
    return chats


def _written(tokenizer: PreTrainedTokenizerBase, turns: Iterable[Turn], *, is_answered: bool = True) -> str:
    messages = [{"role": role, "content": text} for role, text in turns]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=not is_answered))


def _between(tokenizer: PreTrainedTokenizerBase, is_answered: bool, roles: Sequence[str]) -> list[str]:
    """Return the text that the template writes before, between and after the texts of turns with these roles."""
    marks, parts = [chr(MARK + i) for i in range(len(roles))], list[str]()
    rest = _written(tokenizer, zip(roles, marks, strict=True), is_answered=is_answered)
    for mark in marks:
        before, _, rest = rest.partition(mark)
        parts.append(before)
    return [*parts, rest]


def _placed(tokenizer: PreTrainedTokenizerBase, sentence: Chat, between: Sequence[str]) -> Rendered:
    """Return a chat and the places of its turns; templates may strip white space around them."""
    texts, places = [text for _, text in sentence.turns], list[Span]()
    chat = _written(tokenizer, sentence.turns, is_answered=sentence.answer is not None)
    at = 0
    for text, before, after in zip(texts, between, between[1:], strict=False):
        start = at + len(before)
        at = start + len(text if chat.startswith(text + after, start) else text.strip())
        places.append((start, at))
    expected = "".join(part for i, (start, end) in enumerate(places) for part in (between[i], chat[start:end]))
    kept = all(chat[start:end] in (text, text.strip()) for text, (start, end) in zip(texts, places, strict=True))
    if not kept or chat != expected + between[-1]:
        raise ValueError(
            f"the chat template of {type(tokenizer).__name__} changes its texts: got {chat!r} for {texts[0]!r}; "
            f"expected each text once, as it is; try without chat=True (--chat), and write the template into the texts"
        )
    turn = len(sentence.before)
    start, end = places[turn]
    stripped = 0 if chat[start:end] == sentence.text else len(sentence.text) - len(sentence.text.lstrip())
    return Rendered(chat, places, turn, start - stripped)


def word_of(sentence: Sentence, offsets: Sequence[Span | None]) -> list[int]:
    """Return for each token the word of its first character that is not a space.

    A token of no word has `NO_WORD`. A word in which no token starts shares the token that it is in with another word
    (`."` of byte-level BPE). Then no token of both has a word, nor a token of words that do not spell the text
    (French "du" = "de" + "le").
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


# A slow tokenizer gives no character offsets. Tokens and text are folded alike (case, compatibility forms, accents),
# and each token is searched for from the end of the last one. An unknown token stands for one stretch without white
# space between its neighbours. Where more stretches are left than unknown tokens, or a token is not found, the tokens
# do not spell the text, and its words are unknown.
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
        piece, _ = _folded(BOUNDARY.sub("", token))
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
    """Return the character of each token if the tokens are the bytes of the text (ByT5, Perceiver); otherwise None."""
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


def _stretches(text: str, start: int, end: int) -> list[Span]:
    """Return the spans between white space in a part of the text."""
    return [match.span() for match in re.compile(r"\S+").finditer(text, start, end)]


def _share(stretches: list[Span], unknown: list[int], places: list[Span | None]) -> None:
    """Assign each unknown token its stretch of the text; surplus tokens share the last stretch."""
    for number, piece in enumerate(unknown if stretches else ()):
        places[piece] = stretches[min(number, len(stretches) - 1)]
