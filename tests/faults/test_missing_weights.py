"""Random weights under a model's name: a number that depends on weights that the checkpoint lacks is refused."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import transformers
from helpers import zoo
from helpers.commands import run
from helpers.letters import tokens_of
from safetensors.torch import load_file, save_file

import headroles as hr

TEXTS = hr.Corpus.of(["a b c d", "b d a", "c c a b d"])
LABELLED = hr.Corpus("labelled", tuple(hr.Sentence(s.text, label=str(n % 2)) for n, s in enumerate(TEXTS)))


def without(folder, *starts):
    """The folder of a checkpoint, which then lacks the weights with these names."""
    file = folder / "model.safetensors"
    kept = {name: value for name, value in load_file(file).items() if not name.startswith(starts)}
    save_file(kept, file, metadata={"format": "pt"})
    return folder


@pytest.fixture
def headless(tmp_path):
    """A masked language model without its output layer, as sentence encoders are published."""
    model = zoo.tiny("bert")
    assert type(model) is transformers.BertForMaskedLM
    return without(hr.save(model, tokens_of("bert"), tmp_path / "headless"), "cls.")


MESSAGE = (
    r"^the output of BertForMaskedLM is random: got a checkpoint without cls\.predictions\.[\w.]+, [^;]+; expected all "
    r"weights on which it depends; try another class, such as cls='AutoModel' \(--cls AutoModel\), or train it first; "
    r"for a test of random weights load it with allow_random=True \(--allow-random\)$"
)


def test_a_loss_by_a_random_output_layer_is_refused_and_attention_is_not(headless):
    model, tokenizer = hr.load(headless)
    for measure in (
        lambda: hr.evaluate(model, tokenizer, TEXTS, ["loss"], n_resamples=0),
        lambda: hr.ablate(model, tokenizer, TEXTS, n_resamples=0),
        lambda: hr.score(model, tokenizer, TEXTS, ["importance"], n_resamples=0),
        lambda: hr.score(model, tokenizer, TEXTS, ["relevance"], n_resamples=0),
        lambda: hr.prune(model, tokenizer, TEXTS, "importance", keep=4, remove=False),
    ):
        with pytest.raises(ValueError, match=MESSAGE):
            measure()
    whole = hr.score(zoo.tiny("bert"), tokenizer, TEXTS, ["confidence"], n_resamples=0)
    assert hr.score(model, tokenizer, TEXTS, ["confidence"], n_resamples=0).equals(whole)
    hr.attention_matrix(model, tokenizer, "a b", ("enc-self", 0, 0))


def test_the_body_of_such_a_model_has_numbers(headless):
    for model in (hr.load(headless)[0].base_model, hr.load(headless, cls="AutoModel")[0]):
        hr.evaluate(model, tokens_of("bert"), TEXTS, ["similarity"], n_resamples=0)


def test_random_weights_may_be_asked_for(headless):
    model, tokenizer = hr.load(headless, allow_random=True)
    assert hr.evaluate(model, tokenizer, TEXTS, ["loss"], n_resamples=0)["value"].iloc[0] > 0


def test_a_copy_or_another_precision_is_as_random(headless):
    model, tokenizer = hr.load(headless)
    for other in (deepcopy(model), deepcopy(model).double(), deepcopy(model).bfloat16()):
        with pytest.raises(ValueError, match="the output of BertForMaskedLM is random"):
            hr.evaluate(other, tokenizer, TEXTS, ["loss"], n_resamples=0)


def test_a_head_that_was_trained_or_loaded_since_is_not_random(headless):
    model, tokenizer = hr.load(headless)
    model.load_state_dict(zoo.tiny("bert").state_dict())
    expected = hr.evaluate(zoo.tiny("bert"), tokenizer, TEXTS, ["loss"], n_resamples=0)
    assert hr.evaluate(model, tokenizer, TEXTS, ["loss"], n_resamples=0).equals(expected)


def test_an_untrained_classifier_is_refused_until_it_is_trained(tmp_path):
    place = hr.save(zoo.tiny("bert"), tokens_of("bert"), tmp_path / "whole")
    model, tokenizer = hr.load_classifier(place, LABELLED)
    with pytest.raises(ValueError, match=r"random: got a checkpoint without classifier\.weight|bert\.pooler"):
        hr.evaluate(model, tokenizer, LABELLED, ["accuracy"], n_resamples=0)
    history = hr.train(
        model, tokenizer, LABELLED, tmp_path / "trained", held_out=LABELLED, metrics=["accuracy"], epochs=1
    )
    assert history["held_out accuracy"].notna().all()
    hr.ablate(model, tokenizer, LABELLED, metric="accuracy", n_resamples=0)
    hr.ablate(*hr.load(tmp_path / "trained"), LABELLED, metric="accuracy", n_resamples=0)


def test_a_new_head_is_pruned_by_what_trains_it_and_not_ranked(tmp_path):
    place, four = (
        hr.save(zoo.tiny("bert"), tokens_of("bert"), tmp_path / "whole"),
        {"keep": (4,), "tune": {"epochs": 1}},
    )
    table = hr.sparsity_sweep(
        *hr.load_classifier(place, LABELLED), LABELLED, LABELLED, hr.L0(), study=tmp_path / "a", **four
    )
    assert table["value"].notna().all()
    with pytest.raises(ValueError, match="the output of BertForSequenceClassification is random"):
        hr.sparsity_sweep(
            *hr.load_classifier(place, LABELLED), LABELLED, LABELLED, "importance", study=tmp_path / "b", **four
        )


def test_attention_by_random_weights_is_refused_and_a_pooler_is_not_missed(tmp_path):
    base = zoo.tiny("bert").base_model
    model = transformers.BertModel(base.config)  # with a pooler
    place = hr.save(model, tokens_of("bert"), tmp_path / "encoder")
    hr.score(*hr.load(without(place, "pooler")), TEXTS, ["confidence"], n_resamples=0)
    hr.evaluate(*hr.load(place), TEXTS, ["similarity"], n_resamples=0)
    hr.score(*hr.load(without(place, "encoder.layer.1.output")), TEXTS, ["confidence"], n_resamples=0)
    with pytest.raises(ValueError, match=r"the output of BertModel is random: got .* encoder\.layer\.1\.output"):
        hr.evaluate(*hr.load(place), TEXTS, ["similarity"], n_resamples=0)
    model, tokenizer = hr.load(without(place, "encoder.layer.1.attention.self.key.weight"))
    for measure in (
        lambda: hr.score(model, tokenizer, TEXTS, ["confidence"], n_resamples=0),
        lambda: hr.attention_matrix(model, tokenizer, "a b", ("enc-self", 0, 0)),
        lambda: hr.attention_examples(model, tokenizer, TEXTS, study=tmp_path / "study"),
    ):
        with pytest.raises(ValueError, match=r"the attention of BertModel is random: .* encoder\.layer\.1\.attention"):
            measure()


def test_own_translations_by_a_random_output_are_refused(tmp_path):
    place = without(hr.save(zoo.tiny("marian"), tokens_of("marian"), tmp_path / "m"), "model.decoder.layers.1.fc2")
    with pytest.raises(ValueError, match=r"the output of MarianMTModel is random: .* model\.decoder\.layers\.1\.fc2"):
        hr.score(*hr.load(place), TEXTS, ["confidence"], n_resamples=0)


def test_a_checkpoint_without_a_single_weight_of_the_model_is_not_loaded(tmp_path):
    place = hr.save(zoo.tiny("gpt2"), tokens_of("gpt2"), tmp_path / "gpt2")
    without(place, "transformer", "lm_head")
    with pytest.raises(
        OSError, match=r"could not load .*: the checkpoint has no weight of GPT2LMHeadModel, of which all"
    ):
        hr.load(place)
    with pytest.raises(OSError, match="the checkpoint has no weight of GPT2ForSequenceClassification"):
        hr.load_classifier(place, LABELLED)
    assert hr.load(place, allow_random=True)[0].num_parameters()


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian", "t5", "albert", "bart", "llama-grouped", "mpnet"])
def test_a_whole_checkpoint_is_not_refused(name, tmp_path):
    model, tokenizer = hr.load(hr.save(zoo.tiny(name), tokens_of(name), tmp_path / name))
    pairs = hr.Corpus("pairs", tuple(hr.Sentence(text.text, target=text) for text in TEXTS))
    hr.evaluate(model, tokenizer, pairs, ["loss"], n_resamples=0)


def test_what_is_drawn_is_no_part_of_the_identity(headless):
    from headroles.models.identity import identity

    one, other = (hr.load(headless, allow_random=allow)[0] for allow in (False, True))
    assert identity(one) == identity(other)


def test_the_command_refuses_and_may_be_asked_to_measure(headless, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a b c\nd b a\n")
    done = run("evaluate", headless, text, "--study", tmp_path / "refused")
    assert done.code == 2
    assert "the output of BertForMaskedLM is random: got a checkpoint without cls.predictions" in done.err
    assert run("evaluate", headless, text, "--allow-random", "--study", tmp_path / "random").code == 0
    assert (
        run(
            "evaluate", headless, text, "--cls", "AutoModel", "--metrics", "similarity", "--study", tmp_path / "body"
        ).code
        == 0
    )


def test_weights_that_mismatch_are_missing(tmp_path):
    place = hr.save(zoo.tiny("bert"), tokens_of("bert"), tmp_path / "whole")
    weights = load_file(place / "model.safetensors")
    name = "cls.predictions.transform.dense.weight"
    weights[name] = torch.zeros(3, 3)
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    model, tokenizer = hr.load(place, ignore_mismatched_sizes=True)
    with pytest.raises(ValueError, match=f"random: got a checkpoint without {name};"):
        hr.evaluate(model, tokenizer, TEXTS, ["loss"], n_resamples=0)
