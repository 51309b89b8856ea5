"""One pass over a corpus that computes all scores of all heads, with bootstrap intervals over sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles._distributed import track
from headroles.analysis.intervals import bootstrap_counts
from headroles.data.corpus import Corpus
from headroles.data.streaming import StreamingCorpus
from headroles.models import attention_hooks, batching
from headroles.models.batching import Encoded, Pages
from headroles.models.heads import attention_sites, head_index
from headroles.models.masking import Fill
from headroles.models.provenance import fixed_weights, provenance_of
from headroles.models.sites import Site
from headroles.scores.accumulator import Accumulator, check_missing, missing
from headroles.scores.attention import AttentionPass, frequencies, uncounted
from headroles.scores.base import SELF, Measure, Score, Weights
from headroles.scores.gradients.base import GradientPass, GradientScore
from headroles.scores.gradients.captum import Attribution
from headroles.scores.gradients.patching import AttributionPatching, Patch
from headroles.scores.in_study import DEFAULT, kept_scores
from headroles.scores.objectives import Name, Objective
from headroles.scores.registry import named
from headroles.scores.value_norms import unreadable
from headroles.tables import frame, kv_groups
from headroles.tables.frame import KINDS, Kind
from headroles.tables.study import Study, study_at


@fixed_weights()
def score(
    model: PreTrainedModel,
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
    options = {"max_tokens": max_tokens, "n_resamples": n_resamples, "seed": seed}
    if study is None:
        return _score(model, tokenizer, corpus, scores, **options, weights=weights, reference=reference)
    return kept_scores(
        study_at(study), _score, model, tokenizer, corpus, scores, **options, weights=weights, reference=reference
    )


def _score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus | StreamingCorpus,
    scores: Measure | Iterable[str | Measure] | None,
    *,
    max_tokens: int,
    n_resamples: int,
    seed: int,
    weights: Weights,
    reference: Corpus | None = None,
) -> pd.DataFrame:
    sites = attention_sites(model)
    if not any(site.heads for site in sites):
        raise ValueError(f"{type(model).__name__} has no heads left to measure")
    pages = Pages(corpus, tokenizer, model)
    chosen = _available(scores, sites, pages, weights, counted=reference is not None)
    if any(isinstance(score, Score) and score.weights == "norm" for score in chosen) and (fault := unreadable(model)):
        raise ValueError(fault)
    attention_scores = [score for score in chosen if isinstance(score, Score)]
    gradient_scores = [score for score in chosen if isinstance(score, GradientScore)]
    accumulator = Accumulator(chosen, n_resamples=n_resamples, seed=seed)
    with attention_hooks.evaluating(model):
        whole, batches, total = pages.first, pages.batches(max_tokens), pages.number(max_tokens)
        if whole.greedy and reference is None and any(score.needs_counts for score in chosen):
            written = list(track(batches, "writing targets", total=total))
            counted = frequencies(pages, written, reference, tokenizer, model)
            batches = (written.pop(0) for _ in range(len(written)))
        else:
            counted = frequencies(pages, None, reference, tokenizer, model)
        gradient_passes = [
            GradientPass(score, model, lambda: batching.batches(whole, model, max_tokens=max_tokens))
            for score in gradient_scores
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
    table = accumulator.table(head_index(model), provenance, notes)
    content = whole.counts("source").total()
    check_missing(table, chosen, pages.corpus.name, uncounted(pages, counted, reference), content)
    return table


def attribute(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    *,
    method: str = "IntegratedGradients",
    objective: Name | Objective | None = None,
    replacement: Fill | Patch = "zero",
    max_tokens: int = 1024,
    n_resamples: int = 1000,
    seed: int = 0,
    study: Study | str | Path | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Attribute a model's output to its heads' masks, by a captum method or by attribution patching.

    The target of a sentence is the objective's mean over its steps, for the tokens that the intact model predicts. This
    is `score` with one `Attribution` or `AttributionPatching`.

    Args:
        model: the model.
        tokenizer: tokenizer of the model.
        corpus: the sentences.
        method: name of a class of `captum.attr` that needs only a function, such as "IntegratedGradients",
            "ShapleyValueSampling", "FeatureAblation", "GradientShap", or "DeepLift" where it applies; or "AtP" and
            "AtP*", attribution patching without and with GradDrop.
        objective: name or instance of the target; default: the model's own.
        replacement: replacement of a masked head's output, "zero" or "uniform"; of what is patched, "zero" or
            "resample".
        max_tokens: upper bound on tokens per batch and side, padding included.
        n_resamples: number of bootstrap resamples; 0 for no intervals.
        seed: seed of the resamples.
        study: study or folder that adds the columns to its table `heads`, as in `score`.
        **options: options of the method's `attribute`, such as `n_steps`, `n_samples`, `perturbations_per_eval`; of
            attribution patching, `node`: "output", "query" or "key".

    Returns:
        One row per head with columns `attribution[method]` and `attribution[method].size`, and bounds as in `score`.

    Raises:
        ValueError: as `score` does, and if the method does not have the replacement.
    """
    attribution: GradientScore
    if method in ("AtP", "AtP*"):
        drop = method == "AtP*"
        attribution = AttributionPatching(drop=drop, replacement=replacement, seed=seed, objective=objective, **options)
    elif replacement == "resample":
        raise ValueError(f"only 'AtP' and 'AtP*' resample: got replacement='resample' and method={method!r}")
    else:
        attribution = Attribution(
            method=method, options=tuple(options.items()), replacement=replacement, objective=objective
        )
    return score(
        model,
        tokenizer,
        corpus,
        attribution,
        max_tokens=max_tokens,
        n_resamples=n_resamples,
        seed=seed,
        study=study,
    )


def left_out(table: pd.DataFrame, scores: Measure | Iterable[str | Measure] | None = None) -> dict[str, str]:
    """Return which scores a table lacks, or has no numbers of, and why.

    Args:
        table: score table, as of `score`.
        scores: the scores that it was made for; default: those in `DEFAULT`.

    Returns:
        Name of a score, with the kind of heads where it is missing for that kind alone -> the reason.
    """
    chosen = named(DEFAULT if scores is None else scores)
    kinds: set[Kind] = {kind for kind in KINDS if kind in table.index.get_level_values("kind")}
    reasons = {
        score.name(): _misfit(score, kinds) or _needs(score)
        for score in chosen
        if not any(re.split(r"[\[.]", str(column))[0] == score.name() for column in table)
    }
    return reasons | missing(table, chosen)


def _needs(score: Measure) -> str:
    """What the corpus of a table without the score lacked."""
    if score.needs_trees:
        return "the corpus has no dependency trees; read CoNLL-U, or make trees with headroles parse"
    return "the corpus is a stream; read it whole, or give a reference corpus for token counts"


def _available(
    scores: Measure | Iterable[str | Measure] | None,
    sites: list[Site],
    pages: Pages,
    weights: Weights,
    *,
    counted: bool,
) -> list[Measure]:
    """The given scores, or by default those that the model and the corpus allow."""
    if scores is not None:
        chosen = named(scores, weights)
        for score in chosen:
            if fault := _fault(score, sites, pages, counted=counted):
                raise ValueError(fault)
        return chosen
    return [score for score in named(DEFAULT, weights) if not _fault(score, sites, pages, counted=counted)]


def _fault(score: Measure, sites: list[Site], pages: Pages, *, counted: bool) -> str | None:
    """Why a score cannot be computed, if so."""
    kinds: set[Kind] = {site.kind for site in sites if site.heads}
    name, corpus = score.name(), pages.corpus.name
    if misfit := _misfit(score, kinds):
        return f"score {name!r} {misfit}"
    if score.needs_trees and not _tree_kinds(pages.first) & kinds:
        return (
            f"score {name!r} needs dependency trees, and corpus {corpus!r} has none on the side of its "
            f"{_or(sorted(kinds & set(SELF)))} heads; read CoNLL-U, or make trees with headroles.parse"
        )
    if score.needs_counts and pages.streamed and not counted:
        return f"score {name!r} needs to know how frequent each token is, and {corpus!r} is a stream; give reference="
    if isinstance(score, GradientScore) and pages.streamed:
        return f"score {name!r} is of gradients, and {corpus!r} is a stream; read a corpus whole: headroles.read"
    return None


def _misfit(score: Measure, kinds: set[Kind]) -> str | None:
    """Why a score is not for these kinds of heads, if so."""
    if kinds & set(score.kinds):
        return None
    return f"is for {_or(score.kinds)} heads; the model has {_or(sorted(kinds))}"


def _tree_kinds(encoded: Encoded) -> set[Kind]:
    """Kinds of heads with dependency trees for their tokens."""
    kinds: set[Kind] = set()
    if any(sentence.sentence.has_tree for sentence in encoded.source):
        kinds |= {"enc-self"} if encoded.target is not None or encoded.greedy else {"enc-self", "dec-self"}
    if any(sentence.sentence.has_tree for sentence in encoded.target or ()):
        kinds |= {"dec-self"}
    return kinds


def _or(names: Iterable[str]) -> str:
    return " or ".join(names)


def _provenance(model: PreTrainedModel, pages: Pages, reference: Corpus | None) -> str:
    """The provenance that all scores of a run share."""
    first, fields = pages.first, dict[str, object](pages.read)
    if first.greedy or first.target is not None:
        fields["decoder"] = "greedy" if first.greedy else "reference"
    if shared := kv_groups.description(attention_sites(model)):
        fields["shared"] = shared
    fields["frequencies"] = "self" if reference is None else f"{reference.name}-{reference.hash}"
    return provenance_of(model, None, pages.corpus, **fields)
