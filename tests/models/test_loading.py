"""Checkpoints as people have them are loaded, and saved neither over another model nor into a study."""

from __future__ import annotations

import json
import re
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import safetensors
import torch
import transformers
from helpers import planted, zoo
from helpers.close import close
from helpers.commands import run
from helpers.errors import first
from helpers.letters import tokens_of
from helpers.messages import line, whole
from helpers.trainings import wrapped

import headroles as hr
from headroles.data.readers import read
from headroles.models import identity, loading
from headroles.models.loading import MINILM, TRANSLATOR, _located
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
    (smaller / "model.safetensors").unlink()  # what a killed run has left is completed
    assert run("remove-heads", saved_model, GONE, "--output", smaller).code == 0
    assert contents(smaller) == before
    for place, there in ((smaller, before), (saved_model, contents(saved_model))):
        done = run("remove-heads", saved_model, "enc-self:0:0", "--output", place)
        assert done.code == 2
        assert done.err.startswith(f"headroles: {place} holds another model: its config.json, model.safetensors would")
        assert contents(place) == there
    assert run("remove-heads", saved_model, "enc-self:0:0", "--output", smaller, "--overwrite").code == 0
    assert len(frame.index({(s.kind, s.layer): s.numbers for s in hr.attention_sites(hr.load(smaller)[0])})) == 7


def test_weights_in_other_files_do_not_stay_beside(saved_model, tmp_path):
    place = tmp_path / "sharded"
    place.mkdir()
    (place / "model-00001-of-00002.safetensors").write_bytes(b"a shard")
    with pytest.raises(
        FileExistsError, match=r"its model-00001-of-00002\.safetensors would be replaced or stay in the folder"
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
    place = hr.save(hr.remove_heads(zoo.tiny("bert"), GONE), tokens_of("bert"), tmp_path / "place")
    kept, stale = ("notes.txt", "gates.safetensors"), ("model-00001-of-00002.safetensors", "vocab.txt")
    for name in ("adapter_config.json", *stale, *kept):
        (place / name).write_text("{}")
    (place / "checkpoint-1").mkdir()
    with pytest.raises(FileExistsError, match="holds another model: its adapter_config.json, config.json, "):
        hr.save(*hr.load(saved_model), place)
    hr.save(*hr.load(saved_model), place, overwrite=True)
    assert {path.name for path in place.iterdir()} == {*contents(saved_model), *kept, "checkpoint-1"}


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


NEEDS = "a local folder needs config.json, weights, tokenizer"


def refused(path, reason, hint=NEEDS):
    message = f"could not load {str(path)!r}: {hint}: {reason}"
    with pytest.raises(OSError, match=whole(message)):
        hr.load(path)
    return message


def test_load_of_what_is_no_model_names_the_reason(tmp_path):
    reason = first(ValueError, lambda: transformers.AutoConfig.from_pretrained(tmp_path))
    message = refused(tmp_path, reason)
    assert run("remove-heads", tmp_path, "enc-self:0:0", "--output", tmp_path / "new") == line(message)


@pytest.mark.parametrize("name", ["./none", "../none/such", "/none", "none/such/here"])
def test_a_path_that_is_not_there_is_refused_before_the_hub_is_asked(name, monkeypatch):
    monkeypatch.setattr("headroles.models.loading.cached_file", lambda *_, **__: pytest.fail("asked"))
    for function in (hr.load, loading.load_model):
        with pytest.raises(OSError, match=whole(f"could not load {name!r}: no such folder")):
            function(name)


def test_load_of_spoilt_files_names_the_reason(own):
    file = own / "model.safetensors"
    content = file.read_bytes()
    for spoilt in (b"", b"not weights at all", content[: len(content) // 2]):
        file.write_bytes(spoilt)
        reason = first(safetensors.SafetensorError, lambda: safetensors.safe_open(file, "pt"))
        refused(own, f"SafetensorError: {reason}")
    file.unlink()
    refused(own, first(OSError, lambda: transformers.BertModel.from_pretrained(own)))
    file.write_bytes(content)
    (own / "tokenizer.json").write_text("{}")
    refused(own, "KeyError: 'added_tokens'")
    for path in own.glob("tokenizer*"):
        path.unlink()
    refused(own, "no vocabulary in its tokenizer, or no tokenizer")
    (own / "config.json").write_text("{")
    refused(own, f"It looks like the config file at '{own / 'config.json'}' is not a valid JSON file.")


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


def test_a_model_at_hand_is_small_and_is_loaded_without_its_tokenizer_too():
    assert sum(path.stat().st_size for path in TRANSLATOR.iterdir()) < 5e6
    assert len(read(TRANSLATOR / "sentences.tsv")) == 100
    model, _ = hr.load("translator")
    other = loading.load_model("translator")
    assert identity.weights_digest(other) == identity.weights_digest(model)
    assert other.config.name_or_path == model.config.name_or_path


def at_hand(name):
    place, _, called = _located(name, {})
    return place, called


def test_models_at_hand_have_a_config_and_other_names_stay_as_they_are(tmp_path, monkeypatch):
    place, called = at_hand("minilm")
    assert called == MINILM
    assert json.loads((place / "config.json").read_text())["num_hidden_layers"] == 6
    assert at_hand("translator") == (TRANSLATOR, "translator-en-de")
    assert at_hand("gpt2") == ("gpt2", "")
    (tmp_path / "minilm").mkdir()
    monkeypatch.chdir(tmp_path)
    assert at_hand("minilm") == (place, MINILM)  # a folder of that name is no model
    (tmp_path / "minilm" / "config.json").touch()
    assert at_hand("minilm") == ("minilm", "")


@pytest.mark.parametrize(
    ("name", "options", "folder", "asked"),
    [
        ("place/a.gguf", {"revision": "x"}, "place", {"revision": "x", "gguf_file": "a.gguf"}),
        ("owner/name", {"gguf_file": "b.gguf"}, "owner/name", {"gguf_file": "b.gguf"}),
    ],
)
def test_a_name_that_ends_in_gguf_is_a_file_of_its_folder(monkeypatch, tmp_path, name, options, folder, asked):
    monkeypatch.setattr(loading, "find_spec", lambda _: object())
    found, kept, _ = _located(name, options)
    assert (str(found), kept) == (folder, asked)
    (tmp_path / "odd.gguf").mkdir()
    monkeypatch.setattr(loading, "find_spec", lambda _: None)
    assert _located(tmp_path / "odd.gguf", {})[:2] == (tmp_path / "odd.gguf", {})
    with pytest.raises(
        OSError, match=r"could not load '[ab]\.gguf': install gguf, in a checkout: pip install '\.\[gguf"
    ):
        hr.load(name, **options)


TEXTS = hr.Corpus.of(["a b c d", "b d a"])


def test_a_subfolder_has_the_config_and_the_tokenizer_too(saved_model, tmp_path):
    model, tokenizer = hr.load(tmp_path, subfolder="whole")
    assert identity.weights_digest(model) == identity.weights_digest(zoo.tiny("bert"))
    assert type(tokenizer) is type(hr.load(saved_model)[1])
    hr.score(model, tokenizer, TEXTS, ["confidence"], n_resamples=0)
    smaller = hr.remove_heads(model, "L0H1")
    hr.save(smaller, tokenizer, tmp_path / "smaller")
    assert identity.weights_digest(hr.load(tmp_path, subfolder="smaller")[0]) == identity.weights_digest(smaller)


def test_options_of_places_reach_the_config_the_weights_and_the_tokenizer(saved_model, monkeypatch):
    asked = {}

    def noting(cls, name):
        before = cls.from_pretrained.__func__

        def from_pretrained(cls, *args, **options):
            asked.setdefault(name, options)
            return before(cls, *args, **options)

        monkeypatch.setattr(cls, "from_pretrained", classmethod(from_pretrained))

    noting(transformers.AutoConfig, "config")
    noting(transformers.BertForMaskedLM, "weights")
    noting(transformers.AutoTokenizer, "tokenizer")
    hr.load(saved_model, revision="v2", local_files_only=True, dtype=torch.float64)
    for options in asked.values():
        assert (options["revision"], options["local_files_only"]) == ("v2", True)
    assert [name for name, options in asked.items() if "dtype" in options] == ["weights"]


@pytest.mark.parametrize(
    ("name", "old", "usual"),
    [("llama-grouped", "LLaMAForCausalLM", "AutoModelForCausalLM"),
     ("t5", "T5WithLMHeadModel", "AutoModelForSeq2SeqLM"), ("bert", "BertTokenizer", "AutoModelForMaskedLM")]
)  # fmt: skip
def test_a_class_that_is_none_of_models_is_refused_with_what_to_give(name, old, usual, tmp_path):
    place = hr.save(zoo.tiny(name), tokens_of(name), tmp_path / name)
    file = place / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": [old]}))
    for options, source in (({}, "its config"), ({"cls": "BertForNothing"}, "cls")):
        with pytest.raises(
            OSError, match=rf"could not load .*got {options.get('cls', old)} from {source}; try cls='{usual}'"
        ):
            hr.load(place, **options)
    assert type(hr.load(place, cls=usual)[0]) is type(zoo.tiny(name))


@pytest.fixture
def rounded(tmp_path):
    """A tiny Llama with a vocabulary of bytes, in blocks of 32 numbers of 8 bits."""
    gguf = pytest.importorskip("gguf")
    config = transformers.LlamaConfig(
        vocab_size=259, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).eval()
    file = tmp_path / "tiny.Q8_0.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    for add, value in {
        "context_length": 64, "embedding_length": 32, "block_count": 2, "feed_forward_length": 64, "head_count": 4,
        "head_count_kv": 2, "layer_norm_rms_eps": config.rms_norm_eps, "rope_freq_base": 10000.0, "vocab_size": 259,
    }.items():  # fmt: skip
        getattr(writer, f"add_{add}")(value)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{number:02X}>" for number in range(256))])
    writer.add_token_scores([0.0] * 259)
    writer.add_token_types([2, 3, 3, *[6] * 256])
    for role, number in {"bos": 1, "eos": 2, "unk": 0}.items():
        getattr(writer, f"add_{role}_token_id")(number)
    expected = {}
    for name, value in model.state_dict().items():
        parts = re.sub(r"model\.layers\.(\d+)\.", r"blk.\1.", name)
        for ours, theirs in {
            "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm", "input_layernorm": "attn_norm",
            "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
        }.items():  # fmt: skip
            parts = parts.replace(ours, theirs)
        array = value.numpy().astype(np.float32)
        if value.ndim == 1:
            writer.add_tensor(parts, array)
            expected[name] = value
            continue
        heads = {"attn_q": 4, "attn_k": 2}.get(parts.split(".")[-2])
        stored = array
        if heads:  # llama.cpp has the two halves of rotary positions in turn
            stored = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        blocks = gguf.quants.quantize(stored, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(parts, blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        back = array.reshape(-1, 32)  # each block of 32 by its own scale, in half precision
        scale = np.abs(back).max(1, keepdims=True) / 127
        steps = np.sign(back) * np.floor(np.abs(back / scale) + 0.5)
        expected[name] = torch.tensor((steps * scale.astype(np.float16).astype(np.float32)).reshape(array.shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file, expected


def test_a_gguf_file_is_an_ordinary_model_of_rounded_weights(rounded, tmp_path):
    file, expected = rounded
    model, tokenizer = hr.load(file)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)
    again, _ = hr.load(file.parent, gguf_file=file.name)
    assert identity.weights_digest(again) == identity.weights_digest(model)
    table = hr.score(model, tokenizer, TEXTS, ["confidence"], n_resamples=0)
    assert "|rounded:Q8_0|" in table.attrs["signatures"]["confidence"]
    hr.save(model, tokenizer, tmp_path / "saved")
    saved = hr.load(tmp_path / "saved")
    assert identity.weights_digest(saved[0]) == identity.weights_digest(model)
    table = hr.score(*saved, TEXTS, ["confidence"], n_resamples=0)
    assert "|rounded:Q8_0|" in table.attrs["signatures"]["confidence"]


@pytest.fixture
def base(tmp_path):
    hr.save(zoo.tiny("llama"), tokens_of("llama"), tmp_path / "base")
    return lambda cls, **options: getattr(transformers, cls).from_pretrained(tmp_path / "base", **options)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PEFT to transformers
@pytest.mark.parametrize("has_tokenizer", [False, True])
def test_a_folder_with_an_adapter_alone_loads_its_base_and_the_adapter(base, tmp_path, has_tokenizer):
    expected = wrapped("q_proj", "o_proj", base=base("LlamaForCausalLM"), task_type="CAUSAL_LM").eval()
    expected.save_pretrained(tmp_path / "adapter")
    if has_tokenizer:
        tokens_of("llama").save_pretrained(tmp_path / "adapter")
    model, tokenizer = hr.load(tmp_path / "adapter")
    inputs = tokenizer("a b c", return_tensors="pt")
    with torch.no_grad():
        found = model(**inputs).logits
        assert torch.equal(found, expected(**inputs).logits)
        assert not torch.equal(found, base("LlamaForCausalLM")(**inputs).logits)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert not model.training


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PEFT to transformers
def test_the_head_of_a_classifier_is_in_its_adapter(base, tmp_path):
    cls = "AutoModelForSequenceClassification"
    expected = wrapped("q_proj", base=base(cls, num_labels=3), task_type="SEQ_CLS").eval()
    expected.save_pretrained(tmp_path / "adapter")
    model, tokenizer = hr.load(tmp_path / "adapter", cls=cls, num_labels=3)
    inputs = tokenizer("a b c", return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, expected(**inputs).logits)
    corpus = hr.Corpus("c", (hr.Sentence("a b", label="0"), hr.Sentence("c", label="2")))
    assert hr.evaluate(model, tokenizer, corpus, ["loss"], n_resamples=0)["value"].notna().all()  # its head is trained
    with pytest.raises(OSError, match=r"LlamaForCausalLM and the adapter differ in score.weight; try another class"):
        hr.load(tmp_path / "adapter")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PEFT to transformers
def test_an_adapter_that_cannot_be_loaded_is_named_with_its_base(base, tmp_path):
    peft = pytest.importorskip("peft")
    prompts = peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    peft.get_peft_model(base("LlamaForCausalLM"), prompts).save_pretrained(tmp_path / "prompts")
    start = f"^could not load '{tmp_path}/prompts', an adapter of '{tmp_path}/base': "
    with pytest.raises(OSError, match=f"{start}.* does not support prompt learning"):
        hr.load(tmp_path / "prompts")
    (tmp_path / "base" / "config.json").unlink()
    with pytest.raises(OSError, match=f"{start}could not load '{tmp_path}/base': "):
        hr.load(tmp_path / "prompts")
