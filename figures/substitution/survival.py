"""Does what is explained predict survival of L0 pruning? python figures/substitution/survival.py: survival.csv."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

import headroles as hr

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "specialists"))
from pooling import pooled_survival  # noqa: E402 - of the study that has the survivors

STUDIES, OUTCOME, INDEX = ("minilm", "sst2"), "survival[18]", ["kind", "layer", "head"]
QUESTIONS = (  # predictor, given; the first is the one that was fixed
    ("explained", ("importance", "positional")),
    ("explained", ("importance",)),
    ("positional", ("importance",)),
    ("explained", ()),
    ("positional", ()),
    ("importance", ()),
)


def explained() -> pd.Series[float]:
    """What the best fixed offset explains of each head of the pretrained MiniLM."""
    table = hr.load_table(HERE / "minilm-every-head.parquet")
    alone = table[~table.index.get_level_values("heads").str.startswith("all ")]
    places = alone.index.get_level_values("heads").str.split(":", expand=True)
    index = pd.MultiIndex.from_tuples([(kind, int(layer), int(head)) for kind, layer, head in places], names=INDEX)
    return pd.Series(alone["explained"].to_numpy(), index=index, name="explained")


def main() -> None:
    """Pool the six models that start from MiniLM; their heads are permuted alike."""
    models = {}
    for study in STUDIES:
        heads = pd.read_parquet(HERE.parent / "specialists" / study / "pooled-heads.parquet")
        for name, part in heads.groupby("model"):
            models[f"{study} {name}"] = part.set_index(INDEX).join(explained())
    encoders = dict.fromkeys(models, "MiniLM")
    rows = [
        pooled_survival(models, [OUTCOME], predictors=[predictor], covariates=given, encoders=encoders).assign(
            given=" ".join(given)
        )
        for predictor, given in QUESTIONS
    ]
    kept = ["predictor", "given", "models", "r", "r.low", "r.high", "p", "detectable"]
    table = pd.concat(rows)[kept]
    table.insert(2, "heads", int(explained().notna().sum()))
    table.to_csv(HERE / "survival.csv", index=False)
    print(table)


if __name__ == "__main__":
    main()
