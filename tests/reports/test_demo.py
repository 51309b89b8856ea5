"""The demo of a translator scores it and writes its figures; that of an encoder runs with the wheel."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from helpers.commands import run

from headroles.models.loading import TRANSLATOR
from headroles.tables.io import load_table

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_demo_of_a_translator_has_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headroles-demo").mkdir()
    (tmp_path / "headroles-demo" / "heads.parquet").write_bytes(b"of another model")
    done = run("demo", "--translation")
    assert (done.code, done.err) == (0, "")
    tmp_path /= "headroles-demo-translation"
    places = tmp_path, ROOT / "figures/models" / TRANSLATOR.name
    table, committed = (load_table(folder / "heads.parquet") for folder in places)
    names = ["confidence", "position[-1]", "position[+1]", "alignment[monotone]"]
    pd.testing.assert_frame_equal(table[names], committed[names], rtol=0, atol=0.01)  # a tenth of a role's margin
    roles = load_table(tmp_path / "roles.parquet")
    assert roles.index[roles["positional[-1]"]].tolist() == [("enc-self", 0, 3), ("enc-self", 1, 6)]
    assert roles["alignment[monotone]"].sum() == 4
    assert (tmp_path / "roles-cross.png").is_file()
