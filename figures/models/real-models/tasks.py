"""The tasks of PLAN.md, a decoder at a time; resumes: python figures/models/real-models/tasks.py NAME MODEL DATA."""

from __future__ import annotations

import logging
import sys
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
sys.path.append(str(HERE.parents[1]))
from studies import put_rows  # noqa: E402 - of all studies

TEXTS, TESTED = 100, 100  # of each task, and sentences
PRECISION = 1.1


def main(
    name: Annotated[str, typer.Argument(help="Name in the tables: smollm2, gemma3.")],
    folder: Annotated[str, typer.Argument(help="Folder of the model.")],
    data: Annotated[Path, typer.Argument(help="Folder with ud/pud.")],
    work: Annotated[Path, typer.Option(help="Folder of unfinished work.")] = Path(".real-models"),
) -> None:
    """Measure what the heads of a decoder do in three tasks, and what relevance they carry."""
    logging.basicConfig(level=logging.INFO)
    model, tokenizer = hr.load(folder)
    work = work / name / "tasks"
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
    _save(scores, "task-scores", name)
    _save(untrained_scores, "untrained-retrieval", name)
    ablate = partial(hr.ablate, model, tokenizer, precision=PRECISION)
    effects = [
        ablate(objects, metric=Difference(), study=work / objects.name),
        ablate(pairs, metric="pair_difference", study=work / pairs.name),
    ]
    _save(hr.join(*effects), "task-ablation", name)


def _save(table: pd.DataFrame, table_name: str, name: str) -> None:
    """Save the rows of a model without their resamples, which are large."""
    table.attrs.pop("resamples", None)
    put_rows(table, HERE / f"{table_name}.parquet", of=name)


if __name__ == "__main__":
    typer.run(main)
