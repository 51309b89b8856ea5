"""A test case: a copy of the model under test, its inputs, and results that several checks share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headroles.data.corpus import Corpus, Sentence
from headroles.models import missing
from headroles.models.attention_hooks import configs_of, without_cache
from headroles.models.dummy_inputs import classifies, examples, reads_source_twice, words
from headroles.models.heads import attention_sites, capture_attention
from headroles.models.masking import Head, mask_heads
from headroles.models.parts import sharing
from headroles.models.tokens.vocabulary import checkpoint_tokenizer, positions, vocabulary
from headroles.tables.frame import Kind

Weights = dict[tuple[Kind, int], Tensor]  # (kind, layer) -> [batch, heads, query, key]
FIELDS: dict[str, Kind | None] = {  # of a model's output
    "attentions": None, "encoder_attentions": "enc-self", "decoder_attentions": "dec-self", "cross_attentions": "cross",
}  # fmt: skip
SENTENCES, WORDS = 4, 6  # of the random corpus
FEW, MANY = 2100, 4200  # positions: of all, or up to a number in the config, a long text is made
# options of a config that say from which length on a model may attend otherwise; blocks are sparse from several on
CHANGES = {r"index_topk|keep_window_size|original_max_position_embeddings": 1, r"block_size": 12}
TEXTS = (  # for a model with a tokenizer; the second half are targets
    "The old dog saw a cat near the house.",
    'She said, "We will read it again tomorrow."',
    "In 2019 the city had 83,155 inhabitants.",
    "Nobody knows why the lights are off.",
    "Near the house the old dog saw a cat.",
    "Tomorrow we will read it again.",
    "The city had fewer inhabitants before.",
    "The lights are off at night.",
)


class NotAsked(Exception):
    """A check that does not apply to the model, with the reason."""


class Case:
    """A copy of a model in float32 and eval mode, with inputs of two examples; checks change only further copies."""

    def __init__(self, model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> None:
        self.model: Any = sharing(model).float().eval()
        missing.forget(self.model)  # checks hold for random weights, too
        self.sites = attention_sites(self.model, inputs)
        self.inputs = dict(inputs or examples(self.model))
        self.plain = self.output(self.model)  # the output without masks

    @property
    def heads(self) -> int:
        """The number of gates: of all heads in the weights."""
        return len(self.sites.gate_index)

    @cached_property
    def left(self) -> Tensor:
        """Which gates belong to remaining heads rather than to removed heads that are kept as zeroed: [heads]."""
        return torch.from_numpy(self.sites.gate_index.isin(self.sites.head_index))

    @cached_property
    def eager(self) -> PreTrainedModel:
        """A copy with eager attention."""
        copy = sharing(self.model)
        for config in configs_of(copy.modules()):
            config._attn_implementation_internal = "eager"
        return copy

    @property
    def precise(self) -> PreTrainedModel:
        """A new copy in float64, or in float32 if the model does not run in float64."""
        model = sharing(self.model).double()
        try:
            self.call(model, cast(self.inputs, torch.float64))
        except (RuntimeError, NotImplementedError):
            model = model.float()
        return model

    def within(self, allowed: float, measure: Callable[[PreTrainedModel], float]) -> float:
        """Return the deviation of the model, in float64 if it is too large in float32, which rounding may cause."""
        off = measure(self.model)
        return off if off <= allowed else measure(self.precise)

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
        return {key: weights for key, weights in attention.items() if weights.shape[1]}

    @cached_property
    def captured(self) -> Weights:
        """The attention weights that `hr.capture_attention` gives."""
        attention: Weights = {}
        with capture_attention(self.model, lambda site, weights: attention.update({site.key: weights})):
            self.call(self.model)
        return {key: weights for key, weights in attention.items() if weights.shape[1]}

    @cached_property
    def sample(self) -> list[Head]:
        """One head of every layer that has any left; layers that share a module have the same head."""
        numbers: dict[nn.Module, int] = {}
        for place, site in enumerate(self.sites):
            if site.remaining:
                numbers.setdefault(site.module, site.remaining[(place + 1) % len(site.remaining)])
        return [(*site.key, numbers[site.module]) for site in self.sites if site.remaining]

    @cached_property
    def corpus(self) -> Corpus:
        """A few sentences; if the model has no tokenizer, sentences of random words: word 17 is token 17."""
        if "input_ids" not in self.inputs:
            raise NotAsked(f"{type(self.model).__name__} reads no text")
        return self._of(self._random_words(WORDS) if checkpoint_tokenizer(self.model) is None else TEXTS)

    @cached_property
    def lengths(self) -> Corpus:
        """The same, and two long sentences: past the length from which the model may attend otherwise."""
        limit = min(positions(self.tokenizer, self.model, target=side) for side in (False, True))
        options = re.findall(r'"(\w+)": (\d+)', self.model.config.to_json_string(use_diff=False))
        changes = [int(n) * times for name, n in options for key, times in CHANGES.items() if re.fullmatch(key, name)]
        size = limit if limit <= FEW else min(limit, 1 + max([n for n in changes if n < MANY], default=8 * WORDS))
        long = self._random_words(size - 1)
        while len(self.tokenizer(long[0])["input_ids"]) > size:  # a tokenizer of its own has several tokens of a number
            long = [text[: len(text) * 9 // 10] for text in long]
        return Corpus("lengths", self._of(long).sentences[:2] + self.corpus.sentences)

    def _of(self, texts: Sequence[str]) -> Corpus:
        targets: Sequence[str | None] = texts[SENTENCES:] if self.is_encoder_decoder else [None] * SENTENCES
        triples = zip(texts, targets, self._labels, strict=False)
        sentences = (Sentence(text, target=Sentence(b) if b else None, label=label) for text, b, label in triples)
        return Corpus("sentences", tuple(sentences))

    def _random_words(self, size: int) -> list[str]:
        generator = torch.Generator().manual_seed(1)
        known = torch.tensor(words(self.model))
        rows = known[torch.randint(len(known), (2 * SENTENCES, size), generator=generator)].tolist()
        end = [self.model.config.eos_token_id] if reads_source_twice(self.model) else []  # where a classifier reads
        return [" ".join(map(str, row[: size - number % 3] + end)) for number, row in enumerate(rows)]

    @cached_property
    def _labels(self) -> Sequence[str | None]:
        """The labels of the sentences for a classifier: values, several classes, or one class of each."""
        if classifies(self.model) != "texts":
            return [None] * SENTENCES
        count = self.model.config.num_labels
        if count == 1:
            return [str(number / 2) for number in range(SENTENCES)]
        names = [str(self.model.config.id2label[number % count]) for number in range(SENTENCES + 1)]
        several = self.model.config.problem_type == "multi_label_classification"
        return [", ".join(dict.fromkeys(names[i : i + 1 + several * (i % 2)])) for i in range(SENTENCES)]

    def label(self, sentence: Sentence) -> Tensor | None:
        """Return the label of a sentence as the model reads it: [1] or, of several classes, [1, class]."""
        if sentence.label is None:
            return None
        if self.model.config.num_labels == 1:
            return torch.tensor([float(sentence.label)])
        classes = {str(name): number for number, name in self.model.config.id2label.items()}
        numbers = torch.tensor([classes[name] for name in sentence.label.split(", ")])
        if self.model.config.problem_type == "multi_label_classification":
            return torch.zeros(1, self.model.config.num_labels).index_fill(1, numbers, 1.0)
        return numbers

    def ids(self, sentence: Sentence, *, target: bool = False) -> Tensor:
        """Return the token ids of a sentence, as the encoder or the decoder reads them: [1, token]."""
        side = "text_target" if target else "text"
        return torch.tensor([self.tokenizer(**{side: sentence.text})["input_ids"]])

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the checkpoint; without one, words 0, 1, ... are the numbers of the model's tokens."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        if (tokenizer_of_checkpoint := checkpoint_tokenizer(self.model)) is not None:
            return tokenizer_of_checkpoint
        pad = getattr(self.model.config, "pad_token_id", None) or 0
        ids = {"<pad>" if number == pad else str(number): number for number in range(vocabulary(self.model))}
        tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model reads a target."""
        return "decoder_input_ids" in self.inputs

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
