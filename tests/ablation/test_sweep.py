"""A sweep keeps finished batches, resumes, and refuses what would be kept under a wrong name."""

from __future__ import annotations

import copy
import gc
import weakref

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from helpers import zoo
from helpers.ablations import ALL, Stopping, closing, column, files, given, groups, mean, sweep, terse
from helpers.close import close
from helpers.letters import batches_of, corpus, tokens_of
from helpers.messages import whole
from helpers.objectives import classifier, labelled
from helpers.sweeps import ablated, equal, swept
from helpers.syncs import per_batch

import headroles as hr
from headroles.ablation import forward_cache
from headroles.ablation.metrics import BLEU, ChrF, Loss
from headroles.ablation.sweep import Sweep
from headroles.data.corpus import Corpus, Tokens
from headroles.models import heads as families
from headroles.models.head_model import HeadModel

FEW = {"n_resamples": 20, "max_tokens": 80}  # several batches


def setting(name="gpt2"):
    return zoo.tiny(name), tokens_of(name), corpus(6)


def alone(*ids, target=None):
    return Tokens("", ids=ids, target=target)


# --- what is kept ---------------------------------------------------------------------------------------------------


# --- numbers that are none ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentences"),
    [
        ("gpt2", [alone(5), alone(6)]),  # nothing comes after the only token
        ("gpt2", [alone(), alone()]),
        ("bert", [alone(), alone()]),
        ("marian", [alone(5, 6, target=alone()), alone(7, target=alone())]),
    ],
)
@pytest.mark.parametrize("options", [{}, {"precision": 1.5}])
def test_what_has_nothing_to_measure_is_refused_with_its_examples(name, sentences, options):
    said = "loss has no value: got nothing to measure in example 1, 2 of 2; expected a token or label"
    with pytest.raises(ValueError, match=said):
        hr.ablate(zoo.tiny(name), tokens_of(name), Corpus("x", tuple(sentences)), n_resamples=10, **options)


def test_an_example_that_has_nothing_adds_nothing():
    model, tokenizer, _ = setting()
    some = [alone(5, 6, 7), alone(8), alone(6, 7, 9, 10)]
    found = hr.ablate(model, tokenizer, Corpus("x", tuple(some)), n_resamples=0)
    expected = hr.ablate(model, tokenizer, Corpus("x", (some[0], some[2])), n_resamples=0)
    np.testing.assert_allclose(found.iloc[:, 0], expected.iloc[:, 0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("metric", ["loss", "agreement"])
def test_a_single_example_has_no_interval(metric):
    model, tokenizer, text = setting()
    table = hr.ablate(model, tokenizer, text[:1], metric=metric, n_resamples=30)
    name = f"ablation[{metric}]"
    assert table[name].notna().all()
    assert table[[f"{name}.low", f"{name}.high"]].isna().all(axis=None)
    assert table[[f"{name}.p", f"{name}.holm", f"{name}.bh"]].isna().all(axis=None)
    assert hr.evaluate(model, tokenizer, text[:1], [metric], n_resamples=30)[["low", "high"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("name", "metric"),
    [("gpt2", "agreement"), ("classifier", "agreement"), ("classifier", "accuracy"), ("classifier", "f1"),
     ("classifier", "matthews"), ("marian", "bleu"), ("marian", "chrf")],
)  # fmt: skip
def test_logits_that_are_no_number_are_no_agreement(name, metric):
    model = copy.deepcopy(classifier()) if name == "classifier" else terse() if name == "marian" else zoo.tiny(name)
    text = labelled() if name == "classifier" else corpus(6)
    with torch.no_grad():
        if name == "marian":
            model.final_logits_bias[:] = float("nan")
        else:
            (model.classifier if name == "classifier" else model.lm_head).weight[:] = float("nan")
    tokenizer = tokens_of("bert" if name == "classifier" else name)
    with pytest.raises(ValueError, match=rf"^{metric} of the intact model is not finite on sentence \d"):
        hr.ablate(model, tokenizer, text, metric=metric, n_resamples=0)


# --- effects --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "replacement"),
    [("marian", "zero"), ("marian", "resample"), ("classifier", "mean"), ("gpt2", "uniform"), ("gpt2", "rescale")],
)
def test_neither_how_many_go_together_nor_batches_matter(name, replacement):
    expected = ablated(name, replacement=replacement)[column("head", replacement=replacement)]
    for at_once, max_tokens in ((3, ALL), (1, 40)):
        found = swept(*given(name), replacement=replacement, variants_at_once=at_once, max_tokens=max_tokens)
        close(found, expected, size=mean(name, frozenset()), operations=32)


def test_a_large_vocabulary_lets_fewer_variants_go_together(monkeypatch):
    expected, rows = ablated("marian"), []

    class Watching(Loss):
        def update(self, observation):
            rows.append(observation.output.logits.shape[:2].numel())
            return super().update(observation)

    ablated("marian", metric=Watching())
    most, vocabulary = max(rows), zoo.tiny("marian").get_output_embeddings().weight.shape[0]
    rows.clear()
    monkeypatch.setattr("headroles.ablation.sweep.LOGITS", most * vocabulary // 4)
    found = ablated("marian", metric=Watching())
    assert max(rows) <= most // 2
    close(found[column("head")], expected[column("head")], size=mean("marian", frozenset()), operations=32)


def test_logits_are_free_before_the_next_forward():
    """Without the garbage collector: of a long text they are gigabytes."""
    seen = []

    class Watching(Loss):
        def update(self, observation):
            assert {logits() for logits in seen} <= {None}
            seen.append(weakref.ref(observation.output.logits))
            return super().update(observation)

    gc.disable()
    try:
        ablated("gpt2", metric=Watching(), max_tokens=40)
    finally:
        gc.enable()
    assert len(seen) > 2


class Counting(Loss):
    """The loss, and how many examples it was read of."""

    seen = 0

    def update(self, observation):
        self.seen += len(observation.batch.numbers)
        return super().update(observation)


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "variants"), [("head", 24), ("all_but_one", 24), ("layer", 6), ("kind", 3)])
def test_what_several_heads_share_is_measured_once(unit, variants):
    metric = Counting()
    pd.testing.assert_frame_equal(ablated("marian", metric=metric, unit=unit), ablated("marian", unit=unit))
    assert metric.seen == 6 * (1 + variants)


class Large(Loss):
    """The loss, for which there is no memory of more than `most` rows."""

    def __init__(self, most):
        self.most = most

    def update(self, observation):
        if len(observation.batch.numbers) > self.most:
            raise MemoryError("no room")
        return super().update(observation)


def test_out_of_memory_fewer_go_together(caplog):
    pd.testing.assert_frame_equal(ablated("gpt2", metric=Large(12)), ablated("gpt2"))
    start, end = "out of memory (no room): ", " variants at a time from here on"
    messages = [record.message for record in caplog.records if record.name == "headroles.ablation.sweep"]
    assert messages == [f"{start}{many}{end}" for many in (4, 2)]
    with pytest.raises(MemoryError):
        ablated("gpt2", metric=Large(5))


# --- going on -------------------------------------------------------------------------------------------------------

ONE = {"max_tokens": 20, "variants_at_once": 1}  # batches of a sentence or two, variants one after the other


def swept_by_kind(folder=None, **options):
    """The statistics of a Marian without the heads of each kind."""
    model, tokenizer, text = given("marian")
    kinds = list(dict.fromkeys(closing("marian", "kind")))
    return sweep(model, tokenizer, text, kinds, **{"metric": Loss(), "folder": folder, **options})


@pytest.mark.parametrize(("kept", "parts"), [(64, 2), (2, 4)])  # variants that are kept together
def test_a_sweep_resumes_after_its_last_finished_part_of_a_batch(tmp_path, monkeypatch, kept, parts):
    metric, expected = Stopping(), swept_by_kind()
    monkeypatch.setattr("headroles.ablation.sweep.KEPT", kept)
    metric.after = 10 if kept == 64 else 11  # the intact model and three kinds in two batches, and two in the third
    with pytest.raises(InterruptedError):
        swept_by_kind(tmp_path, metric=metric, **ONE)
    finished = files(tmp_path)
    assert len(finished) == parts
    metric.after = 10**9
    found = swept_by_kind(tmp_path, metric=metric, **ONE)
    for masked, values in found.masked.items():
        close(values[np.argsort(found.numbers)], expected.masked[masked][np.argsort(expected.numbers)], operations=16)
    assert len(files(tmp_path)) > 3
    assert finished.items() <= files(tmp_path).items()


def test_a_finished_sweep_is_read(tmp_path):
    first = swept_by_kind(tmp_path, **ONE)
    finished = files(tmp_path)
    assert len(finished) > 1
    equal(swept_by_kind(tmp_path, seed=1, **ONE), first)
    assert files(tmp_path) == finished


ELSE = {  # what differs, of what a translator writes of three sentences
    "model": lambda: {"model": terse(seed=1)},
    "generation": lambda: {"model": terse(most=6)},
    "tokenizer": lambda: {"tokenizer": tokens_of("bert")},
    "corpus": lambda: {"text": corpus(4)},
    "replacement": lambda: {"replacement": "mean"},
    "variants": lambda: {"variants": closing("marian", "layer")[:1]},
    "metric": lambda: {"metric": BLEU()},
    "beams": lambda: {"metric": ChrF(2)},
    "max_tokens": lambda: {"max_tokens": 160},
}


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """What a sweep was made from, and the folder with what it kept."""
    first = {"model": terse(), "tokenizer": tokens_of("marian"), "text": corpus(3), "metric": ChrF()}
    first |= {"variants": list(dict.fromkeys(closing("marian", "kind"))), "max_tokens": ALL}
    folder = tmp_path_factory.mktemp("kept")
    sweep(**first, folder=folder)
    return first, folder


@pytest.mark.slow
@pytest.mark.parametrize("what", ELSE)
def test_what_was_made_from_something_else_is_not_read(what, unfinished):
    first, folder = unfinished
    before, other = files(folder), first | ELSE[what]()
    equal(sweep(**other, folder=folder), sweep(**other))
    assert before.items() < files(folder).items()


def test_what_is_not_finite_says_where_and_keeps_what_is_finished(tmp_path):
    model, tokenizer, text = given("gpt2")
    variants = [frozenset([head]) for head in families.head_index(model)]
    groups = batches_of(model, tokenizer, text, max_tokens=20)
    metric = Stopping()
    metric.after, metric.fails = len(variants) + 1 + 3, False  # in the second batch, of the third variant
    numbers = groups[1].numbers
    listed = ", ".join(str(number + 1) for number in sorted(numbers))
    message = (
        f"loss of the model without [('dec-self', 0, 2)] is not finite on sentence {listed} of the corpus; look for "
        f"NaN or infinite weights in GPT2LMHeadModel; finished batches are kept"
    )
    with pytest.raises(ValueError, match=whole(message)):
        sweep(model, tokenizer, text, variants, metric, folder=tmp_path, **ONE)
    assert len(files(tmp_path)) == 1


# --- the vocabulary projection --------------------------------------------------------------------------------------


class Spread(Loss):
    """A metric of the user: the mean size of all logits, also of steps that do not count."""

    name = "spread"

    def update(self, observation):
        sizes = observation.output.logits.double().abs().mean((1, 2))
        return torch.stack([sizes, torch.ones_like(sizes)], 1).numpy()


def plain(model, name, metric):
    """The sum of a metric over the corpus, by the model's forward and the labels of its batch."""
    (batch,) = groups(name)
    logits = model(**batch.inputs, use_cache=False).logits.double() if name != "bert" else model(**batch.inputs).logits
    if metric.name == "spread":
        return float(logits.double().abs().mean((1, 2)).sum())
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    if name == "bert":  # of each token but special ones
        labels = ids.masked_fill(~batch.source.content, -100)
    elif name == "gpt2":
        logits, labels = logits[:, :-1], ids.masked_fill(mask == 0, -100)[:, 1:]
    else:
        labels = batch.labels
    return float(F.cross_entropy(logits.double().flatten(0, 1), labels.flatten(), reduction="sum"))


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian"])
def test_the_vocabulary_is_projected_at_the_steps_that_count_alone(name, monkeypatch):
    model, tokenizer, text = given(name)
    variants, rows = [frozenset({head}) for head in list(families.head_index(model))[:3]], list[int]()
    projection = model.get_output_embeddings()
    forward = projection.forward
    monkeypatch.setattr(projection, "forward", lambda states: rows.append(states.shape[:-1].numel()) or forward(states))
    alone, whole = (sweep(model, tokenizer, text, variants, metric, max_tokens=ALL) for metric in (Loss(), Spread()))
    monkeypatch.undo()
    steps = alone.intact[:, 1].sum()
    assert rows[:2] == [steps, 3 * steps]  # the intact model, and the variants together
    assert min(rows[2] - steps, rows[3] - 3 * steps) > 0  # a subclass has all logits
    for masked in variants:
        with torch.no_grad(), hr.mask_heads(model, hr.head_mask(model, masked)):
            assert alone.masked[masked][:, 0].sum() == pytest.approx(plain(model, name, Loss()), rel=1e-5)
            assert whole.masked[masked][:, 0].sum() == pytest.approx(plain(model, name, Spread()), rel=1e-5)


def test_all_tokens_are_projected_where_nearly_all_are_steps(monkeypatch):
    model, tokenizer, text = given("gpt2")
    variants, rows = [frozenset({head}) for head in list(families.head_index(model))[:3]], list[int]()
    chosen = sweep(model, tokenizer, text, variants, Loss(), max_tokens=ALL)
    forward = model.lm_head.forward
    monkeypatch.setattr(
        model.lm_head, "forward", lambda states: rows.append(states.shape[:-1].numel()) or forward(states)
    )
    monkeypatch.setattr(forward_cache, "MOST", 0.5)
    every = sweep(model, tokenizer, text, variants, Loss(), max_tokens=ALL)
    assert rows[0] > every.intact[:, 1].sum()
    assert rows[1] == 3 * rows[0]
    assert all(np.allclose(every.masked[masked], chosen.masked[masked], rtol=1e-6) for masked in variants)


def test_the_gates_of_variants_are_made_without_a_walk_of_the_model(monkeypatch):
    model, tokenizer, text = given("gpt2")
    run = Sweep(HeadModel.of(model, tokenizer), text, Loss())
    variants = [frozenset(), *(frozenset({head}) for head in families.head_index(model))]
    expected = torch.stack([hr.head_mask(model, masked) for masked in variants])
    monkeypatch.setattr(families, "_structure", None)
    assert torch.equal(run._gates(variants), expected)


def test_a_removed_head_that_is_kept_as_zeroed_does_not_remain():
    """Of four heads with shared keys one is removed: without another, two are left, each scaled by 3 / 2."""
    model, tokenizer, text = setting("llama-grouped")
    (first, *_) = hr.attention_sites(model)
    removed, other = (*first.key, 3), (*first.key, 0)
    hr.remove_heads(model, [removed])
    (first, *_) = hr.attention_sites(model)
    assert first.zeroed == (3,)
    table = hr.ablate(model, tokenizer, text, replacement="rescale", n_resamples=0)

    def scaled(_, args):
        z = args[0].unflatten(-1, (first.heads, first.size)) * 1.5
        z[:, :, 0] = 0
        return (z.flatten(-2),)

    losses = [hr.evaluate(model, tokenizer, text, ["loss"], n_resamples=0)["value"].iloc[0]]
    hook = first.out.register_forward_pre_hook(scaled)
    losses.append(hr.evaluate(model, tokenizer, text, ["loss"], n_resamples=0)["value"].iloc[0])
    hook.remove()
    close(table.loc[other].iloc[0], losses[1] - losses[0])


@pytest.mark.parametrize("replacement", ["zero", "mean"])
def test_the_host_looks_at_numbers_once_a_forward(replacement):
    model, tokenizer = zoo.tiny("marian").eval(), tokens_of("marian")
    forwards = []
    model.register_forward_hook(lambda *_: forwards.append(1))
    sizes = []

    def ablate(text):
        forwards.clear()
        hr.ablate(model, tokenizer, text, replacement=replacement, max_tokens=8, n_resamples=2)
        sizes.append(len(forwards))

    reads = per_batch(ablate, corpus(2), corpus(4))
    assert reads.pop("/ablation/forward_cache.py:first")  # of gates, which are on the host
    assert max(reads.values()) <= sizes[1] - sizes[0]
    assert sum(reads.values()) <= sizes[1] - sizes[0] + 2 * 8  # what each batch reads before its forwards
