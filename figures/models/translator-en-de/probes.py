"""Probe the heads of an encoder during training: a table of the best heads of each score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerState

from headroles.data.corpus import Corpus, Sentence
from headroles.scores import score
from headroles.tables import frame
from headroles.tables.columns import of_name
from headroles.tables.io import load_table, save_table

PROBES = "probes"
TOP = 3  # heads that a probe keeps of each score
COLUMNS = ["phase", "step", "corpus", "score", "rank", "layer", "head", "value", "baseline", "words"]


class Probes(transformers.TrainerCallback):
    """Callback that scores the heads of the encoder at every log of a training; checkpoints keep the rows."""

    def __init__(
        self,
        place: Path,  # folder for the table
        tokenizer: PreTrainedTokenizerBase,
        corpora: Sequence[Corpus],  # with trees
        phase: str,  # of training
        before: Iterable[pd.DataFrame] = (),  # tables of earlier phases, which come first
    ) -> None:
        self.place, self.tokenizer, self.phase, self.before = place, tokenizer, phase, [*before]
        self.corpora = [_with_targets(corpus) for corpus in corpora]

    def on_train_begin(self, args: object, state: TrainerState, control: object, **kwargs: Any) -> None:  # noqa: ARG002
        """Probe the initial weights."""
        if state.global_step == 0 and self.corpora:
            state.log_history.append({"step": 0, "probe": self._probe(kwargs["model"], 0)})

    def on_log(self, args: object, state: TrainerState, control: object, **kwargs: Any) -> None:  # noqa: ARG002
        """Probe the heads and save the table."""
        log = state.log_history
        if "loss" not in log[-1] or not self.corpora:
            return
        log[-1]["probe"] = self._probe(kwargs["model"], state.global_step)
        rows = pd.DataFrame([row for entry in log for row in entry.get("probe", ())], columns=COLUMNS)
        table = pd.concat([*self.before, rows], ignore_index=True)
        corpora = ",".join(f"{corpus.name} {corpus.hash}" for corpus in self.corpora)
        save_table(frame.signed(table, frame.sign_version(corpora=corpora)), self.path)

    @property
    def path(self) -> Path:
        """The file of the table."""
        return self.place / f"{PROBES}.parquet"

    def table(self) -> pd.DataFrame:
        """Load the table; it is empty without corpora."""
        return load_table(self.path) if self.path.is_file() else pd.DataFrame(columns=COLUMNS)

    def _probe(self, model: PreTrainedModel, step: int) -> list[dict[str, object]]:
        tables = [best_heads(model, self.tokenizer, corpus) for corpus in self.corpora]
        return [{"phase": self.phase, "step": step} | row for rows in tables for row in rows]


def best_heads(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, corpus: Corpus) -> list[dict[str, object]]:
    """Return the encoder's best heads by offset, by confidence, and by margin over the baseline of each relation."""
    table = score(model, tokenizer, corpus, ["position", "syntax", "confidence"], n_resamples=0).loc[["enc-self"]]
    table.attrs = {}  # pandas would copy them at every step
    relations = of_name(table, "syntax")
    rows = []
    for name in ["position[-1]", "position[+1]", "confidence", *relations]:
        baseline, words = (table.get(f"{name}.{part}", 0.0 * table[name]) for part in ("baseline", "words"))
        best = (table[name] - baseline).sort_values(ascending=False, kind="stable").index[:TOP]
        for rank, head in enumerate(best):
            row = {"corpus": corpus.name, "score": name, "rank": rank, "layer": head[1], "head": head[2]}
            values = {"value": table[name], "baseline": baseline, "words": words}
            rows.append(row | {key: float(column[head]) for key, column in values.items()})
    return rows


def _with_targets(corpus: Corpus) -> Corpus:
    """Replace every translation by a full stop, because only the encoder is scored."""
    return Corpus(corpus.name, tuple(replace(sentence, target=Sentence(".")) for sentence in corpus))
