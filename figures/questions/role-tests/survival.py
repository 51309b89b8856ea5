"""Does what is explained predict survival of L0 pruning? It writes survival.csv."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

import headroles as hr

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "specialists"))
sys.path.append(str(HERE.parents[1]))
from pooling import pooled_survival  # noqa: E402 - of the study that has the survivors
from studies import rows_of  # noqa: E402 - of all studies

STUDIES, OUTCOME, INDEX = ("minilm", "sst2"), "survival[18]", ["kind", "layer", "head"]  # 18 of 72: a quarter
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
    table = rows_of(HERE / "tests.parquet", model="minilm", part="every-head")
    alone = table[~table.index.get_level_values("heads").str.startswith("all ")]
    places = alone.index.get_level_values("heads").str.split(":", expand=True)
    index = pd.MultiIndex.from_tuples([(kind, int(layer), int(head)) for kind, layer, head in places], names=INDEX)
    return pd.Series(alone["explained"].to_numpy(), index=index, name="explained")


def of_mpnet() -> dict[str, pd.DataFrame]:
    """The heads of the classifier that starts from MPNet, a table for each seed of its gates."""
    table = hr.load_table(HERE / "mpnet-survival.parquet")
    return {f"gates {seed}": table.assign(**{OUTCOME: table[f"survival[quarter {seed}]"]}) for seed in (0, 1)}


def main() -> None:
    """Pool the six models that start from MiniLM, those of MPNet, and all; heads of an encoder are permuted alike."""
    models = {}
    for study in STUDIES:
        heads = rows_of(HERE.parent / "specialists/heads.parquet", study=study)
        for name, part in heads.groupby("model"):
            models[f"{study} {name}"] = part.set_index(INDEX).join(explained())
    others = of_mpnet()
    mean = next(iter(others.values())).assign(
        **{OUTCOME: sum(table[OUTCOME] for table in others.values()) / len(others)}
    )
    rows = []
    for encoder, those in {"MiniLM": models, "MPNet": others, "both": models | {"MPNet": mean}}.items():
        encoders = {name: "MiniLM" if name in models else "MPNet" for name in those}
        for predictor, given in QUESTIONS:
            row = pooled_survival(those, [OUTCOME], predictors=[predictor], covariates=given, encoders=encoders)
            rows.append(row.assign(encoder=encoder, given=" ".join(given)))
    kept = ["encoder", "predictor", "given", "models", "r", "r.low", "r.high", "p", "detectable"]
    table = pd.concat(rows)[kept]
    table["models"] = table["encoder"].map({"MiniLM": 6, "MPNet": 1, "both": 7})  # of MPNet two seeds of gates
    table.to_csv(HERE / "survival.csv", index=False)
    print(table)


if __name__ == "__main__":
    main()
