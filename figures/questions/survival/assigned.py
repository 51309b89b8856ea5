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
APART = (3, 4, 5)  # tokens between a token and the place of a far control
REGULAR = (
    *(f"{way} {apart}" for way in WAYS["position"] for apart in APART),
    *(f"other {way}" for way in WAYS["syntax"]),
)
FREE = "free"
NAME = "assigned"  # of the attention function
LONGEST = 128  # positions of the model
Keys = list[list[int]]  # of each token


def draw(seed: int, *, layers: int = 6, heads: int = 8, regular: bool = False) -> pd.DataFrame:
    """Draw which head of each layer has which role.

    In each layer one head has each role, one the control of each role, and the others are free.

    Args:
        seed: Seed of the draw.
        layers: Number of layers, an even one.
        heads: Heads of a layer.
        regular: Whether the controls of position and syntax are those of `Regular`, in all layers.

    Returns:
        A table with a row per head: `layer`, `head`, `role` ("position", "syntax", "rare" or "free"), `way` (which
        pattern), `control` (False for a head with the role), and `shift`: how far the places of a control are moved;
        0 if they are permuted or of another sentence. The position's control is 3 to 5 tokens away in half of the
        layers.
    """
    generator, rows = random.Random(seed), []
    far = range(layers) if regular else generator.sample(range(layers), layers // 2)
    for layer in range(layers):
        order = generator.sample(range(heads), heads)
        for role, ways in WAYS.items():
            way, apart = generator.choice(ways), generator.choice((2, 3, 4))
            shift = (-apart if way == "before" else apart) if role == "position" and layer in far else 0
            elsewhere = {"position": f"{way} {apart + 1}", "syntax": f"other {way}"}.get(role, way) if regular else way
            rows += [(layer, order.pop(), role, way, False, 0), (layer, order.pop(), role, elsewhere, True, shift)]
        rows += [(layer, head, FREE, "", False, 0) for head in order]
    table = pd.DataFrame(rows, columns=["layer", "head", "role", "way", "control", "shift"])
    return table.sort_values(["layer", "head"], ignore_index=True)


class Patterns:
    """The keys of each token by each pattern, of sentences whose trees are known.

    Patterns are between the tokens of a sentence without its end token. A token without a partner (a word without
    dependents, the root, or a word whose partner has no token of its own) attends to the end token, as that token does
    itself. Places before the first and after the last token go round. Several pieces of a word have equal weights.
    """

    names = PATTERNS

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
        return _weights(
            [
                *(self._neighbours(len(ids), offset) for offset in (-1, 1)),
                *(_partners(row) if row is not None else [[[] for _ in ids], [[] for _ in ids]]),
                [[min(range(len(ids)), key=lambda place: self.counts[ids[place]])] for _ in ids],
            ]
        )

    def _neighbours(self, size: int, offset: int) -> Keys:
        return [[(place + offset) % size] for place in range(size)]


class Regular(Patterns):
    """Patterns with controls that are as regular and near: far neighbours, and the tree of another sentence.

    The other sentence has as many tokens; the tree of the only one of its length is its own. No place goes round: a
    place outside the sentence is the end token.
    """

    names = (*PATTERNS, *REGULAR)

    def __init__(self, rows: Iterable[TokenizedSentence], counts: Counter[int]) -> None:
        super().__init__(rows, counts)
        ways = [PATTERNS.index(way) for way in WAYS["syntax"]]
        by_size: dict[int, list[tuple[int, ...]]] = {}
        for ids in self.known:
            by_size.setdefault(len(ids), []).append(ids)
        trees = {ids: weights[ways] for ids, weights in self.known.items()}
        for size, texts in by_size.items():
            random.Random(size).shuffle(texts)
            for ids, other in zip(texts, [*texts[1:], texts[0]], strict=True):
                self.known[ids] = torch.cat([self.known[ids][: -len(ways)], trees[other]])

    def _matrices(self, ids: Sequence[int], row: TokenizedSentence | None = None) -> Tensor:
        far = [self._neighbours(len(ids), sign * apart) for sign in (-1, 1) for apart in APART]
        return torch.cat([super()._matrices(ids, row), _weights([*far, [[] for _ in ids], [[] for _ in ids]])])

    def _neighbours(self, size: int, offset: int) -> Keys:
        return [[place + offset] if 0 <= place + offset < size else [] for place in range(size)]


def _weights(patterns: Sequence[Keys]) -> Tensor:
    """Return weights [pattern, query, key] of the keys of each token; without keys, the end token's."""
    size = len(patterns[0])
    weights = torch.zeros(len(patterns), size + 1, size + 1, dtype=torch.float16)
    for pattern, places in enumerate(patterns):
        for query, attended in enumerate([*places, [size]]):
            for key in attended or [size]:
                weights[pattern, query, key] = 1 / max(1, len(attended))
    return weights


def _partners(row: TokenizedSentence) -> list[Keys]:
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
            for layer, head, role, way, control, shift in self.heads
            if control and way in PATTERNS
        }
        self.assigned = torch.zeros(self.shape, dtype=torch.bool)
        for layer, head, *_ in self.heads:
            self.assigned[layer, head] = True

    def read(self, ids: Tensor, mask: Tensor) -> None:
        """Compute the weights of a batch: [layer, batch, head, query, key]; padding attends to the first token."""
        sizes, longest = mask.sum(1).tolist(), ids.shape[1]
        patterns = torch.zeros(len(ids), len(self.patterns.names), longest, longest)
        patterns[..., 0] = 1
        for row, (tokens, size) in enumerate(zip(ids.tolist(), sizes, strict=True)):
            patterns[row, :, :size] = 0
            patterns[row, :, :size, :size] = self.patterns.of(tokens[:size])
        layers, heads = self.shape
        weights = torch.zeros(layers, len(ids), heads, longest, longest)
        for layer, head, _, way, *_ in self.heads:
            of_way = patterns[:, self.patterns.names.index(way)]
            if (layer, head) in self.sources:
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
