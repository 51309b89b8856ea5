"""A file of a checkpoint that is not as it was written is named in one sentence before training goes on from it."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from helpers.messages import whole
from helpers.trainings import films, same_weights, tokenizer, untrained

from headroles.training.checkpoints import DIGESTS, check_digests, last_checkpoint, write_digests
from headroles.training.trainer import train

FILES = ["model.safetensors", "optimizer.pt", "rng_state.pth"]


def learn(folder):
    model = untrained()
    return model, train(model, tokenizer(), films(16), folder, epochs=2, batch=8, rate=1e-3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished training: its folder and the model."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, learn(folder)[0]


@pytest.fixture
def stopped(finished, tmp_path):
    """A training that was stopped after its last checkpoint, before it was finished."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "history.parquet").unlink()
    return tmp_path


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def removed(path):
    path.unlink()


@pytest.mark.parametrize("damage", [flipped, truncated, removed])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_of_a_checkpoint_is_named(file, damage, stopped):
    last = stopped / "checkpoint-4"
    damage(last / file)
    advice = f"remove {last} to go on from the checkpoint before it"
    got = "no file" if damage is removed else "[0-9a-f]{12}"
    message = rf"^{re.escape(str(last / file))} is damaged: got {got}; expected SHA-256 [0-9a-f]{{12}}; {advice}$"
    with pytest.raises(ValueError, match=message):
        learn(stopped)


def test_the_advice_leads_to_the_same_model(stopped, finished):
    flipped(stopped / "checkpoint-4" / "model.safetensors")
    shutil.rmtree(stopped / "checkpoint-4")
    same_weights(learn(stopped)[0], finished[1], 1e-6)


def test_a_flipped_digit_of_the_trainers_state_is_noticed(stopped):
    path = stopped / "checkpoint-4" / "trainer_state.json"
    path.write_text(path.read_text().replace('"global_step": 4', '"global_step": 5'))
    with pytest.raises(ValueError, match="trainer_state.json is damaged"):
        learn(stopped)


@pytest.mark.parametrize("damage", [flipped, truncated])
def test_damaged_weights_of_a_finished_training_are_not_loaded(damage, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    damage(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors is damaged: .*; give another folder to train again$"):
        learn(tmp_path)


def test_checkpoints_of_earlier_versions_are_read_as_they_are(stopped, finished):
    for path in stopped.rglob(DIGESTS):
        path.unlink()
    same_weights(learn(stopped)[0], finished[1], 1e-6)


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="no sha256sum")
def test_digests_are_those_of_sha256sum(finished):
    for folder in (finished[0], last_checkpoint(finished[0])):
        done = subprocess.run(["sha256sum", "--check", "--strict", DIGESTS], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        assert "model.safetensors: OK" in done.stdout


def test_digests_of_some_files_leave_the_others_alone(tmp_path):
    for name in ("a.safetensors", "notes.md"):
        (tmp_path / name).write_text(name)
    write_digests(tmp_path, "*.safetensors")
    (tmp_path / "notes.md").write_text("more")
    check_digests(tmp_path, "-")
    (tmp_path / "a.safetensors").write_text("more")
    with pytest.raises(ValueError, match="a.safetensors is damaged"):
        check_digests(tmp_path, "-")


def test_a_damaged_list_of_digests_is_damage(tmp_path):
    (tmp_path / DIGESTS).write_text("0123  model.safetensors")
    damage = f"{tmp_path / DIGESTS} is damaged: got '0123  model.safetensors'; expected a SHA-256 and a name; -"
    with pytest.raises(ValueError, match=whole(damage)):
        check_digests(tmp_path, "-")


@pytest.mark.parametrize("file", FILES)
def test_a_truncated_file_without_a_digest_is_named(file, stopped):
    last = stopped / "checkpoint-4"
    (last / DIGESTS).unlink()
    truncated(last / file)
    advice = f"remove {last} to go on from the checkpoint before it"
    message = rf"^{re.escape(str(last / file))} cannot be read: [^\n]+; {advice}$"
    with pytest.raises(ValueError, match=message):
        learn(stopped)


@pytest.mark.parametrize("damage", [truncated, removed])
def test_weights_of_a_finished_training_without_a_digest_are_named(damage, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / DIGESTS).unlink()
    damage(tmp_path / "model.safetensors")
    advice = "give another folder to train again"
    with pytest.raises(ValueError, match=rf"^{tmp_path}[\w./]* cannot be read: [^\n]+; {advice}$"):
        learn(tmp_path)
