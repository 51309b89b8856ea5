"""A toy translator and a toy classifier, trained in seconds, for all artefacts: `toys.py STUDY`, some minutes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import torch
import transformers
import typer
from toy_translator import translator

from headroles.data import synthetic
from headroles.data.corpus import Corpus
from headroles.papers.bench import Bench
from headroles.papers.reproduction import Paper, written
from headroles.papers.workflow import Material, Workflow
from headroles.training.hf_trainer import TrainOptions
from headroles.training.trainer import train

COUNTED = 1500  # sentences of token counts: the rarest token must be outside the 500 most frequent
PAPERS: dict[str, tuple[Paper, ...]] = {  # of each toy
    "translation": ("voita2019", "michel2019"),
    "classifier": ("michel2019", "budhraja2020"),
}
_few = partial(
    Workflow,
    keep=(0.5, 0.2),
    seeds=1,
    n_resamples=100,
    compared=(0.5,),
    timed={"shares": (0.0, 0.5, 0.9), "batches": (1, 4), "length": 8, "repeats": 2},
)


def reproduced(study: Path) -> pd.DataFrame:
    """Reproduce every artefact on the toy that has it: a row each with its verdict."""
    made = [
        written(Bench([workflow.folder], workflow), workflow.folder, paper).assign(toy=toy)
        for toy, workflow in workflows(study).items()
        for paper in PAPERS[toy]
    ]
    return pd.concat(made, ignore_index=True)


def workflows(folder: Path) -> dict[str, Workflow]:
    """Return the workflows of the two toys, `translation` and `classifier`, each with its own folder."""
    return {"translation": _translation(folder / "translation"), "classifier": _classifier(folder / "classifier")}


def _translation(folder: Path) -> Workflow:
    """Train a toy translator of three layers: a lower, a middle and an upper one."""
    model, tokenizer = translator(folder / ".trainings" / "model")
    scratch = TrainOptions(epochs=2, rate=3e-3, batch=32)
    tune = TrainOptions(epochs=1, rate=1e-3, batch=32)
    parts = folder, model, tokenizer, _material(translated=True)
    counted = synthetic.synthetic_corpus(COUNTED)
    return _few(*parts, metric="loss", tune=tune, scratch=scratch, counted=counted)


def _classifier(folder: Path) -> Workflow:
    """Train a BERT of three layers to classify whether a sentence has a direct object."""
    _, tokenizer = translator(folder.parent / "translation" / ".trainings" / "model")
    data = _material(translated=False)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, pad_token_id=tokenizer.pad_token_id,
        id2label={0: "no", 1: "object"}, label2id={"no": 0, "object": 1},
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config)
    options = TrainOptions(epochs=10, rate=3e-3, batch=16, warmup_steps=10, save_strategy="no")
    train(model, tokenizer, data.train, folder / ".trainings" / "model", **options)
    tune, counted = TrainOptions(rate=1e-3, batch=32), synthetic.synthetic_corpus(COUNTED)
    return _few(folder, model, tokenizer, data, tune=tune, counted=counted)


def _material(*, translated: bool) -> Material:
    """Draw short sentences for training and measuring, and longer ones as the other domain."""
    drawn = synthetic.synthetic_corpus(1800, seed=2, translated=translated)
    sentences = list(drawn)
    if not translated:
        sentences = [replace(row, label="object" if "obj" in row.relations else "no") for row in drawn]
    short = [sentence for sentence in sentences if len(sentence.heads) <= 9]
    long = Corpus("toy, longer", tuple(sentence for sentence in sentences if 9 < len(sentence.heads) <= 13)[:24])
    parts = {"dev": slice(24), "test": slice(24, 48), "trees": slice(48, 96), "train": slice(96, 256)}
    corpora = {name: Corpus(f"toy {name}", tuple(short[rows])) for name, rows in parts.items()}
    return Material(**corpora, other=long, other_trees=long, sentences=None)


def main(study: Path) -> None:
    """Print the verdicts on the toys; their tables are kept in STUDY."""
    columns = ["toy", "paper", "artefact", "answer", "why"]
    print(reproduced(study)[columns].to_string(index=False))


if __name__ == "__main__":
    typer.run(main)
