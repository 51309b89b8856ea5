"""How often the p of `hr.relate` errs where the role spreads outcomes but does not move them.

Simulated: a role of 2 to 20 of 72 heads, in 6 layers of 12, and outcomes with a mean of 0 whatever the role: normal,
heavy-tailed, skewed, or mostly exactly 0, once or three times as spread with the role. Writes a row per setting and
test: the share of `runs` with p below 0.05 (`p05`), of those in which the test has a p (`given`). `plain` permutes the
mean difference from the other heads of the layer, `Welch` is its t without permutation, and `studentised` permutes this
t; `library` is what `hr.relate` says.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from scipy import stats

from headroles.analysis import intervals
from headroles.analysis.association import _relation

PERMUTATIONS = 199
LAYERS = np.repeat(np.arange(6), 12)
MEMBERS = LAYERS[:, None] == np.arange(6)
TESTS = ("plain", "Welch", "studentised", "library")
OUTCOMES: dict[str, Any] = {
    "normal": lambda random, spread: spread * random.normal(size=72),
    "t of 3": lambda random, spread: spread * random.standard_t(3, 72) / 3**0.5,
    "log-normal": lambda random, spread: spread * (random.lognormal(size=72) - np.exp(0.5)) / 2.16,
    "mostly 0": lambda random, spread: (
        np.where(random.random(72) < 0.5 / spread, spread * random.exponential(size=72), 0.0) - 0.5
    ),
}


def main(output: Annotated[Path, typer.Option()], runs: int = 1000) -> None:
    rows = []
    for how, spread, many in product(OUTCOMES, (1, 3), (2, 3, 4, 5, 6, 10, 20)):
        p = pd.DataFrame([_run(how, spread, many, seed) for seed in range(runs)], columns=TESTS)
        setting = {"outcomes": how, "spread": spread, "heads": many, "runs": runs}
        for test in TESTS:
            known = p[test].dropna()
            small = (known < 0.05).mean() if len(known) else np.nan
            rows.append({**setting, "test": test, "given": len(known) / runs, "p05": small})
    table = pd.DataFrame(rows)
    table.to_csv(output, index=False, float_format="%.4g")
    print(table.pivot(index=["outcomes", "spread", "heads"], columns="test", values=["p05", "given"]).to_string())


def _run(how: str, spread: int, many: int, seed: int) -> list[float]:
    """Return the p of each test for one draw of a role and of outcomes."""
    random = np.random.default_rng(seed)
    held = np.isin(np.arange(72), random.permutation(72)[:many])
    y = np.where(held, OUTCOMES[how](random, spread), OUTCOMES[how](random, 1))
    roles = np.vstack([held, intervals.permuted_roles(held, LAYERS, PERMUTATIONS, seed)])
    mixed = MEMBERS[:, MEMBERS[held].any(0)]
    differences, errors = intervals.contrasts(roles, y, mixed)
    welch = float(2 * stats.t.sf(abs(differences[0] / errors[0]), many - 1)) if errors[0] > 0 else 0.0
    row = _relation(held, np.zeros(72), y, LAYERS, 0, PERMUTATIONS, seed)
    plain = intervals.p_value(differences[1:], float(differences[0]))
    return [plain, welch, intervals.studentised(differences, errors)[1], float(row["p"])]
