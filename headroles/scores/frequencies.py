"""How frequent tokens are: counted in the corpus or in a reference, on the side that heads look at."""

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
    """Counts and ranks of tokens on either side: of `reference`, by default of the corpus itself.

    `written`, where it is not None, are the batches of this process, and the target side is what the model wrote in
    them. All counts of a side are 0 where there is nothing to count: that of a reference without translations.
    """
    counted = pages.first if reference is None else tokenised(reference, tokenizer, model)
    target = counted.counts("target") if written is None else _of_all(written)
    return {"source": _ranked(counted.counts("source"), model), "target": _ranked(target, model)}


def uncounted(pages: Pages, found: Frequencies, reference: Corpus | None) -> dict[Kind, str]:
    """The kinds of heads that look at tokens which were not counted, and why they were not."""
    has_target = bool(pages.first.greedy) or pages.first.target is not None
    sides: dict[Kind, str] = {kind: "target" if has_target and kind == "dec-self" else "source" for kind in KINDS}
    where = f"corpus {pages.corpus.name!r}" if reference is None else f"reference {reference.name!r}"
    reasons = {
        "source": f"{where} has no content tokens to count; try reference= with a corpus of whole sentences",
        "target": f"{where} has no target side to count the decoder's tokens in; try a reference= with translations",
    }
    return {kind: reasons[side] for kind, side in sides.items() if not found[side][0].any()}


def _of_all(written: Sequence[Batch]) -> Counter[int]:
    """How often each content token occurs in the targets of the batches of all processes."""
    own: Counter[int] = Counter()
    for batch in written:
        if batch.target is not None:
            own.update(batch.target.ids[batch.target.content].tolist())
    return sum(_distributed.gathered([own]), Counter())


def _ranked(counts: Counter[int], model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """How often each token occurs, and its rank: 0 is the most frequent, ties by id; those that never occur come last.

    A token that never occurs is none of the most frequent, however few different tokens there are.
    """
    table = torch.zeros(vocabulary(model), dtype=torch.long)
    for token, count in counts.items():
        table[token] = count
    ranks = torch.empty_like(table)
    ranks[table.argsort(descending=True, stable=True)] = torch.arange(len(table))
    ranks[table == 0] += NEVER
    return table.to(model.device), ranks.to(model.device)
