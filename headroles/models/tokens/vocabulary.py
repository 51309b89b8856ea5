"""Vocabulary: checks that a tokenizer fits a model, the special tokens, padding, and the longest input."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary, WeakSet

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.models.parts import body, hint
from headroles.models.pruned import known_config
from headroles.models.tokens import languages

SPARE, SPARED = 1024, 0.1  # number and share of embeddings that may belong to no token: tables are padded for speed
NO_LIMIT = 10**9  # of tokens
SHORT = 2  # tokens that every model reads
FEW = 0.05  # share of tokens that may differ: special tokens do, between versions of a tokenizer


log = logging.getLogger(__name__)
# by the name of a checkpoint: when its tokenizer was written, the tokenizer, and its words as it was loaded
_known: dict[str, tuple[int, PreTrainedTokenizerBase | None, dict[str, int] | None]] = {}
_lengths: WeakKeyDictionary[PreTrainedModel, tuple[int, int]] = WeakKeyDictionary()  # that it reads, and does not
_checked: WeakKeyDictionary[PreTrainedModel, WeakSet[PreTrainedTokenizerBase]] = WeakKeyDictionary()


# Numbers of the right model with the wrong tokenizer look like any others. The tokenizer that a model was loaded with,
# or that is in its folder, shows it: of the tokens that both have, few may have other ids (versions differ in special
# tokens), and a user may have added some. That folder may have another model's tokenizer, or none, so sizes count too:
# each token needs an embedding, and nearly all embeddings have a token of the tokenizer, or of the model's own one.
def check_belongs(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Raise ValueError if a tokenizer, even with added tokens, does not belong to a text model."""
    try:
        size = vocabulary(model)
    except ValueError:  # images or sound
        return
    ids, kind, reference = tokenizer.get_vocab(), type(tokenizer).__name__, _of_checkpoint(model)[2] or {}
    added = tokenizer.get_added_vocab()
    largest = max({*ids.values()} - {*added.values()}, default=0)
    n_used = 1 + max([*ids.values(), *reference.values()], default=-1)
    wrong = ""
    if largest >= size:
        wrong = f"{kind} has tokens up to {largest}, {type(model).__name__} has embeddings for {size}"
    elif count := _n_different(ids, reference):
        common = min(len(ids), len(reference))
        wrong = f"{count} of the {common} tokens of {kind} have other ids in the model's own tokenizer"
    elif size - n_used > max(SPARE, SPARED * size):
        wrong = f"{kind} has {len(ids)} tokens, {type(model).__name__} has embeddings for {size}"
    if wrong:
        raise ValueError(f"the tokenizer does not fit the model: {wrong}; load both from one checkpoint")


def checkpoint_tokenizer(model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer that a model was loaded with, or that of its folder."""
    return _of_checkpoint(model)[1]


def _of_checkpoint(model: PreTrainedModel) -> tuple[int, PreTrainedTokenizerBase | None, dict[str, int] | None]:
    """Return when that tokenizer was written, the tokenizer, and its vocabulary as loaded."""
    name, written = _written(model)
    if name not in _known or (Path(name).is_dir() and _known[name][0] != written):
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                name, local_files_only=True, trust_remote_code=False, **known_config(model)
            )
            remember(tokenizer, model)
        except Exception:  # noqa: BLE001 - besides transformers', those of safetensors and of tokenizers, which are bare
            _known[name] = written, None, None
    return _known.get(name, (written, None, None))


def _written(model: PreTrainedModel) -> tuple[str, int]:
    """Return the name of a model's checkpoint, and when the tokenizer in that folder was written; 0 without one."""
    name = str(getattr(model.config, "name_or_path", "") or "")
    times = [path.stat().st_mtime_ns for path in Path(name).glob("*token*")] if Path(name).is_dir() and name else []
    return name, max(times, default=0)


def _n_different(ids: dict[str, int], reference: dict[str, int]) -> int:
    """Count the tokens of the smaller vocabulary with another id, or none, in the larger; 0 if there are few."""
    small, large = sorted((ids, reference), key=len)
    count = 0 if small == large else sum(large.get(token) != number for token, number in small.items())
    return count if count > FEW * len(small) else 0


def remember(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Note that a tokenizer was loaded together with a model."""
    (name, written), words = _written(model), tokenizer.get_vocab()
    if name:
        has_words = bool(set(words) - set(tokenizer.all_special_tokens))
        _known[name] = (written, tokenizer, words) if has_words else (written, None, None)


# Whether a model was trained with a beginning token is in no config: GPT-2, SmolLM2 and Gemma name one, and only Gemma
# was. What can be known is how the tokenizer of the checkpoint begins a text, whether its chat template begins with the
# token (unless its files choose by `add_bos_token`), and which token the config names. Without any of these there is no
# warning.
def check_beginning(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> None:
    """Warn once if texts of a causal model, given as token ids, begin differently from its training texts."""
    if model.config.is_encoder_decoder or not model.can_generate() or not texts:
        return
    if tokenizer in _checked.setdefault(model, WeakSet()):
        return
    name, begins = type(tokenizer).__name__, _begins(tokenizer)
    config = getattr(model.config.get_text_config(), "bos_token_id", None)
    expected, source = _expected(tokenizer, model)
    if expected and all(text[0] == tokenizer.bos_token_id for text in texts if text):  # also if it is in the texts
        return
    _checked[model].add(tokenizer)
    if expected is not None and expected != begins:
        given, wanted = ("begins", "without") if begins else ("does not begin", "with")
        log.warning(
            "%s %s a text with its token %s, and %s was trained %s it: %s; attention to the first token, and the loss, "
            "will differ from those in training; load the tokenizer of its checkpoint, or set add_bos_token=%s",
            *(name, given, tokenizer.bos_token, type(model).__name__, wanted, source, expected),
        )
    elif begins and config not in (None, tokenizer.bos_token_id, [tokenizer.bos_token_id]):
        log.warning(
            "%s begins a text with token %s (%s), and the config of %s names token %s; load both from one checkpoint",
            *(name, tokenizer.bos_token_id, tokenizer.bos_token, type(model).__name__, config),
        )


def _begins(tokenizer: PreTrainedTokenizerBase) -> bool:
    bos = tokenizer.bos_token_id
    return bos is not None and list(tokenizer("a")["input_ids"])[:1] == [bos]


def _expected(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> tuple[bool | None, str]:
    """Return whether texts should begin with that token, and how this is known; None if unknown."""
    known = checkpoint_tokenizer(model)
    if known is not None and known is not tokenizer:
        return _begins(known), "the tokenizer of its checkpoint does so"
    chosen = tokenizer.init_kwargs.get("add_bos_token") is not None  # which transformers then follows
    if not chosen and "bos_token" in str(tokenizer.chat_template or ""):
        return True, "its chat template begins with it"
    return None, ""


def check_fit(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, largest: int) -> None:
    """Raise ValueError if the model has no embedding for the largest token id."""
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
    """Return the ids of special tokens, padding, start and language codes included.

    A model may pad or start with the token of unknown words. That token counts as a word; the attention mask marks
    padding.
    """
    ends: set[int | None] = {getattr(tokenizer, f"{role}_token_id", None) for role in ("bos", "eos", "cls", "sep")}
    ends |= {getattr(model.config, "decoder_start_token_id", None)} - {tokenizer.unk_token_id}
    ids = ({*tokenizer.all_special_ids} | languages.ids(tokenizer)) - {tokenizer.unk_token_id} | ends
    return frozenset(number for number in ids if number is not None)


def positions(
    tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, *, target: bool = False, longest: int = 0
) -> int:
    """Return the number of positions for a source or target, 10^9 without a limit.

    Where the config of a model without an encoder names no limit, the model shows whether it reads `longest` tokens.
    """
    reader = _reader(model, target)
    config, side = reader.config.get_text_config(), "decoder" if target else "encoder"
    names = ("max_position_embeddings", f"max_{side}_position_embeddings", "max_target_positions" if target else "")
    limit: int = min([NO_LIMIT, *filter(None, (getattr(config, name, None) for name in names))])
    offset = getattr(reader.base_model, "embeddings", None)
    padding = getattr(getattr(offset, "position_embeddings", None), "padding_idx", None)
    if padding is not None:  # RoBERTa counts positions from padding_idx + 1
        limit -= padding + 1
    if limit == NO_LIMIT and not model.config.is_encoder_decoder:
        limit = _readable(model, min(tokenizer.model_max_length, longest))
    return int(min(tokenizer.model_max_length, limit))


# Configs name the limit in many ways (`max_seq_len` of MPT), and several
# models have none, so that it is what the model reads. Most models read the longest text at the first try.
def _readable(model: PreTrainedModel, longest: int) -> int:
    """Return how many tokens a model reads if those are fewer than `longest`, by small forwards; 10^9 otherwise."""
    low, high = _lengths.get(model, (SHORT, NO_LIMIT))
    if low < longest < high and not _reads(model, longest) and (low > SHORT or _reads(model, low)):
        high = longest
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _reads(model, middle) else (low, middle)
    low = max(low, longest) if high == NO_LIMIT else low
    _lengths[model] = low, high
    return high if high == NO_LIMIT else high - 1


def _reads(model: PreTrainedModel, length: int) -> bool:
    """Whether a forward of so many tokens ends well."""
    ids = torch.zeros(1, length, dtype=torch.long, device=model.device)
    try:
        with torch.no_grad():
            body(model)(input_ids=ids)  # logits of a long text would take the most memory
    except torch.OutOfMemoryError:
        return True
    except (IndexError, RuntimeError, ValueError):
        return False
    return True


def _reader(model: PreTrainedModel, target: bool) -> PreTrainedModel:
    """The part that reads a source, or a target: an encoder-decoder may consist of two models."""
    if not model.config.is_encoder_decoder:
        return model
    part = model.get_decoder() if target else model.get_encoder()
    return part if isinstance(part, PreTrainedModel) else model


def padding(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """Return the id that pads a batch: of the model, else of the tokenizer, else EOS.

    A decoder's classifier reads the last token that has another id than that of its config, whatever the mask.
    """
    candidates = (model_padding(model), tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return int(next(i for i in candidates if i is not None))


def model_padding(model: PreTrainedModel) -> int | None:
    """Return the id by which a model recognises padding; None without an embedding."""
    config = model.config if model.config.is_encoder_decoder else model.config.get_text_config()
    number = getattr(config, "pad_token_id", None)
    return number if number is not None and 0 <= number < vocabulary(model) else None
