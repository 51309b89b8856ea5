"""The translators of PLAN.md: OMP_NUM_THREADS=1 python figures/questions/role-tests/translators.py NAME FOLDER DATA."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from make import ROLES, TESTS, _patterns, put_rows

import headroles as hr
from headroles.data.corpus import Corpus
from headroles.models.loading import untrained

TESTED, WRITTEN = 500, 200  # pairs by the loss, and by BLEU


def main(
    name: Annotated[str, typer.Argument(help="Name in the tables: translator, the demo's, or marian.")],
    folder: Annotated[str, typer.Argument(help="The model: translator, or the folder of the Marian.")],
    data: Annotated[Path, typer.Argument(help="Folder with ud/pud and multi30k.")],
    work: Annotated[Path, typer.Option(help="Folder of unfinished sweeps.")] = Path(".substitution"),
) -> None:
    """Assign roles on pairs, test them on others by the loss and, those of the encoder, by BLEU; write the tables."""
    logging.basicConfig(level=logging.INFO)
    model, tokenizer = hr.load(folder)
    given, other = _pairs(name, data)
    roles = hr.roles(hr.score(model, tokenizer, given, study=work / name / "roles"))
    put_rows(roles, ROLES, model=name)
    patterns = _patterns(roles, is_repeated=False)
    encoder = {head: listed for head, listed in patterns.items() if head[0] == "enc-self"}
    tests: list[tuple[str, Any, Any, Corpus]] = [
        ("", model, patterns, other),
        ("-untrained", untrained(model, seed=0), patterns, other),
        *([("-bleu", model, encoder, other.sample(WRITTEN, seed=0))] if encoder else []),
    ]
    for part, tested, what, corpus in tests:
        metric, place = "bleu" if part == "-bleu" else "loss", work / f"{name}{part}"
        table: pd.DataFrame = hr.test_roles(tested, tokenizer, corpus, what, metric=metric, study=place)
        put_rows(table, TESTS, model=name, part=part.removeprefix("-"))


def _pairs(name: str, data: Path) -> tuple[Corpus, Corpus]:
    """Return the pairs on which roles are assigned, and those on which they are tested."""
    if name == "marian":
        captions = data / "multi30k"
        given = hr.read(captions / "test_2017_flickr.en.gz", captions / "test_2017_flickr.de.gz")
        other = hr.read(captions / "test_2016_flickr.en.gz", captions / "test_2016_flickr.de.gz")
        return given, other.sample(TESTED, seed=0)
    pud = hr.read(data / "ud/pud/en_pud-ud-test.conllu.gz", data / "ud/pud/de_pud-ud-test.conllu.gz")
    return pud[:TESTED], pud[TESTED:]


if __name__ == "__main__":
    typer.run(main)
