"""The last complete checkpoint is the one that training goes on from."""

from __future__ import annotations

import pytest

from headroles.training.checkpoints import last_checkpoint


@pytest.mark.parametrize("cut", [None, "", '{"log_hist', '{"epoch": 1}'])
def test_last_checkpoint_is_the_last_one_with_a_complete_state(cut, tmp_path):
    for step in (2, 10, 9):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text('{"log_history": []}')
    assert last_checkpoint(tmp_path).name == "checkpoint-10"
    state = tmp_path / "checkpoint-10" / "trainer_state.json"
    state.unlink() if cut is None else state.write_text(cut)
    assert last_checkpoint(tmp_path).name == "checkpoint-9"


def test_last_checkpoint_of_a_new_folder_is_none(tmp_path):
    assert last_checkpoint(tmp_path / "new") is None
