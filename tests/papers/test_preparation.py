"""Corpora of replications: parts with nothing in common, and what is left out is counted."""

from __future__ import annotations

import matplotlib
import pytest
from helpers.messages import whole
from helpers.replicating import HALVES, pairs

from headroles.data.corpus import Corpus, Sentence
from headroles.papers.preparation import material, prepare, prepared
from headroles.tables.io import load_table


def given(*texts):
    """Pairs of these texts, each "source = target"."""
    sides = [text.split(" = ") for text in texts]
    return Corpus("given", tuple(Sentence(one, target=Sentence(other)) for one, other in sides))


def numbered(size):
    """Pairs that have nothing to do with one another."""
    words = ["".join(chr(97 + int(digit)) for digit in f"{number:03}") for number in range(size)]
    return [f"{word} {word} = {word} {word} {word}" for word in words]


def texts(part):
    return [(one.text, one.target.text) for one in part]


# --- preparing -------------------------------------------------------------------------------------------------------


def test_what_is_left_out_is_counted(tmp_path):
    again = [line.upper().replace(" = ", "! = other ") for line in numbered(40)]  # the same source but for its case
    faulty = ["12 345 = a", "a b c = 1 2 3", "x\x07y = a b", "w " * 51 + "= a", "aaa   aaa = aaa aaa\taaa"]
    counts = prepare(tmp_path / "made", [given(*numbered(40), *faulty), given(*again)], parsed=pairs()[:5], held_out=4)
    assert counts["pairs"].to_dict() == {
        "left out: not text": 3,
        "left out: too long": 1,
        "left out: twice": 1,
        "left out: also held out": 8,
        "train": 64,
        "dev": 4,
        "test": 4,
        "parsed": 5,
    }
    assert load_table(tmp_path / "made/counts.parquet").equals(counts)


@pytest.mark.parametrize("other", [None, given("Good news = Gute Nachricht", "aaa! = x")])
def test_parts_have_nothing_in_common(other, tmp_path):
    table = prepare(tmp_path / "made", [pairs()], other, **HALVES)
    found = prepared(tmp_path / "made")
    held = [found.dev, found.test, found.parsed]
    sources = [one.text for part in (*held, found.train) for one in part]
    assert len(sources) == len(set(sources))
    assert [len(part) for part in held] == [8, 8, 10] == table.loc[["dev", "test", "parsed"], "pairs"].tolist()
    known = {one.text: one for one in pairs()}
    assert all(known[source].target.text == to for part in (found.train, *held) for source, to in texts(part))
    assert table["pairs"].sum() == 100 + (0 if other is None else 2)
    assert all((one.heads, one.spans) == (known[one.text].heads, known[one.text].spans) for one in found.parsed)
    assert not any(one.has_tree for part in (found.train, found.dev, found.test) for one in part)
    assert found.other is None if other is None else texts(found.other) == texts(other)


def test_the_seed_says_what_is_held_out(folder, data, tmp_path):
    for seed in (0, 1):
        prepare(tmp_path / str(seed), [pairs()], **HALVES, seed=seed)
    first, second = (prepared(tmp_path / str(seed)) for seed in (0, 1))
    for part in ("train", "dev", "test", "parsed"):
        assert texts(getattr(first, part)) == texts(getattr(data, part)) != texts(getattr(second, part))
    assert {path.name for path in folder.rglob("*")} == {path.name for path in (tmp_path / "1").rglob("*")}


def test_at_most_as_many_pairs_to_train_on_as_asked(tmp_path):
    assert prepare(tmp_path / "made", [pairs()], **HALVES, limit=20).loc["train", "pairs"] == 20


@pytest.mark.shared
@pytest.mark.slow
def test_sentences_without_trees_are_parsed(shared, tmp_path):
    plain = given(*(f"{one.text} = {one.target.text}" for one in pairs()))
    counts = prepare(tmp_path / "made", [plain], **HALVES, models=shared / "stanza")
    found = prepared(tmp_path / "made").parsed
    assert counts.loc["parsed", "pairs"] == len(found) == 10
    assert all(one.has_tree and "nsubj" in one.relations for one in found)
    known = dict(texts(plain))
    assert all(known[source] == target for source, target in texts(found))


# --- bad input -------------------------------------------------------------------------------------------------------


def test_pairs_that_cannot_be_prepared(tmp_path, folder):
    few = "1 different source sentences are too few to hold out 3000; hold out at most half"
    with pytest.raises(ValueError, match=whole(few)):
        prepare(tmp_path / "out", [given("One. = Eins.")])
    there = f"{folder} exists and is not empty; name another folder, or remove it"
    with pytest.raises(FileExistsError, match=whole(there)):
        prepare(folder, [pairs()], **HALVES, seed=1)
    assert not [*tmp_path.glob("out*")]


def test_the_same_call_keeps_its_folder(folder):
    written = (folder / "counts.parquet").stat().st_mtime_ns
    assert prepare(folder, [pairs()], **HALVES).equals(load_table(folder / "counts.parquet"))
    assert (folder / "counts.parquet").stat().st_mtime_ns == written


def test_a_part_of_which_nothing_is_left(tmp_path):
    message = "no pair is left for other; left out were: 1 not text"
    with pytest.raises(ValueError, match=whole(message)):
        prepare(tmp_path / "out", [pairs()], given("1 2 = 3 4"), **HALVES)
    assert not (tmp_path / "out").exists()


matplotlib.use("agg")


def test_material_is_read_from_one_folder(tmp_path):
    for name in ("train", "dev", "test", "other"):
        for side in ("source", "target"):
            (tmp_path / f"{name}.{side}.txt").write_text(f"{name} {side}\n" * 3)
    found = material(tmp_path, limit=2)
    assert [len(found.train), found.other[0].text, found.other[0].target.text] == [2, "other source", "other target"]
    assert found.trees is None
    (tmp_path / "trees.text.conllu").write_text("")
    (tmp_path / "trees.more.conllu").write_text("")
    message = "expected trees.source.* and trees.target.* in {}; got trees.more.conllu, trees.text.conllu"
    with pytest.raises(ValueError, match=whole(message.format(tmp_path))):
        material(tmp_path)
    message = (
        f"no train in {tmp_path / 'x'}; a folder of data has train, dev and test: .tsv with labels, or .source.txt and "
        ".target.txt; and if you have them other, trees and other_trees (.conllu), sentences"
    )
    with pytest.raises(FileNotFoundError, match=whole(message)):
        material(tmp_path / "x")
