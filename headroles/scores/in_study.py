"""Scores in a study: tables that are loaded if the study has them, computed and kept otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.data.conllu import offsets
from headroles.data.corpus import RELATIONS, Corpus
from headroles.data.streaming import StreamingCorpus
from headroles.data.synthetic import LENGTH, repeated_tokens
from headroles.models import tokenization
from headroles.models.heads import attention_sites
from headroles.models.provenance import cache_key, configuration
from headroles.scores.base import Measure, Weights
from headroles.scores.gradients.relevance import Relevance
from headroles.scores.lrp import conservation
from headroles.scores.registry import named
from headroles.tables import frame
from headroles.tables.study import Study

DEFAULT = ("confidence", "position", "syntax", "rarity", "entropy", "sink", "distance", "alignment")
REPEATED = ("induction", "duplicate")  # measured on random tokens, each sequence twice in a row
CHECKED = 100  # sentences of the conservation report


def kept_scores(
    study: Study,
    score: Callable[..., pd.DataFrame],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus | StreamingCorpus,
    scores: Measure | Iterable[str | Measure] | None,
    *,
    max_tokens: int,
    n_resamples: int,
    seed: int,
    weights: Weights,
    reference: Corpus | None,
) -> pd.DataFrame:
    """Return the score table of a study; `score` computes it if it is of another model, corpus or options."""
    chosen = None if scores is None else named(scores, weights)
    repeated = _repeated(model, tokenizer) if chosen is None else None
    key = cache_key(
        model,
        configuration=configuration(model, tokenizer),
        text=corpus.hash,
        scores="default" if chosen is None else ",".join(map(str, chosen)),
        resamples=n_resamples,
        seed=seed,
        reference="self" if reference is None else reference.hash,
    )
    if chosen is None and weights != "attention":
        key += f"|by:{weights}"
    if repeated is not None:
        key += f"|repeated:{repeated.hash}"

    def compute() -> pd.DataFrame:
        sizes = {"max_tokens": max_tokens, "n_resamples": n_resamples, "seed": seed}
        compute_on = partial(score, model, tokenizer, weights=weights, **sizes)
        table = compute_on(corpus, chosen, reference=reference)
        if repeated is None:
            return table
        return frame.join(table, compute_on(repeated, REPEATED))

    table = study.keep("heads", key, compute, joined=("scores", "by", "repeated"))
    sample = next(corpus.parts()) if isinstance(corpus, StreamingCorpus) else corpus
    for relevance in (measure for measure in chosen or () if isinstance(measure, Relevance)):
        report = partial(
            conservation,
            model,
            tokenizer,
            sample[:CHECKED],
            relevance.rules,
            epsilon=relevance.epsilon,
            objective=relevance.objective,
            max_tokens=max_tokens,
        )
        study.keep(f"conservation-{relevance.rules}", key, report)
    if any(set(RELATIONS) & set(sentence.relations) for sentence in sample):
        study.keep("offsets", frame.sign_version(text=corpus.hash), lambda: offsets(sample))
    else:
        study.path("offsets").unlink(missing_ok=True)  # of another corpus
    return _columns_of(table, named((*DEFAULT, *REPEATED), weights) if chosen is None else chosen)


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


def _repeated(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Corpus | None:
    """Return sequences of random tokens, each twice in a row, for a decoder without an encoder; else None."""
    if any(site.kind != "dec-self" for site in attention_sites(model)):
        return None
    longest = (tokenization.positions(tokenizer, model) - 1) // 2
    return repeated_tokens(tokenizer, length=min(LENGTH, longest, len(tokenizer) // 2))
