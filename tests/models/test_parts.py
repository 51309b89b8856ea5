"""A copy of a model shares the memory of its weights until they change."""

from __future__ import annotations

import pytest
import torch

import headroles as hr
from headroles.models.parts import sharing


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
