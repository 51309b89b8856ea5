"""What relevance costs: `python tests/benchmarks/relevance.py`, on a Marian, a BERT and a Llama of base size.

Prints, all from one run on the same random batch (16 sentences of 32 tokens, target 32; 6 layers, d 512, feed-forward
2048, 8 heads, 32,000 words; random weights): the processor time of one relevance pass of all heads (`cp`, forward and
back) over a plain forward without gradients and over a training step (forward and backward of all parameters); and of
the 32 steps of a batch, one by one, over one pass. OMP_NUM_THREADS=1 makes processor time the time a quiet machine
takes.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable

import torch
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, MarianConfig, MarianMTModel

from headroles.models import heads
from headroles.models.attention_hooks import without_cache
from headroles.models.batching import Batch, TokenView
from headroles.scores import objectives
from headroles.scores.gradients.base import head_gradients

SIZES = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}
MARIAN = {
    "d_model": 512,
    **{f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in
       (("layers", 6), ("attention_heads", 8), ("ffn_dim", 2048))},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--chunk", type=int, default=4)
    parser.add_argument("--rules", default="cp")
    given = parser.parse_args()
    words = {"vocab_size": given.vocabulary, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    made = {
        "Marian": MarianMTModel(MarianConfig(**MARIAN, **words, decoder_start_token_id=0)),
        "BERT": BertForMaskedLM(BertConfig(**SIZES, **words)),
        "Llama": LlamaForCausalLM(LlamaConfig(**SIZES, **words)),
    }
    print(json.dumps({name: _ratios(model.eval(), given) for name, model in made.items()}, indent=1))


def _ratios(model, given: argparse.Namespace) -> dict[str, float]:
    batch = _batch(model, given.vocabulary)
    explain = objectives.Top().explain(model, lambda: [batch])
    inputs = batch.inputs | without_cache(model)

    def forward() -> None:
        with torch.no_grad():
            model(**inputs)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        explained = explain(model(**inputs), batch)
        explained.values.sum().backward()

    def relevance(steps: str) -> Callable[[], object]:
        return lambda: head_gradients(model, explain, batch, rules=given.rules, steps=steps, chunk=given.chunk)  # type: ignore[arg-type]

    heads.attention_sites(model)  # found once, before anything is timed
    runs = {"forward": forward, "step": step, "pass": relevance("sum"), "all": relevance("all")}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(given.repeats):
        for name, run in runs.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    ratio = {
        (one, other): round(statistics.median(a / b for a, b in zip(times[one], times[other], strict=True)), 2)
        for one, other in [("pass", "forward"), ("pass", "step"), ("all", "pass"), ("step", "forward")]
    }
    return {
        "relevance of all heads / forward": ratio["pass", "forward"],
        "relevance of all heads / training step": ratio["pass", "step"],
        "32 steps one by one / one pass": ratio["all", "pass"],
        "training step / forward": ratio["step", "forward"],
        "peak GiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def _batch(model, vocabulary: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    source, target = (_side(torch.randint(3, vocabulary, (16, 32), generator=generator)) for _ in range(2))
    inputs = {"input_ids": source.ids, "attention_mask": source.attention_mask.long()}
    if not model.config.is_encoder_decoder:
        return Batch(tuple(range(16)), inputs, source, None)
    return Batch(tuple(range(16)), inputs | {"decoder_input_ids": target.ids}, source, target, target.ids)


def _side(ids: torch.Tensor) -> TokenView:
    there = torch.ones_like(ids, dtype=torch.bool)
    return TokenView(ids, there, there, torch.arange(ids.shape[1]).expand_as(ids), (None,) * len(ids))


if __name__ == "__main__":
    main()
