"""What ablation refuses before work is done: the type of the error, its subject and the given value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.ablations import measured, terse
from helpers.letters import corpus, linked, tokens_of, writing
from helpers.objectives import classifier, labelled

import headroles as hr
from headroles.ablation.curves import ablation_curve, orders
from headroles.ablation.metrics import Loss, as_metric
from headroles.ablation.significance import best
from headroles.ablation.sweep import Sweep
from headroles.models.head_model import HeadModel
from headroles.patterns import Alignment, Dependency, Diagonal, Offset, Previous
from headroles.tables import frame


def one_sided():
    """Trees of the sources alone."""
    return hr.Corpus("letters", tuple(replace(one, target=hr.Sentence(one.target.text)) for one in corpus(3)))


ONE, TWO = ("dec-self", 0, 0), ("dec-self", 0, 1)
ABSENT = ("cross", 0, 0)
NAMES = r"loss, perplexity, agreement, accuracy, .* top, reference, class, similarity"


def given(name="gpt2", text=None):
    return writing(name) if name == "marian" else zoo.tiny(name), tokens_of(name), text or corpus(3)


def pairs(size):
    rows = (hr.Sentence("a b", label=("good", "bad")[place % 2]) for place in range(size))
    return hr.Corpus("pairs", tuple(rows))


def ablate(*what, **options):
    return lambda: hr.ablate(*(what or given()), n_resamples=0, **options)


def evaluate(metric, *what):
    return lambda: hr.evaluate(*(what or given()), [metric], n_resamples=0)


def curve(order, **options):
    return lambda: ablation_curve(*given(), {"mine": order}, **options)


def roles(assigned, **options):
    return lambda: hr.test_roles(*given(), assigned, n_resamples=10, **options)


def shapley(**options):
    return lambda: hr.shapley_values(*given(), n_resamples=0, **options)


def score_table():
    index = frame.index({("enc-self", 0): 2})
    return frame.table({"confidence": [0.1, 0.2], "entropy": [1.0, 2.0]}, index, "model:m")


def spoilt():
    model = zoo.tiny("gpt2")
    model.transformer.h[1].mlp.c_proj.bias.data[0] = torch.nan
    return model, *given()[1:]


REFUSED = {
    # names
    "metric": (ablate(metric="nonsense"), f"metric must be one of {NAMES}, got 'nonsense'"),
    "metric in a study": (lambda: hr.ablate(*given(), metric="x", study="unmade"), f"one of {NAMES}.*got 'x'"),
    "metric of a curve": (curve([ONE], metric="nonsense"), f"metric must be one of {NAMES}, got 'nonsense'"),
    "several metrics": (lambda: as_metric(["loss", "agreement"]), r"got \['loss', 'agreement'\]"),
    "repeated metric": (lambda: hr.evaluate(*given(), ["loss"] * 2), "metrics must differ, got loss, loss"),
    "tokenisation": (evaluate("bleu-jp"), "tokenize must be one of none, zh, 13a.*got 'jp'"),
    "unit": (ablate(unit="all"), "unit must be one of head, all_but_one, group, layer, kind, got 'all'"),
    "replacement": (ablate(replacement="all"), "replacement must be one of zero, mean, resample, .*got 'all'"),
    "column to order by": (lambda: orders(score_table(), ["-confidences"]),
        "column to order heads by must be one of confidence, entropy, got 'confidences'; try 'con"),
    "kind to order": (lambda: orders(score_table(), [], kind="cross"), "kind must be one of enc-self, got 'cross'"),
    # numbers
    "precision": (ablate(precision=0.9), "precision must be a number >= 1, got 0.9"),
    "resamples": (lambda: hr.ablate(*given(), n_resamples=2.5), "n_resamples must be an integer.*got 2.5"),
    "tokens": (ablate(max_tokens=0), "max_tokens must be an integer >= 1, got 0"),
    "steps": (curve([ONE, TWO], steps=0), "steps must be an integer >= 1, got 0"),
    "permutations": (shapley(n_permutations=0), "n_permutations must be .*got 0"),
    "truncation": (shapley(truncation=1.0), "truncation must be .*got 1.0"),
    # heads
    "head of a set": (ablate(sets={"x": [ONE, ABSENT]}), r"no head cross L0H0 in GPT2LMHeadModel"),
    "head of a sweep": (lambda: Sweep(HeadModel(*given()[:2]), corpus(3), Loss()).run([frozenset([ABSENT])]),
        r"no head cross L0H0"),
    "head of an order": (curve([ONE, ABSENT]), r"no head cross L0H0"),
    "order twice": (curve([ONE, TWO, ONE]), "order 'mine' must have each head once, got 3, 2 different"),
    "empty order": (curve([]), "order 'mine' must have each head once, got 0"),
    "no set": (ablate(sets={}), "sets must be one or more, with unit='head', got 0 and 'head'"),
    "sets with a unit": (ablate(sets={"x": [ONE]}, unit="layer"), "with unit='head', got 1 and 'layer'"),
    "unknown player": (shapley(heads=[ONE, ABSENT]), r"no head cross L0H0"),
    # patterns
    "heads without a pattern": (ablate(replacement={ONE: Previous()}), "pattern for each masked .*dec-self:0:1.*sets="),
    "word of one head": (ablate(replacement={ONE: Previous(), TWO: "mean"}), "must be a pattern .*got 'mean'"),
    "trees": (ablate(*given(text=corpus(3, trees=False)), replacement=Dependency("obj")), "needs dependency trees"),
    "decoder that writes": (
        ablate(terse(), *given("marian")[1:], metric="bleu", sets={"x": [ONE]}, replacement=Previous()),
        r"Previous\(\) needs all tokens in one forward: got bleu",
    ),
    "no role": (roles({}), "heads must have a role with a pattern, got none"),
    "head without a role": (roles({ONE: Previous()}, heads="L1H0"), "must have a role .*got dec-self:1:0"),
    "role ahead": (roles({ONE: [Previous(), Offset(1)]}), r"offset must be 0 or below .*, got Offset\(offset=1\)"),
    "role of trees": (lambda: hr.test_roles(*given(text=corpus(3, trees=False)), {ONE: Dependency("nsubj")}),
        "needs dependency trees for dec-self heads, got none in corpus 'letters'"),
    "role of trees of the other side": (
        lambda: hr.test_roles(*given("marian", one_sided()), {("dec-self", 0, 0): Dependency("nsubj")}),
        "needs dependency trees for dec-self heads, got none in corpus 'letters'"),
    "role of links of a pair": (
        lambda: hr.test_roles(*given("marian", linked()), {("dec-self", 0, 0): Alignment()}),
        r"Alignment\(\) needs word links for dec-self heads, got none in corpus 'linked'"),
    "role of cross heads": (roles({ONE: Diagonal()}), r"pattern Diagonal\(\) is for cross heads"),
    # models and corpora
    "translator": (evaluate("bleu", classifier(), tokens_of("bert"), labelled()), "'bleu' needs a translation model"),
    "references": (evaluate("chrf", *given("marian", corpus(3, translated=False))), "'chrf' needs references"),
    "classes": (evaluate("accuracy", *given("marian")), "'accuracy' is for classifiers; MarianMTModel"),
    "labels": (evaluate("f1", classifier(), tokens_of("bert"), corpus(3)), "corpus 'letters' has no labels"),
    "pairs": (evaluate("pair_accuracy"), "'pair_accuracy' needs minimal pairs: got corpus 'letters'"),
    "odd pairs": (evaluate("pair_accuracy", *given(text=pairs(3))), "good of 3 sentences"),
    "likelihood": (evaluate("pair_accuracy", *given("bert", pairs(2))), "likelihood of sentences: got BertForMasked"),
    "translated pairs": (evaluate("pair_accuracy", *given("marian", pairs(2))), "pairs without a target"),
    "gradient": (ablate(metric="perplexity", precision=1.1), "precision must be 1 for perplexity of GPT2.*got 1.1"),
    "gradient of text": (ablate(*given("marian"), metric="bleu", precision=1.1), "must be 1 for bleu of MarianMT"),
    "gradient of a comparison": (ablate(*given(text=pairs(2)), metric="pair_accuracy", precision=1.1),
        "precision must be 1 for pair_accuracy of GPT2LMHeadModel"),
    "gradient of states": (
        ablate(zoo.tiny("bert").bert, tokens_of("bert"), corpus(3), metric="agreement", precision=1.1),
        "precision must be 1 for agreement of BertModel",
    ),
    "one example": (ablate(*given(text=corpus(1)), replacement="resample"),
        "'resample' needs two or more examples, got 1;"),
    "weights": (ablate(*spoilt()),
        r"loss of the intact model is not finite on sentence 1, 2, 3 .*1 of 32 in transformer.h.1.mlp.c_proj.bias"),
    "halves": (lambda: best(measured(np.ones(1), np.ones((2, 1))), score_table().index, halves=True),
        "too few examples for two halves: got 1"),
    "no score map": (lambda: hr.plots.score_map(pd.DataFrame({"first": ["a"]})), "not a table of hr.analysis.score"),
    "no curves": (lambda: hr.plots.curves(pd.DataFrame({"order": ["a"]})), "not a table of hr.ablation_curve: got"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_ablation_refusals(what, monkeypatch):
    call, said = REFUSED[what]
    if what not in ("weights", "one example"):  # found while the intact model, or the partners, are run
        monkeypatch.setattr(Sweep, "_measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(ValueError, match=said):
        call()
