"""Retrieval: slow loops, and a head that looks at the next token of the needle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.close import close
from helpers.letters import corpus, looking, value, with_needles

import headroles as hr
from headroles.data.probes import Needle
from headroles.models import heads as families
from headroles.models.batching import TokenView
from headroles.scores.base import Observation
from headroles.scores.patterns.retrieval import NO_NEEDLE, Retrieval


def planted(sentence: Needle, places) -> Observation:
    ids = torch.tensor([sentence.ids])
    yes = torch.ones_like(ids, dtype=torch.bool)
    side = TokenView(ids, yes, yes, torch.full_like(ids, -1), (sentence,))
    return Observation("dec-self", looking(places)[None, None], side, side, torch.ones(99), torch.arange(99))


def test_a_head_that_looks_at_the_next_token_of_the_needle_retrieves_and_no_other():
    sentence = Needle("", ids=(9, 4, 5, 6, 9, 9, 4, 5, 6), needle=1, answer=6, size=3)
    still = list(range(9))
    copying = [*still[:6], 2, 3, 8]
    assert value(Retrieval(), planted(sentence, copying)) == {"retrieval": 1}
    assert value(Retrieval(), planted(sentence, [*still[:6], 2, 0, 8])) == {"retrieval": 1 / 2}
    assert value(Retrieval(), planted(sentence, [*still[:6], 1, 2, 3])) == {"retrieval": 0}  # a duplicate-token head
    assert value(Retrieval(), planted(sentence, still)) == {"retrieval": 0}
    nothing = planted(sentence, copying)
    nothing.weights.zero_()
    assert value(Retrieval(), nothing) == {"retrieval": 0}


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped", "mistral"])
def test_retrieval_and_previous_are_those_of_slow_loops(name, monkeypatch):
    model, tokenizer, hidden = with_needles(name)
    found = hr.score(model, tokenizer, hidden, ["retrieval", "previous"], n_resamples=20)
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    hits, count, weight, follow = 0, 0, 0, 0
    for sentence in hidden:
        with torch.no_grad():
            layers = model(torch.tensor([sentence.ids]), output_attentions=True).attentions
        attention = torch.cat([layer[0] for layer in layers]).double().numpy()  # [heads of all layers, query, key]
        for step in range(3):
            row = attention[:, sentence.answer + step]
            hits = hits + (row.argmax(-1) == sentence.needle + step + 1)
            count += 1
        for i in range(1, len(sentence.ids)):
            if not {sentence.ids[i], sentence.ids[i - 1]} & {*tokenizer.all_special_ids}:
                weight = weight + attention[:, i, i - 1]
                follow += 1
    model.set_attn_implementation(own)
    close(found["retrieval"], hits / count)
    close(found["previous"], weight / follow)
    assert (found["retrieval.low"] <= found["retrieval"]).all()
    assert (found["retrieval"] <= found["retrieval.high"]).all()
    if name == "mistral":  # its window of four tokens ends before the needle
        far = hr.score(model, tokenizer, hidden[:5], "retrieval", n_resamples=0)
        assert (far["retrieval"].to_numpy() == 0).all()
    else:
        assert found["retrieval"].to_numpy().max() > 0
    monkeypatch.setattr(families, "CELLS", 60)
    parts = hr.score(model, tokenizer, hidden, ["retrieval", "previous"], n_resamples=0)
    np.testing.assert_allclose(parts["retrieval"], found["retrieval"])
    np.testing.assert_allclose(parts["previous"], found["previous"], rtol=1e-5)


def test_without_needles_retrieval_is_nan_and_the_log_says_why(caplog):
    model, tokenizer, _ = with_needles()
    assert hr.score(model, tokenizer, corpus(3), "retrieval", n_resamples=0)["retrieval"].isna().all()
    assert caplog.messages[0].endswith(f"is NaN: {NO_NEEDLE}")
