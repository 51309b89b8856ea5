"""A replication of the papers in one study: a translator trained from nothing, scored, ablated, pruned and related."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.ablation.effects import closed_in
from headroles.ablation.evaluation import evaluate
from headroles.data.corpus import Corpus
from headroles.experiments import score_study
from headroles.experiments.preparation import Prepared
from headroles.experiments.relate_study import relate_study
from headroles.models import loading
from headroles.pruning.l0 import L0
from headroles.pruning.sparsity import sparsity_sweep
from headroles.scores import Relevance
from headroles.scores.runner import DEFAULT
from headroles.tables import frame
from headroles.tables.frame import Kind
from headroles.tables.io import save_table
from headroles.tables.study import ONE_MODEL, Study
from headroles.training.marian import marian
from headroles.training.trainer import HISTORY, train

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
    told: Callable[[str], object] = log.info,
) -> pd.DataFrame:
    """Train, score, ablate, evaluate, prune, relate and draw, each stage once: the seconds that each took.

    The study is left with tables and figures; weights, and what is not finished, go into the folder `weights`, by
    default that of the study with "-weights" after its name. A stage that is finished is not run again, one that was
    stopped goes on where it was; `only` are stages to run. `told` is given a line for each stage. Raises ValueError for
    an unknown stage, for one that needs another first, and for a study of another recipe or other data.
    """
    folder = Path(study)
    place = folder.with_name(f"{folder.name}-weights") if weights is None else Path(weights)
    asked = STAGES if only is None else tuple(only)
    if unknown := [name for name in asked if name not in STAGES]:
        raise ValueError(f"unknown stage {unknown[0]!r}; known: {', '.join(STAGES)}")
    run = _Replication(Study(folder, work=place), data, recipe or Recipe())
    run.check()
    for name in (name for name in STAGES if name in asked):
        run.stage(name, told)
    return run.finished()


class _Replication:
    """One replication: its model, loaded when a stage first needs it, and which of its stages are finished."""

    def __init__(self, study: Study, data: Prepared, recipe: Recipe) -> None:
        self.study, self.data, self.recipe = study, data, recipe
        parts = (data.train, data.dev, data.test, data.parsed, data.other)
        hashes = ",".join(one.hash for one in parts if one is not None)
        told = {"data": hashes, "tokenizer": loading.tokens(self.tokenizer), "recipe": recipe}
        self.text = frame.sign(**told)  # what all stages follow from

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the prepared folder."""
        return loading.tokenizer_of(self.data.tokenizer)

    @cached_property
    def model(self) -> PreTrainedModel:
        """The trained model. Raises FileNotFoundError where its weights are gone."""
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
        """Raises ValueError if the study is of something else, OSError if it cannot be written."""
        self.study.check_writable()
        table = self.finished()
        if not len(table) and (others := [name for name in self.study.names() if ONE_MODEL.fullmatch(name)]):
            raise ValueError(
                f"{self.study.folder} holds tables of another model: {', '.join(others)}; give another folder"
            )
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
        save_table(table, self.study.path("stages"))

    def train(self) -> None:
        """The model, trained from nothing."""
        model = loading.place(self.recipe.model(self.tokenizer))
        options = self.recipe.training()
        history = train(model, self.tokenizer, self.data.train, self.place, held_out=self.data.dev, **options)
        save_table(history, self.study.path("history"))
        _drop_checkpoints(self.place)

    def score(self) -> None:
        """Scores, relevance and roles on the sentences with trees; words are rare by what the model was trained on."""
        asked: list[Any] = [*DEFAULT, "importance", Relevance("cp")]
        options: dict[str, Any] = {
            "reference": self.data.train,
            "max_tokens": budget(),
            "n_resamples": self.recipe.n_resamples,
        }
        score_study.measure(self.study, self.model, self.tokenizer, self.data.parsed, asked, **options)
        score_study.tell(self.study)

    def ablate(self) -> None:
        """Every head closed alone, the loss on dev."""
        options: dict[str, Any] = {"max_tokens": budget(), "n_resamples": self.recipe.n_resamples}
        closed_in(self.study, self.model, self.tokenizer, self.data.dev, metric="loss", **options)

    def evaluate(self) -> None:
        """Loss, BLEU and chrF on test, and on another domain."""
        options: dict[str, Any] = {"max_tokens": budget(), "n_resamples": self.recipe.n_resamples}
        for name, part in (("other", self.data.other), ("test", self.data.test)):
            if part is not None:
                found = evaluate(self.model, self.tokenizer, part, ["loss", "bleu", "chrf"], **options)
                save_table(found, self.study.path(f"evaluation-{name}"))

    def prune_encoder(self) -> None:
        """Gates on the encoder's heads, the decoder frozen (Voita et al. 2019, Figs. 7 and 8)."""
        self._prune(L0(rate=GATES, freeze="decoder"), self.recipe.encoder_keep, ["enc-self"])

    def prune_all(self) -> None:
        """Gates on all heads (Figs. 9 and 10)."""
        self._prune(L0(rate=GATES), self.recipe.keep, None)

    def relate(self) -> None:
        """Whether heads with roles matter more, and survive longer."""
        folder = self.study.folder
        relate_study(self.study, folder, [folder], only=["ablation", "survival"], seed=self.recipe.seed)

    def draw(self) -> None:
        """Every figure that the tables allow."""
        score_study.draw(self.study)

    def _prune(self, strategy: L0, keep: Sequence[float], kinds: list[Kind] | None) -> None:
        options: dict[str, Any] = {"metric": "bleu", "scored": self.data.parsed, "tune": self.recipe.tuning()}
        options |= {"n_resamples": self.recipe.n_resamples, "max_tokens": budget(), "seed": self.recipe.seed}
        options["reference"] = self.data.train
        learnt = self.recipe.tuned_on(self.data)
        sparsity_sweep(
            self.study, self.model, self.tokenizer, learnt, self.data.test, strategy, keep=keep, kinds=kinds, **options
        )
        _drop_checkpoints(self.study.work / ".trials")


def _drop_checkpoints(folder: Path) -> None:
    """Leave out what only unfinished training needs: three times the weights."""
    for place in list(folder.rglob("checkpoint-*")):
        shutil.rmtree(place)


WARMUP = 0.1  # share of the steps of a training until the rate is at its peak
TUNED = 0.1  # of the peak rate of training: that of pruning, which starts from trained weights
GATES = 0.1  # the rate of gates, of which a training of a few hundred steps decides most


@dataclass(frozen=True)
class Recipe:
    """Sizes of the model, how it is trained, to how many heads it is pruned: Transformer-base unless told otherwise.

    `layers` and `heads` are of the encoder and of the decoder, `inner` is by default 4 x `width`; `rate`, the peak
    learning rate, by default 7e-4 at width 512 and larger for narrower models, by the square root. `encoder_keep` are
    the shares of the encoder's heads, `keep` of all heads, that stay; each size is trained for `tune_epochs` on the
    first `tune_pairs` pairs.
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
        if wrong := [one for one in (*self.encoder_keep, *self.keep) if not 0 < one < 1]:
            raise ValueError(f"keep is a share of the heads, between 0 and 1; got {wrong[0]:g}")

    def model(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        """The model, untrained."""
        sizes = {"width": self.width, "layers": self.layers, "heads": self.heads}
        inner = self.inner or 4 * self.width
        return marian(tokenizer, **sizes, inner=inner, seed=self.seed, dropout=self.dropout, activation_function="relu")

    def training(self) -> dict[str, Any]:
        """Options of `train` for the whole model: what is lost when it is killed is at most a twentieth."""
        rate = self.rate or 7e-4 * (512 / self.width) ** 0.5
        return {
            **self._both(rate),
            "epochs": self.epochs,
            "label_smoothing_factor": self.smoothing,
            "save_steps": 0.05,
            "save_total_limit": 2,
        }

    def tuning(self) -> dict[str, Any]:
        """Options of `train` for each size of pruning; gates are learnt from the loss without smoothing."""
        rate = TUNED * self.training()["rate"]
        return {**self._both(rate), "epochs": self.tune_epochs, "save_steps": 0.25, "save_total_limit": 1}

    def tuned_on(self, data: Prepared) -> Corpus:
        """The pairs on which each size of pruning is trained."""
        return data.train if self.tune_pairs is None else data.train[: self.tune_pairs]

    def _both(self, rate: float) -> dict[str, Any]:
        adam = {"adam_beta2": 0.98, "adam_epsilon": 1e-9}
        schedule = {"lr_scheduler_type": "cosine", "warmup_steps": WARMUP, "save_strategy": "steps"}
        return {"batch": self.batch, "rate": rate, "seed": self.seed, **adam, **schedule, **pace()}


def pace() -> dict[str, Any]:
    """What keeps a GPU busy: bfloat16 where it has it, and batches padded by other processes; on a CPU nothing."""
    if not torch.cuda.is_available():
        return {}
    workers = max(1, min(4, (os.cpu_count() or 1) - 1))
    filled = {"dataloader_num_workers": workers, "dataloader_prefetch_factor": 4, "dataloader_persistent_workers": True}
    return {"bf16": torch.cuda.is_bf16_supported(including_emulation=False), **filled}


def budget() -> int:
    """How many tokens are measured at once: as many as keep a GPU busy."""
    return 32768 if torch.cuda.is_available() else 4096
