"""What training refuses: the call, and the subject and the value that the message names."""

from __future__ import annotations

import warnings
from copy import deepcopy

import peft
import pytest
import transformers
from helpers import zoo
from helpers.letters import corpus as letters
from helpers.letters import tokenizer as letters_tokenizer
from helpers.letters import tokens_of
from helpers.trainings import films, labelled, tokenizer, translator, untrained, wrapped

import headroles as hr
from headroles.data.corpus import Corpus, Sentence


def classifier():
    return untrained(), tokenizer()


def gpt2():
    return zoo.tiny("gpt2"), letters_tokenizer("$A")


def headless():
    return transformers.BertModel(untrained().config), tokenizer()


def translating():
    return translator(), tokens_of("marian")


def several_adapters():
    model = wrapped()
    model.add_adapter("other", peft.LoraConfig(target_modules=["q_proj"]))
    return model, tokens_of("llama-grouped")


LENGTH = "length must be an integer >= 2 and <= 40, got "
TRAIN = {
    "no epoch": (classifier, films(8), {"epochs": 0}, "epochs must be an integer >= 1, got 0"),
    "epochs in words": (classifier, films(8), {"epochs": "2"}, "epochs must be an integer >= 1, got '2'"),
    "half an epoch": (classifier, films(8), {"epochs": 0.5}, "epochs must be an integer >= 1, got 0.5"),
    "one token": (gpt2, films(8), {"length": 1}, f"{LENGTH}1"),
    "too long": (gpt2, films(8), {"length": 41}, f"{LENGTH}41"),
    "length of a class": (classifier, films(8), {"length": 8}, "length must be left out .* got BertForSeq.* length=8"),
    "length of a pair": (translating, letters(8), {"length": 8}, "length must be left out .* got MarianMTModel"),
    "nothing to predict": (gpt2, Corpus("one", (Sentence("a"),)), {}, "corpus 'one' must have tokens to predict"),
    "no head": (headless, films(8), {}, "must classify or predict tokens, got BertModel; .*AutoModelForMaskedLM"),
    "no translations": (translating, films(8), {}, "learns translations, got corpus 'films' without them"),
    "another label": (classifier, Corpus("odd", (Sentence("good", label="fair"),)), {}, "label must be .*'fair'"),
    "no labels": (classifier, letters(8), {}, "corpus 'letters' has no labels"),
    "a missing label": (classifier, labelled("neg", None, "pos"), {}, "corpus 'given' has no label for 1 of its 3"),
    "no sentence": (classifier, Corpus("none", ()), {}, "corpus 'none' is empty"),
    "rates of nothing": (classifier, films(8), {"rates": {"head": 1.0}}, "a key of rates must .* got 'head'"),
    "another metric": (classifier, films(8), {"held_out": films(8, 1), "metrics": ["bleu"]},
                       "metric 'bleu' needs a translation model"),
    "several adapters": (several_adapters, letters(8), {}, "must have one adapter, got default, other"),
}  # fmt: skip


@pytest.mark.parametrize("what", TRAIN)
def test_train_of_wrong_arguments_learns_nothing(what, tmp_path):
    given, text, options, message = TRAIN[what]
    with pytest.raises(ValueError, match=message):
        hr.train(*given(), text, tmp_path / "new", **{"epochs": 1} | options)
    assert not list(tmp_path.glob("new/*checkpoint*"))
    assert not (tmp_path / "new/history.parquet").exists()


def test_train_of_a_prompt_is_refused(tmp_path):
    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = peft.get_peft_model(deepcopy(zoo.tiny("llama-grouped")), prompt)
    with pytest.raises(TypeError, match=r"got PeftModelForCausalLM; try model\.get_base_model\(\)"):
        hr.train(model, tokens_of("llama-grouped"), letters(8), tmp_path, epochs=1)


def test_prune_of_heads_that_cannot_be_removed_is_refused_before_training(tmp_path):
    adapted = r"has an adapter in addition to its weight; try .* merge_and_unload\(\)"
    for model, message in ((wrapped("o_proj"), adapted), (zoo.tiny("olmo2"), "row 0 of its q_proj belongs to 4 heads")):
        with pytest.raises(ValueError, match=message):
            hr.prune(model, tokens_of("llama-grouped"), letters(8), hr.L0(), keep=4, study=tmp_path / "new")
        assert not (tmp_path / "new").exists()


def frozen():
    model = untrained()
    model.bert.requires_grad_(False)
    return model


OTHER = {  # what differs from the training of a folder
    "model": {"model": untrained(1)}, "parameters": {"model": frozen()}, "tokenizer": {"tokenizer": tokenizer("more")},
    "corpus": {"corpus": films(8, 2)}, "held_out": {"held_out": films(9, 1)}, "metrics": {"metrics": ["accuracy"]},
    "epochs": {"epochs": 2}, "batch": {"batch": 4}, "rate": {"rate": 1e-3}, "seed": {"seed": 1},
    "options": {"warmup_steps": 1}
}  # fmt: skip


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """A folder of finished training."""
    folder = tmp_path_factory.mktemp("taken")
    hr.train(untrained(), tokenizer(), films(8), folder, epochs=1, held_out=films(8, 1))
    return folder


@pytest.mark.parametrize("what", OTHER)
def test_train_in_a_folder_of_another_training_is_refused(what, taken, monkeypatch):
    monkeypatch.setenv("HOME", str(taken.parent))
    given = {"model": untrained(), "tokenizer": tokenizer(), "corpus": films(8), "epochs": 1, "held_out": films(8, 1)}
    before = (taken / "recipe.txt").stat().st_mtime_ns
    with pytest.raises(ValueError, match=f"{taken} holds training of another model, corpus or options"):
        hr.train(folder=f"~/{taken.name}", **given | OTHER[what])
    assert (taken / "recipe.txt").stat().st_mtime_ns == before


def test_train_in_a_folder_with_a_model_is_refused(tmp_path):
    hr.save(untrained(), tokenizer(), tmp_path)
    with pytest.raises(ValueError, match=f"{tmp_path} holds a model that was not trained there"):
        hr.train(untrained(), tokenizer(), films(8), tmp_path, epochs=1)


NUMBERS = "some are numbers, others words"
LABELS = [
    (("yes", "", "no"), "corpus 'given' has no label for 1 of its 3 sentences"),
    (("yes", "yes"), "labels of corpus 'given' are 'yes'; a classifier needs at least two"),
    (("pos", "neg", "2.5"), f"'2.5', 'neg', 'pos': {NUMBERS}"),
    (("0", "1", "neg"), f"'0', '1', 'neg': {NUMBERS}"),
    (("1", "2.5", "3"), "'2.5' is a value on a scale"),
    (("pos", "Pos", "neg"), "'Pos', 'neg', 'pos': some differ only in case"),
]


@pytest.mark.parametrize(("labels", "message"), LABELS)
def test_load_classifier_of_other_labels_is_refused(labels, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        hr.load_classifier(tmp_path, labelled(*labels))


def test_dynamics_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no checkpoint in {tmp_path}"):
        hr.dynamics(tmp_path, films(8), films(8, 1))
