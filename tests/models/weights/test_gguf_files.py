"""A GGUF file is a checkpoint by its name, and a model says how its weights are rounded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headroles.models.weights import gguf_files


@pytest.mark.parametrize(
    ("name", "options", "folder", "asked"),
    [
        ("place/a.gguf", {"revision": "x"}, "place", {"revision": "x", "gguf_file": "a.gguf"}),
        ("owner/name", {"gguf_file": "b.gguf"}, "owner/name", {"gguf_file": "b.gguf"}),
        ("owner/name", {}, "owner/name", {}),
    ],
)
def test_a_name_that_ends_in_gguf_is_a_file_of_its_folder(monkeypatch, name, options, folder, asked):
    monkeypatch.setattr(gguf_files, "find_spec", lambda _: object())
    given = dict(options)
    found, kept = gguf_files.located(name, options)
    assert (str(found), kept, options) == (folder, asked, given)


def test_a_folder_may_have_such_a_name_and_the_package_is_named_where_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(gguf_files, "find_spec", lambda _: None)
    (tmp_path / "odd.gguf").mkdir()
    assert gguf_files.located(tmp_path / "odd.gguf", {}) == (tmp_path / "odd.gguf", {})
    with pytest.raises(OSError, match=r"^could not load 'a.gguf': install gguf, in a checkout: pip install "):
        gguf_files.located("place/a.gguf", {})


def test_weights_that_are_not_rounded_have_no_field():
    plain, rounded = (SimpleNamespace(config=SimpleNamespace(**given)) for given in ({}, {gguf_files.ROUNDED: "Q8_0"}))
    assert gguf_files.rounding(plain) == {}
    assert gguf_files.rounding(rounded) == {"rounded": "Q8_0"}
    gguf_files.unpack(plain, "anywhere")  # no such file: left as it is
    assert vars(plain.config) == {}
