"""Specialised heads over all studies, from the tables in figures/specialists: a table, a picture, tests together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import typer
from pooling import COVARIATES, PREDICTORS, pooled_survival
from scipy import stats

import headroles as hr

PLACE = Path(__file__).parent
SCRATCH, MINILM, CLASSIFIER = "translators trained from nothing", "MiniLM translates", "MiniLM classifies (SST-2)"
STUDIES = {
    "captions": SCRATCH,
    "captions/any-length/C": SCRATCH,
    "captions/any-length/A-B": SCRATCH,
    "tatoeba": SCRATCH,
    "minilm": MINILM,
    "sst2": CLASSIFIER,
}
EVERY = "all studies"
ROLES = {"positional": 0.9, "syntactic": 0.1}  # thresholds of `hr.roles`, on the columns of `graded_roles`
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
COLOURS = {SCRATCH: "C0", MINILM: "C1", CLASSIFIER: "C2", EVERY: "black"}
WORDS = {  # studies with controls, in the legend
    "captions": "captions",
    "captions/any-length/C": "captions, other seeds",
    "minilm": "MiniLM translates",
    "sst2": CLASSIFIER,
}
TESTS = (  # predictors, and covariates
    (PREDICTORS, COVARIATES),
    (("importance",), ()),
    (("positional",), ("importance",)),
    (("importance",), ("positional",)),
)
Model = pd.DataFrame
Row = dict[str, object]


def overview() -> None:
    """Put all studies into a table and a picture.

    `overview.csv` has a row per panel of the picture, family of models and kind of head. Panel "survivors": share of
    the heads with a role that are among the last quarter of the encoder's heads, beside as many of the most important
    heads of the same layers, and all heads of these layers; mean over models that have such a head, 95 % interval of t
    over them, cut at 0 and 1. Panel "rank": rank correlation with that survival within layers, pooled over models
    (`pooled_survival`). Panel "controls": models without the other heads, retrained: how much of the difference between
    random heads (0) and all heads (1, mean of the study) the chosen ones keep, by the metric; the interval is that of
    the chosen less the random ones, t over models. Its last rows are over the models of all studies.

    Families are not tests: what was fixed before looking is in the page of each study.
    """
    models: dict[str, dict[str, Model]] = {}
    for study, family in STUDIES.items():
        models.setdefault(family, {}).update(models_of(study))
    rows = [*survivors(models), *ranks(models), *controls()]
    table = pd.DataFrame(rows)
    table.to_csv(PLACE / "overview.csv", index=False, float_format="%.4f")
    draw(table)


def together(studies: list[str], output: Annotated[Path, typer.Option()]) -> None:
    """Test over the models of several studies, with 12 and 6 encoder heads left.

    Each of STUDIES is a folder of `figures/specialists` with the table `pooled-heads` of `pool`. A row per outcome and
    predictor, as of `pooled_survival`, with Holm's correction over the rows of the same covariates.
    """
    models = {name: model for study in studies for name, model in models_of(study).items()}
    rows = [
        pooled_survival(models, ["survival[12]", "survival[6]"], predictors=predictors, covariates=covariates).assign(
            given=", ".join(covariates)
        )
        for predictors, covariates in TESTS
    ]
    pd.concat(rows).to_csv(output, index=False, float_format="%.4f")


def models_of(study: str) -> dict[str, Model]:
    """The heads of each model of a study."""
    heads = hr.load_table(PLACE / study / "pooled-heads.parquet")
    return {f"{study} {name}": table.set_index(["kind", "layer", "head"]) for name, table in heads.groupby("model")}


def quarter(model: Model) -> str:
    """The column of survival with a quarter of the heads left."""
    return f"survival[{len(model) // 4}]"


def survivors(models: dict[str, dict[str, Model]]) -> list[Row]:
    """Shares of heads with a role that survive."""
    rows: list[Row] = []
    for family, tables in models.items():
        shares: dict[str, list[float]] = {}
        counts: dict[str, int] = {}
        for model in tables.values():
            kept, layer = model[quarter(model)], model.index.get_level_values("layer")
            masks = {role: model[role] >= least for role, least in ROLES.items()}
            any_role = np.logical_or.reduce([*masks.values()])
            order = model["importance"].groupby(layer).rank(ascending=False)
            number = pd.Series(any_role, model.index).groupby(layer).transform("sum")
            masks["as many of their layers,\nthe most important"] = order <= number
            masks |= {"with a role": pd.Series(any_role, model.index)}
            for label, mask in masks.items():
                if mask.any():
                    shares.setdefault(label, []).append(float(kept[mask].mean()))
                    counts[label] = counts.get(label, 0) + int(mask.sum())
            if any_role.any():
                chance = kept.groupby(layer).transform("mean")[any_role].mean()
                shares.setdefault("all heads of their layers", []).append(float(chance))
                counts["all heads of their layers"] = counts["with a role"]
        for label in ["positional", "syntactic", *[name for name in shares if name not in (*ROLES, "with a role")]]:
            if label in shares:
                size, value, *ends = over_models(shares[label])
                low, high = np.clip(ends, 0, 1)
                rows.append(row("survivors", family, label, size, value, low, high, heads=counts[label]))
    return rows


def ranks(models: dict[str, dict[str, Model]]) -> list[Row]:
    """Rank correlations with survival within layers."""
    rows = []
    for family, tables in models.items():
        renamed = {name: model.rename(columns={quarter(model): "survives"}) for name, model in tables.items()}
        for label, predictor, covariates in RANKS:
            pooled = pooled_survival(renamed, ["survives"], predictors=[predictor], covariates=covariates).iloc[0]
            numbers = int(pooled["models"]), *pooled[["r", "r.low", "r.high"]].astype(float)
            rows.append(row("rank", family, label, *numbers))
    return rows


def controls() -> list[Row]:
    """Models of equal size with heads chosen in other ways, retrained."""
    rows = []
    shares: dict[str, list[float]] = {}
    for study in STUDIES:
        path = PLACE / study / "pooled-controls.parquet"
        if not path.is_file():
            continue
        runs = hr.load_table(path).query("tuned")
        means = runs.groupby(["strategy", "model"])["value"].mean().unstack("strategy")
        whole = (means["all heads"] - means["random"]).mean()
        for strategy, label in KEPT.items():
            if strategy in means:
                kept = ((means[strategy] - means["random"]) / whole).tolist()
                rows.append(row("controls", study, label, *over_models(kept)))
                shares.setdefault(label, []).extend(kept)
    return rows + [row("controls", EVERY, label, *over_models(kept)) for label, kept in shares.items()]


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


def draw(table: pd.DataFrame) -> None:
    """Draw the three panels."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.6), layout="constrained")
    titles = {
        "survivors": ("share among the last quarter of the heads", "Which heads survive L0 pruning?"),
        "rank": ("rank correlation with survival within layers", "What predicts survival?"),
        "controls": ("metric: 0 as random heads, 1 as all heads", "Retrained with these heads alone"),
    }
    for ax, (panel, (label, title)) in zip(axes, titles.items(), strict=True):
        part = table[table["panel"] == panel]
        whats = list(dict.fromkeys(part["what"]))
        families = list(dict.fromkeys(part["of"]))
        for number, family in enumerate(families):
            rows = part[part["of"] == family].set_index("what")
            y = np.array([whats.index(what) for what in rows.index]) + 0.15 * (number - (len(families) - 1) / 2)
            error = np.abs(rows[["low", "high"]].sub(rows["value"], axis=0)).fillna(0).to_numpy().T
            colour = COLOURS[STUDIES.get(family, family)]
            marker = "os^DP"[number] if panel == "controls" else "o"
            name = f"{WORDS.get(family, family)} ({rows['models'].max()} models)"
            ax.errorbar(rows["value"], y, xerr=error, fmt=marker, color=colour, capsize=3, label=name)
        ax.set_yticks(range(len(whats)), [what.replace(", ", ",\n") for what in whats])
        ax.invert_yaxis()
        ax.set(xlabel=label, title=title)
        ax.axvline(0, color="grey", linestyle=":", linewidth=1)
    axes[2].axvline(1, color="grey", linestyle=":", linewidth=1)
    axes[0].set_xlim(-0.05, 1.05)
    for ax in axes[[0, 2]]:
        ax.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.35, -0.15))
    figure.savefig(PLACE / "overview.png", dpi=130)
    plt.close(figure)
