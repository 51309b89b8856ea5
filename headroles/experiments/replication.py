"""Replicate the papers in one study: train a translator from scratch, score, ablate, prune and relate its heads."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.effects import ablate
from headroles.ablation.evaluation import evaluate
from headroles.experiments import score_study
from headroles.experiments.preparation import Prepared
from headroles.experiments.recipe import GATES, Recipe, batch_tokens
from headroles.experiments.relate_study import relate_study
from headroles.models import loading
from headroles.pruning.l0 import L0
from headroles.pruning.sparsity import sparsity_sweep
from headroles.scores import Relevance, score
from headroles.scores.runner import DEFAULT
from headroles.tables import frame
from headroles.tables.frame import Kind
from headroles.tables.io import save_table
from headroles.tables.study import ONE_MODEL, Study
from headroles.training.trainer import HISTORY, train

MAKES = {  # the stages in order, and the last table of each
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
    report: Callable[[str], object] = log.info,
) -> pd.DataFrame:
    """Train, score, ablate, evaluate, prune, relate and draw, each stage once.

    A finished stage is not run again; an interrupted one is resumed.

    Args:
        study: Study folder for tables and figures.
        data: Sentence pairs that `prepare` made.
        recipe: Sizes and options; by default Transformer-base.
        weights: Folder for weights and unfinished work; by default the study's name with "-weights".
        only: Stages to run; by default all.
        report: Called with a line of text at the beginning and end of each stage.

    Returns:
        The `seconds` of each finished stage.

    Raises:
        ValueError: For an unknown stage, for a stage that needs another first, and for a study of another recipe or
            other data.
    """
    folder = Path(study)
    place = folder.with_name(f"{folder.name}-weights") if weights is None else Path(weights)
    chosen = STAGES if only is None else tuple(only)
    if unknown := [name for name in chosen if name not in STAGES]:
        raise ValueError(f"unknown stage {unknown[0]!r}; known: {', '.join(STAGES)}")
    run = _Replication(Study(folder, work=place), data, recipe or Recipe())
    run.check()
    for name in (name for name in STAGES if name in chosen):
        run.stage(name, report)
    return run.finished()


class _Replication:
    """One replication: its model, loaded when a stage first needs it, and its finished stages."""

    def __init__(self, study: Study, data: Prepared, recipe: Recipe) -> None:
        self.study, self.data, self.recipe = study, data, recipe
        parts = (data.train, data.dev, data.test, data.parsed, data.other)
        hashes = ",".join(part.hash for part in parts if part is not None)
        self.key = frame.sign(data=hashes, tokenizer=loading.tokens(self.tokenizer), recipe=recipe)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the prepared folder."""
        return loading.tokenizer_of(self.data.tokenizer)

    @cached_property
    def model(self) -> PreTrainedModel:
        """The trained model; FileNotFoundError without its weights."""
        if not (self.place / HISTORY).is_file():
            raise FileNotFoundError(
                f"the trained model is not in {self.place}; name its folder, or remove {self.study.path('stages')} to "
                f"train it again"
            )
        return loading.place(loading.load(self.place)[0])

    @property
    def place(self) -> Path:
        """The folder of the trained model."""
        return self.study.work / "model"

    def check(self) -> None:
        """Raise ValueError for a study of another model or recipe, OSError if it cannot be written."""
        self.study.check_writable()
        table = self.finished()
        if not len(table) and (others := [name for name in self.study.names() if ONE_MODEL.fullmatch(name)]):
            raise ValueError(
                f"{self.study.folder} holds tables of another model: {', '.join(others)}; give another folder"
            )
        if len(table) and table.attrs.get("recipe") != self.key:
            raise ValueError(
                f"{self.study.folder} is a study of other data, or by another recipe: {table.attrs.get('recipe')}; "
                f"this one is {self.key}; give another folder"
            )

    def finished(self) -> pd.DataFrame:
        """Return the finished stages with their seconds."""
        if self.study.has("stages"):
            return self.study.load("stages")
        return pd.DataFrame({"seconds": pd.Series(dtype=float)}, index=pd.Index([], name="stage", dtype=object))

    def stage(self, name: str, report: Callable[[str], object]) -> None:
        """Run a stage unless it is finished."""
        done = {str(stage): float(seconds) for stage, seconds in self.finished()["seconds"].items()}
        label = f"{STAGES.index(name) + 1} of {len(STAGES)}, {name}"
        if name in done and self.study.has(MAKES[name]):
            report(f"{label}: kept")
            return
        if lacking := [stage for stage in NEEDS.get(name, ()) if stage not in done]:
            raise ValueError(f"stage {name!r} needs {', '.join(lacking)} first; run all stages, or name them too")
        report(f"{label}: begins")
        start = time.monotonic()
        getattr(self, name.replace("-", "_"))()
        done = {stage: sec for stage, sec in done.items() if name not in NEEDS.get(stage, ()) and stage != "draw"}
        self._note(done | {name: time.monotonic() - start})
        report(f"{label}: done in {(time.monotonic() - start) / 60:.1f} minutes")

    def _note(self, done: dict[str, float]) -> None:
        """Save the finished stages and their seconds."""
        rows = pd.Series({stage: done[stage] for stage in STAGES if stage in done}, name="seconds", dtype=float)
        table = rows.rename_axis("stage").to_frame()
        table.attrs = {"recipe": self.key, "signatures": {"seconds": f"{self.key}|headroles:{version('headroles')}"}}
        save_table(table, self.study.path("stages"))

    def train(self) -> None:
        """Train the model from scratch."""
        model = loading.place(self.recipe.model(self.tokenizer))
        parts = model, self.tokenizer, self.data.train, self.place
        history = train(*parts, held_out=self.data.dev, **self.recipe.training())
        save_table(history, self.study.path("history"))
        _drop_checkpoints(self.place)

    def score(self) -> None:
        """Compute scores, relevance and roles on the sentences with trees; rarity by the training data."""
        score(
            self.model,
            self.tokenizer,
            self.data.parsed,
            [*DEFAULT, "importance", Relevance("cp")],
            reference=self.data.train,
            max_tokens=batch_tokens(),
            n_resamples=self.recipe.n_resamples,
            study=self.study,
        )
        score_study.assign_roles(self.study)

    def ablate(self) -> None:
        """Ablate every head alone and measure the loss on dev."""
        parts, n_resamples = (self.model, self.tokenizer, self.data.dev), self.recipe.n_resamples
        ablate(*parts, metric="loss", max_tokens=batch_tokens(), n_resamples=n_resamples, study=self.study)

    def evaluate(self) -> None:
        """Measure loss, BLEU and chrF on test, and on the other domain."""
        for name, part in (("other", self.data.other), ("test", self.data.test)):
            if part is not None:
                parts, n_resamples = (self.model, self.tokenizer, part), self.recipe.n_resamples
                table = evaluate(*parts, ["loss", "bleu", "chrf"], max_tokens=batch_tokens(), n_resamples=n_resamples)
                save_table(table, self.study.path(f"evaluation-{name}"))

    def prune_encoder(self) -> None:
        """Prune the encoder by gates, the decoder frozen (Voita et al. 2019, Figs. 7 and 8)."""
        self._prune(L0(rate=GATES, freeze="decoder"), self.recipe.encoder_keep, ["enc-self"])

    def prune_all(self) -> None:
        """Prune all kinds of heads by gates (Voita et al. 2019, Figs. 9 and 10)."""
        self._prune(L0(rate=GATES), self.recipe.keep, None)

    def relate(self) -> None:
        """Relate roles to effects of ablation and to survival."""
        folder = self.study.folder
        relate_study(self.study, folder, [folder], only=["ablation", "survival"], seed=self.recipe.seed)

    def draw(self) -> None:
        """Draw every figure that the tables allow."""
        score_study.draw(self.study)

    def _prune(self, strategy: L0, keep: Sequence[float], kinds: list[Kind] | None) -> None:
        sparsity_sweep(
            self.model,
            self.tokenizer,
            self.recipe.tuned_on(self.data),
            self.data.test,
            strategy,
            keep=keep,
            kinds=kinds,
            metric="bleu",
            scored=self.data.parsed,
            reference=self.data.train,
            tune=self.recipe.tuning(),
            n_resamples=self.recipe.n_resamples,
            max_tokens=batch_tokens(),
            seed=self.recipe.seed,
            study=self.study,
        )
        _drop_checkpoints(self.study.work / ".trials")


def _drop_checkpoints(folder: Path) -> None:
    """Remove checkpoints, which take three times the size of the weights and serve only resuming."""
    for place in list(folder.rglob("checkpoint-*")):
        shutil.rmtree(place)
