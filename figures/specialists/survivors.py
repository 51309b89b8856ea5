"""Do the heads with a role survive in pruned models? Counts, rank correlations and a picture."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated

import bilingual
import numpy as np
import pandas as pd
import typer
from pooling import fisher_z, graded_roles, residual_ranks
from replication import prepared
from scipy import stats

import headroles as hr
from headroles.analysis.intervals import p_value, permuted_values, strata
from headroles.analysis.role_rules import held
from headroles.models import loading
from headroles.plots.matrix import short
from headroles.tables import frame, io

GROUPS = ("positional", "syntactic", "rare")
GIVEN = [  # predictors, and covariates
    (("positional", "syntactic"), ("confidence", "sink")),
    (("positional", "syntactic"), ("importance",)),
    (("importance",), ("positional",)),
]


def survivors(
    folders: list[Path],
    output: Annotated[Path, typer.Option()],
    drawn: Annotated[int, typer.Option(help="Heads left in the maps.")] = 12,
    model: Annotated[Path | None, typer.Option(help="Trained model, whose shape untrained ones have.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder that figures/papers/replicate prepares.")] = None,
) -> None:
    """Do the heads with a role survive in pruned models?

    Each of FOLDERS is one of `prune` and of `headroles ablate`; its name is that of the model. Written into the output:

    - `survivors.csv`, a row per model, group of roles and number of heads left: how many heads have such a role, how
      many of them survive (mean over gate seeds), and mean and central 95 % of that number over 9,999 permutations of
      survival within layers, that is if the gates had kept as many heads of each layer, but others.
    - `partial.csv`: how well graded roles and importance rank the survivors, given others (Fisher's z; p by permutation
      within layers, Freedman and Lane).
    - `sizes.csv`: what pruning costs, for each model and gate seed.
    - `untrained.csv`, with a model and data: of three untrained models of the same shape, how many encoder heads have a
      role, and their largest share at a neighbouring token and syntactic margin.
    - `survivors.png`: the survivors of each model with their roles, and how many heads with a role are left.
    - In a folder for each model: `encoder`, other scores of the encoder heads without intervals; `roles` by the
      thresholds, before pruning; `survival` with graded roles and the effect of ablation.
    """
    models = {folder.name: tables(folder, output / folder.name) for folder in folders}
    counted = by_model({name: counts(*parts) for name, parts in models.items()})
    counted.to_csv(output / "survivors.csv", index=False)
    ranks = {name: partial(survival) for name, (_, survival) in models.items()}
    by_model(ranks).to_csv(output / "partial.csv", index=False)
    by_model({folder.name: sizes(folder) for folder in folders}).to_csv(output / "sizes.csv", index=False)
    draw(models, counted, drawn, output / "survivors.png")
    if model is not None and data is not None:
        untrained(model, data).to_csv(output / "untrained.csv", index=False)


def tables(folder: Path, output: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Save the lean tables of a model, and return its roles and survival."""
    output.mkdir(parents=True, exist_ok=True)
    survival = io.load_table(folder / "survival.parquet")
    (effects,) = folder.glob("ablation-loss-head-zero*.parquet")
    ablated = io.load_table(effects)
    effect = str(ablated.columns[0])
    survival = lean(frame.join(survival, frame.only(ablated.loc[["enc-self"]], [effect])))
    scores = io.load_table(folder / "heads.parquet")
    roles = lean(hr.roles(scores).loc[["enc-self"]])
    roles = roles[[name for name in roles if not str(name).endswith(".margin")]]
    unseen = (".words", ".baseline", ".low", ".high")
    others = [name for name in map(str, scores) if name not in survival and not name.endswith(unseen)]
    heads = lean(frame.only(scores.loc[["enc-self"]], others))
    for name, table in {"encoder": heads, "survival": survival, "roles": roles}.items():
        io.save_table(table, output / f"{name}.parquet")
    return roles, survival


def by_model(parts: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Concatenate the tables of all models, with a column for the model."""
    return pd.concat([table.assign(model=name) for name, table in parts.items()])[
        ["model", *next(iter(parts.values())).columns]
    ]


def lean(table: pd.DataFrame) -> pd.DataFrame:
    """The table without resamples."""
    table.attrs.pop("resamples", None)
    return table


def counts(roles: pd.DataFrame, survival: pd.DataFrame) -> pd.DataFrame:
    """Observed and expected numbers of heads with roles among the survivors."""
    layers, rows = strata(survival.index), []
    masks = {group: has_role(roles, group) for group in GROUPS}
    masks["any of these"] = np.any([*masks.values()], axis=0)
    for group, mask in masks.items():
        for column in [name for name in survival if str(name).startswith("survival[")]:
            kept = survival[column].to_numpy(float)
            drawn = permuted_values(kept, layers, 9999, np.random.default_rng(0))[:, mask].sum(axis=1)
            low, high = np.quantile(drawn, [0.025, 0.975])
            row = {"roles": group, "heads left": round(float(kept.sum())), "with a role": int(mask.sum())}
            row |= {"survive": round(float(kept[mask].sum()), 2), "expected": round(float(drawn.mean()), 2)}
            rows.append(row | {"low": round(float(low), 2), "high": round(float(high), 2)})
    return pd.DataFrame(rows)


def partial(survival: pd.DataFrame) -> pd.DataFrame:
    """Rank correlations with survival within layers, given covariates."""
    rows = []
    for predictors, covariates in GIVEN:
        for predictor, outcome in product(predictors, [name for name in survival if str(name).startswith("survival[")]):
            x, y, layers, freedom, *_ = residual_ranks(survival, predictor, outcome, covariates)
            z, half = float(fisher_z(x, y)), float(stats.norm.isf(0.025)) / np.sqrt(freedom)
            p = p_value(fisher_z(x, permuted_values(y, layers, 9999, np.random.default_rng(0))), z)
            r = dict(zip(("r", "r.low", "r.high"), np.tanh([z, z - half, z + half]).round(4), strict=True))
            rows.append(
                {"outcome": outcome, "predictor": predictor, "given": ", ".join(covariates), **r, "p": round(p, 4)}
            )
    return pd.DataFrame(rows)


def has_role(roles: pd.DataFrame, *groups: str) -> np.ndarray:
    """Whether each head has a role of one of the groups."""
    names = [name for name in map(str, roles) if name.split("[")[0] in groups and roles[name].dtype == bool]
    return roles[names].any(axis=1).to_numpy(bool)


def untrained(trained: Path, data: Path) -> pd.DataFrame:
    """Roles of untrained models: a row each."""
    model, tokenizer = bilingual.load(trained)
    prepared_data, rows = prepared(data), []
    for seed in range(3):
        fresh, names = loading.untrained(model, seed=seed), ["confidence", "position", "syntax", "rarity", "sink"]
        text = prepared_data.parsed
        scores = hr.score(fresh, tokenizer, text, names, reference=prepared_data.train, n_resamples=0).loc[["enc-self"]]
        graded, held = graded_roles(scores), has_role(hr.roles(scores), *GROUPS)
        largest = {name: round(float(graded[name].max()), 3) for name in ("positional", "syntactic")}
        rows.append({"seed": seed, "with a role": int(held.sum()), **largest})
    return pd.DataFrame(rows)


def sizes(folder: Path) -> pd.DataFrame:
    """The metric at each size and gate seed, and its change against all heads trained as long."""
    tables = [
        io.load_table(place / "sparsity-l0-enc-self.parquet").assign(gates=int(place.name.removeprefix("gates-")))
        for place in sorted(folder.glob("gates-*"))
    ]
    columns = ["gates", "enc-self", "value", "low", "high", "change", "change.low", "change.high", "undecided"]
    return pd.concat(tables)[columns].round(4)


def draw(models: dict[str, tuple[pd.DataFrame, pd.DataFrame]], counted: pd.DataFrame, drawn: int, path: Path) -> None:
    """Draw the survivors of each model with their roles, and how many heads with a role are left."""
    import matplotlib.pyplot as plt

    names, n_rows = list(models), 1 if len(models) < 4 else 2
    n_columns = -(-len(names) // n_rows)
    places = [*names, *"." * (n_rows * n_columns - len(names))]
    mosaic = [[*places[row * n_columns : (row + 1) * n_columns], "share"] for row in range(n_rows)]
    width = [*[1.2] * n_columns, 1.5]
    size = 3.3 * sum(width), (3.4 if n_rows == 1 else 2.6) * n_rows
    figure, by_name = plt.subplot_mosaic(mosaic, figsize=size, layout="constrained", width_ratios=width)
    axes = [by_name[name] for name in (*names, "share")]
    for ax, (name, (roles, survival)) in zip(axes[:-1], models.items(), strict=True):
        share = survival[f"survival[{drawn}]"].rename("share of gate seeds")
        of_roles = held(roles).query("not role.str.startswith('sink')").set_index(["kind", "layer", "head"])["role"]
        texts = of_roles.map(short).groupby(level=[0, 1, 2], observed=True).first().reindex(survival.index).fillna("")
        last = ax is axes[-2]
        hr.plots.heatmap(share, kind="enc-self", vmin=0, vmax=1, annotate=texts, cmap="Blues", cbar=last, ax=ax)
        ax.set_title(f"{name}, {drawn} of {len(survival)} heads left")
    any_role, ax = counted[counted["roles"] == "any of these"], axes[-1]
    left = sorted(set(any_role["heads left"]))
    for name, part in any_role.groupby("model"):
        share = part.sort_values("heads left")
        line = ax.plot(share["heads left"], share["survive"] / share["with a role"], "o-", label=str(name))[0]
        chance = share[["expected", "low", "high"]].div(share["with a role"], axis=0)
        ax.plot(share["heads left"], chance["expected"], ":", color=line.get_color())
        ax.fill_between(share["heads left"], chance["low"], chance["high"], color=line.get_color(), alpha=0.12)
    ax.set(title="heads with a role that survive", xlabel="encoder heads left", ylabel="share", ylim=(0, 1.05))
    ax.set_xscale("log")
    ax.set_xticks(left, map(str, left), minor=False)
    ax.set_xticks([], minor=True)
    ax.legend(
        title="dotted, shaded:\nchance within\nlayers, 95 %", frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)
