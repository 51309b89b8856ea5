"""Checkpoints as people have them: in subfolders, as GGUF, of old classes, and with too little memory."""

from __future__ import annotations

import errno
import json
import re

import numpy as np
import pytest
import torch
import transformers
from helpers import zoo
from helpers.letters import tokens_of

import headroles as hr
from headroles.models import identity
from headroles.models.weights import gguf_files

TEXTS = hr.Corpus.of(["a b c d", "b d a"])


@pytest.fixture
def place(tmp_path):
    return hr.save(zoo.tiny("bert"), tokens_of("bert"), tmp_path / "whole")


def changed(place, **entries):
    """The folder with other entries in its config."""
    file = place / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))
    return place


# --- where files are --------------------------------------------------------------------------------------------------


def test_a_subfolder_has_the_config_and_the_tokenizer_too(place, tmp_path):
    model, tokenizer = hr.load(tmp_path, subfolder="whole")
    assert identity.weights_digest(model) == identity.weights_digest(zoo.tiny("bert"))
    assert type(tokenizer) is type(hr.load(place)[1])
    hr.score(model, tokenizer, TEXTS, ["confidence"], n_resamples=0)


def test_a_smaller_model_in_a_subfolder_is_loaded(tmp_path):
    smaller = hr.remove_heads(zoo.tiny("bert"), "L0H1")
    hr.save(smaller, tokens_of("bert"), tmp_path / "smaller")
    model, _ = hr.load(tmp_path, subfolder="smaller")
    assert identity.weights_digest(model) == identity.weights_digest(smaller)


def test_options_of_places_reach_the_config_the_weights_and_the_tokenizer(place, monkeypatch):
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
    hr.load(place, revision="v2", local_files_only=True, dtype=torch.float64)
    for options in asked.values():
        assert (options["revision"], options["local_files_only"]) == ("v2", True)
    assert [name for name, options in asked.items() if "dtype" in options] == ["weights"]


# --- classes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "old", "usual"),
    [
        ("llama-grouped", "LLaMAForCausalLM", "AutoModelForCausalLM"),
        ("t5", "T5WithLMHeadModel", "AutoModelForSeq2SeqLM"),
        ("bert", "BertForMaskedLMOld", "AutoModelForMaskedLM"),
        ("bert", "BertTokenizer", "AutoModelForMaskedLM"),
    ],
)
def test_an_old_class_in_a_config_names_what_to_give(name, old, usual, tmp_path):
    place = changed(hr.save(zoo.tiny(name), tokens_of(name), tmp_path / name), architectures=[old])
    message = (
        rf"could not load .*: its config names the class {old}, which transformers [\d.]+ does not have as a model; "
        rf"try cls='{usual}' \(--cls\)"
    )
    with pytest.raises(OSError, match=message):
        hr.load(place)
    assert type(hr.load(place, cls=usual)[0]) is type(zoo.tiny(name))


def test_an_unknown_class_is_named(place):
    with pytest.raises(OSError, match=r"cls names the class BertForNothing, .* try cls='BertForMaskedLM'"):
        hr.load(place, cls="BertForNothing")


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no room"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_memory_that_runs_out_is_no_fault_of_a_checkpoint(error, place, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(transformers.BertForMaskedLM, "from_pretrained", fail)
    with pytest.raises(MemoryError, match=f"^memory ran out while {re.escape(repr(str(place)))} was loaded: "):
        hr.load(place)


# --- GGUF -------------------------------------------------------------------------------------------------------------


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_files, "find_spec", lambda _: None)
    message = r"could not load 'x\.gguf': install gguf, in a checkout: pip install '\.\[gguf\]'"
    for load in (lambda: hr.load(tmp_path / "x.gguf"), lambda: hr.load(tmp_path, gguf_file="x.gguf")):
        with pytest.raises(OSError, match=message):
            load()


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


def test_memory_that_runs_out_is_no_fault_of_a_table(tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = hr.score(zoo.tiny("bert"), tokens_of("bert"), TEXTS, ["confidence"], n_resamples=0, study=tmp_path)
    for error in (pa.ArrowMemoryError("malloc of size 9 failed"), OSError(errno.ENOMEM, "Cannot allocate memory")):

        def fail(*_, error=error, **__):
            raise error

        with monkeypatch.context() as context:
            context.setattr(pq, "read_metadata", fail)
            context.setattr(pq, "read_table", fail)
            for read in (lambda: hr.Study(tmp_path).names(), lambda: hr.load_table(tmp_path / "heads.parquet")):
                with pytest.raises(type(error)):
                    read()
    assert hr.load_table(tmp_path / "heads.parquet").equals(table)
