"""Making: the tables that the artefacts need, of a model on a material, each kept in the study as it is finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.curves import curves_in, orders
from headroles.ablation.effects import closed_in
from headroles.ablation.evaluation import evaluate
from headroles.data.corpus import Corpus
from headroles.experiments import score_study
from headroles.experiments.papers import materials
from headroles.experiments.papers.materials import Material, looks
from headroles.experiments.papers.tables import Missing
from headroles.experiments.training_dynamics import dynamics
from headroles.models import heads as families
from headroles.models import loading
from headroles.plots.scales import SMALLER_IS_BETTER
from headroles.pruning.comparison import compare_pruning
from headroles.pruning.costs import efficiency
from headroles.pruning.l0 import L0
from headroles.pruning.rankings import ByRoles, Random, RankingContext, among
from headroles.pruning.removal import remove_heads
from headroles.pruning.sparsity import sparsity_sweep
from headroles.pruning.weight_changes import alike, weight_change
from headroles.scores import outputs
from headroles.tables import frame
from headroles.tables.io import load_table, save_table
from headroles.tables.study import Study
from headroles.training.trainer import train

PLACES = ("random", "bottom", "middle", "top", "ends", "bottom alternating", "middle alternating")
_ENDS = {"": "value", ".low": "low", ".high": "high"}
LONGEST = 14  # words of a sentence whose attention is drawn


class Workshop:
    """Makes what is needed, by the public functions, with one set of options; `make` is what a bench takes."""

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
        """The files of a need, made now or kept from before. Raises Missing for what this model or material lacks."""
        if need in materials.TRAINED and not self.trains:
            raise Missing("pruning and training are not done again for an untrained model")
        if need in materials.MADE:
            return materials.MADE[need](self)
        made: list[Path] = getattr(self, f"_{need.replace('-', '_')}")()
        return made

    def _study(self, name: str) -> Study:
        return Study(self.folder / name, overwrite=self.overwrite)

    def _relevance(self) -> list[Path]:
        asked = ["confidence", "importance", "relevance"]
        study = self._study("relevance")
        score_study.measure(study, self.model, self.tokenizer, self.material.dev, asked, n_resamples=self.n_resamples)
        return [study.path("heads")]

    def _functions(self) -> list[Path]:
        found = []
        for name, corpus in (("functions", self._trees()), ("functions-other", self.material.other_trees)):
            if corpus is not None:
                study = self._study(name)
                options: Any = {"n_resamples": self.n_resamples, "reference": self.counted}
                score_study.measure(study, self.model, self.tokenizer, corpus, **options)
                found.append(study.path("heads"))
        return found

    def _offsets(self) -> list[Path]:
        return [path.with_name("offsets.parquet") for path in self._functions()]

    def _attention(self) -> list[Path]:
        told = load_table(self._functions()[0])
        if "enc-self" not in told.index.unique("kind"):
            raise Missing("the rare-word head is one of an encoder, and this model has none")
        rarity = told.xs("enc-self", level="kind", drop_level=False)["rarity"]
        if rarity.isna().all():
            raise Missing("no sentence with trees has a token outside the 500 most frequent of the corpus to learn")
        rarest, given = rarity.idxmax(), self.material.sentences or self._trees()
        short = [one for one in given if len(one.text.split()) <= LONGEST][:3]
        study, recipe = self._study("functions"), f"{loading.revision(self.model)} {rarest} {given.hash}"
        study.keep("attention-rare", recipe, lambda: looks(self.model, self.tokenizer, self.counted, short, rarest))
        return [study.path("attention-rare")]

    def _single(self) -> list[Path]:
        return [
            self._closed(name, corpus, "head").path(f"ablation-{self.metric}-single-zero")
            for name, corpus in (("ablation", self.material.test), ("ablation-other", self.material.other))
            if corpus is not None
        ]

    def _best(self) -> list[Path]:
        return [self._closed("ablation", self.material.test, "all_but_one").path(f"best-{self.metric}-zero")]

    def _halves(self) -> list[Path]:
        return [self._closed("ablation", self.material.test, "all_but_one").path(f"best-{self.metric}-zero-halves")]

    def _closed(self, name: str, corpus: Corpus, unit: Any) -> Study:
        options: Any = {"metric": self.metric, "unit": unit, "n_resamples": self.n_resamples}
        closed_in(self._study(name), self.model, self.tokenizer, corpus, **options)
        return self._study(name)

    def _curves(self) -> list[Path]:
        return self._together(None, 3)

    def _kinds(self) -> list[Path]:
        return self._together("each", 0)

    def _together(self, kind: Any, seeds: int) -> list[Path]:
        told = frame.join(load_table(self._relevance()[0]), load_table(self._single()[0]))
        effect = f"{'' if self.metric in SMALLER_IS_BETTER else '-'}ablation[{self.metric}]"
        listed = orders(told, ["importance"] if kind else ["importance", effect], kind=kind, seeds=seeds)
        options: Any = {"metric": self.metric, "kind": kind, "n_resamples": self.n_resamples}
        curves_in(self._study("curves"), self.model, self.tokenizer, self.material.test, listed, **options)
        name = "-".join(["curves", self.metric, *([kind] if kind else [])])
        return [self._study("curves").path(name)]

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

    @cache  # noqa: B019  # several artefacts ask for it in one run
    def _pruned(self, kind: Any) -> Study:
        """Heads learnt away, of the encoder alone with the decoder frozen, or of all kinds."""
        if kind is None:
            self._only_translation()
        study = self._study("pruning")
        gates = L0(rate=self.gate_rate, freeze="decoder" if kind and self.translation else "nothing")
        options: Any = {"keep": self.keep, "kinds": kind and [kind], "metric": self.metric, "tune": self.tune}
        options |= {"scored": self.material.trees, "n_resamples": self.n_resamples}
        sparsity_sweep(study, self.model, self.tokenizer, self.material.train, self.material.test, gates, **options)
        return study

    def _scratch(self) -> list[Path]:
        study = self._study("pruning")
        sizes, left = (load_table(path[0]) for path in (self._sizes(), self._survival()))
        rows = []
        for name in left.filter(regex=r"\]$"):
            gone = left.index[left[name] == 0]
            found = self._anew(gone, str(name)).loc[self.metric]
            row = sizes[sizes["heads"] == int(left[name].sum())].iloc[0]
            kinds = dict(zip("edc", row[list(frame.KINDS)], strict=True))
            same = {f"finetuned{end}": row[of] for end, of in _ENDS.items()}
            rows.append(
                {"heads": row["heads"]} | kinds | same | {f"scratch{end}": found[of] for end, of in _ENDS.items()}
            )
        table = pd.DataFrame(rows)
        table.attrs["signatures"] = dict.fromkeys(table, frame.provenance(sizes, "value"))
        save_table(table, study.path("scratch"))
        return [study.path("scratch")]

    def _anew(self, gone: Any, name: str) -> pd.DataFrame:
        """What a model without these heads reaches that is trained from scratch."""
        model = remove_heads(loading.untrained(self.model), list(gone))
        train(model, self.tokenizer, self.material.train, self._hidden("scratch", name), **self.scratch)
        return evaluate(model, self.tokenizer, self.material.test, [self.metric], n_resamples=self.n_resamples)

    def _efficiency(self) -> list[Path]:
        study = self._study("efficiency")
        study.remove(study.claim("efficiency", frame.sign(weights=loading.revision(self.model))))
        if not study.has("efficiency"):
            save_table(efficiency(self.model, self._chance(), **self.timed), study.path("efficiency"))
        return [study.path("efficiency")]

    def _dynamics(self) -> list[Path]:
        self._only_translation()
        place = self._hidden("training", "all")
        train(loading.untrained(self.model), self.tokenizer, self.material.train, place, **self.scratch)
        told = self.material.trees or self.material.dev
        options: Any = {"metric": self.metric, "n_resamples": self.n_resamples}
        dynamics(self._study("dynamics"), place, told, self.material.test, **options)
        return [self._study("dynamics").path("dynamics-curves")]

    def _contest(self) -> list[Path]:
        told = [] if self.material.trees is None else [ByRoles(load_table(self._functions()[0]))]
        chosen = ["importance", "effect", L0(rate=self.gate_rate), *told, "random", "-importance"]
        return self._contest_of("contest", chosen, self.contested)

    def _places(self) -> list[Path]:
        return self._contest_of("places", PLACES, (0.5,))

    def _contest_of(self, name: str, strategies: Sequence[Any], keep: Sequence[float]) -> list[Path]:
        parts = self.model, self.tokenizer, self.material.train, self.material.test
        options: Any = {"strategies": strategies, "keep": keep, "seeds": self.seeds, "metric": self.metric}
        compare_pruning(self._study(name), *parts, tune=self.tune, n_resamples=self.n_resamples, **options)
        return [self._study(name).path("contest")]

    def _compensation(self) -> list[Path]:
        study = self._study("compensation")
        gone, tables = self._chance()[: len(families.head_index(self.model)) // 2], []
        for seed in range(max(self.seeds, 3)):
            tuned = remove_heads(deepcopy(self.model), gone)
            place = self._hidden("compensation", str(seed))
            train(tuned, self.tokenizer, self.material.train, place, seed=seed, **self.tune)
            tables.append(weight_change(self.model, tuned))
            study.remove(study.claim(f"compensation-{seed}", frame.provenance(tables[-1], "moved[all]")))
            save_table(tables[-1], study.path(f"compensation-{seed}"))
        save_table(alike(tables), study.path("uniformity"))
        return [study.path("compensation-0")]

    def _uniformity(self) -> list[Path]:
        return [path.with_name("uniformity.parquet") for path in self._compensation()]

    def _chance(self) -> Any:
        """All heads in an order by chance, a head of each layer in turn."""
        setting = RankingContext(self.model, self.tokenizer, Corpus("none", ()), among(self.model, None), 0)
        return Random("layer").order(setting)

    def _hidden(self, *names: str) -> Path:
        return self.folder.joinpath(".trainings", *names)

    def _trees(self) -> Corpus:
        if self.material.trees is None:
            raise Missing("functions need sentences with trees: put trees.conllu into the folder of data")
        return self.material.trees

    def _only_translation(self) -> None:
        if not self.translation:
            raise Missing("the paper shows this of a translation model, and this model is none")
