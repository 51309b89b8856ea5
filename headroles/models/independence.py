"""Batch independence: whether the numbers of a text depend on the other texts of its batch, by a few forwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from headroles.models.batching import Encoded, Together, make_batch
from headroles.models.sites import Sites
from headroles.models.tokens.alignment import TokenizedSentence

ROUNDING = {8: 1e-9, 4: 1e-4, 2: 5e-2}  # bytes of a number -> difference by rounding, as a share of the largest output
TELLING = 4  # tokens of a text from which a dependence shows
SELECTING = (torch.topk, torch.Tensor.topk, torch.sort, torch.Tensor.sort, torch.argsort, torch.Tensor.argsort)
FAULTS = (ValueError, RuntimeError, IndexError)
Forward = Callable[[Mapping[str, Tensor]], Any]
log = logging.getLogger(__name__)
# what was found for a model with these sites, by the lengths of the shortest and the longest text
_found: WeakKeyDictionary[PreTrainedModel, tuple[Sites, dict[tuple[int, int], Together]]] = WeakKeyDictionary()


# Some models choose by the longest text of a batch (factors of rotary positions, block-sparse attention), others read
# padding, or select keys among it. Which do so stands in no config. So two texts, one of the shortest (not of a token
# or two, which have next to nothing to attend to) and one a little shorter than the longest, are read alone, and padded
# beside the longest. If their states differ by more than rounding, one is read beside a text of its own length, cut
# from the longest. A selection among keys breaks ties by their number, and ties are rare: it is seen by the operation
# itself. What holds for two lengths holds for lengths between them.
def together(model: PreTrainedModel, sites: Sites, encoded: Encoded, max_tokens: int, forward: Forward) -> Together:
    """Return which texts of a corpus may share a batch of a model, in eval mode, so that each has its own numbers.

    What was found is forgotten when the sites change. Texts longer than half of `max_tokens` share no batch.
    """
    if encoded.together == "single":
        return "single"
    lengths = [max(map(len, row)) for row in zip(*filter(None, (encoded.source, encoded.target)), strict=True)]
    rows = sorted((row for row, length in enumerate(lengths) if 2 * length <= max_tokens), key=lambda row: lengths[row])
    shorter = [row for row in rows if lengths[row] < lengths[rows[-1]]]
    if not shorter:
        return "any"
    pair = (lengths[rows[0]], lengths[rows[-1]])
    if model not in _found or _found[model][0] is not sites:
        _found[model] = sites, {}
    known = _found[model][1]
    for (short, long), mode in known.items():
        if (short <= pair[0] and pair[1] <= long) if mode == "any" else (pair[0] <= short and long <= pair[1]):
            return mode
    short_row = next((row for row in shorter if lengths[row] >= TELLING), shorter[-1])
    known[pair] = _measured(model, encoded, [*dict.fromkeys([shorter[-1], short_row]), rows[-1]], forward)
    if known[pair] != "any":
        log.warning(
            "%s may give texts of %d to %d tokens other numbers in one batch: %s", type(model).__name__, *pair,
            "texts of equal length are read together" if known[pair] == "equal-length" else "each text is read alone",
        )  # fmt: skip
    return known[pair]


def _measured(model: PreTrainedModel, encoded: Encoded, rows: Sequence[int], forward: Forward) -> Together:
    """Which texts may share a batch, as measured on the shorter texts and the longest, the last of these rows."""
    if encoded.greedy:  # the decoder reads its start token, and need not write first
        starts = [TokenizedSentence(row.ids[:1], row.words[:1], row.sentence) for row in encoded.source]
        encoded = replace(encoded, target=starts)
    singles, mixed = [_inputs([row], encoded, model) for row in rows[:-1]], _inputs(rows, encoded, model)
    cut = {name: torch.cat([value, mixed[name][-1:, : value.shape[1]]]) for name, value in singles[0].items()}
    with torch.no_grad(), _Selections() as alone_selections:
        try:
            alone = [forward(inputs)[0][0] for inputs in singles]
        except FAULTS:  # which the call itself is to explain
            return "any"
        if not all(states.isfinite().all() for states in alone):
            return "any"
    with torch.no_grad(), _Selections() as selections:
        is_mixed = _is_same(forward, mixed, alone)
        selects = (selections.sizes - alone_selections.sizes) & {value.shape[1] for value in mixed.values()}
        if is_mixed and not selects:
            return "any"
        return "equal-length" if _is_same(forward, cut, alone[:1]) else "single"


def _inputs(rows: Sequence[int], encoded: Encoded, model: PreTrainedModel) -> dict[str, Tensor]:
    return dict(make_batch(rows, encoded, model).inputs)


def _is_same(forward: Forward, inputs: Mapping[str, Tensor], alone: Iterable[Tensor]) -> bool:
    """Whether the first texts of a batch have the states that they have alone, [token, width]."""
    try:
        states = forward(inputs)[0]
    except FAULTS:  # of a model that takes one text at a time
        return False
    return all(is_same(states[row, : len(expected)], expected) for row, expected in enumerate(alone))


def is_same(values: Tensor, expected: Tensor) -> bool:
    """Return whether numbers are equal but for rounding."""
    if values.shape != expected.shape:
        return False
    size = float(expected.abs().max()) if expected.numel() else 0.0
    return bool(((values - expected).abs() <= ROUNDING[expected.element_size()] * size).all())


class _Selections(TorchFunctionMode):
    """Notes among how many numbers a forward selects some, or orders all."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ARG002
        kwargs = kwargs or {}
        given = args[0] if args else kwargs.get("input")
        if func in SELECTING and isinstance(given, Tensor):
            is_topk = func in SELECTING[:2]
            dim = kwargs.get("dim", args[2] if is_topk and args[2:] else args[1] if not is_topk and args[1:] else -1)
            size = given.shape[dim]
            if not is_topk or size > kwargs.get("k", args[1] if args[1:] else 0):
                self.sizes.add(size)
        return func(*args, **kwargs)
