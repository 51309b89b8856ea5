"""Learned offsets: the relative positions to which each head attends on average on another corpus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headroles.data.corpus import CorpusLike
from headroles.data.readers import as_corpus
from headroles.models.head_model import HeadModel, Model
from headroles.models.identity import fingerprint
from headroles.models.sites import Site
from headroles.patterns.base import Pattern
from headroles.patterns.observation import SELF, Observation
from headroles.tables.frame import Kind


@dataclass(frozen=True)
class LearnedOffset(Pattern):
    """A head's mean attention by relative position, which ignores the words (`LearnedOffset.learn`).

    Args:
        mean: (kind, layer) -> mean weights at the offsets -span to span, Tensor[heads, 2 x span + 1].
    """

    mean: Mapping[tuple[Kind, int], Tensor] = field(repr=False, hash=False, compare=False)
    digest: str = field(init=False)  # of the mean
    kinds = SELF
    about = "where it attends on average"

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", fingerprint(self.mean))  # frozen

    @classmethod
    def learn(
        cls, model: Model, tokenizer: PreTrainedTokenizerBase, corpus: CorpusLike, *, span: int = 64
    ) -> LearnedOffset:
        """Learn the mean attention of every head by relative position.

        Args:
            model: A transformers model.
            tokenizer: Its tokenizer.
            corpus: Text that no other measurement uses.
            span: The largest distance in tokens.

        Returns:
            The pattern. The mean at an offset is over the content queries with a token there, also a special one.
        """
        handle = HeadModel.of(model, tokenizer)
        sums = {site.key: torch.zeros(site.heads, 2 * span + 1, dtype=torch.float64) for site in handle.sites}
        counts = {site.key: torch.zeros(2 * span + 1, dtype=torch.float64) for site in handle.sites}
        with handle.evaluating(), handle.without_gradients():
            for batch in handle.batches(handle.tokenised(as_corpus(corpus))):

                def add(site: Site, weights: Tensor, first: int, _: object) -> None:
                    queries, keys = batch.queries(site.kind), batch.keys(site.kind)  # noqa: B023 - called in this forward
                    if site.kind not in SELF:
                        return
                    rows = (queries.content[:, first : first + weights.shape[2]]).double()  # [batch, query]
                    offsets = _offsets(weights.shape[2], weights.shape[3], first, span).to(weights.device)
                    seen = rows[:, :, None] * keys.attention_mask[:, None]
                    if site.kind == "dec-self":
                        seen = seen.tril(first)
                    inside = offsets >= 0
                    places = offsets[inside].cpu()
                    counts[site.key].index_add_(0, places, seen.sum(0)[inside].cpu())
                    total = (weights.double() * seen[:, None]).sum(0)[:, inside].cpu()  # [heads, place]
                    sums[site.key].index_add_(1, places, total)

                with handle.capture(add):
                    handle.forward_body(batch)
        mean = {key: (total / counts[key].clamp(min=1)).float() for key, total in sums.items() if key[0] in SELF}
        return cls(mean)

    def check(self, site: Site) -> None:
        """Raise ValueError for heads without a learnt offset."""
        super().check(site)
        learnt = len(self.mean.get(site.key, ()))
        if learnt != site.heads:
            raise ValueError(
                f"pattern {self} must be learnt on the {site.heads} heads of {site.kind} layer {site.layer}, got "
                f"{learnt}; try LearnedOffset.learn with this model"
            )

    def targets(self, observation: Observation) -> Tensor:
        """Return the mean weights at the offsets of the tokens, renormalised: [batch, heads, query, key]."""
        table = self.mean[observation.kind, observation.layer].to(observation.keys.ids.device)
        keys = observation.keys.attention_mask
        offsets = _offsets(observation.queries.ids.shape[1], keys.shape[1], observation.first, table.shape[1] // 2)
        offsets = offsets.to(table.device)
        weights = torch.where(offsets >= 0, table[:, offsets.clamp(min=0)], 0.0) * keys[:, None, None]
        weights = weights.tril(observation.first) if observation.causal else weights
        return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)


def _offsets(queries: int, keys: int, first: int, span: int) -> Tensor:
    """Return the place of each key in a table of offsets, -1 outside: [query, key]."""
    apart = torch.arange(keys) - torch.arange(first, first + queries)[:, None] + span
    return apart.masked_fill((apart < 0) | (apart > 2 * span), -1)
