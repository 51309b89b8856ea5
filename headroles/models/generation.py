"""Generation: a model's own greedy continuation of each text, which is then scored as text.

It is written without padding, in batches of texts of one length, with the model's generation config and no sampling, so
that nothing but the text and the model decides it. Reading it again at once (teacher forcing) gives the same attention
as writing it token by token.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from headroles._distributed import track
from headroles.models.batching import ONE, Encoded
from headroles.models.tokens.alignment import NO_WORD, TokenizedSentence


def continued(encoded: Encoded, model: PreTrainedModel, generate: int, positions: int, max_tokens: int) -> Encoded:
    """Return texts continued by at most `generate` tokens that a model, in eval mode, writes; trees are dropped.

    Only tokens of the continuation count as queries and next tokens. Of an encoder-decoder the targets are what its
    decoder writes.
    """
    if model.config.is_encoder_decoder:
        return replace(encoded, target=None, greedy=encoded.greedy or positions, max_new_tokens=generate)
    written: dict[int, TokenizedSentence] = {}
    groups = _of_one_length(encoded, max_tokens, generate)
    for rows in track(iter(groups), "writing continuations", total=len(groups)):
        length = len(encoded.source[rows[0]])
        new = _write([encoded.source[row].ids for row in rows], model, min(generate, positions - length))
        written |= {row: _longer(encoded.source[row], ids) for row, ids in zip(rows, new, strict=True)}
    return replace(encoded, source=[written[row] for row in range(len(encoded.source))])


def _of_one_length(encoded: Encoded, max_tokens: int, generate: int) -> list[list[int]]:
    """Return the rows of texts of one length, the longest first, in batches."""
    by_length = defaultdict[int, list[int]](list)
    for row, sentence in enumerate(encoded.source):
        by_length[len(sentence)].append(row)
    groups = []
    for length, rows in sorted(by_length.items(), reverse=True):
        size = 1 if encoded.together == "single" else max(1, max_tokens // (length + generate))
        groups += [rows[start : start + size] for start in range(0, len(rows), size)]
    return groups


def _write(rows: list[list[int]], model: PreTrainedModel, new: int) -> list[list[int]]:
    """Return the tokens that a model writes after texts of one length, the end token included."""
    if new < 1 or not rows[0]:
        return [[] for _ in rows]
    ids = torch.tensor(rows, device=model.device)
    config = model.generation_config
    ends = torch.tensor([] if config.eos_token_id is None else config.eos_token_id).flatten().tolist()
    padding = config.pad_token_id if config.pad_token_id is not None else next(iter(ends), 0)
    limits = {"max_new_tokens": new, "max_length": None, "pad_token_id": int(padding)}
    with torch.no_grad():
        written = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), num_beams=1, **ONE, **limits)  # type: ignore[operator]
    new_rows = written[:, ids.shape[1] :].tolist()
    return [row[: next((i + 1 for i, token in enumerate(row) if token in ends), len(row))] for row in new_rows]


def _longer(row: TokenizedSentence, ids: list[int]) -> TokenizedSentence:
    """Return a text with its continuation, without its tree and the links of its words."""
    bare: Any = {name: () for name in ("spans", "heads", "relations", "links") if hasattr(row.sentence, name)}
    return TokenizedSentence(
        [*row.ids, *ids],
        [NO_WORD] * (len(row) + len(ids)),
        replace(row.sentence, **bare),
        of_text=None if row.of_text is None else [*row.of_text, *[True] * len(ids)],
        prompt_length=len(row),
    )
