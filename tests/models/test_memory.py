"""A copy of a model shares its memory, and the memory of a batch is kept for the next."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest
import torch

import headroles as hr
from headroles.models.memory import sharing


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_sharing_gives_a_copy_that_shares_memory_until_it_is_converted(dtype):
    model = hr.tiny_model("gpt2")  # with tied embeddings
    copy = sharing(model)
    pairs = [*zip(model.parameters(), copy.parameters(), strict=True)]
    assert all(theirs is not ours and theirs.data_ptr() == ours.data_ptr() for theirs, ours in pairs)
    assert copy.get_output_embeddings().weight is copy.get_input_embeddings().weight
    copy.to(dtype)
    assert {value.dtype for value in copy.parameters()} == {dtype}
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert copy.get_output_embeddings().weight is copy.get_input_embeddings().weight


def test_removal_from_a_sharing_copy_leaves_the_model_alone():
    model = hr.tiny_model("llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hr.remove_heads(sharing(model), ["L0H0", "L1H3"], groups="equal")
    hr.zero_heads(sharing(model), ["L0H1"])
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


FAULTS = """
import resource, torch
from headroles.models.memory import keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        pieces = [torch.ones(2**21) for _ in range(4)]
        del pieces
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
first = faults()
keep_memory()
faults()
print(first, faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other systems keep memory by rules of their own")
def test_keep_memory_keeps_the_memory_of_a_batch_for_the_next():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    first, then = map(int, done.stdout.split())
    pages = 10 * 4 * 2**23 // resource.getpagesize()
    assert then < pages / 10 < first
