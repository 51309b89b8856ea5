"""Roles and their patterns: each role of the rules that is about places has one."""

from __future__ import annotations

import pytest

from headroles.patterns import Alignment, Dependency, Diagonal, Duplicate, First, Induction, Offset, Rarest, Special
from headroles.patterns.of_roles import pattern_of


@pytest.mark.parametrize(
    ("role", "pattern"),
    [("positional[-1]", Offset(-1)), ("positional[+2]", Offset(2)), ("syntactic[nsubj dep>head]", Dependency("nsubj")),
     ("syntactic[obj head>dep]", Dependency("obj", "head>dep")), ("rare", Rarest()), ("sink[first]", First()),
     ("sink[special]", Special()), ("alignment", Diagonal()), ("translation", Alignment()), ("induction", Induction()),
     ("duplicate", Duplicate()), ("important", None)]
)  # fmt: skip
def test_each_role_has_its_pattern(role, pattern):
    assert pattern_of(role) == pattern
