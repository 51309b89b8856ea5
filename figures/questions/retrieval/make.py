"""Do three scores of retrieval heads name the same heads? `make.py data`, `tables`, `pictures`."""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import typer
from matplotlib.figure import Figure
from scipy.stats import spearmanr

import headroles as hr
from headroles.tables.frame import resamples_of

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add  # noqa: E402 - of all studies

SCORES = {  # by its column: who proposed it, and what it asks
    "retrieval": "copied (Wu et al. 2024)",
    "passage": "where the question looks (QRHead)",
    "contribution": "written into the answer (LOCOS)",
}
TEXTS, LENGTH, FIRST = 60, 500, 10
Model = Annotated[Path, typer.Argument(help="Folder of SmolLM2-135M-Instruct.")]
Trees = Annotated[Path, typer.Argument(help="UD English-EWT, train: the haystacks.")]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def tables(model: Model, trees: Trees) -> None:
    """Score all heads on hidden facts, also by each half of the texts (a quarter of an hour of one core)."""
    parts = hr.load(model)
    facts = hr.hidden_facts(parts[1], TEXTS, length=LENGTH, haystack=hr.read(trees))
    whole, *halves = (
        hr.score(*parts, some, [*SCORES], n_resamples=1000 if some is facts else 0)
        for some in (facts, hr.Corpus("even", facts.sentences[::2]), hr.Corpus("odd", facts.sentences[1::2]))
    )
    drawn = {name: resamples_of(whole, name) for name in SCORES}
    whole.attrs.pop("resamples", None)
    hr.save_table(whole, HERE / "heads.parquet")
    rows = []
    for one, other in combinations(SCORES, 2):
        pairs = zip(drawn[one].T, drawn[other].T, strict=True)
        low, high = np.quantile([spearmanr(*pair, nan_policy="omit").statistic for pair in pairs], [0.025, 0.975])
        rows.append(_agreement(whole[one], whole[other], one, other) | {"spearman.low": low, "spearman.high": high})
    rows += [_agreement(halves[0][name], halves[1][name], name, f"{name}, other half of the texts") for name in SCORES]
    table = pd.DataFrame(rows)
    table.to_csv(HERE / "agreement.csv", index=False, float_format="%.4g", lineterminator="\n")
    print(table.to_string(index=False))


def _agreement(one: pd.Series, other: pd.Series, name: str, against: str) -> dict[str, object]:
    """Compare two scores of the same heads: by ranks, and by how many of the ten largest are the same."""
    same = {*one.nlargest(FIRST).index} & {*other.nlargest(FIRST).index}
    first = " ".join(f"L{layer}H{head}" for _, layer, head in sorted(same))
    spearman = one.corr(other, method="spearman")
    return {"score": name, "against": against, "spearman": spearman, f"of first {FIRST}": len(same), "heads": first}


def drawn() -> Figure:
    """Draw the heads by pairs of scores."""
    table = hr.load_table(HERE / "heads.parquet")
    pairs = [*combinations(SCORES, 2)]
    figure, axes = plt.subplots(1, len(pairs), figsize=(10, 3.4), layout="constrained")
    for ax, (x, y) in zip(axes, pairs, strict=True):
        ax.scatter(table[x], table[y], s=9, color="0.6", linewidths=0)
        first = table[x].nlargest(FIRST).index.union(table[y].nlargest(FIRST).index)
        both = table[x].nlargest(FIRST).index.intersection(table[y].nlargest(FIRST).index)
        ax.scatter(table.loc[first, x], table.loc[first, y], s=16, color="C1", label=f"first {FIRST} by one score")
        ax.scatter(table.loc[both, x], table.loc[both, y], s=22, color="C0", label="by both")
        for head in both:
            ax.annotate(
                f"L{head[1]}H{head[2]}", table.loc[head, [x, y]], (3, 3), textcoords="offset points", fontsize=6
            )
        ax.set(xlabel=SCORES[x], ylabel=SCORES[y])
    axes[0].legend(fontsize=7, frameon=False)
    return figure


add(app, HERE, tables=False)

if __name__ == "__main__":
    app()
