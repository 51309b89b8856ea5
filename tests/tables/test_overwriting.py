"""A study is of one model, and a table of one corpus: others are refused before work is done, or replaced on demand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headroles.tables import frame
from headroles.tables.study import Study

INDEX = frame.index({("enc-self", 0): 4})
COMMITTED = sorted({path.parent for path in (Path(__file__).parents[2] / "figures").rglob("*.parquet")})


def made_from(weights="one", text="A", **options):
    return frame.sign(model=f"model {weights}", weights=weights, corpus=f"corpus {text}", text=text, **options)


def kept(study, name, recipe):
    """The table is kept by the recipe; returns whether it was computed."""
    times = []

    def compute():
        times.append(1)
        return frame.table({"a": [1.0] * 4}, INDEX, recipe)

    study.keep(name, recipe, compute)
    return bool(times)


@pytest.fixture
def study(tmp_path):
    """Scores, roles and effects of one model on two corpora, and relations of them."""
    made = Study(tmp_path)
    for name, text in (("heads", "A"), ("roles", "A"), ("ablation-loss-single-zero", "B"), ("history", "C")):
        kept(made, name, made_from(text=text))
    return made


def fails(study, name, recipe):
    before = {path.name: path.read_bytes() for path in study.folder.iterdir()}
    with pytest.raises(FileExistsError) as error:
        study.keep(name, recipe, lambda: pytest.fail("computed before it was refused"))
    assert {path.name: path.read_bytes() for path in study.folder.iterdir()} == before
    return str(error.value)


@pytest.mark.parametrize("name", ["heads", "attention", "ablation-bleu-rest-mean", "curves-loss", "sizes-l0"])
def test_another_model_is_refused(name, study):
    assert fails(study, name, made_from("two")) == (
        f"study {study.folder} holds another model: got two; expected one (model one), from which its tables "
        "ablation-loss-single-zero, heads, roles were made; name another study, or give --overwrite, which removes "
        "ablation-loss-single-zero, heads, history, roles"
    )


def test_another_corpus_in_the_place_of_a_table_is_refused(study):
    assert fails(study, "heads", made_from(text="D")) == (
        f"study {study.folder} holds another corpus: got D; expected A (corpus A), from which its tables heads "
        "were made; name another study, or give --overwrite, which removes heads, roles"
    )


def test_the_same_command_and_other_options_go_on(study, caplog):
    assert not kept(study, "heads", made_from())
    assert kept(study, "heads", made_from(seed=1))
    assert caplog.messages == [f"{study.path('heads')} was made with other options: computed again"]
    assert kept(study, "ablation-bleu-single-zero", made_from(text="D"))  # another table may be of another corpus
    assert kept(study, "gates-l0-36", made_from("gated"))  # of what became of the model


def test_overwriting_replaces_and_removes_what_is_of_another_model(study, caplog):
    over = Study(study.folder, overwrite=True)
    assert kept(over, "heads", made_from("two"))
    assert study.names() == ["heads"]
    assert caplog.messages[-1] == (
        f"{study.folder}: replacing and removing tables of another model: "
        "ablation-loss-single-zero, heads, history, roles"
    )


def test_overwriting_replaces_a_corpus_and_removes_what_was_derived_from_it(study):
    kept(study, "drift-l0", frame.holding(drift="of", roles=made_from()))
    assert kept(Study(study.folder, overwrite=True), "heads", made_from(text="D"))
    assert study.names() == ["ablation-loss-single-zero", "heads", "history"]


def test_what_is_overwritten_stays_until_the_new_is_there(study):
    def fail():
        raise KeyboardInterrupt

    before = sorted(os.listdir(study.folder))
    for recipe in (made_from("two"), made_from(text="D")):
        with pytest.raises(KeyboardInterrupt):
            Study(study.folder, overwrite=True).keep("heads", recipe, fail)
        assert sorted(os.listdir(study.folder)) == before


def test_a_table_computed_on_the_way_to_another_stays(study):
    """As `ablate` keeps the statistics of the examples before the effects that it computes from them."""
    over = Study(study.folder, overwrite=True)

    def compute():
        kept(over, "examples-loss-single-zero", made_from("two"))
        return frame.table({"a": [1.0] * 4}, INDEX, made_from("two"))

    over.keep("ablation-loss-single-zero", made_from("two"), compute)
    assert study.names() == ["ablation-loss-single-zero", "examples-loss-single-zero"]


def test_what_is_not_ours_is_neither_read_nor_removed(study):
    import pandas as pd

    pd.DataFrame({"a": [1]}).to_parquet(study.path("mine"))
    study.path("damaged").write_bytes(b"PAR1")
    kept(Study(study.folder, overwrite=True), "heads", made_from("two"))
    assert study.names() == ["heads"]
    assert {path.stem for path in study.folder.glob("*.parquet")} == {"damaged", "heads", "mine"}


@pytest.mark.slow
@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: "/".join(folder.parts[-2:]))
def test_no_study_in_the_repository_would_be_refused(folder, monkeypatch):
    """Every table of ours could be made again where it is, by what made it."""
    study = Study(folder)
    recipes = study._made_from()
    monkeypatch.setattr(study, "_made_from", lambda: dict(recipes))  # read once for all
    for name, recipe in recipes.items():
        assert study.claim(name, recipe) == {}
