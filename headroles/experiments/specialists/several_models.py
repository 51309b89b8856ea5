"""Pool pruned models of several training seeds: do roles predict which heads survive, and what do controls reach?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from headroles.analysis.multiple_testing import holm
from headroles.analysis.pooling import COVARIATES, PREDICTORS, pooled_survival, random_effects
from headroles.tables import frame
from headroles.tables.io import load_table, save_table
from headroles.tables.study import study_at

SIZES = (12, 6, 3)  # numbers of heads left
TESTED = (12, 6)  # those of the primary outcome
CORRECTED = [("roles", "random"), ("roles", "importance")]  # pairs of controls, corrected together
OTHERS = ("-roles", "l0", "importance", "-importance")
PAIRS = [*CORRECTED, *((name, "random") for name in OTHERS), ("l0", "importance")]


class Pooled(NamedTuple):
    """Tables over several models: tests of survival, differences between controls, and each run of a control."""

    survival: pd.DataFrame
    differences: pd.DataFrame
    controls: pd.DataFrame


def pool_models(folders: Sequence[str | Path], *, study: str | Path | None = None) -> Pooled:
    """Test over several pruned models whether roles predict which heads survive, and compare their controls.

    The models are those of `prune_arm`, one folder each, trained from different seeds.

    Args:
        folders: Folders of `prune_arm`; the name of a folder is that of its model.
        study: Folder that keeps the tables `pooled-survival`, `pooled-controls`, `controls`, and of each model
            `survival-MODEL`.

    Returns:
        Three tables.

        - survival: rows of `pooled_survival` for each analysis; `holm` is over the rows of one analysis. "primary" asks
          for positional and syntactic heads, given confidence and sink weight, at `TESTED` sizes.
        - differences: a row per pair of controls of equal size, after retraining: `difference` of the metric with
          `low` and `high`, pooled over models by random effects; `p`, `i2`, and `holm` over the first two pairs.
        - controls: the metric of every run: model, strategy, heads, tuned, seed, value.

    Raises:
        ValueError: For fewer than two folders.
        FileNotFoundError: If a folder lacks a table of `prune_arm`.
    """  # noqa: DOC502
    places = {Path(folder).name: Path(folder) for folder in folders}
    models = {name: load_table(place / "survival.parquet") for name, place in places.items()}
    runs = pd.concat(
        load_table(place / part / "contest-seeds.parquet").assign(model=name)
        for name, place in places.items()
        for part in ("controls", "random")
    )
    runs = runs.drop_duplicates(["model", "strategy", "heads", "tuned", "seed"]).reset_index(drop=True)
    text = frame.sign(pooled=",".join(places))
    columns = ["model", "strategy", "heads", "tuned", "seed", "value"]
    found = Pooled(_survival(models), frame.signed(_differences(runs), text), frame.signed(runs[columns], text))
    if study is not None:
        kept = study_at(study)
        save_table(found.survival, kept.path("pooled-survival"))
        save_table(found.differences, kept.path("pooled-controls"))
        save_table(found.controls, kept.path("controls"))
        for name, table in models.items():
            save_table(table, kept.path(f"survival-{name}"))
    return found


def _survival(models: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Rows of every analysis."""
    analyses: tuple[tuple[str, Sequence[int], Sequence[str], Sequence[str]], ...] = (
        ("primary", TESTED, PREDICTORS, COVARIATES),
        ("other sizes", [size for size in SIZES if size not in TESTED], PREDICTORS, COVARIATES),
        ("without covariates", SIZES, PREDICTORS, ()),
        ("importance", SIZES, ("importance",), ()),
        ("positional given importance", SIZES, ("positional",), ("importance",)),
    )
    known = {column for table in models.values() for column in table}
    tables = [
        pooled_survival(models, outcomes, predictors=predictors, covariates=covariates).assign(analysis=name)
        for name, sizes, predictors, covariates in analyses
        if (outcomes := [f"survival[{size}]" for size in sizes if f"survival[{size}]" in known])
    ]
    table = pd.concat(tables, ignore_index=True)
    text = frame.sign(analyses=",".join(table["analysis"].unique()))
    return frame.signed(table[["analysis", *table.columns.drop("analysis")]], frame.provenance(tables[0], "r"), text)


def _differences(runs: pd.DataFrame) -> pd.DataFrame:
    """Differences between strategies of each model, pooled."""
    tuned = runs[runs["tuned"]]
    each = tuned.groupby(["heads", "strategy", "model"])["value"].agg(["mean", "var", "size"])
    rows = []
    for heads in sorted(set(tuned.loc[tuned["strategy"] != "all heads", "heads"]), reverse=True):
        for strategy, other in PAIRS:
            one, two = each.loc[(heads, strategy)], each.loc[(heads, other)]
            variance = (one["var"] / one["size"] + two["var"] / two["size"]).clip(lower=1e-12)  # a metric may not vary
            pooled = random_effects((one["mean"] - two["mean"]).to_numpy(), variance.to_numpy())
            numbers = dict(zip(("difference", "low", "high", "p", "i2"), pooled, strict=True))
            rows.append({"heads": heads, "strategy": strategy, "against": other, "models": len(one)} | numbers)
        first = rows[-len(PAIRS) :][: len(CORRECTED)]
        for row, value in zip(first, holm(np.array([row["p"] for row in first], float)), strict=True):
            row["holm"] = value
    return pd.DataFrame(rows)
