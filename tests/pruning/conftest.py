"""Fixtures that several tests of pruning share."""

from __future__ import annotations

import pytest
from helpers.prunings import learnt
from helpers.trainings import films, tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model and its corpora as files."""
    place = tmp_path_factory.mktemp("pruning")
    learnt().save_pretrained(place / "model")
    tokenizer().save_pretrained(place / "model")
    for name, corpus in (("train", films(48)), ("dev", films(40, 1))):
        rows = "".join(f"{one.label}\t{one.text}\n" for one in corpus)
        (place / f"{name}.tsv").write_text(f"label\tsentence\n{rows}")
    return place
