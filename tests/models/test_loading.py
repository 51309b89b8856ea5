"""Saving: neither over another model nor into a study, but over the same model again."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from copy import deepcopy

import pandas as pd
import pytest
import torch
import transformers
from helpers import zoo
from helpers.close import close
from helpers.commands import run
from helpers.letters import tokens_of

import headroles as hr
from headroles.models import identity, loading, pruned
from headroles.tables import frame

GONE = "enc-self:0:1,enc-self:1:2"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def whole(tmp_path):
    return hr.save(zoo.tiny("bert"), tokens_of("bert"), tmp_path / "whole")


@pytest.mark.slow
def test_removing_heads_again_is_the_same_and_another_model_is_refused(whole, tmp_path):
    smaller = tmp_path / "smaller"
    assert run("remove-heads", whole, GONE, "--output", smaller).code == 0
    before = contents(smaller)
    assert run("remove-heads", whole, GONE, "--output", smaller).code == 0
    assert contents(smaller) == before
    for place, there in ((smaller, before), (whole, contents(whole))):
        done = run("remove-heads", whole, "enc-self:0:0", "--output", place)
        assert done.code == 2
        message = (
            f"headroles: {re.escape(str(place))} holds another model: its config.json, model.safetensors would be "
        )
        assert re.fullmatch(
            rf"{message}replaced or stay beside; name another folder, or overwrite it \(--overwrite\)\n", done.err
        )
        assert contents(place) == there
    assert run("remove-heads", whole, "enc-self:0:0", "--output", smaller, "--overwrite").code == 0
    assert len(frame.index({(s.kind, s.layer): s.numbers for s in hr.attention_sites(hr.load(smaller)[0])})) == 7


def test_what_a_killed_run_left_is_completed(whole, tmp_path):
    smaller = tmp_path / "smaller"
    run("remove-heads", whole, GONE, "--output", smaller)
    before = contents(smaller)
    (smaller / "model.safetensors").unlink()
    assert run("remove-heads", whole, GONE, "--output", smaller).code == 0
    assert contents(smaller) == before


def test_weights_in_other_files_do_not_stay_beside(whole, tmp_path):
    place = tmp_path / "sharded"
    place.mkdir()
    (place / "model-00001-of-00002.safetensors").write_bytes(b"a shard")
    with pytest.raises(
        FileExistsError, match=r"its model-00001-of-00002\.safetensors would be replaced or stay beside"
    ):
        hr.save(*hr.load(whole), place)


def test_a_study_is_no_place_for_a_model(whole, tmp_path, monkeypatch):
    study = hr.Study(tmp_path / "study")
    study.keep("heads", "recipe", lambda: frame.table({"a": [1.0]}, frame.index({("enc-self", 0): 1}), "s"))
    before, message = contents(study.folder), f"{study.folder} is a study: it holds heads.parquet; "
    monkeypatch.setattr(loading, "load", lambda *_, **__: pytest.fail("loaded before it was found out"))
    done = run("remove-heads", whole, GONE, "--output", study.folder)
    assert (done.code, done.err) == (2, f"headroles: {message}name another folder for the model\n")
    with pytest.raises(FileExistsError, match=re.escape(message)):
        hr.save(zoo.tiny("bert"), tokens_of("bert"), study.folder)
    assert contents(study.folder) == before


def test_training_does_not_write_over_a_model(whole):
    model = deepcopy(zoo.tiny("marian"))
    before = contents(whole)
    with pytest.raises(ValueError, match=f"^{re.escape(str(whole))} holds a model that was not trained there; give"):
        hr.train(model, tokens_of("marian"), hr.Corpus("a", (hr.Sentence("b", target=hr.Sentence("c")),)), whole)
    assert contents(whole) == before
    assert "headroles" not in json.loads(before["config.json"])


def test_files_of_an_earlier_model_do_not_stay_when_it_is_overwritten(whole, tmp_path):
    """A tokenizer for targets was read with the new model, of which it changed all numbers."""
    from headroles.models.tokens.bilingual import paired

    place, tokenizer = tmp_path / "place", tokens_of("bert")
    smaller = hr.remove_heads(zoo.tiny("bert"), GONE)
    hr.save(smaller, paired(tokenizer, tokenizer), place)
    others = ("adapter_config.json", "model-00001-of-00002.safetensors", "vocab.txt", "notes.txt", "gates.safetensors")
    for name in others:
        (place / name).write_text("{}")
    (place / "checkpoint-1").mkdir()
    with pytest.raises(FileExistsError, match="holds another model: its adapter_config.json, config.json, "):
        hr.save(*hr.load(whole), place)
    hr.save(*hr.load(whole), place, overwrite=True)
    assert {path.name for path in place.iterdir()} == {
        *contents(whole),
        "notes.txt",
        "gates.safetensors",
        "checkpoint-1",
    }
    assert type(hr.load(place)[1]) is type(hr.load(whole)[1])


def test_another_tokenizer_beside_the_same_weights_is_another_model(whole):
    (whole / "target_tokenizer.json").write_text("{}")
    with pytest.raises(
        FileExistsError, match="holds another model: its target_tokenizer.json would be replaced or stay"
    ):
        hr.save(zoo.tiny("bert"), tokens_of("bert"), whole)


# --- smaller models among other programs ------------------------------------------------------------------------------


@pytest.fixture
def smaller(whole, tmp_path):
    """A model with removed heads in a folder, made by the command."""
    assert run("remove-heads", whole, GONE, "--output", tmp_path / "smaller", figures=True).code == 0
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
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == json.loads(
        (smaller / "config.json").read_text()
    )
    assert identity.weights_digest(hr.load(tmp_path / "again")[0]) == identity.weights_digest(model)


def test_options_reach_a_smaller_model(smaller):
    labels = ["a", "b", "c"]
    model, _ = hr.load(
        smaller,
        cls="AutoModelForSequenceClassification",
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
        dtype=torch.float64,
    )
    assert (model.config.num_labels, model.dtype, len(hr.models.head_index(model))) == (3, torch.float64, 6)


def test_a_smaller_model_has_a_card(smaller, whole):
    from huggingface_hub import ModelCard

    card = ModelCard.load(smaller / "README.md")
    assert card.data.library_name == "headroles"
    assert card.data.to_dict().get("base_model") is None  # a folder here is no name on the Hub
    text = card.text
    assert text.strip().startswith("# whole without 2 of its 8 attention heads")
    assert "- enc-self layer 0: head 1\n- enc-self layer 1: head 2\n" in text
    assert f"- weights: {identity.weights_digest(hr.load(smaller)[0])} " in text
    assert f"- command: `headroles remove-heads {whole} {GONE} --output {smaller}`" in text
    assert not (whole / "README.md").exists()


def test_a_card_names_a_base_model_of_the_hub():
    from huggingface_hub import ModelCard

    model = hr.remove_heads(zoo.tiny("bert"), "L0H1")
    model.config.name_or_path = "google-bert/bert-base-uncased"
    card = ModelCard(pruned.card(model, "abc"))
    assert card.data.base_model == "google-bert/bert-base-uncased"
    assert "# google-bert/bert-base-uncased without 1 of its 8 attention heads" in card.text
    assert "- command: not recorded" in card.text


def test_a_name_in_a_card_is_no_html():
    model = hr.remove_heads(zoo.tiny("bert"), "L0H1")
    model.config.name_or_path = "models/<img src=x onerror=alert(1)>"
    text = pruned.card(model, "abc", "headroles remove-heads `x`")
    assert "<img" not in text
    assert "# &lt;img src=x onerror=alert(1)&gt; without 1 of its 8 attention heads" in text
    assert "- command: `headroles remove-heads 'x'`" in text


def test_what_people_wrote_into_a_card_stays(smaller, whole):
    (smaller / "README.md").write_text("mine")
    assert run("remove-heads", whole, GONE, "--output", smaller).code == 0
    assert (smaller / "README.md").read_text() == "mine"


# --- heads set to zero ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian", "llama-grouped", "albert"])
def test_heads_set_to_zero_are_masked_heads_in_an_ordinary_model(name, tmp_path):
    model = zoo.tiny(name)
    inputs = zoo.inputs(model)
    before = model.state_dict().keys()
    kind = hr.attention_sites(model)[0].kind
    layers = sorted({site.layer for site in hr.attention_sites(model)}) if name == "albert" else [0]
    heads = [(kind, layer, 1) for layer in layers]
    with torch.inference_mode(), hr.mask_heads(model, hr.head_mask(model, heads)):
        expected = model(**inputs)[0].clone()
    assert hr.zero_heads(model, heads) is model
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()  # transformers alone
    assert again.state_dict().keys() == before
    assert again.config.to_dict().get("headroles") is None
    with torch.inference_mode():
        close(again(**inputs)[0], expected)
    with torch.inference_mode():
        assert not torch.equal(again(**inputs)[0], zoo.tiny(name)(**inputs)[0])


def test_heads_are_set_to_zero_by_a_column_of_kept_heads(whole, tmp_path):
    model = zoo.tiny("bert")
    index = hr.models.head_index(model)
    kept = pd.Series([float(head not in [("enc-self", 0, 1), ("enc-self", 1, 2)]) for head in index], index)
    expected = identity.weights_digest(hr.zero_heads(model, kept))
    model, tokens = hr.load(whole)
    hr.save(hr.zero_heads(model, GONE), tokens, tmp_path / "zeroed")
    assert identity.weights_digest(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "zeroed")) == expected
    assert not (tmp_path / "zeroed" / "README.md").exists()


def test_untrained_weights_of_a_model_with_removed_heads_are_drawn():
    smaller = hr.remove_heads(zoo.tiny("bert"), "enc-self:0:1,enc-self:1:2")
    fresh = loading.untrained(smaller)
    std = smaller.config.initializer_range
    for name, value in fresh.named_parameters():
        assert value.shape == smaller.get_parameter(name).shape
        assert value.isfinite().all(), name
        if name.endswith("query.weight"):
            assert 0.5 * std < float(value.detach().std()) < 2 * std


def test_heads_that_cannot_be_set_to_zero_are_refused():
    with pytest.raises(ValueError, match=r"^no head \('enc-self', 9, 0\) in BertForMaskedLM"):
        hr.zero_heads(zoo.tiny("bert"), "L9H0")
    with pytest.raises(ValueError, match="is one module for 2 layers: remove the same heads from all"):
        hr.zero_heads(zoo.tiny("albert"), "L0H1")
