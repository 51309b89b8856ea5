"""Partners: for each example of a corpus, another one of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np


def partners(lengths: Sequence[tuple[int, ...]], seed: int) -> list[int]:
    """Draw for each example another one of similar length.

    Examples of the same lengths form a bucket; a bucket of one example is merged with the next longer one. Each bucket
    is shuffled, and the partner of an example is the next one in its bucket.

    Args:
        lengths: Source length, and target length if there is a target, of each example.
        seed: Seed of the shuffles.

    Returns:
        The place of the partner of each example; every example is the partner of exactly one.

    Raises:
        ValueError: If there are fewer than two examples.
    """
    if len(lengths) < 2:
        raise ValueError(
            f"replacement 'resample' takes the output for another example of the corpus: got {len(lengths)} examples; "
            f"expected 2 or more; try another replacement"
        )
    buckets: list[list[int]] = []
    for _, group in groupby(sorted(range(len(lengths)), key=lengths.__getitem__), key=lengths.__getitem__):
        if buckets and len(buckets[-1]) < 2:
            buckets[-1] += group
        else:
            buckets.append(list(group))
    if len(buckets[-1]) < 2:
        buckets[-2:] = [buckets[-2] + buckets[-1]]
    places = np.empty(len(lengths), dtype=int)
    draws = np.random.default_rng(seed)
    for bucket in buckets:
        shuffled = draws.permutation(bucket)
        places[shuffled] = np.roll(shuffled, -1)
    return [int(place) for place in places]
