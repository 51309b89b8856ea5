"""Files of models, run by stock llama.cpp: the next tokens and their log-probabilities are those of transformers."""

from __future__ import annotations

import random
import shlex
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from helpers.commands import run
from helpers.llama_cpp import (
    LINES,
    SENTENCES,
    Running,
    byte_level,
    expected_greedy,
    expected_top,
    prompt,
    sentence_piece,
    tiny,
)  # fmt: skip

import headroles as hr

LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SIX = {"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"], "sliding_window": 8}
SIX |= {"query_pre_attn_scalar": 16}
MODELS = {  # name, options, heads that are removed, architecture in the file
    "whole": ("llama", {}, "", "llama"),
    "tied": ("llama", {"tie_word_embeddings": True}, "", "llama"),
    "a group": ("llama", {}, "L0H0,L0H1,L1H0,L1H2", "deci"),
    "kept as zeroed": ("llama", {}, "L0H0,L2H1,L2H2", "deci"),
    "a layer without heads": ("llama", {"tie_word_embeddings": True}, "L1H0,L1H1,L1H2,L1H3", "deci"),
    "the first layer without heads": ("llama", {}, "L0H0,L0H1,L0H2,L0H3,L2H0,L2H1,L2H2,L2H3", "deci"),
    "as many heads in each layer": ("llama", {}, "L0H0,L0H1,L1H0,L1H1,L2H2,L2H3", "llama"),
    "biases": ("llama", {"attention_bias": True}, "L0H0,L0H1,L1H0,L1H1,L1H2,L1H3", "deci"),
    "other frequencies": ("llama", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 64}},
                          "L0H0,L0H1", "deci"),
    "linear frequencies": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
                           "", "llama"),
    "mistral": ("mistral", {"sliding_window": 200}, "L0H0,L0H1", "deci"),
    "qwen2": ("qwen2", {}, "", "qwen2"),
    "qwen2 without groups": ("qwen2", {}, "L0H0,L0H1,L2H0,L2H1,L2H2,L2H3", "deci"),
    "qwen3": ("qwen3", {}, "L0H0,L0H1,L1H0,L1H1,L2H2,L2H3", "qwen3"),
    "gemma3": ("gemma3_text", SIX, ",".join(f"L{layer}H{head}" for layer in range(6) for head in (0, 1)), "gemma3"),
}  # fmt: skip


def made(case, tokenizer=None):
    name, options, heads, _ = MODELS[case]
    tokenizer = tokenizer or byte_level()
    model = tiny(tokenizer, name, **options)
    return (hr.remove_heads(model, heads) if heads else model), tokenizer


@pytest.mark.parametrize("case", MODELS)
def test_llama_cpp_predicts_what_transformers_does(case, tmp_path):
    model, tokenizer = made(case)
    assert hr.export_model(model, tokenizer, tmp_path / "model.gguf", precision="float32") == tmp_path / "model.gguf"
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    assert reader.fields["general.architecture"].contents() == MODELS[case][-1]
    served = Running(tmp_path / "model.gguf")
    for text in SENTENCES[:3]:
        ids = prompt(model, tokenizer, text)
        top, expected = served.top(ids), expected_top(model, ids)
        assert [*top] == [*expected]
        assert [*top.values()] == pytest.approx(
            [*expected.values()], abs=2e-3 if case == "gemma3" else 1e-4
        )  # llama.cpp has a table of gelu


@pytest.mark.parametrize("case", ["whole", "a layer without heads", "mistral"])
def test_64_tokens_are_the_same(case, tmp_path):
    model, tokenizer = made(case, sentence_piece(tmp_path) if case == "mistral" else None)
    hr.export_model(model, tokenizer, tmp_path / "model.gguf", precision="float32")
    ids = tokenizer(SENTENCES[0]).input_ids[:20]
    assert Running(tmp_path / "model.gguf").greedy(ids) == expected_greedy(model, ids, tokenizer)


@pytest.mark.parametrize(("precision", "kind", "off"), [("float16", "F16", 0.02), ("q8_0", "Q8_0", 0.3)])
def test_smaller_numbers_are_near(precision, kind, off, tmp_path):
    """Of 8 bits within half a step, of 127 for the largest of 32 numbers, which has 16 bits; so are predictions."""
    model, tokenizer = made("a group")
    hr.export_model(model, tokenizer, tmp_path / "model.gguf", precision=precision)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert {tensors[name].tensor_type.name for name in tensors if name.endswith("norm.weight")} == {"F32"}
    down = tensors["blk.1.ffn_down.weight"]
    assert down.tensor_type.name == kind
    weight = model.model.layers[1].mlp.down_proj.weight.detach().numpy()
    blocks = np.abs(weight.reshape(-1, 32))
    step = blocks.max(1, keepdims=True) / 127 if precision == "q8_0" else blocks / 1024
    error = np.abs(gguf.dequantize(down.data, down.tensor_type).reshape(weight.shape) - weight).reshape(-1, 32)
    assert (error <= 0.6 * step + 1e-7).all()
    ids = prompt(model, tokenizer, SENTENCES[0])
    top, expected = Running(tmp_path / "model.gguf").top(ids, 600), expected_top(model, ids, 3)
    assert max(abs(top[token] - value) for token, value in expected.items()) < off


def test_rows_that_blocks_of_32_do_not_fill_have_16_bits(tmp_path):
    model, tokenizer = tiny(byte_level(), hidden_size=96, num_attention_heads=3, num_key_value_heads=3), byte_level()
    hr.export_model(model, tokenizer, tmp_path / "model.gguf", precision="q8_0")
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert types["blk.0.attn_output.weight"] == "F16"  # of 48 features
    assert types["blk.0.attn_q.weight"] == "Q8_0"


def test_texts_are_no_longer_than_a_window(tmp_path):
    model, tokenizer = made("mistral")
    hr.export_model(model, tokenizer, tmp_path / "model.gguf")
    assert gguf.GGUFReader(tmp_path / "model.gguf").fields["deci.context_length"].contents() == 200


def test_the_model_is_as_before_and_one_tensor_at_a_time_is_in_memory(tmp_path, monkeypatch):
    model, tokenizer = made("a group")
    before, written = {name: value.clone() for name, value in model.state_dict().items()}, []
    put = gguf.GGUFWriter.write_tensor_data
    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", lambda *given: written.append(1) or put(*given))
    hr.export_model(model, tokenizer, tmp_path / "model.gguf", precision="float32")
    assert len(written) == len([*model.parameters()])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_interrupted_export_leaves_nothing(tmp_path, monkeypatch):
    model, tokenizer = made("whole")
    quantize, calls = gguf.quantize, []

    def interrupt(*given):
        calls.append(given)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return quantize(*given)

    monkeypatch.setattr(gguf, "quantize", interrupt)
    with pytest.raises(KeyboardInterrupt):
        hr.export_model(model, tokenizer, tmp_path / "model.gguf")
    assert not [*tmp_path.iterdir()]


def test_the_six_commands_of_the_page_run(tmp_path, monkeypatch):
    """From a model on disk to what llama.cpp says: the first block of `how-to/run-elsewhere.md` as it stands."""
    page = (Path(hr.__file__).parents[1] / ".docs/how-to/run-elsewhere.md").read_text(encoding="utf8")
    commands = page.split("```bash\n")[1].split("```")[0].splitlines()
    assert len(commands) == 6
    monkeypatch.chdir(tmp_path)
    tokenizer = byte_level()
    hr.save(tiny(tokenizer), tokenizer, "MODEL")
    for name in ("texts.txt", "held-out.txt"):
        Path(name).write_text("\n".join(SENTENCES[:6]), encoding="utf8")
    for command in commands[:5]:
        ended = run(*shlex.split(command)[1:])
        assert ended.code == 0, ended
    assert f"written: whole.gguf, {Path('whole.gguf').stat().st_size:,} bytes" in ended.out
    assert Path("smaller.gguf").stat().st_size < Path("whole.gguf").stat().st_size
    _, *words = shlex.split(commands[5])
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    assert ended.stdout.strip()
    assert run("export", "nowhere", "--output", "whole.gguf").code == 2  # before anything is loaded


@pytest.mark.slow
@pytest.mark.shared
def test_smollm2_without_its_groups_is_read_as_transformers_does(smollm2, tmp_path):
    """The real one: random groups and a whole layer are removed."""
    model, tokenizer = hr.load(smollm2)
    drawn = random.Random(0)
    groups = {(layer, group) for layer in range(30) for group in drawn.sample(range(3), drawn.randrange(3))}
    groups |= {(7, group) for group in range(3)}
    hr.remove_heads(model, [("dec-self", layer, 3 * group + head) for layer, group in groups for head in range(3)])
    hr.export_model(model, tokenizer, tmp_path / "model.gguf", precision="float32")
    served = Running(tmp_path / "model.gguf")
    assert [line for line in LINES if served.tokens(line) != tokenizer(line).input_ids] == []
    for text in SENTENCES[:3]:
        ids = prompt(model, tokenizer, text)
        top, expected = served.top(ids), expected_top(model, ids)
        assert [*top] == [*expected]
        assert [*top.values()] == pytest.approx([*expected.values()], abs=2e-3)
    assert served.greedy(ids) == expected_greedy(model, ids, tokenizer)
