"""Do gates decide at any size of corpus?

SHARED is a folder with `models/multi30k-en-de` and `data`. Writes `decided.csv`, a row per run: a model pruned by
`hr.L0(...)` with `hr.prune`'s other options as they are (3 epochs of batches of 32, or what `--epochs` says), how many
of its gates are expected to be open at the end and how many are undecided, how many heads stay, and the loss on 200
held-out examples before and after. Rows that are in the file are kept. Hours on one core.
"""

from __future__ import annotations

import logging
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer

import headroles as hr
from headroles.models.loading import PACKAGE
from headroles.pruning.selection import undecided

KEYS = ["model", "examples", "epochs", "rate", "keep"]
HELD_OUT = 200


def main(
    shared: Path,
    output: Path = Path("figures/engineering/quality"),
    models: list[str] = ["marian", "minilm"],
    examples: list[int] = [500, 2000, 8000],
    keep: list[float] = [0.5],
    epochs: int = 3,
    rate: Annotated[float | None, typer.Option(help="Learning rate of gates; by default that of L0.")] = None,
) -> None:
    torch.set_num_threads(1)
    logging.getLogger("headroles").setLevel(logging.ERROR)
    path = output / "decided.csv"
    for name, size, share in product(models, examples, keep):
        wanted = dict(zip(KEYS, (name, size, epochs, rate or 0.0, share), strict=True))
        rows = pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=KEYS)
        if not (rows[KEYS] == pd.Series(wanted)).all(axis=1).any():
            row = wanted | _run(shared, name, size, share, epochs, rate)
            pd.DataFrame([*rows.to_dict("records"), row]).to_csv(path, index=False)
            print(row, flush=True)


def _run(shared: Path, name: str, examples: int, keep: float, epochs: int, rate: float | None) -> dict[str, Any]:
    model, tokenizer, learnt, held_out = _marian(shared, examples) if name == "marian" else _minilm(shared, examples)
    before = hr.evaluate(model, tokenizer, held_out, ["loss"], n_resamples=0).loc["loss", "value"]
    tune = {"epochs": epochs, "save_strategy": "no"}
    table = hr.prune(model, tokenizer, learnt, hr.L0(rate=rate), keep=keep, remove=False, tune=tune)
    opened, stays = table.iloc[:, 1], int(table.iloc[:, 0].sum())
    hr.remove_heads(model, table.iloc[:, 0])
    after = hr.evaluate(model, tokenizer, held_out, ["loss"], n_resamples=0).loc["loss", "value"]
    steps = epochs * -(-len(learnt) // 32)
    numbers = {"open": round(float(opened.sum()), 1), "before": round(before, 3), "after": round(after, 3)}
    return {"steps": steps, "heads": len(table), "stay": stays, "undecided": undecided(opened), **numbers}


def _marian(shared: Path, examples: int) -> Any:
    texts = shared / "data/multi30k"
    learnt = hr.read(texts / "train.en.gz", texts / "train.de.gz", limit=examples)
    held_out = hr.read(texts / "val.en.gz", texts / "val.de.gz", limit=HELD_OUT)
    return *hr.load(shared / "models/multi30k-en-de"), learnt, held_out


def _minilm(shared: Path, examples: int) -> Any:
    learnt = hr.read(shared / "data/glue/SST-2/train.tsv.gz").sample(examples)
    held_out = hr.read(shared / "data/glue/SST-2/dev.tsv.gz").sample(HELD_OUT)
    return *hr.load_classifier(Path(str(files(PACKAGE))) / "model", learnt), learnt, held_out
