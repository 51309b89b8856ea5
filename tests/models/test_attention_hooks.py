"""Two threads on one model, and interrupted forwards: no number is of another thread or of another layer."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.attentions import own_attentions
from helpers.letters import corpus, scored, scores_for, tokens_of
from torch.overrides import _get_current_function_mode_stack

import headroles as hr
from headroles.models import attention_hooks, batching, masking
from headroles.models.dummy_inputs import examples
from headroles.models.head_model import HeadModel
from headroles.models.heads import capture_attention
from headroles.pruning.learned_gates import L0, frozen, train_gates
from headroles.scores import Attribution

WAIT = 30  # seconds after which a thread that should have gone on is taken to hang


class Threads:
    """Runs functions in threads and returns their results, or raises their errors."""

    def __init__(self):
        self.found, self.running = {}, []

    def start(self, name, run):
        def keep():
            try:
                self.found[name] = run()
            except Exception as error:
                self.found[name] = error

        self.running.append(threading.Thread(target=keep, daemon=True))
        self.running[-1].start()
        return self.running[-1]

    def join(self):
        for thread in self.running:
            thread.join(WAIT)
            assert not thread.is_alive()
        return self.found


def traces(model):
    """The state that a block changes and has to restore."""
    hooks = [(len(m._forward_pre_hooks), len(m._forward_hooks)) for m in model.modules()]
    names = [config._attn_implementation for config in attention_hooks.configs_of(model.modules())]
    grads = [parameter.requires_grad for parameter in model.parameters()]
    return hooks, names, grads, [m.training for m in model.modules()], [*dict(model.named_modules())]


def blocks(model):
    """Every block that changes a model."""
    ones = torch.ones(8 * (3 if model.config.is_encoder_decoder else 1))
    learnt = [("enc-self", 0, 0)]
    given = L0(strength=0.1).gates(model, learnt, None)
    return {
        "attending": lambda: attention_hooks.attending(model, lambda _: None),
        "evaluating": lambda: attention_hooks.evaluating(model),
        "gated": lambda: masking.mask_heads(model, ones),
        "uniform": lambda: masking.mask_heads(model, ones, replacement="uniform"),
        "watched": lambda: capture_attention(model, lambda *_: None),
        "in parts": lambda: HeadModel(model).capture(lambda *_: None, cells=1),
        "ruled": lambda: hr.lrp_rules(model, "cp"),
        "learning": lambda: train_gates(model, given),
        "frozen": lambda: frozen(model, "all"),
    }


def assert_waits(first, second, seconds=0.05):
    """The function `second` of another thread ends only after the block that `first` makes."""
    inside, leave, order, threads = threading.Event(), threading.Event(), [], Threads()

    def block():
        with first():
            inside.set()
            assert leave.wait(WAIT)
            order.append("first")

    def other():
        second()
        order.append("second")

    threads.start("first", block)
    assert inside.wait(WAIT)
    threads.start("second", other).join(seconds)
    assert order == []
    leave.set()
    assert threads.join() == {"first": None, "second": None}
    assert order == ["first", "second"]


def entered(block):
    with block:
        pass


@pytest.mark.parametrize("name", [*blocks(zoo.tiny("bert"))])
def test_a_block_waits_until_that_of_another_thread_ends(name):
    model = zoo.tiny("bert")
    own, before = blocks(model)[name], traces(model)
    assert_waits(own, lambda: entered(own()))
    assert traces(model) == before


def test_a_block_waits_for_a_block_of_a_part_of_the_model():
    model = zoo.tiny("marian")

    @contextmanager
    def first():
        with attention_hooks.evaluating(model.get_encoder()), attention_hooks.evaluating(model):
            yield

    assert_waits(first, lambda: entered(attention_hooks.evaluating(model.get_decoder())))


def test_means_of_heads_wait_until_a_block_of_another_thread_ends():
    model = zoo.tiny("bert")
    batches = [*batching.batches(batching.encode(corpus(3), tokens_of("bert"), model), model)]
    hr.attention_sites(model)  # looked for once, which waits, too
    assert_waits(lambda: attention_hooks.evaluating(model), lambda: masking.mean(model, batches), 0.5)


def test_a_forward_of_another_thread_is_an_error_while_a_block_is_open():
    model, inputs, seen = zoo.tiny("bert"), examples(zoo.tiny("bert")), []
    with torch.no_grad(), capture_attention(model, lambda site, _: seen.append(site)):
        threads = Threads()
        for name, called in ("model", model), ("body", model.base_model):
            threads.start(name, lambda called=called: called(**inputs))
        found = threads.join()
        assert seen == []
        model(**inputs)
    assert len(seen) == 2
    for error in found.values():
        assert isinstance(error, RuntimeError)
        assert "was called by one thread while another thread masks or observes it" in str(error)
    assert model(**inputs).logits is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "marian"])
def test_tables_of_two_threads_are_those_of_one(name):
    """Both start together; each batch is a chance for the other thread to get in between."""
    model, start = zoo.tiny(name), threading.Barrier(2)
    before = traces(model)

    def run():
        start.wait(WAIT)
        return hr.score(model, tokens_of(name), corpus(), scores_for(name), max_tokens=64, n_resamples=0)

    threads = Threads()
    for number in range(2):
        threads.start(number, run)
    for table in threads.join().values():
        expected = scored(name)[list(table)]
        np.testing.assert_allclose(table.to_numpy(), expected.to_numpy(), rtol=1e-5, atol=1e-6)
    assert traces(model) == before


def test_models_that_share_a_config_keep_their_attention():
    """The first thread enters first and leaves first: the second still sees its attention, and all is as it was."""
    one = zoo.tiny("bert")
    other = type(one)(one.config).eval()
    assert other.config is one.config
    before, inside, left = one.config._attn_implementation, threading.Event(), threading.Event()
    inputs, entered = examples(one), threading.Event()

    def first():
        with attention_hooks.attending(one, lambda _: None):
            inside.set()
            assert entered.wait(WAIT)
        left.set()

    def second():
        seen = []
        assert inside.wait(WAIT)
        with attention_hooks.attending(other, seen.append), torch.no_grad():
            entered.set()
            assert left.wait(WAIT)
            other(**inputs)
        return len(seen)

    threads = Threads()
    threads.start("first", first)
    threads.start("second", second)
    assert threads.join() == {"first": None, "second": 2}
    assert one.config._attn_implementation == before != attention_hooks.NAME


def test_attributions_of_two_models_draw_each_for_itself():
    """captum draws from states that all threads share."""
    start = threading.Barrier(2)
    asked = Attribution(method="ShapleyValueSampling", options=(("n_samples", 2),))
    alone = hr.score(zoo.tiny("bert"), tokens_of("bert"), corpus(4), asked, n_resamples=0, max_tokens=24)

    def run(model):
        start.wait(WAIT)
        return hr.score(model, tokens_of("bert"), corpus(4), asked, n_resamples=0, max_tokens=24)

    threads = Threads()
    for number, model in enumerate([zoo.tiny("bert"), zoo.tiny("bert")]):
        threads.start(number, partial(run, model))
    for table in threads.join().values():
        np.testing.assert_array_equal(table, alone)


# --- forwards that fail half way ------------------------------------------------------------------------------------


class Broken(BaseException):
    """What no `except Exception` catches, as Ctrl-C."""


@pytest.fixture(params=[RuntimeError, Broken], ids=["error", "interrupt"])
def failing(request):
    """ALBERT calls one layer twice; a forward that fails after the first call."""
    model = zoo.tiny("albert")
    layer, kind = model.albert.encoder.albert_layer_groups[0].albert_layers[0].ffn, request.param

    def fail():
        def stop(*_):
            raise kind("half way")

        hook = layer.register_forward_pre_hook(stop)
        try:
            with pytest.raises(kind, match="half way"):
                model(**examples(model))
        finally:
            hook.remove()

    return model, fail


def test_masking_assigns_layers_after_a_failed_forward(failing):
    model, fail = failing
    shut, inputs = torch.tensor([0.0, 1, 1, 1, 1, 1, 1, 1]), examples(model)
    with torch.no_grad(), hr.mask_heads(model, shut):
        expected = model(**inputs).logits
        fail()
        assert torch.equal(model(**inputs).logits, expected)
    with torch.no_grad(), hr.mask_heads(model, shut.flip(0)):
        assert not torch.allclose(model(**inputs).logits, expected, atol=1e-4)


@pytest.mark.parametrize("cells", [None, 1])
def test_capture_assigns_layers_after_a_failed_forward(failing, cells):
    model, fail = failing
    inputs, seen = examples(model), []

    def look(site, weights, first=0, _=None):
        if first == 0:
            seen.append((site.layer, weights[:, :, :1]))

    block = capture_attention(model, look) if cells is None else HeadModel(model).capture(look, cells=cells)
    expected = own_attentions(model, inputs)
    with torch.no_grad(), block:
        fail()
        seen.clear()
        model(**inputs)
    assert [layer for layer, _ in seen] == [0, 1]
    for layer, weights in seen:
        torch.testing.assert_close(weights, expected["enc-self", layer][:, :, :1], rtol=1e-5, atol=1e-6)


def test_lrp_rules_end_after_a_failed_forward(failing):
    model, fail = failing
    inputs = examples(model)

    def relevance():
        ones = torch.ones(8, requires_grad=True)
        with hr.mask_heads(model, ones):
            return torch.autograd.grad(model(**inputs).logits.sum(), ones)[0]

    with hr.lrp_rules(model, "cp"):
        expected = relevance()
        fail()
        assert torch.equal(relevance(), expected)
        fail()
    assert _get_current_function_mode_stack() == []


def test_a_failed_forward_is_no_training_step(failing):
    model, fail = failing
    given, inputs = L0(strength=0.1).gates(model, _index(model), None), examples(model)
    given.horizon = 4
    with train_gates(model, given):
        model.train()
        model(**inputs, labels=inputs["input_ids"])
        fail()
        model(**inputs, labels=inputs["input_ids"])
    assert int(given.step) == 2


def _index(model):
    return [("enc-self", site.layer, number) for site in hr.attention_sites(model) for number in site.numbers]
