"""Runner: one pass over a corpus that computes all scores of all heads, with bootstrap intervals over sentences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from transformers import PreTrainedTokenizerBase

from headroles._distributed import track
from headroles.analysis.intervals import bootstrap_counts
from headroles.data.conllu import offsets
from headroles.data.corpus import RELATIONS, Corpus, CorpusLike
from headroles.data.probes import LENGTH, repeated_tokens
from headroles.data.readers import as_corpus
from headroles.models.batching import Encoded, groups
from headroles.models.head_model import HeadModel, Model
from headroles.models.identity import fingerprint
from headroles.models.sites import shared_keys
from headroles.models.tokens import vocabulary
from headroles.scores.accumulator import Accumulator, missing
from headroles.scores.attention import AttentionPass, check_readable, frequencies, uncounted, without_interval
from headroles.scores.base import Measure, Score, Weights
from headroles.scores.gradients.base import GradientPass, GradientScore
from headroles.scores.gradients.relevance import Relevance
from headroles.scores.lrp import conservation
from headroles.scores.registry import DEFAULT, REPEATED, available, named
from headroles.tables import frame
from headroles.tables.study import Study, as_study

log = logging.getLogger(__name__)
CHECKED = 100  # sentences of the conservation report


def score(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    scores: Measure | Iterable[str | Measure] | None = None,
    *,
    weights: Literal["attention", "norm"] = "attention",
    without_sink: bool = False,
    max_tokens: int = 4096,
    n_resamples: int = 1000,
    seed: int = 0,
    reference: CorpusLike | None = None,
    generate: int | None = None,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Score every attention head of a model on a corpus.

    One layer's attention is in memory at a time. Long texts are read in blocks of queries, so that memory grows with
    their length and not with its square; syntax, alignment and models that cannot be divided
    (`headroles.models.heads.divisible`) need whole layers. Gradient scores ("relevance", "importance") make their own
    forward and backward passes over each batch. A decoder is teacher-forced on the corpus's targets, or without targets
    on the model's own greedy output. Under `accelerate launch` the processes share the batches, and each returns the
    whole table.

    Bounds are 95 % percentiles of a Poisson bootstrap over sentences. For shares of queries (position, syntax, rarity,
    the diagonal of alignment) they are Wilson intervals with the bootstrap's variance, which hold near 0 and 1 too.

    Args:
        model: a transformers model with attention heads.
        tokenizer: tokenizer of the model.
        corpus: the sentences.
        scores: names of scores, or scores; by default all that the model and the corpus allow. See `DEFAULT`.
        weights: "attention", or "norm" for attention scores by the norms ||alpha f(x)|| of the vectors that heads move
            (Kobayashi et al. 2020, "Attention is not only a weight"). See `Observation.by_norm`. Their columns have
            `-norm` after the name of the score, such as `position-norm[-1]`. An instance may have its own `weights`.
        without_sink: whether to measure every attention score also without the sink: the first token and special tokens
            are not keys, and the other weights of each query are divided by their sum. The columns have `-nosink` after
            the name of the score. A query with less than .01 of its weight left does not count for that head; the share
            of these queries is the column `resting`.
        max_tokens: upper bound on tokens per batch and side, padding included; less where a vocabulary is large. It
            changes no number but by rounding, except `Importance(per="batch")`.
        n_resamples: number of bootstrap resamples; 0 for no intervals.
        seed: seed of the resamples.
        reference: corpus in which token frequencies are counted; default: `corpus`.
        generate: number of tokens that the model writes at most, greedily, after each text; the text is then read
            again with them. Only written tokens are queries of scores and targets of gradient scores. Texts lose their
            trees. An encoder-decoder writes its own targets.
        study: study or folder that keeps the table as `heads`; if it has these scores, asked for in this order, nothing
            is computed. Other scores of the
            same corpus, with the same options, are added to its columns. It also keeps `offsets`, the distances between
            heads and dependents, if the corpus has trees, and for each relevance score `conservation-RULES`, the
            conservation report on the first 100 sentences. Without `scores`, a decoder without an encoder is also
            scored on random tokens, each sequence twice in a row (induction and duplicate-token heads).

    Returns:
        One row per head, index `(kind, layer, head)`. Each column `c` of a score has bounds `c.low` and `c.high`. The
        resamples are kept in the table for `headroles.roles`.

    Raises:
        ValueError: if the model has no heads; if the corpus is empty or lacks something a score needs, such as trees;
            if the tokenizer does not fit the model; if attention or gradients are not finite, or all gradients are 0.

    Example:
        >>> table = hr.score(model, tokenizer, corpus, ["confidence", "position"])
        >>> roles = hr.roles(table)
    """  # noqa: DOC502
    handle = HeadModel.of(model, tokenizer, allow_sharded=True)
    corpus, reference = as_corpus(corpus), None if reference is None else as_corpus(reference)
    handle.check_writes(generate)
    instances = partial(named, weights=weights, without_sink=without_sink)
    chosen = None if scores is None else instances(scores)
    options: dict[str, Any] = {"weights": weights, "without_sink": without_sink}
    options |= {"max_tokens": max_tokens, "n_resamples": n_resamples, "seed": seed}
    measure: Callable[..., pd.DataFrame] = partial(_score, handle, **options)
    if study is None:
        return measure(corpus, chosen, reference=reference, generate=generate)
    repeats = repeated(handle) if chosen is None and handle.kinds == {"dec-self"} else None  # decoder without encoder

    def compute() -> pd.DataFrame:
        table = measure(corpus, chosen, reference=reference, generate=generate)
        if repeats is None:
            return table
        return frame.join(table, measure(repeats, [score for score in instances(REPEATED) if score.name() in REPEATED]))

    variants = [*([weights] if weights != "attention" else []), *(["nosink"] if without_sink else [])]
    fields: dict[str, object] = {"by": ",".join(variants)} if chosen is None and variants else {}
    fields |= {} if repeats is None else {"repeated": repeats.hash}
    fields |= {} if generate is None else {"generate": generate}
    fields |= {"max_tokens": max_tokens} if any(score.by_batch for score in chosen or ()) else {}
    key = handle.cache_key(
        corpus,
        scores="default" if chosen is None else ",".join(f"{score} {fingerprint(score)}" for score in chosen),
        resamples=n_resamples,
        seed=seed,
        reference="self" if reference is None else reference.hash,
        **fields,
    )
    study = as_study(study)
    table = study.keep("heads", key, compute, joined=("scores", "by", "repeated"))
    _keep_beside(study, key, handle, corpus, chosen or (), max_tokens)
    return _columns_of(table, instances((*DEFAULT, *REPEATED)) if chosen is None else chosen)


def _keep_beside(
    study: Study, key: str, model: HeadModel, corpus: Corpus, scores: Iterable[Measure], max_tokens: int
) -> None:
    """Keep the conservation report of each relevance score, and the offsets of a corpus with trees."""
    for score in (score for score in scores if isinstance(score, Relevance)):
        options: dict[str, Any] = {"objective": score.objective, "max_tokens": max_tokens}
        report = partial(conservation, model, model.tokenizer, corpus[:CHECKED], score.rules, **options)
        study.keep(f"conservation-{score.rules}", key, report)
    if any(set(RELATIONS) & set(sentence.relations) for sentence in corpus):
        study.keep("offsets", frame.sign_version(text=corpus.hash), lambda: offsets(corpus))
    else:
        study.path("offsets").unlink(missing_ok=True)  # they were of another corpus


def _columns_of(table: pd.DataFrame, scores: Iterable[Measure]) -> pd.DataFrame:
    """Return the columns of some scores, known by their provenance."""
    labels = set(map(str, scores))
    texts: dict[str, str] = table.attrs["signatures"]
    names = [name for name, text in texts.items() if dict(frame.fields(text))["score"] in labels]
    return table if len(names) == len(table.columns) else frame.only(table, names)


def repeated(model: HeadModel, count: int = 100, seed: int = 0) -> Corpus:
    """Return sequences of random tokens, each twice in a row, that the model can read."""
    length = min(LENGTH, (vocabulary.positions(model.tokenizer, model.model) - 1) // 2, len(model.tokenizer) // 2)
    return repeated_tokens(model.tokenizer, count, length=length, seed=seed)


def _score(
    model: HeadModel,
    corpus: Corpus,
    scores: Sequence[Measure] | None,
    *,
    max_tokens: int,
    n_resamples: int,
    seed: int,
    weights: Weights,
    without_sink: bool,
    reference: Corpus | None = None,
    generate: int | None = None,
) -> pd.DataFrame:
    """Measure scores in one pass over the batches of a corpus, which all processes share."""
    sites = model.sites
    if not any(site.remaining for site in sites):
        raise ValueError(f"{model.name} has no heads left to measure")
    encoded = model.encode(corpus, generate=generate, max_tokens=max_tokens)
    chosen = available(scores, sites, encoded, weights, without_sink=without_sink)
    attention_scores = [score for score in chosen if isinstance(score, Score)]
    gradient_scores = [score for score in chosen if isinstance(score, GradientScore)]
    if any(score.weights == "norm" for score in attention_scores):
        check_readable(model)
    if not (gradient_scores or encoded.greedy or encoded.counts("source") or encoded.counts("target")):
        raise ValueError(f"corpus {corpus.name!r} must have content tokens, got none; try a corpus of whole sentences")
    accumulator = Accumulator(chosen, n_resamples=n_resamples, seed=seed)
    with model.evaluating():
        part, written = (model.axis.rank, model.axis.count), None
        batches = model.batches(encoded, max_tokens=max_tokens, part=part)
        total = len(groups(encoded, max_tokens, part))
        if encoded.greedy and reference is None and any("counts" in score.needs for score in chosen):
            # tokens that the model itself writes must be counted before the first score of them
            written = list(track(batches, "writing targets", total=total))
            batches = (written.pop(0) for _ in range(len(written)))
        counted = frequencies(encoded, written, reference, model)
        gradient_passes = [
            GradientPass(score, model, model.batches(encoded, max_tokens=max_tokens)) for score in gradient_scores
        ]
        passes: list[AttentionPass | GradientPass] = [*gradient_passes]
        if attention_scores:
            passes.insert(0, AttentionPass(attention_scores, model, counted))
        for batch in track(batches, "scoring heads", total=total):
            counts = torch.from_numpy(bootstrap_counts(batch.numbers, n_resamples, seed)).to(model.device)
            for scoring_pass in passes:
                scoring_pass.read(batch, accumulator)
            accumulator.weigh(counts)
    accumulator.reduce(model.axis, model.device)
    provenance = f"{_provenance(model, encoded, reference, generate)}|{frame.sign(resamples=n_resamples, seed=seed)}"
    tokens = {"max_tokens": max_tokens}
    notes = {run.score.label: run.provenance() | (tokens if run.score.by_batch else {}) for run in gradient_passes}
    no_interval = without_interval(chosen, encoded, counted) if reference is None else {}
    table = accumulator.table(model.index, provenance, notes, model.gated, no_interval)
    level = logging.INFO if scores is None else logging.WARNING  # `left_out` says it of scores that nobody named
    for what, reason in missing(table, chosen, uncounted(encoded, counted, reference)).items():
        log.log(level, "%s: %s", what, reason)
    _warn_of_words(encoded, [score.label for score in chosen if "trees" in score.needs])
    return table


def _warn_of_words(encoded: Encoded, labels: list[str]) -> None:
    """Warn that scores of dependencies leave out words that share their tokens with others."""
    read = encoded.totals
    if labels and read["unaligned"]:
        log.warning(
            "%s: %d of %d words have no tokens of their own, so %d of %d dependencies are not counted",
            *(", ".join(labels), read["unaligned"], read["words"], read["uncounted"], read["dependencies"]),
        )


def _provenance(model: HeadModel, encoded: Encoded, reference: Corpus | None, generate: int | None) -> str:
    """Return the provenance that all scores of a run share."""
    fields = dict[str, object](encoded.totals)
    if encoded.greedy or encoded.target is not None or encoded.decoder_reads_source:
        source = "source" if encoded.decoder_reads_source else "reference"
        fields["decoder"] = "greedy" if encoded.greedy else source
    if generate is not None:
        fields["generate"] = generate
    if shared := shared_keys(model.sites):
        fields["shared"] = shared
    fields["frequencies"] = "self" if reference is None else f"{reference.name}-{reference.hash}"
    return model.provenance(encoded.corpus, **fields)
