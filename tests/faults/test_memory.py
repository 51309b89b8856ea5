"""Memory: what grows with the number of sentences is their statistics, not their resamples."""

from __future__ import annotations

import tracemalloc

import pytest

import headroles as hr
from headroles.testing.case import Case


def peak(case: Case, count: int) -> int:
    """Return the largest memory in Python and NumPy, in bytes, of ablating all heads on so many short sentences."""
    words = [str(number) for number in range(10, 60)]
    texts = [" ".join(words[(row * 7 + place * 3) % 50] for place in range(6)) for row in range(count)]
    corpus = hr.Corpus.of(texts)
    tracemalloc.start()
    hr.ablate(case.model, case.tokenizer, corpus)
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return memory


@pytest.mark.slow
def test_ablate_keeps_few_numbers_of_each_sentence():
    case = Case(hr.tiny_model("gpt2"))
    peak(case, 50)  # what is imported and cached once
    few, many = peak(case, 1200), peak(case, 2400)
    assert (many - few) / 1200 < 8_000  # resamples of all sentences at once took 24,000 bytes a sentence
