"""Names of columns and tables are taken apart in one place, and give back what they were made of."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headroles
from headroles.tables import columns
from headroles.tables.columns import TABLES, Column, Pruning, table_of
from headroles.tables.io import notes

ROOT = Path(headroles.__file__).parent
FIGURES = ROOT.parent / "figures"
TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)
NAMES = st.text(st.characters(blacklist_characters=".[", blacklist_categories=["Cs"]), min_size=1, max_size=8)
DETAILS = st.text(st.characters(blacklist_characters="]", blacklist_categories=["Cs"]), max_size=8)


@given(TEXT)
def test_any_text_is_given_back(text):
    assert str(Column.parse(text)) == text


@given(NAMES, st.none() | DETAILS, st.from_regex(r"([a-z]+(\.[a-z]+)*)?", fullmatch=True))
def test_the_parts_of_a_name_are_given_back(name, detail, suffix):
    column = Column(name, detail, suffix)
    assert Column.parse(str(column)) == column


def test_the_columns_of_every_committed_table_are_given_back():
    texts = [(notes(path) or {}).get("signatures") or {} for path in sorted(FIGURES.rglob("*.parquet"))]
    names = {name for signatures in texts for name in signatures}
    assert len(names) > 300
    assert {name for name in names if str(Column.parse(name)) != name} == set()


@pytest.mark.parametrize(
    ("text", "name", "detail", "suffix"),
    [("confidence", "confidence", None, ""), ("position-norm[-1].low", "position-norm", "-1", "low"),
     ("syntax[nsubj dep>head].baseline.low", "syntax", "nsubj dep>head", "baseline.low"),
     ("relevance[cp logit].size", "relevance", "cp logit", "size"), ("value.low", "value", None, "low"),
     ("ablation[my.own]", "ablation", "my.own", ""), ("[x]", "[x]", None, ""), ("", "", None, "")],
)  # fmt: skip
def test_a_name_is_taken_apart(text, name, detail, suffix):
    assert Column.parse(text) == Column(name, detail, suffix)


def test_what_a_column_is():
    low = Column.parse("syntax[obj dep>head].baseline.low")
    assert (low.last, low.is_measurement, low.words) == ("low", False, ["obj", "dep>head"])
    assert str(low.base) == "syntax[obj dep>head]"
    names = ("a", "a[b].order", "a.size", "a.p", "a[b]c")
    assert [name for name in names if Column.parse(name).is_measurement] == ["a", "a[b].order", "a.size"]
    assert Column.parse("ablation[loss all_but_one]").metric == "loss"
    assert [Column.parse(name).metric for name in ("ablation", "shapley[loss]")] == [None, None]
    assert columns.of_variant("position[-1].low", "norm") == "position-norm[-1].low"
    assert str(Column.parse("position-norm[-1]").plain) == "position[-1]"
    assert columns.without_ends(["a", "a.low", "a[b].high", "high", "a.highest"]) == ["a", "high", "a.highest"]
    assert columns.with_suffix(["a", "a.holm", "b[c].holm"], "holm") == ["a", "b[c]"]
    assert columns.of_name(["a[b]", "a", "a[b].low", "ab[c]"], "a") == ["a[b]"]
    assert [columns.ranked_by(name) for name in ("a", "-a")] == [("a", False), ("a", True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("survival[l0 12]", Pruning("l0", 12, (), None)),
     ("survival[l0 12 enc-self cross].open", Pruning("l0", 12, ("enc-self", "cross"), None)),
     ("survival[random 36 seed 2]", Pruning("random", 36, (), 2)),
     ("survival[odd first 36]", Pruning("odd first", 36, (), None)), ("survival[36]", Pruning("", 36, (), None)),
     ("survival[all]", Pruning("all", None, (), None)), ("survival", None), ("importance", None)],
)  # fmt: skip
def test_a_column_of_survival_says_what_was_pruned(text, expected):
    assert Column.parse(text).pruning == expected


def test_tables_are_known_by_name_or_first_word_and_made_by_a_function_that_exists():
    assert {table_of(name).stem for name in ("ablation-loss-head-zero", "ablation")} == {"ablation-"}
    one_model = {name: table_of(name).one_model for name in ("roles", "roles-l0-36", "heads", "heads-100", "mine")}
    assert one_model == {"roles": True, "roles-l0-36": False, "heads": True, "heads-100": False, "mine": False}
    assert all(table_of(stem) is table for stem, table in TABLES.items())
    for table in TABLES.values():
        place = headroles
        for part in table.made_by.split(".")[1:]:
            place = getattr(place, part)
        assert callable(place), table


ALLOWED = {"tables/columns.py", "cli/options.py"}  # where names are taken apart; the types of parameters
ALLOWED |= {f"data/{name}.py" for name in ("entries", "conllu", "hf_datasets", "stanza_parser")}  # texts of others
METHODS = {"partition", "rpartition", "split", "rsplit", "startswith", "endswith"}
METHODS |= {"removeprefix", "removesuffix", "find"}
MARKED = re.compile(r"[\[\]]|^\.(low|high|p|holm|bh|words|open|order|size|stability|value|margin|baseline|examples)$")
PATTERN = re.compile(r"\\\[|\[\\?\[|\[\^?\\?\]|\\\.(low|high|size)")


def test_nothing_else_takes_the_name_of_a_column_apart():
    """No method of a text with a bracket or a suffix, and no pattern of one, but in `tables/columns.py`."""
    paths = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.py"))}
    found = {name: list(_taken_apart(paths[name].read_text(encoding="utf-8"))) for name in paths if name not in ALLOWED}
    assert {name: calls for name, calls in found.items() if calls} == {}


def _taken_apart(code):
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        words = [*node.args, *(word.value for word in node.keywords)]
        texts = [part.value for word in words for part in ast.walk(word) if isinstance(part, ast.Constant)]
        texts = [text for text in texts if isinstance(text, str)]
        by_pattern = owner == "re" or any(word.arg == "regex" for word in node.keywords)
        if (
            by_pattern
            and any(PATTERN.search(text) for text in texts)
            or called in METHODS
            and any(MARKED.search(text) for text in texts)
        ):
            yield node.lineno, ast.unparse(node)


TAKEN_APART = [
        'name.partition("[")', 'name.split("[")[0]', 'name.endswith((".low", ".high"))', 're.split(r"[\\[.]", name)',
        'name.removeprefix("survival[").removesuffix("]")', 're.fullmatch(r"survival\\[[^\\]]*\\]", name)',
        'table.filter(regex=r"^syntax\\[")', 'name.removesuffix(".stability")',
        'roles.replace(r"\\[.*", "", regex=True)',
]  # fmt: skip


def test_a_name_that_is_taken_apart_is_found():
    assert [code for code in TAKEN_APART if not list(_taken_apart(code))] == []
