"""Examples of attention: of one head on a sentence, or of all heads on a few sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headroles.data.corpus import Corpus, CorpusLike, Sentence
from headroles.data.readers import as_corpus
from headroles.models.batching import Batch, TokenView
from headroles.models.head_model import HeadModel, Model
from headroles.models.masking import Head
from headroles.models.sites import Site
from headroles.models.speech import FRAME, extractor, loudness, stretches
from headroles.scores.attention import check_finite
from headroles.tables import frame
from headroles.tables.arguments import number
from headroles.tables.study import Study, kept

DECIMALS = 3  # of the weights: 144 heads on three captions take 200 kB
COLUMNS = [*frame.LEVELS, "sentence", "text", "target", "queries", "keys", "weights", "written"]
OF_SOUND = ["widths", "loudness"]


def attention_examples(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    *,
    limit: int = 3,
    generate: int | None = None,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Compute the attention of all heads on a few sentences.

    A decoder is teacher-forced on the corpus's targets, or without targets on the model's own greedy output. Of sound,
    weights on the frames of a word are added, and those from the frames of a word are averaged.

    Args:
        model: the model.
        tokenizer: tokenizer of the model.
        corpus: the sentences.
        limit: number of sentences, from the start of the corpus.
        generate: number of tokens that the model writes at most, greedily, after each text; the text is then read again
            with them. Default: none.
        study: study or folder that keeps the table, as `attention`.

    Returns:
        One row per head and sentence: `kind`, `layer`, `head`; `sentence`, its number in the corpus from 0; `text` and
        `target`, None without one; `queries` and `keys`, the tokens with special ones; `weights`, a flat list row by
        row, to three decimals; `written`, how many of the last queries the model wrote itself. Of sound also `widths`,
        the number of frames of each key, and `loudness`, of each frame, 0 to 1.
    """
    number("limit", limit, least=1, whole=True)
    handle, sentences = HeadModel.of(model, tokenizer), as_corpus(corpus)[:limit]
    handle.check_writes(generate)
    options = {} if generate is None else {"generate": generate}
    key = lambda: handle.cache_key(sentences, **options)  # noqa: E731
    return kept(study, "attention", key, lambda: _table(handle, sentences, options))


def attention_matrix(
    model: Model, tokenizer: PreTrainedTokenizerBase, sentence: str | Sentence, head: Head | str
) -> pd.DataFrame:
    """Return the attention matrix of one head on one sentence.

    Args:
        model: the model.
        tokenizer: tokenizer of the model.
        sentence: text, or a sentence with its target.
        head: (kind, layer, head), or "L0H2" where there is one kind, or "enc-self:0:2".

    Returns:
        Attention weights; rows are query tokens and columns key tokens, special tokens included.
    """
    handle = HeadModel.of(model, tokenizer)
    (head,) = handle.sites.named([head])
    text = Sentence(sentence) if isinstance(sentence, str) else sentence
    handle.check_weights("attention")
    encoded = handle.encode(Corpus("one sentence", (text,)), words=False)
    matrices: list[Tensor] = []

    def keep(site: Site, weights: Tensor, *_: object) -> None:
        if site.key == head[:2]:
            matrices.append(weights[0, site.numbers.index(head[2])].float().cpu())

    with handle.evaluating(), handle.without_gradients():
        batch = next(handle.batches(encoded))
        with handle.capture(keep):
            handle.forward_body(batch)
    (matrix,) = matrices
    check_finite(matrix.isfinite().all()[None], f"the attention of {head}", [0], handle)
    rows, columns = (pd.Index(_tokens(tokenizer, view)) for view in (batch.queries(head[0]), batch.keys(head[0])))
    return pd.DataFrame(matrix[: len(rows), : len(columns)].numpy(), index=rows, columns=columns)


def _table(model: HeadModel, corpus: Corpus, options: dict[str, int]) -> pd.DataFrame:
    model.check_weights("attention")
    encoded = model.encode(corpus, words=False, max_tokens=1, **options)
    prompts = {place: sentence.prompt_length for place, sentence in zip(encoded.numbers, encoded.source, strict=True)}
    rows: list[tuple[Any, ...]] = []
    with model.evaluating(), model.without_gradients():
        for batch in model.batches(encoded, max_tokens=1):  # one sentence each, without padding
            rows += _rows(model, batch, prompts[batch.numbers[0]])
    rows.sort(key=lambda row: (row[3], frame.KINDS.index(row[0]), *row[1:3]))  # sentence, kind, layer, head
    signature = model.provenance(
        corpus,
        sentences=len(encoded.source),
        too_long=encoded.too_long,
        decoder="greedy" if encoded.greedy else "none" if encoded.target is None else "reference",
        **options,
    )
    table = pd.DataFrame(rows, columns=[*COLUMNS, *OF_SOUND])
    return frame.signed(table if table["widths"].notna().any() else table[COLUMNS], signature)


def _rows(model: HeadModel, batch: Batch, prompt: int | None) -> list[tuple[Any, ...]]:
    """Return the rows of one sentence; everything after the first `prompt` tokens was written by the model."""
    rows: list[tuple[Any, ...]] = []
    place, sentence = batch.numbers[0], batch.source.sentences[0]
    text, target = sentence.text if sentence else "", _target(model.tokenizer, batch, prompt)
    given = prompt if not batch.is_generated else 1 if batch.prompt is None else batch.prompt.shape[1]  # to its decoder
    is_sound, frames = bool(batch.source.ids[0, 0] == FRAME), batch.source.content[0]
    read = extractor(model.model, model.tokenizer) if is_sound else None
    loud = loudness(sentence, read, len(frames), int(frames.sum())) if is_sound else None

    def add(site: Site, weights: Tensor, *_: object) -> None:
        queries, keys = batch.queries(site.kind), batch.keys(site.kind)
        query_mask, key_mask = queries.attention_mask[0].cpu(), keys.attention_mask[0].cpu()
        weights = weights[0, :, : len(query_mask), : len(key_mask)].float().cpu()  # some models fill up their texts
        of_site = weights[:, query_mask][:, :, key_mask]  # [heads, query, key]
        what = f"the attention of {site.kind} layer {site.layer}"
        check_finite(of_site.isfinite().all()[None], what, batch.numbers, model)
        names = _tokens(model.tokenizer, queries), _tokens(model.tokenizer, keys)
        widths = None
        by_word = is_sound and site.kind != "dec-self"
        if by_word:
            parts = stretches(keys.words[0].tolist(), keys.content[0].tolist(), keys.sentences[0])
            of_site = torch.stack([of_site[..., part].sum(-1) for _, part in parts], dim=-1)
            names = names[0], [name for name, _ in parts]
            widths = [part.stop - part.start for _, part in parts]
            if site.kind == "enc-self":
                of_site = torch.stack([of_site[:, part].mean(1) for _, part in parts], dim=1)
                names = names[1], names[1]
        written = 0 if given is None or site.kind == "enc-self" else max(0, len(names[0]) - given)
        for head, head_weights in zip(site.numbers, of_site, strict=True):
            if head in site.remaining:
                flat = head_weights.double().flatten().numpy().round(DECIMALS).astype("float32")
                rows.append(
                    (*site.key, head, place, text, target, *names, flat, written, widths, loud if by_word else None)
                )

    with model.capture(add):
        model.forward_body(batch)
    return rows


def _tokens(tokenizer: PreTrainedTokenizerBase, view: TokenView) -> list[str]:
    if view.ids[0, 0] == FRAME:
        return [f"frame {place}" for place in range(view.ids.shape[1])]
    return list(tokenizer.convert_ids_to_tokens(view.ids[0][view.attention_mask[0]].tolist()))


def _target(tokenizer: PreTrainedTokenizerBase, batch: Batch, prompt: int | None) -> str | None:
    """Return the text that the decoder reads or wrote: the reference, the model's output, or its continuation."""
    if batch.target is None:
        return None if prompt is None else str(tokenizer.decode(batch.source.ids[0][prompt:].tolist()))
    reference = batch.target.sentences[0]
    if reference is not None:
        return reference.text
    return str(tokenizer.decode(batch.target.ids[0][batch.target.content[0]].tolist()))
