"""Heads closed in an order: what that multiplies again, where orders come from, and what curves of any metric say."""

from __future__ import annotations

import math
import re
from collections import Counter
from contextlib import contextmanager
from functools import wraps
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import sacrebleu
import scipy.stats
import torch
import torch.nn.functional as F
import transformers
from helpers import zoo
from helpers.ablations import by_hand, files, generated, mean, naive, near, side, sweep, translated
from helpers.close import bound
from helpers.commands import run
from helpers.letters import corpus, tokens_of, writing
from helpers.messages import line, whole
from helpers.objectives import FORMULAS, alone, classifier, labelled
from helpers.traces import _traces
from torch.overrides import TorchFunctionMode

import headroles as hr
from headroles.ablation.curves import ablation_curve, areas, orders, repeated_ranking
from headroles.ablation.effects import ablate
from headroles.ablation.forward_cache import Replay
from headroles.ablation.metrics import METRICS, Of, metric
from headroles.analysis.summaries import correlations
from headroles.models import heads as families
from headroles.models import loading, masking
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.scores.objectives import OBJECTIVES, ClassLogit, Loss, Top
from headroles.tables import frame
from headroles.tables.io import load_table

# --- what is multiplied again ---------------------------------------------------------------------------------------

LAYERS = 3  # one more than the zoo has, so that a layer has one below and one above
DEEP = {
    "marian": {"encoder_layers": LAYERS, "decoder_layers": LAYERS},
    "bert": {"num_hidden_layers": LAYERS},
    "gpt2": {"n_layer": LAYERS},
}
SOURCE, TARGET = 2 * 7, 2 * 5  # tokens of a batch, padding included


def deep(name):
    """A model of the zoo with three layers, and a batch of what it reads."""
    model_class, config_class, options = zoo.ZOO[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = getattr(transformers, config_class)(**options | DEEP[name])
        model = getattr(transformers, model_class)(config).eval()
    inputs = zoo.inputs(model)
    source = side(inputs["input_ids"], inputs["attention_mask"])
    written = inputs.get("decoder_input_ids")
    target = None if written is None else side(written, inputs.get("decoder_attention_mask"))
    families.attention_sites(model)  # looked for here, not while rows are counted
    return model, Batch((0, 1), inputs, source, target)


class Multiplied(TorchFunctionMode):
    """Counts the rows that go through every linear map of a model: `rows[name]`."""

    def __init__(self, model):
        super().__init__()
        maps = [pair for pair in model.named_modules() if type(pair[1]).__name__ in ("Linear", "Conv1D")]
        self.names, self.rows = {id(module.weight): name for name, module in maps}, Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (F.linear, torch.addmm):  # Conv1D adds its bias first
            given, weight = args[:2] if function is F.linear else args[1:3]
            self.rows[self.names[id(weight)]] += given.shape[:-1].numel()
        return function(*args, **kwargs or {})


def multiplied(model, replay, *variants):
    """The rows of each linear map while variants, sets of heads, run as one batch."""
    with Multiplied(model) as counting:
        replay.run(torch.stack([masking.head_mask(model, masked) for masked in variants]))
    return dict(counting.rows)


QKV, OUT = [f"self_attn.{name}_proj" for name in "qkv"], ["self_attn.out_proj"]
FEED_FORWARD = ["fc1", "fc2"]
READING = ["encoder_attn.k_proj", "encoder_attn.v_proj"]  # the encoder's states
ASKING, CROSS_OUT = ["encoder_attn.q_proj"], ["encoder_attn.out_proj"]
ENCODER_LAYER, DECODER_LAYER = QKV + OUT + FEED_FORWARD, QKV + OUT + ASKING + CROSS_OUT + FEED_FORWARD


def in_marian(key):
    """What runs when a head of (kind, layer) is closed: rows by the name of the map, as one reads it off the model."""
    kind, layer = key
    encoder, decoder = {}, dict.fromkeys(range(layer + 1, LAYERS), DECODER_LAYER)
    if kind == "enc-self":
        encoder = {layer: OUT + FEED_FORWARD} | dict.fromkeys(range(layer + 1, LAYERS), ENCODER_LAYER)
        # what layer 0 asks the changed states is told by the target alone
        decoder = {0: READING + CROSS_OUT + FEED_FORWARD}
        decoder |= dict.fromkeys(range(1, LAYERS), DECODER_LAYER + READING)
    elif kind == "dec-self":
        decoder[layer] = OUT + ASKING + CROSS_OUT + FEED_FORWARD
    else:
        decoder[layer] = CROSS_OUT + FEED_FORWARD
    found = {f"model.encoder.layers.{layer}.{name}": SOURCE for layer, names in encoder.items() for name in names}
    for number, names in decoder.items():
        rows = {f"model.decoder.layers.{number}.{name}": SOURCE if name in READING else TARGET for name in names}
        found |= rows
    return found | {"lm_head": TARGET}


KEYS = [(kind, layer) for kind in frame.KINDS for layer in range(LAYERS)]


@pytest.mark.slow
def test_masking_one_head_computes_only_what_it_can_change():
    model, batch = deep("marian")
    replay = Replay(HeadModel(model), batch)
    for key in KEYS:
        for head in range(4):
            assert multiplied(model, replay, [(*key, head)]) == in_marian(key), (*key, head)


@pytest.mark.slow
def test_masking_two_heads_computes_what_either_can_change():
    model, batch = deep("marian")
    replay = Replay(HeadModel(model), batch)
    for one, other in combinations(KEYS, 2):
        assert multiplied(model, replay, [(*one, 0), (*other, 1)]) == in_marian(one) | in_marian(other), (one, other)


def test_each_variant_has_rows_of_its_own():
    model, batch = deep("marian")
    replay = Replay(HeadModel(model), batch)
    for key in KEYS:
        found = multiplied(model, replay, *([(*key, head)] for head in range(3)))
        assert found == {name: 3 * rows for name, rows in in_marian(key).items()}


BODY = {  # out, feed-forward and, of later layers, what comes first; then what stands at the end
    "bert": ("bert.encoder.layer", ["attention.self.query", "attention.self.key", "attention.self.value"],
             ["attention.output.dense", "intermediate.dense", "output.dense"],
             ["cls.predictions.transform.dense", "cls.predictions.decoder"]),
    "gpt2": ("transformer.h", ["attn.c_attn"], ["attn.c_proj", "mlp.c_fc", "mlp.c_proj"], ["lm_head"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BODY)
def test_in_one_stack_what_is_after_the_heads_is_multiplied_again(name):
    model, batch = deep(name)
    replay = Replay(HeadModel(model), batch)
    place, before, after, end = BODY[name]
    for kind, layer, head in families.head_index(model):
        own = [f"{place}.{layer}.{one}" for one in after]
        later = [f"{place}.{number}.{one}" for number in range(layer + 1, LAYERS) for one in before + after]
        assert multiplied(model, replay, [(kind, layer, head)]) == dict.fromkeys(own + later + end, SOURCE)


@pytest.mark.parametrize("name", DEEP)
def test_the_intact_model_runs_once_and_nothing_masked_runs_the_end_alone(name):
    model, batch = deep(name)
    with Multiplied(model) as counting:
        replay = Replay(HeadModel(model), batch)
    assert set(counting.rows) == set(counting.names.values())
    assert set(counting.rows.values()) == ({SOURCE, TARGET} if name == "marian" else {SOURCE})
    assert set(multiplied(model, replay, [])) == set(BODY[name][3] if name in BODY else ["lm_head"])


@pytest.mark.parametrize("name", zoo.variants(["marian", "t5", "fsmt", "whisper", "bert2gpt2"]))
def test_an_encoder_head_and_a_head_of_the_first_decoder_layer_are_both_masked(name):
    model, batch = by_hand(name)
    index = list(families.head_index(model))
    first, starts = [head for head in index if head[:2] == ("dec-self", 0)], [head for head in index if head[2] == 0]
    pairs = [{one, other} for one in starts if one[0] == "enc-self" for other in first]
    more = [pair | {head} for pair in pairs[:2] for head in starts if head[0] != "enc-self"]
    rows = torch.stack([masking.head_mask(model, masked) for masked in pairs + more])
    for replacement in ["zero", "uniform"] if name in ("marian", "t5") else ["zero"]:
        expected = torch.stack([naive(model, batch, row, replacement) for row in rows])
        for (one,) in ({head for head in pair if head[0] == "enc-self"} for pair in pairs[::4]):
            alone = naive(
                model, batch, masking.head_mask(model, [one]), replacement
            )  # without the decoder's head it is another
            assert not any(torch.allclose(alone, logits, atol=1e-4) for logits in expected)
        replay = Replay(HeadModel(model), batch, replacement)
        near(replay.run(rows)[0].logits.reshape(expected.shape), expected)
        for row, logits in zip(rows[::3], expected[::3], strict=True):
            near(replay.run(row[None])[0].logits, logits)


# --- what a replay leaves behind ------------------------------------------------------------------------------------


def attributes(model):
    """What every module holds, by name: an instance's own `forward` would be among it."""
    return [set(vars(module)) for module in model.modules()], _traces(model)


def raising(*_):
    raise InterruptedError("stopped")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "bert", "gpt2", "t5", "albert"])
def test_no_module_keeps_a_forward_whether_a_run_ends_or_is_stopped(name):
    model, batch = by_hand(name)
    replay = Replay(HeadModel(model), batch)
    before = attributes(model)
    assert not any("forward" in names for names in before[0])
    for site in families.attention_sites(model):
        row = masking.head_mask(model, [(*site.key, 0)])[None]
        replay.run(row)
        assert attributes(model) == before
        hook = site.out.register_forward_hook(raising)  # reached while the layers below are handed back
        with pytest.raises(InterruptedError):
            replay.run(row)
        hook.remove()
        assert attributes(model) == before
        near(replay.run(row)[0].logits, naive(model, batch, row[0], "zero"))  # and the next run is none the worse


def test_a_forward_of_its_own_is_put_back_when_a_run_is_stopped():
    model, batch = by_hand("gpt2")
    first, last = model.transformer.h
    own = first.forward = first.forward  # a bound method, as accelerate leaves one there
    replay = Replay(HeadModel(model), batch)
    last.attn.c_proj.register_forward_hook(raising)
    with pytest.raises(InterruptedError):
        replay.run(masking.head_mask(model, [("dec-self", 1, 0)])[None])
    assert vars(first)["forward"] is own
    assert "forward" not in vars(last)


# --- orders ---------------------------------------------------------------------------------------------------------

INDEX = frame.index({("enc-self", 0): 4, ("enc-self", 1): 3, ("cross", 0): 5})


def scores():
    """A table of heads: a column without ties, one with, and bounds of an interval."""
    rng = np.random.default_rng(0)
    size = len(INDEX)
    columns = {"one": rng.permutation(size).astype(float), "tied": rng.integers(0, 3, size).astype(float)}
    columns |= {"one.low": columns["one"] - 1, "one.high": columns["one"] + 1}
    return frame.table(columns, INDEX, "made by hand")


@pytest.mark.parametrize("kind", [None, "enc-self", "cross"])
@pytest.mark.parametrize("column", ["one", "tied"])
def test_the_smallest_comes_first_and_with_a_minus_the_largest(column, kind):
    found = orders(scores(), [column, f"-{column}"], kind=kind)
    assert list(found) == [column, f"-{column}"]
    every = [head for head in INDEX if kind in (None, head[0])]
    values = scores()[column]
    assert found[column] == sorted(every, key=lambda head: values[head])
    assert found[f"-{column}"] == found[column][::-1]
    assert [values[head] for head in found[f"-{column}"]] == sorted((values[head] for head in every), reverse=True)


@pytest.mark.parametrize("kind", [None, "enc-self", "cross"])
def test_random_orders_have_each_head_once_and_are_the_same_again(kind):
    found = orders(scores(), ["one"], kind=kind, seeds=6)
    assert list(found) == ["one", *(f"random {seed}" for seed in range(6))]
    every = [head for head in INDEX if kind in (None, head[0])]
    assert all(sorted(order) == sorted(every) for order in found.values())
    assert len({tuple(order) for order in found.values()}) == 7
    assert orders(scores(), ["one"], kind=kind, seeds=6) == found
    fewer = orders(scores(), [], kind=kind, seeds=3)
    assert fewer == {name: found[name] for name in ("random 0", "random 1", "random 2")}


@pytest.mark.parametrize(
    ("column", "listed"),
    [("nothing", "known: one, tied"), ("-nothing", "known: one, tied"), ("--one", "try one"), ("tie", "try tied")],
)
def test_a_column_that_is_not_there_is_named_with_those_that_are(column, listed):
    message = f"no column {column!r} to order heads by; {listed}"
    with pytest.raises(ValueError, match=whole(message)):
        orders(scores(), ["one", column])


# --- orders that are told again -------------------------------------------------------------------------------------


def again(name, text=None, **options):
    return repeated_ranking(zoo.tiny(name), tokens_of(name), text or corpus(6), **options)


def counts(size, steps):
    """How many heads are closed after each step."""
    return [round(size * step / steps) for step in range(1, steps + 1)]


def told_again(name, score, column, steps, kind=None):
    """The same in a plain loop: measure with what is gone closed, and let the smallest of what is left go."""
    model, gone = zoo.tiny(name), []
    every = [head for head in families.head_index(model) if kind in (None, head[0])]
    for count in counts(len(every), steps):
        with hr.mask_heads(model, masking.head_mask(model, gone)):
            values = hr.score(model, tokens_of(name), corpus(6), score, n_resamples=0)[column]
        left = [head for head in every if head not in gone]
        gone += sorted(left, key=lambda head: values[head])[: count - len(gone)]
    return gone


AGAIN = [
    ("gpt2", "importance", "importance", 3, None),
    ("marian", "importance", "importance", 4, None),
    ("marian", "importance", "importance", 3, "cross"),
    ("bert", "confidence", "confidence", 4, None),
    ("bert", "position", "position[+1]", 2, None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "score", "column", "steps", "kind"), AGAIN)
def test_what_is_left_is_measured_again_after_each_step(name, score, column, steps, kind):
    found = again(name, score=score, column=column, steps=steps, kind=kind)
    every = [head for head in families.head_index(zoo.tiny(name)) if kind in (None, head[0])]
    assert sorted(found) == sorted(every)
    assert found == told_again(name, score, column, steps, kind)
    assert found != again(name, score=score, column=column, steps=1, kind=kind)


@pytest.mark.slow
@pytest.mark.parametrize("score", ["importance", "confidence"])
def test_of_one_step_the_order_is_that_of_the_plain_score(score):
    table = hr.score(zoo.tiny("marian"), tokens_of("marian"), corpus(6), score, n_resamples=0)
    for kind in (None, "enc-self", "dec-self", "cross"):
        assert again("marian", score=score, steps=1, kind=kind) == orders(table, [score], kind=kind)[score]


def test_the_column_is_by_default_the_first_of_the_score():
    first = hr.score(zoo.tiny("bert"), tokens_of("bert"), corpus(6), "position", n_resamples=0).columns[0]
    assert first == "position[-2]"
    assert again("bert", score="position", steps=2) == again("bert", score="position", column=first, steps=2)
    assert again("bert", score="position", steps=2) != again("bert", score="position", column="position[+1]", steps=2)


def head_gradients(model, gone):
    """Michel et al.'s importance by hand: the mean over sentences of |d loss / d gate|, some gates closed."""
    found = []
    for sentence in corpus(6):
        row = masking.head_mask(model, gone).requires_grad_()
        ids = tokens_of("gpt2")(sentence.text, return_tensors="pt")["input_ids"]
        with hr.mask_heads(model, row):
            loss = F.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])
        found.append(torch.autograd.grad(loss, row)[0].abs())
    return pd.Series(torch.stack(found).mean(0).numpy(), families.head_index(model))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 8])
def test_importance_again_is_of_the_gradients_of_the_gated_model(steps):
    model, gone = zoo.tiny("gpt2"), []
    for count in counts(8, steps):
        values = head_gradients(model, gone).drop(gone)
        gone += values.sort_values().index.tolist()[: count - len(gone)]
    assert again("gpt2", steps=steps) == gone


@pytest.mark.parametrize("precision", [1.0, 1.2])
def test_heads_are_ordered_again_by_their_ablation(precision):
    """The least harmful beside those that are masked; six sentences are fewer than a prediction needs."""
    masked, heads = [], list(families.head_index(zoo.tiny("gpt2")))
    for count in counts(8, 4):
        harm = {head: mean("gpt2", frozenset([*masked, head])) for head in heads if head not in masked}
        masked += sorted(harm, key=harm.get)[: count - len(masked)]
    assert again("gpt2", score="ablation", steps=4, precision=precision) == masked


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_left_as_it_was_by_a_repeated_ranking(training):
    model = zoo.tiny("marian").train(training)
    before = attributes(model)
    assert repeated_ranking(model, tokens_of("marian"), corpus(6), steps=3) == again("marian", steps=3)
    assert attributes(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(ValueError, match=r"\Aunknown score 'nonsense'"):
        repeated_ranking(model, tokens_of("marian"), corpus(6), "nonsense")
    assert attributes(model) == before


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("bert", None), ("marian", "cross")])
def test_more_steps_than_heads_mask_one_at_a_time(name, kind):
    assert again(name, steps=10, kind=kind) == again(name, steps=8, kind=kind)


@pytest.mark.slow
def test_heads_that_no_longer_matter_have_a_place_too():
    """Of a translator whose cross heads are all closed the encoder's are left: their gradients are all zero."""
    found = again("marian", steps=24)
    assert sorted(found) == sorted(families.head_index(zoo.tiny("marian")))


# --- curves of any metric -------------------------------------------------------------------------------------------


def given(name, one="loss"):
    """A model, its tokenizer and a corpus that has the metric."""
    if name == "classifier":
        return classifier(), tokens_of("bert"), labelled()
    return (writing(name), tokens_of(name), translated()) if one == "bleu" else (zoo.tiny(name), tokens_of(name), TEXT)


TEXT = corpus(6)
LABELS = [2, 0, 1, 2, 0, 1]  # of `labelled`, as numbers


@torch.no_grad()
def logits_of_classes(model):
    ids = [tokens_of("bert")(sentence.text, return_tensors="pt")["input_ids"] for sentence in labelled()]
    return torch.cat([model(one).logits for one in ids])


def by_token(model, name, formula):
    """A formula of every token of the corpus, sentence by sentence."""
    return torch.cat([formula(*alone(model, name, sentence)) for sentence in TEXT]).double()


def bleu(masked):
    written = generated([sentence.text for sentence in translated()], masking.head_mask(writing("marian"), masked), 1)
    return sacrebleu.corpus_bleu(written, [[sentence.target.text for sentence in translated()]]).score


def accuracy(model, _):
    return (logits_of_classes(model).argmax(-1) == torch.tensor(LABELS)).double().mean()


def label_logit(model, _):
    return logits_of_classes(model)[range(len(LABELS)), LABELS].double().mean()


def perplexity(model, name):
    return by_token(model, name, FORMULAS[Loss]).mean().exp()


def top(model, name):
    return by_token(model, name, FORMULAS[Top]).mean()


CASES = [
    ("classifier", "accuracy", accuracy),
    ("classifier", ClassLogit(of="label"), label_logit),
    ("gpt2", "perplexity", perplexity),
    ("gpt2", "top", top),
    ("marian", "bleu", None),
]
NAMED = [f"{name}-{getattr(one, 'name', one)}" for name, one, _ in CASES]


def closing(name):
    """All heads from the last to the first, and the first three."""
    every = list(families.head_index(given(name)[0]))
    return {"all": every[::-1], "three": every[:3]}


def by_gates(name, formula, masked):
    """A metric of the gated model, sentence by sentence."""
    if formula is None:
        return bleu(masked)
    model = given(name)[0]
    with hr.mask_heads(model, masking.head_mask(model, masked)):
        return float(formula(model, name))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "one", "formula"), CASES, ids=NAMED)
def test_every_point_of_a_curve_is_that_of_the_gated_model(name, one, formula):
    table = ablation_curve(*given(name, one), closing(name), metric=one, steps=4, n_resamples=0, max_tokens=200)
    masked = [frozenset(closing(name)[row.order][: row.closed]) for row in table.itertuples()]
    by_hand = {heads_: by_gates(name, formula, heads_) for heads_ in dict.fromkeys(masked)}
    expected = [by_hand[heads_] for heads_ in masked]
    np.testing.assert_allclose(table["value"], expected, rtol=2 * bound(1), atol=bound(1))
    assert len(set(np.round(expected, 3))) > 2
    said = metric(one)
    assert f"|metric:{said!r}|" in frame.provenance(table, "value")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "one"), [("classifier", "accuracy"), ("marian", "bleu")])
def test_every_point_of_a_curve_is_that_of_a_sweep(name, one):
    table = ablation_curve(*given(name, one), closing(name), metric=one, steps=3, n_resamples=0)
    masked = [frozenset(closing(name)[row.order][: row.closed]) for row in table.itertuples()]
    found = sweep(*given(name, one), [*dict.fromkeys(filter(None, masked))], metric(one))
    each = found.masked | {frozenset(): found.intact}
    expected = [found.metric.compute(each[heads_].sum(0)) for heads_ in masked]
    np.testing.assert_allclose(table["value"], expected, rtol=2 * bound(1), atol=bound(1))


def test_an_objective_by_name_and_by_hand_is_one_metric():
    by_name, instance = (
        ablation_curve(*given("gpt2"), closing("gpt2"), metric=one, n_resamples=20) for one in ("top", Top())
    )
    pd.testing.assert_frame_equal(by_name, instance)
    pd.testing.assert_frame_equal(areas(by_name), areas(instance))


# --- going on -------------------------------------------------------------------------------------------------------


@contextmanager
def forwards(model, most=10**9):
    """Counts the forwards of a model within the block, in a list of one; one more than `most` raises."""
    seen, forward = [0], type(model).forward

    @wraps(forward)
    def counted(this, *args, **options):
        seen[0] += this is model
        if seen[0] > most:
            raise InterruptedError("stopped")
        return forward(this, *args, **options)

    type(model).forward = counted  # a hook would be refused: it may change numbers
    try:
        yield seen
    finally:
        type(model).forward = forward


SMALL = {"metric": "loss", "steps": 4, "n_resamples": 20, "max_tokens": 160}  # several batches of few sentences


def test_a_curve_resumes_after_its_last_finished_batch(tmp_path):
    model, *rest = given("gpt2")
    whole_one = ablation_curve(model, *rest, closing("gpt2"), **SMALL)
    with forwards(model) as all_of_them:
        ablation_curve(model, *rest, closing("gpt2"), **SMALL)
    with forwards(model, all_of_them[0] - 1), pytest.raises(InterruptedError):  # in the last batch
        ablation_curve(model, *rest, closing("gpt2"), **SMALL, folder=tmp_path)
    finished = files(tmp_path)
    assert len(finished) > 1
    with forwards(model) as few:
        found = ablation_curve(model, *rest, closing("gpt2"), **SMALL, folder=tmp_path)
    assert few[0] * (len(finished) + 1) == all_of_them[0]  # each batch is as many forwards
    assert finished.items() < files(tmp_path).items()
    pd.testing.assert_frame_equal(found, whole_one)


@pytest.mark.slow
@pytest.mark.parametrize("one", ["loss", "bleu"])
def test_a_finished_curve_is_read(one, tmp_path):
    model, *rest = given("marian", one)
    options = SMALL | {"metric": one, "folder": tmp_path}
    first = ablation_curve(model, *rest, closing("marian"), **options)
    before = files(tmp_path)
    with forwards(model, 0) as seen:
        again = ablation_curve(model, *rest, closing("marian"), **options)
        more = ablation_curve(model, *rest, closing("marian"), **options | {"n_resamples": 50, "seed": 1})
    assert seen == [0]
    pd.testing.assert_frame_equal(again, first)
    pd.testing.assert_frame_equal(areas(again), areas(first))
    pd.testing.assert_series_equal(more["value"], first["value"])
    assert files(tmp_path) == before


def bare(table):
    return table.copy(deep=False).rename_axis(columns=None)


def test_a_study_keeps_curves_and_areas_by_what_they_were_made_from(tmp_path, caplog):
    study, (model, *rest) = hr.Study(tmp_path), given("gpt2")
    first = ablation_curve(model, *rest, closing("gpt2"), study=study, **SMALL)
    table = ablation_curve(model, *rest, closing("gpt2"), **SMALL)
    pd.testing.assert_frame_equal(first, table)
    for name, expected in (("curves", table), ("areas", areas(table))):
        pd.testing.assert_frame_equal(bare(study.load(f"{name}-loss")), bare(expected))
    assert study.names() == ["areas-loss", "curves-loss"]
    with forwards(model, 0):
        again = ablation_curve(model, *rest, closing("gpt2"), study=study, **SMALL)
    pd.testing.assert_frame_equal(bare(again), bare(first))
    assert not caplog.messages


@pytest.mark.parametrize("name", ["areas", "curves"])
def test_a_table_that_was_removed_is_made_of_the_kept_statistics(name, tmp_path):
    study, (model, *rest) = hr.Study(tmp_path), given("gpt2")
    first = ablation_curve(model, *rest, closing("gpt2"), study=study, **SMALL)
    kept = study.load(f"{name}-loss")
    study.path(f"{name}-loss").unlink()
    with forwards(model, 0):
        again = ablation_curve(model, *rest, closing("gpt2"), study=study, **SMALL)
    pd.testing.assert_frame_equal(bare(again), bare(first))
    pd.testing.assert_frame_equal(study.load(f"{name}-loss"), kept)
    assert study.names() == ["areas-loss", "curves-loss"]


ELSE = {  # what differs, and whether the model runs for it
    "order": (lambda: {"orders": {"all": closing("gpt2")["all"][::-1], "three": closing("gpt2")["three"]}}, True),
    "name": (lambda: {"orders": dict(zip(("all", "two"), closing("gpt2").values(), strict=True))}, False),
    "steps": (lambda: {"steps": 2}, True),
    "replacement": (lambda: {"replacement": "uniform"}, True),
    "corpus": (lambda: {"corpus": corpus(7)}, True),
    "model": (lambda: {"model": zoo.tiny("gpt2", seed=1)}, True),
    "tokenizer": (lambda: {"tokenizer": tokens_of("bert")}, True),
    "n_resamples": (lambda: {"n_resamples": 30}, False),
    "seed": (lambda: {"seed": 1}, False),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ELSE)
def test_curves_of_something_else_are_computed_again(what, tmp_path, caplog):
    study = hr.Study(tmp_path, overwrite=True)
    names = ("model", "tokenizer", "corpus")
    first = dict(zip(names, given("gpt2"), strict=True)) | {"orders": closing("gpt2")} | SMALL
    ablation_curve(study=study, **first)
    make, runs = ELSE[what]
    other = first | make()
    with forwards(other["model"]) as seen:
        table = ablation_curve(study=study, **other)
    assert bool(seen[0]) == runs
    expected = ablation_curve(**other)
    pd.testing.assert_frame_equal(bare(table), bare(expected))
    pd.testing.assert_frame_equal(bare(study.load("areas-loss")), bare(areas(expected)))
    endings = ("was made with other options: computed again", ": areas-loss, curves-loss")
    assert all(message.endswith(endings) for message in caplog.messages)
    assert 1 <= len(caplog.messages) <= 2


@pytest.mark.slow
def test_curves_of_shorter_outputs_are_computed_again(tmp_path):
    study, (model, *rest) = hr.Study(tmp_path), given("marian", "bleu")
    options = SMALL | {"metric": "bleu"}
    first = ablation_curve(model, *rest, closing("marian"), study=study, **options)
    model.generation_config.max_new_tokens = 2
    found = ablation_curve(model, *rest, closing("marian"), study=study, **options)
    expected = ablation_curve(model, *rest, closing("marian"), **options)
    assert not np.allclose(expected["value"], first["value"])
    np.testing.assert_allclose(found["value"], expected["value"])


def test_metrics_and_kinds_have_tables_of_their_own(tmp_path):
    study, options = hr.Study(tmp_path), {"steps": 1, "n_resamples": 0}
    for one, kind in (("loss", None), ("loss", "dec-self"), ("top", None)):
        ablation_curve(*given("gpt2"), closing("gpt2"), metric=one, kind=kind, study=study, **options)
    names = ["loss", "loss-dec-self", "top"]
    assert study.names() == [f"{what}-{name}" for what in ("areas", "curves") for name in names]


# --- metrics by name ------------------------------------------------------------------------------------------------


def test_objectives_are_metrics_by_name_and_as_they_are():
    names = ("top", "reference", "class", "similarity")
    assert set(OBJECTIVES) - set(METRICS) == set(names)
    for name in names:
        assert metric(name) == Of(OBJECTIVES[name]())
        assert metric(name).name == name
    given = Of(ClassLogit(of="label"))
    assert metric(ClassLogit(of="label")) == given
    assert metric(given) is given
    assert {metric("loss"), metric("agreement")} <= set(METRICS.values())
    assert repr(metric("class")) != repr(given)  # by which files of a sweep are known


def test_top_is_the_mean_of_the_largest_logits():
    found = sweep(*given("gpt2"), [], metric("top"))
    largest = by_token(given("gpt2")[0], "gpt2", lambda logits, _: logits[:, [0, *range(2, zoo.VOCABULARY)]].amax(-1))
    assert found.metric.compute(found.intact.sum(0)) == pytest.approx(float(largest.mean()), rel=1e-6)
    assert found.intact[:, 1].sum() == len(largest)


UNKNOWN = (
    "unknown metric 'nonsense'; known: loss, perplexity, agreement, accuracy, f1, matthews, bleu, chrf, "
    "pair_accuracy, pair_difference, top, "
    "reference, class, similarity"
)


def test_an_unknown_metric_is_refused_with_the_known_ones_before_anything_runs(tmp_path):
    model, *rest = given("gpt2")
    for run_it in (
        lambda: metric("nonsense"),
        lambda: ablation_curve(model, *rest, closing("gpt2"), metric="nonsense"),
        lambda: ablation_curve(model, *rest, closing("gpt2"), metric="nonsense", study=hr.Study(tmp_path)),
        lambda: ablate(model, *rest, metric="nonsense"),
    ):
        with forwards(model, 0), pytest.raises(ValueError, match=whole(UNKNOWN)):
            run_it()
    assert not list(tmp_path.iterdir())


# --- correlations ---------------------------------------------------------------------------------------------------

MANY = frame.index({(kind, layer): 8 for kind in frame.KINDS for layer in range(4)})  # 96 heads
ONE_KIND = frame.index({("enc-self", layer): 8 for layer in range(12)})
NUMBERS = [f"{name}{end}" for name in ("pearson", "spearman") for end in ("", ".low", ".high")]


def related(index=MANY, *, seed=0, correlation=0.6, decimals=None):
    """Two columns of normal numbers with a correlation."""
    one, noise = np.random.default_rng(seed).normal(size=(2, len(index)))
    pair = one, correlation * one + math.sqrt(1 - correlation**2) * noise
    return [pd.Series(each if decimals is None else each.round(decimals), index) for each in pair]


@pytest.mark.parametrize("decimals", [None, 1])
def test_correlations_are_scipys_over_all_heads_and_by_kind(decimals):
    one, other = related(decimals=decimals)
    found = correlations(one, other)
    assert list(found.index) == ["all", *frame.KINDS]
    assert list(found) == ["heads", *NUMBERS]
    assert found["heads"].tolist() == [96, 32, 32, 32]
    for name, row in found.iterrows():
        pair = [each if name == "all" else each[each.index.get_level_values("kind") == name] for each in (one, other)]
        assert row["pearson"] == pytest.approx(scipy.stats.pearsonr(*pair).statistic, abs=1e-12)
        assert row["spearman"] == pytest.approx(scipy.stats.spearmanr(*pair).statistic, abs=1e-12)


def test_heads_are_matched_by_what_they_are_and_not_by_their_rows():
    one, other = related()
    shuffled = other.sample(frac=1, random_state=0)
    names = ["pearson", "spearman"]
    for pair in ((one, shuffled), (shuffled, one)):
        found = correlations(*pair).loc[["all", *frame.KINDS], names]
        np.testing.assert_allclose(found, correlations(one, other)[names], atol=1e-12)


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.6, 0.99])
def test_an_interval_holds_what_it_is_of(correlation):
    for seed in range(5):
        found = correlations(*related(seed=seed, correlation=correlation))
        for name in ("pearson", "spearman"):
            assert (found[f"{name}.low"] <= found[name]).all()
            assert (found[name] <= found[f"{name}.high"]).all()
            assert found[[f"{name}.low", f"{name}.high"]].abs().le(1 + 1e-12).all(axis=None)


@pytest.mark.slow
def test_intervals_cover_a_planted_correlation():
    rows = [correlations(*related(ONE_KIND, seed=seed)).loc["all"] for seed in range(200)]
    found = pd.DataFrame(rows)
    planted = {"pearson": 0.6, "spearman": 6 / math.pi * math.asin(0.3)}  # the rank correlation of normal numbers
    for name, value in planted.items():
        covered = ((found[f"{name}.low"] <= value) & (value <= found[f"{name}.high"])).mean()
        assert 0.88 <= covered <= 0.99
        assert ((found[f"{name}.low"] <= found[name]) & (found[name] <= found[f"{name}.high"])).all()


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -0.3])
def test_effects_that_are_all_alike_have_no_correlation(value):
    one, other = related()
    flat = one * 0 + value
    for pair in ((flat, other), (one, flat), (flat, flat)):
        found = correlations(*pair)
        assert found["heads"].tolist() == [96, 32, 32, 32]
        assert found[NUMBERS].isna().all(axis=None)


def test_where_only_a_kind_is_all_alike_the_others_have_theirs():
    one, other = related()
    one[one.index.get_level_values("kind") == "cross"] = 0.25
    found = correlations(one, other)
    assert found.loc["cross", NUMBERS].isna().all()
    assert found.drop("cross").notna().all(axis=None)


def test_tables_of_different_heads_are_refused():
    one, other = related()
    elsewhere = frame.index({(kind, layer): 8 for kind in ("enc-self", "dec-self") for layer in range(6)})
    for pair, sizes in (
        ((one, other[:40]), "96 and 40 rows, 40"),
        ((one[:40], other), "40 and 96 rows, 40"),
        ((one[:50], other[40:]), "50 and 56 rows, 10"),
        ((one, related(elsewhere)[0]), "96 and 96 rows, 64"),
    ):
        with pytest.raises(ValueError, match=f"^the tables are of different heads: got {sizes} in common; "):
            correlations(*pair)


def test_of_one_kind_there_is_one_row():
    found = correlations(*related(ONE_KIND))
    assert list(found.index) == ["all"]
    assert found["heads"].tolist() == [96]


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """A terminal as wide as the tables."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Tiny checkpoints, two parallel corpora and a study of the first for each: "news" and "talks"."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("marian", "bert"):
        zoo.tiny(name).save_pretrained(folder / name)
        tokens_of(name).save_pretrained(folder / name)
    for name, part in (("news", corpus(24)[:12]), ("talks", corpus(24)[12:])):
        (folder / f"{name}.en").write_text("".join(f"{sentence.text}\n" for sentence in part))
        (folder / f"{name}.de").write_text("".join(f"{sentence.target.text}\n" for sentence in part))
    return folder


def translations(place, name):
    return place / f"{name}.en", place / f"{name}.de"


@pytest.fixture(scope="module")
def studies(place):
    """Every head closed on both corpora."""
    common = ["--resamples", 20, "--device", "cpu"]
    for name in ("news", "talks"):
        done = run("ablate", place / "marian", *translations(place, name), "--study", place / name, *common)
        assert (done.code, done.err) == (0, "")
    return place / "news", place / "talks"


@pytest.fixture(scope="module")
def scored(place):
    """A study with the importance of the heads of an encoder."""
    folder = place / "scored"
    options = ["--study", folder, "--scores", "importance", "--resamples", 0, "--device", "cpu"]
    done = run("score", place / "bert", place / "news.en", *options)
    assert done.code == 0, done.err
    return folder


@pytest.mark.slow
def test_the_command_masks_by_a_column_both_ways(place, scored):
    common = ["--study", scored, "--seeds", 2, "--steps", 4, "--resamples", 10, "--device", "cpu"]
    by = ["--by", "importance,-importance"]
    done = run("ablation-curve", place / "bert", place / "talks.en", *by, *common, figures=True)
    assert (done.code, done.err) == (0, "")
    table = load_table(scored / "curves-agreement.parquet")
    assert set(table["order"]) == {"importance", "-importance", "random 0", "random 1"}
    assert table["closed"].unique().tolist() == [0, 2, 4, 6, 8]
    model, tokenizer = loading.load(place / "bert")
    listed = orders(hr.Study(scored).scores(), ["importance", "-importance"], seeds=2)
    expected = ablation_curve(model, tokenizer, hr.read(place / "talks.en"), listed, steps=4, n_resamples=10)
    pd.testing.assert_frame_equal(bare(table), bare(expected))
    area = areas(expected)
    pd.testing.assert_frame_equal(bare(load_table(scored / "areas-agreement.parquet")), bare(area))
    rows = re.findall(r"^│ (\S.*?) +│ +(-?[\d.]+) \[", done.out, re.M)
    assert rows == [(name, f"{value:.3f}") for name, value in area["area"].items()]
    assert (scored / "curves-agreement.png").exists()


@pytest.mark.slow
def test_curve_takes_a_column_with_a_minus_alone(place, scored):
    common = ["--study", scored, "--seeds", 0, "--steps", 1, "--resamples", 0, "--metric", "top", "--device", "cpu"]
    done = run("ablation-curve", place / "bert", place / "talks.en", "--by", "-importance", *common)
    assert (done.code, done.err) == (0, "")
    assert load_table(scored / "curves-top.parquet")["order"].unique().tolist() == ["-importance"]


def test_curve_by_what_is_not_there_is_one_line(place, scored):
    start = "ablation-curve", place / "bert", place / "talks.en", "--study", scored
    message = "no column '-nothing' to order heads by; known: importance"
    assert run(*start, "--by", "importance,-nothing") == line(message)
    assert run(*start, "--metric", "nonsense") == line(UNKNOWN)


@pytest.mark.slow
def test_a_study_of_two_fills_can_still_be_ordered_by_its_scores(place, scored, tmp_path):
    (tmp_path / "heads.parquet").write_bytes((scored / "heads.parquet").read_bytes())
    common = ["--study", tmp_path, "--resamples", 0, "--device", "cpu"]
    for replacement in ("zero", "mean"):
        assert run("ablate", place / "bert", place / "news.en", "--replacement", replacement, *common).code == 0
    done = run("ablation-curve", place / "bert", place / "talks.en", "--seeds", 0, "--steps", 1, *common)
    assert (done.code, done.err) == (0, "")


@pytest.mark.slow
def test_the_plan_rest_prints_the_best_head_of_each_layer(place, tmp_path):
    common = ["--study", tmp_path, "--resamples", 20, "--device", "cpu"]
    done = run("ablate", place / "bert", place / "news.en", "--unit", "all_but_one", *common)
    assert (done.code, done.err) == (0, "")
    titles = "the best head to keep alone", "the best head to keep alone, chosen on one half, measured on the other"
    for name, title in zip(("best-loss-zero", "best-loss-zero-halves"), titles, strict=True):
        part = re.split(rf"^ *{title} *$", done.out, maxsplit=1, flags=re.M)[1]
        table = hr.Study(tmp_path).load(name)
        assert list(table.index) == [("enc-self", 0), ("enc-self", 1)]
        printed = re.findall(r"^│ (.+?) +│ +(-?[\d.]+) \[", part, re.M)[: len(table)]
        rows = [(f"{kind} layer {layer}: head {row['head']:.0f}", row) for (kind, layer), row in table.iterrows()]
        assert printed == [(label, f"{row['effect']:.3f}") for label, row in rows]
    effects = hr.Study(tmp_path).load("ablation-loss-rest-zero")["ablation[loss rest]"]
    best = effects.groupby(["kind", "layer"], sort=False).idxmin().tolist()  # the loss is better when it is less
    kept = hr.Study(tmp_path).load("best-loss-zero")["head"]
    assert [(*key, head) for key, head in kept.items()] == best
    assert "keep alone" not in run("ablate", place / "bert", place / "news.en", *common).out
