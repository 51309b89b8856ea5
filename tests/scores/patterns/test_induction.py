"""Induction and duplicates: slow loops, and a head made for them."""

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.letters import corpus, looking, observation, tokens_of, value, with_repeats

import headroles as hr
from headroles.data.corpus import Tokens
from headroles.models.batching import TokenView
from headroles.scores.base import Observation
from headroles.scores.patterns.induction import Duplicate, Induction
from headroles.tables import frame

SCORES = ["induction", "duplicate"]


def test_a_token_right_after_itself_does_not_copy_itself():
    made = observation(torch.eye(3), kind="dec-self", ids=[10, 10, 11])  # each looks at itself
    assert value(Induction(), made) == {"induction": 0}
    assert value(Duplicate(), made) == {"duplicate": 0}
    back = observation(looking([0, 0, 1, 2]), kind="dec-self", ids=[10, 10, 10, 11])  # one back
    assert value(Induction(), back) == {"induction": 1 / 2}
    assert value(Duplicate(), back) == {"duplicate": 1}


def test_the_scores_are_those_of_slow_loops():
    model, tokenizer, twice = with_repeats()
    found = hr.score(model, tokenizer, twice, SCORES, n_resamples=0)
    model.set_attn_implementation("eager")
    sums = {name: np.zeros(len(found)) for name in SCORES}
    count = 0
    for sentence in twice:
        with torch.no_grad():
            layers = model(torch.tensor([sentence.ids]), output_attentions=True).attentions
        attention = torch.cat([layer[0] for layer in layers]).double().numpy()  # [heads of all layers, query, key]
        special = {*tokenizer.all_special_ids}
        for i, token in enumerate(sentence.ids):
            before = [j for j in range(i) if sentence.ids[j] == token]
            if token in special or not before:
                continue
            count += 1
            for j in before:
                sums["duplicate"] += attention[:, i, j]
                sums["induction"] += attention[:, i, j + 1] if j + 1 < i else 0
    for name in SCORES:
        np.testing.assert_allclose(found[name], sums[name] / count, rtol=1e-5)


@pytest.mark.parametrize(("back", "is_induction"), [(5, True), (6, False)])
def test_a_head_made_for_it_has_all_its_weight_there(back, is_induction):
    ids = torch.tensor([[*range(10, 16), *range(10, 16)]])
    yes = torch.ones_like(ids, dtype=torch.bool)
    side = TokenView(ids, yes, yes, torch.full_like(ids, -1), (None,))
    weights = torch.zeros(1, 1, 12, 12)
    weights[0, 0, torch.arange(12), (torch.arange(12) - back).clamp(min=0)] = 1
    made = Observation("dec-self", weights, side, side, torch.ones(20), torch.arange(20))
    for score, expected in ((Induction(), is_induction), (Duplicate(), not is_induction)):
        (column,) = score.compute(score.update(made) | score.denominators(made)).values()
        assert column.item() == expected


def test_without_a_repeated_token_both_scores_are_nan_and_the_log_says_why(caplog):
    model, tokenizer, twice = with_repeats()
    once = hr.Corpus("once", tuple(Tokens("", ids=sentence.ids[:6]) for sentence in twice))
    found = hr.score(model, tokenizer, once, SCORES, n_resamples=10)
    assert found[SCORES].isna().all(axis=None)
    assert [message.split(" of dec-self")[0] for message in caplog.messages] == SCORES


def test_a_study_of_a_decoder_has_them_without_asking_and_one_of_an_encoder_has_not(tmp_path):
    for name, expected in (("gpt2", True), ("bert", False)):
        model = zoo.tiny(name)
        study = hr.Study(tmp_path / name)
        table = hr.score(model, tokens_of(model), corpus(3), n_resamples=20, study=study)
        assert ({*SCORES} <= {*table.columns}) == expected
        if expected:
            assert "corpus:repeated" in frame.provenance(table, "induction")
            assert "corpus:repeated" not in frame.provenance(table, "confidence")
            assert {"induction", "duplicate"} <= {*hr.roles(table).columns}
