"""A small classifier that has learnt a little, to prune."""

from __future__ import annotations

from functools import cache

import pandas as pd
import pytest
import torch
from helpers.trainings import films, tokenizer, untrained

from headroles.models.heads import attention_sites
from headroles.pruning.rankings import RankingContext


@cache
def learnt():
    """A classifier of films with two layers of four heads that has learnt a little."""
    model = untrained(num_hidden_layers=2)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.3)
    return model


def wide():
    """Six values with intervals, a name as long as a line."""
    columns = {f"held_out metric {n}{end}": [n + 0.125, -n] for n in range(6) for end in ("", ".low", ".high")}
    return pd.DataFrame(columns, index=pd.Index(["a", "b" * 80], name="choice"))


def setting(seed=0, kinds=None, size=24):
    return RankingContext(learnt(), tokenizer(), films(size), attention_sites(learnt()).of_kinds(kinds), seed)


def grid(layers, per_layer, *kinds):
    return [(kind, layer, head) for kind in kinds for layer in range(layers) for head in range(per_layer)]


def training_in(study):
    """Return the folder of the only training of `prune` that a study has."""
    (folder,) = (study / ".pruning").iterdir()
    return folder


def no_training(monkeypatch):
    monkeypatch.setattr("headroles.training.trainer.fit", lambda *_, **__: pytest.fail("trained again"))
