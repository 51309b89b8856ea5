"""The token that begins a text: whether a tokenizer gives it as the model was trained.

Whether a model was trained with a beginning token is in no config: GPT-2, SmolLM2 and Gemma name one, and only Gemma
was. What can be known is how the tokenizer of the checkpoint begins a text, whether its chat template begins with the
token (unless its files choose by `add_bos_token`), and which token the config names. Without any of these there is no
warning.
"""

from __future__ import annotations

import logging
from weakref import WeakKeyDictionary, WeakSet

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.models.tokens.vocabulary import own_tokenizer

log = logging.getLogger(__name__)
_checked: WeakKeyDictionary[PreTrainedModel, WeakSet[PreTrainedTokenizerBase]] = WeakKeyDictionary()


def check_beginning(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Warn once if texts of a causal model begin otherwise than those it was trained on."""
    if model.config.is_encoder_decoder or not model.can_generate() or tokenizer in _checked.get(model, ()):
        return
    _checked.setdefault(model, WeakSet()).add(tokenizer)
    name, begins = type(tokenizer).__name__, _begins(tokenizer)
    config = getattr(model.config.get_text_config(), "bos_token_id", None)
    expected, source = _expected(tokenizer, model)
    if expected is not None and expected != begins:
        given, wanted = ("begins", "without") if begins else ("does not begin", "with")
        log.warning(
            "%s %s a text with its token %s, and %s was trained %s it: %s; attention to the first token, and the loss, "
            "are those of texts it does not know; load the tokenizer of its checkpoint, or set add_bos_token=%s",
            *(name, given, tokenizer.bos_token, type(model).__name__, wanted, source, expected),
        )
    elif begins and config not in (None, tokenizer.bos_token_id, [tokenizer.bos_token_id]):
        log.warning(
            "%s begins a text with token %s (%s), and the config of %s names token %s; load both from one checkpoint",
            *(name, tokenizer.bos_token_id, tokenizer.bos_token, type(model).__name__, config),
        )


def _begins(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a text begins with the beginning token."""
    bos = tokenizer.bos_token_id
    return bos is not None and list(tokenizer("a")["input_ids"])[:1] == [bos]


def _expected(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> tuple[bool | None, str]:
    """Whether texts should begin with that token, and how it is known; None where it is not."""
    known = own_tokenizer(model)
    if known is not None and known is not tokenizer:
        return _begins(known), "the tokenizer of its checkpoint does so"
    chosen = tokenizer.init_kwargs.get("add_bos_token") is not None  # which transformers then follows
    if not chosen and "bos_token" in str(tokenizer.chat_template or ""):
        return True, "its chat template begins with it"
    return None, ""
