"""Do the heads with a role survive in one pruned model? `python tests/benchmarks/survivors.py FOLDER --output STUDY`.

FOLDER is that of `prune_arm` and of `headroles ablate`. Written into the study:

- `encoder`: other scores of the encoder heads, without intervals.
- `roles`: roles of the encoder heads by the thresholds, before pruning.
- `survivors.csv`, a row per group of roles and number of heads left: how many heads have such a role, how many of them
  survive (mean over gate seeds), and mean and central 95 % of that number over 9,999 permutations of survival within
  layers, that is if the gates had kept as many heads of each layer, but others.
- `predictors`: how well graded roles, importance and the effect of ablation rank the survivors (`hr.predict_outcome`).
- `partial.csv`: the same for positional and syntactic heads and importance, given others (Fisher's z; p by permutation
  within layers, Freedman and Lane).
- `survival`: graded roles and survival of each head; `sizes.csv`: what pruning costs, for each gate seed.
- `untrained.csv`, with `--model MODEL --data PREPARED`: of three untrained models of the same shape, how many encoder
  heads have a role, and their largest share at a neighbouring token and syntactic margin.
- `survivors.png`: the roles beside the survivors.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

import headroles as hr
from headroles.analysis.intervals import p_value
from headroles.analysis.pooling import fisher_z, graded_roles, residual_ranks
from headroles.analysis.resampling import permuted_values, strata
from headroles.experiments import prepared
from headroles.models import loading
from headroles.tables import frame, io

GROUPS = ("positional", "syntactic", "rare")
GIVEN = [  # predictors, and covariates
    (("positional", "syntactic"), ("confidence", "sink")),
    (("positional", "syntactic"), ("importance",)),
    (("importance",), ("positional",)),
]
DRAWN = 12  # heads left in the figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="trained model, whose shape untrained ones have")
    parser.add_argument("--data", type=Path, help="folder of headroles prepare")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    survival = io.load_table(given.folder / "survival.parquet")
    (effects,) = given.folder.glob("ablation-loss-single-zero*.parquet")
    ablated = io.load_table(effects)
    effect = str(ablated.columns[0])
    survival = lean(frame.join(survival, frame.only(ablated.loc[["enc-self"]], [effect])))
    scores = io.load_table(given.folder / "heads.parquet")
    roles = lean(hr.roles(scores).loc[["enc-self"]])
    unseen = (".words", ".baseline", ".low", ".high")
    others = [name for name in map(str, scores) if name not in survival and not name.endswith(unseen)]
    heads = lean(frame.only(scores.loc[["enc-self"]], others))
    predictors = hr.predict_outcome(survival, survival, names=["positional", "syntactic", "importance", effect])
    for name, table in {"encoder": heads, "survival": survival, "roles": roles, "predictors": predictors}.items():
        io.save_table(table, given.output / f"{name}.parquet")
    survivors(roles, survival).to_csv(given.output / "survivors.csv", index=False)
    partial(survival).to_csv(given.output / "partial.csv", index=False)
    sizes(given.folder).to_csv(given.output / "sizes.csv", index=False)
    draw(roles, survival, given.output / "survivors.png")
    if given.model is not None:
        untrained(given.model, given.data).to_csv(given.output / "untrained.csv", index=False)


def lean(table: pd.DataFrame) -> pd.DataFrame:
    """The table without resamples."""
    table.attrs.pop("resamples", None)
    return table


def survivors(roles: pd.DataFrame, survival: pd.DataFrame) -> pd.DataFrame:
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
            x, y, layers, freedom = residual_ranks(survival, predictor, outcome, covariates)
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
    model, tokenizer = hr.load(trained)
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
        io.load_table(place / "sizes-l0-enc-self.parquet").assign(gates=int(place.name.removeprefix("gates-")))
        for place in sorted(folder.glob("gates-*"))
    ]
    columns = ["gates", "enc-self", "value", "low", "high", "change", "change.low", "change.high", "undecided"]
    return pd.concat(tables)[columns].round(4)


def draw(roles: pd.DataFrame, survival: pd.DataFrame, path: Path) -> None:
    """Draw roles and survivors side by side."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11.5, 3.6), layout="constrained")
    hr.plots.roles(roles, kind="enc-self", ax=axes[0])
    share = survival[f"survival[{DRAWN}]"].rename("share of gate seeds")
    hr.plots.heatmap(share, kind="enc-self", vmin=0, vmax=1, ax=axes[1])
    axes[0].set_title("roles before pruning")
    axes[1].set_title(f"which of {len(survival)} heads survive, {DRAWN} left")
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
