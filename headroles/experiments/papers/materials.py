"""Corpora of a folder, and the reference tables of a reproduction: attention, untrained models, trainings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.data.corpus import Corpus, Sentence
from headroles.data.readers import read
from headroles.experiments.papers.stakes import within_layers
from headroles.experiments.papers.tables import of_kind
from headroles.models import loading
from headroles.scores import attention_matrix, score
from headroles.tables import frame
from headroles.tables.io import save_table
from headroles.tables.study import Study

if TYPE_CHECKING:
    from headroles.experiments.papers.workflow import Workshop


def token_attention(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    sentences: Sequence[Sentence],
    head: Any,
) -> pd.DataFrame:
    """Return the attention of one head on sentences, token by token, with the rarest token of each sentence.

    Args:
        model: Model with the head.
        tokenizer: Its tokenizer.
        corpus: Corpus in which tokens are counted.
        sentences: Sentences on which attention is computed.
        head: Kind, layer and head.

    Returns:
        One row per sentence, query and key: `weight`, and of the key its `token`, `counted` (a content token) and
        `rarest` (the first of the least frequent content tokens).
    """
    special = loading.special(tokenizer, model)
    counts: Counter[int] = Counter()
    for sentence in corpus:
        counts.update(tokenizer(sentence.text)["input_ids"])
    rows = []
    for number, sentence in enumerate(sentences):
        weights = attention_matrix(model, tokenizer, sentence, head).to_numpy()
        ids = tokenizer(sentence.text)["input_ids"]
        content = [place for place, token in enumerate(ids) if token not in special]
        rarest = min(content, key=lambda place: counts[ids[place]])
        tokens = tokenizer.convert_ids_to_tokens(ids)
        rows += [
            (number, *head, query, key, tokens[key], weights[query, key], key in content, key == rarest)
            for query in range(len(ids))
            for key in range(len(ids))
        ]
    columns = ["sentence", *frame.LEVELS, "query", "key", "token", "weight", "counted", "rarest"]
    table = pd.DataFrame(rows, columns=columns)
    text = frame.sign(model=loading.name(model), weights=loading.revision(model), counted_in=corpus.hash)
    table.attrs["signatures"] = dict.fromkeys(table.columns, text)
    return table


class Material(NamedTuple):
    """Train, dev and test corpora, and more; None if the file is missing."""

    train: Corpus
    dev: Corpus
    test: Corpus
    other: Corpus | None  # another domain
    trees: Corpus | None
    other_trees: Corpus | None
    sentences: Corpus | None  # a few, for drawing attention; by default some with trees


def material(folder: str | Path, *, limit: int | None = None) -> Material:
    """Read the corpora of a folder.

    Args:
        folder: Folder with `train`, `dev` and `test`; if present also `other` (another domain), `trees` and
            `other_trees` (CoNLL-U), and `sentences` (a few, for drawing attention). For a classifier these are files
            such as train.tsv, for a translation model pairs such as train.source.txt and train.target.txt; .gz too.
        limit: Number of first sentences to read of each file; by default all.

    Returns:
        The corpora.

    Raises:
        FileNotFoundError: If train, dev or test is missing.
        ValueError: If several files of one part are not a pair.
    """  # noqa: DOC502
    place = Path(folder)
    parts = {name: _part(place, name, limit) for name in Material._fields}
    if lacking := [name for name in ("train", "dev", "test") if parts[name] is None]:
        raise FileNotFoundError(
            f"no {lacking[0]} in {place}; a folder of data has train, dev and test: .tsv with labels, "
            f"or .source.txt and .target.txt; and if you have them other, trees and other_trees (.conllu), sentences"
        )
    return Material(**parts)  # type: ignore[arg-type]


def _part(folder: Path, name: str, limit: int | None) -> Corpus | None:
    files = sorted(folder.glob(f"{name}.*"))
    if len(files) == 1:
        return read(files[0], limit=limit)
    sides = [file.name.split(".")[1] for file in files]
    if files and sides != ["source", "target"]:
        raise ValueError(
            f"expected {name}.source.* and {name}.target.* in {folder}; got {', '.join(f.name for f in files)}"
        )
    return read(*files, limit=limit) if files else None


COUNT = 10  # untrained models, with the seeds 1 to 10; seed 0 is the negative control
SIZE = ".size"
TRAINED = {"sizes", "survival", "scratch", "sizes-encoder", "functions-encoder", "gates", "dynamics", "contest"}
TRAINED |= {"places", "compensation", "uniformity"}  # needs that take training


def references(workshop: Workshop) -> list[Path]:
    """Make the table of untrained models of the same shape.

    Args:
        workshop: Workshop of the model.

    Returns:
        The file of the table, a row per seed: `most`, the largest share of relevance of any encoder head in equal
        shares of its layer; `correlation`, the rank correlation of confidence with relevance within layers.
    """
    study, corpus = Study(workshop.references / "relevance"), workshop.material.dev
    weights = loading.revision(loading.untrained(workshop.model))
    key = f"{weights} {loading.tokens(workshop.tokenizer)} {corpus.hash} {COUNT}"
    study.keep("untrained", key, lambda: _untrained_scores(workshop))
    return [study.path("untrained")]


def _untrained_scores(workshop: Workshop) -> pd.DataFrame:
    rows, signature = [], ""
    for seed in range(1, COUNT + 1):
        model = loading.untrained(workshop.model, seed=seed)
        scores = score(model, workshop.tokenizer, workshop.material.dev, ["confidence", "relevance"], n_resamples=2)
        name = next(name for name in map(str, scores) if name.startswith("relevance[") and name.endswith(SIZE))
        pair: Any = of_kind(scores)[["confidence", name]]
        equal = pair[name].groupby(level="layer").transform("size")
        correlation = float(within_layers(pair)["spearman"])
        rows.append({"seed": seed, "most": float((pair[name] * equal).max()), "correlation": correlation})
        signature = signature or frame.provenance(scores, name)
    table = pd.DataFrame(rows)
    table.attrs["signatures"] = dict.fromkeys(table, signature)
    return table


def trainings(workshop: Workshop) -> list[Path]:
    """Make the table of trainings: the steps and epochs of retraining, and of training from scratch."""
    study, pairs = Study(workshop.folder / "pruning"), len(workshop.material.train)
    rows = []
    for name, options in (
        ("retrained", workshop.tune),
        ("finetuned", workshop.tune),
        ("scratch", workshop.scratch),
    ):
        steps = math.ceil(pairs / options.get("batch", 32)) * options["epochs"]
        rows.append({"what": name, "steps": steps, "epochs": float(options["epochs"])})
    table = pd.DataFrame(rows)
    table.attrs["signatures"] = dict.fromkeys(table, frame.sign(corpus=workshop.material.train.name))
    save_table(table, study.path("trainings"))
    return [study.path("trainings")]


def control(workshop: Workshop, *, trains: bool = False) -> Workshop:
    """Return the workshop of an untrained model of the same shape, in a subfolder, its weights kept as drawn.

    Args:
        workshop: Workshop of the model.
        trains: Whether to make the needs that take training, as long as for the model; by default they are refused.

    Returns:
        The workshop of the negative control.
    """
    untrained = copy(workshop)
    untrained.folder = workshop.folder / "untrained"
    untrained.model = loading.untrained(workshop.model)
    untrained.tune, untrained.scratch = workshop.tune | {"rate": 0.0}, workshop.scratch | {"rate": 0.0}
    untrained.trains = trains
    return untrained


MADE: dict[str, Callable[[Workshop], list[Path]]] = {"untrained": references, "trainings": trainings}
