"""Corpora and scores of the planted model, and the first line of an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import pytest
from helpers import planted
from transformers import PreTrainedModel

import headroles as hr
from headroles.data.corpus import Corpus, Sentence


def planted_scores(
    given_corpus: Corpus, *scores: str, model: PreTrainedModel | None = None, **options: Any
) -> pd.DataFrame:
    """The scores of the planted model, or of another with its tokenizer; without resamples if none are asked for."""
    options = {"n_resamples": 0} | options
    return hr.score(model or planted.model(), planted.tokenizer(), given_corpus, scores or None, **options)


def given_corpus(*sentences: Sentence) -> Corpus:
    return Corpus("given", sentences)


def refuses(cases: Mapping[str, tuple[Callable[[], object], str]]) -> Callable[[str], None]:
    """The test of a table of calls, each of which is refused as a ValueError with the message beside it."""

    @pytest.mark.parametrize("name", cases)
    def test(name: str) -> None:
        call, message = cases[name]
        with pytest.raises(ValueError, match=message):
            call()

    return test


def first(kind: type[Exception], call: Callable[[], object]) -> str:
    """The first line of the error of another library."""
    with pytest.raises(kind) as error:
        call()
    return str(error.value).strip().splitlines()[0]
