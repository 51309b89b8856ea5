"""A corpus is sampled, and takes plain strings."""

from __future__ import annotations

from headroles.data.corpus import Corpus, Sentence


def test_a_sample_is_drawn_by_chance_and_in_order():
    whole = Corpus("numbers", tuple(Sentence(str(number)) for number in range(1000)))
    drawn = [int(one.text) for one in whole.sample(100, seed=1)]
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 100
    assert 400 < sum(drawn) / 100 < 600  # not the first
    assert drawn == [int(one.text) for one in whole.sample(100, seed=1)]
    assert drawn != [int(one.text) for one in whole.sample(100, seed=2)]
    assert whole.sample(None) is whole.sample(1000) is whole


def test_a_corpus_of_plain_strings_is_read_as_it_is():
    texts = ["<|user|> Hi! ", "two\nlines"]  # a chat template is text like any other
    corpus = Corpus.of(iter(texts), name="mine")
    assert corpus == Corpus("mine", tuple(map(Sentence, texts)))
    assert Corpus.of(texts).hash == corpus.hash
