"""Attention of every head on a few example sentences, one forward each, kept as a table to be looked at."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.data.corpus import Corpus
from headroles.models import attention_hooks, batching, dummy_inputs, loading
from headroles.models.batching import Batch, Encoded, TokenView
from headroles.models.capture import capture_attention
from headroles.models.dummy_inputs import body, without_cache
from headroles.models.sites import Site
from headroles.tables import frame
from headroles.tables.study import Study

DECIMALS = 3  # of the weights that are kept: 144 heads on three captions take 200 kB


def attention_examples(
    study: Study,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    *,
    limit: int = 3,
) -> pd.DataFrame:
    """The attention of all heads on the first `limit` sentences, kept in the study as `attention`.

    A row per head and sentence: `kind`, `layer`, `head`, `sentence` (its number in the corpus, from 0), `text` and
    `target` (None where there is none), the tokens that look (`queries`) and are looked at (`keys`), special ones
    included, and `weights`, row by row as a flat list, to three decimals. A decoder is teacher-forced on the corpus's
    targets, without any on the model's own greedy output. Raises ValueError for a limit below 1, attention that is not
    finite, and what `score` raises for a corpus or a tokenizer.
    """
    if limit < 1:
        raise ValueError(f"limit={limit}; expected the number of sentences to look at, 1 or more")
    chosen = corpus[:limit]
    recipe = frame.sign(
        weights=loading.revision(model),
        tokenizer=loading.tokens(tokenizer),
        text=chosen.hash,
        headroles=version("headroles"),
    )
    return study.keep("attention", recipe, lambda: _looked(model, tokenizer, chosen))


def _looked(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, corpus: Corpus) -> pd.DataFrame:
    encoded = batching.encode(corpus, tokenizer, model, words=False)
    rows: list[dict[str, Any]] = []
    with attention_hooks.evaluating(model), torch.inference_mode():
        for batch in batching.batches(
            encoded, model, max_tokens=1
        ):  # so that each sentence is a batch, without padding
            rows += _forward(model, tokenizer, batch)
    rows.sort(key=lambda row: row["sentence"])  # batches come longest first
    table = pd.DataFrame(rows)
    text = _signature(model, corpus, encoded)
    table.attrs["signatures"] = dict.fromkeys(table.columns, text)
    return table


def _forward(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch: Batch) -> list[dict[str, Any]]:
    """The rows of one sentence."""
    rows: list[dict[str, Any]] = []
    number, shown = batch.numbers[0], batch.source.sentences[0]
    told = {"sentence": number, "text": shown.text if shown else "", "target": _target(tokenizer, batch)}

    def look(site: Site, weights: Tensor) -> None:
        queries, keys = batch.queries(site.kind), batch.keys(site.kind)
        asking, asked = queries.attention_mask[0].cpu(), keys.attention_mask[0].cpu()
        kept = weights[0].float().cpu()[:, asking][:, :, asked]  # [heads, query, key]
        if not kept.isfinite().all():
            raise ValueError(
                f"the attention of {site.kind} layer {site.layer} is not finite on sentence {number + 1} of the "
                f"corpus; {dummy_inputs.advice(model)}"
            )
        sides = {"queries": _tokens(tokenizer, queries), "keys": _tokens(tokenizer, keys)}
        for head, own in zip(site.numbers, kept, strict=True):
            place = {"kind": site.kind, "layer": site.layer, "head": head}
            flat = own.double().flatten().numpy().round(DECIMALS).astype("float32")
            rows.append(place | told | sides | {"weights": flat})

    with capture_attention(model, look):
        body(model)(**batch.inputs, **without_cache(body(model)))
    order = {kind: place for place, kind in enumerate(frame.KINDS)}
    return sorted(rows, key=lambda row: (order[row["kind"]], row["layer"], row["head"]))


def _tokens(tokenizer: PreTrainedTokenizerBase, side: TokenView) -> list[str]:
    found: Any = tokenizer.convert_ids_to_tokens(side.ids[0][side.attention_mask[0]].tolist())
    return list(found)


def _target(tokenizer: PreTrainedTokenizerBase, batch: Batch) -> str | None:
    """What the decoder reads: the reference, or the model's own output."""
    if batch.target is None:
        return None
    reference = batch.target.sentences[0]
    if reference is not None:
        return reference.text
    return str(tokenizer.decode(batch.target.ids[0][batch.target.content[0]].tolist()))


def _signature(model: PreTrainedModel, corpus: Corpus, encoded: Encoded) -> str:
    decoder = "greedy" if encoded.greedy else "none" if encoded.target is None else "reference"
    return frame.sign(
        model=loading.name(model),
        weights=loading.revision(model),
        corpus=corpus.name,
        text=corpus.hash,
        sentences=len(encoded.source),
        too_long=encoded.too_long,
        decoder=decoder,
        headroles=version("headroles"),
    )
