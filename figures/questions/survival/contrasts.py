"""The contrasts of the study: survival of roles against their controls, by exact permutation within layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd
from assigned import FREE, WAYS, draw
from numpy.typing import NDArray
from scipy import stats

from headroles.analysis.intervals import holm

SIZES, GATE_SEEDS = (24, 12, 6), (0, 1, 2)
PRIMARY = 12  # heads left of the encoder's 48
ALL, FAR, PERMUTED = "all", "3 to 5 away", "permuted"  # layers, by the position's control


def exchanged(differences: Sequence[int]) -> float:
    """Return the exact two-sided p value of a sum of integers if the sign of each is by chance.

    Within a layer it was drawn which of two heads has the role. If that does not matter, each difference could as well
    have the other sign.
    """
    reach = int(np.abs(differences).sum())
    chance = np.zeros(2 * reach + 1)  # of each sum from -reach to reach
    chance[reach] = 1
    for difference in map(int, np.abs(differences)):
        chance = (np.roll(chance, difference) + np.roll(chance, -difference)) / 2
    sums = np.arange(-reach, reach + 1)
    return float(min(1.0, chance[np.abs(sums) >= abs(int(np.sum(differences)))].sum()))


def contrasts(heads: pd.DataFrame) -> pd.DataFrame:
    """Compare each role with its control, and with the free heads of its layer.

    Args:
        heads: A row per head of each model, with the columns of `assigned.draw`, `model`, and `survival[SIZE SEED]`.

    Returns:
        A table with a row per number of heads left and role, and two more of positions, by the layers with each kind of
        control (`controls`): the shares that survive; `difference` from the control, with `.low` and `.high`, a 95 %
        interval by Student's t over models (blank for one, or if all models agree); `p` by exact permutation within
        layers; `p.holm` over the three roles, blank for the two rows more; and `against free`, the difference from free
        heads, with `.low` and `.high`.
    """
    rows = []
    cases = [(role, ALL) for role in WAYS]
    is_far = heads["shift"].ne(0).groupby([heads["model"], heads["layer"]]).transform("any")
    cases += [("position", FAR), ("position", PERMUTED)] if is_far.nunique() > 1 else []
    for size, (role, controls) in product(SIZES, cases):
        left = heads[[f"survival[{size} {seed}]" for seed in GATE_SEEDS]].sum(axis=1)
        table = heads.assign(left=left)[
            heads["role"].isin([role, FREE]) & ((controls == ALL) | (is_far == (controls == FAR)))
        ]
        cells = table.groupby(["model", "layer", "role", "control"])["left"].mean().unstack(["role", "control"])
        with_role, control, free = cells[role, False], cells[role, True], cells[FREE, False]
        found = {"keep": size, "role": role, "controls": controls, "survive": with_role.mean()}
        found |= {"control": control.mean(), "free": free.mean(), **_interval(with_role - control, "difference")}
        found |= _interval(with_role - free, "against free")
        rows.append(found | {"p": exchanged((with_role - control).astype(int).tolist())})
    table = pd.DataFrame(rows)
    shares = [column for column in table if column not in ("keep", "role", "controls", "p")]
    table[shares] /= len(GATE_SEEDS)
    planned = table[table["controls"] == ALL].groupby("keep")["p"]
    table["p.holm"] = planned.transform(lambda p: holm(p.to_numpy()))
    return table


def _interval(differences: pd.Series[float], name: str) -> dict[str, float]:
    by_model = differences.groupby("model").mean()
    mean, half = by_model.mean(), np.nan
    if by_model.nunique() > 1:  # no variance is no interval
        half = stats.t.ppf(0.975, len(by_model) - 1) * by_model.sem()
    return {name: mean, f"{name}.low": mean - half, f"{name}.high": mean + half}


def power(
    advantages: Sequence[float] = (0, 0.5, 0.75, 1, 1.5),
    models: Sequence[int] = (4, 8, 12),
    *,
    runs: int = 1000,
    noise: float = 0.7,
) -> pd.DataFrame:
    """Simulate how often the primary contrast of one role is found, if the heads compete for their places.

    Each head has a worth from a normal distribution of standard deviation 1; one with the first role has `advantage`
    more. Each seed of gates adds noise and keeps the worthiest quarter.

    Returns:
        A table with a row per number of models and advantage: `difference` of survival, its `sd` within layers, and
        `power`: the share of runs in which p is below .05 / 3, Holm's first and strictest step.
    """
    generator, rows = np.random.default_rng(0), []
    drawn_heads = np.stack([_of_first_role(draw(seed)) for seed in range(max(models))])
    for count in models:
        for advantage in advantages:
            found, differences = 0, []
            for _ in range(runs):
                difference = _simulated(drawn_heads[:count], advantage, noise, generator)
                found += exchanged(difference.ravel().tolist()) < 0.05 / len(WAYS)
                differences.append(difference / len(GATE_SEEDS))
            drawn = np.stack(differences)
            rows.append((count, advantage, drawn.mean(), drawn.std(), found / runs))
    return pd.DataFrame(rows, columns=["models", "advantage", "difference", "sd", "power"])


def _of_first_role(table: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which heads of each layer have the first role, and which its control: [2, layer, head]."""
    first = table["role"].eq(next(iter(WAYS)))
    shape = table["layer"].nunique(), -1
    return np.stack([(first & ~table["control"]).to_numpy(), (first & table["control"]).to_numpy()]).reshape(2, *shape)


def _simulated(
    drawn: NDArray[np.bool_], advantage: float, noise: float, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Return how many seeds keep the head with the role more than its control: [model, layer]."""
    role, control = drawn[:, 0], drawn[:, 1]  # [model, layer, head]
    worth = generator.normal(size=role.shape) + advantage * role
    found = worth + noise * generator.normal(size=(len(GATE_SEEDS), *role.shape))
    threshold = np.sort(found.reshape(*found.shape[:2], -1), axis=-1)[..., -PRIMARY]
    left = (found >= threshold[..., None, None]).sum(0)  # [model, layer, head]
    return left[role].reshape(role.shape[:2]) - left[control].reshape(role.shape[:2])
