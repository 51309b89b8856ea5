"""Every score of gradients goes through one suite, and equals plain loops of autograd and of closed heads."""

from __future__ import annotations

import gc
import logging
import math
import random
import re
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from helpers import zoo
from helpers.close import MANY, bound, close
from helpers.letters import DETERMINISTIC, corpus, plain, same, tokens_of, total, writing
from helpers.messages import whole
from helpers.traces import _traces
from hypothesis import given
from hypothesis import strategies as st

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.models import batching, masking
from headroles.models import heads as families
from headroles.models.head_model import HeadModel
from headroles.scores.gradients.base import GradientScore, HeadGradients, head_gradients, shares
from headroles.scores.gradients.captum import methods
from headroles.scores.objectives import held, objective
from headroles.scores.registry import list_scores
from headroles.tables import frame

NAMES = ["marian", "bert", "gpt2"]
RULES = ["cp", "attn", "voita", "gradient"]
CONFORMING = [
    hr.Relevance(rules="cp"),  # of rules what is added up depends on two things alone: where it starts, and its sign
    *(hr.Relevance(rules="voita", by=by) for by in ("layer", "logit", "sum")),
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


@pytest.fixture
def forgotten():
    """A class of scores is known as long as it lives; one made in a test must not be known in the next."""
    before = list(list_scores())
    yield
    gc.collect()
    assert list(list_scores()) == before


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


def some(head_gradients, rows):
    """The gradients of some examples."""
    return HeadGradients(
        head_gradients.kind,
        *(each[rows] for each in (head_gradients.gradients, head_gradients.values, head_gradients.counted)),
    )


def sums(score, head_gradients):
    """What a score adds up of a batch, sentence by sentence: {name: [batch, ...]}."""
    denominators, update = score.denominators(head_gradients), score.update(head_gradients)
    assert not set(denominators) & set(update)
    assert all(len(values) == len(head_gradients.counted) for values in (denominators | update).values())
    return {name: values.double() for name, values in (denominators | update).items()}


def finished(score, head_gradients):
    return score.compute(total(sums(score, head_gradients)))


def split(score, head_gradients):
    """The sums of a batch are those of its parts; but per batch, as Michel et al.'s code does."""
    if getattr(score, "per", None) == "batch":
        return
    rows = range(len(head_gradients.counted))
    parts = [sums(score, some(head_gradients, [row])) for row in rows]
    same(sums(score, head_gradients), {name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def order(score, head_gradients):
    backwards = list(range(len(head_gradients.counted)))[::-1]
    same(
        sums(score, some(head_gradients, backwards)),
        {name: each.flip(0) for name, each in sums(score, head_gradients).items()},
    )


def uncounted(score, head_gradients):
    """Steps that do not count, such as those of padding, change nothing."""
    wider = (
        F.pad(head_gradients.gradients, (0, 0, 0, 3)),
        F.pad(head_gradients.values, (0, 3)),
        F.pad(head_gradients.counted, (0, 3)),
    )
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
    before = [each.clone() for each in (head_gradients.gradients, head_gradients.values, head_gradients.counted)]
    same(sums(score, head_gradients), sums(score, head_gradients))
    after = head_gradients.gradients, head_gradients.values, head_gradients.counted
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


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


def test_every_score_of_gradients_is_among_them():
    assert {type(score).name() for score in CONFORMING} == {
        name for name, cls in list_scores().items() if issubclass(cls, GradientScore)
    }


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


FEW = 5  # sentences


def asked():
    """Relevance by every rule set, and importance."""
    return [*(hr.Relevance(rules=rules, steps="sum" if rules == "voita" else "all") for rules in RULES), "importance"]


def measured(name, scores, given=None, **options):
    """The scores of a model of the zoo on a few sentences, by default without resamples."""
    options = {"n_resamples": 0} | options
    return hr.score(zoo.tiny(name), tokens_of(name), given or corpus(FEW), scores, **options)


@cache
def scored(name):
    return measured(name, asked(), n_resamples=20)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_table_is_the_same_for_every_max_tokens_and_order(name):
    sentences = list(corpus(FEW))
    random.Random(0).shuffle(sentences)
    other = measured(name, asked(), Corpus("letters", tuple(sentences)), max_tokens=20)
    pd.testing.assert_frame_equal(other, plain(scored(name)), rtol=0, atol=bound(1))
    assert scored(name).notna().all(axis=None)


@pytest.mark.slow
def test_of_its_own_output_it_is_the_same_too():
    model, given = writing("marian"), corpus(4, translated=False)
    asked = ["relevance", "importance", hr.Attribution(method="FeatureAblation")]
    small, large = (
        hr.score(model, tokens_of("marian"), given, asked, n_resamples=0, max_tokens=max_tokens)
        for max_tokens in (20, 4096)
    )
    pd.testing.assert_frame_equal(small, large, rtol=0, atol=bound(1))
    assert "decoder:greedy" in frame.provenance(large, "importance").split("|")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["IntegratedGradients", "FeatureAblation"])
def test_attributions_are_the_same_for_every_max_tokens(method):
    small, large = (attributed("bert", corpus(4), method, max_tokens=max_tokens) for max_tokens in (20, 4096))
    np.testing.assert_allclose(small, large, rtol=0, atol=bound(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_the_sentences_that_steps_are_drawn_of_are_known_by_their_numbers(name):
    drawn = hr.Relevance(steps=2)
    one, again, small = (measured(name, drawn, max_tokens=max_tokens) for max_tokens in (4096, 4096, 20))
    pd.testing.assert_frame_equal(one, again, rtol=0, atol=0)
    pd.testing.assert_frame_equal(one, small, rtol=0, atol=bound(1))
    every = plain(scored(name))[list(one)]  # by the rules cp too
    assert not np.allclose(one, every)
    most = measured(name, hr.Relevance(steps=100))
    pd.testing.assert_frame_equal(most, every, rtol=0, atol=bound(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "bert"])
def test_scores_of_attention_and_of_gradients_stand_side_by_side(name):
    heads_per_batch = measured(name, ["confidence", "relevance", "entropy", hr.Importance(per="token")], n_resamples=20)
    for one in ("confidence", "relevance", "entropy", hr.Importance(per="token")):
        alone = measured(name, one, n_resamples=20)
        pd.testing.assert_frame_equal(heads_per_batch[list(alone)], alone, rtol=0, atol=bound(1))
        assert all(frame.provenance(heads_per_batch, column) == frame.provenance(alone, column) for column in alone)
    assert len(heads_per_batch.columns) == 15


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rules"), [("marian", "cp"), ("llama-grouped", "attn"), ("marian", "gradient")])
def test_one_pass_for_the_sum_gives_the_sum_of_the_steps(name, rules):
    all_, sum_ = (measured(name, hr.Relevance(rules=rules, by="logit", steps=steps)) for steps in ("all", "sum"))
    column = f"relevance[{rules} logit]"
    np.testing.assert_allclose(sum_[column], all_[column], rtol=0, atol=bound(all_[column], operations=MANY))
    assert (sum_[f"{column}.size"] < all_[f"{column}.size"] + 1e-6).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps"), [("marian", "all"), ("marian", "sum"), ("gpt2", "all"), ("gpt2", 2), ("bert", "sum")]
)
def test_by_voita_the_heads_of_a_layer_take_no_more_than_there_is(name, steps):
    table = measured(name, hr.Relevance(rules="voita", by="logit", steps=steps))
    shares = table["relevance[voita logit]"]
    assert shares.min() > -1e-6
    assert shares.groupby(level=["kind", "layer"]).sum().max() < 1 + 1e-5


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_plain_shares_of_voita_sum_to_one(name):
    table = measured(name, hr.Relevance(rules="voita", by="sum", steps="sum"))
    np.testing.assert_allclose(table["relevance[voita]"].groupby(level=["kind", "layer"]).sum(), 1, atol=bound(1))
    np.testing.assert_allclose(table["relevance[voita]"], table["relevance[voita].size"], atol=bound(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "epsilon"), [("cp", 0.5), ("cp", 0.0), ("attn", 0.5), ("gradient", 0.0), ("voita", 0.0)]
)
def test_relevance_of_one_step_is_the_gradient_of_gates_under_rules(rules, epsilon):
    model, two = zoo.tiny("gpt2"), Corpus("two", (Sentence("a b"),))
    gate = torch.ones(1, len(families.head_index(model)), requires_grad=True)
    with hr.lrp_rules(model, rules, epsilon=epsilon), hr.mask_heads(model, gate):
        top = model(**tokens_of("gpt2")("a b", return_tensors="pt")).logits[0, 0].amax()
    whole_of_it = torch.autograd.grad(top, gate)[0][0] / top.detach()
    for steps in ("all", "sum"):
        found = measured("gpt2", hr.Relevance(rules, epsilon=epsilon, by="logit", steps=steps), two)
        close(found[f"relevance[{rules} logit]"], whole_of_it, operations=MANY)


def test_what_epsilon_takes_is_said_to_be_left_over():
    left = [
        float(
            dict(field.partition(":")[::2] for field in frame.provenance(found, list(found)[0]).split("|"))["residue"]
        )
        for found in (measured("gpt2", hr.Relevance(epsilon=epsilon)) for epsilon in (0.0, 0.5))
    ]
    assert abs(left[0]) < 1e-3 < abs(left[1])


def test_plain_shares_are_signed():
    found = HeadGradients(
        "enc-self", torch.tensor([[[3.0, -1.0]]]), torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool)
    )
    assert shares(found, signed=True).tolist() == [[[1.5, -0.5]]]
    assert shares(found, signed=False).tolist() == [[[0.75, -0.25]]]
    by_sum = hr.Relevance(rules="voita", by="sum").update(found)
    assert [by_sum[name].tolist() for name in ("signed", "size")] == [[[1.5, -0.5]], [[1.5, 0.5]]]


def test_steps_together_as_in_many_chunks():
    one, other = (measured("marian", hr.Relevance(chunk=chunk)) for chunk in (1, 50))
    pd.testing.assert_frame_equal(one, other, rtol=0, atol=bound(1))


@pytest.mark.parametrize("name", NAMES)
def test_the_signature_says_the_target_and_the_shares_of_relevance(name):
    fields = dict(field.partition(":")[::2] for field in frame.provenance(scored(name), "relevance[cp]").split("|"))
    assert fields["objective"] == "Top()"
    shares = [float(fields[part]) for part in ("inputs", "biases", "residue")]
    assert sum(shares) == pytest.approx(1, abs=2e-4)
    assert shares[2] == pytest.approx(0, abs=1e-3)  # by cp nothing is lost
    of_loss = frame.provenance(scored(name), "importance").split("|")
    assert "objective:Loss()" in of_loss
    assert not [field for field in of_loss if field.startswith(("inputs:", "residue:"))]


@pytest.mark.slow
def test_a_model_that_loses_relevance_by_rules_that_conserve_is_warned_of(caplog):
    model = zoo.tiny("bert")

    def level(score):
        caplog.clear()
        with caplog.at_level(logging.INFO, "headroles.scores.gradients.relevance"):
            hr.score(model, tokens_of("bert"), corpus(3), score, n_resamples=0)
        (record,) = caplog.records
        parts = ", ".join(rf"{part} (-?\d+\.\d) %" for part in ("inputs", "biases", "residue"))
        said = re.fullmatch(rf"{re.escape(score.label)} of the target: {parts}", record.message)
        assert sum(map(float, said.groups())) == pytest.approx(100, abs=0.2)
        return record.levelno

    assert level(hr.Relevance()) == logging.INFO
    model.bert.encoder.layer[1].output.dense.register_forward_hook(lambda *given: torch.sin(9 * given[-1]))
    for rules in ("cp", "cp-gate", "voita", "voita-exact"):
        assert level(hr.Relevance(rules=rules)) == logging.WARNING
    assert level(hr.Relevance(epsilon=0.1)) == level(hr.Relevance(rules="attn")) == logging.INFO


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


# --- importance -----------------------------------------------------------------------------------------------------


def losses(model, tokenizer, sentence):
    """The loss of each token of one sentence, by the plain definition: [step]."""
    ids = tokenizer(sentence.text, return_tensors="pt")["input_ids"]
    if model.config.is_encoder_decoder:
        labels = tokenizer(sentence.target.text, return_tensors="pt")["input_ids"]
        start = torch.tensor([[model.config.decoder_start_token_id]])
        logits = model(input_ids=ids, decoder_input_ids=torch.cat([start, labels[:, :-1]], 1)).logits
        return F.cross_entropy(logits[0], labels[0], reduction="none")
    logits = model(input_ids=ids).logits[0]
    if "MaskedLM" in type(model).__name__:
        words = ids[0] >= zoo.FIRST_WORD
        return F.cross_entropy(logits[words], ids[0, words], reduction="none")
    return F.cross_entropy(logits[:-1], ids[0, 1:], reduction="none")


def by_hand(name, split, given=None):
    """The mean of |d / d gate| of the parts that `split` makes of the losses of a sentence: [heads]."""
    model, found = zoo.tiny(name), []
    for sentence in given or corpus(FEW):
        gate = torch.ones(len(families.head_index(model)), requires_grad=True)
        with hr.mask_heads(model, gate):
            parts = split(losses(model, tokens_of(name), sentence))
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
        mean = torch.stack([losses(model, tokens_of("marian"), one).mean() for one in corpus(FEW)]).mean()
    np.testing.assert_allclose(table["importance"], torch.autograd.grad(mean, gate)[0].abs(), rtol=1e-4, atol=1e-6)


def test_a_layer_without_any_importance_has_none_by_layer():
    nothing = HeadGradients("enc-self", torch.zeros(2, 3, 4), torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool))
    assert finished(hr.Importance(norm="layer"), nothing)["importance"].tolist() == [0, 0, 0, 0]


def test_importance_by_layer_has_length_one_in_each():
    table = measured("marian", hr.Importance(norm="layer"))
    np.testing.assert_allclose((table["importance"] ** 2).groupby(level=["kind", "layer"]).sum(), 1)
    bare = scored("marian")["importance"]
    lengths = (bare**2).groupby(level=["kind", "layer"]).transform("sum") ** 0.5
    np.testing.assert_allclose(table["importance"], bare / lengths, rtol=0, atol=bound(1))


# --- attribution ----------------------------------------------------------------------------------------------------


def body(name):
    """A translator, or an encoder without its head, whose states are explained."""
    return zoo.tiny(name) if name == "marian" else zoo.tiny(name).base_model


def attributed(name, given, method, **options):
    """The signed column of an attribution, of the heads."""
    options = {"n_resamples": 0} | options
    return hr.attribute(body(name), tokens_of(name), given, method=method, **options)[f"attribution[{method}]"]


def effects(name, given, closings, replacement="zero", of=None):
    """The mean over sentences of what each closing of heads takes from what is explained of it."""
    model = body(name)
    encoded = batching.encode(given, tokens_of(name), model)
    groups = list(batching.batches(encoded, model))
    fitted = objective(of, HeadModel(model)).fit(HeadModel(model), groups)

    def explained(batch, gate):
        with torch.no_grad(), masking.mask_heads(model, gate, replacement=replacement):
            found = fitted.targets(model(**batch.inputs), batch)
        return torch.where(found.counted, found.values, 0.0).sum(-1) / found.counted.sum(-1)

    kept = [held(HeadModel(model), fitted, batch) for batch in groups]
    of = [
        torch.cat([explained(batch, masking.head_mask(model, closing)) for batch in kept])
        for closing in ([], *closings)
    ]
    return np.array([float((of[0] - left).mean()) for left in of[1:]])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "bert"])
def test_integrated_gradients_are_complete(name):
    found = attributed(name, corpus(FEW), "IntegratedGradients", n_steps=64)
    (whole_effect,) = effects(name, corpus(FEW), [list(found.index)])
    assert found.sum() == pytest.approx(whole_effect, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "replacement"), [("marian", "zero"), ("bert", "uniform")])
def test_feature_ablation_is_a_loop_that_masks_one_head_at_a_time(name, replacement):
    found = attributed(name, corpus(FEW), "FeatureAblation", replacement=replacement)
    np.testing.assert_allclose(
        found, effects(name, corpus(FEW), [[head] for head in found.index], replacement), atol=1e-5
    )
    assert found.abs().max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("name", "samples"), [("marian", 2), ("bert", 1)])
def test_shapley_values_sum_to_the_effect_of_all(name, samples):
    torch.manual_seed(0)
    found = attributed(name, corpus(3), "ShapleyValueSampling", n_samples=samples)
    (whole_effect,) = effects(name, corpus(3), [list(found.index)])
    assert found.sum() == pytest.approx(whole_effect, abs=1e-4)


def _slopes_at(place):
    """The mean gradient of gates that are open so far, of what is explained of three sentences."""
    model, given = body("bert"), corpus(3)
    (batch,) = batching.batches(batching.encode(given, tokens_of("bert"), model), model)
    gate = torch.full((3, len(families.head_index(model))), place, requires_grad=True)
    fitted = objective(None, HeadModel(model)).fit(HeadModel(model), [batch])
    with hr.mask_heads(model, gate):
        fitted.targets(model(**batch.inputs), batch).values.sum().backward()
    return gate.grad.mean(0)


def test_options_reach_the_method():
    """Integrated by one step of Gauss and Legendre, a gradient is that at gates half open."""
    found = attributed("bert", corpus(3), "IntegratedGradients", n_steps=1)
    close(found, _slopes_at(0.5))


def test_a_method_without_a_baseline_is_given_none():
    close(attributed("bert", corpus(3), "InputXGradient"), _slopes_at(1.0))


@pytest.mark.parametrize(("method", "samples"), [("GradientShap", 2), ("ShapleyValueSampling", 1)])
def test_what_a_method_draws_follows_from_the_sentences_alone(method, samples):
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        found.append(attributed("bert", corpus(3), method, n_samples=samples))
        drawn = torch.rand(1), np.random.rand()
        torch.manual_seed(seed)
        np.random.seed(seed)
        assert drawn == (torch.rand(1), np.random.rand())  # as if nothing had been drawn between
    assert found[0].tolist() == found[1].tolist()
    assert len(set(np.round(found[0] / _slopes_at(1.0).numpy(), 6))) > 1  # it draws


def test_deep_lift_says_how_far_it_applies():
    table = hr.attribute(zoo.tiny("marian"), tokens_of("marian"), corpus(3), method="DeepLift", n_resamples=0)
    assert np.isfinite(table).all(axis=None)
    fields = dict(field.partition(":")[::2] for field in frame.provenance(table, "attribution[DeepLift]").split("|"))
    assert float(fields["delta"]) > 0
    exact = hr.attribute(zoo.tiny("marian"), tokens_of("marian"), corpus(3), n_steps=64, n_resamples=0)
    fields = dict(field.partition(":")[::2] for field in frame.provenance(exact, list(exact)[0]).split("|"))
    assert float(fields["delta"]) < 0.01


@pytest.mark.slow
def test_delta_is_what_is_missed_of_the_effects_of_masking_all():
    effect, missed = [], []
    for sentence in corpus(3):
        alone = Corpus("alone", (sentence,))
        found = attributed("marian", alone, "IntegratedGradients", objective="loss", n_steps=1)
        effect.append(effects("marian", alone, [list(found.index)], of="loss")[0])
        missed.append(abs(found.sum() - effect[-1]))
    assert min(effect) < 0 < max(effect)
    options = {"objective": "loss", "n_steps": 1, "n_resamples": 0}
    table = hr.attribute(body("marian"), tokens_of("marian"), corpus(3), **options)
    fields = dict(field.partition(":")[::2] for field in frame.provenance(table, list(table)[0]).split("|"))
    assert float(fields["delta"]) == pytest.approx(sum(missed) / np.abs(effect).sum(), abs=1e-4)


def test_attribute_is_score_with_an_attribution():
    asked = hr.Attribution(method="FeatureAblation", replacement="uniform", options=(("perturbations_per_eval", 3),))
    table = measured("bert", asked, corpus(FEW), n_resamples=20, max_tokens=1024)
    options = {"method": "FeatureAblation", "replacement": "uniform", "perturbations_per_eval": 3, "n_resamples": 20}
    other = hr.attribute(zoo.tiny("bert"), tokens_of("bert"), corpus(FEW), **options)
    pd.testing.assert_frame_equal(table, other, rtol=0, atol=0)
    name = "attribution[FeatureAblation]"
    assert list(table) == [f"{column}{end}" for column in (name, f"{name}.size") for end in ("", ".low", ".high")]
    assert frame.provenance(table, name) == frame.provenance(other, name)


# --- what cannot be measured ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hr.Relevance("magic"), f"unknown rules 'magic'; known: {', '.join(hr.scores.lrp.RULES)}"),
        (lambda: hr.Relevance(by="heads"), "unknown normalisation: got by='heads'; expected 'layer', 'logit' or 'sum'"),
        *(
            (
                lambda rules=rules: hr.Relevance(rules=rules, by="sum"),
                f"rules {rules!r} give relevance of both signs, and its plain sum may be near 0: got by='sum'; "
                "expected 'layer' or 'logit'; try by='layer', which divides by the sum of |R|",
            )
            for rules in ("cp", "attn", "gradient")
        ),
        *(
            (
                lambda steps=steps: hr.Relevance(steps=steps),
                f"unknown steps: got steps={steps!r}; expected 'all', 'sum', or a number of steps to draw from each "
                "sentence",
            )
            for steps in ("first", 0, -1, True, 1.5)
        ),
        (
            lambda: hr.Importance(per="word"),
            "unknown importance: got per='word', norm=None; expected per 'example', 'token' or 'batch' and norm "
            "'layer' or None",
        ),
        (
            lambda: hr.Importance(norm="model"),
            "unknown importance: got per='example', norm='model'; expected per 'example', 'token' or 'batch' and norm "
            "'layer' or None",
        ),
        (
            lambda: hr.Attribution(method="Magic"),
            f"unknown captum method 'Magic'; known: {', '.join(methods())}",
        ),
    ],
)
def test_options_that_are_none(make, message):
    with pytest.raises(ValueError, match=whole(message)):
        make()


def test_the_methods_of_captum_are_those_made_of_a_function_alone():
    assert {"IntegratedGradients", "ShapleyValueSampling", "FeatureAblation", "DeepLift", "GradientShap"} <= {
        *methods()
    }
    assert not {"LRP", "LayerConductance", "GuidedGradCam"} & {*methods()}
    assert hr.Attribution().label == "attribution[IntegratedGradients]"


@pytest.mark.parametrize("score", [hr.Relevance(), hr.Importance(), hr.Attribution(method="FeatureAblation")])
@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_heads_without_a_part_in_the_objective(name, score):
    model = zoo.tiny(name)
    _outputs(model, 0.0)
    message = (
        f"every gradient of {score.label} is zero: no head of {type(model).__name__} has a part in objective "
        f"{score.chosen(HeadModel(model)).name!r}; choose another"
    )
    with pytest.raises(ValueError, match=whole(message)):
        hr.score(model, tokens_of(name), corpus(4), score)


@pytest.mark.parametrize("score", [hr.Relevance(), hr.Importance(), hr.Attribution(method="FeatureAblation")])
def test_weights_that_are_no_numbers(score):
    model = zoo.tiny("bert")
    _outputs(model, math.nan)
    longest = max(range(4), key=lambda i: (len(tokens_of("bert")(corpus(4)[i].text)["input_ids"]), -i)) + 1
    message = (
        f"{score.label} is not finite on sentence {longest} of the corpus; look for NaN or infinite weights in "
        f"BertForMaskedLM: 1,024 of 1,024 in bert.encoder.layer.0.attention.output.dense.weight; or load it in float32"
    )
    with pytest.raises(ValueError, match=whole(message)):
        hr.score(model, tokens_of("bert"), corpus(4), score)


@pytest.mark.parametrize("score", ["relevance", "importance"])
def test_the_sentence_with_gradients_that_are_not_finite_is_named(score):
    model = zoo.tiny("bert")
    words = model.bert.embeddings.word_embeddings
    words.weight = torch.nn.Parameter(words.weight.clone())  # not those by which tokens are predicted
    words.weight.data[tokens_of("bert")("d")["input_ids"][1]] = math.nan
    given = Corpus("some", tuple(map(Sentence, ("a b c", "c a b", "c d a", "b a c"))))
    with pytest.raises(ValueError, match=r"is not finite on sentence 3 of the corpus"):
        hr.score(model, tokens_of("bert"), given, score)


@pytest.mark.usefixtures("forgotten")
def test_one_gradient_that_is_no_number_is_enough():
    class Broken(winning()):
        def head_gradients(self, model, target, batch):
            found = super().head_gradients(model, target, batch)
            found.gradients[batch.numbers.index(1), 0, 0] = math.inf
            return found

    with pytest.raises(ValueError, match=r"^broken is not finite on sentence 2 of the corpus; look for NaN"):
        hr.score(zoo.tiny("bert"), tokens_of("bert"), corpus(3), Broken())


def test_one_step_of_each_sentence_may_be_asked_for():
    assert measured("gpt2", hr.Relevance("cp", steps=1)).notna().all(axis=None)
    assert hr.Relevance("attn").rules == "attn"  # by its place


SHORT = Corpus("short", (Sentence("a"), Sentence("b")))  # of one token each: nothing comes next


@pytest.mark.parametrize("score", ["relevance", "importance", hr.Attribution(method="FeatureAblation")])
def test_a_decoder_has_nothing_to_explain_of_single_tokens(score):
    message = "corpus has no target: every step is padding or comes after the end token"
    with pytest.raises(ValueError, match=whole(message)):
        measured("gpt2", score, SHORT)


OF_NOTHING = {
    "asked": [hr.Relevance(), hr.Relevance(rules="voita", steps="sum"), "importance"],
    "top": hr.Importance(objective="top"),
    "captum": hr.Attribution(method="FeatureAblation"),
}


@pytest.mark.slow
@pytest.mark.parametrize("scores", OF_NOTHING)
def test_a_sentence_of_one_token_is_nothing_in_any_batch(scores):
    mixed = Corpus("mixed", (*SHORT, *corpus(3)))
    alone, heads_per_batch, without = (
        measured("gpt2", OF_NOTHING[scores], given, max_tokens=max_tokens)
        for given, max_tokens in ((mixed, 1), (mixed, 4096), (corpus(3), 4096))
    )
    pd.testing.assert_frame_equal(alone, heads_per_batch, rtol=0, atol=bound(1))
    pd.testing.assert_frame_equal(without, heads_per_batch, rtol=0, atol=bound(1))


def test_a_model_of_one_layer_has_scores():
    few = zoo.tiny("bert")
    few.config.num_hidden_layers = 1
    scores = [*asked(), "confidence", "position"]
    found = hr.score(type(few)(few.config).eval(), tokens_of("bert"), corpus(4), scores, n_resamples=0)
    assert (len(found), found.notna().all(axis=None)) == (4, True)


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
        made = deepcopy(model)
    message = (
        "no gradient passes the weights of MarianMTModel: got a model made in inference mode; expected one that was "
        "loaded outside; try to load or copy it outside torch.inference_mode()"
    )
    with pytest.raises(ValueError, match=whole(message)):
        measured(made)
