"""Score the heads of a model on a corpus, assign their roles and draw the figures, in one study folder."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from headroles.analysis import role_rules
from headroles.data.corpus import RELATIONS, Corpus
from headroles.data.streaming import StreamingCorpus
from headroles.plots.gallery import DRAWN, figures, save
from headroles.tables import frame
from headroles.tables.files import check_ours, mark_of
from headroles.tables.io import save_table
from headroles.tables.study import Study

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headroles.scores import Measure, Relevance

CHECKED = 100  # sentences of the conservation report


def measure(
    study: Study,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus | StreamingCorpus,
    scores: Iterable[str | Measure] | None = None,
    *,
    max_tokens: int = 4096,
    n_resamples: int = 1000,
    seed: int = 0,
    reference: Corpus | None = None,
) -> pd.DataFrame:
    """Compute the score table of a study, or return it if it is of the same model, corpus and options.

    Two more tables are kept: `offsets`, the distances between heads and dependents, if the corpus has trees (of a
    stream those of its first part); and `conservation-RULES`, the conservation report on the first 100 sentences, for
    each relevance score.

    Args:
        study: Study in which the tables are kept.
        model: Model to score.
        tokenizer: Its tokenizer.
        corpus: Corpus, or a stream of one.
        scores: Scores or their names. By default all that apply; a decoder without an encoder is also scored on random
            tokens, each sequence twice in a row (induction and duplicate-token heads).
        max_tokens: Largest number of tokens in a batch, padding included.
        n_resamples: Number of bootstrap resamples of sentences.
        seed: Seed of the resamples.
        reference: Corpus of token counts; by default the scored corpus.

    Returns:
        The score table, as of `hr.score`, which also lists the errors.
    """
    from headroles.models import loading
    from headroles.scores import Relevance, named, score

    chosen = None if scores is None else named(scores)
    repeated = _repeated(model, tokenizer) if chosen is None else None
    key = frame.sign(
        weights=loading.revision(model),
        tokenizer=loading.tokens(tokenizer),
        text=corpus.hash,
        scores="default" if chosen is None else ",".join(map(repr, chosen)),
        resamples=n_resamples,
        seed=seed,
        reference="self" if reference is None else reference.hash,
        headroles=version("headroles"),
        **({} if repeated is None else {"repeated": repeated.hash}),
    )

    def compute() -> pd.DataFrame:
        compute_on = partial(score, model, tokenizer, max_tokens=max_tokens, n_resamples=n_resamples, seed=seed)
        table = compute_on(corpus, chosen, reference=reference)
        if repeated is None:
            return table
        return frame.join(table, compute_on(repeated, ["induction", "duplicate"]))

    table = study.keep("heads", key, compute)
    sample = next(corpus.parts()) if isinstance(corpus, StreamingCorpus) else corpus
    for relevance in (measure for measure in chosen or () if isinstance(measure, Relevance)):
        _keep_conservation(study, key, relevance, model, tokenizer, sample[:CHECKED], max_tokens)
    if any(set(RELATIONS) & set(sentence.relations) for sentence in sample):
        from headroles.data.readers import offsets

        study.keep("offsets", frame.sign(text=corpus.hash, headroles=version("headroles")), lambda: offsets(sample))
    else:
        study.path("offsets").unlink(missing_ok=True)  # of another corpus
    return table


def balances(study: Study) -> dict[str, dict[str, float]]:
    """Return the totals of each conservation report of a study: shares of inputs, biases and the residue."""
    from headroles.scores.lrp import totals

    names = [name for name in study.names() if name.startswith("conservation-")]
    return {name.removeprefix("conservation-"): totals(study.load(name)) for name in names}


def tell(study: Study, *, thresholds: dict[str, float] | None = None) -> pd.DataFrame:
    """Assign roles from the score table of a study and save them as its table `roles`.

    Args:
        study: Study with a score table.
        thresholds: Thresholds of roles by name; by default those of the roles.

    Returns:
        The role table, as of `hr.roles`.

    Raises:
        FileNotFoundError: If the study has no score table.
    """
    if not study.has("heads"):
        raise FileNotFoundError(f"no score table in {study.folder}; make it with headroles score")
    table = role_rules.roles(study.load("heads"), thresholds=thresholds)
    save_table(table, study.path("roles"))
    return table


def draw(study: Study) -> list[Path]:
    """Draw every figure that the tables of a study allow, as PNG beside them.

    Figures of an earlier drawing that the tables no longer allow are removed.

    Args:
        study: Study with tables.

    Returns:
        The files.

    Raises:
        FileNotFoundError: If the study has no tables.
        FileExistsError: If a picture that headroles did not draw has the name of a figure.
    """  # noqa: DOC502
    if not study.names():
        raise FileNotFoundError(f"no tables in {study.folder}; make them with headroles score")
    files = []
    for name, axes in figures(study):
        path = study.folder / f"{name}.png"
        if path.is_file() and b"Matplotlib" not in path.read_bytes():  # earlier versions did not sign figures
            check_ours(path, "", overwrite=study.overwrite)
        files.append(save(axes, path))
    for old in {path for pattern in DRAWN for path in study.folder.glob(pattern)} - set(files):
        if mark_of("").encode() in old.read_bytes():
            old.unlink(missing_ok=True)
    return files


def _repeated(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Corpus | None:
    """Return sequences of random tokens, each twice in a row, for a decoder without an encoder; else None."""
    from headroles.data.synthetic import LENGTH, repeated_tokens
    from headroles.models import loading
    from headroles.models.heads import attention_sites

    if any(site.kind != "dec-self" for site in attention_sites(model)):
        return None
    longest = (loading.positions(tokenizer, model) - 1) // 2
    return repeated_tokens(tokenizer, length=min(LENGTH, longest, len(tokenizer) // 2))


def _keep_conservation(
    study: Study,
    key: str,
    relevance: Relevance,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    max_tokens: int,
) -> None:
    from headroles.scores.lrp import conservation

    def compute() -> pd.DataFrame:
        return conservation(
            model,
            tokenizer,
            corpus,
            relevance.rules,
            epsilon=relevance.epsilon,
            objective=relevance.objective,
            max_tokens=max_tokens,
        )

    study.keep(f"conservation-{relevance.rules}", key, compute)
