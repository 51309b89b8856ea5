"""Collect what the claims' rules said of their negative controls, from the records of `headroles reproduce`.

python tests/tools/controls.py STUDY ... --output figures/quality/negative-controls.csv
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd


def collected(studies: list[Path]) -> pd.DataFrame:
    """A row for each study, artefact and control, in the order of the studies."""
    rows = []
    for study in studies:
        for path in sorted(study.glob("papers/*/*.json")):
            facts = json.loads(path.read_text())
            said = {"study": study.resolve().name} | {name: facts[name] for name in ("paper", "artefact", "answer")}
            rows += [said | {"control": name} | control for name, control in facts["controls"].items()]
    return pd.DataFrame(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", type=Path, help="folders with papers/")
    parser.add_argument("--output", type=Path, required=True, help="the table, .csv")
    asked = parser.parse_args()
    collected(asked.studies).to_csv(asked.output, index=False)
