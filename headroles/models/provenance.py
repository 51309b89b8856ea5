"""Provenance: which model, weights, tokenizer, corpus and version of headroles a table was made from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.data.corpus import Corpus
from headroles.data.streaming import StreamingCorpus
from headroles.tables.frame import sign, sign_version

BLOCK = 512  # numbers of 8 bytes

_digests: ContextVar[dict[PreTrainedModel, str] | None] = ContextVar("digests", default=None)
_latest: WeakKeyDictionary[PreTrainedModel, tuple[str, str]] = WeakKeyDictionary()  # checksum and digest


def provenance_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    corpus: Corpus | StreamingCorpus | None = None,
    /,
    **fields: object,
) -> str:
    """Return the provenance of what was measured on a model: the model, its weights, and whatever else is given.

    A tokenizer is given where numbers depend on it beyond the corpus. `fields` come between the corpus and the version
    of headroles.
    """
    parts: dict[str, object] = {"model": name(model), "weights": revision(model)}
    if tokenizer is not None:
        parts["tokenizer"] = tokens(tokenizer)
    if corpus is not None:
        parts |= {"corpus": corpus.name, "text": corpus.hash}
    return f"{sign(**parts)}|{sign_version(**fields)}"


def cache_key(model: PreTrainedModel, /, **fields: object) -> str:
    """Return the cache key of a table: the weights of its model, other fields, and the version of headroles."""
    return sign_version(weights=revision(model), **fields)


def name(model: PreTrainedModel) -> str:
    """Return the name of a model in the provenance: the last two parts of its id or folder, or its class."""
    return "/".join(Path(model.config.name_or_path or "").parts[-2:]) or type(model).__name__


@contextmanager
def fixed_weights() -> Iterator[None]:
    """Hash the weights of each model at most once within the block, in which they must not change.

    Blocks nest. Put one around measurements only: nothing notices a change of weights within it. In particular the
    version counters of tensors do not, which fused optimizers (the Trainer's default) and writes to `.data` leave as
    they are. As a decorator, it makes a block of every call of a function.
    """
    token = _digests.set({} if (digests := _digests.get()) is None else digests)
    try:
        yield
    finally:
        _digests.reset(token)


def revision(model: PreTrainedModel) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of all weights, with their names and shapes.

    Outside `fixed_weights`, every call reads all weights: a checksum, which is much cheaper than a SHA-256, decides
    whether the last digest still holds.
    """
    digests = {} if (digests := _digests.get()) is None else digests
    if model not in digests:
        named = weights(model)
        checksum = _checksum(named)
        if _latest.get(model, ("", ""))[0] != checksum:
            _latest[model] = checksum, _digest(named)
        digests[model] = _latest[model][1]
    return digests[model]


def _digest(named: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for key, value in named.items():
        digest.update(f"{key}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(_bytes(value).cpu().numpy().data)
    return digest.hexdigest()[:12]


def _checksum(named: dict[str, torch.Tensor]) -> str:
    """Hash names, shapes and sums: the bits are rows of `BLOCK` numbers, and each column and each row is added up."""
    digest = hashlib.sha256()
    for key, value in named.items():
        bits = _bytes(value)
        if bits.storage_offset() % 8:  # is read as numbers of 8 bytes
            bits = bits.clone()
        split = len(bits) - len(bits) % (8 * BLOCK)
        rows = bits[:split].view(torch.int64).view(-1, BLOCK)
        digest.update(f"{key}{tuple(value.shape)}{value.dtype}".encode())
        # one bit, or two numbers that change places, change some of these
        for part in (rows.sum(0), rows.sum(1), bits[split:]):
            digest.update(part.cpu().numpy().data)
    return digest.hexdigest()


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.detach().contiguous().flatten().view(torch.uint8)


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return all weights by name, also those that a `device_map` keeps on disk until a layer needs them."""
    state: dict[str, torch.Tensor] = model.state_dict()
    if not is_offloaded(model):
        return state
    from accelerate.utils.modeling import get_state_dict_offloaded_model

    offloaded = get_state_dict_offloaded_model(model)
    return {key: offloaded.get(key, value) for key, value in state.items()}


def without_gradients(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Return a context without gradients: inference mode, or `no_grad` where a `device_map` loads weights in it.

    Weights that are loaded in inference mode can have no gradients afterwards.

    Returns:
        The context manager.
    """
    return torch.no_grad() if is_offloaded(model) else torch.inference_mode()


def is_offloaded(model: PreTrainedModel) -> bool:
    """Return whether a `device_map` keeps some of the weights on CPU or disk until a layer needs them."""
    return any(value.is_meta for value in model.parameters())


def configuration(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of the model's configs and its tokenizer."""
    generation = model.generation_config if model.can_generate() else None
    configs = [model.config.to_json_string(), None if generation is None else generation.to_json_string()]
    key = (configs, tokens(tokenizer), sample_ids(tokenizer))
    return hashlib.sha256(repr(key).encode()).hexdigest()[:12]


def tokens(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the class of a tokenizer and the first 12 hexadecimal digits of the SHA-256 of its vocabulary."""
    pairs = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    return f"{type(tokenizer).__name__}-{hashlib.sha256(repr(pairs).encode()).hexdigest()[:12]}"


def sample_ids(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the token ids of a short text as a source and as a target: they show which special tokens are added."""
    text = "A b."
    return [tokenizer(text)["input_ids"], tokenizer(text_target=text)["input_ids"]]
