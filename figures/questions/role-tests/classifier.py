"""MPNet on SST-2, for `survival.py`: python figures/questions/role-tests/classifier.py MPNET DATA; can be resumed."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from make import CLASSES, FEWER, HERE, assigned, best_offset

import headroles as hr
from headroles.papers.workflow import GATES
from headroles.tables import frame

sys.path.insert(0, str(HERE.parent / "specialists"))
from pooling import graded_roles  # noqa: E402 - of the study of the other models

LEARNT, LEFT, SEEDS = 6000, 0.25, (0, 1)  # sentences, share of heads, seeds of the gates
TUNE = {"epochs": 1, "batch": 32, "rate": 3e-5}
NAME = "mpnet"


def main(
    folder: Annotated[str, typer.Argument(help="Folder of MPNet base.")],
    data: Annotated[Path, typer.Argument(help="Folder with glue/SST-2, ud/ewt and ud/pud.")],
    work: Annotated[Path, typer.Option(help="Folder of unfinished work.")] = Path(".substitution"),
) -> None:
    """Train the classifier, prune it, and write `explained`, graded roles, importance and survival of its heads."""
    logging.basicConfig(level=logging.INFO)
    encoder = hr.load(folder, cls=CLASSES[NAME])
    scores, _ = assigned(*encoder, data, work / NAME)
    pud = hr.read(data / "ud/pud/en_pud-ud-test.conllu.gz").sample(FEWER, seed=0)
    offsets = {(*head,): best_offset(scores, head) for head in scores.index}
    effects = {
        name: hr.ablate(*encoder, pud, metric="agreement", replacement=given, study=work / NAME / name).iloc[:, 0]
        for name, given in (("removed", "zero"), ("role_pattern", offsets))
    }
    train, dev = (hr.read(data / f"glue/SST-2/{part}.tsv.gz") for part in ("train", "dev"))
    learnt, place = train.sample(LEARNT, seed=0), work / NAME / "classifier"
    if not (place / "config.json").is_file():
        hr.train(*hr.load_classifier(folder, learnt), learnt, place, seed=0, warmup_steps=20, **TUNE)
    hr.evaluate(*hr.load(place), dev, ["accuracy", "loss"]).to_csv(HERE / f"{NAME}-classifier.csv")
    importance = hr.score(*hr.load(place), dev, ["importance"], study=place)
    survived = {f"survival[quarter {seed}]": _survival(place, learnt, seed) for seed in SEEDS}
    table = frame.table(
        {
            "explained": 1 - effects["role_pattern"] / effects["removed"],
            **survived,
        },
        frame.rows(scores),
        f"mpnet_classifier|{importance.attrs['signatures']['importance']}",
    )
    hr.save_table(hr.join(table, graded_roles(scores), importance[["importance"]]), HERE / f"{NAME}-survival.parquet")


def _survival(place: Path, learnt: hr.Corpus, seed: int) -> pd.Series[float]:
    """Return which heads the gates of a seed keep, while the weights are trained along."""
    path = place / f"gates-{seed}.parquet"
    if not path.is_file():
        options = TUNE | {"warmup_steps": 20}
        gates = hr.L0(rate=GATES)
        hr.save_table(hr.prune(*hr.load(place), learnt, gates, keep=LEFT, remove=False, tune=options, seed=seed), path)
    table = hr.load_table(path)
    return table[next(column for column in table if str(column).endswith("]"))]


if __name__ == "__main__":
    typer.run(main)
