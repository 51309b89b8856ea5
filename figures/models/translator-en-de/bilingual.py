"""Bilingual: a fast tokenizer with one vocabulary for sources and another for targets."""

from __future__ import annotations

from copy import deepcopy
from os import PathLike
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

import headroles as hr

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


def load(folder: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer, a bilingual one if the folder holds two vocabularies."""
    model, tokenizer = hr.load(folder)
    if (Path(folder) / TARGET).is_file():
        tokenizer.__class__, tokenizer.target = Bilingual, Tokenizer.from_file(str(Path(folder) / TARGET))
    return model, tokenizer
