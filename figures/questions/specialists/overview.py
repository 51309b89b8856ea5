"""Specialised heads over all studies, from their pooled tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from pooling import COVARIATES, PREDICTORS, pooled_survival
from retested import CORRECTED, differences, survival_tests
from scipy import stats

from headroles.analysis.intervals import exact_share, holm
from headroles.tables.frame import LEVELS

PLACE = Path(__file__).parent
sys.path.append(str(PLACE.parents[1]))
from studies import put_rows, rows_of  # noqa: E402 - of all studies

SCRATCH, MINILM, CLASSIFIER = "translators trained from nothing", "MiniLM translates", "MiniLM classifies (SST-2)"
STUDIES = {
    "captions": SCRATCH,
    "captions/any-length/C": SCRATCH,
    "captions/any-length/A-B": SCRATCH,
    "tatoeba": SCRATCH,
    "minilm": MINILM,
    "sst2": CLASSIFIER,
}
PRETRAINED = {"minilm": "MiniLM", "sst2": "MiniLM"}  # study -> the encoder that its models start from
EVERY = "all studies"
ROLES = {"positional": 0.9, "syntactic": 0.1}  # thresholds of `hr.roles`, on the columns of `graded_roles`
BESIDE = ("as many of their layers, the most important", "expected of their layers")  # the same slots
RANKS = (  # label, predictor, covariates
    ("importance", "importance", ()),
    ("positional", "positional", ()),
    ("positional,\ngiven confidence and sink", "positional", ("confidence", "sink")),
    ("positional,\ngiven importance", "positional", ("importance",)),
    ("syntactic", "syntactic", ()),
    ("syntactic,\ngiven importance", "syntactic", ("importance",)),
)
KEPT = {  # strategy -> label
    "importance": "most important",
    "roles": "nearest to a role",
    "-roles": "farthest from a role",
    "-importance": "least important",
}
TESTED = {"minilm": (18, 12), "sst2": (18, 12)}  # heads left of the primary outcome; (12, 6) in other studies
TESTS = (  # predictors, and covariates
    (PREDICTORS, COVARIATES),
    (("importance",), ()),
    (("positional",), ("importance",)),
    (("importance",), ("positional",)),
)
Model = pd.DataFrame
Row = dict[str, object]


def overview() -> None:
    """Put all studies into tables.

    `overview.csv` has a row per panel, family of models and kind of head. Panel "survivors": share of
    the heads with a role that are among the last quarter of the encoder's heads, over all models of the family; beside
    it that of the most important heads of the same layers, as many in each, and what the layers alone make expect. The
    95 % interval is that of Clopper and Pearson with heads as the sample, a head of an encoder that models share
    counted once; `models` have such a head. `most importance` and `most confidence`: how many of the heads are among
    the first of their layers by these, as many as have the role there. Panel "rank": rank correlation with survival
    within layers, pooled over models (`pooled_survival`). Panel "controls": models without the other heads, retrained:
    how much of the difference between random heads (0) and all heads (1, mean of the study) the chosen ones keep, by
    the metric; the interval is that of the chosen less the random ones, t over models. Its last rows are over the
    models of all studies.

    `controls.csv` has the two tests of controls of each study by one rule, t over models, beside the rule of the plans
    (`retested.differences`): `t.p`, `t.holm`, `plan.p`, `plan.holm`; `difference` is the plain mean over models.

    Families are not tests: what was fixed before looking is in the page of each study.
    """
    models: dict[str, dict[str, Model]] = {}
    for study, family in STUDIES.items():
        models.setdefault(family, {}).update(models_of(study))
    rows = [*survivors(models), *ranks(models), *controls()]
    table = pd.DataFrame(rows)
    table.to_csv(PLACE / "overview.csv", index=False, float_format="%.4f")
    by_rule().to_csv(PLACE / "controls.csv", index=False, float_format="%.4f")


def retest() -> None:
    """Test again over the models of each study, from its heads and controls: `survival` and `differences`."""
    for study in pd.read_parquet(PLACE / "survival.parquet")["study"].unique():
        models = {name.rpartition(" ")[2]: model for name, model in models_of(study).items()}
        options = {"tested": TESTED.get(study, (12, 6)), "one_encoder": study in PRETRAINED}
        table, former = survival_tests(models, **options), rows_of(PLACE / "survival.parquet", study=study)
        table.attrs = former.attrs
        put_rows(table, PLACE / "survival.parquet", study=study)
        runs = rows_of(PLACE / "controls.parquet", study=study)
        if not runs.empty:
            found, former = differences(runs), rows_of(PLACE / "differences.parquet", study=study)
            found.attrs = former.attrs
            put_rows(found, PLACE / "differences.parquet", study=study)


def together(studies: list[str], output: Annotated[Path, typer.Option()]) -> None:
    """Test over the models of several studies, with 12 and 6 encoder heads left.

    Each of STUDIES is one of the table `heads`. A row per outcome and predictor, as of `pooled_survival`, with Holm's
    correction over the rows of the same covariates.
    """
    models = {name: model for study in studies for name, model in models_of(study).items()}
    rows = [
        pooled_survival(
            models,
            ["survival[12]", "survival[6]"],
            predictors=predictors,
            covariates=covariates,
            encoders=encoders_of(models),
        ).assign(given=", ".join(covariates))
        for predictors, covariates in TESTS
    ]
    pd.concat(rows).to_csv(output, index=False, float_format="%.4f")


def models_of(study: str) -> dict[str, Model]:
    """The heads of each model of a study."""
    heads = rows_of(PLACE / "heads.parquet", study=study)
    return {f"{study} {name}": table.set_index(LEVELS) for name, table in heads.groupby("model")}


def encoders_of(models: Iterable[str]) -> dict[str, str]:
    """The encoder that models share with others: those of `PRETRAINED`."""
    return {name: encoder for name in models for study, encoder in PRETRAINED.items() if name.split(" ")[0] == study}


def quarter(model: Model) -> str:
    """The column of survival with a quarter of the heads left."""
    return f"survival[{len(model) // 4}]"


def survivors(models: dict[str, dict[str, Model]]) -> list[Row]:
    """Shares of heads that survive: with a role, and beside them others of the same layers, as many."""
    rows: list[Row] = []
    for family, tables in models.items():
        for role, least in ROLES.items():
            kept: dict[str, list[float]] = {name: [] for name in (f"{role} heads", *BESIDE)}  # what -> head -> survival
            slots: set[tuple[object, ...]] = set()
            number, among = 0, {"importance": 0, "confidence": 0}
            for name, model in tables.items():
                survives, of_layer = model[quarter(model)], model.index.get_level_values("layer")
                mask = model[role] >= least
                many = mask.groupby(of_layer).transform("sum")
                first = {of: model[of].groupby(of_layer).rank(ascending=False) <= many for of in among}
                among = {of: count + int((first[of] & mask).sum()) for of, count in among.items()}
                chance = survives.groupby(of_layer).transform("mean")
                parts = survives[mask], survives[first["importance"]], chance[mask]
                for label, part in zip(kept, parts, strict=True):
                    kept[label] += part.tolist()
                slots |= {(encoders_of([name]).get(name, name), *head) for head in model.index[mask]}
                number += bool(mask.any())
            for label, values in kept.items():
                share = float(np.mean(values))
                low, high = (np.nan, np.nan) if label == BESIDE[-1] else exact_share(share, len(slots))
                line = row("survivors", family, f"{role} | {label}", number, share, low, high, heads=len(values))
                rows.append(line | ({f"most {of}": count for of, count in among.items()} if role in label else {}))
    return rows


def ranks(models: dict[str, dict[str, Model]]) -> list[Row]:
    """Rank correlations with survival within layers."""
    rows = []
    for family, tables in models.items():
        renamed = {name: model.rename(columns={quarter(model): "survives"}) for name, model in tables.items()}
        for label, predictor, covariates in RANKS:
            pooled = pooled_survival(
                renamed, ["survives"], predictors=[predictor], covariates=covariates, encoders=encoders_of(renamed)
            ).iloc[0]
            numbers = int(pooled["models"]), *pooled[["r", "r.low", "r.high"]].astype(float)
            rows.append(row("rank", family, label, *numbers))
    return rows


def controls() -> list[Row]:
    """Models of equal size with heads chosen in other ways, retrained."""
    rows = []
    shares: dict[str, list[float]] = {}
    for study in STUDIES:
        runs = rows_of(PLACE / "controls.parquet", study=study)
        if runs.empty:
            continue
        runs = runs.query("tuned")
        means = runs.groupby(["strategy", "model"])["value"].mean().unstack("strategy")
        whole = (means["all heads"] - means["random"]).mean()
        for strategy, label in KEPT.items():
            if strategy in means:
                kept = ((means[strategy] - means["random"]) / whole).tolist()
                rows.append(row("controls", study, label, *over_models(kept)))
                shares.setdefault(label, []).extend(kept)
    return rows + [row("controls", EVERY, label, *over_models(kept)) for label, kept in shares.items()]


def by_rule() -> pd.DataFrame:
    """Tests of controls of equal size by t over models, and as the plans had them."""
    parts = []
    for study in pd.read_parquet(PLACE / "controls.parquet")["study"].unique():
        runs = rows_of(PLACE / "controls.parquet", study=study).query("tuned")
        plan = rows_of(PLACE / "differences.parquet", study=study).set_index(["strategy", "against"])
        means = runs.groupby(["strategy", "model"])["value"].mean().unstack("strategy")
        gaps = {pair: means[pair[0]] - means[pair[1]] for pair in CORRECTED}
        part = pd.DataFrame(
            [
                {"study": study, "less": pair[1], "models": len(gap), "difference": gap.mean()}
                | {"t.p": stats.ttest_1samp(gap, 0).pvalue, "plan.p": plan.loc[pair, "p"]}
                for pair, gap in gaps.items()
            ]
        )
        parts.append(part.assign(**{f"{rule}.holm": holm(part[f"{rule}.p"].to_numpy()) for rule in ("t", "plan")}))
    return pd.concat(parts, ignore_index=True)


def over_models(values: list[float]) -> tuple[int, float, float, float]:
    """Number, mean and 95 % interval of t; without an interval for one model."""
    mean = float(np.mean(values))
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values) if len(values) > 1 else np.nan
    return len(values), mean, mean - half, mean + half


def row(
    panel: str, family: str, label: str, models: int, value: float, low: float, high: float, heads: int | None = None
) -> Row:
    """A row of the table."""
    numbers = {"models": models, "heads": heads, "value": value, "low": low, "high": high}
    return {"panel": panel, "of": family, "what": label.replace("\n", " ")} | numbers
