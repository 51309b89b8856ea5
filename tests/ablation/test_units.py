"""Units and replacements: one word for each, in every function; sets of heads."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import zoo
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.ablation.units import REPLACEMENTS, known_replacement
from headroles.patterns import Uniform

HEADS = [("dec-self", 0, 1), ("dec-self", 1, 2)]


def given():
    return zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(6)


@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_a_known_replacement_is_itself(replacement):
    assert known_replacement(replacement) == replacement


def test_a_pattern_with_the_name_of_a_word_has_columns_and_provenance_of_its_own():
    """The word is for all queries, the pattern for content queries: special ones keep their own attention."""
    given = zoo.tiny("bert"), tokens_of("bert"), corpus(6)
    options = {"metric": "agreement", "n_resamples": 0}
    both = hr.join(*(hr.ablate(*given, replacement=each, **options) for each in ("uniform", Uniform())))
    word, pattern = "ablation[agreement uniform]", "ablation[agreement pattern=uniform]"
    assert "|replacement:uniform|" in hr.provenance(both, word)
    assert "|replacement:pattern=uniform|" in hr.provenance(both, pattern)
    assert not np.allclose(both[word], both[pattern], atol=0.01)


def test_an_attribution_has_no_other_example():
    message = "only 'AtP' and 'AtP\\*' resample: got replacement='resample'"
    with pytest.raises(ValueError, match=message):
        hr.attribute(*given(), method="InputXGradient", replacement="resample")


# --- sets of heads --------------------------------------------------------------------------------------------------


def test_sets_are_ablated_by_the_function_that_ablates_heads():
    table = hr.ablate(*given(), sets={"one": HEADS[:1], "both": HEADS}, n_resamples=0)
    whole = hr.ablate(*given(), n_resamples=0)
    assert list(table.index) == ["one", "both"]
    assert table.loc["one", "ablation[loss]"] == pytest.approx(whole.loc[HEADS[0], "ablation[loss]"], abs=1e-6)


def test_sets_have_no_unit():
    with pytest.raises(ValueError, match=r"got 1 sets and unit='layer'; expected at least one set, and no unit"):
        hr.ablate(*given(), sets={"both": HEADS}, unit="layer")


def test_a_study_keeps_sets_by_their_heads(tmp_path):
    study = hr.Study(tmp_path)
    first = hr.ablate(*given(), sets={"mine": HEADS[:1]}, n_resamples=20, study=study)
    assert study.names() == ["examples-sets-loss-head-zero", "sets-loss-head-zero"]
    again = hr.ablate(*given(), sets={"mine": HEADS[:1]}, n_resamples=20, study=study)
    assert again.to_numpy().tolist() == first.to_numpy().tolist()
    other = hr.ablate(*given(), sets={"mine": HEADS}, n_resamples=20, study=study)
    assert other.to_numpy().tolist() == hr.ablate(*given(), sets={"mine": HEADS}, n_resamples=20).to_numpy().tolist()
