"""The main job in one study folder: score the heads of a model on a corpus, tell their roles, draw the figures."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

BALANCED = 100  # sentences of the conservation report


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
    """The score table of a study: kept if it is there and made from the same model, corpus and options.

    Arguments and errors are those of `score`. Where no scores are named, the heads of a decoder without an encoder are
    also scored on random tokens, each sequence twice in a row: induction and duplicate. Where the corpus has trees, the
    distances between heads and dependents are kept too, as the table `offsets`; for relevance its conservation report
    on the first sentences, as `conservation-RULES`. Of a stream distances are those of its first part.
    """
    from headroles import scores as room
    from headroles.models import loading

    chosen = None if scores is None else room.named(scores)
    twice = _twice(model, tokenizer) if chosen is None else None
    recipe = frame.sign(
        weights=loading.revision(model),
        tokenizer=loading.tokens(tokenizer),
        text=corpus.hash,
        scores="default" if chosen is None else ",".join(map(repr, chosen)),
        resamples=n_resamples,
        seed=seed,
        reference="self" if reference is None else reference.hash,
        headroles=version("headroles"),
        **({} if twice is None else {"repeated": twice.hash}),
    )
    options: dict[str, Any] = {
        "max_tokens": max_tokens,
        "n_resamples": n_resamples,
        "seed": seed,
        "reference": reference,
    }

    def compute() -> pd.DataFrame:
        found = room.score(model, tokenizer, corpus, chosen, **options)
        if twice is None:
            return found
        again = options | {"reference": None}
        return frame.join(found, room.score(model, tokenizer, twice, ["induction", "duplicate"], **again))

    table = study.keep("heads", recipe, compute)
    sample = next(corpus.parts()) if isinstance(corpus, StreamingCorpus) else corpus
    for one in (one for one in chosen or () if isinstance(one, room.Relevance)):
        _keep_conservation(study, recipe, one, model, tokenizer, sample[:BALANCED], max_tokens)
    if any(set(RELATIONS) & set(sentence.relations) for sentence in sample):
        from headroles.data.readers import offsets

        study.keep("offsets", frame.sign(text=corpus.hash, headroles=version("headroles")), lambda: offsets(sample))
    else:
        study.path("offsets").unlink(missing_ok=True)  # of another corpus
    return table


def balances(study: Study) -> dict[str, dict[str, float]]:
    """The conservation report of each rule set a study has, in short: shares of inputs, biases, and the residue."""
    from headroles.scores.lrp import totals

    names = [name for name in study.names() if name.startswith("conservation-")]
    return {name.removeprefix("conservation-"): totals(study.load(name)) for name in names}


def tell(study: Study, *, thresholds: dict[str, float] | None = None) -> pd.DataFrame:
    """The role table of a study, from its score table; saved as `roles`.

    Raises FileNotFoundError if the study has no score table.
    """
    if not study.has("heads"):
        raise FileNotFoundError(f"no score table in {study.folder}; make it with headroles score")
    table = role_rules.roles(study.load("heads"), thresholds=thresholds)
    save_table(table, study.path("roles"))
    return table


def draw(study: Study) -> list[Path]:
    """Draw every figure that the study's tables allow, as PNG beside them; returns the files.

    Figures of an earlier drawing that the tables no longer allow are removed. Raises FileNotFoundError if the study
    has no tables, FileExistsError where a picture is in the place of one that is not ours.
    """
    if not study.names():
        raise FileNotFoundError(f"no tables in {study.folder}; make them with headroles score")
    files = []
    for name, axes in figures(study):
        path = study.folder / f"{name}.png"
        if path.is_file() and b"Matplotlib" not in path.read_bytes():  # as figures of earlier versions have it
            check_ours(path, "", overwrite=study.overwrite)
        files.append(save(axes, path))
    for old in {path for pattern in DRAWN for path in study.folder.glob(pattern)} - set(files):
        if mark_of("").encode() in old.read_bytes():
            old.unlink(missing_ok=True)
    return files


def _twice(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Corpus | None:
    """Sequences of random tokens, each twice in a row, for a decoder without an encoder; None for other models."""
    from headroles.data.synthetic import LENGTH, repeated_tokens
    from headroles.models import heads as families
    from headroles.models import loading

    if any(site.kind != "dec-self" for site in families.attention_sites(model)):
        return None
    room = (loading.positions(tokenizer, model) - 1) // 2
    return repeated_tokens(tokenizer, length=min(LENGTH, room, len(tokenizer) // 2))


def _keep_conservation(
    study: Study,
    recipe: str,
    score: Relevance,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    max_tokens: int,
) -> None:
    from headroles.scores.lrp import conservation

    options: dict[str, Any] = {"epsilon": score.epsilon, "objective": score.objective, "max_tokens": max_tokens}
    study.keep(
        f"conservation-{score.rules}", recipe, lambda: conservation(model, tokenizer, corpus, score.rules, **options)
    )
