"""What has no number is an error, or is said."""

from __future__ import annotations

import re

import pytest
from helpers import zoo
from helpers.letters import tokens_of

import headroles as hr
from headroles.data.corpus import Corpus


@pytest.mark.parametrize("texts", [("", ""), ("</s>", "")])
def test_a_corpus_of_empty_sentences_is_an_error(texts):
    message = (
        "corpus 'texts' has nothing to measure: every score of every head would be NaN; got 0 content tokens (neither "
        "padding nor special) in its source; expected some; try a corpus of whole sentences"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        hr.score(zoo.tiny("bert"), tokens_of("bert"), Corpus.of(texts), n_resamples=2)


def test_single_words_have_no_neighbours_and_that_is_said(caplog):
    hr.score(zoo.tiny("bert"), tokens_of("bert"), Corpus.of(["a", "b"]), ["position", "confidence"], n_resamples=0)
    names = ", ".join(f"position[{d}]" for d in ("-2", "-1", "+1", "+2"))
    reason = "no sentence of the corpus has anything to measure it on"
    assert caplog.messages == [f"{names} of enc-self heads are NaN: {reason}"]
