"""Syntax: how often a head connects the two words of a dependency, against the best fixed offset."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from headroles.data.corpus import RELATIONS
from headroles.models.tokens.alignment import NO_WORD, TokenView
from headroles.patterns.dependency import WAYS, related_words
from headroles.scores.base import SELF, Observation, Score, Sums
from headroles.tables.frame import Kind

WINDOW = 20  # offsets tried for the baseline, in words


@dataclass(frozen=True)
class Syntax(Score):
    """Accuracy of a head in finding, from one word of a dependency, the other (Voita et al. 2019, section 5.2).

    Word-level attention is the sum over the pieces of the key word and the mean over the pieces of the query word. A
    query word is right if its largest weight falls on a word that it stands in the relation with. The baseline is the
    best single offset in words on the same queries. In a decoder only words before the query count, for both. Words
    without tokens of their own are neither queries nor keys: those of a multiword token, and those that share a token.

    Args:
        relations: relations of Universal Dependencies; `obj` is Stanford's `dobj`.
        subtypes: whether subtypes such as `nsubj:pass` count as their relation.
    """

    relations: tuple[str, ...] = RELATIONS
    subtypes: bool = False
    kinds = SELF
    needs_trees = True

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the query words that are right: [batch, heads, relation and way]."""
        pairs = self._pairs(observation)  # [batch, relation and way, query word, key word]
        weights, places = _between_words(observation, pairs.shape[-1]).max(-1)  # each [batch, heads, query word]
        rows = pairs[:, :, None].expand(-1, -1, places.shape[1], -1, -1)
        right = rows.gather(-1, places[:, None, ..., None].expand(*rows.shape[:-1], 1)).squeeze(-1)
        return {"right": (right & (weights > 0)[:, None]).sum(-1).mT}  # without weight on any word none is right

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count query words, [batch, heads or 1, pair], and those right at each offset, [..., pair, offset]."""
        pairs = self._pairs(observation)
        if observation.counted is None:
            by_offset = [pairs.diagonal(offset, -2, -1).sum(-1) for offset in range(-WINDOW, WINDOW + 1)]
            return {"words": pairs.any(-1).sum(-1)[:, None], "offsets": torch.stack(by_offset, -1)[:, None]}
        view, size = observation.queries, pairs.shape[-1]
        counting = (observation.counting().float() @ _owned(view, size) > 0).float()  # [batch, heads, query word]
        right = view.keep(("offsets", self, observation.causal), lambda: _at_offsets(pairs))
        return {
            "words": counting @ pairs.any(-1).float().mT,  # [batch, heads, pair]
            "offsets": (counting @ right.flatten(2)).unflatten(-1, right.shape[2:]),  # [batch, heads, pair, offset]
        }

    def nothing(self, _column: str, _kind: Kind, /) -> None:
        """Return None: the column `.words` is 0 there."""

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `syntax[relation way]`, its `.baseline`, and its number of query words `.words`."""
        accuracy = sums["right"] / sums["words"]
        baseline = (sums["offsets"].amax(-1) / sums["words"]).expand_as(accuracy)
        columns = {}
        for i, name in enumerate(self._names()):
            columns[name] = accuracy[..., i]
            columns[f"{name}.baseline"] = baseline[..., i]
            columns[f"{name}.words"] = sums["words"][..., i].expand_as(accuracy[..., i])
        return columns

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """Return the number of query words in each relation, for accuracy and baseline."""
        words = {name: sums["words"][..., i] for i, name in enumerate(self._names())}
        return words | {f"{name}.baseline": number for name, number in words.items()}

    def _names(self) -> list[str]:
        return [f"syntax[{relation} {way}]" for relation in self.relations for way in WAYS]

    def _pairs(self, observation: Observation) -> Tensor:
        """Which key words are right for which query words: bool [batch, relation and way, query word, key word]."""
        view, causal, subtypes = observation.queries, observation.causal, self.subtypes

        def pairs() -> Tensor:
            every = related_words(view, self.relations, subtypes=subtypes, causal=causal)
            if observation.of != "nosink":
                return every
            left = (observation.keys.content[:, None].float() @ _owned(view, every.shape[-1]) > 0)[:, None]
            return every & left  # a word that is the first token is no key: [batch, 1, 1, key word]

        return view.keep((self, causal), pairs)


def _at_offsets(pairs: Tensor) -> Tensor:
    """Whether each query word is right at each offset: float32 [batch, query word, pair, offset]."""
    words = torch.arange(pairs.shape[-1], device=pairs.device)
    places = (words[:, None] + torch.arange(2 * WINDOW + 1, device=pairs.device)).expand(*pairs.shape[:-1], -1)
    return pad(pairs, (WINDOW, WINDOW)).gather(-1, places).float().movedim(1, 2)


def _owned(view: TokenView, words: int) -> Tensor:
    """Which tokens are pieces of which word: float32 [batch, token, word]."""
    owners = view.words.masked_fill(view.words == NO_WORD, words)
    return view.keep(("owned", words), lambda: one_hot(owners, words + 1)[..., :words].float())


def _between_words(observation: Observation, words: int) -> Tensor:
    """Attention summed over the pieces of both words (for argmax as good as a mean): [batch, heads, word, word]."""
    batch, heads, tokens, _ = observation.weights.shape
    view = observation.queries
    owners = view.words.masked_fill(view.words == NO_WORD, words)  # tokens without a word go to one row more
    on_words = (observation.weights.flatten(1, 2) @ _owned(view, words)).view(batch, heads, tokens, words)
    rows = owners[:, None, :, None].expand_as(on_words)
    between = on_words.new_zeros(batch, heads, words + 1, words).scatter_add_(2, rows, on_words)
    return between[:, :, :words]
