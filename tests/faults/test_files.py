"""Files of a study that are not what they seem: notes of odd types, devices, links, kept arrays of another shape."""

from __future__ import annotations

import json
from contextlib import suppress
from threading import Barrier, Thread

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import zoo
from helpers.letters import corpus, tokens_of

import headroles as hr
from headroles.tables import frame

INDEX = frame.index({("enc-self", 0): 4})
RAW = [b"\xff\xfe", b"{", b"", b'{"signatures":' + b"[" * 100_000, b"{}", b"[]", b'{"signatures": {"a": "\\ud800"}}']
ODD = [None, 1, 1.5, True, "text", [], ["a"], {"a": 1}, {"a": None}, {"a": ["x"]}, {"a": {"b": "c"}}, 10**30]
NOTES = [json.dumps({field: value}).encode() for field in ("signatures", "recipe", "sealed") for value in ODD]
CALLS = {
    "load": lambda study: study.load("heads"),
    "names": lambda study: study.names(),
    "html": lambda study: study._repr_html_(),
    "scores": lambda study: study.scores(),
    "keep": lambda study: study.keep("roles", "weights:w", lambda: frame.table({"a": [1.0] * 4}, INDEX, "weights:w")),
    "add": lambda study: study.keep("heads", "a:b", lambda: frame.table({"a": [1.0] * 4}, INDEX, "a:b"), joined=["a"]),
    "roles": hr.roles,
}


@pytest.mark.parametrize("call", CALLS)
def test_notes_of_odd_types_are_damage_and_no_traceback(call, tmp_path):
    study = hr.Study(tmp_path)
    arrow = pa.Table.from_pandas(frame.bare(frame.table({"confidence": [1.0] * 4}, INDEX, "model:m")))
    for text in (*RAW, *NOTES):
        metadata = {**arrow.schema.metadata, b"headroles": text}
        pq.write_table(arrow.replace_schema_metadata(metadata), study.path("heads"))
        with suppress(ValueError, OSError):  # nothing else, and no traceback
            CALLS[call](study)
        study.path("roles").unlink(missing_ok=True)


def test_resamples_that_are_no_lists_are_damage(tmp_path):
    path = tmp_path / "heads.parquet"
    table = frame.table({"a": [1.0] * 4}, INDEX, "model:m", draws={"a": np.ones((4, 3), np.float32)})
    hr.save_table(table, path)
    arrow = pq.read_table(path)
    for number, values in enumerate(([1.0] * 4, ["x"] * 4, [[1.0], [], [1.0], [2.0]])):
        column = pa.array(values)
        metadata = {**arrow.schema.metadata, b"headroles": json.dumps({"signatures": {"a": "b"}}).encode()}
        del metadata[b"digest"]
        odd = arrow.drop_columns("resamples:a").append_column("resamples:a", column)
        pq.write_table(odd.replace_schema_metadata(metadata), path)
        with pytest.raises(ValueError, match=" is not a table of headroles: "):
            hr.load_table(path)
        assert hr.Study(tmp_path).names() == ["heads"], number


@pytest.mark.parametrize("damage", [lambda kept: kept[:-1], lambda kept: kept[0], lambda kept: kept.astype(str)])
def test_kept_batches_of_another_shape(damage, tmp_path):
    given = zoo.tiny("bert"), tokens_of("bert"), corpus(6)
    expected = hr.ablate(*given, n_resamples=0, folder=tmp_path)
    files = sorted(tmp_path.glob("*.npy"))
    assert files
    np.save(files[0], damage(np.load(files[0])))
    with pytest.raises(ValueError, match=f"^{files[0]} is damaged: .*; remove the file to have it measured again$"):
        hr.ablate(*given, n_resamples=0, folder=tmp_path)
    files[0].unlink()
    assert hr.ablate(*given, n_resamples=0, folder=tmp_path).equals(expected)


def test_a_study_that_cannot_be_is_noticed_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    monkeypatch.setattr("headroles.scores.runner._score", lambda *_, **__: pytest.fail("work was done"))
    for place in (tmp_path / "link", tmp_path / "link" / "study"):
        with pytest.raises(OSError, match="link to nothing"):
            hr.score(zoo.tiny("bert"), tokens_of("bert"), corpus(2), ["confidence"], study=place)


@pytest.mark.slow
def test_threads_that_begin_a_study_at_once_wait_for_each_other(tmp_path):
    """One removed the folder, which was empty still, between another's making it and its lock: its column was lost."""
    faults = []
    for number in range(40):
        study, begun = hr.Study(tmp_path / str(number)), Barrier(4)

        def run(name, study=study, begun=begun):
            columns = {name: [1.0] * 4}
            signatures = {name: frame.sign(score=name)}
            key = frame.sign(weights="w", text="a", scores=name)
            try:
                study.keep(
                    "heads",
                    key,
                    lambda: (begun.wait(30), frame.table(columns, INDEX, signatures))[1],
                    joined=["scores"],
                )
            except OSError as error:
                faults.append(error)

        threads = [Thread(target=run, args=[name]) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults
        assert sorted(study.load("heads")) == [*"abcd"]
