"""Two models are at hand by name, wherever the command runs; a folder of that name comes first."""

from __future__ import annotations

import json

from headroles.models.weights.at_hand import MINILM, TRANSLATOR, at_hand


def test_models_at_hand_have_a_config_and_other_names_stay_as_they_are(tmp_path, monkeypatch):
    place, called = at_hand("minilm")
    assert called == MINILM
    assert json.loads((place / "config.json").read_text())["num_hidden_layers"] == 6
    assert at_hand("translator") == (TRANSLATOR, "translator-en-de")
    assert at_hand("gpt2") == ("gpt2", "")
    (tmp_path / "minilm").mkdir()
    monkeypatch.chdir(tmp_path)
    assert at_hand("minilm") == ("minilm", "")
