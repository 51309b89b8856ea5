"""Alignment heads: cross heads that show when a word is spoken, chosen by the times of words and tested on others.

Whisper's timestamps come from the cross-attention of a few heads, which OpenAI published for its own checkpoints. For
each set of heads the weights are normalised, smoothed and averaged, and dynamic time warping finds the frame at which
the attention of each token begins.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase

from headroles._distributed import track
from headroles.analysis.intervals import Array, bootstrap_counts, bounds, exact_share
from headroles.data.corpus import Corpus, CorpusLike
from headroles.data.readers import as_corpus
from headroles.models import speech
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel, Model
from headroles.models.sites import Site
from headroles.patterns.observation import At
from headroles.scores.content_scores import Links
from headroles.scores.runner import score
from headroles.tables import frame
from headroles.tables.arguments import number, one_of

Chosen = tuple[int, ...]  # rows of cross heads
NEAR = (50, 100, 200)  # milliseconds
RANDOM = 20  # sets of random heads
MOST = 12  # heads of a list of no given size
FEW = 300  # words: with fewer a list may fit them alone
log = logging.getLogger(__name__)


class AlignmentHeads(NamedTuple):
    """The result of `hr.alignment_heads`.

    Attributes:
        heads: A row per cross head: its share of words found (`links` or `links[next]`), its error by itself in
            milliseconds, `chosen` and, if the checkpoint has a list, `published` (1 or 0), and `order`, in which heads
            were chosen.
        sets: A row per set of heads: `heads`, their number; `error`, the mean distance of a word's start from the
            true one, in milliseconds; `within[100]`, the share of words within 100 ms; `difference`, the error of the
            chosen heads minus that of the set; on the utterances that chose no heads, with 95 % intervals over them.
    """

    heads: pd.DataFrame
    sets: pd.DataFrame


@dataclass(frozen=True)
class _Utterance:
    """The smoothed weights of all cross heads, and the tokens at which words with known times start."""

    number: int
    weights: npt.NDArray[np.float32]  # [head, token, frame]
    tokens: list[int]
    starts: Array  # seconds
    frame: float  # seconds


def alignment_heads(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    *,
    held_out: CorpusLike | None = None,
    size: int | None = None,
    at: At = "next",
    shift: bool = False,
    n_resamples: int = 1000,
    seed: int = 0,
) -> AlignmentHeads:
    """Choose the cross heads of a Whisper model that give the best times of words, and measure their error.

    Half of the utterances, drawn at random, choose the heads: first the one with the least error, then in each step the
    one that helps most. The other half, or `held_out`, measures the errors, beside those of the published list of the
    checkpoint, of all heads of the upper half of the layers (the default of CTranslate2), of all heads, and of random
    sets. The times are as exact as those of the corpus, of people or of a forced aligner.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        corpus: Sound with transcripts and the times of words.
        held_out: The same of other sound, which measures the errors; then all of `corpus` chooses the heads.
        size: Number of heads; by default that of the least error of the first half, up to 12.
        at: The step at which a token is timed: "next", the one that predicts it, with the smoothing of openai/whisper
            and CTranslate2 (faster-whisper); or "read", the one that has read it: `token_timestamps` of transformers.
        shift: Whether one constant, the median error on the first half, is subtracted from the times of each set.
        n_resamples: Number of bootstrap resamples of utterances.
        seed: Seed of the halves, the random sets and the resamples.

    Returns:
        The heads, and the errors of sets of heads.

    Raises:
        ValueError: If fewer than two utterances have words with times, or `size` is not a number of heads.

    Example:
        >>> result = hr.alignment_heads(*hr.load("my-whisper"), "calls.jsonl")
        >>> hr.export_heads(result.heads, "my-whisper-ct2/config.json", form="ctranslate2")
    """
    one_of("at", at, get_args(At))
    handle, corpus = HeadModel.of(model, tokenizer), as_corpus(corpus)
    table = score(handle, tokenizer, corpus, Links(at=at), n_resamples=n_resamples, seed=seed).loc[["cross"]]
    if size is not None:
        number("size", size, least=1, most=len(table), whole=True)
    first, second = _read(handle, corpus, at), []
    if held_out is not None:
        second = _read(handle, held_out := as_corpus(held_out), at)
    elif len(first) > 1:
        drawn = np.random.default_rng(seed).permutation(len(first))
        first, second = ([first[i] for i in sorted(half)] for half in np.array_split(drawn, 2))
    if not first or not second:
        raise ValueError(
            f"corpus {corpus.name!r} must have two or more utterances with the times of words (one, and held_out one), "
            f"got {len(first)} and {len(second)}; give words with start and end, as a forced aligner writes them"
        )
    if (words := sum(len(utterance.tokens) for utterance in first)) < FEW:
        advice = "heads are chosen on %d words, and other words may choose other heads; try %d words or more"
        log.warning(advice, words, FEW)
    chosen, alone = _greedy(first, len(table), size)
    sets = {"chosen": [chosen], **_others(handle, frame.rows(table), len(chosen), seed)}
    options = {"at": at, "shift": shift, "seed": seed, "chosen_on": len(first), "utterances": len(second)}
    text = handle.provenance(corpus, **({"held_out": held_out.hash} if held_out else {}), **options)
    columns = {"error": alone} | {
        name: np.isin(np.arange(len(table)), sets[name][0]).astype(float)
        for name in ("chosen", "published")
        if name in sets
    }
    order = [chosen.index(row) + 1.0 if row in chosen else np.nan for row in range(len(table))]
    heads = frame.join(table, frame.table({**columns, "order": order}, frame.rows(table), text))
    counts = bootstrap_counts([utterance.number for utterance in second], n_resamples * (len(second) > 1), seed)
    return AlignmentHeads(heads, frame.signed(_compared(sets, first if shift else [], second, counts), text))


def _read(handle: HeadModel, corpus: Corpus, at: At) -> list[_Utterance]:
    """Capture the cross-attention of each utterance with times of words, smoothed."""
    encoded = handle.encode(corpus)
    captured: list[Tensor] = []  # of each layer
    utterances = []

    def keep(site: Site, weights: Tensor, *_: object) -> None:
        if site.kind == "cross":
            captured.append(weights[0, [site.numbers.index(head) for head in site.remaining]].float().cpu())

    with handle.evaluating(), handle.without_gradients(), handle.capture(keep):
        batches = handle.batches(encoded, max_tokens=1)  # one utterance each
        for batch in track(batches, "reading utterances", total=len(encoded.numbers)):
            captured.clear()
            handle.forward(_with_end(batch, handle) if at == "next" else batch.inputs)
            sentence: Any = batch.source.sentences[0]
            view: Any = batch.target.following if batch.target and at == "next" else batch.target
            places = view.content[0].nonzero().flatten().tolist()
            words = view.words[0, places].tolist()
            firsts = {word: token for token, word in reversed([*enumerate(words)])}  # the first token of each word
            known = [word for word, times in enumerate(sentence.times) if times and word in firsts]
            if known:
                weights = torch.cat(captured)[..., : int(batch.source.content.sum())]
                width = getattr(handle.model.config, "median_filter_width", 7)
                if at == "next":  # as openai/whisper: without the frames after the sound, with the prompt and the end
                    rows = [*places, places[-1] + 1]  # the step that predicts the end, too
                    inside = weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
                    smooth = smoothed(weights / inside, width)[:, rows].numpy()
                else:
                    smooth = smoothed(weights[:, places], width).numpy()
                starts = np.array([sentence.times[word][0] for word in known])
                frame = speech.seconds(encoded.feature_extractor, len(encoded.source[0]))
                utterances.append(_Utterance(batch.numbers[0], smooth, [firsts[word] for word in known], starts, frame))
    return sorted(utterances, key=lambda utterance: utterance.number)


def _with_end(batch: Batch, handle: HeadModel) -> dict[str, Tensor]:
    """Return the inputs of one utterance with a step that has read the end token."""
    assert batch.target is not None
    ids = pad(batch.target.ids, (0, 1), value=int(handle.tokenizer.eos_token_id))
    return {name: value for name, value in batch.inputs.items() if name != "decoder_attention_mask"} | {
        "decoder_input_ids": ids
    }


def smoothed(weights: Tensor, width: int) -> Tensor:
    """Return weights, [head, token, frame], normalised over tokens and median-filtered over frames, as transformers."""
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    weights = (weights - mean) / deviation.clamp(min=torch.finfo(weights.dtype).tiny)
    half = width // 2
    if weights.shape[-1] <= half:
        return weights
    return pad(weights, (half, half), mode="reflect").unfold(-1, width, 1).sort().values[..., half]


# The warping of transformers is a loop over tokens and frames in Python. Here it runs for many sets of heads at once,
# along the diagonals of the matrix, where a cell depends only on the two diagonals before.
def warped(matrices: Array) -> npt.NDArray[np.intp]:
    """Return the first frame of each token on the path of largest sum: [set, token] from [set, token, frame]."""
    sets, tokens, frames = matrices.shape
    traces = np.empty((tokens + frames - 1, sets, tokens), dtype=np.int8)  # the step into each cell, by diagonal
    before = np.full((sets, tokens + 1), np.inf, dtype=np.float32)  # costs of the diagonal before the last; i at i + 1
    last = before.copy()
    before[:, 0] = 0  # the corner outside
    places = np.arange(tokens)
    for diagonal in range(tokens + frames - 1):
        both, token, still = before[:, :-1], last[:, :-1], last[:, 1:]
        step = np.where((both < token) & (both < still), 0, np.where((token < both) & (token < still), 1, 2))
        best = np.choose(step, (both, token, still))
        column = diagonal - places
        inside = (column >= 0) & (column < frames)
        cells = -matrices[:, places, np.where(inside, column, 0)]
        traces[diagonal] = step
        before, last = last, np.full_like(last, np.inf)
        last[:, 1:][:, inside] = (cells + best)[:, inside]
    starts = np.zeros((sets, tokens), dtype=np.intp)
    rows, columns, every = np.full(sets, tokens - 1), np.full(sets, frames - 1), np.arange(sets)
    while True:
        starts[every, rows] = columns  # backwards, so that the first frame stays
        step = traces[rows + columns, every, rows]
        step = np.where(rows == 0, 2, np.where(columns == 0, 1, step))
        is_open = (rows > 0) | (columns > 0)
        if not is_open.any():
            return starts
        rows = rows - ((step < 2) & is_open)
        columns = columns - ((step != 1) & is_open)


def _late(utterances: Sequence[_Utterance], sets: Sequence[Chosen]) -> list[Array]:
    """Return how many ms too late the words of each utterance start by sets of heads: [set, word] each."""
    errors = list[Array]()
    for utterance in utterances:
        means = np.stack([utterance.weights[list(rows)].mean(0, dtype=np.float64) for rows in sets])
        errors.append(1000 * (warped(means)[:, utterance.tokens] * utterance.frame - utterance.starts))
    return errors


def _greedy(utterances: Sequence[_Utterance], heads: int, size: int | None) -> tuple[Chosen, Array]:
    """Return the chosen heads in their order, and the error of each head by itself."""
    chosen, least, alone, steps = Chosen(), list[float](), np.zeros(heads), size or min(heads, MOST)
    for step in track(range(steps), "choosing heads", total=steps):
        errors = _late(utterances, [(*chosen, head) for head in range(heads)])
        means = np.abs(np.concatenate(errors, axis=1)).mean(1)
        alone = means if step == 0 else alone
        best = int(np.where(np.isin(np.arange(heads), chosen), np.inf, means).argmin())
        chosen, least = (*chosen, best), [*least, means[best]]
    return chosen[: size or int(np.argmin(least)) + 1], alone


def _others(handle: HeadModel, index: pd.MultiIndex, size: int, seed: int) -> dict[str, list[Chosen]]:
    """Return the sets that the chosen heads are compared with: published, of the upper layers, all, random ones."""
    heads = [(int(layer), int(head)) for _, layer, head in index]
    layers = sum(site.kind == "cross" for site in handle.sites)
    published = speech.timing_heads(handle.model, handle.sites)
    known = tuple(row for row, head in enumerate(heads) if head in published)
    draws = np.random.default_rng(seed)
    return {
        **({"published": [known]} if known else {}),
        "upper half": [tuple(row for row, (layer, _) in enumerate(heads) if layer >= layers // 2)],
        "all": [tuple(range(len(heads)))],
        "random": [tuple(draws.choice(len(heads), size, replace=False)) for _ in range(RANDOM)],
    }


def _compared(
    sets: Mapping[str, list[Chosen]], first: Sequence[_Utterance], second: Sequence[_Utterance], counts: Array
) -> pd.DataFrame:
    """Return the errors of sets on the second half, by `counts` [1 + resample, utterance]; `first` gives a shift."""
    rows: dict[str, dict[str, float]] = {}
    words, chosen = counts @ np.array([len(utterance.tokens) for utterance in second]), np.zeros(len(counts))
    for name, some in sets.items():
        shifts = np.median(np.concatenate(_late(first, some), axis=1), axis=1) if first else np.zeros(len(some))
        late = [np.abs(errors - shifts[:, None]) for errors in _late(second, some)]
        sums = {"error": [errors.sum() for errors in late]}
        sums |= {f"within[{near}]": [(errors <= near).sum() for errors in late] for near in NEAR}
        with np.errstate(invalid="ignore"):  # a resample may have no utterance
            values = {column: counts @ np.array(numbers) / (words * len(some)) for column, numbers in sums.items()}
        chosen = values["error"] if name == "chosen" else chosen
        values["difference"] = chosen - values["error"]
        rows[name] = {"heads": float(len(some[0]))}
        for column, numbers in values.items():
            (low,), (high,) = bounds(numbers[None, 1:])
            if low == high and column in sums and column != "error":  # no utterance has such a word, or only such
                low, high = exact_share(numbers[0], len(second))
            rows[name] |= {column: numbers[0], f"{column}.low": low, f"{column}.high": high}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("set")
