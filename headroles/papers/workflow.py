"""The engine of `reproduce`: scores, ablates and prunes one model, the tables kept in studies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.effects import Unit, ablate
from headroles.data.corpus import Corpus
from headroles.data.readers import read
from headroles.models import loading
from headroles.models.head_model import HeadModel
from headroles.models.heads import attention_sites
from headroles.models.masking import Head
from headroles.pruning.comparison import compare_pruning
from headroles.pruning.learned_gates import L0
from headroles.pruning.rankings import Random, RankingContext
from headroles.pruning.selection import Strategy
from headroles.pruning.sparsity import sparsity_sweep
from headroles.scores import outputs, score
from headroles.tables.frame import Kind
from headroles.tables.io import load_table
from headroles.tables.study import Study
from headroles.training.hf_trainer import TrainOptions
from headroles.training.trainer import HISTORY, train

GATES = 0.1  # learning rate of gates; most of them converge in a few hundred steps


class Material(NamedTuple):
    """Train, dev and test corpora, and more; None if the file is missing."""

    train: Corpus
    dev: Corpus
    test: Corpus
    other: Corpus | None = None  # another domain
    trees: Corpus | None = None
    other_trees: Corpus | None = None
    sentences: Corpus | None = None  # a few, for drawing attention; by default some with trees


@dataclass(eq=False)
class Workflow:
    """A model, its corpora and options; each method computes tables of a study, or finds them there."""

    folder: Path  # of the studies
    model: PreTrainedModel  # pruning and training change copies of it
    tokenizer: PreTrainedTokenizerBase
    material: Material
    _: KW_ONLY
    metric: str = ""  # by default BLEU of a translation model, accuracy of a classifier, else the loss
    keep: Sequence[float] = (0.75, 0.5, 0.375, 0.25, 0.2, 0.1)  # shares of heads that gates keep
    compared: Sequence[float] = (0.5, 0.25)  # shares of heads that compared pruning strategies keep
    seeds: int = 3  # number of seeds of compared strategies
    tune: TrainOptions = field(default_factory=TrainOptions)  # options of retraining
    scratch: TrainOptions = field(default_factory=TrainOptions)  # options of training from scratch, where they differ
    n_resamples: int = 1000
    timed: Mapping[str, Any] = field(default_factory=dict)  # options of `hr.efficiency`
    counted: Corpus | None = None  # for token counts; by default the training corpus
    overwrite: bool = False  # whether to remove tables of another model or corpus

    def __post_init__(self) -> None:
        self.translation = self.model.config.is_encoder_decoder and self.model.can_generate()
        classifies = outputs.chooses(HeadModel(self.model))
        self.metric = self.metric or ("bleu" if self.translation else "accuracy" if classifies else "loss")
        self._parts = self.model, self.tokenizer
        self.tune = {"epochs": 1, "save_strategy": "no", **self.tune}
        self.scratch = {**self.tune, "epochs": 10, "rate": 2e-3, "save_strategy": "epoch", **self.scratch}

    @property
    def untrained(self) -> Self:
        """The workflow of an untrained model of the same shape, in a subfolder."""
        return replace(self, folder=self.folder / "untrained", model=loading.untrained(self.model))

    def study(self, name: str) -> Study:
        """Return a study of the folder."""
        return Study(self.folder / name, overwrite=self.overwrite)

    @property
    def base(self) -> float:
        """Steps of `hr.train` that made the model, by the history in its folder; NaN if unknown."""
        if (name := self.model.name_or_path) and (history := Path(name) / HISTORY).is_file():
            return float(load_table(history)["step"].max())
        return math.nan

    @property
    def frequencies(self) -> Corpus:
        """The corpus by which tokens are rare."""
        return self.material.train if self.counted is None else self.counted

    def score(
        self, study: Study, corpus: Corpus, scores: Iterable[str] | None = None, reference: Corpus | None = None
    ) -> Path:
        """Compute scores, by default all that need no gradient; return their file."""
        score(*self._parts, corpus, scores, reference=reference, study=study, n_resamples=self.n_resamples)
        return study.path("heads")

    def ablate(self, study: Study, corpus: Corpus, unit: Unit = "head") -> Path:
        """Ablate every head alone, or all but one head of each layer; return the file."""
        ablate(*self._parts, corpus, metric=self.metric, unit=unit, study=study, n_resamples=self.n_resamples)
        return study.path(f"best-{self.metric}-zero" if unit == "all_but_one" else f"ablation-{self.metric}-head-zero")

    def prune(self, study: Study, kind: Kind | None) -> None:
        """Prune the encoder by learnt gates with the decoder frozen, or heads of all kinds (kind None)."""
        trees = self.material.trees
        sparsity_sweep(
            *self._parts,
            self.material.train,
            self.material.test,
            L0(rate=GATES, freeze="decoder" if kind and self.translation else "nothing"),
            keep=self.keep,
            kinds=[kind] if kind else None,
            scored=None if trees is None else {"corpus": trees},
            tune=self.tune,
            metric=self.metric,
            study=study,
        )

    def compare(self, name: str, strategies: Sequence[str | Strategy], keep: Sequence[float]) -> Path:
        """Compare pruning strategies before and after retraining; return the file of the comparison."""
        corpora, study = (self.material.train, self.material.test), self.study(name)
        options: dict[str, Any] = {"seeds": self.seeds, "tune": self.tune, "metric": self.metric, "study": study}
        compare_pruning(*self._parts, *corpora, strategies=strategies, keep=keep, **options)
        return study.path("compare-pruning")

    def train(self, model: PreTrainedModel, *names: str, options: TrainOptions) -> Path:
        """Train a model on the training corpus; return the folder of its checkpoints."""
        folder = self.folder.joinpath(".trainings", *names)
        train(model, self.tokenizer, self.material.train, folder, **options)
        return folder

    def random_ranking(self) -> list[Head]:
        """Rank all heads at random, a head of each layer in turn."""
        context = RankingContext(
            self.model, self.tokenizer, Corpus("none", ()), attention_sites(self.model).of_kinds(None), 0
        )
        return Random("layer").order(context)


def material(folder: Path, *, limit: int | None = None) -> Material:
    """Read the corpora of a folder, by name; for a classifier train.tsv, or train.source.txt and train.target.txt."""
    parts = {name: part for name in Material._fields if (part := _part(folder, name, limit)) is not None}
    if lacking := [name for name in ("train", "dev", "test") if name not in parts]:
        raise FileNotFoundError(
            f"no {lacking[0]} in {folder}; a folder of data has train, dev and test: .tsv with labels, "
            f"or .source.txt and .target.txt; and if you have them other, trees and other_trees (.conllu), sentences"
        )
    return Material(**parts)


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
