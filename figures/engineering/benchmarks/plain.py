"""What default scores take of the time of a plain loop of five statistics, by length of text.

`output_attentions=True` with the statistics of `attention.py` written by hand is 1; beside it the forward of the body
alone by transformers' fast attention (sdpa), and `hr.score` with all default scores and their intervals. Medians of
paired ratios of processor times, taken in turns; appended to a table, with the command. OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import attention
import pandas as pd
import torch
import typer
from against import texts
from setting import Setting
from timing import ratio, times_of

import headroles as hr


def main(
    model: str,
    text: Annotated[Path, typer.Argument(help="A corpus, whose words are cut into texts of so many tokens.")],
    target: Annotated[Path | None, typer.Argument(help="Another one, for the targets of an encoder-decoder.")] = None,
    tokens: list[int] = [16, 64],
    total: Annotated[int, typer.Option(help="Tokens of all texts together.")] = 4096,
    repeats: int = 5,
    cls: Annotated[str | None, typer.Option(help="Class of transformers; weights that lack are drawn.")] = None,
    output: Path | None = None,
) -> None:
    loaded, tokenizer = hr.load(model, cls=cls, allow_random=cls is not None)
    rows = []
    for length in tokens:
        corpus = texts(tokenizer, length, total, text)
        if target is not None:
            pairs = zip(corpus, texts(tokenizer, length, total, target), strict=False)
            corpus = hr.Corpus(corpus.name, tuple(replace(one, target=other) for one, other in pairs))
        ways = _ways(Setting(loaded, tokenizer, corpus))
        times_of(ways, 1)  # to warm up
        times = times_of(ways, repeats)
        row: dict[str, object] = {"model": Path(model).name, "tokens": length, "texts": len(corpus), "repeats": repeats}
        row |= {
            f"{name} / plain loop": ratio(times[name], times["plain loop"], 2) for name in ("sdpa forward", "hr.score")
        }
        words = (word.rpartition("/")[2] for word in sys.argv[1:])
        rows.append(row | {"command": shlex.join(["make.py", *words])})
        print(rows[-1], flush=True)
    if output is not None:
        table = pd.DataFrame(rows)
        table = pd.concat([pd.read_csv(output), table]) if output.exists() else table
        table.drop_duplicates(["model", "tokens", "texts"], keep="last").to_csv(output, index=False)


def _ways(of: Setting) -> dict[str, Callable[[], object]]:
    def forward() -> None:
        with torch.inference_mode():
            for batch in of.batches:
                of.model.base_model(**of.inputs(batch))

    return {
        "sdpa forward": forward,
        "plain loop": attention.transformers(of),  # of a copy: this model stays with its fast attention
        "hr.score": lambda: hr.score(of.model, of.tokenizer, of.corpus, max_tokens=of.max_tokens),
    }
