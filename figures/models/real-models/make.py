"""The study of PLAN.md: `make.py data`, `tables`, `pictures`; `make.py measure NAME MODEL DATA` is of one model."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headroles as hr
from headroles.data.corpus import Corpus
from headroles.models.loading import untrained

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add, put_rows  # noqa: E402 - of all studies

ASSIGNED, UNTRAINED, LEARNT, TESTED, REPEATED = 500, 200, 800, 100, 100  # sentences
SIZES, SEEDS, BATCH = (0.25, 0.75, 0.5, 0.125), (0, 1, 2), 8  # the primary one first
CLASSES = {"mpnet": "AutoModel"}  # its checkpoint lacks the output layer of the class that it was saved from
ON_REPEATED = ["induction", "duplicate"]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command("measure")
def main(
    name: Annotated[str, typer.Argument(help="Name in the tables: smollm2, gemma3, mpnet.")],
    folder: Annotated[str, typer.Argument(help="Folder of the model.")],
    data: Annotated[Path, typer.Argument(help="Folder with ud/ewt and ud/pud.")],
    work: Annotated[Path, typer.Option(help="Folder of unfinished work.")] = Path(".real-models"),
    sizes: Annotated[int, typer.Option(help="How many of the sizes, the primary one first.")] = len(SIZES),
    retrain: Annotated[bool, typer.Option(help="Retrain instead, and write compare-pruning-seeds.parquet.")] = False,  # noqa: FBT002
) -> None:
    """Score, ablate and prune the heads of a model, relate the three, and write its rows of the tables."""
    logging.basicConfig(level=logging.INFO)
    model, tokenizer = hr.load(folder, cls=CLASSES.get(name))
    ewt = hr.read(data / "ud/ewt/en_ewt-ud-train.conllu.gz", limit=ASSIGNED + LEARNT)
    pud = hr.read(data / "ud/pud/en_pud-ud-test.conllu.gz").sample(TESTED, seed=0)
    work = work / name
    if retrain:
        _retrained(model, tokenizer, ewt[ASSIGNED:], pud, SIZES[:sizes], work / "retrained", name)
        return
    learns = model.get_output_embeddings() is not None
    scores = _scores(model, tokenizer, ewt[:ASSIGNED], work, importance=learns)
    roles = hr.roles(scores)
    random = hr.roles(_scores(untrained(model, seed=0), tokenizer, ewt[:UNTRAINED], work / "untrained"))
    metric = "loss" if learns else "agreement"
    precision = 1.1 if learns else 1.0  # no gradient predicts the agreement: every sentence is measured
    effects = hr.ablate(model, tokenizer, pud, metric=metric, precision=precision, study=work / "ablation")
    put_rows(roles, HERE / "roles.parquet", of=name)
    put_rows(random, HERE / "untrained-roles.parquet", of=name)
    put_rows(effects, HERE / "ablation.parquet", of=name)
    parts = [effects, *([scores[[c for c in scores if str(c).startswith("importance")]]] if learns else [])]
    if learns:
        survival = _survival(model, tokenizer, ewt[ASSIGNED:], work, SIZES[:sizes])
        put_rows(survival, HERE / "survival.parquet", of=name)
        parts.append(survival)
    put_rows(hr.relate(roles, hr.join(*parts)), HERE / "relate.parquet", of=name)
    if learns:
        sizes_lost = _sizes(model, tokenizer, pud, survival, scores["importance"])
        put_rows(sizes_lost.reset_index(), HERE / "sizes.parquet", of=name)


def _scores(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: Corpus, work: Path, *, importance: bool = False
) -> pd.DataFrame:
    """Score the heads on text, and on repeated tokens if the model is a decoder."""
    scores = hr.score(model, tokenizer, text, study=work / "text")
    if importance:
        scores = hr.join(scores, hr.score(model, tokenizer, text, ["importance"], study=work / "importance"))
    if "dec-self" in scores.index.get_level_values("kind"):
        again = hr.repeated_tokens(tokenizer, REPEATED, seed=0)
        seen = [column for column in scores if str(column).startswith(tuple(ON_REPEATED))]  # words repeat little
        repeated = hr.score(model, tokenizer, again, ON_REPEATED, study=work / "repeated")
        scores = hr.join(scores.drop(columns=seen), repeated)
    return scores


def _survival(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: Corpus, work: Path, sizes: tuple[float, ...]
) -> pd.DataFrame:
    """Learn gates with frozen weights: the share of seeds in which each head stays, a column for each size."""
    columns = []
    for size in sizes:
        tables = []
        for seed in SEEDS:
            path = work / f"gates-{size:g}-{seed}.parquet"
            if not path.is_file():
                options = {"epochs": 1, "batch": BATCH}
                gates = hr.L0(freeze="all")
                hr.save_table(
                    hr.prune(model, tokenizer, text, gates, keep=size, remove=False, tune=options, seed=seed), path
                )
            table = hr.load_table(path)
            tables.append(table[[next(c for c in table if str(c).endswith("]"))]])
        mean = tables[0].copy()
        mean.iloc[:, 0] = sum(table.iloc[:, 0] for table in tables) / len(tables)
        columns.append(mean)
    return hr.join(*columns)


def _retrained(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    learnt: Corpus,
    held_out: Corpus,
    sizes: tuple[float, ...],
    work: Path,
    name: str,
) -> None:
    """Prune by importance, by gates and at random, and train what is left on the same text, one seed."""
    ways = ["importance", hr.L0(freeze="all"), "random"]
    options = {"keep": sizes, "seeds": 1, "tune": {"epochs": 1, "batch": BATCH}}
    hr.compare_pruning(model, tokenizer, learnt, held_out, strategies=ways, study=work, **options)
    put_rows(hr.Study(work).load("compare-pruning-seeds"), HERE / "compare-pruning-seeds.parquet", of=name)


def _sizes(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: Corpus,
    survival: pd.DataFrame,
    importance: pd.Series[float],
) -> pd.DataFrame:
    """Measure the loss without the heads that each way prunes, at each size; nothing is retrained."""
    sets = {}
    for size, column in zip(SIZES, survival, strict=False):
        count = len(survival) - round(size * len(survival))
        sets[f"l0 {size:g}"] = [*survival[column].sort_values(kind="stable").index[:count]]
        sets[f"importance {size:g}"] = [*importance.sort_values(kind="stable").index[:count]]
        for seed in SEEDS:
            sets[f"random-{seed} {size:g}"] = [*survival.sample(count, random_state=seed).index]
    return hr.ablate(model, tokenizer, text, sets=sets)


add(app, HERE)

if __name__ == "__main__":
    app()
