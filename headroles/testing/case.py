"""A case: a model that is put to the laws, what it is called with, and what several laws need of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headroles.data.corpus import Corpus, Sentence
from headroles.models import heads as families
from headroles.models.attention_hooks import configs_of
from headroles.models.capture import capture_attention
from headroles.models.dummy_inputs import examples, without_cache, words
from headroles.models.loading import vocabulary
from headroles.models.masking import Head, mask_heads
from headroles.models.sites import Site
from headroles.tables.frame import Kind

Weights = dict[tuple[Kind, int], Tensor]  # (kind, layer) -> [batch, heads, query, key]
FIELDS: dict[str, Kind | None] = {  # of a model's own output
    "attentions": None, "encoder_attentions": "enc-self", "decoder_attentions": "dec-self", "cross_attentions": "cross",
}  # fmt: skip
SENTENCES, WORDS = 4, 6  # of the corpus that is made where a law needs one


class NotAsked(Exception):
    """A law that cannot be asked of this model, and why."""


class Case:
    """A model of float32 in eval mode, never changed: a law that changes something makes a copy."""

    def __init__(self, model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> None:
        self.model = deepcopy(model).float().eval()
        self.sites: list[Site] = families.attention_sites(self.model, inputs)
        self.inputs = dict(inputs or examples(self.model))
        self.plain = self.output(self.model)  # what it puts out by itself

    @cached_property
    def heads(self) -> int:
        """How many heads it has."""
        return len(families.head_index(self.model))

    @cached_property
    def eager(self) -> PreTrainedModel:
        """A copy that attends by its own eager function."""
        copy = self.copy()
        for config in configs_of(copy):
            config._attn_implementation_internal = "eager"
        return copy

    @cached_property
    def own(self) -> Weights:
        """The attention weights that the model gives out by itself."""
        return self.given_out(self.inputs)

    def given_out(self, inputs: Mapping[str, Tensor]) -> Weights:
        """The same for other arguments; told apart by the field they are in, and by whether they look ahead."""
        output = self.call(self.eager, inputs, output_attentions=True)
        found: Weights = {}
        for field, kind in FIELDS.items():
            weights = [one for one in (getattr(output, field, None) or ()) if isinstance(one, Tensor) and one.ndim == 4]
            for layer, one in enumerate(weights):
                found[kind or _kind(one), layer] = one
        if not found:
            raise NotAsked(f"{type(self.model).__name__} gives out no attention weights by itself")
        return found

    @cached_property
    def watched(self) -> Weights:
        """The attention weights that `hr.capture_attention` shows."""
        seen: Weights = {}
        with capture_attention(self.model, lambda site, weights: seen.update({site.key: weights})):
            self.call(self.model)
        return seen

    @cached_property
    def some(self) -> list[Head]:
        """A head of every layer, of layers that are one module the same."""
        numbers: dict[Any, int] = {}
        for place, site in enumerate(self.sites):
            numbers.setdefault(site.module, site.numbers[(place + 1) % site.heads])
        return [(*site.key, numbers[site.module]) for site in self.sites]

    @cached_property
    def corpus(self) -> Corpus:
        """Sentences of random words that the tokenizer of this case reads as they are: word 17 is token 17."""
        if "input_ids" not in self.inputs:
            raise NotAsked(f"{type(self.model).__name__} reads no text")
        generator = torch.Generator().manual_seed(1)
        known = torch.tensor(words(self.model))
        rows = known[torch.randint(len(known), (2 * SENTENCES, WORDS), generator=generator)].tolist()
        texts = [" ".join(map(str, row[: WORDS - number % 3])) for number, row in enumerate(rows)]
        targets: Sequence[str | None] = texts[SENTENCES:] if self.writes else [None] * SENTENCES
        pairs = zip(texts, targets, strict=False)
        return Corpus("random words", tuple(Sentence(a, target=Sentence(b) if b else None) for a, b in pairs))

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """A tokenizer whose words are the numbers of the model's tokens."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        config: Any = self.model.config
        pad = getattr(config, "pad_token_id", None) or 0
        ids = {"<pad>" if number == pad else str(number): number for number in range(vocabulary(self.model))}
        made = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>")

    @property
    def writes(self) -> bool:
        """Whether it is an encoder-decoder."""
        return "decoder_input_ids" in self.inputs

    def copy(self) -> PreTrainedModel:
        """A model like this one, to be changed."""
        made: PreTrainedModel = deepcopy(self.model)
        return made

    def call(self, model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None, **more: Any) -> Any:
        """The output of one forward; routing noise of experts is the same each time."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return model(**(self.inputs if inputs is None else inputs), **without_cache(model), **more)

    def output(self, model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> Tensor:
        """Its first tensor: logits or states."""
        return first(self.call(model, inputs))

    def under(self, gates: Tensor, model: PreTrainedModel | None = None) -> Tensor:
        """What a model puts out under gates."""
        chosen = self.model if model is None else model
        with mask_heads(chosen, gates):
            return self.output(chosen)

    def row(self, number: int) -> dict[str, Tensor]:
        """The arguments of one example."""
        return {name: value[number : number + 1] for name, value in self.inputs.items()}


def first(output: Any) -> Tensor:
    """The first tensor of numbers in a model's output."""
    values = output.to_tuple() if hasattr(output, "to_tuple") else output
    found: Tensor = next(one for one in values if isinstance(one, Tensor) and one.is_floating_point())
    return found


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    if one.shape != other.shape:
        return float("inf")
    size = max(float(other.abs().max()), 1e-30)
    return float((one.double() - other.double()).abs().max()) / size


def _kind(weights: Tensor) -> Kind:
    return "enc-self" if weights[..., 0, 1:].any() else "dec-self"
