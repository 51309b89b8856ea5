"""Random weights are those that matter to what is asked, and a number that depends on them is refused."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy

import pytest
import torch
import transformers
from helpers import zoo
from helpers.letters import tokens_of
from safetensors.torch import load_file, save_file

import headroles as hr
from headroles.models import missing
from headroles.models.identity import identity


def moved(model, name):
    """Whether what attention does, its weights and what its heads write, and the output change with a weight."""
    found, inputs = [], zoo.inputs(model)
    other = deepcopy(model)
    with torch.no_grad():
        dict(other.named_parameters(remove_duplicate=False))[name].normal_(generator=torch.Generator().manual_seed(0))
        for one in (model, other):
            seen = []
            for site in hr.attention_sites(one):
                site.out.register_forward_hook(lambda *given, into=seen: into.append(given[-1].clone()))
            with hr.capture_attention(one, lambda _, weights, into=seen: into.append(weights.clone())):
                found.append((seen, one(**inputs).logits))
    (ours, plain), (theirs, changed) = found
    attends = any(not torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
    return {"attention": attends, "output": not torch.equal(plain, changed)}


@pytest.mark.parametrize("name", ["gpt2", "marian"])
@pytest.mark.parametrize("what", ["attention", "output"])
def test_a_weight_is_needed_where_what_is_asked_changes_with_it(name, what):
    model, tied = zoo.tiny(name), defaultdict(list)
    sites = hr.attention_sites(model)
    for name, value in model.named_parameters(remove_duplicate=False):
        if value.ndim > 1 and value.requires_grad:
            tied[value].append(name)
    for names in [*tied.values()][:: 4 if model.config.is_encoder_decoder else 1]:  # of one weight, all are lacking
        missing.forget(model)
        missing.note(model, names)
        assert bool(missing.needed(model, sites, what)) == moved(model, names[0])[what], names


def test_a_weight_that_was_trained_is_not_random_and_all_weights_may_be_missing():
    model = zoo.tiny("gpt2")
    sites, name = hr.attention_sites(model), "transformer.h.0.attn.c_attn.weight"
    missing.note(model, [name])
    assert missing.needed(model.double(), sites, "attention") == [name]
    with torch.no_grad():
        model.transformer.h[0].attn.c_attn.weight.add_(1e-3)
    assert missing.needed(model, sites, "attention") == []
    names = [name for name, _ in model.named_parameters()]
    assert missing.none_matched(model, names)
    assert not missing.none_matched(model, names[1:])


TEXTS = hr.Corpus.of(["a b c d", "b d a", "c c a b d"])
LABELLED = hr.Corpus("labelled", tuple(hr.Sentence(s.text, label=str(n % 2)) for n, s in enumerate(TEXTS)))


def without(folder, *starts):
    """The folder of a checkpoint, which then lacks the weights with these names."""
    file = folder / "model.safetensors"
    kept = {name: value for name, value in load_file(file).items() if not name.startswith(starts)}
    save_file(kept, file, metadata={"format": "pt"})
    return folder


@pytest.fixture
def headless(saved_model):
    """A masked language model without its output layer, as sentence encoders are published."""
    return without(saved_model, "cls.")


MESSAGE = (
    r"^the output of BertForMaskedLM would be random: its checkpoint lacks cls\.predictions\.[\w.]+, .*; try another"
)


@pytest.mark.slow
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
    for other in (deepcopy(model), deepcopy(model).double(), deepcopy(model).bfloat16()):  # is as random
        with pytest.raises(ValueError, match=MESSAGE):
            hr.evaluate(other, tokenizer, TEXTS, ["loss"], n_resamples=0)
    for body in (model.base_model, hr.load(headless, cls="AutoModel")[0]):  # has numbers
        hr.evaluate(body, tokenizer, TEXTS, ["similarity"], n_resamples=0)
    model.load_state_dict(zoo.tiny("bert").state_dict())
    expected = hr.evaluate(zoo.tiny("bert"), tokenizer, TEXTS, ["loss"], n_resamples=0)
    assert hr.evaluate(model, tokenizer, TEXTS, ["loss"], n_resamples=0).equals(expected)  # loaded since


def test_random_weights_may_be_asked_for_and_are_no_part_of_the_identity(headless):
    (model, tokenizer), (other, _) = (hr.load(headless, allow_random=allow) for allow in (True, False))
    assert hr.evaluate(model, tokenizer, TEXTS, ["loss"], n_resamples=0)["value"].iloc[0] > 0
    assert identity(model) == identity(other)


def test_an_untrained_classifier_is_refused_until_it_is_trained(saved_model, tmp_path):
    model, tokenizer = hr.load_classifier(saved_model, LABELLED)
    with pytest.raises(ValueError, match=r"random: its checkpoint lacks (classifier\.weight|bert\.pooler)"):
        hr.evaluate(model, tokenizer, LABELLED, ["accuracy"], n_resamples=0)
    history = hr.train(
        model, tokenizer, LABELLED, tmp_path / "trained", held_out=LABELLED, metrics=["accuracy"], epochs=1
    )
    assert history["held_out accuracy"].notna().all()
    hr.ablate(model, tokenizer, LABELLED, metric="accuracy", n_resamples=0)
    hr.ablate(*hr.load(tmp_path / "trained"), LABELLED, metric="accuracy", n_resamples=0)


@pytest.mark.slow
def test_a_new_head_is_pruned_by_what_trains_it_and_not_ranked(saved_model, tmp_path):
    def swept(strategy, study):
        given = *hr.load_classifier(saved_model, LABELLED), LABELLED, LABELLED
        return hr.sparsity_sweep(*given, strategy, keep=(4,), tune={"epochs": 1}, study=tmp_path / study)

    assert swept(hr.L0(), "a")["value"].notna().all()
    with pytest.raises(ValueError, match="the output of BertForSequenceClassification would be random"):
        swept("importance", "b")


def test_attention_by_random_weights_is_refused_and_a_pooler_is_not_missed(tmp_path):
    base = zoo.tiny("bert").base_model
    model = transformers.BertModel(base.config)  # with a pooler
    place = hr.save(model, tokens_of("bert"), tmp_path / "encoder")
    hr.score(*hr.load(without(place, "pooler")), TEXTS, ["confidence"], n_resamples=0)
    hr.evaluate(*hr.load(place), TEXTS, ["similarity"], n_resamples=0)
    hr.score(*hr.load(without(place, "encoder.layer.1.output")), TEXTS, ["confidence"], n_resamples=0)
    with pytest.raises(ValueError, match=r"the output of BertModel would be random: .* encoder\.layer\.1\.output"):
        hr.evaluate(*hr.load(place), TEXTS, ["similarity"], n_resamples=0)
    model, tokenizer = hr.load(without(place, "encoder.layer.1.attention.self.key.weight"))
    for measure in (
        lambda: hr.score(model, tokenizer, TEXTS, ["confidence"], n_resamples=0),
        lambda: hr.attention_matrix(model, tokenizer, "a b", ("enc-self", 0, 0)),
        lambda: hr.attention_examples(model, tokenizer, TEXTS, study=tmp_path / "study"),
    ):
        with pytest.raises(
            ValueError, match=r"the attention of BertModel would be random: .* encoder\.layer\.1\.attention"
        ):
            measure()


def test_own_translations_by_a_random_output_are_refused(tmp_path):
    place = without(hr.save(zoo.tiny("marian"), tokens_of("marian"), tmp_path / "m"), "model.decoder.layers.1.fc2")
    with pytest.raises(
        ValueError, match=r"the output of MarianMTModel would be random: .* model\.decoder\.layers\.1\.fc2"
    ):
        hr.score(*hr.load(place), TEXTS, ["confidence"], n_resamples=0)


def test_a_checkpoint_without_a_single_weight_of_the_model_is_not_loaded(tmp_path):
    place = hr.save(zoo.tiny("gpt2"), tokens_of("gpt2"), tmp_path / "gpt2")
    without(place, "transformer", "lm_head")
    with pytest.raises(
        OSError, match=r"could not load .*: the checkpoint has no weight of GPT2LMHeadModel, so all would be"
    ):
        hr.load(place)
    with pytest.raises(OSError, match="the checkpoint has no weight of GPT2ForSequenceClassification"):
        hr.load_classifier(place, LABELLED)
    assert hr.load(place, allow_random=True)[0].num_parameters()


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian", "t5", "llama-grouped"])
def test_a_whole_checkpoint_is_not_refused(name, tmp_path):
    model, tokenizer = hr.load(hr.save(zoo.tiny(name), tokens_of(name), tmp_path / name))
    pairs = hr.Corpus("pairs", tuple(hr.Sentence(text.text, target=text) for text in TEXTS))
    hr.evaluate(model, tokenizer, pairs, ["loss"], n_resamples=0)


def test_weights_that_mismatch_are_missing(saved_model):
    weights = load_file(saved_model / "model.safetensors")
    name = "cls.predictions.transform.dense.weight"
    weights[name] = torch.zeros(3, 3)
    save_file(weights, saved_model / "model.safetensors", metadata={"format": "pt"})
    model, tokenizer = hr.load(saved_model, ignore_mismatched_sizes=True)
    with pytest.raises(ValueError, match=f"random: its checkpoint lacks {name};"):
        hr.evaluate(model, tokenizer, TEXTS, ["loss"], n_resamples=0)
