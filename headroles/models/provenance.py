"""Provenance: which model, weights, tokenizer, corpus and version of headroles a table was made from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headroles.models.identity import identity as configuration
from headroles.models.identity import is_offloaded, sample_ids, tokens, weights, without_gradients
from headroles.models.identity import model_name as name
from headroles.models.identity import weights_digest as revision

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headroles.data.corpus import Corpus
    from headroles.data.streaming import StreamingCorpus

__all__ = [
    "cache_key",
    "configuration",
    "fixed_weights",
    "is_offloaded",
    "name",
    "provenance_of",
    "revision",
    "sample_ids",
    "tokens",
    "weights",
    "without_gradients",
]


def provenance_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    corpus: Corpus | StreamingCorpus | None = None,
    /,
    **fields: object,
) -> str:
    """Return `HeadModel.provenance`."""
    from headroles.models.head_model import HeadModel

    return HeadModel(model, tokenizer).provenance(corpus, tokenizer=tokenizer is not None, **fields)


def cache_key(model: PreTrainedModel, /, **fields: object) -> str:
    """Return `HeadModel.cache_key`."""
    from headroles.models.head_model import HeadModel

    return HeadModel(model).cache_key(**fields)


@contextmanager
def fixed_weights() -> Iterator[None]:
    """Do nothing: goes when all packages pass the handle."""
    yield
