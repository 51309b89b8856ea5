"""What a long file costs: `python figures/benchmarks/make.py stream`, of made-up text, by the scores of a small BERT.

Writes a file of so many lines, reads it all as a stream, and scores its first part and its first ten: how long until
the first part is there, and the peak memory above that before the file was opened, in MiB. Each in a process of its
own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from helpers import zoo
from helpers.letters import tokens_of
from timing import keep, mebibytes

import headroles as hr

WORDS = [f"{a}{b}" for a in "abcdefghij" for b in "klmnopqrst"]


def main(
    lines: list[int] = [10_000, 1_000_000, 10_000_000],
    one: Annotated[Path | None, typer.Option(help="A file: print what it costs only.")] = None,
    output: Path | None = None,
) -> None:
    if one:
        print(json.dumps(_cost(one)))
        return
    rows = []
    with TemporaryDirectory() as folder:
        for count in lines:
            file = Path(folder, "text.txt")
            with file.open("w") as out:
                out.writelines(
                    f"{' '.join(WORDS[(7 * n + 13 * i) % 100] for i in range(3 + n % 5))}\n" for n in range(count)
                )
            done = subprocess.run(
                [sys.executable, *sys.argv[:2], "--one", file], capture_output=True, text=True, check=True
            )
            rows.append({"lines": count, "MiB of text": round(file.stat().st_size / 2**20)} | json.loads(done.stdout))
    keep(rows, output)


def _cost(file: Path) -> dict[str, float]:
    model, tokenizer = zoo.tiny("bert"), tokens_of("bert")
    before, start = mebibytes(), time.monotonic()
    parts = hr.StreamingCorpus(file).parts()
    first = next(parts)
    found: dict[str, float] = {"seconds to the first part": round(time.monotonic() - start, 2)}
    lines = len(first) + sum(len(part) for part in parts)
    found |= {"lines read": lines, "MiB, all read": round(mebibytes() - before)}
    ten = file.with_name("ten.txt")
    with file.open() as text:
        ten.write_text("".join(islice(text, 10 * len(first))))
    hr.score(model, tokenizer, hr.StreamingCorpus(ten), ["confidence", "entropy"], n_resamples=0, max_tokens=65_536)
    return found | {"MiB, ten parts scored": round(mebibytes() - before)}
