"""What does this checkout take of the time of another one?

Both do the same job in turns, each in a process of its own that lives as long as the run, on one thread. Prints the
medians of their processor times and of the paired ratios; appends them to a table, with the command.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated

import pandas as pd
import typer
from timing import ratio, timed

import headroles as hr


def main(
    job: Annotated[str, typer.Argument(help="One of score, ablate.")],
    model: str,
    text: Annotated[Path, typer.Argument(help="A corpus, whose words are cut into texts of so many tokens.")],
    before: Annotated[Path, typer.Option(help="Another checkout of headroles.")] = Path("../before"),
    tokens: list[int] = [64],
    total: Annotated[int, typer.Option(help="Tokens of all texts together.")] = 4096,
    repeats: int = 5,
    cls: Annotated[str | None, typer.Option(help="Class of transformers; weights that lack are drawn.")] = None,
    output: Path | None = None,
    worker: Annotated[bool, typer.Option(help="Do the job whenever a line comes, and print its time.")] = False,
) -> None:
    rows = []
    for length in tokens:
        if worker:
            _work(JOBS[job](*hr.load(model, cls=cls, allow_random=cls is not None), length, total, text))
            return
        command = [sys.executable, __file__, job, model, str(text), "--worker"]  # alone: the rest needs this checkout
        command += ["--tokens", str(length), "--total", str(total), *(["--cls", cls] if cls else [])]
        with _started(command, before) as old, _started(command, Path()) as new:
            pairs = [(old(), new()) for _ in range(repeats + 1)][1:]  # the first ones warm up
        earlier, now = map(list, zip(*pairs, strict=True))
        row = {
            "job": job,
            "model": " ".join(filter(None, [Path(model).name, cls])),
            "tokens": length,
            "texts": total // length,
            "repeats": repeats,
        }
        row |= {"before, s": round(median(earlier), 3), "now, s": round(median(now), 3)}
        row |= {"now / before": ratio(now, earlier, 3)}
        rows.append(row | {"command": shlex.join(["make.py", *(word.rpartition("/")[2] for word in sys.argv[1:])])})
        print(rows[-1], flush=True)
    if output is not None:
        table = pd.DataFrame(rows)
        table = pd.concat([pd.read_csv(output), table]) if output.exists() else table
        table.drop_duplicates(["job", "model", "tokens"], keep="last").to_csv(output, index=False)


@contextmanager
def _started(command: list[str], checkout: Path) -> Iterator[Callable[[], float]]:
    """A process that has the package of a checkout; the function lets it do the job once and returns the time."""
    options = {"PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=os.environ | options, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def run() -> float:
        process.stdin.write("\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    try:
        yield run
    finally:
        process.stdin.close()
        process.wait()


def _work(run: Callable[[], object]) -> None:
    for _ in sys.stdin:
        print(timed(run)[1], flush=True)


def texts(tokenizer, length: int, total: int, text: Path) -> hr.Corpus:
    """Texts of about so many tokens, special ones included."""
    ids = tokenizer(" ".join(sentence.text for sentence in hr.read(text)), add_special_tokens=False)["input_ids"]
    inside = length - tokenizer.num_special_tokens_to_add()
    pieces = [ids[start : start + inside] for start in range(0, len(ids) - inside, inside)]
    texts = [tokenizer.decode(piece) for piece in pieces[: total // length]]
    return hr.Corpus(text.stem, tuple(map(hr.Sentence, texts)))


def _score(model, tokenizer, length: int, total: int, text: Path) -> Callable[[], object]:
    corpus = texts(tokenizer, length, total, text)
    return lambda: hr.score(model, tokenizer, corpus)


def _ablate(model, tokenizer, length: int, total: int, text: Path) -> Callable[[], object]:
    corpus = texts(tokenizer, length, total, text)
    return lambda: hr.ablate(model, tokenizer, corpus, metric="loss", n_resamples=0)


JOBS = {"score": _score, "ablate": _ablate}


if __name__ == "__main__":  # a worker
    typer.run(main)
