"""One pass over a corpus that computes all scores of all heads, with bootstrap intervals over sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles._progress import track
from headroles.analysis.intervals import share
from headroles.data.corpus import Corpus, Sentence
from headroles.data.streaming import StreamingCorpus
from headroles.models import attention_hooks, batching, capture, dummy_inputs, loading
from headroles.models.batching import Batch, Encoded, Pages
from headroles.models.capture import PartCallback
from headroles.models.dummy_inputs import body, without_cache
from headroles.models.heads import attention_sites, check_head, head_index
from headroles.models.masking import Fill, Head
from headroles.models.sites import Site
from headroles.scores.accumulator import Accumulator, Array, bounds, counting, rounded
from headroles.scores.base import SELF, Measure, Observation, Score, named
from headroles.scores.frequencies import Frequencies, frequencies, uncounted
from headroles.scores.gradients.base import GradientPass, GradientScore
from headroles.scores.gradients.captum import Attribution
from headroles.scores.missing import check_missing
from headroles.scores.objectives import Name, Objective
from headroles.tables import frame, kv_groups
from headroles.tables.frame import Kind

DEFAULT = ("confidence", "position", "syntax", "rarity", "entropy", "sink", "distance", "alignment")


def score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus | StreamingCorpus,
    scores: Measure | Iterable[str | Measure] | None = None,
    *,
    max_tokens: int = 4096,
    n_resamples: int = 1000,
    seed: int = 0,
    reference: Corpus | None = None,
) -> pd.DataFrame:
    """Compute scores of every attention head of a model on a corpus.

    One pass reads the whole corpus, with one layer's attention in memory at a time. Long texts are read in blocks of
    queries, so that memory grows with their length and not with its square. Syntax, alignment and models that cannot
    be divided (`headroles.models.capture.divisible`) need whole layers. Gradient scores ("relevance", "importance")
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
        max_tokens: upper bound on tokens per batch and side, padding included.
        n_resamples: number of bootstrap resamples; 0 for no intervals.
        seed: seed of the resamples.
        reference: corpus in which token frequencies are counted; default: `corpus`.

    Returns:
        One row per head, index `(kind, layer, head)`. Each column `c` of a score has bounds `c.low` and `c.high`. The
        resamples are kept in the table for `headroles.roles`.

    Raises:
        ValueError: if the model has no heads; if the corpus is empty or lacks something a score needs, such as trees;
            if the tokenizer does not fit the model; if attention or gradients are not finite, or all gradients are 0.

    Example:
        >>> table = hr.score(model, tokenizer, corpus, ["confidence", "position"])
        >>> roles = hr.roles(table)
    """
    sites = attention_sites(model)
    if not any(site.heads for site in sites):
        raise ValueError(f"{type(model).__name__} has no heads left to measure")
    pages = Pages(corpus, tokenizer, model)
    chosen = _possible(
        DEFAULT if scores is None else scores, sites, pages, counted=reference is not None, strict=scores is not None
    )
    watching = [one for one in chosen if isinstance(one, Score)]
    gradients = [one for one in chosen if isinstance(one, GradientScore)]
    accumulator = Accumulator(chosen, n_resamples=n_resamples, seed=seed)
    with attention_hooks.evaluating(model):
        whole, every = pages.first, pages.batches(max_tokens)
        counts_own = bool(whole.greedy) and reference is None and any(one.needs_counts for one in chosen)
        written = list(track(every, "writing targets", total=pages.number(max_tokens))) if counts_own else None
        counted = frequencies(pages, written, reference, tokenizer, model)
        passes = [
            GradientPass(score, model, lambda: batching.batches(whole, model, max_tokens=max_tokens))
            for score in gradients
        ]
        ahead = every if written is None else (written.pop(0) for _ in range(len(written)))
        for batch in track(ahead, "scoring heads", total=pages.number(max_tokens)):
            weights = counting(batch.numbers, n_resamples, seed).to(model.device)
            if watching:
                _watch(batch, model, watching, accumulator, weights, counted)
            for gradient_pass in passes:
                gradient_pass.read(batch, weights, accumulator)
    accumulator.reduce(model.device)
    fields = _fields(model, pages, reference) | {"resamples": n_resamples, "seed": seed}
    notes = {gradient_pass.score.label: gradient_pass.provenance() for gradient_pass in passes}
    table = _table(accumulator, head_index(model), fields, notes)
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
    replacement: Fill = "zero",
    max_tokens: int = 1024,
    n_resamples: int = 1000,
    seed: int = 0,
    **options: Any,
) -> pd.DataFrame:
    """Attribute a model's output to its heads' masks, by a captum method.

    The target of a sentence is the objective's mean over its steps, for the tokens that the intact model predicts. This
    is `score` with one `Attribution`, and raises the same errors.

    Args:
        model: the model.
        tokenizer: tokenizer of the model.
        corpus: the sentences.
        method: name of a class of `captum.attr` that needs only a function, such as "IntegratedGradients",
            "ShapleyValueSampling", "FeatureAblation", "GradientShap", or "DeepLift" where it applies.
        objective: name or instance of the target; default: the model's own.
        replacement: replacement of a masked head's output, "zero" or "uniform".
        max_tokens: upper bound on tokens per batch and side, padding included.
        n_resamples: number of bootstrap resamples; 0 for no intervals.
        seed: seed of the resamples.
        **options: options of the method's `attribute`, such as `n_steps`, `n_samples`, `perturbations_per_eval`.

    Returns:
        One row per head with columns `attribution[method]` and `attribution[method].size`, and bounds as in `score`.
    """
    attribution = Attribution(
        method=method, options=tuple(options.items()), replacement=replacement, objective=objective
    )
    return score(model, tokenizer, corpus, attribution, max_tokens=max_tokens, n_resamples=n_resamples, seed=seed)


def attention_matrix(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentence: str | Sentence, head: Head
) -> pd.DataFrame:
    """Return the attention matrix of one head on one sentence.

    The head must be one of the model's, and the sentence no longer than its positions.

    Args:
        model: the model.
        tokenizer: tokenizer of the model.
        sentence: text, or a sentence with its target.
        head: (kind, layer, head).

    Returns:
        Attention weights; rows are query tokens and columns key tokens, special tokens included.

    Raises:
        ValueError: if the attention is not finite.
    """
    check_head(model, head)
    text = Sentence(sentence) if isinstance(sentence, str) else sentence
    encoded = batching.encode(Corpus("one sentence", (text,)), tokenizer, model, words=False)
    kept: list[Tensor] = []

    def keep(site: Site, weights: Tensor) -> None:
        if site.key == head[:2]:
            kept.append(weights[0, site.numbers.index(head[2])].float().cpu())

    with attention_hooks.evaluating(model), torch.inference_mode():
        batch = next(batching.batches(encoded, model))
        with capture.capture_attention(model, keep):
            body(model)(**batch.inputs, **without_cache(body(model)))
    if not kept[0].isfinite().all():
        raise ValueError(f"the attention of {head} is not finite; {dummy_inputs.advice(model)}")
    views = batch.queries(head[0]), batch.keys(head[0])
    rows, columns = (pd.Index(tokenizer.convert_ids_to_tokens(view.ids[0].tolist())) for view in views)
    return pd.DataFrame(kept[0].numpy(), index=rows, columns=columns)


def _possible(
    asked: Measure | Iterable[str | Measure], sites: list[Site], pages: Pages, *, counted: bool, strict: bool
) -> list[Measure]:
    """The scores that can be had; where `strict`, one that cannot is an error."""
    kinds: set[Kind] = {site.kind for site in sites if site.heads}
    trees = _tree_kinds(pages.first) & kinds
    chosen = []
    for one in named(asked):
        name, corpus = one.name(), pages.corpus.name
        faults = [
            (
                not kinds & set(one.kinds),
                f"score {name!r} is for {_or(one.kinds)} heads; the model has {_or(sorted(kinds))}",
            ),
            (
                one.needs_trees and not trees,
                f"score {name!r} needs dependency trees, and corpus {corpus!r} has none on the side of its "
                f"{_or(sorted(kinds & set(SELF)))} heads; read CoNLL-U, or make trees with headroles.parse",
            ),
            (
                one.needs_counts and pages.streamed and not counted,
                f"score {name!r} needs to know how frequent each token is, and {corpus!r} is a stream; give reference=",
            ),
            (
                isinstance(one, GradientScore) and pages.streamed,
                f"score {name!r} is of gradients, and {corpus!r} is a stream; read a corpus whole: headroles.read",
            ),
        ]
        fault = next((text for lacking, text in faults if lacking), None)
        if fault and strict:
            raise ValueError(fault)
        if not fault:
            chosen.append(one)
    return chosen


def _tree_kinds(encoded: Encoded) -> set[Kind]:
    """The kinds of heads whose tokens have trees."""
    source: set[Kind] = {"enc-self"} if encoded.target is not None or encoded.greedy else {"enc-self", "dec-self"}
    found = source if any(one.sentence.has_tree for one in encoded.source) else set()
    return found | ({"dec-self"} if any(one.sentence.has_tree for one in encoded.target or ()) else set())


def _watch(
    batch: Batch,
    model: PreTrainedModel,
    scores: list[Score],
    accumulator: Accumulator,
    weights: Tensor,
    counted: Frequencies,
) -> None:
    """One forward in which the scores of attention see every site, of long texts part by part."""
    grounded: dict[Kind, tuple[Kind, int]] = {}

    def look(site: Site, attention: Tensor, first: int) -> None:
        queries, keys = batch.queries(site.kind), batch.keys(site.kind)
        counts, ranks = counted["source" if keys is batch.source else "target"]
        asking = queries.span(first, first + attention.shape[-2])
        observation = Observation(site.kind, attention.float().to(keys.ids.device), asking, keys, counts, ranks, first)
        _check_finite(observation, site, batch, model)
        for score in (score for score in scores if site.kind in score.kinds):
            accumulator.add(score, site.key, score.update(observation), weights)
            if grounded.setdefault(site.kind, site.key) == site.key:  # the same for every layer
                accumulator.add_denominators(score, site.kind, score.denominators(observation), weights)

    with torch.inference_mode(), _watched(model, look, batch, scores):
        body(model)(**batch.inputs, **without_cache(body(model)))


def _watched(
    model: PreTrainedModel, look: PartCallback, batch: Batch, scores: list[Score]
) -> AbstractContextManager[None]:
    """In parts where a layer has more weights than one part may have, and all scores add up over parts."""
    sides = {site: (batch.queries(site.kind).ids, batch.keys(site.kind).ids) for site in attention_sites(model)}
    most = max(site.heads * queries.numel() * keys.shape[1] for site, (queries, keys) in sides.items())
    if most > capture.CELLS and all(one.in_parts for one in scores):
        return capture.capture_attention_in_parts(model, look, cells=capture.CELLS)
    return capture.capture_attention(model, lambda site, attention: look(site, attention, 0))


def _check_finite(observation: Observation, site: Site, batch: Batch, model: PreTrainedModel) -> None:
    known = observation.top[0].isfinite().all(-1).all(-1)  # [batch]
    if not known.all():
        number = batch.numbers[int(known.int().argmin())]
        raise ValueError(
            f"the attention of {site.kind} layer {site.layer} is not finite on sentence {number + 1} of the corpus; "
            f"{dummy_inputs.advice(model)}"
        )


def _table(
    accumulator: Accumulator, index: pd.MultiIndex, fields: dict[str, object], notes: Mapping[str, dict[str, object]]
) -> pd.DataFrame:
    columns: dict[str, Array] = {}
    draws: dict[str, Array] = {}
    signatures: dict[str, str] = {}
    for score, name, values, sizes in accumulator.columns(index):
        columns[name] = values[:, 0]
        if accumulator.n_resamples and score.sampled(name):
            draws[name] = rounded(values[:, 1:])
            columns[f"{name}.low"], columns[f"{name}.high"] = (
                bounds(values[:, 1:]) if sizes is None else share(values, *sizes.T)
            )
        text = frame.sign(**fields | {"score": score} | notes.get(score.label, {}))
        signatures |= dict.fromkeys((name, f"{name}.low", f"{name}.high"), text)
    return frame.table(columns, index, {name: signatures[name] for name in columns}, draws=draws)


def _fields(model: PreTrainedModel, pages: Pages, reference: Corpus | None) -> dict[str, object]:
    """What a signature says of a run."""
    first = pages.first
    decoder = (
        {} if not first.greedy and first.target is None else {"decoder": "greedy" if first.greedy else "reference"}
    )
    return {
        "model": loading.name(model),
        "weights": loading.revision(model),
        "corpus": pages.corpus.name,
        "text": pages.corpus.hash,
        **pages.read,
        **decoder,
        **({"shared": shared} if (shared := kv_groups.said(attention_sites(model))) else {}),
        "frequencies": "self" if reference is None else f"{reference.name}-{reference.hash}",
        "headroles": version("headroles"),
    }


def _or(names: Iterable[str]) -> str:
    return " or ".join(names)
