"""Looking: the attention of one head on sentences, token by token, with the rarest token of each marked."""

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


def looks(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    sentences: Sequence[Sentence],
    head: Any,
) -> pd.DataFrame:
    """A row per sentence, query and key: `weight`, and of the key its `token`, whether it is real and the rarest.

    How rare a token is, is counted in `corpus`; `counted` are tokens that are not special, `rarest` the first of the
    least frequent among them.
    """
    special = loading.special(tokenizer, model)
    counts: Counter[int] = Counter()
    for one in corpus:
        counts.update(tokenizer(one.text)["input_ids"])
    rows = []
    for number, sentence in enumerate(sentences):
        weights = attention_matrix(model, tokenizer, sentence, head).to_numpy()
        ids = tokenizer(sentence.text)["input_ids"]
        real = [place for place, one in enumerate(ids) if one not in special]
        rarest = min(real, key=lambda place: counts[ids[place]])
        tokens = tokenizer.convert_ids_to_tokens(ids)
        rows += [
            (number, *head, query, key, tokens[key], weights[query, key], key in real, key == rarest)
            for query in range(len(ids))
            for key in range(len(ids))
        ]
    columns = ["sentence", *frame.LEVELS, "query", "key", "token", "weight", "counted", "rarest"]
    table = pd.DataFrame(rows, columns=columns)
    text = frame.sign(model=loading.name(model), weights=loading.revision(model), counted_in=corpus.hash)
    table.attrs["signatures"] = dict.fromkeys(table.columns, text)
    return table


class Material(NamedTuple):
    """What is learnt from, told on, measured on; None where the folder has no such file."""

    train: Corpus
    dev: Corpus
    test: Corpus
    other: Corpus | None  # another domain
    trees: Corpus | None
    other_trees: Corpus | None
    sentences: Corpus | None  # a few, to draw the attention on; by default of those with trees


def material(folder: str | Path, *, limit: int | None = None) -> Material:
    """The corpora of a folder; of each the first `limit` sentences.

    `train`, `dev` and `test`, and if they are there `other` (another domain), `trees` and `other_trees` (CoNLL-U),
    `sentences` (a few, to draw attention on): for
    a classifier files such as train.tsv, for a translation model pairs such as train.source.txt and train.target.txt;
    .gz too. Raises FileNotFoundError for a folder without the first three, ValueError for files that are no pair.
    """
    place = Path(folder)
    found = {name: _part(place, name, limit) for name in Material._fields}
    if lacking := [name for name in ("train", "dev", "test") if found[name] is None]:
        raise FileNotFoundError(
            f"no {lacking[0]} in {place}; a folder of data has train, dev and test: .tsv with labels, "
            f"or .source.txt and .target.txt; and if you have them other, trees and other_trees (.conllu), sentences"
        )
    return Material(**found)  # type: ignore[arg-type]


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
TRAINED |= {"places", "compensation", "uniformity"}  # what needs trainings


def references(workshop: Workshop) -> list[Path]:
    """The table of untrained models: the largest relevance of a head, and its correlation with confidence.

    `most` is the largest share of relevance of any encoder head, in equal shares of its layer, `correlation` the rank
    correlation of confidence with relevance within layers.
    """
    study, corpus = Study(workshop.references / "relevance"), workshop.material.dev
    parts = (
        loading.revision(loading.untrained(workshop.model)),
        loading.tokens(workshop.tokenizer),
        corpus.hash,
        COUNT,
    )
    study.keep("untrained", " ".join(map(str, parts)), lambda: _measured(workshop))
    return [study.path("untrained")]


def _measured(workshop: Workshop) -> pd.DataFrame:
    rows, signature = [], ""
    for seed in range(1, COUNT + 1):
        fresh = loading.untrained(workshop.model, seed=seed)
        found = score(fresh, workshop.tokenizer, workshop.material.dev, ["confidence", "relevance"], n_resamples=2)
        name = next(name for name in map(str, found) if name.startswith("relevance[") and name.endswith(SIZE))
        pair: Any = of_kind(found)[["confidence", name]]
        equal = pair[name].groupby(level="layer").transform("size")
        most, told = float((pair[name] * equal).max()), within_layers(pair)
        rows.append({"seed": seed, "most": most, "correlation": float(told["spearman"])})
        signature = signature or frame.provenance(found, name)
    table = pd.DataFrame(rows)
    table.attrs["signatures"] = dict.fromkeys(table, signature)
    return table


def trainings(workshop: Workshop) -> list[Path]:
    """The table of trainings: with how many steps and epochs a model is retrained, or trained from scratch."""
    study = Study(workshop.folder / "pruning")
    rows = [_training("retrained", workshop.tune, workshop), _training("finetuned", workshop.tune, workshop)]
    table = pd.DataFrame([*rows, _training("scratch", workshop.scratch, workshop)])
    table.attrs["signatures"] = dict.fromkeys(table, frame.sign(corpus=workshop.material.train.name))
    save_table(table, study.path("trainings"))
    return [study.path("trainings")]


def _training(what: str, options: Any, workshop: Workshop) -> dict[str, Any]:
    epochs = options["epochs"]
    steps = math.ceil(len(workshop.material.train) / options.get("batch", 32)) * epochs
    return {"what": what, "steps": steps, "epochs": float(epochs)}


def control(workshop: Workshop, *, trains: bool = False) -> Workshop:
    """A workshop of an untrained model of the same shape, in a folder beneath; its weights stay as they are drawn.

    Without `trains` it refuses what needs trainings (pruning, contests), which take as long as those of the model.
    """
    found = copy(workshop)
    found.folder = workshop.folder / "untrained"
    found.model = loading.untrained(workshop.model)
    found.tune, found.scratch = workshop.tune | {"rate": 0.0}, workshop.scratch | {"rate": 0.0}
    found.trains = trains
    return found


MADE: dict[str, Callable[[Workshop], list[Path]]] = {"untrained": references, "trainings": trainings}
