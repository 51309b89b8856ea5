"""HeadModel: a model with its tokenizer, the one handle that everything inside the package passes on.

It knows its attention sites and its identity, encodes a corpus into batches, runs a forward, masks heads and hands
attention to observers. It is bound to a call: public functions make one at their entry or take one, and whoever changes
the weights or removes heads makes a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, Self

import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.data.corpus import Corpus
from headroles.data.streaming import StreamingCorpus
from headroles.models import attention_hooks, batching, dummy_inputs, heads, identity, masking
from headroles.models.batching import Batch, Encoded, Pages
from headroles.models.heads import Head, PartCallback
from headroles.models.masking import Fill, Replacement
from headroles.models.sites import Sites
from headroles.models.tokens import vocabulary
from headroles.tables import frame
from headroles.tables.frame import Kind, sign, sign_version


class HeadModel:
    """A model with its tokenizer.

    Args:
        model: A transformers model; of a compiled one, the module behind it is taken.
        tokenizer: Its tokenizer; None for what reads no text.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        self.model = heads.uncompiled(model)
        self._tokenizer, self._tokenised = tokenizer, dict[int, tuple[Corpus, Encoded]]()

    @classmethod
    def of(cls, model: PreTrainedModel | HeadModel, tokenizer: PreTrainedTokenizerBase | None = None) -> Self:
        """Return the handle of a model; a handle as it is."""
        return model if isinstance(model, cls) else cls(model, tokenizer)  # type: ignore[arg-type]

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer; ValueError without one."""
        if self._tokenizer is None:
            raise ValueError(f"no tokenizer: got {self.name} alone; expected the tokenizer that belongs to it")
        return self._tokenizer

    @property
    def name(self) -> str:
        """The class of the model, for messages."""
        return type(self.model).__name__

    @property
    def config(self) -> Any:
        """The config of the model."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """The device of the model's inputs."""
        device: torch.device = self.model.device
        return device

    @cached_property
    def sites(self) -> Sites:
        """The attention sites, in the order of the rows of every table."""
        return heads.attention_sites(self.model)

    @cached_property
    def index(self) -> pd.MultiIndex:
        """The index (kind, layer, head) of every table."""
        return frame.index({site.key: site.numbers for site in self.sites})

    @property
    def heads(self) -> list[Head]:
        """(kind, layer, head) of every head."""
        return [(kind, layer, head) for kind, layer, head in self.index]

    @property
    def kinds(self) -> set[Kind]:
        """The kinds of attention with heads."""
        return {site.kind for site in self.sites if site.heads}

    @cached_property
    def body(self) -> PreTrainedModel:
        """The model without its task head, or itself if its base model reads other inputs."""
        return dummy_inputs.body(self.model)

    @cached_property
    def divisible(self) -> bool:
        """Whether attention in parts equals full attention."""
        return heads.divisible(self.model)

    @cached_property
    def offloaded(self) -> bool:
        """Whether a `device_map` keeps some of the weights on CPU or disk."""
        return identity.is_offloaded(self.model)

    # what a result is a result of

    @cached_property
    def weights(self) -> str:
        """The digest of all weights, as provenance has it."""
        return identity.weights_digest(self.model)

    @cached_property
    def identity(self) -> str:
        """The digest of everything that changes numbers besides the corpus (`headroles.models.identity`)."""
        return identity.identity(self.model, self._tokenizer)

    def provenance(self, corpus: Corpus | StreamingCorpus | None = None, /, **fields: object) -> str:
        """Return the provenance of what was measured: model, weights, identity, corpus, other fields, version."""
        parts: dict[str, object] = {"model": identity.model_name(self.model), "weights": self.weights}
        parts["identity"] = self.identity
        if corpus is not None:
            parts |= {"corpus": corpus.name, "text": corpus.hash}
        return f"{sign(**parts)}|{sign_version(**fields)}"

    @property
    def tokens(self) -> str:
        """The tokenizer's class and the digest of its vocabulary, for provenance that depends on it."""
        return identity.tokens(self.tokenizer)

    def cache_key(self, corpus: Corpus | StreamingCorpus | None = None, /, **fields: object) -> str:
        """Return the key of a kept result: identity, corpus, other fields, and the version of headroles.

        Call it before any block of this call is open: it refuses what changes numbers without a name (`check_named`).
        """
        self.check_named()
        text = {} if corpus is None else {"text": corpus.hash}
        return sign_version(weights=self.weights, identity=self.identity, **text, **fields)

    def check_named(self) -> None:
        """Raise ValueError if hooks of others, or open blocks, change the numbers: a result can't be kept then."""
        if reasons := identity.unnamed(self.model):
            raise ValueError(
                f"the result cannot be kept: got {reasons[0]} of {self.name}, which may change its numbers and stands "
                f"in no provenance; leave the block or remove the hook first, or call without study="
            )

    # the corpus

    @cached_property
    def special(self) -> frozenset[int]:
        """The ids of special tokens."""
        return vocabulary.special(self.tokenizer, self.model)

    @cached_property
    def positions(self) -> int:
        """The number of positions of the model; a very large number if nothing limits it."""
        return vocabulary.positions(self.tokenizer, self.model)

    @cached_property
    def alone(self) -> bool:
        """Whether the model reads one example at a time, because it does not recognise padding."""
        return vocabulary.pools_blindly(self.model)

    def encode(self, corpus: Corpus, *, words: bool = True) -> Encoded:
        """Tokenise a corpus; sentences longer than the model's positions are left out, and counted."""
        self._check_tokenizer  # noqa: B018 - once
        return batching.encode(corpus, self.tokenizer, self.model, words=words)

    @cached_property
    def _check_tokenizer(self) -> None:
        vocabulary.check_belongs(self.tokenizer, self.model)

    def tokenised(self, corpus: Corpus) -> Encoded:
        """Tokenise a corpus without words, once for this handle."""
        if id(corpus) not in self._tokenised:
            self._tokenised[id(corpus)] = corpus, self.encode(corpus, words=False)
        return self._tokenised[id(corpus)][1]

    def pages(self, corpus: Corpus | StreamingCorpus) -> Pages:
        """Return the pages of a corpus: one, or of a stream several, read once."""
        return Pages(corpus, self)

    def batches(self, encoded: Encoded, *, max_tokens: int = 4096, part: tuple[int, int] = (0, 1)) -> Iterator[Batch]:
        """Yield batches of similar lengths, the longest first; `part` (p, q) yields batches p, p + q, p + 2 q ..."""
        return batching.batches(encoded, self.model, max_tokens=max_tokens, part=part)

    # forwards

    @cached_property
    def _options(self) -> dict[str, bool]:
        return attention_hooks.without_cache(self.model)

    @cached_property
    def _options_of_body(self) -> dict[str, bool]:
        return attention_hooks.without_cache(self.body)

    def forward(self, batch: Batch | Mapping[str, Tensor], **options: Any) -> Any:
        """Run the model on a batch, or on the arguments of one forward, without a cache of keys and values."""
        inputs = batch.inputs if isinstance(batch, Batch) else batch
        return self.model(**inputs, **self._options, **options)

    def forward_body(self, batch: Batch | Mapping[str, Tensor]) -> Any:
        """Run the model without its task head."""
        inputs = batch.inputs if isinstance(batch, Batch) else batch
        return self.body(**inputs, **self._options_of_body)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Set the model to eval mode within the block; other threads wait with it, and inference mode is left."""
        grad = torch.set_grad_enabled(torch.is_grad_enabled())  # which `inference_mode(False)` would switch on
        with attention_hooks.evaluating(self.model), torch.inference_mode(False), grad:
            yield

    def check_gradients(self) -> None:
        """Raise ValueError for weights through which no gradient can flow."""
        if any(weight.is_inference() for weight in self.model.parameters()):
            raise ValueError(
                f"no gradient passes the weights of {self.name}: got a model made in inference mode; expected one that "
                f"was loaded outside; try to load or copy it outside torch.inference_mode()"
            )

    def without_gradients(self) -> AbstractContextManager[None]:
        """Return a context without gradients."""
        return torch.no_grad() if self.offloaded else torch.inference_mode()

    def mask(
        self,
        gates: Tensor | npt.ArrayLike | Callable[[], Tensor],
        replacement: Fill | Mapping[tuple[Kind, int], Tensor] | Replacement | None = None,
    ) -> AbstractContextManager[None]:
        """Replace every head's output z by g z + (1 - g) replacement within the block (`hr.mask_heads`)."""
        return masking.masked(self.model, self.sites, gates, replacement)

    def capture(self, callback: PartCallback, *, cells: int | None = None) -> AbstractContextManager[None]:
        """Call `callback(site, weights, first)` at every attention, also in parts of at most `cells` weights."""
        return heads.captured(self.model, self.sites, callback, cells if cells and self.divisible else None)

    # heads by name

    def heads_of(self, kinds: Sequence[str] | None) -> list[Head]:
        """Return the heads of some kinds or all; ValueError for a kind that the model lacks."""
        return heads.heads_of_kinds(self.model, kinds)

    def named_heads(self, names: Iterable[Head | str] | str) -> list[Head]:
        """Return heads as (kind, layer, head), also those written "enc-self:0:2" or "L0H2,L1H0"."""
        chosen = heads.named_heads(self.model, names)
        for head in chosen:
            heads.check_head(self.model, head)
        return chosen

    def head_mask(self, names: Iterable[Head | str] | str) -> Tensor:
        """Return a mask that ablates some heads: 0 for these and 1 for all others, Tensor[heads]."""
        return masking.head_mask(self.model, names)


Model = PreTrainedModel | HeadModel  # what public functions take
