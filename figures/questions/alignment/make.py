"""Which heads of Whisper tell when a word is spoken? `make.py data`, `tables`, `pictures`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import typer
from matplotlib.figure import Figure
from transformers import PreTrainedModel

import headroles as hr
from headroles.exports import alignment
from headroles.models.head_model import HeadModel

HERE = Path(__file__).parent
MODELS = ("base", "tiny.en")
SETTINGS = {
    "at=next": {"at": "next", "shift": True},
    "at=next, no shift": {"at": "next"},
    "at=read": {"at": "read", "shift": True},
}
PRIMARY = ("base", "synthetic", "human", "at=next")
RESAMPLES, NOISE, SEEDS = 10_000, 2.0, (0, 1, 2)
Models = Annotated[Path, typer.Argument(help="Folder with whisper-base and whisper-tiny.en.")]
Speech = Annotated[Path, typer.Argument(help="Folder with human.jsonl.")]
Synthetic = Annotated[Path, typer.Argument(help="Folder with meta.json and its sounds.")]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def data() -> None:
    """Say what must be at hand."""
    print("MODELS     whisper-base and whisper-tiny.en: openai/whisper-base and openai/whisper-tiny.en of the Hub")
    print("SPEECH     human.jsonl: 39 utterances with times of words, one line of JSON each, as hr.read reads them")
    print("SYNTHETIC  60 utterances of espeak-ng with times of words, which `synthetic.py SYNTHETIC` writes")


@app.command()
def tables(models: Models, speech: Speech, synthetic: Synthetic) -> None:
    """Choose and measure the lists of heads (half an hour of one core); what the table has is not computed again."""
    corpora = {"human": hr.read(speech / "human.jsonl"), "synthetic": _synthetic(synthetic)}
    path = HERE / "sets.csv"
    done = pd.read_csv(path) if path.exists() else pd.DataFrame()
    for name in MODELS:
        for first, second in (("synthetic", "human"), ("human", "synthetic")):
            for setting, options in SETTINGS.items():
                if not _has(done, name, first, setting):
                    done = _added(done, _compared(models, name, corpora, (first, second), setting, options))
                    done.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
    for seed in SEEDS:
        if not _has(done, f"base, noise {seed}", "synthetic", "at=next"):
            pair, setting = ("synthetic", "human"), "at=next"
            done = _added(done, _compared(models, "base", corpora, pair, setting, SETTINGS[setting], noise=seed))
            done.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
    if not (HERE / "primary.json").exists():
        found = _primary(models, corpora)
        (HERE / "primary.json").write_text(json.dumps(found, indent=1) + "\n")
    print((HERE / "primary.json").read_text())


@app.command()
def pictures() -> None:
    """Draw the errors of the lists, from the table."""
    _drawn(pd.read_csv(HERE / "sets.csv")).savefig(HERE / "errors.svg", bbox_inches="tight")


def _synthetic(folder: Path) -> hr.Corpus:
    """Read the synthetic utterances; words without a time are left out of the times alone."""
    rows = json.loads((folder / "meta.json").read_text())
    lines = folder / "synthetic.jsonl"
    lines.write_text(
        "".join(json.dumps({"audio": row["wav"], "text": row["text"], "words": row["words"]}) + "\n" for row in rows)
    )
    return hr.read(lines)


def _has(table: pd.DataFrame, model: str, chosen: str, setting: str) -> bool:
    return (
        len(table) > 0
        and (table["model"].eq(model) & table["chosen on"].eq(chosen) & table["setting"].eq(setting)).any()
    )


def _added(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([table, rows], ignore_index=True)


def _loaded(models: Path, name: str, noise: int | None = None) -> tuple[PreTrainedModel, object]:
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


def _compared(
    models: Path,
    name: str,
    corpora: dict[str, hr.Corpus],
    pair: tuple[str, str],
    setting: str,
    options: dict[str, object],
    noise: int | None = None,
) -> pd.DataFrame:
    """Choose heads on one corpus and measure them on the other: a row per set of heads."""
    first, second = pair
    found = hr.alignment_heads(
        *_loaded(models, name, noise), corpora[first], held_out=corpora[second], n_resamples=RESAMPLES, **options
    )
    heads = found.heads[found.heads["chosen"] == 1].sort_values("order").index
    rows = found.sets.reset_index()
    rows.insert(0, "model", name if noise is None else f"{name}, noise {noise}")
    rows.insert(1, "chosen on", first)
    rows.insert(2, "measured on", second)
    rows.insert(3, "setting", setting)
    rows["list"] = ""
    rows.loc[rows["set"] == "chosen", "list"] = " ".join(f"L{layer}H{head}" for _, layer, head in heads)
    return rows


def _primary(models: Path, corpora: dict[str, hr.Corpus]) -> dict[str, float]:
    """Test the primary contrast by flipping the signs of the utterances' differences."""
    name, first, second, setting = PRIMARY
    model, tokenizer = _loaded(models, name)
    found = hr.alignment_heads(
        model, tokenizer, corpora[first], n_resamples=0, held_out=corpora[second], **SETTINGS[setting]
    )
    heads = found.heads
    sets = [tuple(np.flatnonzero(heads[column] == 1)) for column in ("chosen", "published")]
    handle = HeadModel.of(model, tokenizer)
    late = [alignment._late(alignment._read(handle, corpora[part], "next"), sets) for part in (first, second)]
    shift = np.median(np.concatenate(late[0], axis=1), axis=1)
    errors = [np.abs(words - shift[:, None]).sum(1) for words in late[1]]  # of each utterance: [set]
    differences = np.array([chosen - published for chosen, published in errors])
    count = sum(words.shape[1] for words in late[1])
    observed = differences.sum() / count
    signs = np.random.default_rng(0).choice([-1, 1], (RESAMPLES, len(differences)))
    flipped = np.abs(signs @ differences) / count
    p = (1 + (flipped >= abs(observed) - 1e-12).sum()) / (1 + RESAMPLES)
    return {"utterances": len(differences), "words": int(count), "difference": float(observed), "p": float(p)}


def _drawn(table: pd.DataFrame) -> Figure:
    """Draw the mean error of each set of heads, with its interval."""
    names = ["chosen", "published", "all", "upper half", "random"]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharex=True, layout="constrained")
    for ax, model in zip(axes, MODELS, strict=True):
        for step, (setting, colour, mark) in enumerate(zip(SETTINGS, ("C0", "0.55", "C1"), "os^", strict=True)):
            rows = table[table["model"].eq(model) & table["chosen on"].eq("synthetic") & table["setting"].eq(setting)]
            rows = rows.set_index("set").loc[names]
            places = np.arange(len(names)) + 0.2 * (step - 1)
            ends = [rows["error"] - rows["error.low"], rows["error.high"] - rows["error"]]
            ax.errorbar(
                rows["error"], places, xerr=ends, fmt=mark, color=colour, ms=4, lw=1, label=setting.replace("at=", "")
            )
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.set(
            title=f"Whisper {model}: chosen on synthetic,\nmeasured on 39 human utterances",
            xlabel="mean error of the starts of words, ms",
        )
        ax.set_xlim(left=0)
    axes[0].legend(title="step that is timed", fontsize=7, title_fontsize=7, frameon=False)
    return figure


if __name__ == "__main__":
    app()
