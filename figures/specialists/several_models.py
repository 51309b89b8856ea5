"""Pool pruned models of several training seeds: do roles predict which heads survive, and what do controls reach?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pooling import COVARIATES, PREDICTORS, pooled_survival, random_effects

from headroles.analysis.changes import role_changes
from headroles.analysis.intervals import holm
from headroles.analysis.role_rules import roles as roles_of
from headroles.tables import frame
from headroles.tables.columns import Column, of_name
from headroles.tables.io import load_table, save_table
from headroles.tables.study import as_study

TESTED = (12, 6)  # numbers of heads left of the primary outcome
CONTROL = "compare-pruning-seeds.parquet"  # the table of `compare_pruning` with every seed
CORRECTED = [("roles", "random"), ("roles", "importance")]  # pairs of controls, corrected together
PRUNE_ARM = "python figures/specialists/make.py prune"
OTHERS = ("-roles", "l0", "importance", "-importance")
RARITY = "rarity"
FURTHER = {  # columns that a folder may have besides `survival`, and where
    RARITY: "heads.parquet",
    "ablation[loss]": "ablation-loss-head-zero.parquet",
    "ablation[loss precision=1.1]": "ablation-loss-head-zero-precision=1.1.parquet",
    "relevance[cp].size": "relevance/heads.parquet",
}
PAIRS = [*CORRECTED, *((name, "random") for name in OTHERS), ("l0", "importance")]


class Pooled(NamedTuple):
    """Tables over several models: heads, tests of survival, pruned models, controls, differences, changes of roles."""

    heads: pd.DataFrame
    survival: pd.DataFrame
    sizes: pd.DataFrame
    controls: pd.DataFrame | None
    differences: pd.DataFrame | None
    changes: pd.DataFrame | None


def pool_models(
    folders: Sequence[str | Path],
    *,
    tested: Sequence[int] = TESTED,
    one_encoder: bool = False,
    study: str | Path | None = None,
) -> Pooled:
    """Test over several pruned models whether roles predict which heads survive, and compare their controls.

    The models are those of `prune_arm`, one folder each, trained from different seeds.

    Effects of ablation and relevance are related to roles and survival too, where all folders have them: of
    `hr.ablate(..., study=FOLDER)` and `hr.score(..., ["relevance"], study=FOLDER / "relevance")`.

    Args:
        folders: Folders of `prune_arm`; the name of a folder is that of its model.
        tested: Numbers of heads left of the primary outcome, fixed before survival was seen.
        one_encoder: Whether all models start from one pretrained encoder.
        study: Folder that keeps these tables, as `pooled-heads`, `pooled-survival` and so on.

    Returns:
        Six tables. `controls` and `differences` are None unless every model has controls; `changes` is None unless the
        roles of all pruned models were kept (`prune_arm(..., roles=True)`).

        - heads: the tables `survival` of all models with these columns, and `model`.
        - survival: rows of `pooled_survival` for each analysis; `holm` is over the rows of one analysis. "primary" asks
          for positional and syntactic heads, given confidence and sink weight, at `tested` sizes; "rare words", for the
          score `rarity` given the same. Outcome of "roles and ablation[loss]" is the effect of ablating a head before
          pruning.
        - sizes: a row per model, gate seed and number of encoder heads left: value of the metric, its change from the
          control that was trained as long with all heads, number of undecided gates.
        - controls: the metric of every control: model, strategy, heads, tuned, seed, value.
        - differences: a row per pair of controls of equal size that all models have, after retraining: `difference` of
          the metric with `low` and `high`, pooled over models by random effects; `p`, `i2`, and `holm` over two rows:
          heads nearest to a role, against random heads and against the most important. Of one seed the interval is t
          over models, without `i2`. Models of one shape have the same random heads for the same seed; where they share
          seeds, the intervals leave out how much random draws differ.
        - changes: `hr.role_changes` of the encoder heads of each model and gate seed, from before pruning.

    Raises:
        ValueError: For fewer than two folders, and for a tested size that a model was not pruned to.
        FileNotFoundError: If a folder lacks a table of `prune_arm`.
    """  # noqa: DOC502
    places = {Path(folder).name: Path(folder) for folder in folders}
    if len(places) < 2:
        got = ", ".join(places) or "none"
        raise ValueError(f"too few models to pool: got {got}; expected two or more folders with different names")
    models = _models(places)
    text = frame.sign(pooled=",".join(places))
    heads = frame.signed(pd.concat(table.reset_index().assign(model=name) for name, table in models.items()), text)
    result = Pooled(
        heads.reset_index(drop=True),
        _survival(models, tested, one_encoder=one_encoder),
        _sizes(places),
        None,
        None,
        _changes(places),
    )
    if all((place / "controls" / CONTROL).is_file() for place in places.values()):
        runs = _controls(places)
        result = result._replace(controls=frame.signed(runs, text), differences=frame.signed(differences(runs), text))
    if study is not None:
        kept = as_study(study)
        for name, table in result._asdict().items():
            if table is not None:
                save_table(table, kept.path(f"pooled-{name}"))
    return result


def _models(places: Mapping[str, Path]) -> dict[str, pd.DataFrame]:
    """The table of each model: roles, survival, and those of the further columns that all have."""
    models = {}
    for name, place in places.items():
        if not (place / "survival.parquet").is_file():
            raise FileNotFoundError(f"no pruned model in {place}: expected survival.parquet; make it with {PRUNE_ARM}")
        models[name] = load_table(place / "survival.parquet")
    for column, file in FURTHER.items():
        tables = {name: load_table(place / file) for name, place in places.items() if (place / file).is_file()}
        if all(column in tables.get(name, ()) for name in places):
            for name, further in tables.items():
                rows = frame.bare(further)[[column]].loc[models[name].index]
                models[name] = frame.join(models[name], frame.signed(rows, frame.provenance(further, column)))
    return models


def again(study: str | Path, *, tested: Sequence[int] = TESTED, one_encoder: bool = False) -> pd.DataFrame:
    """Make the table `pooled-survival` of a study again from its `pooled-heads`."""
    kept = as_study(study)
    heads = kept.load("pooled-heads")
    models = {
        str(name): frame.signed(part.set_index(frame.LEVELS).drop(columns="model"), frame.provenance(heads, "model"))
        for name, part in heads.groupby("model", sort=False)
    }
    table = _survival(models, tested, one_encoder=one_encoder)
    save_table(table, kept.path("pooled-survival"))
    return table


def _survival(models: Mapping[str, pd.DataFrame], tested: Sequence[int], *, one_encoder: bool) -> pd.DataFrame:
    """Rows of every analysis."""
    encoders = dict.fromkeys(models, "one") if one_encoder else None
    known = set.intersection(*({str(column) for column in table} for table in models.values()))
    outcomes = sorted(of_name(known, "survival"), key=_heads_left, reverse=True)
    primary = [name for name in outcomes if _heads_left(name) in tested]
    if missing := set(tested) - {*map(_heads_left, primary)}:
        raise ValueError(f"no survival at {min(missing)} heads left in every model; all have {', '.join(outcomes)}")
    measures = ["importance", *(column for column in FURTHER if column in known and column != RARITY)]
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
    text = frame.sign(analyses=",".join(table["analysis"].unique()))
    return frame.signed(table[["analysis", *table.columns.drop("analysis")]], frame.provenance(tables[0], "r"), text)


def _heads_left(column: str) -> int:
    return int(Column.parse(column).detail or 0)


def _sizes(places: Mapping[str, Path]) -> pd.DataFrame:
    """Each pruned model, without the resamples of its metric."""
    columns = ["model", "gates", "heads", "value", "change", "undecided"]
    tables = [
        load_table(place / "sparsity-l0-enc-self.parquet").assign(model=name, gates=place.name.removeprefix("gates-"))
        for name, folder in places.items()
        for place in sorted(folder.glob("gates-*"))
    ]
    table = pd.concat(tables, ignore_index=True).drop(columns="heads").rename(columns={"enc-self": "heads"})
    return frame.signed(table[columns], frame.sign(pooled=",".join(places)), frame.provenance(tables[0], "value"))


def _changes(places: Mapping[str, Path]) -> pd.DataFrame | None:
    """How roles change in each gate training, if the roles of all pruned models were kept."""
    tables = []
    for name, folder in places.items():
        for place in sorted(folder.glob("gates-*")):
            sizes = load_table(place / "sparsity-l0-enc-self.parquet")["enc-self"]
            files = {int(size): place / f"roles-l0-enc-self-{size}.parquet" for size in sizes}
            if not all(file.is_file() for file in files.values()):
                return None
            after = {size: load_table(file).loc[["enc-self"]] for size, file in files.items()}
            before = roles_of(load_table(folder / "heads.parquet").loc[["enc-self"]])
            tables.append(role_changes(before, after).assign(model=name, gates=place.name.removeprefix("gates-")))
    return frame.signed(pd.concat(tables, ignore_index=True), frame.sign(pooled=",".join(places)))


def _controls(places: Mapping[str, Path]) -> pd.DataFrame:
    """Each control, without and with retraining; the whole model is in several comparisons."""
    columns = ["model", "strategy", "heads", "tuned", "seed", "value"]
    tables = [
        load_table(place / part / CONTROL).assign(model=name)
        for name, place in places.items()
        for part in ("controls", "random")  # draws of `prune_arm` that are more than the seeds of other controls
        if (place / part / CONTROL).is_file()
    ]
    tables += [  # a comparison for each gate seed
        load_table(path).query("strategy == 'l0'").assign(model=name, seed=int(path.parent.name.split("-")[-1]))
        for name, place in places.items()
        for path in sorted(place.glob(f"l0-*/{CONTROL}"))
    ]
    return pd.concat(tables).drop_duplicates(columns[:-1])[columns].reset_index(drop=True)


def differences(runs: pd.DataFrame) -> pd.DataFrame:
    """Differences between strategies of each model, pooled."""
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
