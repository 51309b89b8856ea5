"""Prune three MiniLM classifiers, with controls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from pruning import ENCODER, prune_arm
from replication import Prepared

import headroles as hr
from headroles.data.corpus import Corpus
from headroles.models import loading
from headroles.pruning.comparison import compare_pruning
from headroles.pruning.rankings import ByRoles, Reverse
from headroles.training.hf_trainer import TrainOptions

SIZES, CONTROLS = (18, 12), (12,)  # heads left


def sst2(part: Literal["gates", "controls"], models: Path, data: Path, study: Path, seed: int) -> None:
    """Prune the classifier of a seed, by the plan `PREREGISTERED-2026-11-24-sst2.md`.

    MODELS has `S-SEED`, of `headroles train`. DATA is the folder of SST-2; its dev sentences with Stanza's trees are
    STUDY/dev.conllu, of `headroles parse`. Written into STUDY/S-SEED, where finished parts are kept, by PART:

    - `gates`: the tables of `prune`, and the effect of ablating every head on the loss.
    - `controls`: the tables of `compare_pruning`, 12 heads left: those nearest to a role, farthest from one, most
      important, least important, random, each retrained with one seed.
    """
    name = f"S-{seed}"
    {"gates": gates, "controls": controls}[part](models / name, corpora(data, study / "dev.conllu"), study / name, seed)


def corpora(folder: Path, trees: Path) -> Prepared:
    """SST-2; the sentences of dev have trees and labels."""
    train, dev, test = (hr.read(folder / f"{part}.tsv.gz") for part in ("train", "dev", "test_labeled"))
    pairs = zip(hr.read(trees), dev, strict=True)
    parsed = Corpus("dev", tuple(replace(tree, label=sentence.label) for tree, sentence in pairs))
    return Prepared(folder, train, dev, test, parsed)


def gates(model: Path, data: Prepared, study: Path, _seed: int) -> None:
    options = {"rate": 3e-5, "pairs": 12_000, "warmup": 50, "metric": "loss", "sampling": "shuffled_groups"}
    prune_arm(study, model, data, keep=SIZES, chosen=(), gate_seeds=2, **options)
    loaded, tokenizer = hr.load(model)
    hr.ablate(loading.place(loaded), tokenizer, data.test, metric="loss", precision=1.1, study=study)


def controls(model: Path, data: Prepared, study: Path, seed: int) -> None:
    loaded, tokenizer = hr.load(model)
    roles = ByRoles(hr.load_table(study / "heads.parquet"))
    compare_pruning(
        loading.place(loaded),
        tokenizer,
        data.train.sample(8000),
        data.test,
        strategies=["importance", roles, Reverse(roles), "random", "-importance"],
        keep=CONTROLS,
        seeds=[3 * seed],
        kinds=ENCODER,
        metric="loss",
        tune=TrainOptions(epochs=1, batch=32, rate=3e-5, warmup_steps=50),
        study=study / "controls",
    )
