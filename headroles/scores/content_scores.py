"""Scores of what is attended to: rare or repeated tokens, dependencies, translations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from headroles.data.corpus import RELATIONS
from headroles.models.batching import TokenView
from headroles.models.tokens.alignment import NO_WORD
from headroles.patterns import alignment
from headroles.patterns.alignment import Diagonal, diagonal
from headroles.patterns.dependency import WAYS, related_words
from headroles.patterns.observation import At
from headroles.patterns.simple import Rarest, earlier, followed
from headroles.scores.attention_scores import Measured
from headroles.scores.base import QUERIES, SELF, Observation, Score, Sums
from headroles.tables.frame import Kind

WINDOW = 20  # offsets tried for the baseline of syntax, in words


@dataclass(frozen=True)
class Rarity(Score):
    """Share of content queries with the largest weight on the sentence's rarest token (Voita et al. 2019, section 5.3).

    A sentence counts if its rarest token is not among the most frequent tokens of the reference corpus. In a decoder,
    only queries at or after that token count. Of equally rare tokens the first is taken. If tokens are counted in the
    corpus itself and fewer than `frequent` of them occur more than once, the score has no interval.

    Args:
        frequent: number of most frequent tokens that are not rare.
    """

    frequent: int = 500
    needs = frozenset({"counts"})
    in_parts = True
    is_share = True
    missing = (
        "in no sentence is the rarest token outside the most frequent ones (500 by default) of the corpus they are "
        "counted in, where frames of sound are none; try a larger one: reference=, or a smaller Rarity(frequent=...)"
    )

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the queries with the largest weight on the rarest token: [batch, heads]."""
        place, counted = Rarest(self.frequent).rarest(observation)
        return {"rarity": observation.over_queries(observation.top[1] == place[:, None, None], counted)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the content queries that can attend to the rarest token: [batch, heads or 1]."""
        return {QUERIES: observation.count(Rarest(self.frequent).rarest(observation)[1])}

    def reason_no_interval(self, counts: Tensor, /) -> str | None:
        """Return the reason if chance decides which tokens are the most frequent, since most of them occur once."""
        known = int((counts > 1).sum())
        if not counts.any() or known >= self.frequent:
            return None
        return (
            f"rare means outside the {self.frequent} most frequent tokens, and only {known} occur more than once in "
            f"this corpus; count them in a larger one: reference="
        )


class _OfRepeats:
    """A score of content queries with an earlier occurrence of their token; NaN where no token occurs twice."""

    kinds: ClassVar[tuple[Kind, ...]] = ("dec-self",)
    in_parts: ClassVar[bool] = True
    missing: ClassVar[str] = "in no sentence does a token occur twice; try hr.repeated_tokens(tokenizer, 100)"

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count these queries: [batch, heads or 1]."""
        return {QUERIES: observation.count(earlier(observation).any(-1))}

    def on(self, targets: Tensor, observation: Observation) -> Tensor:
        """Sum the weights of these queries on their targets, bool [batch, query, key]: [batch, heads]."""
        weights = (observation.on_real * targets[:, None]).sum(-1)  # [batch, heads, query]
        return observation.over_queries(weights, earlier(observation).any(-1))


@dataclass(frozen=True)
class Induction(_OfRepeats, Score):
    """Mean weight on the tokens that followed earlier occurrences of the query's token: "prefix matching".

    The mean is over content queries with such an occurrence (Olsson et al. 2022, "In-context learning and induction
    heads"), usually in repeated random tokens (`headroles.repeated_tokens`).
    """

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the weights: [batch, heads]."""
        return {"induction": self.on(followed(observation), observation)}


@dataclass(frozen=True)
class Duplicate(_OfRepeats, Score):
    """Mean weight on earlier occurrences of the query's token, over content queries with such an occurrence.

    A "duplicate-token head" (Wang et al. 2022, "Interpretability in the wild").
    """

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the weights: [batch, heads]."""
        return {"duplicate": self.on(earlier(observation), observation)}


@dataclass(frozen=True)
class Syntax(Score):
    """Accuracy of a head in finding, from one word of a dependency, the other (Voita et al. 2019, section 5.2).

    Word-level attention is the sum over the pieces of the key word and the mean over the pieces of the query word. A
    query word is right if its largest weight falls on a word that it stands in the relation with. The baseline is the
    best single offset in words on the same queries. In a decoder only words before the query count, for both. Words
    without a token of their own, as in multiword tokens, are neither queries nor keys.

    Args:
        relations: relations of Universal Dependencies; `obj` is Stanford's `dobj`.
        subtypes: whether subtypes such as `nsubj:pass` count as their relation.
    """

    relations: tuple[str, ...] = RELATIONS
    subtypes: bool = False
    kinds = SELF
    needs = frozenset({"trees"})

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the query words that are right: [batch, heads, relation and way]."""
        pairs = self._pairs(observation)  # [batch, relation and way, query word, key word]
        weights, places = _between_words(observation, pairs.shape[-1]).max(-1)  # each [batch, heads, query word]
        rows = pairs[:, :, None].expand(-1, -1, places.shape[1], -1, -1)
        right = rows.gather(-1, places[:, None, ..., None].expand(*rows.shape[:-1], 1)).squeeze(-1)
        return {"right": (right & (weights > 0)[:, None]).sum(-1).mT}  # without weight on any word none is right

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count query words, [batch, heads or 1, pair], and query words right at each offset, [..., pair, offset]."""
        pairs = self._pairs(observation)
        view, size = observation.queries, pairs.shape[-1]
        counting = (observation.counting().float() @ _pieces(view, size) > 0).float()  # [batch, heads or 1, query word]
        right = view.keep(("offsets", self, observation.causal), lambda: _at_offsets(pairs))
        return {
            "words": counting @ pairs.any(-1).float().mT,
            "offsets": (counting @ right.flatten(2)).unflatten(-1, right.shape[2:]),
        }

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
        return words | {f"{name}.baseline": count for name, count in words.items()}

    def _names(self) -> list[str]:
        return [f"syntax[{relation} {way}]" for relation in self.relations for way in WAYS]

    def _pairs(self, observation: Observation) -> Tensor:
        """Return which key words are right for which query words: bool [batch, relation and way, query, key word]."""
        view, causal = observation.queries, observation.causal

        def pairs() -> Tensor:
            every = related_words(view, self.relations, subtypes=self.subtypes, causal=causal)
            words = _pieces(view, every.shape[-1])  # those with a token that counts, as a query or as a key:
            asked, read = (side.content[:, None].float() @ words > 0 for side in (view, observation.keys))
            return every & asked[..., None] & read[:, None]  # both [batch, 1, word]

        return view.keep((self, causal), pairs)


def _at_offsets(pairs: Tensor) -> Tensor:
    """Return whether each query word is right at each offset: float32 [batch, query word, pair, offset]."""
    words = torch.arange(pairs.shape[-1], device=pairs.device)
    places = (words[:, None] + torch.arange(2 * WINDOW + 1, device=pairs.device)).expand(*pairs.shape[:-1], -1)
    return pad(pairs, (WINDOW, WINDOW)).gather(-1, places).float().movedim(1, 2)


def _pieces(view: TokenView, words: int) -> Tensor:
    """Return which tokens are pieces of each word: float32 [batch, token, word]."""
    owners = view.words.masked_fill(view.words == NO_WORD, words)
    return view.keep(("pieces", words), lambda: one_hot(owners, words + 1)[..., :words].float())


def _between_words(observation: Observation, words: int) -> Tensor:
    """Sum attention over the pieces of both words, which has the argmax of a mean: [batch, heads, word, word]."""
    batch, heads, tokens, _ = observation.weights.shape
    view = observation.queries
    owners = view.words.masked_fill(view.words == NO_WORD, words)  # tokens without a word go to one row more
    on_words = (observation.weights.flatten(1, 2) @ _pieces(view, words)).view(batch, heads, tokens, words)
    rows = owners[:, None, :, None].expand_as(on_words)
    between = on_words.new_zeros(batch, heads, words + 1, words).scatter_add_(2, rows, on_words)
    return between[:, :, :words]


class _OfStep:
    """A score of target tokens, at the step that has read the token or at the one that predicts it."""

    at: At
    kinds: ClassVar[tuple[Kind, ...]] = ("cross",)

    def __repr__(self) -> str:
        return repr(Diagonal(self.at)).replace("Diagonal", type(self).__name__)


@dataclass(frozen=True, repr=False)
class Alignment(_OfStep, Score):
    """Agreement of cross-attention with a monotone path, and with the diagonal.

    `alignment[monotone]` is Kendall's tau-a between the position of a target token and the position of the source token
    with its largest weight, averaged over sentences with two or more target tokens: 1 for a strictly forward path, -1
    for a backward one, 0 for a constant one. `alignment[diagonal]` is the share of target tokens with the largest
    weight within one token of the diagonal. A target token is the one that the decoder reads, not the one it predicts.

    Args:
        at: "read", or "next" for the token that it predicts: columns `alignment[monotone next]` and so on.
    """

    at: At = "read"

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Sum the sentences' taus and the hits on the diagonal: each [batch, heads]."""
        observation = observation.of_step(self.at)
        places = observation.top[1]  # [batch, heads, query]
        counting = observation.counting()
        pairs = (counting[..., :, None] & counting[..., None, :]).triu(1)  # [batch, heads or 1, earlier, later]
        short = places.to(torch.int16)
        order = (short[:, :, None, :] - short[:, :, :, None]).sign_()  # [batch, heads, earlier, later]
        agreement = order.mul_(pairs).sum((-1, -2)).double()
        near = _on_diagonal(observation, places)
        return {"tau": agreement / pairs.sum((-1, -2)).clamp(min=1), "near": observation.over_queries(near)}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count target tokens, and sentences with two or more: each [batch, heads or 1]."""
        queries = observation.of_step(self.at).count()
        return {QUERIES: queries, "sentences": queries > 1}

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `alignment[monotone]` and `alignment[diagonal]`."""
        monotone, near = sums["tau"] / sums["sentences"], sums["near"] / sums[QUERIES]
        return {self._column("monotone"): monotone, self._column("diagonal"): near}

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """Return the number of target tokens."""
        return {self._column("diagonal"): sums[QUERIES]}

    def _column(self, of: str) -> str:
        return f"alignment[{of}]" if self.at == "read" else f"alignment[{of} next]"


def _on_diagonal(observation: Observation, places: Tensor) -> Tensor:
    """Return positions within one token of the diagonal, start + step / ends x length: bool [batch, heads, query]."""
    step, ends, start, length = diagonal(observation)
    # the border is a fraction, so both sides are compared as integers, times `ends`
    apart = (places - start[:, None]) * ends[:, None] - (step * length)[:, None]
    return apart.abs() <= ends[:, None]


@dataclass(frozen=True, repr=False)
class Links(_OfStep, Score):
    """Share of linked target tokens with the largest weight on a source word linked with their word.

    Links come from `hr.read(..., links=)`. The baseline is the share of the same tokens for which the source token on
    the diagonal belongs to a linked word. A target token is the one that the decoder reads, not the one it predicts.
    A language model reads both texts as one (`hr.read(..., links=).joined()`); there the diagonal is of words: from the
    first linked source word to the last.

    Args:
        at: "read", or "next" for the token that it predicts, with the column `links[next]`: where heads that align
            speech for timestamps attend.
    """

    at: At = "read"
    kinds = ("cross", "dec-self")
    needs = frozenset({"links"})

    @property
    def label(self) -> str:
        """Prefix of the score's columns."""
        return self.column(self._name)

    def update(self, observation: Observation) -> dict[str, Tensor]:
        """Count the target tokens that are right: [batch, heads]."""
        hits, _ = Measured(alignment.Alignment(self.at)).update(observation).values()
        return {"hits": hits}

    def denominators(self, observation: Observation) -> dict[str, Tensor]:
        """Count the linked target tokens, and how many of them the diagonal gets right: each [batch, heads or 1]."""
        targets = Measured(alignment.Alignment(self.at)).targets(observation)[:, 0]  # bool [batch, query, key]
        seen = observation.of_step(self.at)
        near = (targets & self._diagonal(observation, seen.queries.words)).any(-1)  # [batch, query]
        return {QUERIES: seen.count(targets.any(-1)), "near": seen.count(near)}

    def _diagonal(self, observation: Observation, words: Tensor) -> Tensor:
        """Return the keys on the diagonal of queries of these words: bool [batch, query, key]."""
        if not observation.causal:
            return Diagonal(self.at).targets(observation) > 0
        pairs = alignment.links(observation)
        (first, last), (start, end) = (_ends(pairs.any(axis)) for axis in (2, 1))  # of target and source words
        place = start + (2 * (words - first) * (end - start) + last - first) // (2 * (last - first).clamp(min=1))
        return place[..., None] == observation.keys.words[:, None]

    def compute(self, sums: Sums) -> dict[str, Tensor]:
        """Compute `links`, and the diagonal's share as `.baseline`."""
        share = sums["hits"] / sums[QUERIES]
        baseline = (sums["near"] / sums[QUERIES]).expand_as(share)
        return {self._name: share, f"{self._name}.baseline": baseline}

    def counted(self, sums: Sums) -> dict[str, Tensor]:
        """Return the number of linked target tokens, for the share and its baseline."""
        return dict.fromkeys((self._name, f"{self._name}.baseline"), sums[QUERIES])

    @property
    def _name(self) -> str:
        return "links" if self.at == "read" else "links[next]"


def _ends(linked: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last place that is True: each [batch, 1]."""
    size = linked.shape[1]
    return linked.int().argmax(-1, keepdim=True), size - 1 - linked.flip(-1).int().argmax(-1, keepdim=True)
