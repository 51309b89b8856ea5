"""What is explained equals plain formulas on single sentences, of every objective and each kind of model."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from helpers import zoo
from helpers.close import bound
from helpers.letters import corpus, tokens_of, writing
from helpers.objectives import ALL, FORMULAS, alone, classifier, in_one, labelled, output

import headroles as hr
from headroles.ablation.metrics.base import Of
from headroles.models import heads, masking
from headroles.models.head_model import HeadModel
from headroles.scores import objectives, outputs
from headroles.scores.objectives import Agreement, ClassLogit, Explained, Loss, Objective, Reference, Similarity, Top

VOCABULARIES = ["marian", "t5", "bert", "gpt2", "llama-grouped"]


def test_values_of_one_example_are_not_those_of_the_batch():
    @dataclass(frozen=True)
    class First(Objective):
        name = "first"

        def targets(self, output, _batch, /):
            values = outputs.logits(self.model, output)[:1, :1, 0]
            return Explained(values, torch.ones_like(values, dtype=torch.bool))

    message = "metric 'first' has statistics of other examples: got 1 rows; expected 6, one of each example"
    with pytest.raises(ValueError, match=re.escape(message)):
        hr.evaluate(zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(6), [Of(First())], n_resamples=0)


def explaining(model, objective, groups):
    return objective.fit(HeadModel(model), groups)


def explained(model, objective, batch):
    """What an objective explains of the only batch of a corpus."""
    return explaining(model, objective, [batch]).targets(output(model, batch), batch)


def by_sentence(found, batch):
    """The values that count: sentence number -> [step]."""
    rows = zip(batch.numbers, found.values, found.counted, strict=True)
    return {number: values[counted] for number, values, counted in rows}


def same(found, expected):
    """Two dicts of tensors, to the precision of a padded batch."""
    assert sorted(found) == sorted(expected)
    for number, values in expected.items():
        torch.testing.assert_close(found[number], values, rtol=0, atol=bound(values))


# --- tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", VOCABULARIES)
def test_each_token_has_the_value_of_the_plain_formula(name):
    model = zoo.tiny(name)
    (batch,) = in_one(model, name, corpus(8))
    each = [alone(model, name, one) for one in corpus(8)]
    for kind, formula in FORMULAS.items():
        expected = {i: formula(*one) for i, one in enumerate(each)}
        assert len({len(values) for values in expected.values()}) > 2  # some are padded
        same(by_sentence(explained(model, kind(), batch), batch), expected)


@pytest.mark.parametrize("kind", FORMULAS, ids=lambda kind: kind.name)
def test_small_batches_say_the_same(kind):
    model = zoo.tiny("marian")
    one, many = (in_one(model, "marian", corpus(8), max_tokens) for max_tokens in (ALL, 20))
    assert len(many) > 2
    fitted = explaining(model, kind(), many)
    found = [by_sentence(fitted.targets(output(model, batch), batch), batch) for batch in many]
    same({i: values for part in found for i, values in part.items()}, by_sentence(explained(model, kind(), *one), *one))


@pytest.mark.parametrize("everywhere", [True, False])
def test_padding_is_never_the_largest(everywhere):
    model = zoo.tiny("marian")
    (batch,) = in_one(model, "marian", corpus(4))
    logits = output(model, batch).logits
    lacks = (logits.amax(-1) - logits[..., zoo.PAD]).flatten().sort().values
    model.final_logits_bias[0, zoo.PAD] += 50.0 if everywhere else lacks[len(lacks) // 2]
    largest = output(model, batch).logits.argmax(-1) == zoo.PAD
    assert largest.any()
    assert largest.all() == everywhere
    found = explained(model, Top(), batch)
    assert not (found.chosen == zoo.PAD).any()
    expected = {i: FORMULAS[Top](*alone(model, "marian", one)) for i, one in enumerate(corpus(4))}
    same(by_sentence(found, batch), expected)


def own():
    """A translator that says how long its output may be, and ends some of it before, with what it is to translate."""
    model = writing("marian")
    model.final_logits_bias[0, zoo.EOS] = 1.5
    return model, corpus(12, translated=False)


@torch.no_grad()
def written(model, sentence):
    """What the model writes for one sentence by itself, to its end token, and the logits it wrote it by."""
    ids = tokens_of("marian")(sentence.text, return_tensors="pt")["input_ids"]
    out = model.generate(input_ids=ids, num_beams=1, do_sample=False)[0]
    return out[1:], model(input_ids=ids, decoder_input_ids=out[None, :-1]).logits[0]


@pytest.mark.slow
def test_of_its_own_output_the_tokens_are_explained_that_were_written():
    model, given = own()
    (batch,) = in_one(model, "marian", given)
    expected, forced = {}, 0
    for i, sentence in enumerate(given):
        tokens, logits = written(model, sentence)
        expected[i] = logits[range(len(tokens)), tokens]
        forced += int((logits.argmax(-1) != tokens).sum())
    assert batch.is_generated
    assert forced  # the last token that fits is the end, whatever its logit
    assert len({len(values) for values in expected.values()}) > 1
    found = {kind: explained(model, kind(), batch) for kind in (Top, Reference)}
    for values in found.values():
        same(by_sentence(values, batch), expected)
    counted = found[Top].counted.sum(-1).tolist()  # nothing after the end
    assert dict(zip(batch.numbers, counted, strict=True)) == {i: len(values) for i, values in expected.items()}


# --- classes and states ---------------------------------------------------------------------------------------------


@torch.no_grad()
def logits_of(model, sentence):
    return model(**tokens_of("bert")(sentence.text, return_tensors="pt")).logits[0]


@pytest.mark.parametrize(
    ("objective", "formula"),
    [
        (ClassLogit(), lambda logits, _: logits.max()),
        (ClassLogit(of="label"), lambda logits, label: logits[label]),
        (Loss(), lambda logits, label: F.cross_entropy(logits, torch.tensor(label))),
        (Agreement(), lambda _, __: torch.tensor(1.0)),
    ],
    ids=["class", "label", "loss", "agreement"],
)
def test_each_sentence_has_the_value_of_the_plain_formula(objective, formula):
    numbers = [2, 0, 1, 2, 0, 1]
    (batch,) = in_one(classifier(), "bert", labelled())
    pairs = enumerate(zip(labelled(), numbers, strict=True))
    expected = {i: formula(logits_of(classifier(), one), label)[None] for i, (one, label) in pairs}
    found = explained(classifier(), objective, batch)
    assert found.values.shape == (6, 1)
    same(by_sentence(found, batch), expected)


@torch.no_grad()
def mean_states(model, given):
    """The mean state of each sentence by itself: [sentence, width]."""
    read = (model(**tokens_of("bert")(one.text, return_tensors="pt")) for one in given)
    return torch.stack([out.last_hidden_state[0].mean(0) for out in read])


def test_the_nearest_sentence_is_looked_for_in_the_whole_corpus():
    model = zoo.tiny("bert").base_model
    states = mean_states(model, corpus(8))
    cosines = F.cosine_similarity(states[:, None], states[None], dim=-1).fill_diagonal_(-1)
    units = F.normalize(states, dim=-1)
    expected = {i: (states[i] @ units[cosines[i].argmax()])[None] for i in range(8)}
    for max_tokens in (ALL, 20):
        groups = in_one(model, "bert", corpus(8), max_tokens)
        fitted = explaining(model, Similarity(), groups)
        found = [by_sentence(fitted.targets(output(model, batch), batch), batch) for batch in groups]
        same({i: values for part in found for i, values in part.items()}, expected)


def test_states_agree_by_their_cosine():
    model = zoo.tiny("bert").base_model
    (batch,) = in_one(model, "bert", corpus(6))
    fitted = explaining(model, Agreement(), [batch])
    torch.testing.assert_close(fitted.targets(output(model, batch), batch).values, torch.ones(6, 1))
    intact = mean_states(model, corpus(6))
    with hr.mask_heads(model, masking.head_mask(model, [("enc-self", 0, 1)])):
        found = fitted.targets(output(model, batch), batch)
        masked = mean_states(model, corpus(6))
    expected = F.cosine_similarity(masked, intact, dim=-1)
    assert (expected < 1 - 1e-4).all()
    same(by_sentence(found, batch), {i: expected[i : i + 1] for i in range(6)})


@pytest.mark.parametrize("name", ["marian", "bert", "gpt2"])
def test_choices_agree_where_they_are_the_same(name):
    model = zoo.tiny(name)
    groups = in_one(model, name, corpus(8), 20)
    fitted = explaining(model, Agreement(), groups)
    head = tuple(heads.head_index(model)[-1])
    total = 0.0
    for batch in groups:
        intact = output(model, batch).logits.argmax(-1)
        with hr.mask_heads(model, masking.head_mask(model, [head])):
            now = output(model, batch)
        found = fitted.targets(now, batch)
        assert torch.equal(found.values, (now.logits.argmax(-1) == intact).float())
        total += found.values[found.counted].mean() / len(groups)
    assert 0.05 < total < 1


# --- what is held when heads are touched ----------------------------------------------------------------------------


def all_closed(model):
    return masking.head_mask(model, heads.head_index(model))


@pytest.mark.parametrize("name", ["marian", "bert", "gpt2", "classifier"])
def test_what_the_intact_model_chose_is_held(name):
    model, given = (classifier(), labelled()) if name == "classifier" else (zoo.tiny(name), corpus(6))
    (batch,) = in_one(model, name if name in VOCABULARIES else "bert", given)
    fitted = objectives.objective(None, HeadModel(model)).fit(HeadModel(model), [batch])
    intact = fitted.targets(output(model, batch), batch)
    kept = objectives.held(HeadModel(model), fitted, batch)
    assert (kept.numbers, kept.inputs) == (batch.numbers, batch.inputs)
    again = fitted.targets(output(model, kept), kept)
    assert torch.equal(again.counted, intact.counted)
    assert torch.equal(again.values[again.counted], intact.values[intact.counted])
    with hr.mask_heads(model, all_closed(model)):
        now = output(model, kept)
    logits = now.logits if intact.values.shape[1] > 1 else now.logits[:, None]
    expected = logits.gather(-1, intact.chosen[..., None])[..., 0]
    found = fitted.targets(now, kept)
    assert torch.equal(found.values[found.counted], expected[intact.counted])
    assert not torch.equal(fitted.targets(now, batch).values[intact.counted], found.values[found.counted])


# --- rows of a batch ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*FORMULAS, Similarity], ids=lambda kind: kind.name)
def test_rows_have_the_values_they_have_in_the_batch(kind):
    model = zoo.tiny("bert") if kind is not Similarity else zoo.tiny("bert").base_model
    (batch,) = in_one(model, "bert", corpus(5))
    fitted = explaining(model, kind(), [batch])
    rows = torch.tensor([4, 2, 2, 0])
    taken = batch.take(rows)
    found, all_ = fitted.targets(output(model, taken), taken), fitted.targets(output(model, batch), batch)
    torch.testing.assert_close(found.values, all_.values[rows], rtol=0, atol=bound(all_.values[rows]))
    assert torch.equal(found.counted, all_.counted[rows])


# --- names and errors -----------------------------------------------------------------------------------------------


def test_each_kind_of_model_has_an_objective_of_its_own():
    for name in VOCABULARIES:
        assert objectives.objective(None, HeadModel(zoo.tiny(name))) == Top()
    assert objectives.objective(None, HeadModel(zoo.tiny("bert").base_model)) == Similarity()
    assert objectives.objective(None, HeadModel(classifier())) == ClassLogit()
