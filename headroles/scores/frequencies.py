"""Token frequencies: counts and ranks in the corpus or in a reference, on the side of the keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import _distributed
from headroles.data.corpus import Corpus
from headroles.models.batching import Batch, Pages, tokenised
from headroles.models.loading import vocabulary
from headroles.tables.frame import KINDS, Kind

NEVER = 2**32  # is added to the ranks of tokens that do not occur
Frequencies = dict[str, tuple[Tensor, Tensor]]  # "source", "target" -> counts and ranks, each [vocabulary]


def frequencies(
    pages: Pages,
    written: Sequence[Batch] | None,
    reference: Corpus | None,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
) -> Frequencies:
    """Count tokens on the source and the target side.

    Args:
        pages: the corpus to be measured.
        written: batches of this process with the model's own output, which is then the target side; None: the corpus
            has targets, or needs none.
        reference: corpus to count in; None: the corpus itself.
        tokenizer: tokenizer of the model.
        model: the model.

    Returns:
        Counts and ranks, each [vocabulary], of "source" and "target". Counts are all 0 for a side without tokens.
    """
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
