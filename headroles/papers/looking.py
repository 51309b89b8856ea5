"""Looking: the attention of one head on sentences, token by token, with the rarest token of each marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import heads, models
from headroles.scores import attention
from headroles.text import Corpus, Sentence


def looks(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    sentences: Sequence[Sentence],
    head: Any,
) -> pd.DataFrame:
    """A row per sentence, query and key: `weight`, and of the key its `token`, whether it is real and the rarest.

    How rare a token is, is counted in `corpus`; `counted` are tokens that are not special, `rarest` the first of the
    least frequent among them.
    """
    special = models.special(tokenizer, model)
    counts: Counter[int] = Counter()
    for one in corpus:
        counts.update(tokenizer(one.text)["input_ids"])
    rows = []
    for number, sentence in enumerate(sentences):
        weights = attention(model, tokenizer, sentence, head).to_numpy()
        ids = tokenizer(sentence.text)["input_ids"]
        real = [place for place, one in enumerate(ids) if one not in special]
        rarest = min(real, key=lambda place: counts[ids[place]])
        tokens = tokenizer.convert_ids_to_tokens(ids)
        rows += [
            (number, *head, query, key, tokens[key], weights[query, key], key in real, key == rarest)
            for query in range(len(ids))
            for key in range(len(ids))
        ]
    columns = ["sentence", *heads.LEVELS, "query", "key", "token", "weight", "counted", "rarest"]
    table = pd.DataFrame(rows, columns=columns)
    text = heads.sign(model=models.name(model), weights=models.revision(model), counted_in=corpus.hash)
    table.attrs["signatures"] = dict.fromkeys(table.columns, text)
    return table
