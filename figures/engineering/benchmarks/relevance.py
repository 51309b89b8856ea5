"""What relevance costs: `make.py relevance`, on a Marian, a BERT and a Llama of base size.

Prints, all from one run on the same random batch (16 sentences of 32 tokens, target 32; 6 layers, d 512, feed-forward
2048, 8 heads, 32,000 words; random weights): the processor time of one relevance pass of all heads (`cp`, forward and
back) over a plain forward without gradients and over a training step (forward and backward of all parameters); and of
the 32 steps of a batch, one by one, over one pass. OMP_NUM_THREADS=1 makes processor time the time a quiet machine
takes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from setting import marian, random_batch
from timing import keep, mebibytes, ratio, times_of
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

from headroles.models.head_model import HeadModel
from headroles.scores import objectives
from headroles.scores.gradients.base import head_gradients

SIZES = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}


def main(
    repeats: int = 5, vocabulary: int = 32000, chunk: int = 4, rules: str = "cp", output: Path | None = None
) -> None:
    words = {"vocab_size": vocabulary, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    made = {
        "Marian": marian(vocabulary),
        "BERT": BertForMaskedLM(BertConfig(**SIZES, **words)),
        "Llama": LlamaForCausalLM(LlamaConfig(**SIZES, **words)),
    }
    found = {name: ratios(model.eval(), repeats, vocabulary, chunk, rules) for name, model in made.items()}
    keep(found, "relevance", output)


def ratios(model, repeats: int, vocabulary: int, chunk: int, rules: str) -> dict[str, float]:
    batch = random_batch(model, vocabulary, 16, 32)
    handle = HeadModel.of(model)
    target = objectives.Top().fit(handle, [batch])

    def forward() -> None:
        with torch.no_grad():
            handle.forward(batch)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        target.targets(handle.forward(batch), batch).values.sum().backward()

    def relevance(steps: str) -> Callable[[], object]:
        return lambda: head_gradients(handle, target, batch, rules=rules, steps=steps, chunk=chunk)  # type: ignore[arg-type]

    runs = {"forward": forward, "step": step, "pass": relevance("sum"), "all": relevance("all")}
    times_of(runs, 1)  # to warm up
    times = times_of(runs, repeats)
    return {
        "relevance of all heads / forward": ratio(times["pass"], times["forward"]),
        "relevance of all heads / training step": ratio(times["pass"], times["step"]),
        "32 steps one by one / one pass": ratio(times["all"], times["pass"]),
        "training step / forward": ratio(times["step"], times["forward"]),
        "peak GiB": round(mebibytes() / 2**10, 2),
    }
