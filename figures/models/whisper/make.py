"""Who listens in Whisper base, and which heads survive? `make.py data`, `tables`, `pictures`: see PLAN.md."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import typer
from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headroles as hr
from headroles.models.masking import Head
from headroles.patterns import Alignment

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add, put_rows, rows_of, synthetic_speech  # noqa: E402 - of all studies

HEADS, TESTS, PRUNED = HERE / "heads.parquet", HERE / "tests.parquet", HERE / "pruned.csv"
SCORES = ("confidence", "position", "distance", "importance", "links", hr.scores.Links(at="next"))
SIZES, SEEDS, HELD_OUT = (108, 72, 36, 18), (0, 1, 2), 19
TUNE = {"epochs": 5, "batch": 4, "rate": 1e-5, "save_strategy": "no"}
Parts = tuple[PreTrainedModel, PreTrainedTokenizerBase]
Model = Annotated[Path, typer.Argument(help="Folder of Whisper base.")]
Speech = Annotated[Path, typer.Argument(help="Folder with human.jsonl.")]
Synthetic = Annotated[Path, typer.Argument(help="Folder with meta.json and its sounds.")]
Work = Annotated[Path, typer.Option(help="Folder of unfinished work.")]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def tables(
    model: Model,
    speech: Speech,
    synthetic: Synthetic,
    work: Work = Path(".whisper"),
    limit: Annotated[int, typer.Option(help="Utterances of each kind; fewer only to try the script.")] = 99,
) -> None:
    """Score, ablate, test and prune (eight hours of one core, in units below one); resumes if stopped."""
    parts = hr.load(model, target_lang="en")
    corpora = {"human": hr.read(speech / "human.jsonl")[:limit], "synthetic": synthetic_speech(synthetic)[:limit]}
    for name, corpus in corpora.items():
        scores = hr.score(*parts, corpus, [*SCORES], study=work / name)
        put_rows(hr.join(scores, hr.ablate(*parts, corpus, metric="loss", study=work / name)), HEADS, corpus=name)
    for (name, corpus), at in product(corpora.items(), ("read", "next")):
        patterns: dict[Head, list[Alignment]] = {
            (*head,): [Alignment(at)] for head in rows_of(HEADS, corpus=name).index if head[0] == "cross"
        }
        put_rows(hr.test_roles(*parts, corpus, patterns, study=work / f"{name}-{at}"), TESTS, corpus=name, at=at)
    human = [*corpora["human"]]
    learnt = hr.Corpus("learnt", (*corpora["synthetic"], *human[:-HELD_OUT]))
    for row in _prunings(parts, learnt, hr.Corpus("held out", tuple(human[-HELD_OUT:])), work):
        done = pd.read_csv(PRUNED) if PRUNED.exists() else pd.DataFrame()
        pd.concat([done, pd.DataFrame([row])]).to_csv(PRUNED, index=False, float_format="%.5g", lineterminator="\n")


def _prunings(parts: Parts, learnt: hr.Corpus, held_out: hr.Corpus, work: Path) -> Iterator[dict[str, object]]:
    """Yield what each pruning keeps, and what the smaller model loses; not those that the table has."""
    done = pd.read_csv(PRUNED) if PRUNED.exists() else pd.DataFrame(columns=["way", "heads", "seed"])
    seen = {*done[["way", "heads", "seed"]].itertuples(index=False, name=None)}
    ways = {
        "gates": (SEEDS, SIZES, lambda: hr.L0(freeze="all")),
        "gates and weights": (SEEDS, SIZES, hr.L0),
        "importance": ((0,), SIZES, lambda: "importance"),
        "random": (SEEDS, SIZES, lambda: "random"),
        "weights": ((0,), (144,), lambda: None),
        "none": ((0,), (144,), lambda: None),
    }
    for way, (seeds, sizes, strategy) in ways.items():
        for heads, seed in product(sizes, seeds):
            if (way, heads, seed) in seen:
                continue
            model, tokenizer = copy.deepcopy(parts[0]), parts[1]
            kept = ""
            if strategy() is not None:
                tune = {"tune": TUNE} if way.startswith("gates") else {}
                table = hr.prune(model, tokenizer, learnt, strategy(), keep=heads, seed=seed, **tune)
                column = next(name for name in table if str(name).endswith("]"))
                kept = " ".join(f"{kind}:{layer}:{head}" for kind, layer, head in table.index[table[column] == 1])
            elif way == "weights":
                hr.train(model, tokenizer, learnt, work / "trained", seed=seed, **TUNE)
            values = hr.evaluate(model, tokenizer, held_out, ["loss", "wer"])["value"]
            yield {"way": way, "heads": heads, "seed": seed, **values.to_dict(), "kept": kept}


def survival(way: str, heads: int) -> pd.Series[float]:
    """Return the share of seeds that keep each head."""
    rows = pd.read_csv(PRUNED).query("way == @way and heads == @heads")
    index = rows_of(HEADS, corpus="human").index
    names = [":".join(map(str, head)) for head in index]
    kept = np.array([[name in {*row.split()} for name in names] for row in rows["kept"]])
    return pd.Series(kept.mean(0), index, name=f"survival[{way} {heads}]")


def drawn_kinds() -> Figure:
    """Draw how many heads of each kind are left, by gates and at random."""
    figure, ax = plt.subplots(figsize=(5, 3.4), layout="constrained")
    rows = pd.read_csv(PRUNED).query("way == 'gates'")
    for place, kind in enumerate(("enc-self", "dec-self", "cross")):
        left = rows.assign(left=rows["kept"].str.count(kind)).groupby("heads")["left"].mean()
        ax.plot([144, *left.index[::-1]], [48, *left[::-1]], "o-", color=f"C{place}", label=kind)
    ax.plot([144, 0], [48, 0], color="0.6", ls=":", label="a third of all")
    ax.set(xlabel="heads left of 144", ylabel="of this kind, mean of three seeds", xlim=(148, 0))
    ax.legend(frameon=False)
    return figure


def drawn_heads() -> Figure:
    """Draw what the loss loses without each head, by kind and layer."""
    effects = rows_of(HEADS, corpus="human")["ablation[loss]"]
    kinds = ("enc-self", "dec-self", "cross")
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for ax, kind in zip(axes, kinds, strict=True):
        hr.plots.heatmap(effects, kind=kind, ax=ax)
    return figure


add(app, HERE, tables=False)

if __name__ == "__main__":
    app()
