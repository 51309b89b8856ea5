"""Signed tables: saved and loaded they are the same, joined they keep all, and no failed write harms one."""

from __future__ import annotations

import copy
import json

import numpy as np
import pandas as pd
import pytest
from helpers.messages import whole
from helpers.tables import DETERMINISTIC, INDEX, NAMES, same, table
from hypothesis import given
from hypothesis import strategies as st

from headroles.tables import frame
from headroles.tables.io import load_table, save_table

# --- what a table carries -------------------------------------------------------------------------------------------


def test_the_index_has_a_row_for_every_head():
    expected = [("enc-self", 0, 0), ("enc-self", 0, 1), ("enc-self", 0, 2), ("enc-self", 1, 0), ("enc-self", 1, 1)]
    expected += [("dec-self", 0, 0), ("dec-self", 0, 1), ("cross", 0, 0)]
    assert list(INDEX) == expected
    assert list(INDEX.names) == ["kind", "layer", "head"]


def test_a_signature_for_all_or_one_for_each():
    values = dict.fromkeys("ab", np.zeros(len(INDEX)))
    assert frame.table(values, INDEX, "s").attrs == {"signatures": {"a": "s", "b": "s"}}
    assert frame.table(values, INDEX, {"a": "s", "b": "t"}).attrs == {"signatures": {"a": "s", "b": "t"}}
    assert frame.sign(model="opus", seed=1) == "model:opus|seed:1"


@DETERMINISTIC
@given(st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), NAMES | st.sampled_from("|:,=%\n")))
def test_the_values_of_a_signature_are_read_as_they_were_written(values):
    signature = frame.sign(**values)
    assert frame.fields(signature) == (list(values.items()) or [("", "")])
    assert not set("\n\r\t\0") & set(signature)
    whole = f"{frame.holding(roles=signature)}|{frame.sign(seed=1)}"  # one inside another
    assert frame.fields(whole)[-1] == ("seed", "1")
    assert signature in whole


def test_signatures_of_earlier_versions_are_read():
    assert frame.fields("model:a:b|corpus:100 %|text:1") == [("model", "a:b"), ("corpus", "100 %"), ("text", "1")]


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        ("corpus:news|sentences:12", "12 sentences of news"),
        ("corpus:repeated-25|sentences:100", "100 sequences of 25 random tokens, each repeated once"),
        ("corpus:needles-500-32|sentences:9", "9 texts of 500 tokens with a needle of 32"),
        ("corpus:repeated-25-news|sentences:9", "9 sentences of repeated-25-news"),
        ("score:A()", "? sentences of an unknown corpus"),
    ],
)
def test_what_a_column_was_measured_on_is_said_in_words(signature, words):
    assert frame.examples(signature) == words


def test_a_head_is_read_as_it_is_printed_everywhere():
    for text, one_kind, parsed in (("L0H2", True, (None, 0, 2)), ("cross L10H3", False, ("cross", 10, 3))):
        assert frame.parsed_head(text) == parsed
        assert frame.spelled(parsed[0] or "enc-self", *parsed[1:], one_kind=one_kind) == text
    assert frame.parsed_head("dec-self:1:12") == ("dec-self", 1, 12)


def test_provenance_is_shown_a_field_a_line():
    table = frame.table({"a": [1.0]}, frame.index({("cross", 0): 1}), "model:m|corpus:c")
    shown = frame.provenance(table, "a")
    assert (shown, repr(shown)) == ("model:m|corpus:c", "model:m\ncorpus:c")


@pytest.mark.parametrize("signed", [True, False])
def test_a_column_without_a_signature(signed):
    made = table("a", "b") if signed else pd.DataFrame({"a": [1.0]})
    with pytest.raises(KeyError) as raised:
        frame.provenance(made, "c")
    known = "a, b" if signed else "none"
    assert raised.value.args == (f"column 'c' has no signature; signed columns: {known}",)


@pytest.mark.parametrize(
    "change",
    [lambda made: made[["a"]], lambda made: made.iloc[1:4], lambda made: made[made["a"] > 0],
     lambda made: made.sort_values("a"), lambda made: made.drop(columns="b"), lambda made: made.assign(c=1.0),
     lambda made: made.copy(), lambda made: made.xs("enc-self", level="kind", drop_level=False), copy.copy,
     copy.deepcopy],
)  # fmt: skip
def test_provenance_stays_with_a_table_and_resamples_are_never_copied(change):
    made = table("a", "b", draws=["a"])
    changed = change(made)
    assert frame.provenance(changed, "a") == "score:a|seed:0"
    assert changed.attrs["resamples"] is made.attrs["resamples"]
    expected = frame.resamples(made)["a"][made.index.get_indexer(changed.index)]
    np.testing.assert_array_equal(frame.resamples(changed)["a"], expected)


def test_a_table_is_shown_without_its_resamples():
    made = table("a", "b", draws=["a", "b"])
    assert json.loads(json.dumps(made.attrs))["resamples"] == {}
    assert frame.resamples(table("a")) == {}


# --- joined ---------------------------------------------------------------------------------------------------------


def test_joined_tables_keep_signatures_and_resamples_whatever_the_order_of_their_rows():
    one, other = table("a", "b", draws=["a"]), table("c", draws=["c"], seed=1)
    turned = other.sample(frac=1, random_state=0)
    joined = frame.join(one, turned)
    assert list(joined) == ["a", "b", "c"]
    assert joined.index.equals(one.index)
    for part in (one, other):
        for name in part:
            np.testing.assert_array_equal(joined[name], part[name])
            assert frame.provenance(joined, name) == frame.provenance(part, name)
    for name, part in (("a", one), ("c", other)):
        np.testing.assert_array_equal(frame.resamples(joined)[name], frame.resamples(part)[name])
    assert frame.join(turned, one).index.equals(turned.index)
    same(frame.join(one), one)


def test_a_loaded_table_joins_with_a_new_one(tmp_path):
    one, other = table("a", draws=["a"]), table("b")
    loaded = load_table(save_table(one, tmp_path / "a.parquet"))
    same(frame.join(loaded, other), frame.join(one, other))
    same(load_table(save_table(frame.join(other, loaded), tmp_path / "b.parquet")), frame.join(other, one))


def test_a_table_with_an_index_of_pandas_joins_with_one_of_ours():
    one, other = table("a", draws=["a"]), table("b")
    remade = other.reset_index().set_index(["kind", "layer", "head"])
    turned = remade.iloc[::-1]
    for part in (remade, turned):
        np.testing.assert_array_equal(frame.join(one, part)["b"], other["b"])
        np.testing.assert_array_equal(frame.join(part, one).loc[INDEX, "a"], one["a"])


def test_heads_are_looked_up_in_any_table(tmp_path):
    """pandas warns of slow look-ups in an index it does not know to be sorted, and a warning is an error here."""
    made = table("a", draws=["a"])
    loaded = load_table(save_table(made, tmp_path / "a.parquet"))
    for one in (made, loaded, frame.join(made, table("b"))):
        assert one.loc[("cross", 0, 0), "a"] == made["a"].iloc[-1]
        assert len(one.loc["dec-self"]) == 2
        assert len(one.loc[("enc-self", 1)]) == 2


def test_joining_changes_none_of_the_tables():
    one, other = table("a", draws=["a"]), table("b")
    before = one.copy(), other.copy()
    frame.join(one, other)
    same(one, before[0])
    same(other, before[1])


def test_nothing_is_joined_to_nothing():
    with pytest.raises(ValueError, match=whole("nothing to join: give at least one table")):
        frame.join()


def test_tables_of_other_heads_and_columns_of_one_name_are_not_joined():
    other = frame.index({("enc-self", 0): 4})
    message = "the tables are of different heads: got 8 and 4 rows, 3 in common; expected the same heads"
    with pytest.raises(ValueError, match=whole(message)):
        frame.join(table("a"), table("b", index=other))
    with pytest.raises(ValueError, match=r"8 and 7 rows, 7 in common"):
        frame.join(table("a"), table("b").iloc[1:])
    message = "these columns are in more than one table: a, c; rename or drop one of each"
    with pytest.raises(ValueError, match=whole(message)):
        frame.join(table("a", "b", "c"), table("c", "a", "d"))


# --- resamples of the columns that were measured ----------------------------------------------------------------------

SIX = frame.index({("enc-self", 0): 3, ("enc-self", 1): 3})
VALUES = {"a": np.array([0.9, 0.1, 0.2, 0.3, 0.8, 0.7]), "b": np.array([0.2, 0.8, 0.6, 0.1, 0.05, 0.4])}
DRAWS = {name: column[:, None] + np.linspace(-0.01, 0.01, 8) for name, column in VALUES.items()}


def measured():
    return frame.table(VALUES, SIX, "by:hand", draws=DRAWS)


def assigned(made):
    made["a"] = made["b"]
    return made


@pytest.mark.parametrize(
    ("change", "expected"),
    [(lambda made: made, {"a", "b"}), (lambda made: made.sort_values("a").iloc[1:4], {"a", "b"}),
     (lambda made: made[["b"]], {"b"}), (lambda made: made.rename(columns={"a": "c"}), {"b"}),
     (lambda made: made.rename(columns={"a": "b", "b": "a"}), set()), (assigned, {"b"}),
     (lambda made: made.assign(a=made["a"] * 2), {"b"}), (lambda made: made.assign(a="text"), {"b"}),
     (lambda made: made.astype("float32"), set()),
     (lambda made: made.rename(index={"enc-self": "dec-self"}, level="kind"), set()),
     (lambda made: made.set_axis(SIX[::-1]), set()), (lambda made: made.iloc[:0], {"a", "b"})],
)  # fmt: skip
def test_resamples_are_of_columns_that_are_as_they_were_measured(tmp_path, change, expected):
    changed = change(measured())
    loaded = load_table(save_table(changed, tmp_path / "table.parquet"))
    for made in (changed, loaded, frame.join(changed), frame.only(changed, list(changed))):
        drawn = frame.resamples(made)
        assert {*drawn} == expected
        for name in expected:
            np.testing.assert_array_equal(drawn[name], DRAWS[name][SIX.get_indexer(made.index)])
