"""Close: two ways to the same number differ by rounding, in proportion to what was added up and to its precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

FEW, MANY = 64, 1024  # roundings: of a forward pass of a tiny model; of a backward pass with divisions


def bound(size: Any, *, operations: int = FEW, dtype: torch.dtype = torch.float32) -> float:
    """How far off a number may be that comes of numbers of this size by so many roundings, all of them one way."""
    sizes = np.asarray(size.detach() if isinstance(size, torch.Tensor) else size, dtype=np.float64)
    return operations * torch.finfo(dtype).eps * float(np.max(np.abs(sizes), initial=0))


def close(
    found: Any, expected: Any, *, size: Any = None, operations: int = FEW, dtype: torch.dtype = torch.float32
) -> None:
    """Fail unless the numbers are equal but for rounding, and missing in the same places.

    `size` is the largest of the numbers they were computed from, such as the loss of which an effect is a difference;
    by default the largest expected one.
    """
    found, expected = (np.asarray(one, dtype=np.float64) for one in (found, expected))
    largest = expected[np.isfinite(expected)] if size is None else size
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound(largest, operations=operations, dtype=dtype))
