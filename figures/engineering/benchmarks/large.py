"""Every head of a model of a billion parameters.

The configuration is that of Llama 3.2 1B (16 layers, 32 query heads in 8 groups, d 2048, 128,256 words, scaled rotary
positions), the weights are random. Prints for each kind of score how many columns and heads have numbers, the processor
time over that of a plain forward of the same sentences, and the peak memory so far; then for one long text, which is
read in parts. It needs 8 GiB in 32 bits. A GPU is used where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from setting import tokenizer
from timing import device, keep, mebibytes, timed
from transformers import LlamaConfig, LlamaForCausalLM

import headroles as hr
from headroles.models.head_model import HeadModel
from headroles.scores.gradients.relevance import Relevance
from headroles.tables.declared import groups

CONFIG = {
    **{"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128_256, "max_position_embeddings": 131_072},
    **{"rope_theta": 500_000.0, "tie_word_embeddings": True, "rms_norm_eps": 1e-5},
    "rope_scaling": {
        **{"rope_type": "llama3", "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0},
        "original_max_position_embeddings": 8192,
    },
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "head_dim": 8,
    "num_key_value_heads": 2,
}
JOBS: dict[str, dict[str, Any]] = {
    "attention": {"scores": ["confidence", "position", "entropy", "sink", "distance"]},
    "attention by norm": {"scores": ["confidence", "position", "entropy", "sink", "distance"], "weights": "norm"},
    "importance": {"scores": ["importance"]},
    "relevance": {"scores": [Relevance(steps="sum")]},
}


def main(
    sentences: int = 8,
    words: int = 24,
    long: Annotated[int, typer.Option(help="Tokens of the long text.")] = 2048,
    dtypes: Annotated[list[str], typer.Option(help="bfloat16 is slow without instructions for it.")] = ["float32"],
    tiny: Annotated[bool, typer.Option("--tiny", help="A tiny model, to see that all runs.")] = False,
    output: Path | None = None,
) -> None:
    found = {}
    for dtype in dtypes:
        found[dtype] = measured(sentences, words, long, getattr(torch, dtype), CONFIG | (TINY if tiny else {}))
        keep(found, "large", output)


def measured(sentences: int, length: int, tokens: int, dtype: torch.dtype, sizes: dict[str, Any]) -> dict[str, Any]:
    """Numbers of one precision."""
    config = LlamaConfig(**sizes, pad_token_id=0, bos_token_id=2, eos_token_id=1)
    torch.manual_seed(0)
    with torch.device(device()):
        model = LlamaForCausalLM._from_config(config, dtype=dtype).eval()  # noqa: SLF001 - the way to a dtype
    words = tokenizer(config.vocab_size)
    short, long = text(sentences, length), text(1, tokens)
    handle = HeadModel.of(model, words)
    (batch,) = handle.batches(handle.encode(short, words=False), max_tokens=10**6)

    def forward() -> None:
        with torch.inference_mode():
            handle.forward(batch)

    forward()
    plain = timed(forward)[1]
    rows: dict[str, Any] = {
        name: run(lambda job=job: hr.score(model, words, short, n_resamples=100, **job), plain)
        for name, job in JOBS.items()
    }
    if device() == "cuda":
        rows["every head ablated"] = run(lambda: hr.ablate(model, words, short, n_resamples=0), plain)
    rows[f"attention, a text of {tokens} tokens"] = run(
        lambda: hr.score(model, words, long, ["confidence", "entropy", "sink", "distance"], n_resamples=0), None
    )
    table = hr.score(model, words, short, "confidence", n_resamples=0)
    size = sum(value.nbytes for value in model.parameters())
    return {
        "parameters": model.num_parameters(),
        "GiB": round(size / 2**30, 2),
        "groups of query heads": int(groups(table).groupby(level="layer").nunique().sum()),
        "jobs": rows,
    }


def run(score: Callable[[], pd.DataFrame], plain: float | None) -> dict[str, Any]:
    """What a call gives and takes."""
    table, seconds = timed(score)
    values = [name for name in table if not str(name).endswith((".low", ".high"))]
    numbers = np.isfinite(table[values].to_numpy(float))
    return {
        "heads": len(table),
        "columns": len(values),
        "without a number": [str(name) for name, there in zip(values, numbers.any(0), strict=True) if not there],
        "heads with all others": int(numbers[:, numbers.any(0)].all(1).sum()),
        **({} if plain is None else {"time / forward": round(seconds / plain, 2)}),
        "peak GiB so far": round(mebibytes() / 2**10, 1),
        **({"peak GiB of the GPU": round(torch.cuda.max_memory_allocated() / 2**30, 1)} if device() == "cuda" else {}),
    }


def text(sentences: int, words: int) -> hr.Corpus:
    """Random words; every tenth is one of the ten most frequent."""
    draw = np.random.default_rng(0)
    ids = draw.integers(3, 100_000, (sentences, words))
    ids[:, ::10] = draw.integers(3, 13, ids[:, ::10].shape)
    return hr.Corpus("random words", tuple(hr.Sentence(" ".join(f"w{i}" for i in row)) for row in ids.tolist()))
