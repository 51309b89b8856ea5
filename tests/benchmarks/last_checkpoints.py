"""How well do unfinished translators translate? `python tests/benchmarks/last_checkpoints.py DATA OUTPUT FOLDER...`.

Loss and BLEU of the last checkpoint in each FOLDER of a training, on the first 300 test pairs of DATA, with 95 %
intervals over sentences, as rows of the table OUTPUT.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from transformers.trainer_utils import get_last_checkpoint

import headroles as hr
from headroles.experiments import prepared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("folders", nargs="+", type=Path)
    given = parser.parse_args()
    test, rows = prepared(given.data).test[:300], []
    for folder in given.folders:
        place = get_last_checkpoint(folder)
        if place is None:
            parser.error(f"no checkpoint in {folder}")
        table = hr.evaluate(*hr.load(place), test, ["loss", "bleu"])
        step = int(Path(place).name.rpartition("-")[2])
        rows += [{"model": folder.name, "step": step, "metric": metric, **row} for metric, row in table.T.items()]
    pd.DataFrame(rows).to_csv(given.output, index=False, float_format="%.4f")


if __name__ == "__main__":
    main()
