"""The tests of the studies, from their heads and controls: does survival go with roles, are such heads worth more?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from pooling import COVARIATES, PREDICTORS, pooled_survival, random_effects

from headroles.analysis.intervals import holm
from headroles.tables.columns import Column, of_name

CORRECTED = [("roles", "random"), ("roles", "importance")]  # pairs of controls, corrected together
OTHERS = ("-roles", "l0", "importance", "-importance")
PAIRS = [*CORRECTED, *((name, "random") for name in OTHERS), ("l0", "importance")]
RARITY = "rarity"
FURTHER = ("ablation[loss]", "ablation[loss precision=1.1]", "relevance[cp].size")


def survival_tests(models: Mapping[str, pd.DataFrame], tested: Sequence[int], *, one_encoder: bool) -> pd.DataFrame:
    """Return the rows of `pooled_survival` of every analysis; `holm` is over the rows of one.

    "primary" asks for positional and syntactic heads, given confidence and sink weight, with `tested` heads left, which
    was fixed before survival was seen.
    """
    encoders = dict.fromkeys(models, "one") if one_encoder else None
    known = set.intersection(*({str(column) for column in table} for table in models.values()))
    outcomes = sorted(of_name(known, "survival"), key=_heads_left, reverse=True)
    primary = [name for name in outcomes if _heads_left(name) in tested]
    if missing := set(tested) - {*map(_heads_left, primary)}:
        raise ValueError(f"no survival at {min(missing)} heads left in every model; all have {', '.join(outcomes)}")
    measures = ["importance", *(column for column in FURTHER if column in known)]
    analyses: list[tuple[str, Sequence[str], Sequence[str], Sequence[str]]] = [
        ("primary", primary, PREDICTORS, COVARIATES),
        ("other sizes", [name for name in outcomes if name not in primary], PREDICTORS, COVARIATES),
        ("without covariates", outcomes, PREDICTORS, ()),
        *((name, outcomes, [name], ()) for name in measures),
        *((f"positional given {name}", outcomes, ("positional",), [name]) for name in measures),
        ("importance given positional", outcomes, ("importance",), ["positional"]),
        ("rare words", outcomes if RARITY in known else [], [RARITY], COVARIATES),
        *((f"roles and {name}", [name], PREDICTORS, ()) for name in measures[1:]),
    ]
    tables = [
        pooled_survival(models, chosen, predictors=predictors, covariates=covariates, encoders=encoders).assign(
            analysis=name
        )
        for name, chosen, predictors, covariates in analyses
        if chosen
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[["analysis", *table.columns.drop("analysis")]]


def _heads_left(column: str) -> int:
    return int(Column.parse(column).detail or 0)


def _heads_left(column: str) -> int:
    return int(Column.parse(column).detail or 0)


def differences(runs: pd.DataFrame) -> pd.DataFrame:
    """Return differences of controls of equal size, pooled over models by random effects, from their runs.

    Of one seed the interval is t over models, without `i2`; `holm` is over the first two pairs.
    """
    tuned = runs[runs["tuned"]]
    summary = tuned.groupby(["heads", "strategy", "model"])["value"].agg(["mean", "var", "size"])
    rows = []
    for heads in sorted(set(tuned.loc[tuned["strategy"] != "all heads", "heads"]), reverse=True):
        models = summary.loc[heads].groupby("strategy").size()
        known = set(models.index[models == tuned["model"].nunique()])
        pairs = [pair for pair in PAIRS if known.issuperset(pair)]
        for strategy, other in pairs:
            tested, baseline = summary.loc[(heads, strategy)], summary.loc[(heads, other)]
            variance = tested["var"] / tested["size"] + baseline["var"] / baseline["size"]
            known_variance = variance.fillna(0).clip(lower=1e-12)  # one seed, or a metric that does not vary
            pooled = random_effects((tested["mean"] - baseline["mean"]).to_numpy(), known_variance.to_numpy())
            numbers = dict(zip(("difference", "low", "high", "p", "i2"), pooled, strict=True))
            if variance.isna().any():  # t over models: nothing is known of the variance within one
                numbers["i2"] = np.nan
            rows.append({"heads": heads, "strategy": strategy, "against": other, "models": len(tested)} | numbers)
        first = [row for row in rows[-len(pairs) :] if (row["strategy"], row["against"]) in CORRECTED]
        for row, value in zip(first, holm(np.array([row["p"] for row in first], float)), strict=True):
            row["holm"] = value
    return pd.DataFrame(rows)
