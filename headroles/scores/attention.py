"""Attention pass: one forward pass per batch, in which all attention scores observe every site, and token counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import _distributed
from headroles.data.corpus import Corpus
from headroles.models import dummy_inputs, heads
from headroles.models.attention_hooks import without_cache
from headroles.models.batching import Batch, Pages, tokenised
from headroles.models.dummy_inputs import body
from headroles.models.heads import attention_sites
from headroles.models.provenance import is_offloaded, without_gradients
from headroles.models.sites import Site
from headroles.models.tokenization import vocabulary
from headroles.scores.accumulator import Accumulator
from headroles.scores.base import Observation, Score
from headroles.scores.value_norms import ValueNorms
from headroles.tables.frame import KINDS, Kind

NEVER = 2**32  # is added to the ranks of tokens that do not occur
Frequencies = dict[str, tuple[Tensor, Tensor]]  # "source", "target" -> counts and ranks, each [vocabulary]


class _AllObservedError(Exception):
    """Every site of a forward pass was observed: the rest of the pass changes no score."""


class AttentionPass:
    """Forward passes of all attention scores over a corpus. Each pass ends at the last attention of the model."""

    def __init__(self, scores: Sequence[Score], model: PreTrainedModel, counted: Frequencies) -> None:
        self.scores, self.model, self.counted = scores, model, counted
        self.norms = ValueNorms(model)
        self.sites = {site.key for site in attention_sites(model) if site.heads}
        self.ends_early = not is_offloaded(model)  # hooks that send weights back run at the end of each module

    def read(self, batch: Batch, weights: Tensor, accumulator: Accumulator) -> None:
        """Add the sums of one batch; `weights` [1 + resamples, batch] are how often each sentence counts."""
        observe = partial(self._observe, batch, weights, accumulator, {}, set(self.sites))
        if self._in_parts(batch):
            captured = heads.capture_attention_in_parts(self.model, observe, cells=heads.CELLS)
        else:
            captured = heads.capture_attention(self.model, observe)
        with without_gradients(self.model), self.norms.reading(), captured, suppress(_AllObservedError):
            body(self.model)(**batch.inputs, **without_cache(body(self.model)))

    def _in_parts(self, batch: Batch) -> bool:
        """Whether all scores add over blocks of queries, and some layer has more weights than one block may have."""
        sizes = [
            site.heads * batch.queries(site.kind).ids.numel() * batch.keys(site.kind).ids.shape[1]
            for site in attention_sites(self.model)
        ]
        return max(sizes) > heads.CELLS and all(score.in_parts for score in self.scores)

    def _observe(
        self,
        batch: Batch,
        weights: Tensor,
        accumulator: Accumulator,
        first_sites: dict[Kind, tuple[Kind, int]],
        remaining: set[tuple[Kind, int]],
        site: Site,
        attention: Tensor,
        first: int = 0,
    ) -> None:
        """Add the sums of one site, or of the block of its queries from `first` on; end the pass after the last."""
        keys = batch.keys(site.kind)
        queries = batch.queries(site.kind).span(first, first + attention.shape[-2])
        counts, ranks = self.counted["source" if keys is batch.source else "target"]
        attention = attention.float().to(keys.ids.device)
        norms = partial(self.norms.of, site)
        observation = Observation(site.kind, attention, queries, keys, counts, ranks, first, norms)
        self._check_finite(observation, site, batch)
        if any(score.weights == "norm" for score in self.scores):
            self._check_finite(observation.by_norm, site, batch)
        for score in (score for score in self.scores if site.kind in score.kinds):
            observed = observation if score.weights == "attention" else observation.by_norm
            accumulator.add(score, site.key, score.update(observed), weights)
            if first_sites.setdefault(site.kind, site.key) == site.key:  # all layers of a kind share them
                accumulator.add_denominators(score, site.kind, score.denominators(observation), weights)
        if first + attention.shape[-2] == batch.queries(site.kind).ids.shape[1]:
            remaining.discard(site.key)
            if not remaining and self.ends_early:
                raise _AllObservedError

    def _check_finite(self, observation: Observation, site: Site, batch: Batch) -> None:
        finite = observation.top[0].isfinite().all(-1).all(-1)  # [batch]
        if not finite.all():
            number = batch.numbers[int(finite.int().argmin())]
            raise ValueError(
                f"the attention of {site.kind} layer {site.layer} is not finite on sentence {number + 1} of the "
                f"corpus; {dummy_inputs.advice(self.model)}"
            )


def frequencies(
    pages: Pages,
    written: Sequence[Batch] | None,
    reference: Corpus | None,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
) -> Frequencies:
    """Count the tokens of each side of the reference, by default of the corpus with targets that the model wrote."""
    counted = pages.first if reference is None else tokenised(reference, tokenizer, model)
    target = counted.counts("target") if written is None else _of_all(written)
    return {"source": _ranked(counted.counts("source"), model), "target": _ranked(target, model)}


def uncounted(pages: Pages, counted: Frequencies, reference: Corpus | None) -> dict[Kind, str]:
    """Return the kinds of heads with uncounted key tokens, and why they were not counted."""
    has_target = bool(pages.first.greedy) or pages.first.target is not None
    sides: dict[Kind, str] = {kind: "target" if has_target and kind == "dec-self" else "source" for kind in KINDS}
    where = f"corpus {pages.corpus.name!r}" if reference is None else f"reference {reference.name!r}"
    reasons = {
        "source": f"{where} has no content tokens to count; try reference= with a corpus of whole sentences",
        "target": f"{where} has no target side to count the decoder's tokens in; try a reference= with translations",
    }
    return {kind: reasons[side] for kind, side in sides.items() if not counted[side][0].any()}


def _of_all(written: Sequence[Batch]) -> Counter[int]:
    """How often each content token occurs in the targets of the batches of all processes."""
    counts: Counter[int] = Counter()
    for batch in written:
        if batch.target is not None:
            counts.update(batch.target.ids[batch.target.content].tolist())
    return sum(_distributed.gathered([counts]), Counter())


def _ranked(counts: Counter[int], model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Counts and ranks, 0 for the most frequent, ties by id; tokens that do not occur rank beyond any threshold."""
    table = torch.zeros(vocabulary(model), dtype=torch.long)
    for token, count in counts.items():
        table[token] = count
    ranks = torch.empty_like(table)
    ranks[table.argsort(descending=True, stable=True)] = torch.arange(len(table))
    ranks[table == 0] += NEVER
    return table.to(model.device), ranks.to(model.device)
