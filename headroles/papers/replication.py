"""Replicate the papers in one study: train a translator from scratch, score, ablate, prune and relate its heads."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.evaluation import evaluate
from headroles.analysis.relations import relate
from headroles.analysis.role_rules import roles
from headroles.models import identity, loading
from headroles.papers.preparation import Material, Prepared
from headroles.papers.workflow import Workflow, batch_tokens, pace
from headroles.plots.gallery import plot
from headroles.scores import Measure, Relevance
from headroles.scores.registry import DEFAULT
from headroles.tables import frame
from headroles.tables.arguments import unknown
from headroles.tables.columns import table_of
from headroles.tables.io import save_table
from headroles.tables.study import Study
from headroles.training.hf_trainer import TrainOptions
from headroles.training.marian import marian
from headroles.training.trainer import HISTORY, train

WARMUP = 0.1  # share of the steps of a training before the peak learning rate
TUNED = 0.1  # peak rate of pruning as a share of that of training, because it starts from trained weights
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
NEEDS: dict[str, tuple[str, ...]] = {name: ("train",) for name in STAGES[1:6]}
NEEDS["relate"] = ("score", "ablate", "prune-encoder", "prune-all")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """Sizes of the model, its training, and the numbers of heads it is pruned to; Transformer-base by default.

    Args:
        width: Width of the model.
        layers: Layers of the encoder, and of the decoder.
        heads: Heads of each attention.
        inner: Width of the feed-forward layers; by default 4 x `width`.
        dropout: Dropout.
        smoothing: Label smoothing.
        epochs: Number of epochs.
        batch: Pairs of a step.
        rate: Peak learning rate; by default 7e-4 at width 512, larger by the square root for narrower models.
        tune_epochs: Epochs of training for each size of pruning.
        tune_pairs: Number of first pairs of that training; by default all.
        encoder_keep: Shares of the encoder's heads to keep.
        keep: Shares of all heads to keep.
        n_resamples: Bootstrap resamples of the examples.
        seed: Seed of the weights and of training.
    """

    width: int = 512
    layers: int = 6
    heads: int = 8
    inner: int | None = None
    dropout: float = 0.1
    smoothing: float = 0.1
    epochs: int = 20
    batch: int = 512
    rate: float | None = None
    tune_epochs: int = 1
    tune_pairs: int | None = None
    encoder_keep: tuple[float, ...] = (0.75, 0.5, 0.33, 0.2, 0.125, 0.06)
    keep: tuple[float, ...] = (0.75, 0.5, 0.375, 0.25)
    n_resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "epochs", "batch", "tune_epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(
                f"{self.heads} heads do not share a width of {self.width} equally; give a multiple of {self.heads}"
            )
        if wrong := [share for share in (*self.encoder_keep, *self.keep) if not 0 < share < 1]:
            raise ValueError(f"keep is a share of the heads, between 0 and 1; got {wrong[0]:g}")

    def model(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        """Build the untrained model."""
        sizes = {"width": self.width, "layers": self.layers, "heads": self.heads}
        inner = self.inner or 4 * self.width
        return marian(tokenizer, **sizes, inner=inner, seed=self.seed, dropout=self.dropout, activation_function="relu")

    def training(self) -> TrainOptions:
        """Return options of `train` for the whole model, with a checkpoint every twentieth of the steps."""
        rate = self.rate or 7e-4 * (512 / self.width) ** 0.5
        return {
            **self._both(rate),
            "epochs": self.epochs,
            "label_smoothing_factor": self.smoothing,
            "save_steps": 0.05,
            "save_total_limit": 2,
        }

    def tuning(self) -> TrainOptions:
        """Return options of `train` for each size of pruning; gates are learnt from the loss without smoothing."""
        rate = TUNED * self.training()["rate"]
        return {**self._both(rate), "epochs": self.tune_epochs, "save_steps": 0.25, "save_total_limit": 1}

    def _both(self, rate: float) -> TrainOptions:
        adam: TrainOptions = {"adam_beta2": 0.98, "adam_epsilon": 1e-9}
        schedule: TrainOptions = {"lr_scheduler_type": "cosine", "warmup_steps": WARMUP, "save_strategy": "steps"}
        schedule["train_sampling_strategy"] = "group_by_length"  # with which the committed studies were made
        return {"batch": self.batch, "rate": rate, "seed": self.seed, **adam, **schedule, **pace()}


def replicate(
    study: str | Path,
    data: Prepared,
    recipe: Recipe | None = None,
    *,
    weights: str | Path | None = None,
    only: Sequence[str] | None = None,
    report: Callable[[str], object] = log.info,
) -> pd.DataFrame:
    """Replicate the papers on a model trained from scratch.

    It is trained, scored, ablated, evaluated, pruned, and its roles are related to the outcomes and drawn. A finished
    stage is not run again; an interrupted one is resumed.

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
    if missing := [name for name in chosen if name not in STAGES]:
        raise ValueError(unknown("stage", missing[0], STAGES))
    run = _Replication(Study(folder, work=place), data, recipe or Recipe())
    run.check()
    for name in (name for name in STAGES if name in chosen):
        run.stage(name, report)
    return run.finished()


class _Replication:
    """One replication: its model, loaded when a stage first needs it, and its finished stages."""

    def __init__(self, study: Study, data: Prepared, recipe: Recipe) -> None:
        self.study, self.data, self.recipe = study, data, recipe
        self.tokenizer = loading.tokenizer_of(data.tokenizer)
        self.place = study.work / "model"  # of the trained model
        parts = (data.train, data.dev, data.test, data.parsed, data.other)
        hashes = ",".join(part.hash for part in parts if part is not None)
        self.key = frame.sign(data=hashes, tokenizer=identity.tokens(self.tokenizer), recipe=recipe)

    @cached_property
    def model(self) -> PreTrainedModel:
        """The trained model; FileNotFoundError without its weights."""
        if not (self.place / HISTORY).is_file():
            raise FileNotFoundError(
                f"the trained model is not in {self.place}; name its folder, or remove {self.study.path('stages')} to "
                f"train it again"
            )
        return loading.place(loading.load(self.place)[0])

    def check(self) -> None:
        """Raise ValueError for a study of another model or recipe, OSError if it cannot be written."""
        self.study.check_writable()
        table = self.finished()
        if not len(table) and (others := [name for name in self.study.names() if table_of(name).one_model]):
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
        done[name] = time.monotonic() - start
        rows = pd.Series({stage: done[stage] for stage in STAGES if stage in done}, name="seconds", dtype=float)
        table = rows.rename_axis("stage").to_frame()
        table.attrs = {"recipe": self.key, "signatures": {"seconds": f"{self.key}|headroles:{version('headroles')}"}}
        save_table(table, self.study.path("stages"))
        report(f"{label}: done in {done[name] / 60:.1f} minutes")

    def train(self) -> None:
        """Train the model from scratch."""
        parts = loading.place(self.recipe.model(self.tokenizer)), self.tokenizer, self.data.train, self.place
        history = train(*parts, held_out=self.data.dev, **self.recipe.training())
        save_table(history, self.study.path("history"))
        _drop_checkpoints(self.place)

    @cached_property
    def workflow(self) -> Workflow:
        """The workflow of the trained model."""
        data, recipe = self.data, self.recipe
        material = Material(data.train[: recipe.tune_pairs], data.dev, data.test, data.other, data.parsed)
        return Workflow(
            self.study.folder,
            self.model,
            self.tokenizer,
            material,
            metric="bleu",
            tune=recipe.tuning(),
            n_resamples=recipe.n_resamples,
            max_tokens=batch_tokens(),
            seed=recipe.seed,
        )

    def score(self) -> None:
        """Compute scores, relevance and roles on the sentences with trees; rarity by the training data."""
        scores: list[str | Measure] = [*DEFAULT, "importance", Relevance("cp")]
        self.workflow.score(self.study, self.data.parsed, scores, reference=self.data.train)
        roles(self.study)

    def ablate(self) -> None:
        """Ablate every head alone and measure the loss on dev."""
        self.workflow.ablate(self.study, self.data.dev, metric="loss")

    def evaluate(self) -> None:
        """Measure loss, BLEU and chrF on test, and on the other domain."""
        for name, part in (("other", self.data.other), ("test", self.data.test)):
            if part is not None:
                table = evaluate(
                    self.model,
                    self.tokenizer,
                    part,
                    ["loss", "bleu", "chrf"],
                    max_tokens=batch_tokens(),
                    n_resamples=self.recipe.n_resamples,
                )
                save_table(table, self.study.path(f"evaluation-{name}"))

    def prune_encoder(self) -> None:
        """Prune the encoder by gates, the decoder frozen (Voita et al. 2019, Figs. 7 and 8)."""
        self.workflow.prune(self.study, "enc-self", self.recipe.encoder_keep, reference=self.data.train)
        _drop_checkpoints(self.study.work / ".trials")

    def prune_all(self) -> None:
        """Prune all kinds of heads by gates (Voita et al. 2019, Figs. 9 and 10)."""
        self.workflow.prune(self.study, None, self.recipe.keep, reference=self.data.train)
        _drop_checkpoints(self.study.work / ".trials")

    def relate(self) -> None:
        """Relate roles to effects of ablation and to survival."""
        folder = self.study.folder
        relate(folder, [folder], columns=["ablation", "survival"], seed=self.recipe.seed, study=self.study)

    def draw(self) -> None:
        """Draw every figure that the tables allow."""
        plot(self.study)


def _drop_checkpoints(folder: Path) -> None:
    """Remove checkpoints, which take three times the size of the weights and serve only resuming."""
    for place in list(folder.rglob("checkpoint-*")):
        shutil.rmtree(place)
