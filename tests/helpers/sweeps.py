"""Effects by sweeps, and the traces that a run may leave."""

from __future__ import annotations

import numpy as np
import torch
from helpers import zoo
from helpers.ablations import ALL, given, translated
from helpers.letters import corpus, tokens_of, writing
from helpers.objectives import alone, classifier, labelled
from helpers.traces import _traces

from headroles.ablation.effects import ablate
from headroles.ablation.metrics import Loss
from headroles.ablation.significance import effects
from headroles.ablation.sweep import Sweep
from headroles.models import heads as families
from headroles.models.head_model import HeadModel


def ablated(name, **options):
    return ablate(*given(name), **{"n_resamples": 0, "max_tokens": ALL} | options)


def swept(model, tokenizer, text, sets=None, metric=None, **options):
    """The effect of each set of heads, by default of each head, by a sweep: [set]."""
    runs = Sweep(HeadModel.of(model, tokenizer), text, metric or Loss(), **options)
    return effects(runs.run(sets or singles(model)), n_resamples=0).columns[""]


def traces(model):
    """What every module holds, by name: an instance's own `forward` would be among it."""
    return [set(vars(module)) for module in model.modules()], _traces(model)


def inputs_of(name, one="loss"):
    """A model, its tokenizer and a corpus that has the metric."""
    if name == "classifier":
        return classifier(), tokens_of("bert"), labelled()
    return (writing(name), tokens_of(name), translated()) if one == "bleu" else (zoo.tiny(name), tokens_of(name), TEXT)


TEXT = corpus(6)


def by_token(model, name, formula):
    """A formula of every token of the corpus, sentence by sentence."""
    return torch.cat([formula(*alone(model, name, sentence)) for sentence in TEXT]).detach().double()


def singles(model):
    return [frozenset([head]) for head in families.head_index(model)]


def equal(one, other):
    assert one.numbers == other.numbers
    assert list(one.masked) == list(other.masked)
    np.testing.assert_array_equal(one.intact, other.intact)
    for key, values in one.masked.items():
        np.testing.assert_array_equal(values, other.masked[key])
    assert (one.signature, one.too_long) == (other.signature, other.too_long)
