"""Two models are at hand by name, wherever the command runs; a folder of that name comes first."""

from __future__ import annotations

import json

import pytest

from headroles.models.loading import minilm, translator
from headroles.models.weights.at_hand import MINILM, TRANSLATOR, Bundled, at_hand


def test_models_at_hand_have_a_config_and_other_names_stay_as_they_are(tmp_path, monkeypatch):
    place, called = at_hand("minilm")
    assert called == MINILM
    assert json.loads((place / "config.json").read_text())["num_hidden_layers"] == 6
    assert at_hand("translator") == (TRANSLATOR, "translator-en-de")
    assert at_hand("gpt2") == ("gpt2", "")
    (tmp_path / "minilm").mkdir()
    monkeypatch.chdir(tmp_path)
    assert at_hand("minilm") == ("minilm", "")
    assert at_hand(Bundled("minilm")) == (place, MINILM)


@pytest.mark.parametrize("load", [minilm, translator])
def test_the_functions_load_the_models_at_hand_beside_folders_of_their_names(load, tmp_path, monkeypatch):
    (tmp_path / load.__name__).mkdir()
    monkeypatch.chdir(tmp_path)
    model, _ = load()
    assert model.config.name_or_path in (MINILM, TRANSLATOR.name)
