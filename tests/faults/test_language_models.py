"""Language models are pruned as other models: gates alone, by rankings with training, swept and compared."""

from __future__ import annotations

import pytest
import torch
from helpers import zoo
from helpers.close import close
from helpers.commands import run
from helpers.letters import TEMPLATES, tokenizer
from helpers.trainings import films
from helpers.trainings import tokenizer as words_of
from transformers import BertConfig, BertForMaskedLM

import headroles as hr
from headroles.models.heads import attention_sites

TEXTS = hr.Corpus.of(["a b c d e f", "b d a", "c c a b d e f a", "a b", "d e f a b c d"] * 2)
FROZEN = hr.L0(freeze="all")
SHORT = {"epochs": 3, "batch": 4, "save_strategy": "no"}


def given(name):
    """A tiny language model, a tokenizer and a text."""
    if name != "bert":
        return zoo.tiny(name), tokenizer(TEMPLATES[name]), TEXTS
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BertForMaskedLM(BertConfig(**zoo.BERT)).eval(), words_of(), films(10)


@pytest.mark.parametrize("name", ["llama-grouped", "gpt2", "bert"])
def test_gates_alone_change_no_weight_and_the_smaller_model_is_saved(name, tmp_path):
    model, tokens, text = given(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    table = hr.prune(model, tokens, text, FROZEN, keep=4, tune={**SHORT, "epochs": 20}, remove=False)
    survival, chance = table.iloc[:, 0], table.iloc[:, 1]
    assert survival.sum() == 4
    assert chance.nunique() > 1
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    inputs = tokens(text[0].text, return_tensors="pt")
    with torch.no_grad():
        with hr.mask_heads(model, torch.tensor(survival.to_numpy(), dtype=torch.float32)):
            masked = model(**inputs).logits
        hr.remove_heads(model, survival)
        close(model(**inputs).logits, masked)
        hr.save(model, tokens, tmp_path / "smaller")
        again, _ = hr.load(tmp_path / "smaller")
        assert torch.equal(again(**inputs).logits, model(**inputs).logits)


@pytest.mark.slow
def test_gates_prune_the_heads_that_the_loss_can_spare(tmp_path):
    """Of a model that has learnt its text, the heads that gates keep are worth more than the pruned ones."""
    model, tokens, _ = given("llama-grouped")
    text = hr.Corpus.of(["a b c d e f a b c d e f", "c d e f a b c d e f a b"] * 4)
    hr.train(model, tokens, text, tmp_path, epochs=15, batch=4, rate=1e-2, save_strategy="no")
    table = hr.prune(model, tokens, text, FROZEN, keep=4, remove=False, tune={**SHORT, "epochs": 40, "batch": 2})
    survival = table.iloc[:, 0]

    def loss(kept):
        with hr.mask_heads(model, torch.tensor(kept.to_numpy(), dtype=torch.float32)):
            return hr.evaluate(model, tokens, text, ["loss"], n_resamples=0)["value"].iloc[0]

    assert loss(survival) < loss(1 - survival)


@pytest.mark.parametrize("groups", ["equal", "whole", "expand"])
def test_tied_embeddings_stay_tied_and_groups_are_those_of_removal(groups, tmp_path):
    model, tokens, text = given("llama-grouped")
    model.config.tie_word_embeddings = True
    model.tie_weights()
    table = hr.prune(model, tokens, text, hr.L0(), keep=0.5, tune=SHORT, remove=False)
    hr.remove_heads(model, table.iloc[:, 0], groups=groups)
    hr.train(model, tokens, text, tmp_path / "tuned", epochs=1, batch=4, rate=1e-3)
    again, _ = hr.load(tmp_path / "tuned")
    for one in (model, again):
        assert one.lm_head.weight is one.model.embed_tokens.weight
        kept = {(*site.key, head) for site in attention_sites(one) for head in {*site.numbers} - {*site.silenced}}
        assert kept == {tuple(head) for head in table.index[table.iloc[:, 0] == 1]}
    inputs = tokens("a b c", return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits, model(**inputs).logits)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-grouped", "gpt2", "bert"])
def test_language_models_are_swept_and_compared_by_their_loss(name, tmp_path):
    model, tokens, text = given(name)
    options = {"tune": {**SHORT, "epochs": 1, "length": 8}}
    sizes = hr.sparsity_sweep(model, tokens, text, text, FROZEN, keep=[0.5], study=tmp_path / "sweep", **options)
    assert sizes["heads"].tolist() == [8, 4]
    assert sizes["value"].notna().all()
    compared = hr.compare_pruning(
        model, tokens, text, text, strategies=["importance", FROZEN, "random"], keep=[0.5], seeds=1,
        study=tmp_path / "compared", **options,
    )  # fmt: skip
    assert sorted(compared["strategy"].unique()) == ["all heads", "importance", "l0", "random"]
    assert compared["value"].between(0, 20).all()


def test_the_command_prunes_a_language_model_by_a_text(tmp_path):
    model, tokens, text = given("llama-grouped")
    hr.save(model, tokens, tmp_path / "model")
    (tmp_path / "text.txt").write_text("".join(f"{sentence.text}\n" for sentence in text))
    words = ["--strategy", "l0", "--keep", "0.5", "--freeze", "all", "--length", "8", "--batch", "2"]
    place = {"--study": tmp_path / "study", "--output": tmp_path / "smaller"}
    done = run("prune", tmp_path / "model", tmp_path / "text.txt", *words, *(x for pair in place.items() for x in pair))
    assert done.code == 0, done.err
    assert "4 of 8 heads are pruned" in done.out
    smaller, _ = hr.load(tmp_path / "smaller")
    assert smaller.lm_head.weight.equal(model.lm_head.weight)
    trained = run("train", tmp_path / "model", tmp_path / "text.txt", "--epochs", "1", "--output", tmp_path / "trained")
    assert trained.code == 0, trained.err
