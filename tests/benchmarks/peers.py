"""What others take to close every head: `python tests/benchmarks/peers.py`, with the extra `[bench]` installed.

A Marian of base size (6+6 layers, d 512, 8 heads, feed-forward 2048, random weights) and one random batch of 16
sentences of 24 tokens, all in one run: the processor time of TransformerLens (a hook on the heads' outputs, one full
forward for each head), of nnsight (a trace for each head) and of captum's FeatureAblation (on our gates, 8 heads at a
time) over that of a sweep, and the largest difference of their losses from the sweep's, in nats. OMP_NUM_THREADS=1
makes processor time the time a quiet machine takes. TransformerLens asks for a tokenizer, which nothing uses: TOKENIZER
is the folder of any.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from copy import deepcopy
from functools import partial

import torch
from ablation import Bench, marian, ratio, times_of
from transformers.modeling_outputs import Seq2SeqLMOutput

from headroles import gates
from headroles.probe import without_cache

MODULES = {"enc-self": "encoder.layers", "dec-self": "decoder.layers", "cross": "decoder.layers"}
ATTENTION = {"enc-self": "self_attn", "dec-self": "self_attn", "cross": "encoder_attn"}
HOOKS = {
    "enc-self": "encoder_blocks.{}.attn.hook_z",
    "dec-self": "decoder_blocks.{}.self_attn.hook_z",
    "cross": "decoder_blocks.{}.cross_attn.hook_z",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--together", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=8000)
    given = parser.parse_args()
    model = marian(given.vocabulary).eval()
    bench = Bench(model, given.vocabulary, given.together)
    runs = {
        "sweep": bench.swept,
        "naive loop": bench.naive,
        "TransformerLens": _lens(bench, given.tokenizer),
        "nnsight": _nnsight(bench),
        "captum FeatureAblation": _captum(bench, given.together),
    }
    results: dict[str, torch.Tensor] = {}

    def kept(name: str) -> None:
        results[name] = runs[name]()

    times = times_of({name: partial(kept, name) for name in runs}, given.repeats)
    sums = {name: result.reshape(len(bench.index), -1).sum(1) for name, result in results.items()}
    far = {name: float((each - sums["sweep"]).abs().max()) for name, each in sums.items()}
    found = {
        name: {"time / sweep": ratio(times[name], times["sweep"]), "largest difference": far[name]} for name in runs
    }
    print(json.dumps(found, indent=1))


def _lens(bench, tokenizer: str):
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        bench.model.save_pretrained(folder)  # both peers change the model they are given: each gets a copy
        options = {
            "hf_model": deepcopy(bench.model),
            "tokenizer": AutoTokenizer.from_pretrained(tokenizer),
            "device": "cpu",
        }
        bridge = TransformerBridge.boot_transformers(folder, **options)
    inputs = {name: value for name, value in bench.batch.inputs.items() if name != "input_ids"}

    def run() -> torch.Tensor:
        rows = []
        for kind, layer, head in bench.index:

            def close(z, hook, head=head):  # noqa: ARG001
                z = z.clone()
                z[:, :, head] = 0
                return z

            hooks = [(HOOKS[kind].format(layer), close)]
            with torch.inference_mode():
                logits = bridge.run_with_hooks(bench.batch.inputs["input_ids"], fwd_hooks=hooks, **inputs)
                rows.append(bench.values(Seq2SeqLMOutput(logits=logits), bench.batch))
        return torch.stack(rows)

    return run


def _nnsight(bench):
    from nnsight import NNsight

    net = NNsight(deepcopy(bench.model))
    size = bench.model.config.d_model // bench.model.config.encoder_attention_heads
    inputs = bench.batch.inputs | without_cache(bench.model)

    def run() -> torch.Tensor:
        rows = []
        for kind, layer, head in bench.index:
            out = net.get(f"model.{MODULES[kind]}.{layer}.{ATTENTION[kind]}.out_proj")
            with torch.inference_mode():
                with net.trace(**inputs):
                    z = out.input.clone()
                    z[..., head * size : (head + 1) * size] = 0
                    out.input = z
                    logits = net.lm_head.output.save()
                rows.append(bench.values(Seq2SeqLMOutput(logits=logits), bench.batch))
        return torch.stack(rows)

    return run


def _captum(bench, together: int):
    from captum.attr import FeatureAblation

    def loss(rows: torch.Tensor) -> torch.Tensor:
        many, size = len(rows), len(bench.batch.numbers)
        batch = bench.batch.take(torch.arange(size).repeat(many))
        with gates.gated(bench.model, rows.repeat_interleave(size, 0)):
            output = bench.model(**batch.inputs, **without_cache(bench.model))
        return bench.values(output, batch).reshape(many, size).sum(1)

    def run() -> torch.Tensor:
        with torch.inference_mode():
            ones = torch.ones(1, len(bench.index))
            effect = FeatureAblation(loss).attribute(ones, perturbations_per_eval=together)
            return loss(ones) - effect[0]

    return run


if __name__ == "__main__":
    main()
