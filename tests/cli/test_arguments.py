"""Heads in writing, with or without their kind."""

from __future__ import annotations

import pytest
from helpers import planted
from helpers.commands import run
from helpers.messages import line

import headroles as hr


@pytest.mark.usefixtures("place")
def test_a_head_of_a_model_with_one_kind_needs_no_kind():
    assert run("remove-heads", "model", "L0H2,enc-self:1:3", "--output", "new").code == 0
    kept = hr.models.head_index(hr.load("new")[0])
    assert [head for head in hr.models.head_index(planted.model()) if head not in kept] == [
        ("enc-self", 0, 2),
        ("enc-self", 1, 3),
    ]


def test_a_head_of_a_model_with_several_kinds_needs_its_kind():
    from helpers import zoo

    with pytest.raises(ValueError, match=r"^head 'L0H1' has no kind: got a model with enc-self, dec-self, cross; try "):
        hr.remove_heads(zoo.tiny("marian"), "L0H1")


@pytest.mark.parametrize("text", ["L0", "0:1", "magic:0:1", "L0H1 L0H2", ""])
def test_other_writing_is_refused(text):
    with pytest.raises(ValueError, match=f"^head '{text}' is not of the form kind:layer:head, such as enc-self:0:2"):
        hr.head_mask(planted.model(), [text])


@pytest.mark.parametrize("numbers", [(0.9, 0.1), (0.1, 0.9), (0.5, 0.5)])
def test_two_thresholds_of_a_role_are_refused(study, numbers):
    first, second = numbers
    given = [part for number in numbers for part in ("--threshold", f"positional={number}")]
    assert run("roles", study.folder, *given) == line(
        f"two thresholds of positional: got {first} and {second}; expected a single threshold of a role; try "
        f"--threshold positional={second} alone"
    )
    assert not study.has("roles")
