"""Which heads of Whisper tell when a word is spoken? `make.py data`, `tables`, `pictures`."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import typer
from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headroles as hr
from headroles.analysis.intervals import bootstrap_counts
from headroles.exports import alignment
from headroles.models.head_model import HeadModel
from headroles.patterns.observation import At

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add, synthetic_speech  # noqa: E402 - of all studies

MODELS = ("base", "tiny.en")
PAIRS = (("synthetic", "human"), ("human", "synthetic"))  # chosen on, measured on: the primary one first
TAUGHT = (("tiny.en", "base"), ("base", "tiny.en"))  # a model, and the one whose published list gives the times
RESAMPLES, NOISE, SEEDS = 10_000, 2.0, (0, 1, 2)
Models = Annotated[Path, typer.Argument(help="Folder with whisper-base and whisper-tiny.en.")]
Speech = Annotated[Path, typer.Argument(help="Folder with human.jsonl.")]
Synthetic = Annotated[Path, typer.Argument(help="Folder with meta.json and its sounds.")]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def tables(models: Models, speech: Speech, synthetic: Synthetic) -> None:
    """Choose and measure the lists of heads (half an hour of one core); what the table has is not computed again."""
    corpora = {"human": hr.read(speech / "human.jsonl"), "synthetic": synthetic_speech(synthetic)}
    path = HERE / "sets.csv"
    done = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["model", "at"])
    for name, at in product(MODELS, ("next", "read")):
        if not (done["model"].eq(name) & done["at"].eq(at)).any():
            rows = [_listed(name, *_loaded(models, name), corpora, pair, at) for pair in PAIRS]
            done = _kept(path, pd.concat([done, *rows], ignore_index=True))
    for seed in SEEDS:
        name = f"base, noise {seed}"
        if not done["model"].eq(name).any():
            rows = _listed(name, *_loaded(models, "base", seed), corpora, PAIRS[0], "next")
            done = _kept(path, pd.concat([done, rows], ignore_index=True))
    for model, teacher in TAUGHT:
        name = f"{model}, times of {teacher}"
        if not done["model"].eq(name).any():
            starts = _written(HeadModel.of(*_loaded(models, teacher)), corpora["synthetic"])
            rows = _listed(name, *_loaded(models, model), corpora, PAIRS[0], "next", starts)
            done = _kept(path, pd.concat([done, rows], ignore_index=True))


def _written(teacher: HeadModel, corpus: hr.Corpus) -> dict[int, np.ndarray]:
    """Return the starts of words of each utterance by the published heads of a model, in place of true ones."""
    index = teacher.index[teacher.index.get_level_values("kind") == "cross"]
    (published,) = alignment._others(teacher, index, 1, 0)["published"]
    read = _read(teacher, corpus, "next")
    return {
        one.number: one.starts + late[0] / 1000
        for one, late in zip(read, alignment._late(read, [published]), strict=True)
    }


def _kept(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    table.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
    return table


def _loaded(models: Path, name: str, noise: int | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    model, tokenizer = hr.load(models / f"whisper-{name}", **({} if name.endswith(".en") else {"target_lang": "en"}))
    if noise is not None:
        _shaken(model, noise)
    return model, tokenizer


def _shaken(model: PreTrainedModel, seed: int) -> None:
    """Add noise to the query maps of the published heads, as if these heads had been trained away."""
    draws, size = torch.Generator().manual_seed(seed), model.config.d_model // model.config.decoder_attention_heads
    for layer, head in model.generation_config.alignment_heads:
        weight = model.model.decoder.layers[layer].encoder_attn.q_proj.weight
        rows = slice(head * size, (head + 1) * size)
        with torch.no_grad():
            weight[rows] += NOISE * weight[rows].std() * torch.randn(weight[rows].shape, generator=draws)


def _listed(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpora: dict[str, hr.Corpus],
    pair: tuple[str, str],
    at: At,
    starts: dict[int, np.ndarray] | None = None,  # by which heads are chosen, in place of the true ones
) -> pd.DataFrame:
    """Choose heads on one corpus and measure them on the other, with and without a shift: a row per set of heads.

    These are the steps of `hr.alignment_heads`, which would read the sound again for each of them.
    """
    handle = HeadModel.of(model, tokenizer)
    true, second = (_read(handle, corpora[part], at) for part in pair)
    first = true if starts is None else [replace(each, starts=starts[each.number]) for each in true]
    index = handle.index[handle.index.get_level_values("kind") == "cross"]
    chosen, _ = alignment._greedy(first, len(index), None)
    sets = {"chosen": [chosen], **alignment._others(handle, index, len(chosen), 0)}
    counts = bootstrap_counts([utterance.number for utterance in second], RESAMPLES, 0)
    tables = []
    shifts = [(name, first), (name, []), *([] if starts is None else [(f"{name}, shift by true ones", true)])]
    for model_name, by in shifts:
        table = alignment._compared(sets, by, second, counts).reset_index()
        tables.append(table.assign(model=model_name, at=at, shift=bool(by), chosen_on=pair[0], measured_on=pair[1]))
        tables[-1].loc[table["set"] == "published", "p"] = _flipped(sets, by, second)
    found = pd.concat(tables, ignore_index=True)
    heads = [index[row] for row in chosen]
    found.loc[found["set"] == "chosen", "list"] = " ".join(f"L{layer}H{head}" for _, layer, head in heads)
    return found


@cache
def _read(handle: HeadModel, corpus: hr.Corpus, at: At) -> list:
    return alignment._read(handle, corpus, at)


def _flipped(sets: dict[str, list[tuple[int, ...]]], first: list, second: list) -> float:
    """Test chosen against published heads by flipping the signs of the utterances' differences."""
    both = [sets[name][0] for name in ("chosen", "published")]
    shift = np.median(np.concatenate(alignment._late(first, both), axis=1), axis=1) if first else np.zeros(2)
    sums = np.array([np.abs(words - shift[:, None]).sum(1) for words in alignment._late(second, both)])
    differences = sums[:, 0] - sums[:, 1]
    signs = np.random.default_rng(0).choice([-1, 1], (RESAMPLES, len(differences)))
    return float((1 + (np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9).sum()) / (1 + RESAMPLES))


def drawn() -> Figure:
    """Draw the mean error of each set of heads, with its interval."""
    table = pd.read_csv(HERE / "sets.csv")
    names, steps = ["chosen", "published", "all", "upper half", "random"], {"next": ("C0", "o"), "read": ("C1", "^")}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharex=True, layout="constrained")
    for ax, model in zip(axes, MODELS, strict=True):
        for place, (at, (colour, mark)) in enumerate(steps.items()):
            rows = table[
                table["model"].eq(model) & table["at"].eq(at) & table["shift"] & table["chosen_on"].eq("synthetic")
            ]
            rows = rows.set_index("set").loc[names]
            places, ends = np.arange(len(names)) + 0.25 * place - 0.125, rows["error"] - rows["error.low"]
            ends = [ends, rows["error.high"] - rows["error"]]
            ax.errorbar(rows["error"], places, xerr=ends, fmt=mark, color=colour, ms=4, lw=1, label=at)
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.set_title(model)
        ax.set(xlabel="mean error of the starts of words, ms", xscale="log", xlim=(35, 500))
        ax.set_xticks([50, 100, 200, 400], [50, 100, 200, 400])
        ax.minorticks_off()
    axes[0].legend(title="step that is timed", fontsize=7, title_fontsize=7, frameon=False)
    return figure


add(app, HERE, tables=False)

if __name__ == "__main__":
    app()
