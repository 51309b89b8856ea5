"""Languages: source and target language of a multilingual translator's tokenizer, and how its output begins.

The tokenizers of NLLB, M2M100, mBART, PLBart and others put a language code into each text. Without a target language
they silently use the source language, so that the decoder would read and write the wrong language.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeGuard

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

SHOWN = 3  # codes in messages
ADVICE = "hr.load(name, source_lang=..., target_lang=...) (--source-lang, --target-lang)"

log = logging.getLogger(__name__)


def is_multilingual(tokenizer: PreTrainedTokenizerBase | None) -> TypeGuard[PreTrainedTokenizerBase]:
    """Return whether a tokenizer writes the code of a chosen language into texts."""
    return hasattr(tokenizer, "set_tgt_lang_special_tokens")


def assign(tokenizer: PreTrainedTokenizerBase, source: str | None, target: str | None) -> None:
    """Set the languages of a tokenizer, None for no change; ValueError for one that it lacks, or without a source."""
    if hasattr(tokenizer, "set_prefix_tokens") and source is None and target is not None:  # Whisper's
        tokenizer.set_prefix_tokens(language=target, predict_timestamps=False)
        tokenizer.init_kwargs["language"] = target
        return
    given = {name: code for name, code in (("src_lang", source), ("tgt_lang", target)) if code is not None}
    for code in given.values():
        _check_known(tokenizer, code)
    known = {**tokenizer.init_kwargs, **given}
    if target is not None and known.get("src_lang") is None:
        raise ValueError(
            f"{type(tokenizer).__name__} has no source language: got target_lang={target!r} alone; expected both; try "
            f"{ADVICE}"
        )
    for name, code in given.items():
        setattr(tokenizer, name, code)
        tokenizer.init_kwargs[name] = code  # as if it was loaded with it, and saved with the tokenizer


def check(tokenizer: PreTrainedTokenizerBase, model: str, sources: Sequence[str]) -> None:
    """Raise ValueError for a multilingual tokenizer without a target language.

    Warn about a target language equal to the source language, and about sources without the code that Marian needs.

    Raises:
        ValueError: There is no target language.
    """
    if is_unset(tokenizer):
        raise ValueError(
            f"{model} has no target language, so that its decoder would read {_source(tokenizer)!r}: got "
            f"{type(tokenizer).__name__} with tgt_lang=None; expected one of its codes, such as "
            f"{', '.join(_codes(tokenizer)[:SHOWN])}; try {ADVICE}"
        )
    if is_multilingual(tokenizer) and tokenizer.tgt_lang == _source(tokenizer):
        log.warning("%s translates from %s to the same language; else try %s", model, _source(tokenizer), ADVICE)
    marks: list[str] = getattr(tokenizer, "supported_language_codes", None) or []
    if len(marks) > 1 and not any(text.lstrip().startswith(tuple(marks)) for text in sources):
        log.warning(
            "%s translates to %d languages, but no source begins with the code of one, such as %s, so it may write "
            "any of them; write the code before each source",
            *(model, len(marks), marks[0]),
        )


def is_unset(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the target language of a multilingual tokenizer was never set.

    Most of these tokenizers set it to that of the source at the first target that they read.
    """
    if not is_multilingual(tokenizer):
        return False
    target = getattr(tokenizer, "tgt_lang", None)
    return target is None or (target == _source(tokenizer) and tokenizer.init_kwargs.get("tgt_lang") is None)


def named(tokenizer: PreTrainedTokenizerBase | None) -> dict[str, str]:
    """Return the languages of a multilingual tokenizer for provenance."""
    if not is_multilingual(tokenizer):
        language = getattr(tokenizer, "language", None)  # of Whisper's
        return {"target_lang": str(language)} if language else {}
    target = {} if is_unset(tokenizer) else {"target_lang": str(tokenizer.tgt_lang)}
    return {"source_lang": _source(tokenizer), **target}


def ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids of language codes, which may not be among the special tokens."""
    return {*getattr(tokenizer, "lang_code_to_id", {}).values()} if is_multilingual(tokenizer) else set()


def beginning(tokenizer: PreTrainedTokenizerBase, shift: Callable[[Tensor], Tensor]) -> dict[str, int]:
    """Return the options of `generate` that make output begin as references do.

    `shift` makes decoder inputs of labels. The code of the language is the decoder's first token in mBART, and the one
    after its start token in the others.
    """
    if not is_multilingual(tokenizer):
        return {}
    labels = tokenizer(text_target="")["input_ids"]
    ends = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    language = [number for number in labels if number not in ends][-1:]
    if not language:  # PLBart may be without one
        return {}
    start = int(shift(torch.tensor([labels]))[0, 0])
    name = "decoder_start_token_id" if start == language[0] else "forced_bos_token_id"
    return {name: language[0]}


def decoded(tokenizer: PreTrainedTokenizerBase, written: Tensor) -> list[str]:
    """Return the texts of written tokens, [example, token], without language codes."""
    codes = torch.tensor(sorted(ids(tokenizer)), dtype=written.dtype, device=written.device)
    if len(codes):
        written = written.masked_fill(torch.isin(written, codes), int(tokenizer.eos_token_id))
    return list(tokenizer.batch_decode(written, skip_special_tokens=True))


def _check_known(tokenizer: PreTrainedTokenizerBase, code: str) -> None:
    if not is_multilingual(tokenizer):
        raise ValueError(
            f"{type(tokenizer).__name__} has no languages to choose: got {code!r}; expected none; try without "
            f"source_lang and target_lang"
        )
    if code not in (codes := _codes(tokenizer)):
        raise ValueError(
            f"{type(tokenizer).__name__} has no language {code!r}; expected one of its {len(codes)} codes, such as "
            f"{', '.join(codes[:SHOWN])}"
        )


def _codes(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the codes of the languages of a tokenizer, as users write them."""
    known = getattr(tokenizer, "lang_code_to_id", None) or tokenizer.extra_special_tokens
    return [str(code).strip("_") if str(code).startswith("__") else str(code) for code in known]


def _source(tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.src_lang)
