"""Prune three MiniLM classifiers, with controls: `python tests/benchmarks/sst2.py PART MODELS DATA STUDY SEED`.

The plan is `figures/specialists/PREREGISTERED-2026-11-24-sst2.md`. MODELS has `S-SEED`, of `headroles train`. DATA is
the folder of SST-2; its dev sentences with Stanza's trees are STUDY/dev.conllu, of `headroles parse`. Written into
STUDY/S-SEED, where finished parts are kept, by PART:

- `gates`: the tables of `prune_arm`, and the effect of ablating every head on the loss.
- `controls`: the tables of `compare_pruning`, 12 heads left: those nearest to a role, farthest from one, most
  important, least important, random, each retrained with one seed.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import headroles as hr
from headroles.data.corpus import Corpus
from headroles.models import loading
from headroles.papers.preparation import Prepared
from headroles.pruning.comparison import compare_pruning
from headroles.pruning.rankings import ByRoles, Reverse
from headroles.specialists.pruning import ENCODER, prune_arm
from headroles.training.hf_trainer import TrainOptions

SIZES, CONTROLS = (18, 12), (12,)  # heads left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["gates", "controls"])
    parser.add_argument("models", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("study", type=Path)
    parser.add_argument("seed", type=int)
    given = parser.parse_args()
    name = f"S-{given.seed}"
    data = corpora(given.data, given.study / "dev.conllu")
    {"gates": gates, "controls": controls}[given.part](given.models / name, data, given.study / name, given.seed)


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


if __name__ == "__main__":
    main()
