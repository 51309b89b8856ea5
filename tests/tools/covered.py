"""Tell which lines and branches of the library the tests run, and why those that are left are.

    python -m coverage run -m pytest -n 0 -m ''
    python tests/tools/covered.py --output figures/engineering/quality/coverage.json

By what pyproject.toml says of coverage, commands and processes that tests start count too. Each line and
branch that is left is in `left` with a `reason`: write it there, the next run keeps it.
"""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import coverage

ROOT = Path(__file__).resolve().parents[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", default="all tests", help="what was run, in words")
    parser.add_argument("--output", type=Path, required=True)
    asked = parser.parse_args()
    told = measured()
    known = json.loads(asked.output.read_text())["left"] if asked.output.exists() else []
    reasons = {(one["file"], one["text"]): one["reason"] for one in known}
    files = {short(name): counts(one["summary"]) for name, one in sorted(told["files"].items())}
    left = [
        {"file": short(name), **one, "reason": reasons.get((short(name), one["text"]), "")}
        for name, found in sorted(told["files"].items())
        for one in missed(Path(ROOT, "headroles", short(name)).read_text().splitlines(), found)
    ]
    found = {"tests": asked.tests, "total": counts(told["totals"]), "files": files, "left": left}
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(json.dumps(found, indent=1, ensure_ascii=False))
    print("{lines} lines, {branches} branches; run: {percent:.1f} %".format(**found["total"]))


def measured() -> dict:
    """The report of coverage on what was run, parallel parts combined."""
    data = coverage.Coverage()
    data.combine(keep=True)
    with TemporaryDirectory() as folder:
        data.json_report(outfile=f"{folder}/report.json")
        return json.loads(Path(folder, "report.json").read_text())


def short(name: str) -> str:
    return name.rpartition("headroles/")[2] if name.count("headroles/") == 1 else name.split("headroles/", 1)[1]


def counts(summary: dict) -> dict[str, float]:
    return {
        "lines": summary["num_statements"],
        "lines run": summary["covered_lines"],
        "branches": summary["num_branches"],
        "branches run": summary["covered_branches"],
        "percent": round(summary["percent_covered"], 2),
    }


def missed(lines: list[str], found: dict) -> list[dict]:
    """Stretches of lines that do not run, and branches that are not taken though their line runs."""
    gone = set(found["missing_lines"])
    told = []
    for _, stretch in groupby(enumerate(sorted(gone)), key=lambda pair: pair[1] - pair[0]):
        numbers = [line for _, line in stretch]
        told.append({"lines": [numbers[0], numbers[-1]], "text": lines[numbers[0] - 1].strip()})
    for start, end in found["missing_branches"]:
        if start not in gone and abs(end) not in gone:
            to = lines[end - 1].strip() if end > 0 else "the end"
            told.append({"lines": [start, end], "text": f"{lines[start - 1].strip()} -> {to}"})
    return told


if __name__ == "__main__":
    main()
