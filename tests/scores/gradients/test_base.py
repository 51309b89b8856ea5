"""Gradient scores: what all of them promise, steps and groups."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from helpers import zoo
from helpers.close import bound
from helpers.explaining import FEW, asked, finished, measured, scored, sums
from helpers.letters import DETERMINISTIC, batches_of, corpus, plain, same, tokens_of, total
from helpers.relevance import close, relevance
from helpers.traces import _traces
from hypothesis import given
from hypothesis import strategies as st

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.models import heads as families
from headroles.models.head_model import HeadModel
from headroles.scores.gradients.base import GradientScore, HeadGradients, head_gradients
from headroles.scores.objectives import Loss, Reference, Top
from headroles.scores.registry import list_scores
from headroles.tables import frame

NAMES = ["marian", "bert", "gpt2"]
CONFORMING = [
    hr.Relevance(rules="cp"),  # of rules what is added up depends on two things alone: where it starts, and its sign
    *(hr.Relevance(rules="voita", by=by) for by in ("layer", "logit")),
    hr.Relevance(rules="attn", by="logit"),
    *(hr.Importance(per=per) for per in ("example", "token", "batch")),
    hr.Importance(norm="layer"),
    hr.Attribution(),
    *(hr.AttributionPatching(drop=drop) for drop in (False, True)),
    hr.Direct(),
]


def winning():
    """A new score, in fifteen lines."""

    @dataclass(frozen=True)
    class Winning(GradientScore):
        """Share of the steps at which more flows back to a head than to any other of its layer."""

        def head_gradients(self, model, target, batch):
            return head_gradients(model, target, batch, by_token=self.chosen(model).by_token)

        def update(self, head_gradients):
            first = F.one_hot(head_gradients.gradients.abs().argmax(-1), head_gradients.gradients.shape[-1])
            return {"won": (first * head_gradients.counted[..., None]).sum(1)}

        def compute(self, sums):
            return {"winning": sums["won"] / sums["steps"]}

    return Winning


# --- the suite, on random gradients ----------------------------------------------------------------------------------


@st.composite
def felt(draw):
    """Slopes of one site; some steps do not count and give nothing back, some that count give nothing either."""
    shape = draw(st.tuples(*(st.integers(1, most) for most in (4, 5, 4))))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counted = rng.random(shape[:2]) < 0.7
    flows = counted & (rng.random(shape[:2]) < 0.8)
    gradients = (
        flows[..., None] * (rng.random(shape) < 0.9) * rng.normal(size=shape) * np.exp(2 * rng.normal(size=shape))
    )
    values = counted * rng.normal(size=shape[:2])
    parts = gradients.astype(np.float32), values.astype(np.float32), counted  # as models have them
    return HeadGradients("enc-self", *(torch.from_numpy(part) for part in parts))


def parts_of(head_gradients):
    return head_gradients.gradients, head_gradients.values, head_gradients.counted


def some(head_gradients, rows):
    """The gradients of some examples."""
    return HeadGradients(head_gradients.kind, *(each[rows] for each in parts_of(head_gradients)))


def split(score, head_gradients):
    """The sums of a batch are those of its parts; but per batch, as Michel et al.'s code does."""
    if getattr(score, "per", None) == "batch":
        return
    rows = range(len(head_gradients.counted))
    parts = [sums(score, some(head_gradients, [row])) for row in rows]
    same(sums(score, head_gradients), {name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def order(score, head_gradients):
    backwards = list(range(len(head_gradients.counted)))[::-1]
    expected = {name: each.flip(0) for name, each in sums(score, head_gradients).items()}
    same(sums(score, some(head_gradients, backwards)), expected)


def uncounted(score, head_gradients):
    """Steps that do not count, such as those of padding, change nothing."""
    wider = [F.pad(each, (0, 0) * (each.ndim - 2) + (0, 3)) for each in parts_of(head_gradients)]
    same(sums(score, head_gradients), sums(score, HeadGradients(head_gradients.kind, *wider)))


def leading_dimensions(score, head_gradients):
    """Resamples are finished together as each by itself."""
    weights = torch.from_numpy(np.random.default_rng(0).poisson(1.0, (2, 3, len(head_gradients.counted)))).double()
    heads_per_batch = score.compute(total(sums(score, head_gradients), weights))
    for i in np.ndindex(2, 3):
        alone = score.compute(total(sums(score, head_gradients), weights[i]))
        same({name: values[i] for name, values in heads_per_batch.items()}, alone)
    assert all(values.shape == (2, 3, head_gradients.gradients.shape[-1]) for values in heads_per_batch.values())


def purity(score, head_gradients):
    """What flowed back is not changed, and read again is the same."""
    before = [each.clone() for each in parts_of(head_gradients)]
    same(sums(score, head_gradients), sums(score, head_gradients))
    assert all(torch.equal(one, other) for one, other in zip(before, parts_of(head_gradients), strict=True))


def columns(score, head_gradients):
    """Columns begin with the score's label, are the same whatever flows back, and are float64."""
    found = finished(score, head_gradients)
    assert list(found) == list(finished(score, some(head_gradients, [0])))
    assert all(re.fullmatch(rf"{re.escape(score.label)}(\.\w+)?", name) for name in found)
    assert not any(name.endswith((".low", ".high")) for name in found)
    assert {values.dtype for values in found.values()} == {torch.float64}


def sizes(score, head_gradients):
    """A signed column is at most its size; by layer the sizes of the heads sum to the share of steps that flow."""
    found = finished(score, head_gradients)
    size = found.get(f"{score.label}.size")
    if size is None or not head_gradients.counted.any():
        return
    assert (found[score.label].abs() <= size * (1 + 1e-9) + 1e-12).all()
    if getattr(score, "by", None) == "layer":
        flows = head_gradients.gradients.any(-1).sum() / head_gradients.counted.sum()
        torch.testing.assert_close(size.sum(), flows.double())


def nothing_only_where_nothing_was(score, head_gradients):
    """NaN stands where no step counts, for all heads alike, and is nowhere else; nothing is infinite."""
    for name, values in finished(score, head_gradients).items():
        assert not values.isinf().any(), name
        assert not values.isnan().any() or not head_gradients.counted.any(), name
    never = score.compute({name: 0 * values for name, values in total(sums(score, head_gradients)).items()})
    assert all(values.isnan().all() for values in never.values())


SUITE = (split, order, uncounted, leading_dimensions, purity, columns, sizes, nothing_only_where_nothing_was)


def conform(score):
    """Run the suite on a score, for many random gradients."""

    @DETERMINISTIC
    @given(felt())
    def run(head_gradients):
        for check in SUITE:
            check(score, head_gradients)

    run()


@pytest.mark.parametrize("score", CONFORMING, ids=repr)
def test_every_score_of_gradients_conforms(score):
    conform(score)


@pytest.mark.usefixtures("forgotten")
def test_a_new_score_is_one_like_any_other():
    new = winning()
    conform(new())
    assert list_scores()["winning"] is new
    table = hr.score(zoo.tiny("marian"), tokens_of("marian"), corpus(8), ["winning", "importance"], n_resamples=20)
    assert list(table) == [f"{name}{end}" for name in ("winning", "importance") for end in ("", ".low", ".high")]
    np.testing.assert_allclose(table["winning"].groupby(level=["kind", "layer"]).sum(), 1)
    assert "objective:Top()" in frame.provenance(table, "winning").split("|")


@pytest.mark.usefixtures("forgotten")
def test_a_score_of_some_kinds_is_of_their_heads_alone():
    new = dataclass(frozen=True)(type("Winning", (winning(),), {"kinds": ("cross",)}))
    table = hr.score(zoo.tiny("marian"), tokens_of("marian"), corpus(8), new(), n_resamples=0)
    there = table["winning"].dropna().index
    assert set(there.get_level_values("kind")) == {"cross"}
    assert len(there) == len(table.loc["cross"])


# --- passes over a corpus -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_table_is_the_same_for_every_max_tokens_and_order(name):
    sentences = list(corpus(FEW))
    random.Random(0).shuffle(sentences)
    other = measured(name, asked(), Corpus("letters", tuple(sentences)), max_tokens=20)
    pd.testing.assert_frame_equal(other, plain(scored(name)), rtol=0, atol=bound(1))
    assert scored(name).notna().all(axis=None)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "training"), [("marian", True), ("gpt2", False)])
def test_the_model_is_left_as_it_was(name, training):
    model = zoo.tiny(name).train(training)
    next(model.base_model.children()).train(not training)  # each part has a mode of its own
    next(model.parameters()).requires_grad_(False)
    before = _traces(model)
    given = [*asked(), hr.Attribution(method="FeatureAblation")]
    found = hr.score(model, tokens_of(name), corpus(FEW), given, n_resamples=0)
    assert _traces(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())
    pd.testing.assert_frame_equal(found[list(plain(scored(name)))], plain(scored(name)), rtol=0, atol=bound(1))
    _outputs(model, math.nan)
    with pytest.raises(ValueError, match="is not finite"):
        hr.score(model, tokens_of(name), corpus(FEW), given)
    assert _traces(model) == before


def _outputs(model, value):
    """The same number everywhere in the output projections of the heads."""
    for site in families.attention_sites(model):
        site.out.weight.data.fill_(value)


# --- what cannot be measured ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", ["score", "ablate"])
def test_gradients_within_inference_mode_are_those_outside(measure):
    def measured(model):
        if measure == "score":
            return hr.score(model, tokens_of("marian"), corpus(6), ["importance"], n_resamples=0)
        return hr.ablate(model, tokens_of("marian"), corpus(40), precision=1.1)

    model = zoo.tiny("marian")
    expected = measured(model)
    with torch.inference_mode():
        pd.testing.assert_frame_equal(measured(model), expected, rtol=0, atol=0)


def first_batch(name, size=4):
    model = zoo.tiny(name)
    return model, batches_of(model, tokens_of(name), corpus()[:size])[0]


@pytest.mark.slow
@pytest.mark.parametrize(  # every two of them together once
    ("name", "rules", "objective"),
    [
        (name, rules, (Top(), Reference(), Loss())[(row + column) % 3])
        for row, name in enumerate(("marian", "gpt2", "bert"))
        for column, rules in enumerate(("cp", "attn", "gradient"))
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_steps_add_up(name, rules, objective):
    model, batch = first_batch(name)
    fitted = objective.fit(HeadModel(model), [batch])
    every = head_gradients(HeadModel(model), fitted, batch, rules=rules)
    assert every.gradients.shape == (*every.counted.shape, len(families.head_index(model)))
    assert not every.gradients[~every.counted].any()
    assert not every.values[~every.counted].any()
    at_once = head_gradients(HeadModel(model), fitted, batch, rules=rules, steps="sum")
    close(every.gradients.sum(1), at_once.gradients[:, 0], 1e-5)
    close(every.values.sum(1), at_once.values[:, 0], 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rules"), [("marian", "cp"), ("marian", "voita"), ("gpt2", "attn"), ("gpt2", "gradient")]
)
def test_steps_by_themselves_however_they_are_asked_for(name, rules):
    model, batch = first_batch(name, 2)
    fitted = Top().fit(HeadModel(model), [batch])
    every = head_gradients(HeadModel(model), fitted, batch, rules=rules)
    for options in ({"chunk": 1}, {"chunk": 3}, {"by_token": False}, {"by_token": False, "chunk": 1}):
        close(head_gradients(HeadModel(model), fitted, batch, rules=rules, **options).gradients, every.gradients, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rules"), [("marian", "voita"), ("gpt2", "cp")])
def test_each_step_is_what_the_model_says_of_that_token(name, rules):
    model, batch = first_batch(name)
    every = head_gradients(HeadModel(model), Reference().fit(HeadModel(model), [batch]), batch, rules=rules)
    labels = batch.labels if name == "marian" else batch.source.ids.roll(-1, 1)
    for step in (0, 1, 2):

        def chosen(output, step):
            return output.logits[:, step].gather(-1, labels[:, step, None]).squeeze(-1)

        assert every.counted[:, step].all()
        close(every.gradients[:, step], relevance(model, batch.inputs, rules, step=step, number=chosen), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("score", [hr.Relevance(), "importance", hr.Attribution(method="FeatureAblation")], ids=str)
def test_a_sentence_of_one_token_changes_nothing(score):
    """It has no step: nothing comes next."""
    mixed = Corpus("mixed", (Sentence("a"), Sentence("b"), *corpus(3)))
    found, expected = (measured("gpt2", score, given) for given in (mixed, corpus(3)))
    pd.testing.assert_frame_equal(found, expected, rtol=0, atol=bound(1))
