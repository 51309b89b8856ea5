"""What closing every head costs: `python tests/benchmarks/ablation.py`, on a Marian of base size and on MiniLM.

Prints, all from one run on the same random batch of sentences (32 of 24 tokens; Marian: 6+6 layers, d 512, 8 heads,
feed-forward 2048, random weights): the processor time of the naive loop (a full forward of the batch for every head,
its gate closed) over that of a sweep, the largest difference of the two in nats, and the sweep over its bound: the
multiplications that must be done again, at the speed of the plain forward. OMP_NUM_THREADS=1 makes processor time the
time a quiet machine takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from relevance import MARIAN, _side
from transformers import MarianConfig, MarianMTModel

from headroles import families, objectives
from headroles.batches import Batch
from headroles.demo import minilm
from headroles.gates import closed, gated
from headroles.probe import without_cache
from headroles.replay import Replay, layers

SENTENCES, TOKENS = 32, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--together", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[8000, 32000])
    given = parser.parse_args()
    found = {f"Marian, {words} words": _ratios(_marian(words).eval(), words, given) for words in given.vocabulary}
    print(json.dumps(found | {"MiniLM": _ratios(minilm()[0], 30000, given)}, indent=1))


def _marian(words: int) -> MarianMTModel:
    tokens = {"vocab_size": words, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return MarianMTModel(MarianConfig(**MARIAN, **tokens, decoder_start_token_id=0))


def _ratios(model, words: int, given: argparse.Namespace) -> dict[str, float]:
    batch = _batch(model, words)
    groups = [batch.take(torch.arange(i, i + SENTENCES // given.together)) for i in range(0, SENTENCES, 4)]
    name = "loss" if model.config.is_encoder_decoder else "agreement"
    explain = objectives.objective(name, model).explain(model, lambda: [batch])
    index = list(families.index(model))

    def values(output, of: Batch) -> torch.Tensor:
        explained = explain(output, of)
        return torch.where(explained.counted, explained.values, 0.0).sum(-1)

    def forward() -> None:
        with torch.inference_mode():
            values(model(**batch.inputs, **without_cache(model)), batch)

    def naive() -> torch.Tensor:
        rows = []
        for head in index:
            with torch.inference_mode(), gated(model, closed(model, [head])):
                rows.append(values(model(**batch.inputs, **without_cache(model)), batch))
        return torch.stack(rows)

    def swept() -> torch.Tensor:
        found = torch.zeros(len(index), SENTENCES)
        for part in groups:
            replay = Replay(model, part)
            firsts = [replay.first(closed(model, [head])[None]) for head in index]
            for first in sorted(set(firsts)):
                rows = [i for i, one in enumerate(firsts) if one == first]
                for i in range(0, len(rows), given.together):
                    chunk = rows[i : i + given.together]
                    gates = torch.stack([closed(model, [index[row]]) for row in chunk])
                    got = values(*replay.run(gates)).reshape(len(chunk), -1)
                    found[torch.tensor(chunk)[:, None], torch.tensor(part.numbers)] = got
        return found

    times = _times({"forward": forward, "naive": naive, "swept": swept}, given.repeats)
    share = _share(model, index)
    bound = [(1 + share * len(index)) * one for one in times["forward"]]
    return {
        "naive loop / sweep": _ratio(times["naive"], times["swept"]),
        "sweep / bound": _ratio(times["swept"], bound),
        "what must be done again, of a forward": round(share, 3),
        "largest difference": float((naive() - swept()).abs().max()),
    }


def _times(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    return times


def _ratio(one: list[float], other: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(one, other, strict=True)), 2)


def _share(model, index) -> float:
    """The mean share, over heads, of the multiplications of a forward that come after the head."""
    stacks = layers(model)
    depth = {name: len(modules) for name, modules in stacks.items()}
    cost = {name: sum(p.numel() for p in modules[0].parameters()) for name, modules in stacks.items()}
    head = model.get_output_embeddings().weight.numel() if model.get_output_embeddings() is not None else 0
    whole = sum(depth[name] * cost[name] for name in stacks) + head
    later = 0.0
    for kind, layer, _ in index:
        own = "encoder" if kind == "enc-self" else "decoder"
        again = (depth[own] - layer) * cost[own] + head
        later += again + (depth["decoder"] * cost["decoder"] if own == "encoder" and "decoder" in stacks else 0)
    return later / len(index) / whole


def _batch(model, words: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    source, target = (_side(torch.randint(3, words, (SENTENCES, TOKENS), generator=generator)) for _ in range(2))
    inputs = {"input_ids": source.ids, "attention_mask": source.present.long()}
    if not model.config.is_encoder_decoder:
        return Batch(tuple(range(SENTENCES)), inputs, source, None)
    labels = target.ids.clone()
    return Batch(tuple(range(SENTENCES)), inputs | {"decoder_input_ids": target.ids}, source, target, labels)


if __name__ == "__main__":
    main()
