"""Tests over the models of several studies: `python tests/benchmarks/summary.py STUDY... --output TABLE`.

Each STUDY is a folder of `figures/specialists` with the table `pooled-heads` of `headroles pool-models`, with 12 and 6
encoder heads left. A row per outcome and predictor, as of `pooled_survival`, with Holm's correction over the rows of
the same covariates.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

import headroles as hr
from headroles.analysis.pooling import COVARIATES, PREDICTORS, pooled_survival

PLACE = Path(__file__).parents[2] / "figures/specialists"
TESTS = (  # predictors, and covariates
    (PREDICTORS, COVARIATES),
    (("importance",), ()),
    (("positional",), ("importance",)),
    (("importance",), ("positional",)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    studies = {name: hr.load_table(PLACE / name / "pooled-heads.parquet") for name in given.studies}
    models = {
        f"{name} {model}": table.set_index(["kind", "layer", "head"])
        for name, heads in studies.items()
        for model, table in heads.groupby("model")
    }
    outcomes = ["survival[12]", "survival[6]"]
    rows = [
        pooled_survival(models, outcomes, predictors=predictors, covariates=covariates).assign(
            given=", ".join(covariates)
        )
        for predictors, covariates in TESTS
    ]
    pd.concat(rows).to_csv(given.output, index=False, float_format="%.4f")


if __name__ == "__main__":
    main()
