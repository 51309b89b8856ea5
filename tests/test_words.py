"""Words of our own stay out of docstrings, messages and help: the field has words for these things."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import headroles

ROOT = Path(headroles.__file__).parent
OURS = re.compile(
    r"\b(told|tells?|whose|anew|goes|gone|went|seams?|spy|ledger|miniatures?|towers?|slopes|shr[iu]nk\w*|cut out|dealt"
    r"|clos(e[sd]?|ing) (all |every |these |one |the )?(heads?|gates?)|(heads?|gates?) (is|are|were|be|been) closed"
    r"|closed heads?)\b"
)
KEPT = (  # names on disk: a column of role changes, areas of the checks' table, and the start of its older reasons
    "analysis/role_persistence.py",
    "plots/forest.py",
    "testing/architecture_table.py",
    "testing/runner.py",
)


def sentences() -> list[tuple[str, str]]:
    """Return every string of three or more words in the package, with the file and line it stands on."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 1:
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node.value))
    return found


def test_no_sentence_uses_a_word_that_the_field_has_another_for():
    assert len(sentences()) > 1000
    assert [
        (place, word[0]) for place, text in sentences() if (word := OURS.search(text)) and not place.startswith(KEPT)
    ] == []
