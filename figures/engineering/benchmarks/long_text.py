"""What one long text costs with a real model: peak memory and time of its default scores, in all layers.

The text is made of the sentences of a file, one after another, up to a number of tokens. Prints the most memory that
the process has held, with the interpreter and the weights, and what it had held before the text was read.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from timing import keep, mebibytes

import headroles as hr


def main(
    model: Annotated[Path, typer.Argument(help="A folder of a language model.")],
    corpus: Annotated[Path, typer.Argument(help="A file of sentences.")],
    tokens: int = 8000,
    output: Path | None = None,
) -> None:
    loaded, tokenizer = hr.load(model)
    text = _text(tokenizer, hr.read(corpus), tokens)
    count, before, start = len(tokenizer(text)["input_ids"]), mebibytes(), time.process_time()
    table = hr.score(loaded, tokenizer, hr.Corpus.of([text]))
    seconds = time.process_time() - start
    assert table["confidence"].notna().all()  # the text was read, and not left out as too long
    row = {
        "model": model.name,
        "tokens": count,
        "heads": len(table),
        "columns": [name for name in table if not name.endswith((".low", ".high"))],
        "weights, MiB": round(sum(value.nbytes for value in loaded.parameters()) / 2**20),
        "before, MiB": round(before),
        "peak, MiB": round(mebibytes()),
        "processor seconds": round(seconds),
        "threads": torch.get_num_threads(),
    }
    keep(row, "long_text", output)


def _text(tokenizer, sentences: hr.Corpus, tokens: int) -> str:
    """Whole sentences with at most so many tokens, a few less."""
    words = [sentence.text for sentence in sentences]
    low, high = 1, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        fits = len(tokenizer(" ".join(words[:middle]), verbose=False)["input_ids"]) <= tokens
        low, high = (middle, high) if fits else (low, middle - 1)
    return " ".join(words[:low])
