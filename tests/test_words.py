"""Words of our own stay out of docstrings, messages and help: the field has words for these things."""

from __future__ import annotations

import ast
import re
import tokenize
from functools import cache
from pathlib import Path

import headroles

ROOT = Path(headroles.__file__).parent
OURS = re.compile(
    r"\b(told|tells?|whose|anew|goes|gone|went|seams?|spy|ledger|miniatures?|towers?|slopes|shr[iu]nk\w*|cut out|dealt"
    r"|clos(e[sd]?|ing) (all |every |these |one |the )?(heads?|gates?)|(heads?|gates?) (is|are|were|be|been) closed"
    r"|closed heads?)\b"
)
CODE = (ast.FunctionDef, ast.Lambda)
KEPT = ("testing/runner.py",)  # names on disk: areas of the checks' table, its older reasons
NAMES = re.compile("`[^`]*`")  # of code, such as a column of role changes


@cache
def sentences() -> list[tuple[str, str]]:
    """Return strings of three or more words, comments, and the lines of the report's page and scripts, with places."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 1:
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node.value))
        with tokenize.open(path) as file:
            comments = [token for token in tokenize.generate_tokens(file.readline) if token.type == tokenize.COMMENT]
        found += [(f"{path.relative_to(ROOT)}:{token.start[0]}", token.string) for token in comments]
    for path in sorted(path for path in ROOT.rglob("*") if path.suffix in (".js", ".html", ".css")):
        lines = path.read_text(encoding="utf8").splitlines()
        found += [(f"{path.relative_to(ROOT)}:{number}", line) for number, line in enumerate(lines, 1)]
    return found


@cache
def names_of_tests() -> list[str]:
    """Return the names of all tests, as words."""
    trees = (ast.parse(path.read_text(encoding="utf8")) for path in sorted(Path(__file__).parent.rglob("test_*.py")))
    names = (node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return [name.replace("_", " ") for name in names if name.startswith("test_")]


def test_no_sentence_uses_a_word_that_the_field_has_another_for():
    assert len(sentences()) > 1000
    assert {".py", ".js", ".html", ".css"} <= {Path(place.partition(":")[0]).suffix for place, _ in sentences()}
    assert [
        (place, word[0])
        for place, text in sentences()
        if (word := OURS.search(NAMES.sub("", text))) and not place.startswith(KEPT)
    ] == []


def test_five_names_that_do_not_say_what_they_hold_are_not_used():
    """Parameters and locals have nouns for names."""
    for path in sorted(ROOT.rglob("*.py")):
        functions = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))) if isinstance(node, CODE)]
        nodes = [node for function in functions for node in ast.walk(function)]
        names = {node.arg for node in nodes if isinstance(node, ast.arg)}
        names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        assert names.isdisjoint({"one", "own", "each", "found", "told"}), path


def test_no_test_has_such_a_word_in_its_name():
    assert len(names_of_tests()) > 1000
    assert [name for name in names_of_tests() if OURS.search(name)] == []
