"""Importance is that of plain loops over losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import zoo
from helpers.close import bound
from helpers.explaining import FEW, finished, measured, scored
from helpers.letters import corpus, tokens_of
from helpers.objectives import alone

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.models import heads as families
from headroles.scores.gradients.base import HeadGradients

NAMES = ["marian", "bert", "gpt2"]


# --- importance -----------------------------------------------------------------------------------------------------


def by_hand(name, split, given=None):
    """The mean of |d / d gate| of the parts that `split` makes of the losses of a sentence: [heads]."""
    model, found = zoo.tiny(name), []
    for sentence in given or corpus(FEW):
        gate = torch.ones(len(families.head_index(model)), requires_grad=True)
        with hr.mask_heads(model, gate):
            parts = split(F.cross_entropy(*alone(model, name, sentence), reduction="none"))
        found += [torch.autograd.grad(part, gate, retain_graph=True)[0].abs() for part in parts]
    return torch.stack(found).mean(0).numpy()


@pytest.mark.parametrize(
    ("name", "per", "split"),
    [(name, "example", lambda losses: [losses.mean()]) for name in (*NAMES, "llama-grouped")]
    + [("marian", "token", list), ("gpt2", "token", list)],
)
def test_importance_is_that_of_a_plain_loop(name, per, split):
    table = measured(name, hr.Importance(per=per), corpus(FEW))
    np.testing.assert_allclose(table["importance"], by_hand(name, split), rtol=1e-4, atol=1e-6)


def test_importance_of_sentences_of_one_word_is_that_of_a_plain_loop():
    table = measured("bert", "importance", SHORT)
    np.testing.assert_allclose(table["importance"], by_hand("bert", list, SHORT), rtol=1e-4, atol=1e-6)


def test_importance_per_batch_is_of_the_mean_loss_and_has_no_interval():
    table = measured("marian", hr.Importance(per="batch"), corpus(FEW), n_resamples=20)
    assert list(table) == ["importance"]
    model = zoo.tiny("marian")
    gate = torch.ones(len(table), requires_grad=True)
    with hr.mask_heads(model, gate):
        mean = torch.stack([F.cross_entropy(*alone(model, "marian", one)) for one in corpus(FEW)]).mean()
    np.testing.assert_allclose(table["importance"], torch.autograd.grad(mean, gate)[0].abs(), rtol=1e-4, atol=1e-6)


def test_importance_per_batch_is_kept_by_its_batches(tmp_path):
    """Of the same study, but other batches: the numbers differ, and the first were given again."""
    model, tokenizer, given = zoo.tiny("bert"), tokens_of("bert"), corpus(FEW)
    one = hr.Importance(per="batch")
    kept = [
        hr.score(model, tokenizer, given, [one], max_tokens=size, n_resamples=0, study=tmp_path) for size in (4096, 1)
    ]
    assert not np.allclose(*(table["importance"] for table in kept))
    assert [
        f"|max_tokens:{size}|" in f"{hr.provenance(table, 'importance')}|"
        for size, table in zip((4096, 1), kept, strict=True)
    ] == [True, True]


def test_a_layer_without_any_importance_has_none_by_layer():
    nothing = HeadGradients("enc-self", torch.zeros(2, 3, 4), torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool))
    assert finished(hr.Importance(norm="layer"), nothing)["importance[layer]"].tolist() == [0, 0, 0, 0]


def test_importance_by_layer_has_length_one_in_each():
    table = measured("marian", hr.Importance(norm="layer"))
    np.testing.assert_allclose((table["importance[layer]"] ** 2).groupby(level=["kind", "layer"]).sum(), 1)
    bare = scored("marian")["importance"]
    lengths = (bare**2).groupby(level=["kind", "layer"]).transform("sum") ** 0.5
    np.testing.assert_allclose(table["importance[layer]"], bare / lengths, rtol=0, atol=bound(1))


# --- what cannot be measured ----------------------------------------------------------------------------------------

SHORT = Corpus("short", (Sentence("a"), Sentence("b")))  # of one token each: nothing comes next
