"""A test case: a copy of the model under test, its inputs, and what several checks compute from both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headroles.data.corpus import Corpus, Sentence
from headroles.models.attention_hooks import configs_of, without_cache
from headroles.models.dummy_inputs import examples, words
from headroles.models.heads import attention_sites, capture_attention, head_index
from headroles.models.masking import Head, mask_heads
from headroles.models.sites import Site
from headroles.models.tokens.vocabulary import vocabulary
from headroles.tables.frame import Kind

Weights = dict[tuple[Kind, int], Tensor]  # (kind, layer) -> [batch, heads, query, key]
FIELDS: dict[str, Kind | None] = {  # of a model's output
    "attentions": None, "encoder_attentions": "enc-self", "decoder_attentions": "dec-self", "cross_attentions": "cross",
}  # fmt: skip
SENTENCES, WORDS = 4, 6  # of the random corpus


class NotAsked(Exception):
    """A check that does not apply to the model, with the reason."""


class Case:
    """A model in float32 and eval mode, with inputs; checks never change it, they change copies."""

    def __init__(self, model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> None:
        self.model = deepcopy(model).float().eval()
        self.sites: list[Site] = attention_sites(self.model, inputs)
        self.inputs = dict(inputs or examples(self.model))
        self.plain = self.output(self.model)  # the output without masks

    @cached_property
    def heads(self) -> int:
        """The number of heads."""
        return len(head_index(self.model))

    @cached_property
    def eager(self) -> PreTrainedModel:
        """A copy with eager attention."""
        copy = self.copy()
        for config in configs_of(copy):
            config._attn_implementation_internal = "eager"
        return copy

    @cached_property
    def precise(self) -> PreTrainedModel:
        """A copy in float64, or in float32 if the model does not run in float64."""
        model: PreTrainedModel = deepcopy(self.model).double()
        try:
            self.call(model, cast(self.inputs, torch.float64))
        except (RuntimeError, NotImplementedError):
            return self.copy()
        return model

    @cached_property
    def returned(self) -> Weights:
        """The attention weights that the model returns for the inputs of the case."""
        return self.returned_for(self.inputs)

    def returned_for(self, inputs: Mapping[str, Tensor]) -> Weights:
        """Return the attention weights in the model's output; the kind follows from the field and the first query."""
        output = self.call(self.eager, inputs, output_attentions=True)
        attention: Weights = {}
        for field, kind in FIELDS.items():
            layers = [x for x in (getattr(output, field, None) or ()) if isinstance(x, Tensor) and x.ndim == 4]
            for layer, weights in enumerate(layers):
                looks_ahead = weights[..., 0, 1:].any()
                attention[kind or ("enc-self" if looks_ahead else "dec-self"), layer] = weights
        if not attention:
            raise NotAsked(f"{type(self.model).__name__} returns no attention weights")
        return attention

    @cached_property
    def captured(self) -> Weights:
        """The attention weights that `hr.capture_attention` gives."""
        attention: Weights = {}
        with capture_attention(self.model, lambda site, weights: attention.update({site.key: weights})):
            self.call(self.model)
        return attention

    @cached_property
    def sample(self) -> list[Head]:
        """One head of every layer; layers that share a module have the same head."""
        numbers: dict[nn.Module, int] = {}
        for place, site in enumerate(self.sites):
            numbers.setdefault(site.module, site.numbers[(place + 1) % site.heads])
        return [(*site.key, numbers[site.module]) for site in self.sites]

    @cached_property
    def corpus(self) -> Corpus:
        """Sentences of random words, which are numbers: word 17 is token 17 of the tokenizer of this case."""
        if "input_ids" not in self.inputs:
            raise NotAsked(f"{type(self.model).__name__} reads no text")
        generator = torch.Generator().manual_seed(1)
        known = torch.tensor(words(self.model))
        rows = known[torch.randint(len(known), (2 * SENTENCES, WORDS), generator=generator)].tolist()
        texts = [" ".join(map(str, row[: WORDS - number % 3])) for number, row in enumerate(rows)]
        targets: Sequence[str | None] = texts[SENTENCES:] if self.is_encoder_decoder else [None] * SENTENCES
        pairs = zip(texts, targets, strict=False)
        return Corpus("random words", tuple(Sentence(a, target=Sentence(b) if b else None) for a, b in pairs))

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """A tokenizer with the words 0, 1, ...: the numbers of the model's tokens."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        config = self.model.config
        pad = getattr(config, "pad_token_id", None) or 0
        ids = {"<pad>" if number == pad else str(number): number for number in range(vocabulary(self.model))}
        tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model reads a target."""
        return "decoder_input_ids" in self.inputs

    def copy(self) -> PreTrainedModel:
        """Return a copy of the model that may be changed."""
        copy: PreTrainedModel = deepcopy(self.model)
        return copy

    def call(self, model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None, **options: bool) -> Any:
        """Return the output of one forward; the routing noise of experts has seed 0."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return model(**(self.inputs if inputs is None else inputs), **without_cache(model), **options)

    def output(self, model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the first tensor of the output: logits or states."""
        return first(self.call(model, inputs))

    def masked(self, gates: Tensor) -> Tensor:
        """Return the output of the model under gates, [heads] or [batch, heads]."""
        with mask_heads(self.model, gates):
            return self.output(self.model)

    def row(self, number: int) -> dict[str, Tensor]:
        """Return the inputs of one example."""
        return {name: value[number : number + 1] for name, value in self.inputs.items()}


def cast(inputs: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Convert the floating-point inputs to another dtype."""
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}


def first(output: Any) -> Tensor:
    """Return the first floating-point tensor in the output of a model."""
    values = output.to_tuple() if hasattr(output, "to_tuple") else output
    return next(value for value in values if isinstance(value, Tensor) and value.is_floating_point())


def difference(values: Tensor, expected: Tensor) -> float:
    """Return the largest difference, as a share of the largest expected number."""
    if values.shape != expected.shape:
        return float("inf")
    size = max(float(expected.abs().max()), 1e-30)
    return float((values.double() - expected.double()).abs().max()) / size
