"""The engine of `reproduce`: computes the required tables of one model, each kept in a study."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headroles as hr
from headroles.ablation.effects import Unit
from headroles.models import identity, loading
from headroles.models.head_model import HeadModel
from headroles.models.masking import Head
from headroles.models.tokens import vocabulary
from headroles.papers import verdicts as v
from headroles.papers.verdicts import Missing
from headroles.pruning.rankings import ByRoles, Random, RankingContext
from headroles.pruning.selection import Strategy
from headroles.scores import outputs
from headroles.scores.base import Measure
from headroles.tables import frame
from headroles.tables.columns import of_name
from headroles.tables.declared import quality
from headroles.tables.frame import KINDS, Kind
from headroles.tables.io import load_table, save_table
from headroles.tables.study import Study
from headroles.training.hf_trainer import TrainOptions
from headroles.training.trainer import HISTORY

GATES = 0.1  # learning rate of gates; most of them converge in a few hundred steps
Scores = Iterable[str | Measure] | None
COUNT = 10  # untrained models, with the seeds 1 to 10
LONGEST = 14  # words of a sentence in figures of attention
PLACES = ("random", "bottom", "middle", "top", "ends", "bottom alternating", "middle alternating")


class Material(NamedTuple):
    """Train, dev and test corpora, and more; None if the file is missing."""

    train: hr.Corpus
    dev: hr.Corpus
    test: hr.Corpus
    other: hr.Corpus | None = None  # another domain
    trees: hr.Corpus | None = None
    other_trees: hr.Corpus | None = None
    sentences: hr.Corpus | None = None  # a few, for drawing attention; by default some with trees


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
    counted: hr.Corpus | None = None  # for token counts; by default the training corpus
    overwrite: bool = False  # whether to remove tables of another model or corpus

    def __post_init__(self) -> None:
        self.translation = self.model.config.is_encoder_decoder and self.model.can_generate()
        classifies = outputs.chooses(HeadModel(self.model))
        self.metric = self.metric or ("bleu" if self.translation else "accuracy" if classifies else "loss")
        self.parts = self.model, self.tokenizer
        self.tune = {"epochs": 1, "save_strategy": "no", **self.tune}
        self.scratch = {**self.tune, "epochs": 10, "rate": 2e-3, "save_strategy": "epoch", **self.scratch}

    @property
    def untrained(self) -> Self:
        """The workflow of an untrained model of the same shape, in a subfolder."""
        return replace(self, folder=self.folder / "untrained", model=loading.untrained(self.model))

    @property
    def base(self) -> float:
        """Steps of `hr.train` that made the model, by the history in its folder; NaN if unknown."""
        if (name := self.model.name_or_path) and (history := Path(name) / HISTORY).is_file():
            return float(load_table(history)["step"].max())
        return math.nan

    @property
    def frequencies(self) -> hr.Corpus:
        """The corpus that determines which tokens are rare."""
        return self.material.train if self.counted is None else self.counted

    @property
    def trees(self) -> hr.Corpus:
        """The sentences with trees; raises Missing without any."""
        if self.material.trees is None:
            raise Missing("functions need sentences with trees; put trees.conllu into the folder of data")
        return self.material.trees

    def make(self, name: str) -> list[Path]:
        """Compute a required table, or find it in its study; return its files, the foremost first."""
        return MAKERS[name](self)

    def study(self, name: str) -> Study:
        """Return a study of the folder."""
        return Study(self.folder / name, overwrite=self.overwrite)

    def score(self, study: Study, corpus: hr.Corpus, scores: Scores = None, **options: Any) -> Path:
        """Compute scores, by default all that need no gradient; return their file."""
        hr.score(*self.parts, corpus, scores, study=study, n_resamples=self.n_resamples, **options)
        return study.path("heads")

    def ablate(self, study: Study, corpus: hr.Corpus, unit: Unit = "head") -> Path:
        """Ablate every head alone, or all but one head of each layer; return the file."""
        hr.ablate(*self.parts, corpus, metric=self.metric, unit=unit, study=study, n_resamples=self.n_resamples)
        return study.path(f"best-{self.metric}-zero" if unit == "all_but_one" else f"ablation-{self.metric}-head-zero")

    def compare(self, name: str, strategies: Sequence[str | Strategy], keep: Sequence[float]) -> list[Path]:
        """Compare pruning strategies before and after retraining."""
        corpora, study = (self.material.train, self.material.test), self.study(name)
        options: dict[str, Any] = {"seeds": self.seeds, "tune": self.tune, "metric": self.metric, "study": study}
        hr.compare_pruning(*self.parts, *corpora, strategies=strategies, keep=keep, **options)
        return [study.path("compare-pruning")]

    def train(self, model: PreTrainedModel, *names: str, options: TrainOptions) -> Path:
        """Train a model on the training corpus; return the folder of its checkpoints."""
        folder = self.folder.joinpath(".trainings", *names)
        hr.train(model, self.tokenizer, self.material.train, folder, **options)
        return folder

    def random_ranking(self) -> list[Head]:
        """Rank all heads at random, a head of each layer in turn."""
        sites = hr.attention_sites(self.model).of_kinds(None)
        return Random("layer").order(RankingContext(*self.parts, hr.Corpus("none", ()), sites, 0))


# --- scores -----------------------------------------------------------------------------------------------------------


def _relevance(run: Workflow) -> list[Path]:
    scores: list[str | Measure] = ["confidence", "importance", hr.Importance(norm="layer"), "relevance"]
    return [run.score(run.study("relevance"), run.material.dev, scores)]


def _functions(run: Workflow) -> list[Path]:
    files = [run.score(run.study("functions"), run.trees, reference=run.frequencies)]
    if (other := run.material.other_trees) is not None:
        files.append(run.score(run.study("functions-other"), other, reference=run.frequencies))
    return files


def _untrained(run: Workflow) -> list[Path]:
    study, corpus = run.study("relevance"), run.material.dev
    weights = identity.weights_digest(loading.untrained(run.model))
    key = f"{weights} {identity.tokenizer_digest(run.tokenizer)} {corpus.hash} {COUNT}"
    study.keep("untrained", key, lambda: _untrained_scores(run))
    return [study.path("untrained")]


def _untrained_scores(run: Workflow) -> pd.DataFrame:
    """Score untrained models: largest relevance in units of equal shares, its correlation with confidence in layers."""
    rows, signature = [], ""  # of the first
    for seed in range(1, COUNT + 1):
        model = loading.untrained(run.model, seed=seed)
        scores = hr.score(model, run.tokenizer, run.material.dev, ["confidence", "relevance"], n_resamples=2)
        name = next(iter(of_name(scores, "relevance", "size")))
        pair = v.rows_of_kind(scores)[["confidence", name]]
        equal = pair[name].groupby(level="layer").transform("size")
        correlation = float(v.within_layers(pair)["spearman"])
        rows.append({"seed": seed, "most": float((pair[name] * equal).max()), "correlation": correlation})
        signature = signature or frame.provenance(scores, name)
    return frame.signed(pd.DataFrame(rows), signature)


def _attention(run: Workflow) -> list[Path]:
    """Keep the attention of the encoder head that attends most often to the rarest token, on three short sentences."""
    rarity = v.rows_of_kind(load_table(_functions(run)[0]))["rarity"]
    if rarity.isna().all():
        raise Missing("no sentence with trees has a token outside the 500 most frequent of the training corpus")
    rarest, corpus = rarity.index[int(rarity.argmax())], run.material.sentences or run.trees
    short = [sentence for sentence in corpus if len(sentence.text.split()) <= LONGEST][:3]
    study, key = run.study("functions"), f"{identity.weights_digest(run.model)} {rarest} {corpus.hash}"
    study.keep("attention-rare", key, lambda: _token_attention(run, short, rarest))
    return [study.path("attention-rare")]


def _token_attention(run: Workflow, sentences: Sequence[hr.Sentence], head: Head) -> pd.DataFrame:
    """Return the attention of a head, a row per query and key.

    `rarest` is the least frequent content token, `rarest.two` each of the two least frequent; of equals the first.
    """
    tokenizer, special = run.tokenizer, vocabulary.special(run.tokenizer, run.model)
    counts = Counter(token for sentence in run.frequencies for token in tokenizer(sentence.text)["input_ids"])
    rows = []
    for number, sentence in enumerate(sentences):
        weights = hr.attention_matrix(run.model, tokenizer, sentence, head).to_numpy()
        ids = tokenizer(sentence.text)["input_ids"]
        content = [place for place, token in enumerate(ids) if token not in special]
        rarest = sorted(content, key=lambda place: counts[ids[place]])[:2]
        tokens = tokenizer.convert_ids_to_tokens(ids)
        for (query, key), weight in np.ndenumerate(weights):
            flags = key in content, key in rarest[:1], key in rarest
            rows.append((number, *head, query, key, tokens[key], weight, *flags))
    columns = ["sentence", *frame.LEVELS, "query", "key", "token", "weight", "counted", "rarest", "rarest.two"]
    fields = {"model": identity.model_name(run.model), "weights": identity.weights_digest(run.model)}
    return frame.signed(pd.DataFrame(rows, columns=columns), frame.sign(**fields, counted_in=run.frequencies.hash))


# --- ablation ---------------------------------------------------------------------------------------------------------


def _single(run: Workflow) -> list[Path]:
    corpora = {"ablation": run.material.test, "ablation-other": run.material.other}
    return [run.ablate(run.study(name), corpus) for name, corpus in corpora.items() if corpus is not None]


def _best(run: Workflow) -> Path:
    return run.ablate(run.study("ablation"), run.material.test, "all_but_one")


def _curves(run: Workflow, kind: Literal["each"] | None = None) -> list[Path]:
    """Ablate heads by importance as in the paper and raw; for all kinds together, also by effects and at random."""
    scores = frame.join(load_table(_relevance(run)[0]), load_table(_single(run)[0]))
    effect = f"{'-' if quality(run.metric).better > 0 else ''}ablation[{run.metric}]"
    columns = [*v.RANKINGS] if kind else [*v.RANKINGS, effect]
    study, parts = run.study("curves"), (*run.parts, run.material.test)
    ranked = hr.ablation.orders(scores, columns, kind=kind, seeds=0 if kind else 3)
    hr.ablation_curve(*parts, ranked, metric=run.metric, kind=kind, study=study, n_resamples=run.n_resamples)
    return [study.path(f"curves-{run.metric}{f'-{kind}' if kind else ''}")]


# --- pruning and training ---------------------------------------------------------------------------------------------


@cache  # several artefacts of one run need it
def _pruned(run: Workflow, kind: Kind | None = None) -> Study:
    """Prune one kind of heads by learnt gates with the decoder frozen, or heads of all kinds of a translation model."""
    if kind is None:
        _check_translates(run)
    trees, study = run.material.trees, run.study("pruning")
    strategy = hr.L0(rate=GATES, freeze="decoder" if kind and run.translation else "nothing")
    options: dict[str, Any] = {"keep": run.keep, "kinds": [kind] if kind else None, "tune": run.tune}
    options |= {"scored": None if trees is None else {"corpus": trees}, "metric": run.metric, "study": study}
    hr.sparsity_sweep(*run.parts, run.material.train, run.material.test, strategy, **options)
    return study


def _functions_encoder(run: Workflow) -> list[Path]:
    _ = run.trees  # Missing without any
    return [_pruned(run, "enc-self").path("functions-l0-enc-self")]


def _scratch(run: Workflow) -> list[Path]:
    """Train models without the pruned heads from scratch, one of each size, and evaluate them."""
    study = _pruned(run)
    sizes, survival = study.load("sparsity-l0"), study.load("survival-l0")
    rows = []
    for name in map(str, survival.filter(regex=r"\]$")):
        model = hr.remove_heads(loading.untrained(run.model), [*survival.index[survival[name] == 0]])
        run.train(model, "scratch", name, options=run.scratch)
        values = hr.evaluate(model, run.tokenizer, run.material.test, [run.metric], n_resamples=run.n_resamples)
        size = sizes[sizes["heads"] == int(survival[name].sum())].iloc[0]
        row = {"heads": size["heads"], **dict(zip("edc", size[[*KINDS]], strict=True))}
        for label, part in (("finetuned", size), ("scratch", values.loc[run.metric])):
            row |= dict(zip(v.with_bounds(label), part[v.VALUES], strict=True))
        rows.append(row)
    table = frame.signed(pd.DataFrame(rows), frame.provenance(sizes, "value"))
    return [save_table(table, study.path("scratch"))]


def _trainings(run: Workflow) -> list[Path]:
    """Compute the steps and epochs of retraining, of training from scratch, and before pruning (NaN: unknown)."""
    rows: list[dict[str, str | float]] = [{"what": "base", "steps": run.base, "epochs": math.nan}]
    for name, options in {"retrained": run.tune, "finetuned": run.tune, "scratch": run.scratch}.items():
        steps = math.ceil(len(run.material.train) / options.get("batch", 32)) * options["epochs"]
        rows.append({"what": name, "steps": steps, "epochs": float(options["epochs"])})
    table = frame.signed(pd.DataFrame(rows), frame.sign(corpus=run.material.train.name))
    return [save_table(table, run.study("pruning").path("trainings"))]


def _dynamics(run: Workflow) -> list[Path]:
    """Train the model from scratch and measure its checkpoints."""
    _check_translates(run)
    study = run.study("dynamics")
    training = run.train(loading.untrained(run.model), "training", "all", options=run.scratch)
    corpora = run.material.trees or run.material.dev, run.material.test
    hr.dynamics(training, *corpora, metric=run.metric, n_resamples=run.n_resamples, study=study)
    return [study.path("dynamics-curves")]


def _efficiency(run: Workflow) -> list[Path]:
    study, key = run.study("efficiency"), frame.sign(weights=identity.weights_digest(run.model))
    study.keep("efficiency", key, lambda: hr.efficiency(run.model, run.random_ranking(), **run.timed))
    return [study.path("efficiency")]


def _strategies(run: Workflow) -> list[Path]:
    strategies: list[str | Strategy] = ["importance", "effect", hr.L0(rate=GATES), "random", "-importance"]
    if run.material.trees is not None:
        strategies.insert(3, ByRoles(load_table(_functions(run)[0])))
    return run.compare("compare-pruning", strategies, run.compared)


def _weight_changes(run: Workflow) -> list[Path]:
    """Train the model with half of its heads and with all, with several seeds, and measure the weights' changes."""
    study, ranking = run.study("weight-change"), run.random_ranking()
    for seed in range(max(run.seeds, 3)):
        for arm, pruned in (("", ranking[: len(ranking) // 2]), ("whole-", [])):
            tuned = hr.remove_heads(deepcopy(run.model), pruned)
            run.train(tuned, "weight-change", f"{arm}{seed}", options={**run.tune, "seed": seed})
            table = hr.weight_change(run.model, tuned, seed=seed, study=None if arm else study)
            if arm:
                study.save(f"weight-change-{arm}{seed}", table)
    return [study.path("weight-change-0")]


def _check_translates(run: Workflow) -> None:
    if not run.translation:
        raise Missing("the paper shows a translation model; this model is not one")


MAKERS: dict[str, Callable[[Workflow], list[Path]]] = {  # of each required table
    "relevance": _relevance,
    "untrained": _untrained,
    "functions": _functions,
    "offsets": lambda run: [path.with_name("offsets.parquet") for path in _functions(run)],
    "attention": _attention,
    "sizes-encoder": lambda run: [_pruned(run, "enc-self").path("sparsity-l0-enc-self")],
    "functions-encoder": _functions_encoder,
    "gates": lambda run: sorted(_pruned(run, "enc-self").folder.glob("gates-l0-enc-self-*.parquet")),
    "sizes": lambda run: [_pruned(run).path("sparsity-l0")],
    "survival": lambda run: [_pruned(run).path("survival-l0")],
    "scratch": _scratch,
    "trainings": _trainings,
    "single": _single,
    "best": lambda run: [_best(run)],
    "halves": lambda run: [(best := _best(run)).with_name(f"{best.stem}-halves.parquet")],
    "curves": _curves,
    "kinds": lambda run: _curves(run, "each"),
    "dynamics": _dynamics,
    "efficiency": _efficiency,
    "compare-pruning": _strategies,
    "places": lambda run: run.compare("places", PLACES, (0.5,)),
    "weight-change": _weight_changes,
    "uniformity": lambda run: [path.with_name("uniformity.parquet") for path in _weight_changes(run)],
}


# --- data -------------------------------------------------------------------------------------------------------------


def material(folder: Path, *, limit: int | None = None) -> Material:
    """Read the corpora of a folder, by name; for a classifier train.tsv, or train.source.txt and train.target.txt."""
    parts = {name: part for name in Material._fields if (part := _part(folder, name, limit)) is not None}
    if lacking := [name for name in ("train", "dev", "test") if name not in parts]:
        files = ".tsv with labels, or .source.txt and .target.txt; and if you have them other, trees and other_trees"
        files += " (.conllu), sentences"
        raise FileNotFoundError(f"no {lacking[0]} in {folder}; a folder of data has train, dev and test: {files}")
    return Material(**parts)


def _part(folder: Path, name: str, limit: int | None) -> hr.Corpus | None:
    files = sorted(folder.glob(f"{name}.*"))
    if len(files) == 1:
        return hr.read(files[0], limit=limit)
    sides = [file.name.split(".")[1] for file in files]
    if files and sides != ["source", "target"]:
        got = ", ".join(file.name for file in files)
        raise ValueError(f"expected {name}.source.* and {name}.target.* in {folder}; got {got}")
    return hr.read(*files, limit=limit) if files else None
