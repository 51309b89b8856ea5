"""The tokens of a corpus, made once for all that read it: those of 200,000 pairs take half a minute of one core."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import batches, models
from headroles.batches import Encoded
from headroles.text import Corpus

_KEPT: WeakKeyDictionary[Corpus, tuple[Any, Encoded]] = WeakKeyDictionary()  # for as long as the corpus lives


def tokenised(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Encoded:
    """`batches.encode` without words, kept for the next time the same corpus is asked for with such a tokenizer."""
    sample = "A b."
    ids = [tokenizer(sample)["input_ids"], tokenizer(text_target=sample)["input_ids"]]
    limits = (models.positions(tokenizer, model), models.vocabulary(model), model.config.is_encoder_decoder)
    ends = (models.special(tokenizer, model), models.padding(tokenizer, model))
    told = (models.tokens(tokenizer), ids, limits, ends)
    if corpus not in _KEPT or _KEPT[corpus][0] != told:
        _KEPT[corpus] = told, batches.encode(corpus, tokenizer, model, words=False)
    return _KEPT[corpus][1]
