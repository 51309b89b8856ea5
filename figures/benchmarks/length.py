"""What a long text costs: `python tests/benchmarks/length.py`, by the scores of a decoder, in parts and as a whole.

A Llama of two layers (d 256, 8 heads in 2 groups, random weights) reads one text of random words, of more and more
tokens, each in a process of its own. Prints the peak memory above that of the loaded model, in MiB, and the largest
difference between a table made in parts and one made of the whole.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers.letters import tokens_of

import headroles as hr
from headroles.data.corpus import Tokens
from headroles.models import heads

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
SCORES = ["confidence", "position", "entropy", "sink", "distance", "induction", "duplicate"]
WHOLE = 10**15  # weights of a part: more than there are


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--whole", type=int, default=4096, help="the longest text that is also read as a whole")
    parser.add_argument("--peak", type=int, nargs=2, help="a length and weights of a part: print the peak memory only")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.peak:
        print(_peak(*given.peak))
        return
    rows = [
        {"tokens": length, "in parts, MiB": _alone(length, heads.CELLS)}
        | ({"as a whole, MiB": _alone(length, WHOLE)} if length <= given.whole else {})
        for length in given.lengths
    ]
    compared = min(given.whole, max(given.lengths))
    parts, whole = _scored(compared, heads.CELLS), _scored(compared, WHOLE)
    apart = ((parts - whole).abs() / whole.abs().clip(lower=1)).max().max()  # of large numbers relative to them
    found = {"lengths": rows, "largest difference": {"tokens": compared, "of any score": float(apart)}}
    print(pd.DataFrame(rows).to_string(index=False), f"\nlargest difference at {compared} tokens: {apart:.1e}")
    if given.output:
        given.output.write_text(json.dumps(found, indent=1) + "\n")


def _alone(length: int, cells: int) -> int:
    """The peak memory of a process that reads one text."""
    command = [sys.executable, __file__, "--peak", str(length), str(cells)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _peak(length: int, cells: int) -> int:
    model, text = _model(), _text(length)
    before = _most()
    _score(model, text, cells)
    return round(_most() - before)


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


def _most() -> float:
    """The most memory this process has held, in MiB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    main()
