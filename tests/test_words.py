"""Words that DESIGN bans stay out of docstrings, comments, messages, the report and the names of variables."""

from __future__ import annotations

import ast
import re
import tokenize
from pathlib import Path

import headroles

ROOT = Path(headroles.__file__).parent
BANNED = re.compile(
    r"\b(told|tells?|whose|anew|goes|gone|went|seams?|spy|ledger|miniatures?|towers?|slopes|shr[iu]nk\w*|cut out|dealt"
    r"|what is no|in its place|such as it is|(heads?|gates?) (is|are|were|be|been) closed|closed (heads?|gates?)"
    r"|clos(e[sd]?|ing) (all |every |these |one |the )?(heads?|gates?))\b"
)
NAMES = {"one", "own", "each", "found", "told", "there", "worth"}  # of variables and parameters, which are nouns
CODE = (ast.FunctionDef, ast.Lambda)
KEPT = ("testing/runner.py",)  # areas of the table of checks on disk


def sentences():
    """Strings of three or more words, comments, and the lines of the report's page and scripts, with their files."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 1:
                yield str(path.relative_to(ROOT)), node.value
        with tokenize.open(path) as file:
            comments = [token for token in tokenize.generate_tokens(file.readline) if token.type == tokenize.COMMENT]
        yield from ((f"{path.relative_to(ROOT)}:{token.start[0]}", token.string) for token in comments)
    for path in sorted(path for path in ROOT.rglob("*") if path.suffix in (".js", ".html", ".css")):
        yield from ((path.name, line) for line in path.read_text(encoding="utf8").splitlines())


def test_no_sentence_has_a_banned_word():
    found = [*sentences()]
    assert len(found) > 1000
    without_code = ((place, re.sub("`[^`]*`", "", text)) for place, text in found if not place.startswith(KEPT))
    assert [(place, word[0]) for place, text in without_code if (word := BANNED.search(text))] == []


def test_no_variable_has_a_banned_name():
    for path in sorted(ROOT.rglob("*.py")):
        functions = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))) if isinstance(node, CODE))
        nodes = [node for function in functions for node in ast.walk(function)]
        names = {node.arg for node in nodes if isinstance(node, ast.arg)}
        names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        assert names.isdisjoint(NAMES), path
