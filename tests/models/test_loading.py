"""Saving: neither over another model nor into a study, but over the same model again."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path

import pandas as pd
import pytest
import safetensors
import torch
import transformers
from helpers import planted, zoo
from helpers.close import close
from helpers.commands import Run, run
from helpers.errors import first
from helpers.letters import tokens_of
from helpers.messages import line, whole

import headroles as hr
from headroles.data.corpus import Sentence
from headroles.data.readers import read
from headroles.models import identity, loading
from headroles.models.weights.at_hand import TRANSLATOR
from headroles.tables import frame

GONE = "enc-self:0:1,enc-self:1:2"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_removing_heads_again_is_the_same_and_another_model_is_refused(saved_model, tmp_path):
    smaller = tmp_path / "smaller"
    assert run("remove-heads", saved_model, GONE, "--output", smaller).code == 0
    before = contents(smaller)
    assert run("remove-heads", saved_model, GONE, "--output", smaller).code == 0
    assert contents(smaller) == before
    for place, there in ((smaller, before), (saved_model, contents(saved_model))):
        done = run("remove-heads", saved_model, "enc-self:0:0", "--output", place)
        assert done.code == 2
        message = (
            f"headroles: {re.escape(str(place))} holds another model: its config.json, model.safetensors would be "
        )
        assert re.fullmatch(
            rf"{message}replaced or stay beside; name another folder, or overwrite it \(--overwrite\)\n", done.err
        )
        assert contents(place) == there
    assert run("remove-heads", saved_model, "enc-self:0:0", "--output", smaller, "--overwrite").code == 0
    assert len(frame.index({(s.kind, s.layer): s.numbers for s in hr.attention_sites(hr.load(smaller)[0])})) == 7


def test_what_a_killed_run_left_is_completed(saved_model, tmp_path):
    smaller = tmp_path / "smaller"
    run("remove-heads", saved_model, GONE, "--output", smaller)
    before = contents(smaller)
    (smaller / "model.safetensors").unlink()
    assert run("remove-heads", saved_model, GONE, "--output", smaller).code == 0
    assert contents(smaller) == before


def test_weights_in_other_files_do_not_stay_beside(saved_model, tmp_path):
    place = tmp_path / "sharded"
    place.mkdir()
    (place / "model-00001-of-00002.safetensors").write_bytes(b"a shard")
    with pytest.raises(
        FileExistsError, match=r"its model-00001-of-00002\.safetensors would be replaced or stay beside"
    ):
        hr.save(*hr.load(saved_model), place)


def test_a_study_is_no_place_for_a_model(saved_model, tmp_path, monkeypatch):
    study = hr.Study(tmp_path / "study")
    study.keep("heads", "recipe", lambda: frame.table({"a": [1.0]}, frame.index({("enc-self", 0): 1}), "s"))
    before, message = contents(study.folder), f"{study.folder} is a study: it holds heads.parquet; "
    monkeypatch.setattr(loading, "load", lambda *_, **__: pytest.fail("loaded before it was found out"))
    done = run("remove-heads", saved_model, GONE, "--output", study.folder)
    assert (done.code, done.err) == (2, f"headroles: {message}name another folder for the model\n")
    with pytest.raises(FileExistsError, match=re.escape(message)):
        hr.save(zoo.tiny("bert"), tokens_of("bert"), study.folder)
    assert contents(study.folder) == before


def test_training_does_not_write_over_a_model(saved_model):
    model = deepcopy(zoo.tiny("marian"))
    before = contents(saved_model)
    with pytest.raises(
        ValueError, match=f"^{re.escape(str(saved_model))} holds a model that was not trained there; give"
    ):
        hr.train(model, tokens_of("marian"), hr.Corpus("a", (hr.Sentence("b", target=hr.Sentence("c")),)), saved_model)
    assert contents(saved_model) == before
    assert "headroles" not in json.loads(before["config.json"])


def test_files_of_an_earlier_model_do_not_stay_when_it_is_overwritten(saved_model, tmp_path):
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
        hr.save(*hr.load(saved_model), place)
    hr.save(*hr.load(saved_model), place, overwrite=True)
    assert {path.name for path in place.iterdir()} == {
        *contents(saved_model),
        "notes.txt",
        "gates.safetensors",
        "checkpoint-1",
    }
    assert type(hr.load(place)[1]) is type(hr.load(saved_model)[1])


def test_another_tokenizer_beside_the_same_weights_is_another_model(saved_model):
    (saved_model / "target_tokenizer.json").write_text("{}")
    with pytest.raises(
        FileExistsError, match="holds another model: its target_tokenizer.json would be replaced or stay"
    ):
        hr.save(zoo.tiny("bert"), tokens_of("bert"), saved_model)


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


def test_heads_are_set_to_zero_by_a_column_of_kept_heads(saved_model, tmp_path):
    model = zoo.tiny("bert")
    index = hr.models.head_index(model)
    kept = pd.Series([float(head not in [("enc-self", 0, 1), ("enc-self", 1, 2)]) for head in index], index)
    expected = identity.weights_digest(hr.zero_heads(model, kept))
    model, tokens = hr.load(saved_model)
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


ONE = Sentence("the a .")


NEEDS = "(a local folder needs config.json, weights, tokenizer)"


ABSENT = "(no such folder here; a hub id is owner/name)"


def removed(model: Path) -> Run:
    """The end of a command that loads a model."""
    return run("remove-heads", model, "enc-self:0:0", "--output", model / "new")


def _unloadable(path: Path, reason: str, hint: str = NEEDS) -> str:
    message = f"could not load {str(path)!r}: {reason} {hint}"
    with pytest.raises(OSError, match=whole(message)):
        hr.load(path)
    return message


def test_a_folder_that_is_no_model(tmp_path):
    reason = first(ValueError, lambda: transformers.AutoConfig.from_pretrained(tmp_path))
    assert run("remove-heads", tmp_path, "enc-self:0:0", "--output", tmp_path / "new") == line(
        _unloadable(tmp_path, reason)
    )


def test_a_folder_that_is_not_there(tmp_path):
    path = tmp_path / "none"
    reason = first(OSError, lambda: transformers.AutoConfig.from_pretrained(path))
    assert run("remove-heads", path, "enc-self:0:0", "--output", tmp_path / "new") == line(
        _unloadable(path, reason, ABSENT)
    )


def test_weights_truncated_or_of_another_kind(own):
    file = own / "model.safetensors"
    content = file.read_bytes()
    for spoilt in (b"", b"not weights at all", content[: len(content) // 2]):
        file.write_bytes(spoilt)
        reason = first(safetensors.SafetensorError, lambda: safetensors.safe_open(file, "pt"))
        message = _unloadable(own, f"SafetensorError: {reason}")
    assert removed(own) == line(message)


def test_a_config_without_its_parts(own):
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(config | {"architectures": ["MagicModel"]}))
    lacking = f"which transformers {transformers.__version__} does not have as a model"
    _unloadable(own, f"its config names the class MagicModel, {lacking}; try cls='AutoModelForMaskedLM' (--cls)")
    (own / "config.json").write_text("{")
    _unloadable(own, f"It looks like the config file at '{own / 'config.json'}' is not a valid JSON file.")


def test_a_folder_without_weights(own):
    (own / "model.safetensors").unlink()
    _unloadable(own, first(OSError, lambda: transformers.BertModel.from_pretrained(own)))


def test_a_folder_without_a_tokenizer(own):
    for path in own.glob("tokenizer*"):
        path.unlink()
    message = _unloadable(own, "no vocabulary in its tokenizer, or no tokenizer")
    assert removed(own) == line(message)


def test_a_tokenizer_file_that_is_none(own):
    (own / "tokenizer.json").write_text("{}")
    _unloadable(own, "KeyError: 'added_tokens'")


def test_code_of_a_checkpoint_is_run_only_if_asked(own, monkeypatch):
    """Not even where somebody sits at a terminal who would say yes."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    config = json.loads((own / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "written.Own"}}
    (own / "config.json").write_text(json.dumps(config))
    ran = own / "ran"
    code = f"from transformers import BertConfig\nopen({str(ran)!r}, 'w').close()\nclass Own(BertConfig):\n    pass\n"
    (own / "written.py").write_text(code)
    for options in ({}, {"trust_remote_code": False}):
        with pytest.raises(OSError, match=rf"^could not load '{re.escape(str(own))}': "):
            hr.load(own, **options)
        assert not ran.exists()
    hr.load(own, trust_remote_code=True)
    assert ran.exists()


def test_weights_that_a_checkpoint_lacks_are_the_same_at_every_load(own):
    planted.model().save_pretrained(own)  # no pooler
    state = torch.random.get_rng_state()
    revisions = {identity.weights_digest(hr.load(own)[0]) for _ in range(2)}
    assert len(revisions) == 1
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("device", ["magic", "cpu:x", "meta", "cuda:99"])
def test_a_device_that_cannot_be_used(device, model, tmp_path):
    whole_model = planted.model()
    reason = first((RuntimeError, AssertionError), lambda: torch.zeros(1).to(device).cpu())  # type: ignore[arg-type]
    message = f"device {device!r} cannot be used: {reason}; try cpu"
    with pytest.raises(ValueError, match=whole(message)):
        loading.place(whole_model, device)
    assert whole_model.device.type == "cpu"
    path = tmp_path / "given.txt"
    path.write_text(ONE.text)
    assert run("score", model, path, "--device", device, "--study", tmp_path / "study") == line(message)
    assert not (tmp_path / "study").exists()


def test_the_translator_is_small_enough_to_come_with_the_library():
    assert sum(path.stat().st_size for path in TRANSLATOR.iterdir()) < 5e6
    assert len(read(TRANSLATOR / "sentences.tsv")) == 100


def test_a_model_at_hand_is_loaded_without_its_tokenizer_too():
    model, _ = hr.load("translator")
    other = loading.alone("translator")
    assert identity.weights_digest(other) == identity.weights_digest(model)
    assert other.config.name_or_path == model.config.name_or_path
