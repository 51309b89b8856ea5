"""Do causal measures of a head say the same? Shapley values, AtP* and ablation on a toy translator."""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

import headroles as hr
from headroles.analysis.intervals import rank_correlation
from headroles.data.corpus import Corpus

sys.path.append(str(Path(__file__).resolve().parents[2] / "papers" / "replicate"))

from toy_translator import Settings, translator  # noqa: E402

SETTINGS = Settings(layers=2, width=48, heads=4, steps=900, pairs=20_000, longest=8, vocabulary=900)


def measured(folder: Path, sentences: int, n_permutations: int) -> pd.DataFrame:
    """All measures of all heads, each with the sign by which a head that helps has a large value."""
    model, tokenizer = translator(folder, SETTINGS)
    whole = hr.synthetic_corpus(10 * sentences, seed=7, translated=True)
    short = [one for one in whole if len(one.heads) <= SETTINGS.longest][:sentences]
    given = model, tokenizer, Corpus("toy pairs", tuple(short))
    print(hr.evaluate(*given, ["loss"]).round(3).to_string())
    shapley = hr.shapley_values(*given, n_permutations=n_permutations, truncation=0.05, n_resamples=200)
    patching = [hr.AttributionPatching(drop=drop, objective="loss") for drop in (False, True)]
    scores = hr.score(*given, ["importance", "sink", *patching], n_resamples=0)
    table = pd.DataFrame(
        {
            "ablation": hr.ablate(*given, n_resamples=0)["ablation[loss]"],
            "Shapley": -shapley["shapley[loss]"],
            "AtP": -scores["attribution[AtP]"],
            "AtP* size": scores["attribution[AtP*].size"],
            "importance": scores["importance"],
            "no sink": -scores["sink[first]"],
        }
    )
    print(table.round(3).to_string())
    return table


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """Spearman's correlation of each two measures over heads, with its 95 % interval."""
    rows = []
    varied = [name for name in table if table[name].nunique() > 1]
    for first, second in combinations(varied, 2):
        value = float(table[first].corr(table[second], method="spearman"))
        low, high = rank_correlation(value, len(table))
        rows.append((first, second, value, low, high))
    return pd.DataFrame(rows, columns=["first", "second", "correlation", "low", "high"])


def main(
    folder: Annotated[Path, typer.Option(help="Of the translator, which is trained if absent.")],
    output: Annotated[Path, typer.Option()],
    sentences: int = 100,
    permutations: int = 20,
) -> None:
    table = compared(measured(folder, sentences, permutations))
    print(table.round(2).to_string())
    table.to_csv(output, index=False, float_format="%.4f")
