"""A replication of the papers in one study: a translator trained from nothing, scored, ablated, pruned and related."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import heads, models, survey
from headroles.ablation import closed_in
from headroles.evaluation import evaluate
from headroles.forecast import epochs_within, forecast
from headroles.heads import Kind
from headroles.meeting import meet
from headroles.prepared import Prepared
from headroles.pruning.l0 import L0
from headroles.pruning.sizes import prune_sizes
from headroles.recipe import GATES, Recipe, budget
from headroles.scores import Relevance
from headroles.scores.run import DEFAULT
from headroles.study import Study
from headroles.training import HISTORY, train

MAKES = {  # each stage, in order, and the table that is there when it is finished
    "train": "history",
    "score": "roles",
    "ablate": "ablation-loss-single-zero",
    "evaluate": "evaluation-test",
    "prune-encoder": "sizes-l0-enc-self",
    "prune-all": "sizes-l0",
    "relate": "relate",
    "draw": "stages",
}
STAGES = tuple(MAKES)
_TRAINED = ("train",)
NEEDS: dict[str, tuple[str, ...]] = dict.fromkeys(STAGES[1:6], _TRAINED) | {
    "relate": ("score", "ablate", "prune-encoder", "prune-all")
}

log = logging.getLogger(__name__)


def replicate(
    study: str | Path,
    data: Prepared,
    recipe: Recipe | None = None,
    *,
    weights: str | Path | None = None,
    only: Sequence[str] | None = None,
    minutes: float | None = None,
    told: Callable[[str], object] = log.info,
) -> pd.DataFrame:
    """Train, score, ablate, evaluate, prune, relate and draw, each stage once: the seconds that each took.

    The study is left with tables and figures; weights, and what is not finished, go into the folder `weights`, by
    default that of the study with "-weights" after its name. A stage that is finished is not run again, one that was
    stopped goes on where it was; `only` are stages to run. With `minutes` the number of epochs is not that of the
    recipe but what leaves time for the rest by a forecast, which is kept as the table `forecast`. `told` is given a
    line for each stage. Raises ValueError for an unknown stage, for one that needs another first, and for a study of
    another recipe or other data.
    """
    folder = Path(study)
    place = folder.with_name(f"{folder.name}-weights") if weights is None else Path(weights)
    asked = STAGES if only is None else tuple(only)
    if unknown := [name for name in asked if name not in STAGES]:
        raise ValueError(f"unknown stage {unknown[0]!r}; known: {', '.join(STAGES)}")
    run = _Replication(Study(folder, work=place), data, recipe or Recipe(), minutes)
    run.check()
    run.fit(told)
    for name in (name for name in STAGES if name in asked):
        run.stage(name, told)
    return run.finished()


class _Replication:
    """One replication: its model, loaded when a stage first needs it, and which of its stages are finished."""

    def __init__(self, study: Study, data: Prepared, recipe: Recipe, minutes: float | None) -> None:
        self.study, self.data, self.recipe, self.minutes = study, data, recipe, minutes
        parts = (data.train, data.dev, data.test, data.parsed, data.other)
        hashes = ",".join(one.hash for one in parts if one is not None)
        told = {"data": hashes, "tokenizer": models.tokens(self.tokenizer), "recipe": recipe, "minutes": minutes}
        self.text = heads.sign(**told)  # what all stages follow from

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the prepared folder."""
        return models.tokenizer_of(self.data.tokenizer)

    @cached_property
    def model(self) -> PreTrainedModel:
        """The trained model. Raises FileNotFoundError where its weights are gone."""
        if not (self.place / HISTORY).is_file():
            raise FileNotFoundError(
                f"the trained model is not in {self.place}; name its folder, or remove {self.study.path('stages')} to "
                f"train it again"
            )
        return models.place(models.load(self.place)[0])

    @property
    def place(self) -> Path:
        """The folder of the trained model."""
        return self.study.work / "model"

    def check(self) -> None:
        """Raises ValueError if the study is of something else."""
        table = self.finished()
        if len(table) and table.attrs.get("recipe") != self.text:
            raise ValueError(
                f"{self.study.folder} is a study of other data, or by another recipe: {table.attrs.get('recipe')}; "
                f"this one is {self.text}; give another folder"
            )

    def finished(self) -> pd.DataFrame:
        """The stages that are finished, with the seconds of the run that finished them."""
        if self.study.has("stages"):
            return self.study.load("stages")
        return pd.DataFrame({"seconds": pd.Series(dtype=float)}, index=pd.Index([], name="stage", dtype=object))

    def fit(self, told: Callable[[str], object]) -> None:
        """Where minutes are given, take as many epochs as leave time for the rest, by a forecast that is made once."""
        if self.minutes is None:
            return
        told("forecast: samples of the work are timed")
        table = self.study.keep("forecast", self.text, lambda: forecast(self.data, self.recipe, self.tokenizer))
        self.recipe = replace(self.recipe, epochs=epochs_within(table, self.recipe, self.minutes))
        told(f"forecast: {self.recipe.epochs} epochs fit into {self.minutes:g} minutes")

    def stage(self, name: str, told: Callable[[str], object]) -> None:
        """Run a stage unless it is finished."""
        done, at = self._done(), f"{STAGES.index(name) + 1} of {len(STAGES)}, {name}"
        if name in done and self.study.has(MAKES[name]):
            told(f"{at}: kept")
            return
        if lacking := [one for one in NEEDS.get(name, ()) if one not in done]:
            raise ValueError(f"stage {name!r} needs {', '.join(lacking)} first; run all stages, or name them too")
        told(f"{at}: begins")
        start = time.monotonic()
        getattr(self, name.replace("-", "_"))()
        done = {one: taken for one, taken in done.items() if name not in NEEDS.get(one, ()) and one != "draw"}
        self._note(done | {name: time.monotonic() - start})
        told(f"{at}: done in {(time.monotonic() - start) / 60:.1f} minutes")

    def _done(self) -> dict[str, float]:
        """The finished stages with their seconds."""
        return {str(name): float(seconds) for name, seconds in self.finished()["seconds"].items()}

    def _note(self, done: dict[str, float]) -> None:
        """Write down which stages are finished."""
        rows = pd.Series({one: done[one] for one in STAGES if one in done}, name="seconds", dtype=float)
        table = rows.rename_axis("stage").to_frame()
        table.attrs = {"recipe": self.text, "signatures": {"seconds": f"{self.text}|headroles:{version('headroles')}"}}
        heads.save(table, self.study.path("stages"))

    def train(self) -> None:
        """The model, trained from nothing."""
        model = models.place(self.recipe.model(self.tokenizer))
        options = self.recipe.training()
        history = train(model, self.tokenizer, self.data.train, self.place, held_out=self.data.dev, **options)
        heads.save(history, self.study.path("history"))
        _drop_checkpoints(self.place)

    def score(self) -> None:
        """Scores, relevance and roles on the sentences with trees; words are rare by what the model was trained on."""
        asked: list[Any] = [*DEFAULT, "importance", Relevance("cp")]
        options: dict[str, Any] = {"reference": self.data.train, "budget": budget(), "resamples": self.recipe.resamples}
        survey.measure(self.study, self.model, self.tokenizer, self.data.parsed, asked, **options)
        survey.tell(self.study)

    def ablate(self) -> None:
        """Every head closed alone, the loss on dev."""
        options: dict[str, Any] = {"budget": budget(), "resamples": self.recipe.resamples}
        closed_in(self.study, self.model, self.tokenizer, self.data.dev, metric="loss", **options)

    def evaluate(self) -> None:
        """Loss, BLEU and chrF on test, and on another domain."""
        options: dict[str, Any] = {"budget": budget(), "resamples": self.recipe.resamples}
        for name, part in (("other", self.data.other), ("test", self.data.test)):
            if part is not None:
                found = evaluate(self.model, self.tokenizer, part, ["loss", "bleu", "chrf"], **options)
                heads.save(found, self.study.path(f"evaluation-{name}"))

    def prune_encoder(self) -> None:
        """Gates on the encoder's heads, the decoder frozen (Voita et al. 2019, Figs. 7 and 8)."""
        self._prune(L0(rate=GATES, freeze="decoder"), self.recipe.encoder_keep, ["enc-self"])

    def prune_all(self) -> None:
        """Gates on all heads (Figs. 9 and 10)."""
        self._prune(L0(rate=GATES), self.recipe.keep, None)

    def relate(self) -> None:
        """Whether heads with roles matter more, and survive longer."""
        folder = self.study.folder
        meet(self.study, folder, [folder], only=["ablation", "survival"], seed=self.recipe.seed)

    def draw(self) -> None:
        """Every figure that the tables allow."""
        survey.draw(self.study)

    def _prune(self, strategy: L0, keep: Sequence[float], kinds: list[Kind] | None) -> None:
        options: dict[str, Any] = {"metric": "bleu", "scored": self.data.parsed, "tune": self.recipe.tuning()}
        options |= {"resamples": self.recipe.resamples, "budget": budget(), "seed": self.recipe.seed}
        options["reference"] = self.data.train
        learnt = self.recipe.tuned_on(self.data)
        prune_sizes(
            self.study, self.model, self.tokenizer, learnt, self.data.test, strategy, keep=keep, kinds=kinds, **options
        )
        _drop_checkpoints(self.study.work / ".trials")


def _drop_checkpoints(folder: Path) -> None:
    """Leave out what only unfinished training needs: three times the weights."""
    for place in list(folder.rglob("checkpoint-*")):
        shutil.rmtree(place)
