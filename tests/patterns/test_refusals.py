"""What patterns refuse: the call, and the subject and the value that the message names; all are ValueErrors."""

from __future__ import annotations

import torch
from helpers import zoo
from helpers.errors import refuses
from helpers.imposed import lettered, tiny
from helpers.letters import corpus, linked, tokenizer, tokens_of

import headroles as hr
from headroles.patterns import Alignment, Dependency, Diagonal, Shift, Shuffle, Where
from headroles.patterns.simple import Offset, Previous, Rarest, Special, Streaming


def forward(name, pattern, **inputs):
    """One forward with the pattern on all heads, or on those of cross-attention."""
    case = lettered(name) if name in zoo.ZOO else tiny(name)
    heads = [head for head in hr.models.head_index(case.model) if head[0] in pattern.kinds]
    heads = heads or list(hr.models.head_index(case.model))
    with torch.no_grad(), hr.mask_heads(case.model, hr.head_mask(case.model, heads), replacement=pattern):
        return case.model(**case.inputs | inputs)


def ablate(name, pattern, given):
    return hr.ablate(zoo.tiny(name), tokens_of(name), given, replacement=pattern, n_resamples=0)


def write():
    case = tiny("llama")
    with torch.no_grad(), hr.mask_heads(case.model, torch.zeros(case.heads), Previous()):
        case.model.generate(case.inputs["input_ids"], max_new_tokens=3, do_sample=False)


def states_alone():
    case = tiny("marian")
    states = case.model.get_encoder()(input_ids=case.inputs["input_ids"])
    with hr.mask_heads(case.model, hr.head_mask(case.model, [("cross", 0, 0)]), Diagonal()):
        case.model(encoder_outputs=states, decoder_input_ids=case.inputs["decoder_input_ids"])


CASES = {
    "half a token": (lambda: Offset(-1.5), "offset must be an integer, got -1.5"),
    "a negative sink": (lambda: Streaming(-1, 1), "sink must be a number >= 0, got -1"),
    "nothing recent": (lambda: Streaming(0, 0), "recent must be a number >= 1, got 0"),
    "way": (lambda: Dependency("obj", "up"), "way must be one of dep>head, head>dep, got 'up'"),
    "ahead": (lambda: forward("llama", Offset(1)), r"offset must be .* Offset\(offset=1\) for model.layers.0"),
    **{f"{type(control).__name__} ahead": (lambda control=control: ablate("gpt2", control, corpus(2)),
                                           r"offset must be 0 or below .* Offset\(offset=1\) for transformer.h.0.attn")
       for control in (Shift(Offset(1), -1), Shuffle(Offset(1)))},
    "another kind": (lambda: forward("llama", Diagonal()), r"Diagonal\(\) is for cross heads, got dec-self heads"),
    "cross alone": (
        lambda: hr.test_roles(zoo.tiny("marian"), tokenizer(), linked(), {("enc-self", 0, 0): Alignment()}),
        r"pattern Alignment\(\) is for cross or dec-self heads, got enc-self heads of model.encoder"),
    **{f"a forward without {what}": (lambda name=name, pattern=pattern: forward(name, pattern),
                                     f"pattern .* needs {what}, and a forward has none")
       for name, pattern, what in (
           ("llama", Rarest(), "counts of tokens"), ("marian", Alignment(), "word links"),
           ("bert", Dependency("obj"), "dependency trees"), ("bert", Special(), "the ids of special tokens"))},
    **{f"special tokens of {type(pattern).__name__}": (lambda pattern=pattern: forward("bert", pattern),
                                                       "needs the ids of special tokens, and a forward has none")
       for pattern in (Shift(Special(), 1), Where(Offset(1), Special()))},
    "one token a forward": (write, r"pattern Previous\(\) needs all tokens in one forward, .*; try use_cache=False"),
    "no token ids": (states_alone, "token ids, got a forward without source ids"),
    "no trees": (lambda: ablate("gpt2", Shift(Dependency("obj"), 1), corpus(3, trees=False)),
                 r"='obj'.*by=1\) needs dependency trees for dec-self heads, got none in corpus 'letters'"),
    "no links": (lambda: ablate("marian", Shift(Alignment(), 1), corpus(3)),
                 r"Alignment\(\), by=1\) needs word links for cross heads, got none in corpus 'letters'"),
}  # fmt: skip

test_a_call_is_refused_with_its_subject_and_value = refuses(CASES)
