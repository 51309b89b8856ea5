"""Places of tables: a table, a file, a study, several of them; columns of kept heads."""

from __future__ import annotations

import re
from copy import deepcopy

import pandas as pd
import pytest
from helpers.messages import whole
from helpers.prunings import learnt

import headroles as hr
from headroles.models import heads as families
from headroles.tables import frame
from headroles.tables.io import load_table, save_table
from headroles.tables.places import as_table, as_tables, kept_heads

INDEX = frame.index({("enc-self", 0): 4})


def table(**columns):
    return frame.table({name: pd.Series(values, INDEX, float) for name, values in columns.items()}, INDEX, "weights:a")


@pytest.fixture
def study(tmp_path):
    made = hr.Study(tmp_path / "study")
    save_table(table(confidence=[1, 2, 3, 4]), made.path("heads"))
    save_table(table(**{"ablation[loss]": [4, 3, 2, 1]}), made.path("ablation-loss-head-zero"))
    return made


def test_a_table_is_found_at_each_place(study):
    heads = study.load("heads")
    assert as_table(heads) is heads
    for place in (study.path("heads"), str(study.path("heads"))):
        pd.testing.assert_frame_equal(as_table(place, "roles"), heads)
    for place in (study, study.folder, str(study.folder)):
        pd.testing.assert_frame_equal(as_table(place, "heads"), heads)
        pd.testing.assert_frame_equal(as_table(place), study.scores())
    with pytest.raises(FileNotFoundError, match="^no table 'roles' in "):
        as_table(study, "roles")


def test_of_a_column_in_several_places_the_first_is_taken(study, tmp_path):
    other = save_table(table(confidence=[0, 0, 0, 0], entropy=[1, 1, 2, 2]), tmp_path / "other.parquet")
    found = as_tables([study, other])
    assert set(found) == {"confidence", "ablation[loss]", "entropy"}
    assert found["confidence"].tolist() == [1, 2, 3, 4]
    pd.testing.assert_frame_equal(as_tables(study.folder), study.scores())


def test_columns_of_seeds_are_averaged(tmp_path):
    place = save_table(
        table(**{"survival[x 2 seed 0]": [1, 1, 0, 0], "survival[x 2 seed 1]": [1, 0, 1, 0]}), tmp_path / "a.parquet"
    )
    found = as_tables(place)
    assert found["survival[x 2]"].tolist() == [1, 0.5, 0.5, 0]
    assert frame.provenance(found, "survival[x 2]").endswith("|seeds:2")


def test_kept_heads_are_a_column_of_a_table_or_a_text(tmp_path):
    one = save_table(
        table(**{"survival[a 2]": [1, 0, 1, 0], "survival[a 2].order": [3, 1, 4, 2]}), tmp_path / "1.parquet"
    )
    two = save_table(table(**{"survival[a]": [1, 0, 1, 0], "survival[b]": [0, 0, 1, 1]}), tmp_path / "2.parquet")
    assert kept_heads("enc-self:0:1,L0H2") is None
    assert kept_heads(str(one)).tolist() == [1, 0, 1, 0]
    assert kept_heads(f"{two}:survival[b]").tolist() == [0, 0, 1, 1]
    with pytest.raises(ValueError, match=re.escape(f"2 columns of pruned heads in {two}; name one of survival[a], ")):
        kept_heads(str(two))
    with pytest.raises(ValueError, match=r"^head 'L0' is not of the form kind:layer:head"):
        kept_heads("L0H1,L0")


def test_functions_take_places_for_tables(study):
    scores = study.scores()
    for place in (study, study.folder, [study.path("heads"), study.path("ablation-loss-head-zero")]):
        found = hr.agreement(place, ["confidence"], "ablation[loss]")
        pd.testing.assert_frame_equal(found, hr.agreement(scores, ["confidence"], "ablation[loss]"))
        assert found.loc["confidence", "all"] == -1
        chosen = ["confidence", "ablation[loss]"]
        pd.testing.assert_frame_equal(hr.score_correlations(place, chosen), hr.score_correlations(scores, chosen))


def test_roles_of_a_study_are_kept_and_of_a_table_or_a_file_are_not(study):
    save_table(table(rarity=[0.2, 0.7, 0.9, 0.1]), study.path("heads"))
    assigned = hr.roles(study.load("heads"))
    assert hr.roles(study.path("heads"))["rare"].tolist() == assigned["rare"].tolist() == [False, True, True, False]
    assert not study.has("roles")
    pd.testing.assert_frame_equal(hr.roles(study.folder), assigned)
    pd.testing.assert_frame_equal(study.load("roles"), assigned)


def test_a_table_of_several_columns_needs_the_name_of_one(tmp_path):
    index = families.head_index(learnt())
    gone = {"survival[a]": [0.0, *[1.0] * 7], "survival[a].open": [0.5] * 8, "survival[b]": [1.0, 0.0, *[1.0] * 6]}
    path = save_table(frame.table(gone, index, "s"), tmp_path / "t.parquet")
    message = f"2 columns of pruned heads in {path}; name one of survival[a], survival[b], as {path}:survival[a]"
    with pytest.raises(ValueError, match=whole(message)):
        kept_heads(str(path))
    assert kept_heads(f"{path}:survival[b]").tolist() == gone["survival[b]"]
    one = save_table(frame.table({"survival[a]": gone["survival[a]"]}, index, "s"), tmp_path / "one.parquet")
    assert kept_heads(str(one)).tolist() == gone["survival[a]"]
    with pytest.raises(ValueError, match=r"^column 'survival\[a\].open' has the value 0.5; expected 1 "):
        hr.remove_heads(deepcopy(learnt()), load_table(path)["survival[a].open"])
