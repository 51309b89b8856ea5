"""One pass over a corpus that computes all scores of all heads, with bootstrap intervals over sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from transformers import PreTrainedTokenizerBase

from headroles._distributed import track
from headroles.analysis.intervals import bootstrap_counts
from headroles.data.conllu import offsets
from headroles.data.corpus import RELATIONS, Corpus
from headroles.data.streaming import StreamingCorpus
from headroles.data.synthetic import LENGTH, repeated_tokens
from headroles.models.batching import Pages
from headroles.models.code_identity import code_of
from headroles.models.head_model import HeadModel, Model
from headroles.scores.accumulator import Accumulator, check_missing
from headroles.scores.attention import AttentionPass, frequencies, uncounted
from headroles.scores.base import Measure, Score, Weights
from headroles.scores.gradients.base import GradientPass, GradientScore
from headroles.scores.gradients.relevance import Relevance
from headroles.scores.lrp import conservation
from headroles.scores.registry import DEFAULT, REPEATED, available, named
from headroles.scores.value_norms import unreadable
from headroles.tables import frame, kv_groups
from headroles.tables.study import Study, study_at

CHECKED = 100  # sentences of the conservation report


def score(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus | StreamingCorpus,
    scores: Measure | Iterable[str | Measure] | None = None,
    *,
    weights: Weights = "attention",
    max_tokens: int = 4096,
    n_resamples: int = 1000,
    seed: int = 0,
    reference: Corpus | None = None,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Score every attention head of a model on a corpus.

    One pass reads the whole corpus, with one layer's attention in memory at a time. Long texts are read in blocks of
    queries, so that memory grows with their length and not with its square. Syntax, alignment and models that cannot
    be divided (`headroles.models.heads.divisible`) need whole layers. Gradient scores ("relevance", "importance")
    make their own forward and backward passes over each batch. A decoder is teacher-forced on the corpus's targets, or
    without targets on the model's own greedy output. Under `accelerate launch` the processes share the batches, and
    each returns the whole table.

    Bounds are 95 % percentiles of a Poisson bootstrap over sentences. For shares of queries (position, syntax, rarity,
    the diagonal of alignment) they are Wilson intervals with the bootstrap's variance, which hold near 0 and 1 too.

    Args:
        model: a transformers model with attention heads.
        tokenizer: tokenizer of the model.
        corpus: the sentences. A stream is read part by part; gradient scores, and rarity without `reference`, need a
            whole corpus.
        scores: names or instances; default: all scores in `DEFAULT` that the model and the corpus allow.
        weights: "attention", or "norm" for attention scores by the norms ||alpha f(x)|| of what heads really move
            (Kobayashi et al. 2020, "Attention is not only a weight"; `Observation.by_norm`). Their columns have `-norm`
            after the name of the score, such as `confidence-norm` and `position-norm[-1]`. An instance may have
            `weights` of its own: both are then measured in one pass.
        max_tokens: upper bound on tokens per batch and side, padding included.
        n_resamples: number of bootstrap resamples; 0 for no intervals.
        seed: seed of the resamples.
        reference: corpus in which token frequencies are counted; default: `corpus`.
        study: study or folder that keeps the table as `heads`; if it has it, nothing is computed. Other scores of the
            same corpus, with the same options, are added to its columns. It also keeps `offsets`, the distances between
            heads and dependents, if the corpus has trees (of a stream those of its first part), and
            `conservation-RULES`, the conservation report on the first 100 sentences, of each relevance score. A decoder
            without an encoder is also scored on random tokens, each sequence twice in a row (induction and
            duplicate-token heads), if `scores` are not given.

    Returns:
        One row per head, index `(kind, layer, head)`, with the columns of these scores. Each column `c` of a score has
        bounds `c.low` and `c.high`. The resamples are kept in the table for `headroles.roles`.

    Raises:
        ValueError: if the model has no heads; if the corpus is empty or lacks something a score needs, such as trees;
            if the tokenizer does not fit the model; if attention or gradients are not finite, or all gradients are 0.

    Example:
        >>> table = hr.score(model, tokenizer, corpus, ["confidence", "position"])
        >>> roles = hr.roles(table)
    """  # noqa: DOC502
    handle = HeadModel.of(model, tokenizer)
    chosen = None if scores is None else named(scores, weights)
    measure = partial(_score, handle, weights=weights, max_tokens=max_tokens, n_resamples=n_resamples, seed=seed)
    if study is None:
        return measure(corpus, chosen, reference=reference)
    kept, repeated = study_at(study), _repeated(handle) if chosen is None else None
    by = {} if chosen is not None or weights == "attention" else {"by": weights}
    again = {} if repeated is None else {"repeated": repeated.hash}
    key = handle.cache_key(
        corpus,
        scores="default" if chosen is None else ",".join(map(_named_by_code, chosen)),
        resamples=n_resamples,
        seed=seed,
        reference="self" if reference is None else reference.hash,
        **by,
        **again,
    )

    text = corpus.hash

    def compute() -> pd.DataFrame:
        table = measure(corpus, chosen, reference=reference)
        if corpus.hash != text:
            raise ValueError(f"corpus {corpus.name!r} changed while it was scored; try again when it is complete")
        return table if repeated is None else frame.join(table, measure(repeated, named(REPEATED, weights)))

    table = kept.keep("heads", key, compute, joined=("scores", "by", "repeated"))
    sample = next(corpus.parts()) if isinstance(corpus, StreamingCorpus) else corpus
    for relevance in (measured for measured in chosen or () if isinstance(measured, Relevance)):
        kept.keep(
            f"conservation-{relevance.rules}",
            key,
            lambda relevance=relevance: conservation(  # type: ignore[misc]
                handle,
                tokenizer,
                sample[:CHECKED],
                relevance.rules,
                epsilon=relevance.epsilon,
                objective=relevance.objective,
                max_tokens=max_tokens,
            ),
        )
    if any(set(RELATIONS) & set(sentence.relations) for sentence in sample):
        kept.keep("offsets", frame.sign_version(text=corpus.hash), lambda: offsets(sample))
    else:
        kept.path("offsets").unlink(missing_ok=True)  # of another corpus
    return _columns_of(table, named((*DEFAULT, *REPEATED), weights) if chosen is None else chosen)


def _named_by_code(measure: Measure) -> str:
    """The options of a score, and of a score that is not of this package its code, which may be edited."""
    is_ours = type(measure).__module__.startswith("headroles.")
    return str(measure) if is_ours else f"{measure} {code_of(measure)}"


def _columns_of(table: pd.DataFrame, scores: Iterable[Measure]) -> pd.DataFrame:
    """Return the columns of some scores, by their provenance; the table itself if these are all."""
    labels = set(map(str, scores))
    texts: dict[str, str] = table.attrs["signatures"]
    kept = {name: text for name, text in texts.items() if dict(frame.fields(text))["score"] in labels}
    if len(kept) == len(table.columns):
        return table
    part, draws = table[[*kept]], frame.resamples(table)
    part.attrs["signatures"] = kept
    if draws is not None:
        part.attrs["resamples"] = frame.Resamples(draws.index, {k: v for k, v in draws.draws.items() if k in kept})
    return part


def _repeated(model: HeadModel) -> Corpus | None:
    """Return sequences of random tokens, each twice in a row, for a decoder without an encoder; else None."""
    if model.kinds != {"dec-self"}:
        return None
    longest = (model.positions - 1) // 2
    return repeated_tokens(model.tokenizer, length=min(LENGTH, longest, len(model.tokenizer) // 2))


def _score(
    model: HeadModel,
    corpus: Corpus | StreamingCorpus,
    scores: Sequence[Measure] | None,
    *,
    max_tokens: int,
    n_resamples: int,
    seed: int,
    weights: Weights,
    reference: Corpus | None = None,
) -> pd.DataFrame:
    sites = model.sites
    if not any(site.heads for site in sites):
        raise ValueError(f"{model.name} has no heads left to measure")
    pages = model.pages(corpus)
    chosen = available(scores, sites, pages, weights, counted=reference is not None)
    if any(isinstance(score, Score) and score.weights == "norm" for score in chosen) and (fault := unreadable(model)):
        raise ValueError(fault)
    attention_scores = [score for score in chosen if isinstance(score, Score)]
    gradient_scores = [score for score in chosen if isinstance(score, GradientScore)]
    accumulator = Accumulator(chosen, n_resamples=n_resamples, seed=seed)
    with model.evaluating():
        whole, batches, total = pages.first, pages.batches(max_tokens), pages.number(max_tokens)
        if whole.greedy and reference is None and any(score.needs_counts for score in chosen):
            written = list(track(batches, "writing targets", total=total))
            counted = frequencies(pages, written, reference, model)
            batches = (written.pop(0) for _ in range(len(written)))
        else:
            counted = frequencies(pages, None, reference, model)
        gradient_passes = [
            GradientPass(score, model, model.batches(whole, max_tokens=max_tokens)) for score in gradient_scores
        ]
        passes: list[AttentionPass | GradientPass] = [*gradient_passes]
        if attention_scores:
            passes.insert(0, AttentionPass(attention_scores, model, counted))
        for batch in track(batches, "scoring heads", total=total):
            counts = torch.from_numpy(bootstrap_counts(batch.numbers, n_resamples, seed)).to(model.device)
            for scoring_pass in passes:
                scoring_pass.read(batch, counts, accumulator)
    accumulator.reduce(model.device)
    provenance = f"{_provenance(model, pages, reference)}|{frame.sign(resamples=n_resamples, seed=seed)}"
    notes = {gradient_pass.score.label: gradient_pass.provenance() for gradient_pass in gradient_passes}
    table = accumulator.table(model.index, provenance, notes)
    content = whole.counts("source").total()
    check_missing(table, chosen, pages.corpus.name, uncounted(pages, counted, reference), content)
    return table


def _provenance(model: HeadModel, pages: Pages, reference: Corpus | None) -> str:
    """The provenance that all scores of a run share."""
    first, fields = pages.first, dict[str, object](pages.read)
    if first.greedy or first.target is not None:
        fields["decoder"] = "greedy" if first.greedy else "reference"
    if shared := kv_groups.description(model.sites):
        fields["shared"] = shared
    fields["frequencies"] = "self" if reference is None else f"{reference.name}-{reference.hash}"
    return model.provenance(pages.corpus, **fields)
