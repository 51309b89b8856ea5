"""Compute the tables that the artefacts of papers need, each kept in the study when it is finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.curves import ablation_curve, orders
from headroles.ablation.effects import ablate
from headroles.ablation.evaluation import evaluate
from headroles.data.corpus import Corpus
from headroles.experiments.papers import materials
from headroles.experiments.papers.materials import Material, token_attention
from headroles.experiments.papers.tables import Missing
from headroles.experiments.training_dynamics import dynamics
from headroles.models import loading
from headroles.models.heads import head_index
from headroles.plots.scales import SMALLER_IS_BETTER
from headroles.pruning.comparison import compare_pruning
from headroles.pruning.costs import efficiency
from headroles.pruning.l0 import L0
from headroles.pruning.rankings import ByRoles, Random, RankingContext, among
from headroles.pruning.removal import remove_heads
from headroles.pruning.sparsity import sparsity_sweep
from headroles.pruning.weight_changes import alike, weight_change
from headroles.scores import outputs, score
from headroles.tables import frame
from headroles.tables.io import load_table, save_table
from headroles.tables.study import Study
from headroles.training.trainer import train

PLACES = ("random", "bottom", "middle", "top", "ends", "bottom alternating", "middle alternating")
_ENDS = {"": "value", ".low": "low", ".high": "high"}
LONGEST = 14  # words of a sentence in figures of attention


class Workshop:
    """The model, corpora and options of a reproduction; `make` computes the tables for a `Bench`.

    Args:
        folder: Study folder.
        model: Model; pruning and training change copies of it.
        tokenizer: Its tokenizer.
        material: Corpora.
        metric: Metric; by default BLEU of a translation model, accuracy of a classifier, else the loss.
        keep: Shares of heads that gates keep.
        contested: Shares of heads that compared pruning strategies keep.
        seeds: Number of seeds.
        gate_rate: Learning rate of gates.
        tune: Options of retraining, as of `train`.
        scratch: Options of training from scratch, as of `train`.
        n_resamples: Number of bootstrap resamples.
        timed: Options of `efficiency`.
        counted: Corpus of token counts; by default the training corpus.
        overwrite: Whether to remove tables of another model or corpus.
    """

    def __init__(
        self,
        folder: str | Path,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        material: Material,
        *,
        metric: str | None = None,
        keep: Sequence[float] = (0.75, 0.5, 0.375, 0.25, 0.2, 0.1),
        contested: Sequence[float] = (0.5, 0.25),
        seeds: int = 3,
        gate_rate: float = 0.1,
        tune: Mapping[str, Any] | None = None,
        scratch: Mapping[str, Any] | None = None,
        n_resamples: int = 1000,
        timed: Mapping[str, Any] | None = None,
        counted: Corpus | None = None,
        overwrite: bool = False,
    ) -> None:
        self.overwrite = overwrite
        self.folder, self.model, self.tokenizer, self.material = Path(folder), model, tokenizer, material
        self.references, self.trains = self.folder, True
        self.translation = bool(model.config.is_encoder_decoder)
        self.metric = metric or ("bleu" if self.translation else "accuracy" if outputs.has_classes(model) else "loss")
        self.keep, self.contested, self.seeds = keep, contested, seeds
        self.gate_rate, self.n_resamples = gate_rate, n_resamples
        self.counted = material.train if counted is None else counted  # how frequent tokens are
        self.tune: dict[str, Any]
        self.scratch: dict[str, Any]
        self.tune, self.timed = {"epochs": 1, "save_strategy": "no"} | dict(tune or {}), dict(timed or {})
        self.scratch = {"epochs": 10, "rate": 2e-3, "save_strategy": "epoch"} | dict(scratch or {})

    def make(self, need: str) -> list[Path]:
        """Return the files of a need, computed or kept; raise Missing if the model or material lacks what it takes."""
        if need in materials.TRAINED and not self.trains:
            raise Missing("pruning and training are not repeated for an untrained model")
        if need in materials.MADE:
            return materials.MADE[need](self)
        files: list[Path] = getattr(self, f"_{need.replace('-', '_')}")()
        return files

    def _study(self, name: str) -> Study:
        return Study(self.folder / name, overwrite=self.overwrite)

    def _relevance(self) -> list[Path]:
        study, scores = self._study("relevance"), ["confidence", "importance", "relevance"]
        score(self.model, self.tokenizer, self.material.dev, scores, n_resamples=self.n_resamples, study=study)
        return [study.path("heads")]

    def _functions(self) -> list[Path]:
        files = []
        for name, corpus in (("functions", self._trees()), ("functions-other", self.material.other_trees)):
            if corpus is not None:
                study, parts = self._study(name), (self.model, self.tokenizer, corpus)
                score(*parts, n_resamples=self.n_resamples, reference=self.counted, study=study)
                files.append(study.path("heads"))
        return files

    def _offsets(self) -> list[Path]:
        return [path.with_name("offsets.parquet") for path in self._functions()]

    def _attention(self) -> list[Path]:
        scores = load_table(self._functions()[0])
        if "enc-self" not in scores.index.unique("kind"):
            raise Missing("the rare-word head is a head of an encoder; this model has no encoder")
        rarity = scores.xs("enc-self", level="kind", drop_level=False)["rarity"]
        if rarity.isna().all():
            raise Missing("no sentence with trees has a token outside the 500 most frequent of the training corpus")
        rarest, corpus = rarity.idxmax(), self.material.sentences or self._trees()
        short = [sentence for sentence in corpus if len(sentence.text.split()) <= LONGEST][:3]
        study, key = self._study("functions"), f"{loading.revision(self.model)} {rarest} {corpus.hash}"
        parts = self.model, self.tokenizer, self.counted, short, rarest
        study.keep("attention-rare", key, lambda: token_attention(*parts))
        return [study.path("attention-rare")]

    def _single(self) -> list[Path]:
        return [
            self._ablated(name, corpus, "head").path(f"ablation-{self.metric}-single-zero")
            for name, corpus in (("ablation", self.material.test), ("ablation-other", self.material.other))
            if corpus is not None
        ]

    def _best(self) -> list[Path]:
        return [self._ablated("ablation", self.material.test, "all_but_one").path(f"best-{self.metric}-zero")]

    def _halves(self) -> list[Path]:
        return [self._ablated("ablation", self.material.test, "all_but_one").path(f"best-{self.metric}-zero-halves")]

    def _ablated(self, name: str, corpus: Corpus, unit: Any) -> Study:
        study, parts = self._study(name), (self.model, self.tokenizer, corpus)
        ablate(*parts, metric=self.metric, unit=unit, n_resamples=self.n_resamples, study=study)
        return study

    def _curves(self) -> list[Path]:
        return self._cumulative(None, 3)

    def _kinds(self) -> list[Path]:
        return self._cumulative("each", 0)

    def _cumulative(self, kind: Any, seeds: int) -> list[Path]:
        scores = frame.join(load_table(self._relevance()[0]), load_table(self._single()[0]))
        effect = f"{'' if self.metric in SMALLER_IS_BETTER else '-'}ablation[{self.metric}]"
        rankings = orders(scores, ["importance"] if kind else ["importance", effect], kind=kind, seeds=seeds)
        study, parts = self._study("curves"), (self.model, self.tokenizer, self.material.test)
        ablation_curve(*parts, rankings, metric=self.metric, kind=kind, n_resamples=self.n_resamples, study=study)
        return [study.path("-".join(["curves", self.metric, *([kind] if kind else [])]))]

    def _sizes_encoder(self) -> list[Path]:
        return [self._pruned("enc-self").path("sizes-l0-enc-self")]

    def _functions_encoder(self) -> list[Path]:
        self._trees()
        return [self._pruned("enc-self").path("functions-l0-enc-self")]

    def _gates(self) -> list[Path]:
        return sorted(self._pruned("enc-self").folder.glob("gates-l0-enc-self-*.parquet"))

    def _sizes(self) -> list[Path]:
        return [self._pruned(None).path("sizes-l0")]

    def _survival(self) -> list[Path]:
        return [self._pruned(None).path("survival-l0")]

    @cache  # noqa: B019  # needed by several artefacts of one run
    def _pruned(self, kind: Any) -> Study:
        """Prune the encoder with the decoder frozen, or heads of all kinds, by learnt gates."""
        if kind is None:
            self._only_translation()
        study, parts = self._study("pruning"), (self.model, self.tokenizer, self.material.train, self.material.test)
        gates = L0(rate=self.gate_rate, freeze="decoder" if kind and self.translation else "nothing")
        sparsity_sweep(
            *parts,
            gates,
            keep=self.keep,
            kinds=kind and [kind],
            scored=self.material.trees,
            tune=self.tune,
            metric=self.metric,
            n_resamples=self.n_resamples,
            study=study,
        )
        return study

    def _scratch(self) -> list[Path]:
        study = self._study("pruning")
        sizes, survival = (load_table(path[0]) for path in (self._sizes(), self._survival()))
        rows = []
        for name in survival.filter(regex=r"\]$"):
            pruned = survival.index[survival[name] == 0]
            scratch = self._trained_without(pruned, str(name)).loc[self.metric]
            row = sizes[sizes["heads"] == int(survival[name].sum())].iloc[0]
            kinds = dict(zip("edc", row[list(frame.KINDS)], strict=True))
            values = {f"{label}{end}": of[column] for label, of in (("finetuned", row), ("scratch", scratch))
                      for end, column in _ENDS.items()}  # fmt: skip
            rows.append({"heads": row["heads"]} | kinds | values)
        table = pd.DataFrame(rows)
        table.attrs["signatures"] = dict.fromkeys(table, frame.provenance(sizes, "value"))
        save_table(table, study.path("scratch"))
        return [study.path("scratch")]

    def _trained_without(self, pruned: Any, name: str) -> pd.DataFrame:
        """Train a model without the pruned heads from scratch and evaluate it."""
        model = remove_heads(loading.untrained(self.model), list(pruned))
        train(model, self.tokenizer, self.material.train, self._hidden("scratch", name), **self.scratch)
        return evaluate(model, self.tokenizer, self.material.test, [self.metric], n_resamples=self.n_resamples)

    def _efficiency(self) -> list[Path]:
        study = self._study("efficiency")
        study.remove(study.claim("efficiency", frame.sign(weights=loading.revision(self.model))))
        if not study.has("efficiency"):
            save_table(efficiency(self.model, self._random(), **self.timed), study.path("efficiency"))
        return [study.path("efficiency")]

    def _dynamics(self) -> list[Path]:
        self._only_translation()
        study, place = self._study("dynamics"), self._hidden("training", "all")
        train(loading.untrained(self.model), self.tokenizer, self.material.train, place, **self.scratch)
        corpora = self.material.trees or self.material.dev, self.material.test
        dynamics(place, *corpora, metric=self.metric, n_resamples=self.n_resamples, study=study)
        return [study.path("dynamics-curves")]

    def _contest(self) -> list[Path]:
        roles = [] if self.material.trees is None else [ByRoles(load_table(self._functions()[0]))]
        strategies = ["importance", "effect", L0(rate=self.gate_rate), *roles, "random", "-importance"]
        return self._compared("contest", strategies, self.contested)

    def _places(self) -> list[Path]:
        return self._compared("places", PLACES, (0.5,))

    def _compared(self, name: str, strategies: Sequence[Any], keep: Sequence[float]) -> list[Path]:
        study, parts = self._study(name), (self.model, self.tokenizer, self.material.train, self.material.test)
        compare_pruning(
            *parts,
            strategies=strategies,
            keep=keep,
            seeds=self.seeds,
            tune=self.tune,
            metric=self.metric,
            n_resamples=self.n_resamples,
            study=study,
        )
        return [study.path("contest")]

    def _compensation(self) -> list[Path]:
        study = self._study("compensation")
        pruned, tables = self._random()[: len(head_index(self.model)) // 2], []
        for seed in range(max(self.seeds, 3)):
            tuned = remove_heads(deepcopy(self.model), pruned)
            place = self._hidden("compensation", str(seed))
            train(tuned, self.tokenizer, self.material.train, place, seed=seed, **self.tune)
            tables.append(weight_change(self.model, tuned))
            study.remove(study.claim(f"compensation-{seed}", frame.provenance(tables[-1], "moved[all]")))
            save_table(tables[-1], study.path(f"compensation-{seed}"))
        save_table(alike(tables), study.path("uniformity"))
        return [study.path("compensation-0")]

    def _uniformity(self) -> list[Path]:
        return [path.with_name("uniformity.parquet") for path in self._compensation()]

    def _random(self) -> Any:
        """Rank all heads at random, a head of each layer in turn."""
        context = RankingContext(self.model, self.tokenizer, Corpus("none", ()), among(self.model, None), 0)
        return Random("layer").order(context)

    def _hidden(self, *names: str) -> Path:
        return self.folder.joinpath(".trainings", *names)

    def _trees(self) -> Corpus:
        if self.material.trees is None:
            raise Missing("functions need sentences with trees; put trees.conllu into the folder of data")
        return self.material.trees

    def _only_translation(self) -> None:
        if not self.translation:
            raise Missing("the paper shows a translation model; this model is not one")
