"""Resample ablation: replace the output of a head by its output for another example of the corpus."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headroles.models import batching, heads
from headroles.models.attention_hooks import exclusive, without_cache
from headroles.models.batching import Batch, Encoded
from headroles.models.masking import read_heads
from headroles.models.sites import Site
from headroles.scores.examples import partners
from headroles.tables.frame import KINDS, Kind


class Others:
    """Head outputs of the intact model for the partners of the examples of a batch."""

    def __init__(self, model: PreTrainedModel, encoded: Encoded, seed: int) -> None:
        self.model, self.encoded = model, encoded
        lengths = zip(*(map(len, side) for side in (encoded.source, encoded.target) if side), strict=True)
        places = partners([tuple(pair) for pair in lengths], seed)
        self.partner = dict(zip(encoded.numbers, places, strict=True))  # sentence number -> row

    def of(self, batch: Batch) -> Instead:
        """Run the partners of the examples of a batch and keep the outputs of their heads."""
        other = batching.make_batch([self.partner[number] for number in batch.numbers], self.encoded, self.model)
        outputs: dict[tuple[Kind, int], Tensor] = {}
        with torch.no_grad(), ExitStack() as stack:
            stack.enter_context(exclusive(self.model))
            read_heads(
                stack, self.model, heads.attention_sites(self.model), lambda site, z: outputs.update({site.key: z})
            )
            self.model(**other.inputs, **without_cache(self.model))
        return Instead(outputs, {kind: other.queries(kind).attention_mask for kind in KINDS})


class Instead:
    """Replacement of head outputs by those for other examples, at the tokens that both examples have."""

    def __init__(self, outputs: dict[tuple[Kind, int], Tensor], masks: dict[Kind, Tensor]) -> None:
        self.outputs = outputs  # by site: [example, query, heads, size]
        self.masks = masks  # attention masks of the queries: bool [example, query]

    def __call__(self, site: Site, z: Tensor, variants: int) -> Tensor:
        """Return `z` [variant x example x beam, query, heads, size] replaced where both examples have a token."""
        other, mask = self.outputs[site.key].to(z), self.masks[site.kind].to(z.device)
        common, beams = min(z.shape[1], other.shape[1]), len(z) // (variants * len(other))
        other, mask = (
            tensor[:, :common].repeat(variants, *[1] * (tensor.ndim - 1)).repeat_interleave(beams, 0)
            for tensor in (other, mask)
        )
        replacement = z.detach().clone()
        replacement[:, :common] = torch.where(mask[..., None, None], other, replacement[:, :common])
        return replacement
