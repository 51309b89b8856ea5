"""The study of PLAN.md: `make.py data`, `tables`, `pictures`; `make.py measure PART ENCODER DATA` is one part."""

from __future__ import annotations

import logging
import math
import sys
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import torch
import typer
from again import ranked_again

import headroles as hr
from headroles.ablation import curves
from headroles.pruning.comparison import compare_pruning
from headroles.tables.frame import signed

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add, put_rows  # noqa: E402 - of all studies

FILES = {"MRPC": ("msr_paraphrase_train", "msr_paraphrase_test"), "SST-2": ("train", "dev")}
SEEDS, HALF, RANKED, DRAWS = (0, 1, 2), 0.5, 1000, 3
TUNE = {"epochs": 3, "batch": 32, "rate": 5e-5, "warmup_steps": 20}
STRATEGIES = ("random", "importance", "bottom", "middle", "top")


def main(
    part: Annotated[Literal["train", "michel", "budhraja"], typer.Argument(help="Part of the study.")],
    folder: Annotated[str, typer.Argument(help="Folder of the encoder.")],
    data: Annotated[Path, typer.Argument(help="Folder with glue.")],
    task: Annotated[Literal["MRPC", "SST-2"], typer.Option(help="Task of GLUE.")] = "MRPC",
    train_limit: Annotated[int | None, typer.Option(help="Train on so many texts, drawn at random.")] = None,
    test_limit: Annotated[int | None, typer.Option(help="Measure on so many texts, drawn at random.")] = None,
    work: Annotated[Path, typer.Option(help="Folder of the trained classifiers.")] = Path(".minilm-mrpc"),
    seeds: Annotated[list[int], typer.Option(help="Seeds of this run.")] = [*SEEDS],  # noqa: B006
    study: Annotated[Path, typer.Option(help="Folder of the tables.")] = HERE,
    strategies: Annotated[list[str], typer.Option(help="Strategies that select half of the heads.")] = [*STRATEGIES],  # noqa: B006
) -> None:
    """Train the classifiers; ablate their heads; or prune that of seed 0 and retrain."""
    logging.basicConfig(level=logging.INFO)
    every, rest = (hr.read(data / f"glue/{task}/{name}.tsv.gz") for name in FILES[task])
    train, test, total = every.sample(train_limit, seed=0), rest.sample(test_limit, seed=0), len(every)
    if part == "train":
        for seed in seeds:
            torch.manual_seed(seed)  # of the new classifier
            hr.train(*hr.load_classifier(folder, train), train, work / f"S-{seed}", seed=seed, **TUNE)
    elif part == "michel":
        for seed in seeds:
            _michel(work / f"S-{seed}", train, test, study, work / f"tables-{seed}", seed)
    else:
        model, tokenizer = hr.load(work / "S-0")
        options = {"strategies": strategies, "keep": [HALF], "metric": "accuracy", "tune": TUNE, "seeds": seeds}
        compare_pruning(model, tokenizer, train, test, study=study / "compare-pruning", **options)
        steps = TUNE["epochs"] * math.ceil(len(train) / TUNE["batch"])
        lengths = {"what": ["retrained"], "steps": [steps], "epochs": [TUNE["epochs"] * len(train) / total]}
        what = f"steps, and epochs of the {total:,} texts of {task}"
        hr.save_table(signed(pd.DataFrame(lengths), what), study / "trainings.parquet")


def _michel(place: Path, train: hr.Corpus, test: hr.Corpus, study: Path, work: Path, seed: int) -> None:
    """Ablate each head, then more and more of them by three orders and at random."""
    model, tokenizer = hr.load(place)
    effects = hr.ablate(model, tokenizer, test, metric="accuracy", study=work)
    hr.evaluate(model, tokenizer, test, ["accuracy", "loss"], study=work)
    ranked = train.sample(RANKED, seed=0)
    importance = hr.score(model, tokenizer, ranked, ["importance", hr.Importance(norm="layer")], study=work)
    orders = {
        **curves.orders(importance, ["importance[layer]", "importance"]),
        "importance, again": ranked_again(model, tokenizer, ranked),
        "ablation[accuracy]": effects["ablation[accuracy]"].sort_values(ascending=False, kind="stable").index,
    }
    chance = curves.orders(importance, [], seeds=DRAWS)
    parts = [
        hr.ablation_curve(model, tokenizer, test, part, metric="accuracy", study=work / name)
        for name, part in (("ranked", orders), ("chance", chance))
    ]
    both = pd.concat(parts, ignore_index=True)
    both.attrs["signatures"] = parts[0].attrs["signatures"]
    hr.save_table(both, work / "curves-accuracy.parquet")
    for name in ("ablation-accuracy-head-zero", "curves-accuracy", "evaluation"):
        table = hr.load_table(work / f"{name}.parquet")
        table.attrs.pop("resamples", None)
        if seed:
            put_rows(table, study / f"{name}-seeds.parquet", seed=str(seed))
        else:
            hr.save_table(table, study / f"{name}.parquet")


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command("measure")(main)
add(app, HERE)

if __name__ == "__main__":
    app()
