"""The tasks of PLAN.md, a decoder at a time; resumes: python figures/real-models/tasks.py NAME MODEL DATA."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

import headroles as hr
from headroles.models.loading import untrained
from headroles.scores.gradients.direct import Difference, Direct
from headroles.scores.gradients.relevance import Relevance

HERE = Path(__file__).parent
TEXTS, TESTED = 100, 100  # of each task, and sentences
PRECISION = 1.1


def main(
    name: Annotated[str, typer.Argument(help="Name in the tables: smollm2, gemma3.")],
    folder: Annotated[str, typer.Argument(help="Folder of the model.")],
    data: Annotated[Path, typer.Argument(help="Folder with ud/pud.")],
    work: Annotated[Path, typer.Option(help="Folder of unfinished work.")] = Path(".real-models"),
) -> None:
    """Measure what the heads of a decoder do in three tasks, what their groups cost and what relevance they carry."""
    logging.basicConfig(level=logging.INFO)
    model, tokenizer = hr.load(folder)
    work, output = work / name / "tasks", HERE / name
    output.mkdir(exist_ok=True)
    needles, objects = hr.needles(tokenizer, TEXTS), hr.indirect_objects(tokenizer, TEXTS)
    pairs = hr.minimal_pairs(TEXTS, phenomenon="attractor")
    pud = hr.read(data / "ud/pud/en_pud-ud-test.conllu.gz").sample(TESTED, seed=0)
    measured = {
        needles: ["retrieval"],
        objects: [Direct(objective=Difference())],
        pud: [Relevance(steps="sum"), Relevance(steps="sum", by="logit")],
    }
    scores = hr.join(
        *(hr.score(model, tokenizer, text, named, study=work / text.name) for text, named in measured.items())
    )
    untrained_scores = hr.score(untrained(model, seed=0), tokenizer, needles, ["retrieval"], study=work / "untrained")
    _save(scores, output / "task-scores.parquet")
    _save(untrained_scores, output / "untrained-retrieval.parquet")
    _save(hr.Study(work / pud.name).load("conservation-cp"), output / "conservation.parquet")
    able = [
        hr.evaluate(model, tokenizer, objects, [Difference()]),
        hr.evaluate(model, tokenizer, pairs, ["pair_accuracy", "pair_difference"]),
    ]
    pd.concat(able).to_csv(output / "tasks.csv")
    ablate = partial(hr.ablate, model, tokenizer, precision=PRECISION)
    effects = [
        ablate(objects, metric=Difference(), study=work / objects.name),
        ablate(pairs, metric="pair_difference", study=work / pairs.name),
    ]
    _save(hr.join(*effects), output / "task-ablation.parquet")
    _save(ablate(pud, unit="group", study=work / "groups"), output / "groups.parquet")


def _save(table: pd.DataFrame, path: Path) -> None:
    """Save a table without its resamples, which are large."""
    table.attrs.pop("resamples", None)
    hr.save_table(table, path)


if __name__ == "__main__":
    typer.run(main)
