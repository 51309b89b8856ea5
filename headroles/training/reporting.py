"""Callbacks with numbers for TensorBoard, Weights & Biases and the like, which the Trainer's `report_to` chooses."""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

from headroles.data.corpus import Corpus
from headroles.scores.base import Measure
from headroles.scores.runner import score


class Reporter(TrainerCallback):
    """Callback with numbers that are reported at every row of the log.

    They are not written into the log that checkpoints keep.
    """

    def scalars(self) -> dict[str, float]:
        """Return the numbers by name."""
        raise NotImplementedError

    def on_log(self, args: object, state: object, control: object, **kwargs: object) -> None:  # noqa: ARG002
        """Add the numbers to what is reported."""
        logs = kwargs.get("logs")
        if isinstance(logs, dict):
            logs.update(self.scalars())


class ScoreReport(Reporter):
    """Callback that scores the heads of a model in training, and reports the mean and the largest score of each kind.

    Args:
        model: The model that is trained.
        tokenizer: Its tokenizer.
        corpus: The sentences, a few hundred: they are read at every row of the log.
        scores: Scores, as of `hr.score`.

    Example:
        >>> report = hr.training.ScoreReport(model, tokenizer, corpus[:200], ["confidence", "position"])
        >>> hr.train(model, tokenizer, corpus, "trained", callbacks=[report], report_to="tensorboard")
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        corpus: Corpus,
        scores: Iterable[str | Measure] = ("confidence", "position"),
    ) -> None:
        self.model, self.tokenizer, self.corpus, self.scores = model, tokenizer, corpus, list(scores)

    def scalars(self) -> dict[str, float]:
        """Return the mean and the largest value of each score over the heads of each kind, without missing ones."""
        table = score(self.model, self.tokenizer, self.corpus, self.scores, n_resamples=0)
        columns = [name for name in map(str, table) if not name.endswith((".low", ".high"))]
        values = {}
        for kind, rows in table[columns].groupby("kind"):
            for column in columns:
                if rows[column].notna().any():
                    values[f"scores/{column}_{kind}_mean"] = float(rows[column].mean())
                    values[f"scores/{column}_{kind}_max"] = float(rows[column].max())
        return values
