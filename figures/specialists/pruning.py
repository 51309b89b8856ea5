"""Prune the encoder of a trained arm by gates of several seeds, with controls of equal size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import bilingual
import pandas as pd
from pooling import graded_roles
from replication import Prepared

from headroles.models import identity, loading
from headroles.papers.workflow import GATES
from headroles.pruning.comparison import compare_pruning
from headroles.pruning.learned_gates import L0
from headroles.pruning.rankings import ByRoles, FromColumn, Reverse
from headroles.pruning.selection import Strategy
from headroles.pruning.sparsity import sparsity_sweep
from headroles.scores import score
from headroles.tables import frame
from headroles.tables.frame import Kind
from headroles.tables.io import save_table
from headroles.tables.study import Study
from headroles.training.hf_trainer import TrainOptions

ENCODER: list[Kind] = ["enc-self"]
KEEP = (18, 12, 9, 6, 4, 3)  # of the 24 heads of three layers
CHOSEN = (12, 6)  # sizes of the primary outcome, and of the controls
SCORES = ("confidence", "position", "syntax", "rarity", "entropy", "sink", "distance", "importance")


def prune_arm(
    study: str | Path,
    model: str | Path,
    data: Prepared,
    *,
    keep: Sequence[int] = KEEP,
    chosen: Sequence[int] = CHOSEN,
    gate_seeds: int = 3,  # also of the controls that are not random
    random_draws: int = 5,
    rate: float = 3e-4,  # peak: 0.3 of that of the translator's training
    batch: int = 32,
    pairs: int = 48_000,  # of an epoch: 1,500 steps of 32
    warmup: int = 100,
    metric: str = "bleu",
    roles: bool = False,
    n_resamples: int = 1000,  # of the scores
    sampling: str = "group_by_length",  # examples of a step; with this one the committed studies were made
) -> pd.DataFrame:
    """Score the heads of a trained arm, prune its encoder by L0 gates, and retrain controls of equal size.

    Scores are computed before pruning, on the sentences of `data` with trees. Gates are learnt in one epoch with the
    decoder frozen, if the model has one: a classifier is pruned in the same way. Controls of equal size are removed
    from the trained model and retrained on the same pairs with the same rate and steps: the choice of each gate seed,
    and other strategies; none without `chosen` sizes. With `roles` the heads that are left are scored, too, on the same
    sentences. Finished parts are kept: the tables `heads` and `survival`, the folders `gates-SEED`, `l0-KEEP-SEED`,
    `controls` and `random`.

    Returns:
        One row per encoder head: `graded_roles`, importance, and for each number of heads `survival[KEEP]`, the share
        of gate seeds in which the head survives. Kept as `survival`.
    """
    folder = Study(study)
    loaded, tokenizer = bilingual.load(model)
    loaded = loading.place(loaded)
    learnt = data.train.sample(pairs)
    settings = identity.identity(loaded, tokenizer)
    recipe = frame.sign(
        weights=identity.weights_digest(loaded), configuration=settings, scored=data.parsed.hash, learnt=learnt.hash
    )
    table = folder.keep(
        "heads",
        recipe,
        lambda: score(loaded, tokenizer, data.parsed, SCORES, reference=data.train, n_resamples=n_resamples),
    )
    tune = TrainOptions(epochs=1, batch=batch, rate=rate, warmup_steps=warmup, train_sampling_strategy=sampling)
    gates = L0(rate=GATES, freeze="decoder" if loaded.config.is_encoder_decoder else "nothing")
    parts = loaded, tokenizer, learnt, data.test
    scored = {"corpus": data.parsed, "reference": data.train} if roles else None
    compare = partial(compare_pruning, *parts, kinds=ENCODER, metric=metric, tune=tune)
    columns: dict[str, list[pd.Series[float]]] = {}
    for seed in range(gate_seeds):
        place = Study(folder.folder / f"gates-{seed}")
        options = {"kinds": ENCODER, "metric": metric, "scored": scored, "tune": {**tune, "seed": seed}}
        sparsity_sweep(*parts, gates, keep=keep, study=place, **options)
        survival = place.load("survival-l0-enc-self")
        for count in keep:
            columns.setdefault(f"survival[{count}]", []).append(survival[f"survival[l0 {count} enc-self]"])
        for count in chosen:
            survivors = FromColumn(columns[f"survival[{count}]"][seed].rename("l0"))
            compare(strategies=[survivors], keep=[count], seeds=1, study=folder.folder / f"l0-{count}-{seed}")
    joined = _survival(table, columns, recipe)
    save_table(joined, folder.path("survival"))
    if chosen:
        by_roles = ByRoles(table)
        ranked: list[str | Strategy] = ["importance", "-importance", by_roles, Reverse(by_roles)]
        compare(strategies=ranked, keep=chosen, seeds=gate_seeds, study=folder.folder / "controls")
        compare(strategies=["random"], keep=chosen, seeds=random_draws, study=folder.folder / "random")
    return joined


def _survival(heads: pd.DataFrame, columns: dict[str, list[pd.Series[float]]], recipe: str) -> pd.DataFrame:
    """Join the roles of encoder heads, their importance, and the share of gate seeds in which each survives."""
    encoder = heads.loc[ENCODER]
    encoder.attrs = heads.attrs
    shares = {name: pd.concat(seeds, axis=1).mean(axis=1).loc[ENCODER] for name, seeds in columns.items()}
    survivals = frame.table(shares, frame.rows(encoder), recipe)
    return frame.join(graded_roles(encoder), frame.only(encoder, ["importance"]), survivals)
