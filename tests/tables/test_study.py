"""Studies keep tables by what they were made from, with several writers, and replace none of another model."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import time
from functools import partial, wraps
from pathlib import Path

import pandas as pd
import pytest
from helpers import planted
from helpers.messages import whole

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.models.head_model import HeadModel
from headroles.tables import frame
from headroles.tables.io import save_table
from headroles.tables.study import Study, as_table, as_tables

INDEX = frame.index({("enc-self", 0): 4})
OPTIONS = {"n_resamples": 20, "scores": ["confidence", "position", "syntax", "rarity"]}


def table(value):
    return frame.table({"a": [float(value)] * 4}, INDEX, f"value:{value}")


class Counted:
    """A computation that counts how often it was made."""

    def __init__(self, value):
        self.value, self.times = value, 0

    def __call__(self):
        self.times += 1
        return table(self.value)


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path / "study")


def test_a_table_is_computed_once(study, caplog):
    caplog.set_level(logging.INFO, logger="headroles.tables.study")
    compute = Counted(1)
    first = study.keep("heads", "recipe", compute)
    second = study.keep("heads", "recipe", compute)
    again = Study(study.folder).keep("heads", "recipe", compute)  # another process would see the same
    assert compute.times == 1
    for one in (second, again):
        pd.testing.assert_frame_equal(one, first)
        assert one.attrs == first.attrs
    assert caplog.messages == 2 * [f"heads: reused from {study.path('heads')}"]


def test_another_recipe_is_computed_again_and_logged(study, caplog):
    study.keep("heads", "one", Counted(1))
    other = Counted(2)
    assert study.keep("heads", "two", other)["a"].tolist() == [2.0] * 4
    assert other.times == 1
    assert study.load("heads").attrs == {"signatures": {"a": "value:2"}, "recipe": "two"}
    message = f"{study.path('heads')} was made with other options: computed again"
    assert caplog.messages == [message]
    assert caplog.records[0].levelno == logging.WARNING


def test_columns_of_the_same_corpus_and_options_are_joined(study, caplog):
    def named_table(value, *names):
        return lambda: frame.table({name: [float(value)] * 4 for name in names}, INDEX, f"value:{value}")

    def key(scores, seed=0):
        return frame.sign(text="a", scores=scores, seed=seed)

    study.keep("heads", key("one"), named_table(1, "a", "b"), joined=["scores"])
    study.keep("heads", key("two"), named_table(2, "b", "c"), joined=["scores"])
    unused = Counted(3)
    for scores in ("one", "two"):
        table = study.keep("heads", key(scores), unused, joined=["scores"])
        assert table.iloc[0].to_dict() == {"a": 1.0, "b": 2.0, "c": 2.0}
        assert table.attrs["signatures"] == {"a": "value:1", "b": "value:2", "c": "value:2"}
    assert unused.times == 0
    assert caplog.messages == []


def scored(names, resamples, value):
    """A key and a computation of columns of scores, as of `hr.score`; c.low is another column of c."""
    key = frame.sign(weights="w", text="a", scores=names, resamples=resamples)
    columns = [f"{name}{end}" for name in names for end in ("", ".low")[: 1 + bool(resamples)]]
    signatures = {column: frame.sign(score=column[0], resamples=resamples) for column in columns}
    return key, lambda: frame.table({column: [float(value)] * 4 for column in columns}, INDEX, signatures)


def test_other_options_leave_the_columns_of_other_scores(study, caplog):
    """`importance --resamples 50`, then `confidence --resamples 60`: the first was gone."""
    keep, unused = partial(study.keep, "heads", joined=["scores"]), Counted(9)
    keep(*scored("i", 50, 1))
    keep(*scored("c", 60, 2))
    table = study.load("heads")
    assert table.iloc[0].to_dict() == {"i": 1.0, "i.low": 1.0, "c": 2.0, "c.low": 2.0}
    resamples = {name: 50 if name[0] == "i" else 60 for name in table}
    assert table.attrs["signatures"] == {name: f"score:{name[0]}|resamples:{resamples[name]}" for name in table}
    assert caplog.messages == [f"{study.path('heads')}: columns made with other options are kept: i, i.low"]
    for names, resamples in (("i", 50), ("c", 60)):
        keep(scored(names, resamples, 0)[0], unused)
    assert unused.times == 0
    keep(*scored("c", 0, 3))  # its interval does not stay beside another value
    assert study.load("heads").iloc[0].to_dict() == {"i": 1.0, "i.low": 1.0, "c": 3.0}
    assert caplog.messages[-1] == f"{study.path('heads')}: made with other options, computed again: c, c.low"
    again = Counted(4)
    keep(scored("c", 60, 0)[0], again)  # what it had made was replaced
    assert again.times == 1


def test_a_table_saved_without_a_recipe_is_computed_again(study):
    save_table(table(1), study.path("heads"))
    assert study.keep("heads", "recipe", Counted(2))["a"].tolist() == [2.0] * 4


def test_each_table_has_its_own_recipe(study):
    compute = Counted(1)
    for name in ("heads", "roles"):
        study.keep(name, name, compute)
        study.keep(name, name, compute)
    assert compute.times == 2
    assert study.names() == ["heads", "roles"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ValueError])
def test_what_is_finished_stays_whatever_happens_to_the_next(error, study):
    def fail():
        raise error

    study.keep("heads", "one", Counted(1))
    for name in ("heads", "roles"):
        with pytest.raises(error):
            study.keep(name, "two", fail)
    assert study.names() == ["heads"]
    assert study.load("heads").attrs["recipe"] == "one"
    unused = Counted(3)
    assert study.keep("heads", "one", unused)["a"].tolist() == [1.0] * 4
    assert unused.times == 0


def test_a_damaged_table_is_an_error_and_is_not_written_over(study):
    study.keep("heads", "recipe", Counted(1))
    study.path("heads").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=f"^{re.escape(str(study.path('heads')))} is not a table of headroles: "):
        study.keep("heads", "recipe", Counted(2))
    assert study.path("heads").read_bytes() == b"damaged"


def test_no_folder_is_made_before_there_is_a_table_and_drafts_and_pictures_are_none(study):
    assert not study.folder.exists()
    assert study.names() == []
    assert not study.has("heads")
    study.keep("heads", "recipe", Counted(1))
    assert study.has("heads")
    assert study.path("heads") == study.folder / "heads.parquet"
    study.keep("heads", "recipe", Counted(1))
    for name in (".roles.parquet.123", "heads.png", "notes.txt"):
        (study.folder / name).touch()
    assert study.names() == ["heads"]


def test_a_file_is_no_study(tmp_path):
    path = tmp_path / "a.parquet"
    path.touch()
    with pytest.raises(NotADirectoryError, match=whole(f"study must be a folder of tables, got the file {path}")):
        Study(path)
    message = f"cannot write into study folder {path / 'study'}: Not a directory; name another"
    with pytest.raises(OSError, match=whole(message)):
        Study(path / "study").keep("heads", "recipe", pytest.fail)


@pytest.mark.parametrize("name", ["~", "~/a", "a:b", "hdfs:x", "~nobody-of-this-name"])
def test_a_tilde_and_a_colon_in_the_path_of_a_study(name, tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    made = Study(name)
    made.keep("heads", "recipe", Counted(1))
    assert Study(name).keep("heads", "recipe", pytest.fail)["a"].tolist() == [1.0] * 4
    assert made.names() == ["heads"]
    assert "1 tables" in made._repr_html_()
    place = tmp_path / "home" / name[2:] if name in ("~", "~/a") else tmp_path / name
    assert (place / "heads.parquet").is_file()


def test_a_table_that_is_not_there(study):
    message = f"no table 'roles' in {study.folder}, which has none; make it with headroles roles {study.folder}"
    with pytest.raises(FileNotFoundError, match=whole(message)):
        study.load("roles")
    for name in ("heads", "a"):
        study.keep(name, "recipe", Counted(1))
    with pytest.raises(FileNotFoundError, match=whole(f"no table 'b' in {study.folder}, which has a, heads")):
        study.load("b")


# --- several writers --------------------------------------------------------------------------------------------------


def test_tables_without_a_key_keep_the_columns_that_others_added(study):
    """As the survival of several prunings, each with its own provenance."""
    for name, score in (("survival[a]", "x"), ("survival[b]", "x"), ("survival[a]", "y")):
        table = frame.table({name: [1.0] * 4}, INDEX, frame.sign(weights="w", score=score))
        study.save("survival-l0", table, joined=["survival"])
    kept = study.load("survival-l0")
    assert {name: frame.provenance(kept, name)[-1] for name in kept} == {"survival[b]": "x", "survival[a]": "y"}
    assert "recipe" not in kept.attrs


def writer(study, begun, key, *, scores=""):
    """Another process that computes `heads` of the study until a file `begun` is removed."""
    code = """
import sys, time
from pathlib import Path
from headroles.tables import frame
from headroles.tables.study import Study, as_table, as_tables
folder, begun, key, names = sys.argv[1:]
def compute():
    Path(begun).touch()
    while Path(begun).exists():
        time.sleep(0.01)
    return frame.table({name: [1.0] * 4 for name in names}, frame.index({("enc-self", 0): 4}), key)
Study(folder).keep("heads", key, compute, joined=["scores"])
"""
    command = [sys.executable, "-c", code, study.folder, begun, key, scores]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not begun.exists() and process.poll() is None:
        time.sleep(0.01)
    return process


def test_what_came_first_stays_if_both_models_were_at_work(study):
    """What nobody could see beforehand is refused before it is written: here within one process."""

    def compute():
        save_table(frame.table({"a": [1.0] * 4}, INDEX, frame.sign(weights="one")), study.path("heads"))
        return table(2)

    with pytest.raises(FileExistsError, match="holds another model: got two; expected one"):
        study.keep("heads", frame.sign(weights="two"), compute)
    assert study.load("heads").attrs["signatures"] == {"a": "weights:one"}


def test_a_killed_process_blocks_nobody(study, tmp_path):
    first = writer(study, tmp_path / "begun", frame.sign(weights="one"), scores="a")
    first.kill()
    first.wait(60)
    first.stderr.close()
    study.keep("heads", frame.sign(weights="two"), Counted(2))
    assert study.names() == ["heads"]


# --- survey ---------------------------------------------------------------------------------------------------------


def corpus(size=40):
    return planted.corpus()[:size]


class Watching:
    """How often the planted model is called, and when the files of a study were last written."""

    def __init__(self, study):
        self.study, self.calls = study, 0

    def __enter__(self):
        self.before = {name: getattr(HeadModel, name) for name in ("forward", "forward_body")}
        for name, forward in self.before.items():
            setattr(HeadModel, name, self.counted(forward))  # in the model it would change the identity
        return self

    def counted(self, forward):
        @wraps(forward)
        def count(*args, **options):
            self.calls += 1
            return forward(*args, **options)

        return count

    def __exit__(self, *_):
        for name, forward in self.before.items():
            setattr(HeadModel, name, forward)

    def measure(self, corpus, **options):
        """Measure, and say how many calls of the model that took."""
        before = self.calls
        hr.score(planted.model(), planted.tokenizer(), corpus, study=self.study, **OPTIONS | options)
        return self.calls - before

    def written(self):
        return {name: self.study.path(name).stat().st_mtime_ns for name in self.study.names()}


def test_a_model_is_measured_once(study):
    with Watching(study) as watching:
        assert watching.measure(corpus()) > 0
        written = watching.written()
        assert sorted(written) == ["heads", "offsets"]
        assert watching.measure(corpus()) == 0
        assert watching.measure(corpus(), max_tokens=64) == 0  # how it is read is no part of the recipe
        assert watching.measure(Corpus("renamed", corpus().sentences)) == 0
        assert watching.written() == written


@pytest.mark.slow
def test_a_model_is_measured_again_with_each_other_option(study):
    options = {}
    with Watching(study) as watching:
        watching.measure(corpus())
        written = watching.written()
        changes = [{"scores": ["confidence"]}, {"scores": None}, {"seed": 1}, {"n_resamples": 21}]
        for change in (*changes, {"reference": planted.corpus()}):
            options |= change
            assert watching.measure(corpus(), **options) > 0, change
            assert watching.measure(corpus(), **options) == 0, change
            now = watching.written()
            assert now["heads"] > written["heads"]
            assert now["offsets"] == written["offsets"]  # these follow from the corpus alone
            written = now


@pytest.mark.slow
def test_a_model_is_measured_again_with_another_corpus(study):
    with Watching(Study(study.folder, overwrite=True)) as watching:
        watching.measure(corpus())
        written = watching.written()
        assert watching.measure(corpus(30)) > 0
        now = watching.written()
        assert all(now[name] > written[name] for name in now)


def test_a_corpus_without_trees_has_no_offsets(study):
    bare = Corpus("bare", tuple(Sentence(sentence.text) for sentence in corpus()))
    hr.score(planted.model(), planted.tokenizer(), bare, ["confidence"], n_resamples=0, study=study)
    assert study.names() == ["heads"]


def test_a_study_without_tables_is_not_drawn_and_has_no_roles(study):
    message = f"no tables in {study.folder}; make them with headroles score MODEL CORPUS --study {study.folder}"
    with pytest.raises(FileNotFoundError, match=whole(message)):
        hr.plot(study)
    made = f"headroles score MODEL CORPUS --study {study.folder}"
    message = f"no table 'heads' in {study.folder}, which has none; make it with {made}"
    with pytest.raises(FileNotFoundError, match=whole(message)):
        hr.roles(study)


def test_scores_are_added_to_a_study_and_each_call_returns_its_own(study):
    given = planted.model(), planted.tokenizer(), corpus()
    alone = {name: hr.score(*given, name, n_resamples=20) for name in ("confidence", "entropy")}
    for name in ("confidence", "entropy", "confidence"):
        table = hr.score(*given, name, n_resamples=20, study=study)
        pd.testing.assert_frame_equal(table, alone[name])
        assert table.attrs["signatures"] == alone[name].attrs["signatures"]
        assert set(frame.resamples(table)) == {name}
    kept = study.load("heads")
    assert list(kept) == [*alone["confidence"], *alone["entropy"]]
    assert set(frame.resamples(kept)) == {"confidence", "entropy"}


def made_from(weights="one", text="A", **options):
    return frame.sign(model=f"model {weights}", weights=weights, corpus=f"corpus {text}", text=text, **options)


def kept(filled, name, recipe):
    """The table is kept by the recipe; returns whether it was computed."""
    times = []

    def compute():
        times.append(1)
        return frame.table({"a": [1.0] * 4}, INDEX, recipe)

    filled.keep(name, recipe, compute)
    return bool(times)


@pytest.fixture
def filled(tmp_path):
    """Scores, roles and effects of one model on two corpora, and relations of them."""
    made = Study(tmp_path)
    for name, text in (("heads", "A"), ("roles", "A"), ("ablation-loss-head-zero", "B"), ("history", "C")):
        kept(made, name, made_from(text=text))
    return made


def fails(filled, name, recipe):
    before = {path.name: path.read_bytes() for path in filled.folder.iterdir()}
    with pytest.raises(FileExistsError) as error:
        filled.keep(name, recipe, lambda: pytest.fail("computed before it was refused"))
    assert {path.name: path.read_bytes() for path in filled.folder.iterdir()} == before
    return str(error.value)


OF_A_MODEL = ["heads", "attention", "circuits", "composition", "ablation-bleu-all_but_one-mean", "curves-loss"]


@pytest.mark.parametrize("name", [*OF_A_MODEL, "sparsity-l0"])
def test_another_model_is_refused(name, filled):
    assert fails(filled, name, made_from("two")) == (
        f"study {filled.folder} holds another model: got two; expected one (model one), from which its tables "
        "ablation-loss-head-zero, heads, roles were made; name another study, or give --overwrite, which removes "
        "ablation-loss-head-zero, heads, history, roles"
    )


def test_another_corpus_in_the_place_of_a_table_is_refused(filled):
    assert fails(filled, "heads", made_from(text="D")) == (
        f"study {filled.folder} holds another corpus: got D; expected A (corpus A), from which its tables heads "
        "were made; name another study, or give --overwrite, which removes heads, roles"
    )


def test_the_same_command_and_other_options_go_on(filled, caplog):
    assert not kept(filled, "heads", made_from())
    assert kept(filled, "heads", made_from(seed=1))
    assert caplog.messages == [f"{filled.path('heads')} was made with other options: computed again"]
    assert kept(filled, "ablation-bleu-head-zero", made_from(text="D"))  # another table may be of another corpus
    for name in ("gates-l0-36", "roles-l0-36"):
        assert kept(filled, name, made_from("gated"))  # of what became of the model


def test_overwriting_replaces_and_removes_what_is_of_another_model(filled, caplog):
    over = Study(filled.folder, overwrite=True)
    assert kept(over, "heads", made_from("two"))
    assert filled.names() == ["heads"]
    tables = "ablation-loss-head-zero, heads, history, roles"
    assert caplog.messages[-1] == f"{filled.folder}: replacing tables of another model: {tables}"


def test_overwriting_replaces_a_corpus_and_removes_what_was_derived_from_it(filled):
    kept(filled, "role-changes-l0", frame.holding(role_changes="of", roles=made_from()))
    assert kept(Study(filled.folder, overwrite=True), "heads", made_from(text="D"))
    assert filled.names() == ["ablation-loss-head-zero", "heads", "history"]


def test_what_is_overwritten_stays_until_the_new_is_there(filled):
    def fail():
        raise KeyboardInterrupt

    before = sorted(os.listdir(filled.folder))
    for recipe in (made_from("two"), made_from(text="D")):
        with pytest.raises(KeyboardInterrupt):
            Study(filled.folder, overwrite=True).keep("heads", recipe, fail)
        assert sorted(os.listdir(filled.folder)) == before


def test_a_table_computed_on_the_way_to_another_stays(filled):
    """As `ablate` keeps the statistics of the examples before the effects that it computes from them."""
    over = Study(filled.folder, overwrite=True)

    def compute():
        kept(over, "examples-loss-head-zero", made_from("two"))
        return frame.table({"a": [1.0] * 4}, INDEX, made_from("two"))

    over.keep("ablation-loss-head-zero", made_from("two"), compute)
    assert filled.names() == ["ablation-loss-head-zero", "examples-loss-head-zero"]


def test_what_is_not_ours_is_neither_read_nor_removed(filled):
    import pandas as pd

    pd.DataFrame({"a": [1]}).to_parquet(filled.path("mine"))
    filled.path("damaged").write_bytes(b"PAR1")
    kept(Study(filled.folder, overwrite=True), "heads", made_from("two"))
    assert filled.names() == ["heads"]
    assert {path.stem for path in filled.folder.glob("*.parquet")} == {"damaged", "heads", "mine"}


@pytest.mark.slow
def test_no_study_in_the_repository_would_be_refused():
    """Every table of ours could be made again where it is, by what made it."""
    for folder in {path.parent for path in (Path(__file__).parents[2] / "figures").rglob("*.parquet")}:
        filled = Study(folder)
        recipes = filled._made_from()
        filled._made_from = partial(dict, recipes)  # read once for all
        assert {name: filled.claim(name, recipe) for name, recipe in recipes.items()} == dict.fromkeys(recipes, {})


# --- places of tables -------------------------------------------------------------------------------------------------


def columns(**values):
    return frame.table({name: pd.Series(row, INDEX, float) for name, row in values.items()}, INDEX, "weights:a")


@pytest.fixture
def scored_study(tmp_path):
    made = Study(tmp_path / "study")
    save_table(columns(confidence=[1, 2, 3, 4]), made.path("heads"))
    save_table(columns(**{"ablation[loss]": [4, 3, 2, 1]}), made.path("ablation-loss-head-zero"))
    return made


def test_a_table_is_found_at_each_place(scored_study):
    heads = scored_study.load("heads")
    assert as_table(heads) is heads
    for place in (scored_study.path("heads"), str(scored_study.path("heads"))):
        pd.testing.assert_frame_equal(as_table(place, "roles"), heads)
    for place in (scored_study, scored_study.folder, str(scored_study.folder)):
        pd.testing.assert_frame_equal(as_table(place, "heads"), heads)
        pd.testing.assert_frame_equal(as_table(place), scored_study.scores())
    with pytest.raises(FileNotFoundError, match="^no table 'roles' in "):
        as_table(scored_study, "roles")


def test_of_a_column_in_several_places_the_first_is_taken(scored_study, tmp_path):
    other = save_table(columns(confidence=[0, 0, 0, 0], entropy=[1, 1, 2, 2]), tmp_path / "other.parquet")
    found = as_tables([scored_study, other])
    assert set(found) == {"confidence", "ablation[loss]", "entropy"}
    assert found["confidence"].tolist() == [1, 2, 3, 4]
    pd.testing.assert_frame_equal(as_tables(scored_study.folder), scored_study.scores())


def test_columns_of_seeds_are_averaged(tmp_path):
    place = save_table(
        columns(**{"survival[x 2 seed 0]": [1, 1, 0, 0], "survival[x 2 seed 1]": [1, 0, 1, 0]}), tmp_path / "a.parquet"
    )
    found = as_tables(place)
    assert found["survival[x 2]"].tolist() == [1, 0.5, 0.5, 0]
    assert frame.provenance(found, "survival[x 2]").endswith("|seeds:2")


def test_functions_take_places_for_tables(scored_study):
    scores = scored_study.scores()
    files = [scored_study.path(name) for name in ("heads", "ablation-loss-head-zero")]
    for place in (scored_study, scored_study.folder, files):
        found = hr.analysis.agreement(place, ["confidence"], "ablation[loss]")
        pd.testing.assert_frame_equal(found, hr.analysis.agreement(scores, ["confidence"], "ablation[loss]"))
        assert found.loc["confidence", "all"] == -1
        chosen = ["confidence", "ablation[loss]"]
        found, expected = (hr.analysis.score_correlations(each, chosen) for each in (place, scores))
        pd.testing.assert_frame_equal(found, expected)


def test_roles_of_a_study_are_kept_and_of_a_table_or_a_file_are_not(scored_study):
    save_table(columns(rarity=[0.2, 0.7, 0.9, 0.1]), scored_study.path("heads"))
    assigned = hr.roles(scored_study.load("heads"))
    again = hr.roles(scored_study.path("heads"))
    assert again["rare"].tolist() == assigned["rare"].tolist() == [False, True, True, False]
    assert not scored_study.has("roles")
    pd.testing.assert_frame_equal(hr.roles(scored_study.folder), assigned)
    pd.testing.assert_frame_equal(scored_study.load("roles"), assigned)
