"""What models refuse: the call, the type of the error, and the subject and the value that the message names."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, tokenizer, tokens_of

import headroles as hr
from headroles.data.corpus import Chat, Corpus, Prompt, Sentence
from headroles.models.attention_hooks import HEAD_MASKS
from headroles.models.head_model import HeadModel
from headroles.models.loading import TRANSLATOR, place
from headroles.models.tokens.alignment import pieces
from headroles.patterns import Dependency, Induction, Offset, Previous, Streaming
from headroles.testing.tiny_models import tiny_model

ONES, ZEROS = torch.ones(8), torch.zeros(8)
DEVICES = ("magic", "meta", "cuda:99")
HALF = {("enc-self", 0): torch.ones(4, 8)}  # of two layers
TEXTS = Corpus("letters", corpus(4, translated=False).sentences)
CHATS = Corpus.of(["a b"], chat=True)


def masked(name, gates, replacement=None, *, batch=2, **options):
    model = zoo.tiny(name) if isinstance(name, str) else name
    with hr.mask_heads(model, gates, replacement):
        model(**zoo.inputs(model, batch=batch), **options)


def captured(name, **options):
    model = zoo.tiny(name)
    with hr.capture_attention(model, lambda *_: None):
        model(**zoo.inputs(model), **options)


def score(name, given=TEXTS, tokens=None, **options):
    model = zoo.tiny(name) if isinstance(name, str) else name
    tokens = tokens_of(name if isinstance(name, str) else "bert") if tokens is None else tokens
    hr.score(model, tokens, given, ["confidence"], n_resamples=0, **options)


def in_pairs(second):
    return [Sentence("one", second="two"), Sentence("one", second=second)]


SITES = ("enc-self 3 layers of 8 heads, dec-self 1 layers of 4", "no head enc-self L0H8 in MarianMTModel")
FIRST, SECOND = ("dec-self", 0, 0), ("dec-self", 0, 1)
REFUSED = [  # the call, two parts of the message
    (lambda: captured("mamba"), "no attention found in MambaForCausalLM", "OUTSIDE"),
    (lambda: hr.attention_sites(zoo.tiny("fnet")), "no attention found in FNetForMaskedLM ('fnet')", "OUTSIDE"),
    (lambda: HeadModel(zoo.tiny("bert")).encode(TEXTS), "no tokenizer: got BertForMaskedLM", "expected the tokenizer"),
    *(
        (lambda heads=heads: hr.head_mask(zoo.tiny("bert"), heads), "heads must be (kind, layer, head) or text", said)
        for heads, said in ((None, "got None"), (3, "got 3"), ([3], "got 3"))
    ),
    (lambda: hr.head_mask(zoo.tiny("marian"), "L0H1"), "'L0H1' has no kind", "enc-self, dec-self, cross; try "),
    (lambda: hr.head_mask(zoo.tiny("marian-asymmetric"), [("enc-self", 0, 8)]), *SITES),
    (lambda: hr.zero_heads(zoo.tiny("bert"), "L9H0"), "no head enc-self L9H0", "in BertForMaskedLM"),
    (lambda: hr.zero_heads(zoo.tiny("albert"), "L0H1"), "must be the same in 2 layers", "albert"),
    (lambda: masked("bert", torch.ones(7)), "gates must have shape [8] or [batch, 8]", "got [7]"),
    (lambda: masked("bert", torch.ones(3, 8)), "gates for 3 examples", "a batch of 2"),
    (lambda: masked("bert", ONES, "none"), "one of zero, uniform, a pattern", "got 'none'"),
    (lambda: masked("bert", ONES, 0), "replacement must be one of", "got 0"),
    (lambda: masked("bert", ONES, HALF), "outputs [heads, size] [4, 8] for ('enc-self', 1)", "got none"),
    (lambda: masked("bert", ONES, HALF | {("enc-self", 1): torch.ones(3)}), "for ('enc-self', 1)", "got (3,)"),
    (lambda: masked("bert", ONES, HALF | {("enc-self", 1): None}), "for ('enc-self', 1)", "got ()"),
    (lambda: masked("bloom", ZEROS, "uniform"), "attention in BloomForCausalLM: its values are outside", "'mean'"),
    (lambda: masked("mpnet", ZEROS, Streaming(1, 2)), "attn in MPNetForMaskedLM: its weights are outside", "'mean'"),
    (lambda: masked("gpt2", ZEROS, {("dec-self", 9, 0): Previous()}), "no head dec-self L9H0", "GPT2LMHeadModel"),
    (lambda: masked("gpt2", ZEROS, {FIRST: Previous(), SECOND: "zero"}), "replacement of each head", "got 'zero'"),
    (lambda: masked("gpt2", ZEROS, Dependency("obj")), "needs dependency trees", "Dependency"),
    (lambda: masked("gpt2", ZEROS, Offset(1)), "offset must be 0 or below", "got Offset"),
    (lambda: masked("bert", ZEROS, Induction()), "is for dec-self heads", "got enc-self heads"),
    (lambda: masked(tiny_model("bitnet"), ONES), "in BitNetForCausalLM cannot be masked", "another operation stands"),
    (lambda: pieces(tokenizer(), in_pairs(None)), "texts and pairs of texts are mixed", "1 of 2 sentences without"),
    (lambda: pieces(tokenizer(), in_pairs("")), "texts and pairs of texts are mixed", "1 of 2 sentences without"),
    (lambda: pieces(tokenizer(), [Chat("a"), Sentence("b")]), "some texts are chats", "got 1 of 2 sentences"),
    (lambda: pieces(tokenizer(), [Prompt("a"), Sentence("b")]), "some texts have answers", "got 1 of 2 sentences"),
    (lambda: score("llama", CHATS, tokenizer("$A")), "has no chat template", "read with chat=True (--chat)"),
    (lambda: score("marian", CHATS), "needs a model that reads and writes one text", "got Marian"),
    (lambda: score(zoo.tiny("bert").base_model, generate=5), "generate=5 (--generate) needs", "got BertModel"),
    (lambda: score("llama", tokens=tokenizer(), generate=0), "generate must be an integer >= 1", "got 0"),
    (lambda: hr.load(TRANSLATOR, target_lang="deu_Latn"), "has no languages to choose", "got 'deu_Latn'"),
    *((lambda name=name: place(zoo.tiny("bert"), name), f"device {name!r} cannot", "try cpu") for name in DEVICES),
]
OF_TYPES = [
    (lambda: hr.attention_sites(torch.nn.Linear(2, 2)), "expected a transformers model, got Linear", "headroles.load"),
    (lambda: hr.attention_sites(torch.nn.DataParallel(zoo.tiny("bert"))), "got DataParallel", "try model.module"),
    *((lambda block=block, name=name: block("marian", **{name: torch.zeros(2, 4)}), f"was called with {name}",
       "mask_heads(") for name in HEAD_MASKS for block in (partial(masked, gates=torch.ones(24)), captured)),
]  # fmt: skip


def names(part):
    return part if isinstance(part, str) else ""


@pytest.mark.parametrize(("call", "subject", "value"), [*REFUSED, *OF_TYPES], ids=names)
def test_refusals_name_the_subject_and_the_value(call, subject, value):
    with pytest.raises((ValueError, TypeError)) as refused:
        call()
    assert subject in str(refused.value)
    assert value in str(refused.value)
    assert refused.type is (TypeError if (call, subject, value) in OF_TYPES else ValueError)


def test_what_cannot_be_read_is_refused_before_the_work_of_a_study(tmp_path):
    for given, options in ((("llama", CHATS, tokenizer("$A")), {}), ((zoo.tiny("bert").base_model,), {"generate": 5})):
        with pytest.raises(ValueError, match="chat template|writes text"):
            score(*given, study=tmp_path, **options)
    assert not [*tmp_path.glob("*.parquet")]
