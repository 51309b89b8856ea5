"""Michel's exact pruning: heads ranked by importance, which is computed again after every step."""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headroles as hr
from headroles.models.masking import Head

STEPS = 10


def ranked_again(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, corpus: hr.Corpus) -> list[Head]:
    """Order heads by importance, computed again after each step with the heads so far masked."""
    every, masked = list(hr.models.head_index(model)), []
    for step in range(1, STEPS + 1):
        with hr.mask_heads(model, hr.head_mask(model, masked)):
            values = hr.score(model, tokenizer, corpus, "importance", n_resamples=0)["importance"]
        left = values.loc[[head for head in every if head not in masked]].sort_values(kind="stable")
        masked += left.index.tolist()[: round(len(every) * step / STEPS) - len(masked)]
    return masked
