"""Pruned models in files: loaded by transformers and by headroles, and the card beside them."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
import torch
import transformers
from helpers import zoo
from helpers.commands import run
from helpers.gates import outputs
from helpers.letters import tokenizer, tokens_of
from helpers.removals import mixed, numbered, unpruned
from huggingface_hub import ModelCard

import headroles as hr
from headroles.models import heads as families
from headroles.models import identity, pruned
from headroles.models import sites as site
from headroles.pruning.removal import remove_heads

GONE = "enc-self:0:1,enc-self:1:2"


@pytest.fixture
def smaller(saved_model, tmp_path):
    """A model with removed heads in a folder, made by the command."""
    assert run("remove-heads", saved_model, GONE, "--output", tmp_path / "smaller").code == 0
    return tmp_path / "smaller"


def test_plain_transformers_names_headroles_load(smaller, caplog):
    for load in (
        transformers.AutoModel.from_pretrained,
        transformers.AutoModelForMaskedLM.from_pretrained,
        lambda place: transformers.pipeline("fill-mask", str(place)),
    ):
        with pytest.raises(ValueError, match=r"model type `bert-pruned-use-headroles\.load` but Transformers does not"):
            load(smaller)
    with caplog_of_transformers(caplog), pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        transformers.BertForMaskedLM.from_pretrained(smaller)
    assert "bert-pruned-use-headroles.load" in caplog.text


@contextmanager
def caplog_of_transformers(caplog):
    """Collect what transformers logs, which does not reach the root logger."""
    transformers.utils.logging.get_logger("transformers").addHandler(caplog.handler)
    try:
        yield
    finally:
        transformers.utils.logging.get_logger("transformers").removeHandler(caplog.handler)


def test_headroles_loads_it_as_before_and_saves_it_again(smaller, tmp_path, caplog):
    with caplog_of_transformers(caplog):
        model, tokenizer = hr.load(smaller)
    assert "headroles.load" not in caplog.text
    expected = hr.remove_heads(zoo.tiny("bert"), GONE)
    assert identity.weights_digest(model) == identity.weights_digest(expected)
    assert (model.config.model_type, model.config.name_or_path) == ("bert", str(smaller))
    assert type(tokenizer) is type(hr.load(smaller.with_name("whole"))[1])
    hr.save(model, tokenizer, tmp_path / "again")
    configs = [json.loads((place / "config.json").read_text()) for place in (tmp_path / "again", smaller)]
    assert configs[0] == configs[1]
    assert identity.weights_digest(hr.load(tmp_path / "again")[0]) == identity.weights_digest(model)
    labels = {"id2label": dict(enumerate("abc")), "label2id": {label: number for number, label in enumerate("abc")}}
    model, _ = hr.load(smaller, cls="AutoModelForSequenceClassification", dtype=torch.float64, **labels)
    assert (model.config.num_labels, model.dtype, len(hr.models.head_index(model))) == (3, torch.float64, 6)


def test_a_smaller_model_has_a_card(smaller, saved_model):
    card = ModelCard.load(smaller / "README.md")
    assert card.data.library_name == "headroles"
    assert card.data.to_dict().get("base_model") is None  # a folder here is no name on the Hub
    text = card.text
    assert text.strip().startswith("# whole without 2 of its 8 attention heads")
    assert "- enc-self layer 0: head 1\n- enc-self layer 1: head 2\n" in text
    assert f"- weights of this smaller model: {identity.weights_digest(hr.load(smaller)[0])} " in text
    assert f"- command: `headroles remove-heads {saved_model} {GONE} --output {smaller}`" in text
    assert not (saved_model / "README.md").exists()
    (smaller / "README.md").write_text("mine")  # what people wrote into a card stays
    assert run("remove-heads", saved_model, GONE, "--output", smaller).code == 0
    assert (smaller / "README.md").read_text() == "mine"


def test_a_card_names_a_base_model_of_the_hub_and_a_name_is_no_html():
    model = hr.remove_heads(zoo.tiny("bert"), "L0H1")
    model.config.name_or_path = "google-bert/bert-base-uncased"
    card = ModelCard(pruned.card(model, "abc"))
    assert card.data.base_model == "google-bert/bert-base-uncased"
    assert "# google-bert/bert-base-uncased without 1 of its 8 attention heads" in card.text
    assert "- command: not recorded" in card.text
    assert "import headroles  # in a checkout of headroles: pip install ." in card.text
    model.config.name_or_path = "models/<img src=x onerror=alert(1)>"
    text = pruned.card(model, "abc", "headroles remove-heads `x`")
    assert "<img" not in text
    assert "# &lt;img src=x onerror=alert(1)&gt; without 1 of its 8 attention heads" in text
    assert "- command: `headroles remove-heads 'x'`" in text


LOADED = ["albert", "gpt2", "llama-grouped", "marian", "bert2gpt2", "t5", "bloom", "phi3", "deberta-v2"]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADED)
def test_a_pruned_model_is_loaded_as_it_was_saved(name, tmp_path):
    model, given = zoo.tiny(name), zoo.inputs(unpruned(name))
    tokenizer().save_pretrained(tmp_path)
    for again in (numbered(model, 1), numbered(model, 2)):  # what was loaded is cut, saved and loaded again
        remove_heads(model, again).save_pretrained(tmp_path)
        loaded, _ = hr.load(tmp_path)
        assert type(loaded) is type(model)
        assert not loaded.training
        assert torch.equal(outputs(loaded, given), outputs(model, given))
        assert families.head_index(loaded).equals(families.head_index(model))
        assert site.recorded(loaded.config) == site.recorded(model.config)
        model = loaded


CLASSIFIER = "AutoModelForSequenceClassification", "BertForSequenceClassification"


@pytest.mark.parametrize(
    ("name", "body", "cls", "loaded"),
    [("bert", False, *CLASSIFIER), ("bert", True, *CLASSIFIER), ("gpt2", False, "AutoModel", "GPT2Model")]
)  # fmt: skip
def test_a_pruned_model_is_loaded_without_its_head_or_with_another(name, body, cls, loaded, tmp_path):
    model, given = zoo.tiny(name), zoo.inputs(unpruned(name))
    model = model.base_model if body else model
    remove_heads(model, mixed(model)).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    other, _ = hr.load(tmp_path, cls=cls)
    assert type(other).__name__ == loaded
    assert torch.equal(outputs(other.base_model, given), outputs(model.base_model, given))
    assert families.head_index(other).equals(families.head_index(model))


@pytest.mark.parametrize("name", ["mixtral", "exaone"])
def test_a_smaller_model_of_renamed_weights_is_loaded_as_it_was_saved(name, tmp_path):
    model = hr.tiny_model(name)
    heads = [(place.kind, place.layer, head) for place in hr.attention_sites(model) for head in range(place.heads // 2)]
    remove_heads(model, heads, groups="whole")
    hr.save(model, tokens_of("llama-grouped"), tmp_path / "smaller")
    loaded, _ = hr.load(tmp_path / "smaller", cls=type(model).__name__)
    ids = torch.arange(4, 14)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
