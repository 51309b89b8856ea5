"""A forecast: how long each stage of a replication takes on this machine, from samples of its work really done."""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pandas as pd
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import heads, models
from headroles.ablation import ablate
from headroles.evaluation import evaluate
from headroles.prepared import Prepared
from headroles.pruning.run import counted
from headroles.recipe import Recipe, budget
from headroles.scores import Relevance, score
from headroles.text import Corpus
from headroles.training import train

ENOUGH = 5.0  # seconds that a sample of work takes at least
SPARE = 0.1  # share of the minutes that is left for what is not forecast

log = logging.getLogger(__name__)


def forecast(data: Prepared, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> pd.DataFrame:
    """A row per kind of work: `count` of it, `seconds` that one takes, `minutes` of all.

    Everything is done for real with a model of the recipe's size: steps of training on pairs of average length, then
    scoring, closing of heads and writing on as many sentences as take five seconds. Pruning is counted by the steps of
    training. Relating, drawing and loading are not in it.
    """
    model = models.place(recipe.model(tokenizer))
    step = _step(model, tokenizer, data.train, recipe)
    model.eval()
    sizes = {
        "prune-encoder": (recipe.encoder_keep, recipe.layers * recipe.heads),
        "prune-all": (recipe.keep, 3 * recipe.layers * recipe.heads),
    }
    seconds = _each(model, tokenizer, data)
    further = 0 if data.other is None else len(data.other)
    rows = [
        ("train, steps", recipe.epochs * _steps(len(data.train), recipe.batch), step),
        ("train, dev sentences", recipe.epochs * len(data.dev), seconds["loss"]),
        ("score, sentences", len(data.parsed), seconds["score"] + seconds["relevance"]),
        ("ablate, sentences", len(data.dev), seconds["ablate"]),
        ("evaluate, sentences", len(data.test) + further, seconds["bleu"]),
    ]
    for name, (keep, of) in sizes.items():
        trials = len({counted(one, of) for one in keep} | {of})
        steps = recipe.tune_epochs * _steps(len(recipe.tuned_on(data)), recipe.batch)
        rows += [
            (f"{name}, steps", trials * steps, step),
            (f"{name}, test sentences", trials * len(data.test), seconds["bleu"]),
            (f"{name}, parsed sentences", trials * len(data.parsed), seconds["score"]),
        ]
    table = pd.DataFrame(rows, columns=["work", "count", "seconds"]).set_index("work")
    table["minutes"] = table["count"] * table["seconds"] / 60
    text = heads.sign(recipe=recipe, device=model.device.type, threads=torch.get_num_threads())
    table.attrs["signatures"] = dict.fromkeys(table, f"{text}|headroles:{version('headroles')}")
    return table


def epochs_within(table: pd.DataFrame, recipe: Recipe, minutes: float) -> int:
    """How many epochs of training leave time for all else in so many minutes, a tenth of which is kept in hand.

    Raises ValueError if not one does.
    """
    training = table.index.str.startswith("train")
    epoch, rest = table["minutes"][training].sum() / recipe.epochs, table["minutes"][~training].sum()
    found = int(((1 - SPARE) * minutes - rest) / epoch)
    if found < 1:
        raise ValueError(
            f"{minutes:g} minutes are too few: an epoch takes {epoch:.1f}, all that comes after training {rest:.1f}; "
            f"give more, a smaller model, or fewer sizes and pairs to prune"
        )
    return found


def _steps(pairs: int, batch: int) -> int:
    return math.ceil(pairs / batch)


def _step(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, corpus: Corpus, recipe: Recipe) -> float:
    """Seconds of a step of training."""
    clock = _Clock()
    options = recipe.training() | {"epochs": clock.most, "save_strategy": "no", "warmup_steps": 0}
    sample = _typical(corpus, recipe.batch * clock.most)
    with tempfile.TemporaryDirectory() as place:
        train(model, tokenizer, sample, place, callbacks=[clock], **options)
    return clock.seconds


class _Clock(transformers.TrainerCallback):
    """Times the steps of a training after the first, and ends it when it has seen enough."""

    most = 50

    def __init__(self) -> None:
        self.start, self.seconds = 0.0, math.nan

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        steps = state.global_step - 1
        if steps < 1:
            self.start = _now()
        elif steps == self.most - 1 or (steps > 1 and time.monotonic() - self.start > 2 * ENOUGH):
            self.seconds = (_now() - self.start) / steps
            control.should_training_stop = True


def _each(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Prepared) -> dict[str, float]:
    """Seconds per sentence of what is measured."""
    written = [len(tokenizer(one.target.text)["input_ids"]) for one in data.test if one.target]
    config: Any = model.generation_config
    config.max_length = math.ceil(sum(written) / len(written))  # an untrained model does not know where to end
    cheap: dict[str, Any] = {"resamples": 0, "budget": budget()}
    work: dict[str, tuple[Corpus, Callable[[Corpus], object]]] = {
        "loss": (data.dev, lambda part: evaluate(model, tokenizer, part, ["loss"], **cheap)),
        "bleu": (data.test, lambda part: evaluate(model, tokenizer, part, ["bleu"], **cheap)),
        "score": (data.parsed, lambda part: score(model, tokenizer, part, **cheap)),
        "relevance": (data.parsed, lambda part: score(model, tokenizer, part, [Relevance("cp")], **cheap)),
        "ablate": (data.dev, lambda part: ablate(model, tokenizer, part, **cheap)),
    }
    return {name: _per_sentence(corpus, run) for name, (corpus, run) in work.items()}


def _per_sentence(corpus: Corpus, run: Callable[[Corpus], object]) -> float:
    """Seconds of a sentence of average length: of twice as many each time, until they take long enough."""
    size = 2
    run(_typical(corpus, size))  # what is done once for all
    while True:
        size = min(2 * size, len(corpus))
        start = _now()
        run(_typical(corpus, size))
        seconds = _now() - start
        if seconds > ENOUGH or size == len(corpus):
            return seconds / size


def _typical(corpus: Corpus, size: int) -> Corpus:
    """The `size` sentences whose length is nearest to the mean."""
    lengths = [len(one.text) + len(one.target.text if one.target else "") for one in corpus]
    mean = sum(lengths) / len(lengths)
    order = sorted(range(len(lengths)), key=lambda i: (abs(lengths[i] - mean), i))
    return Corpus(corpus.name, tuple(corpus[i] for i in order[:size]))


def _now() -> float:
    """The time, once the GPU has done what it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic()
