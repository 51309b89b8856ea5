"""Messages of unknown names say which known name is meant."""

from __future__ import annotations

import pytest

from headroles.tables.names import several, unknown


@pytest.mark.parametrize(
    ("name", "meant"),
    [("sintax", "; did you mean 'syntax'"), ("Confidence", "; did you mean 'confidence'"), ("nonsense", ""), (3, "")],
)
def test_a_similar_name_is_named(name, meant):
    message = unknown("score", name, iter(["confidence", "syntax"]), ", or your own")
    assert message == f"unknown score {name!r}{meant}; known: confidence, syntax, or your own"


def test_a_name_by_itself_is_one():
    assert several("loss") == several(["loss"]) == several(name for name in ["loss"]) == ["loss"]
    assert several(3) == [3]
