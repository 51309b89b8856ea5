"""Chats: a tokenizer's chat template, written around a user's text and the assistant's answer.

The template is applied as transformers applies it, to the texts of each example. Where the texts stand in the result is
known from the template with marks in their place, so that every other token is known too, also those of a system
prompt that the template adds. Without an answer the result ends where the assistant would begin to write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from headroles.data.corpus import Chat, Corpus, Span

MARKS = ("\ue000", "\ue001")  # private characters, in the place of the user's text and of the answer
ROLES = ("user", "assistant")


class Rendered(NamedTuple):
    """A chat as the model reads it: the whole text, and where the user's text and the answer stand in it."""

    text: str
    places: list[Span]
    shift: int  # from characters of the sentence to those of the whole text


def check_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError for a tokenizer without a chat template.

    Raises:
        ValueError: There is none.
    """
    if not tokenizer.chat_template:
        raise ValueError(
            f"{type(tokenizer).__name__} has no chat template: got a corpus that was read with chat=True (--chat); "
            f"expected the tokenizer of a model that was trained on chats; try without it"
        )


def named(tokenizer: PreTrainedTokenizerBase | None, corpus: Corpus | None) -> dict[str, str]:
    """Return the digest of what the template writes, for provenance and cache keys; nothing without chats.

    The template's text is a part of the identity of the tokenizer. What it writes may depend on the day.
    """
    if tokenizer is None or corpus is None or not corpus.chat:
        return {}
    check_template(tokenizer)
    return {"chat": hashlib.sha256(_written(tokenizer, MARKS).encode()).hexdigest()[:12]}


def rendered(tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Chat]) -> list[Rendered]:
    """Return chats in the tokenizer's template; ValueError without one, or if it changes or repeats a text."""
    check_template(tokenizer)
    between = {count: _between(tokenizer, MARKS[:count]) for count in (1, 2)}
    chats = [[text for text in (sentence.text, sentence.answer) if text is not None] for sentence in sentences]
    return [_placed(tokenizer, texts, between[len(texts)]) for texts in chats]


def _written(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> str:
    messages = [{"role": role, "content": text} for role, text in zip(ROLES, texts, strict=False)]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=len(texts) == 1))


def _between(tokenizer: PreTrainedTokenizerBase, marks: Sequence[str]) -> list[str]:
    """What the template writes before, between and after texts."""
    rest, parts = _written(tokenizer, marks), []
    for mark in marks:
        before, _, rest = rest.partition(mark)
        parts.append(before)
    return [*parts, rest]


def _placed(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], between: Sequence[str]) -> Rendered:
    """The chat of some texts; templates may strip white space around them."""
    whole, places = _written(tokenizer, texts), list[Span]()
    at = 0
    for text, before in zip(texts, between, strict=False):
        start = at + len(before)
        at = start + len(text if whole.startswith(text, start) else text.strip())
        places.append((start, at))
    expected = "".join(part for i, (start, end) in enumerate(places) for part in (between[i], whole[start:end]))
    kept = all(whole[start:end] in (text, text.strip()) for text, (start, end) in zip(texts, places, strict=True))
    if not kept or whole != expected + between[-1]:
        raise ValueError(
            f"the chat template of {type(tokenizer).__name__} changes its texts: got {whole!r} for {texts[0]!r}; "
            f"expected each text once, as it is; try without chat=True (--chat), and write the template into the texts"
        )
    first, (start, end) = texts[0], places[0]
    stripped = 0 if whole[start:end] == first else len(first) - len(first.lstrip())
    return Rendered(whole, places, start - stripped)
