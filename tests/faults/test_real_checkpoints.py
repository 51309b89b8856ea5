"""`check_model` reads text by the tokenizer of the model's own folder, and needs little memory beside its weights."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import transformers
from helpers.processes import Fork
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

import headroles as hr
from headroles.testing import CHECKS
from headroles.testing.case import TEXTS, Case

MEMORY = Path("/proc/self")
ASKED = ["confidence", "effects", "loss", "chosen"]


def own_tokenizer(template):
    """Byte-level BPE with special tokens, whose ids are not those of numbers written as words."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    names = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False, initial_alphabet=alphabet, special_tokens=names)
    inner.train_from_iterator(TEXTS, trainer)
    inner.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 1), ("</s>", 2)])
    roles = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **roles)


@pytest.fixture(
    params=[("llama", "<s> $A"), ("flaubert", "<s> $A </s>"), ("marian", "$A </s>")], ids=lambda case: case[0]
)
def loaded(request, tmp_path):
    kind, template = request.param
    tokenizer = own_tokenizer(template)
    options = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    options |= {"decoder_start_token_id": 0, "decoder_vocab_size": len(tokenizer)} if kind == "marian" else {}
    model = hr.tiny_model(kind, vocab_size=len(tokenizer), **options)
    hr.save(model, tokenizer, tmp_path)
    return hr.load(tmp_path)[0]


def test_checks_of_a_folder_use_its_tokenizer(loaded):
    before = {name: value.clone() for name, value in loaded.state_dict().items()}
    flags = [parameter.requires_grad for parameter in loaded.parameters()]
    table = hr.check_model(loaded)
    assert table.loc[ASKED, "holds"].to_dict() == dict.fromkeys(ASKED, "yes"), table.loc[ASKED, "why"].to_dict()
    assert "no" not in set(table["holds"])
    assert all(torch.equal(value, before[name]) for name, value in loaded.state_dict().items())
    assert [parameter.requires_grad for parameter in loaded.parameters()] == flags
    assert all(parameter.grad is None for parameter in loaded.parameters())


def test_copies_for_checks_share_the_memory_of_the_weights():
    model = hr.tiny_model("gpt2")  # with tied embeddings
    case = Case(model)
    for copy in (case.model, case.eager, case.sharing()):
        pairs = [*zip(model.parameters(), copy.parameters(), strict=True)]
        assert all(theirs is not ours and theirs.data_ptr() == ours.data_ptr() for theirs, ours in pairs)
        copy.requires_grad_(False)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("copy", [True, False])
def test_weights_in_float64_are_not_kept(copy):
    model = hr.tiny_model("gpt2").half()
    case = Case(model, copy=copy)
    assert (case.model is model) is not copy
    before = [parameter.clone() for parameter in case.model.parameters()]
    with case.in_float64() as double:
        assert double.dtype == torch.float64
        assert (double is model) is not copy
    assert {parameter.dtype for parameter in case.model.parameters()} == {torch.float32}
    assert all(torch.equal(a, b) for a, b in zip(before, case.model.parameters(), strict=True))
    assert all(parameter.is_meta for parameter in double.parameters()) is copy  # nothing that holds it holds memory
    assert hr.check_model(model, copy=copy)["holds"].to_dict() == dict.fromkeys(CHECKS, "yes")
    assert model.dtype == (torch.float16 if copy else torch.float32)


PEAK = """
import sys
from pathlib import Path
import transformers
import headroles as hr
from headroles.testing import CHECKS, runner
from headroles.models.weights.memory import return_memory

MEMORY, law = Path("/proc/self"), sys.argv[1]
runner.CHECKS = {law: CHECKS[law]}
hr.check_model(hr.tiny_model("llama"))  # what is loaded and cached once
size = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 5}
config = transformers.LlamaConfig(vocab_size=2**15, intermediate_size=1024, tie_word_embeddings=True, **size)
model = transformers.LlamaForCausalLM(config)
def kib(name):
    lines = (MEMORY / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))

return_memory(model)
(MEMORY / "clear_refs").write_text("5")  # the peak starts again
before, libraries = kib("VmRSS"), kib("RssFile")
table = hr.check_model(model, copy=False)
peak = kib("VmHWM") - before - (kib("RssFile") - libraries)  # pages of libraries that came back are no check's
size = sum(parameter.numel() * 4 for parameter in model.parameters())
print(table["holds"].to_dict() == {law: "yes"}, peak * 1024 / size)
"""


@pytest.mark.skipif(not os.access(MEMORY / "clear_refs", os.W_OK), reason="needs Linux")
@pytest.mark.parametrize(("law", "most"), [pytest.param("conserved", 1.5, marks=pytest.mark.slow), ("cut", 1.25)])
def test_a_check_takes_at_most_one_and_a_half_times_the_weights_more(law, most):
    """So that all is 2.5 times the weights, of which embeddings are 60%, as in small language models.

    Removal takes less: looking for NaN in the weights makes no copy of them.
    In a process of its own: what others have left between its pieces is no memory of the check's.
    """
    process = Fork(PEAK, law)
    holds, weights = process.communicate()[0].split()[-2:]
    assert holds == "True"
    assert float(weights) < most, weights
