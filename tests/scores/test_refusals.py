"""What scores refuse: the call, and the subject and the value that the message names; all are ValueErrors."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import planted, zoo
from helpers.errors import given_corpus, planted_scores, refuses
from helpers.letters import corpus, linked, tokens_of
from helpers.objectives import classifier, labelled
from helpers.relevance import relevance
from helpers.traces import _traces
from helpers.worded import ordered
from torch import nn

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.data.probes import CLASSES
from headroles.models import heads as families
from headroles.models.heads import layer_of
from headroles.scores.accumulator import Accumulator
from headroles.scores.attention_scores import Position, Resting, Sink
from headroles.scores.lrp import lrp_rules
from headroles.scores.lrp.conservation_report import NOTHING
from headroles.scores.objectives import ClassLogit, Explained, Loss
from headroles.scores.registry import named

SHORT = Corpus("short", (Sentence("a"), Sentence("b")))  # of one token each: nothing comes next
LONG = Corpus("long", (Sentence("a " * 60),) * 2)
DAYS = ordered(CLASSES["days"])


def score(name, scores, given=None, **options):
    model = zoo.tiny(name) if isinstance(name, str) else name
    tokens = tokens_of(name if isinstance(name, str) else "bert")
    return hr.score(model, tokens, corpus(4) if given is None else given, scores, n_resamples=0, **options)


def explain(name, objective, given=None):
    return score(name, hr.Relevance(objective=objective), given)


def attribute(name, **options):
    return hr.attribute(zoo.tiny(name), tokens_of(name), corpus(4), n_resamples=0, **{"method": "AtP*"} | options)


def states():
    """A model of hidden states alone."""
    return zoo.tiny("bert").base_model


def headless():
    model = zoo.tiny("bert")
    hr.remove_heads(model, list(families.head_index(model)))
    return model


def one_layer():
    return hr.attribute(hr.tiny_model("gpt2", n_layer=1, vocab_size=64), tokens_of("gpt2"), corpus(3), method="AtP*")


def shortened():
    """A layer that leaves out the last token."""
    model = hr.tiny_model("bert", vocab_size=64)
    layer_of(model, hr.attention_sites(model)[0]).register_forward_hook(lambda *args: args[2][:, :-1])
    return hr.attribute(model, tokens_of("bert"), Corpus("one", corpus(3)[:1]), method="AtP*")


def labels(label, objective):
    return explain(classifier(), objective, Corpus("labels", (Sentence("a b", label=label),)))


def quantised(place):
    model = zoo.tiny("bert")
    families.attention_sites(model)  # known already: their products need floats
    module = model.get_submodule(place)
    module.weight = nn.Parameter(module.weight.detach().to(torch.int8), requires_grad=False)
    return model


SCORES = {
    "unknown": (lambda: named("position-1"), "score must be one of .*'position-1'; try 'position'"),
    "neither name nor score": (lambda: named([3]), "score must be a name or an instance .*, got 3"),
    "twice": (lambda: named(["sink", Sink()]), "scores must be different, got 'sink' twice"),
    "none": (lambda: named([]), "scores must have an attention score .*, got none"),
    "resamples": (lambda: Accumulator([], n_resamples=-1, seed=0), "n_resamples must be an integer >= 0, got -1"),
    "seed": (lambda: Accumulator([], n_resamples=5, seed=2**64), "seed must be an integer >= 0 and < 1.*, got 1844"),
    "another kind": (lambda: score("bert", "alignment"), "'alignment' is for cross heads, .* only enc-self"),
    "no path": (lambda: score("bert", "direct"), "'direct' is for dec-self or cross heads, .* only enc-self"),
    "no trees": (lambda: score("bert", "syntax", corpus(trees=False)), "'syntax' needs .*'letters' for enc-self heads"),
    "no links": (lambda: score("marian", "links"), "'links' needs word links, got none in corpus 'letters'"),
    "links of one text": (lambda: score("marian", "links", linked().joined()), "'links' needs word links, got none"),
    "no translation to join": (lambda: Corpus.of(["a b"]).joined(), "'a b' must have a translation .*got none; try"),
    "an empty corpus": (lambda: score("bert", None, Corpus("nothing", ())), "corpus 'nothing' is empty"),
    "empty sentences": (lambda: score("bert", None, Corpus.of(("</s>", ""))),
        "corpus 'texts' must have content tokens"),
    "long sentences": (lambda: score("bert", None, LONG), "corpus 'long' must have a sentence of at most 40 tokens"),
    "no heads": (lambda: score(headless(), "importance"), "BertForMaskedLM has no heads left to measure"),
    "tokenizer": (
        lambda: planted_scores(given_corpus(Sentence("the")), model=zoo.tiny("bert")),
        rf"tokenizer does not fit .* up to {max(planted.vocabulary().values())}, BertForMaskedLM has embeddings for 64",
    ),
    "weights": (lambda: Position(weights="values"), "weights must be one of attention, norm, nosink, got 'values'"),
    "the sink without itself": (lambda: Sink(weights="nosink"), "weights must be one of attention, norm, got 'nosink'"),
    "least": (lambda: Resting(least=1), "least must be a number > 0 and < 1, got 1"),
    "norms of gradients": (lambda: score("bert", "importance", weights="norm"), "weights='norm' .*, got importance"),
    "no sink left": (lambda: named(["sink", "importance"], without_sink=True),
        "without_sink=True, got sink, importance"),
    "limit": (lambda: hr.attention_examples(zoo.tiny("bert"), tokens_of("bert"), corpus(2), limit=0), "limit .*got 0"),
    "no text": (lambda: hr.attention_examples(zoo.tiny("bert"), tokens_of("bert"), corpus(2), generate=4),
        "generate=4 .* got BertForMaskedLM"),
}  # fmt: skip
GRADIENTS = {
    "rules": (lambda: hr.Relevance("magic"), "rules must be one of cp, .*, got 'magic'"),
    "by": (lambda: hr.Relevance(by="heads"), "by must be one of layer, logit, got 'heads'"),
    "residue": (lambda: hr.Relevance(max_residue=-1), "max_residue must be a number >= 0, got -1"),
    "steps": (lambda: hr.Relevance(steps="first"), "steps must be one of all, sum, got 'first'"),
    "per": (lambda: hr.Importance(per="word"), "per must be one of example, token, batch, got 'word'"),
    "norm": (lambda: hr.Importance(norm="model"), "norm must be one of layer, None, got 'model'"),
    "unit": (lambda: hr.Importance(unit="layer"), "unit must be one of head, group, got 'layer'"),
    "method": (lambda: hr.Attribution(method="Magic"), "method must be one of .*, got 'Magic'"),
    "node": (lambda: attribute("gpt2", node="value"), "node must be one of output, query, key, got 'value'"),
    "patch": (lambda: attribute("gpt2", replacement="uniform"), "replacement must be one of zero, resample, got 'uni"),
    "resampled": (lambda: attribute("gpt2", method="InputXGradient", replacement="resample"),
        "replacement must be one of zero, uniform, got 'resample'"),
    "queries outside": (lambda: attribute("bloom", node="query"), "node must be 'output' for Bloom.*, got 'query'"),
    "one layer": (one_layer, "GradDrop needs two layers that are modules, got GPT2LMHeadModel"),
    "another shape": (shortened, r"shape of states, got one from \[1, (\d+), (\d+)\] to \[1, (?!\1)\d+, \2\]"),
    "no unembedding": (lambda: hr.score(zoo.tiny("gpt2").transformer, tokens_of("gpt2"), corpus(2), "direct"),
        r"direct\[reference\] needs logits over a vocabulary, got GPT2Model"),
    "no choice": (lambda: score("gpt2", hr.Direct(objective=hr.Difference())), NOTHING[:40]),
    "an encoder": (lambda: score("marian", hr.Direct(objective=hr.Difference())),
        "objective 'difference' needs a decoder without an encoder, got MarianMTModel"),
    **{f"single tokens {one}": (lambda one=one: score("gpt2", one, SHORT), NOTHING[:40])
       for one in ("relevance", "importance", hr.Attribution(method="FeatureAblation"))},
    "choices": (lambda: score("marian", hr.Importance(objective="agreement")), "no gradient reaches the heads"),
}  # fmt: skip
OBJECTIVES = {
    "unknown": (lambda: explain("bert", "magic"), "objective must be one of top, .*, got 'magic'"),
    "label of": (lambda: ClassLogit(of="first"), "of must be one of top, label, got 'first'"),
    **{f"{name} of states": (lambda name=name: explain(states(), name), f"{name!r} needs .* BertModel.*similarity'")
       for name in ("top", "reference", "class", "loss")},
    **{f"{name} of classes": (lambda name=name: explain(classifier(), name, labelled()), f"{name!r} needs .*'class'")
       for name in ("top", "reference")},
    "class of tokens": (lambda: explain("bert", "class"), "'class' needs a classifier, got .*; try 'top'"),
    "one sentence": (lambda: explain(states(), "similarity", corpus(1)), "'similarity' needs 2 sentences .*got 1"),
    **{f"states of {name}": (lambda name=name: explain(name, "similarity"), "'similarity' needs hidden states, got the")
       for name in ("bert", "marian")},
    **{f"{label} {one}": (lambda label=label, one=one: labels(label, one), f"label must be one of no, .*{label!r}")
       for label in ("often", "3") for one in (ClassLogit(of="label"), Loss())},
    **{f"no label {one}": (lambda one=one: labels(None, one), "a sentence has no label; give a table")
       for one in (ClassLogit(of="label"), Loss())},
    **{f"shapes {values} {counted}": (
        lambda values=values, counted=counted: Explained(torch.zeros(values), torch.ones(counted, dtype=torch.bool)),
        rf"targets must have .*, got \({values[0]}.*\) and \({counted[0]}.*\)")
       for values, counted in (((2, 3), (2, 1)), ((2, 1), (2, 3)), ((2,), (2,)), ((2, 3), (3, 2)))},
}  # fmt: skip
WEIGHTS = {
    "an encoder": (lambda: hr.scores.copying(zoo.tiny("bert")), "copying needs a decoder, got BertForMaskedLM"),
    "a map between": (lambda: hr.scores.copying(zoo.tiny("bert-decoder")), "unembedding .*, got BertLMHeadModel with"),
    "no unembedding": (lambda: hr.scores.copying(zoo.tiny("gpt2").transformer), "copying needs .*, got GPT2Model"),
    "outside": (lambda: hr.scores.composition(zoo.tiny("bloom")), "circuits need .*h.0.self_attention in Bloom"),
    "not linear": (
        lambda: hr.scores.circuit_matrix(zoo.tiny("gemma3"), "L1H2", "QK"),
        "QK of model.layers.1.self_attn must be linear: got a norm within the attention of Gemma3ForCausalLM",
    ),
    "circuit": (lambda: hr.scores.circuit_matrix(zoo.tiny("gpt2"), "L1H2", "KQ"), "circuit must be .* got 'KQ'"),
    "cross": (lambda: hr.scores.circuit_matrix(zoo.tiny("marian"), "cross:0:1", "OV"), "kind of .*, got 'cross'"),
    **{f"distance {name}": (
        lambda name=name, distance=distance: hr.scores.composition(zoo.tiny(name), distance=distance),
        f"distance must be .*, got {distance}")
       for name, distance in (("llama-grouped", -1), ("gpt2", 40), ("marian", 2))},
    "no decoder": (lambda: hr.scores.succession(zoo.tiny("bert"), DAYS), "succession needs a decoder, got BertForMa"),
    "an encoder beside": (
        lambda: hr.scores.succession(zoo.tiny("marian"), DAYS), "needs a decoder without .*, got MarianMTModel"),
    "norms after sums": (
        lambda: hr.scores.succession(hr.tiny_model("opt", vocab_size=9, do_layer_norm_before=False), DAYS),
        "norms before the sums of layers, got OPTForCausalLM"),
    **{f"values of {kind}": (
        lambda kind=kind: hr.score(
            hr.tiny_model(kind, vocab_size=64), tokens_of(kind), corpus(2), "confidence", weights="norm"),
        f"norms need the values and the output projection of every head: .*{where}")
       for kind, where in (
           ("bloom", "transformer.h.0.self_attention in BloomForCausalLM"),
           ("bitnet", "between model.layers.0.self_attn in BitNetForCausalLM"),
           ("qwen3_next", "model.layers.1.self_attn in Qwen3NextForCausalLM"))},
    "quantised": (
        lambda: score(quantised("bert.encoder.layer.0.attention.output.dense"), "confidence", weights="norm"),
        "norms need .*: bert.encoder.layer.0.attention.output.dense in BertForMaskedLM is quantised"),
}  # fmt: skip
EVERY = {f"{of}: {name}": case for of, cases in
         (("scores", SCORES), ("gradients", GRADIENTS), ("objectives", OBJECTIVES), ("weights", WEIGHTS))
         for name, case in cases.items()}  # fmt: skip

test_a_call_is_refused_with_its_subject_and_value = refuses(EVERY)


# --- contexts of LRP rules -------------------------------------------------------------------------------------------


def training():
    return zoo.tiny("bert").train()


RULES = {
    "rules": (lambda: zoo.tiny("bert"), "lrp", "rules must be one of cp, .*, got 'lrp'"),
    "train mode": (training, "cp", "rules need BertForMaskedLM in eval mode, got train mode"),
    "quantised": (
        lambda: quantised("bert.encoder.layer.0.output.dense"), "cp",
        "weights of BertForMaskedLM: got bert.encoder.layer.0.output.dense.weight, which is quantised"),
    **{f"voita {name}": (lambda name=name: zoo.tiny(name), "voita", "rules 'voita' need .* got .*outside")
       for name in sorted(zoo.OUTSIDE)},
    **{f"no attention {rules}": (lambda: zoo.tiny("mamba"), rules, "no attention found in MambaForCausalLM")
       for rules in ("cp", "gradient")},
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_a_context_of_rules_is_refused_and_leaves_no_trace(name):
    made, rules, message = RULES[name]
    model = made()
    before = _traces(model), torch._C._len_torch_function_stack()
    with pytest.raises(ValueError, match=message), lrp_rules(model, rules):
        pass
    assert (_traces(model), torch._C._len_torch_function_stack()) == before


def test_a_context_of_rules_needs_a_model():
    with pytest.raises(TypeError, match="Linear"), lrp_rules(nn.Linear(2, 2)):
        pass


class Fused(nn.Module):
    """A feed-forward part with attention of its own, in one piece."""

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("rules", ["cp", "attn", "voita"])
def test_fused_attention_is_refused_by_all_rules_but_gradient(rules):
    model = zoo.tiny("gpt2")
    model.transformer.h[1].mlp = Fused()
    inputs, before = zoo.inputs(model), _traces(model)
    with pytest.raises(ValueError, match="rules need attention by .*, got scaled_dot_product_attention"):
        relevance(model, inputs, rules)
    assert _traces(model) == before
    assert relevance(model, inputs, "gradient").any()


def test_rescaled_attention_is_refused_by_voita_alone():
    model, inputs = hr.tiny_model("granite_swa"), {"input_ids": torch.tensor([[5, 9, 20, 7]])}
    with pytest.raises(ValueError, match="rules 'voita' need .*, got GraniteSWAAttention"):
        relevance(model, inputs, "voita")
    assert relevance(model, inputs, "cp").any()


# --- numbers that are not finite --------------------------------------------------------------------------------------


def spoilt(model, place):
    model.get_submodule(place).weight.data[0, 0] = math.nan
    return model


def sentences_with(token, name):
    """A model for which a token is not a number, and sentences of which the third has it."""
    model, letters = zoo.tiny(name), tokens_of(name)
    words = model.get_input_embeddings()
    words.weight = nn.Parameter(words.weight.clone())  # not those by which tokens are predicted
    words.weight.data[letters(token)["input_ids"][-1 if name == "gpt2" else 1]] = math.nan
    return model, letters, Corpus("some", tuple(map(Sentence, ("a b c", "c a b", "c a d", "b a c"))))


@pytest.mark.parametrize(
    ("name", "call"),
    [("gpt2", lambda *given: hr.score(*given, "confidence")), ("bert", lambda *given: hr.score(*given, "relevance")),
     ("bert", lambda *given: hr.score(*given, "importance")), ("gpt2", hr.attention_examples)]
)  # fmt: skip
def test_the_sentence_that_is_not_finite_is_named(name, call):
    model, letters, given = sentences_with("d", name)
    before = _traces(model)
    with pytest.raises(ValueError, match="is not finite on sentence 3 of the corpus; look for NaN"):
        call(model, letters, given)
    assert _traces(model) == before


def test_weights_that_are_not_finite_are_named():
    place = "bert.encoder.layer.1.attention.self.query"
    model = spoilt(zoo.tiny("bert"), place)
    message = rf"enc-self', 1, 0\) is not finite .* in BertForMaskedLM: 1 of 1,024 in {place}.weight"
    with pytest.raises(ValueError, match=message):
        hr.attention_matrix(model, tokens_of("bert"), "ab c", ("enc-self", 1, 0))


@pytest.mark.parametrize("score_", [hr.Relevance(), hr.Importance(), hr.Attribution(method="FeatureAblation")])
@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_heads_that_change_nothing_are_refused(name, score_):
    model = zoo.tiny(name)
    for site in families.attention_sites(model):
        site.out.weight.data.fill_(0.0)
    with pytest.raises(ValueError, match=rf"every gradient of .* is zero: no head of {type(model).__name__} changes"):
        hr.score(model, tokens_of(name), corpus(4), score_)


def test_relevance_under_autocast_is_refused():
    said = "rules must run in the precision of the weights of BertForMaskedLM, got autocast"
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ValueError, match=said):
        score("bert", "relevance")
