"""A translator whose encoder heads have roles by chance: the draw, the patterns, and the attention that obeys them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headroles.models.tokens.alignment import NO_WORD, TokenizedSentence, dependencies

WAYS = {"position": ("before", "after"), "syntax": ("head", "dependent"), "rare": ("rarest",)}
PATTERNS = tuple(way for ways in WAYS.values() for way in ways)
FREE = "free"
NAME = "assigned"  # of the attention function
LONGEST = 128  # positions of the model


def draw(seed: int, *, layers: int = 6, heads: int = 8) -> pd.DataFrame:
    """Draw which head of each layer has which role.

    In each layer one head has each role, one the control of each role, and the others are free.

    Args:
        seed: Seed of the draw.
        layers: Number of layers, an even one.
        heads: Heads of a layer.

    Returns:
        A table with a row per head: `layer`, `head`, `role` ("position", "syntax", "rare" or "free"), `way` (which of
        the role's patterns), `control` (False for a head with the role), and `shift`: how far the places of a control
        are moved; 0 if they are permuted. In half of the layers the position's control is 3 to 5 tokens away.
    """
    generator, rows = random.Random(seed), []
    far = generator.sample(range(layers), layers // 2)
    for layer in range(layers):
        order = generator.sample(range(heads), heads)
        for role, ways in WAYS.items():
            way, apart = generator.choice(ways), generator.choice((2, 3, 4))
            shift = (-apart if way == "before" else apart) if role == "position" and layer in far else 0
            rows += [(layer, order.pop(), role, way, False, 0), (layer, order.pop(), role, way, True, shift)]
        rows += [(layer, head, FREE, "", False, 0) for head in order]
    table = pd.DataFrame(rows, columns=["layer", "head", "role", "way", "control", "shift"])
    return table.sort_values(["layer", "head"], ignore_index=True)


class Patterns:
    """The keys of each token by each pattern, of sentences whose trees are known.

    Patterns are between the tokens of a sentence without its end token. A token without a partner (a word without
    dependents, the root, or a word whose partner has no token of its own) attends to the end token, as that token does
    itself. Places before the first and after the last token go round. Several pieces of a word have equal weights.
    """

    def __init__(self, rows: Iterable[TokenizedSentence], counts: Counter[int]) -> None:
        self.counts = counts  # of tokens in the training texts
        self.known: dict[tuple[int, ...], Tensor] = {}
        for row in rows:
            if row.sentence.heads and max(row.words) == NO_WORD:
                raise ValueError(f"tokens must have words, got none for {row.sentence.text!r}; try HeadModel.encode")
            self.known[tuple(row.ids[:-1])] = self._matrices(row.ids[:-1], row)

    def of(self, ids: Sequence[int]) -> Tensor:
        """Return the weights of a sentence with its end token: [pattern, query, key]; without a tree no syntax."""
        return known.float() if (known := self.known.get(tuple(ids[:-1]))) is not None else self._matrices(ids[:-1])

    def _matrices(self, ids: Sequence[int], row: TokenizedSentence | None = None) -> Tensor:
        size = len(ids)
        keys: list[list[list[int]]] = [
            [[(place - 1) % size] for place in range(size)],
            [[(place + 1) % size] for place in range(size)],
            *(_partners(row) if row is not None else [[[] for _ in ids], [[] for _ in ids]]),
            [[min(range(size), key=lambda place: self.counts[ids[place]])] for _ in ids],
        ]
        weights = torch.zeros(len(keys), size + 1, size + 1, dtype=torch.float16)
        for pattern, places in enumerate(keys):
            for query, attended in enumerate([*places, [size]]):
                for key in attended or [size]:
                    weights[pattern, query, key] = 1 / max(1, len(attended))
        return weights


def _partners(row: TokenizedSentence) -> list[list[list[int]]]:
    """Return, for each token but the last, the tokens of its word's head, and of its word's first dependent."""
    words = row.words[:-1]
    heads: dict[int, int] = {}
    dependents: dict[int, int] = {}
    for dependent, head, _ in dependencies(row.sentence, words):
        heads[dependent] = head
        dependents[head] = min(dependent, dependents.get(head, dependent))
    places: dict[int | None, list[int]] = {}
    for place, word in enumerate(words):
        places.setdefault(word, []).append(place)
    return [[places[other[word]] if word in other else [] for word in words] for other in (heads, dependents)]


def moved(size: int, shift: int, key: str) -> list[int]:
    """Return where a control attends instead of each of `size` places: never at the place itself, if there are two.

    Args:
        size: Tokens of the sentence, without its end token.
        shift: Places by which all are moved, going round; 0 for a permutation, the same for all texts of this size.
        key: Seed of the permutation.
    """
    if size < 2:
        return list(range(size))
    if shift:
        away = (1 + (abs(shift) - 1) % (size - 1)) * (1 if shift > 0 else -1)
        return [(place + away) % size for place in range(size)]
    generator = random.Random(f"{key} {size}")
    while True:
        order = generator.sample(range(size), size)
        if all(place != other for place, other in enumerate(order)):
            return order


class Assigned:
    """The assigned heads of a model, and the weights of each layer for the batch that its encoder reads now."""

    weights: Tensor

    def __init__(self, table: pd.DataFrame, patterns: Patterns, seed: int) -> None:
        self.patterns, self.seed = patterns, seed
        self.heads = [tuple(row) for row in table[table["role"] != FREE].itertuples(index=False)]
        self.shape = table["layer"].max() + 1, table["head"].max() + 1
        self.sources = {  # of controls, by size: which place's weight each place gets
            (layer, head): [_inverse(moved(size, shift, f"{seed} {layer} {role}")) for size in range(LONGEST)]
            for layer, head, role, _, control, shift in self.heads
            if control
        }
        self.assigned = torch.zeros(self.shape, dtype=torch.bool)
        for layer, head, *_ in self.heads:
            self.assigned[layer, head] = True

    def read(self, ids: Tensor, mask: Tensor) -> None:
        """Compute the weights of a batch: [layer, batch, head, query, key]; padding attends to the first token."""
        sizes, longest = mask.sum(1).tolist(), ids.shape[1]
        patterns = torch.zeros(len(ids), len(PATTERNS), longest, longest)
        patterns[..., 0] = 1
        for row, (tokens, size) in enumerate(zip(ids.tolist(), sizes, strict=True)):
            patterns[row, :, :size] = 0
            patterns[row, :, :size, :size] = self.patterns.of(tokens[:size])
        layers, heads = self.shape
        weights = torch.zeros(layers, len(ids), heads, longest, longest)
        for layer, head, _, way, control, _ in self.heads:
            of_way = patterns[:, PATTERNS.index(way)]
            if control:
                source = torch.arange(longest).repeat(len(ids), 1)
                for row, size in enumerate(sizes):
                    source[row, : size - 1] = self.sources[layer, head][size - 1]
                of_way = of_way.gather(-1, source[:, None].expand_as(of_way))
            weights[layer, :, head] = of_way
        self.weights = weights.to(ids.device)


def _inverse(order: Sequence[int]) -> Tensor:
    return torch.tensor(order, dtype=torch.long).argsort()


# Of the process, for its model and copies of it. An attribute of the model would be described in each provenance, with
# the patterns of 30,000 sentences and the weights of the last batch; the seed of the draw says the same.
CURRENT: ContextVar[Assigned] = ContextVar("assigned")


def assign(model: PreTrainedModel, assigned: Assigned) -> None:
    """Let heads of a Marian encoder attend by their patterns alone, in training and afterwards; one model at a time."""
    CURRENT.set(assigned)
    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, eager_mask)
    model.config.assigned_seed = assigned.seed
    for layer, block in enumerate(model.get_encoder().layers):
        block.self_attn.assigned_layer = layer
    model.set_attn_implementation(NAME)
    model.get_encoder().register_forward_pre_hook(_read, with_kwargs=True)


def _read(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
    ids, mask = kwargs["input_ids"], kwargs.get("attention_mask")
    CURRENT.get().read(ids, torch.ones_like(ids) if mask is None else mask.long())


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """Attend as transformers' eager function does, but for assigned heads."""
    weights = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        weights = weights + attention_mask[..., : key.shape[-2]]
    weights = weights.softmax(-1)
    layer = getattr(module, "assigned_layer", None)
    if layer is not None:
        assigned = CURRENT.get()
        weights = torch.where(assigned.assigned[layer][:, None, None], assigned.weights[layer].to(weights), weights)
    weights = drop(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights
