"""What a long text costs: by the scores of a decoder, in parts and as a whole.

A Llama of two layers (d 256, 8 heads in 2 groups, random weights) reads one text of random words, of more and more
tokens, each in a process of its own. Prints the peak memory above that of the loaded model, in MiB, and the largest
difference between a table made in parts and one made of the whole.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pandas as pd
import torch
import typer
from helpers.letters import tokens_of
from timing import keep, mebibytes
from transformers import LlamaConfig, LlamaForCausalLM

import headroles as hr
from headroles.data.corpus import Tokens
from headroles.models import heads

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
SCORES = ["confidence", "position", "entropy", "sink", "distance", "induction", "duplicate"]
WHOLE = 10**15  # weights of a part: more than there are


def main(
    lengths: list[int] = [512, 1024, 2048, 4096, 8192],
    whole: Annotated[int, typer.Option(help="The longest text that is also read as a whole.")] = 4096,
    peak: Annotated[tuple[int, int] | None, typer.Option(help="Print the peak memory of a length and cells.")] = None,
    output: Path | None = None,
) -> None:
    if peak:
        print(_peak(*peak))
        return
    rows = [
        {"tokens": length, "in parts, MiB": _alone(length, heads.CELLS)}
        | ({"as a whole, MiB": _alone(length, WHOLE)} if length <= whole else {})
        for length in lengths
    ]
    compared = min(whole, max(lengths))
    parts, one = _scored(compared, heads.CELLS), _scored(compared, WHOLE)
    apart = ((parts - one).abs() / one.abs().clip(lower=1)).max().max()  # of large numbers relative to them
    keep({"lengths": rows, "largest difference": {"tokens": compared, "of any score": float(apart)}}, "length", output)


def _alone(length: int, cells: int) -> int:
    """The peak memory of a process that reads one text."""
    command = [sys.executable, *sys.argv[:2], "--peak", str(length), str(cells)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _peak(length: int, cells: int) -> int:
    model, text = _model(), _text(length)
    before = mebibytes()
    _score(model, text, cells)
    return round(mebibytes() - before)


def _scored(length: int, cells: int) -> pd.DataFrame:
    return _score(_model(), _text(length), cells)


def _score(model, text: hr.Corpus, cells: int) -> pd.DataFrame:
    heads.CELLS = cells
    return hr.score(model, tokens_of("llama-grouped"), text, SCORES, n_resamples=0)


def _model():
    torch.manual_seed(0)
    words = {"vocab_size": 200, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return LlamaForCausalLM(LlamaConfig(**SIZES, **words, num_key_value_heads=2, max_position_embeddings=2**17)).eval()


def _text(length: int) -> hr.Corpus:
    drawn = torch.randint(5, 28, (length,), generator=torch.Generator().manual_seed(0))
    return hr.Corpus("long", (Tokens("", ids=drawn.tolist()),))
