"""Tokenizers and untrained translators of any size."""

from __future__ import annotations

import pytest
from helpers.messages import whole

from headroles.training.marian import marian, pieced

# --- preparing -------------------------------------------------------------------------------------------------------


def test_punctuation_is_never_part_of_a_word():
    tokenizer = pieced(['"Well," said Tom. "Don\'t (ever) go!"'] * 9, 400)
    found = tokenizer.tokenize('"Well," said Tom.')
    assert [one for one in found if not one.strip("▁").isalpha()] == ["▁", '"', ",", '"', "."]
    assert (
        tokenizer.decode(tokenizer('"Well," said Tom.')["input_ids"], skip_special_tokens=True) == '"Well," said Tom.'
    )


# --- bad input -------------------------------------------------------------------------------------------------------


def test_heads_that_do_not_divide_the_width_of_a_model():
    with pytest.raises(ValueError, match=whole("4 heads do not share a width of 30 equally; give a multiple of 4")):
        marian(pieced(["a"], 100), width=30, layers=1, heads=4, inner=8)
