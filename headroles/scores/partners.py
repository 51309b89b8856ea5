"""Partners: for each example of a corpus, another one of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np


def partners(lengths: Sequence[tuple[int, ...]], seed: int) -> list[int]:
    """Draw for each example, by its lengths, another one of similar length; each is drawn once. Returns places."""
    if len(lengths) < 2:
        raise ValueError(
            f"replacement 'resample' takes the output for another example of the corpus: got {len(lengths)} examples; "
            f"expected 2 or more; try another replacement"
        )
    buckets: list[list[int]] = []  # of examples of the same lengths; one alone is merged with the next longer ones
    for _, group in groupby(sorted(range(len(lengths)), key=lengths.__getitem__), key=lengths.__getitem__):
        if buckets and len(buckets[-1]) < 2:
            buckets[-1] += group
        else:
            buckets.append(list(group))
    if len(buckets[-1]) < 2:
        buckets[-2:] = [buckets[-2] + buckets[-1]]
    places = np.empty(len(lengths), dtype=int)
    draws = np.random.default_rng(seed)
    for bucket in buckets:  # the partner is the next one in the shuffled bucket
        shuffled = draws.permutation(bucket)
        places[shuffled] = np.roll(shuffled, -1)
    return [int(place) for place in places]
