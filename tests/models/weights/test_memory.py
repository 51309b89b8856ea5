"""Memory of weights: a copy shares it, and what is done to the copy leaves the model alone."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest
import torch

import headroles as hr
from headroles.models.weights.memory import convert, in_memory, sharing


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_copy_shares_memory_until_it_is_converted(dtype):
    model = hr.tiny_model("gpt2")  # with tied embeddings
    copy = sharing(model)
    pairs = [*zip(model.parameters(), copy.parameters(), strict=True)]
    assert all(theirs is not ours and theirs.data_ptr() == ours.data_ptr() for theirs, ours in pairs)
    assert copy.get_output_embeddings().weight is copy.get_input_embeddings().weight
    convert(copy, dtype)
    assert {value.dtype for value in copy.parameters()} == {dtype}
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert copy.get_output_embeddings().weight is copy.get_input_embeddings().weight
    for ours, theirs in pairs:
        torch.testing.assert_close(theirs.float(), ours, rtol=2**-8 if dtype == torch.bfloat16 else 0, atol=0)


def test_removal_from_a_copy_leaves_the_model_alone():
    model = hr.tiny_model("llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hr.remove_heads(sharing(model), ["L0H0", "L1H3"], groups="equal")
    hr.zero_heads(sharing(model), ["L0H1"])
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_weights_of_a_mapped_file_are_read_into_memory(tmp_path):
    hr.tiny_model("gpt2").save_pretrained(tmp_path)
    model = type(hr.tiny_model("gpt2")).from_pretrained(tmp_path)
    places = [value.data_ptr() for value in model.parameters()]
    values = [value.clone() for value in model.parameters()]
    assert in_memory(model) is model
    assert all(value.data_ptr() != place for value, place in zip(model.parameters(), places, strict=True))
    assert all(torch.equal(value, other) for value, other in zip(model.parameters(), values, strict=True))


FAULTS = """
import resource, torch
from headroles.models.weights.memory import keep_memory

def batch():
    pieces = [torch.ones(2**21) for _ in range(4)]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        batch()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

batch()
first = faults()
keep_memory()
batch()
print(first, faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other systems keep memory by rules of their own")
def test_the_memory_of_a_batch_is_kept_for_the_next():
    done = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True)
    first, then = map(int, done.stdout.split())
    pages = 10 * 4 * 2**23 // resource.getpagesize()
    assert then < pages / 10 < first
