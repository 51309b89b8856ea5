"""Syntax: how often a head connects the two words of a dependency, against the best fixed offset."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from headroles.data.corpus import RELATIONS
from headroles.models.batching import TokenView
from headroles.models.tokens.alignment import NO_WORD
from headroles.scores.base import SELF, Observation, Score, Sums
from headroles.tables.frame import Kind

WAYS = ("dep>head", "head>dep")
WINDOW = 20  # offsets tried for the baseline, in words


@dataclass(frozen=True)
class Syntax(Score):
    """Accuracy of a head in finding, from one word of a dependency, the other (Voita et al. 2019, section 5.2).

    Word-level attention is the sum over the pieces of the key word and the mean over the pieces of the query word. A
    query word is right if its largest weight falls on a word that it stands in the relation with. The baseline is the
    best single offset in words on the same queries. In a decoder only words before the query count, for both. Sentences
    with a word that has no token of its own are left out.

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
        """Count query words, [batch, 1, pair], and those right at each offset, [batch, 1, pair, offset]."""
        pairs = self._pairs(observation)
        by_offset = [pairs.diagonal(offset, -2, -1).sum(-1) for offset in range(-WINDOW, WINDOW + 1)]
        return {"words": pairs.any(-1).sum(-1)[:, None], "offsets": torch.stack(by_offset, -1)[:, None]}

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
        view, causal = observation.queries, observation.causal
        return view.keep((self, causal), lambda: self._right(view, causal))

    def _right(self, view: TokenView, causal: bool) -> Tensor:
        longest = max((len(sentence.spans) for sentence in view.sentences if sentence), default=0) or 1
        pairs = torch.zeros(len(view.sentences), 2 * len(self.relations), longest, longest, dtype=torch.bool)
        for row, (sentence, parsed) in enumerate(zip(view.sentences, view.parsed.tolist(), strict=True)):
            if sentence is None or not parsed:
                continue
            for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
                label = relation.partition(":")[0] if self.subtypes else relation
                if label in self.relations and head >= 0:
                    i = 2 * self.relations.index(label)
                    pairs[row, i, word, head] = pairs[row, i + 1, head, word] = True
        return (pairs.tril(-1) if causal else pairs).to(view.ids.device)


def _between_words(observation: Observation, words: int) -> Tensor:
    """Attention summed over the pieces of both words (for argmax as good as a mean): [batch, heads, word, word]."""
    batch, heads, tokens, _ = observation.weights.shape
    view = observation.queries
    owners = view.words.masked_fill(view.words == NO_WORD, words)  # tokens without a word go to one row more
    owned = view.keep("owned", lambda: one_hot(owners, words + 1)[..., :words].float())  # [batch, token, word]
    on_words = (observation.weights.flatten(1, 2) @ owned).view(batch, heads, tokens, words)
    rows = owners[:, None, :, None].expand_as(on_words)
    between = on_words.new_zeros(batch, heads, words + 1, words).scatter_add_(2, rows, on_words)
    return between[:, :, :words]
