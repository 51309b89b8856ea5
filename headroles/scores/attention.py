"""Attention pass: one forward pass per batch, in which all attention scores observe every site."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headroles.models import dummy_inputs, heads
from headroles.models.batching import Batch
from headroles.models.dummy_inputs import body, without_cache
from headroles.models.heads import attention_sites
from headroles.models.sites import Site
from headroles.scores.accumulator import Accumulator
from headroles.scores.base import Observation, Score
from headroles.scores.frequencies import Frequencies
from headroles.tables.frame import Kind


class AttentionPass:
    """Forward passes of all attention scores over a corpus."""

    def __init__(self, scores: Sequence[Score], model: PreTrainedModel, counted: Frequencies) -> None:
        self.scores, self.model, self.counted = scores, model, counted

    def read(self, batch: Batch, weights: Tensor, accumulator: Accumulator) -> None:
        """Add the sums of one batch; `weights` [1 + resamples, batch] are how often each sentence counts."""
        observe = partial(self._observe, batch, weights, accumulator, {})
        if self._in_parts(batch):
            captured = heads.capture_attention_in_parts(self.model, observe, cells=heads.CELLS)
        else:
            captured = heads.capture_attention(self.model, observe)
        with torch.inference_mode(), captured:
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
        site: Site,
        attention: Tensor,
        first: int = 0,
    ) -> None:
        """Add the sums of one site, or of the block of its queries from `first` on."""
        keys = batch.keys(site.kind)
        queries = batch.queries(site.kind).span(first, first + attention.shape[-2])
        counts, ranks = self.counted["source" if keys is batch.source else "target"]
        attention = attention.float().to(keys.ids.device)
        observation = Observation(site.kind, attention, queries, keys, counts, ranks, first)
        self._check_finite(observation, site, batch)
        for score in (score for score in self.scores if site.kind in score.kinds):
            accumulator.add(score, site.key, score.update(observation), weights)
            if first_sites.setdefault(site.kind, site.key) == site.key:  # all layers of a kind share them
                accumulator.add_denominators(score, site.kind, score.denominators(observation), weights)

    def _check_finite(self, observation: Observation, site: Site, batch: Batch) -> None:
        finite = observation.top[0].isfinite().all(-1).all(-1)  # [batch]
        if not finite.all():
            number = batch.numbers[int(finite.int().argmin())]
            raise ValueError(
                f"the attention of {site.kind} layer {site.layer} is not finite on sentence {number + 1} of the "
                f"corpus; {dummy_inputs.advice(self.model)}"
            )
