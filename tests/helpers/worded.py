"""Tokenizers of whole words between spaces."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def of_words(words: Iterable[str], unknown: str = "<unk>", **special: str | None) -> PreTrainedTokenizerFast:
    """A tokenizer of these words, numbered in their order; `unknown` is one of them."""
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=unknown))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token=unknown, **special)


def ordered(words: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of ordered words, after the unknown one and "to"."""
    return of_words(["<unk>", "to", *words])
