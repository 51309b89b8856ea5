"""What exports refuse: the call, and the subject and the value that the message names."""

from __future__ import annotations

import pytest
from helpers.budgets import budget, given

import headroles as hr

CALLS = {
    "a form": (lambda place: hr.export_budget(budget(), place, "csv"), "form must be one of duo, .*, got 'csv'"),
    "uneven layers": (lambda place: hr.export_budget(budget().iloc[1:], place), "equally many .* got 1, 2;"),
    "no budget": (lambda place: hr.export_budget(hr.ablate(*given(), n_resamples=0), place), "got a DataFrame"),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLS)
def test_wrong_arguments_are_refused(case, tmp_path):
    call, message = CALLS[case]
    with pytest.raises(ValueError, match=message):
        call(tmp_path)
    assert not [*tmp_path.iterdir()]
