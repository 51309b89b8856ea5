"""Another example in a head's place: partners drawn from the whole corpus, and what their heads put out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headroles.models import batching, heads
from headroles.models.attention_hooks import exclusive
from headroles.models.batching import Batch, Encoded
from headroles.models.dummy_inputs import without_cache
from headroles.models.masking import read_heads
from headroles.models.sites import Site
from headroles.tables.frame import KINDS, Kind


def partners(lengths: Sequence[tuple[int, ...]], seed: int) -> list[int]:
    """For each example the place of another one, of like length where there is one; each is the partner of one other.

    Examples of the same lengths make a bucket, together with the next longer ones where there is only one of them. In
    each bucket they are shuffled by `seed`, and each has the next for its partner. Raises ValueError for one example.
    """
    if len(lengths) < 2:
        raise ValueError(
            f"fill 'other' takes the output for another example of the corpus: got {len(lengths)} examples; expected "
            f"2 or more; try another fill"
        )
    buckets: list[list[int]] = []
    for _, group in groupby(sorted(range(len(lengths)), key=lengths.__getitem__), key=lengths.__getitem__):
        if buckets and len(buckets[-1]) < 2:
            buckets[-1] += group
        else:
            buckets.append(list(group))
    if len(buckets[-1]) < 2:
        buckets[-2:] = [buckets[-2] + buckets[-1]]
    found = np.empty(len(lengths), dtype=int)
    draws = np.random.default_rng(seed)
    for bucket in buckets:
        shuffled = draws.permutation(bucket)
        found[shuffled] = np.roll(shuffled, -1)
    return [int(place) for place in found]


class Others:
    """Makes, for a batch of a corpus, what the heads of the intact model put out for the partners of its examples."""

    def __init__(self, model: PreTrainedModel, encoded: Encoded, seed: int) -> None:
        self.model, self.encoded = model, encoded
        lengths = zip(*(map(len, side) for side in (encoded.source, encoded.target) if side), strict=True)
        places = partners([tuple(each) for each in lengths], seed)
        self.partner = dict(zip(encoded.numbers, places, strict=True))  # the row, by a sentence's number

    def of(self, batch: Batch) -> Instead:
        """For the examples of a batch."""
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
    """What the heads of each site put out for other examples, at the tokens that both have."""

    def __init__(self, outputs: dict[tuple[Kind, int], Tensor], present: dict[Kind, Tensor]) -> None:
        self.outputs = outputs  # of a site: [example, query, heads, size]
        self.present = present  # which of the queries are no padding: bool [example, query]

    def __call__(self, site: Site, z: Tensor, variants: int) -> Tensor:
        """In place of z, [variant, example and beam, query, heads, size] with the first two as one.

        Where the other example has no such token a head keeps its own output.
        """
        other, there = self.outputs[site.key].to(z), self.present[site.kind].to(z.device)
        both, beams = min(z.shape[1], other.shape[1]), len(z) // (variants * len(other))
        other, there = (
            each[:, :both].repeat(variants, *[1] * (each.ndim - 1)).repeat_interleave(beams, 0)
            for each in (other, there)
        )
        instead = z.detach().clone()
        instead[:, :both] = torch.where(there[..., None, None], other, instead[:, :both])
        return instead
