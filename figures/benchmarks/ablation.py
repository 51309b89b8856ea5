"""What closing every head costs: `python figures/benchmarks/make.py ablation`, on a Marian of base size and on MiniLM.

Prints, all from one run on the same random batch of sentences (16 of 24 tokens; Marian: 6+6 layers, d 512, 8 heads,
feed-forward 2048, random weights): the processor time of the naive loop (a full forward of the batch for every head,
its gate closed) over that of a sweep, the largest difference of the two in nats, and the sweep over its bound: the
multiplications that must be done again, at the speed of the plain forward. OMP_NUM_THREADS=1 makes processor time the
time a quiet machine takes.
"""

from __future__ import annotations

import torch
from setting import marian, random_batch
from timing import keep, ratio, times_of

from headroles.ablation.runner import Runner
from headroles.models import heads
from headroles.models.at_hand import minilm
from headroles.models.attention_hooks import without_cache
from headroles.models.batching import Batch
from headroles.models.masking import head_mask, mask_heads
from headroles.scores import objectives

SENTENCES, TOKENS = 16, 24


def main(repeats: int = 3, heads_per_batch: int = 8, vocabulary: list[int] = [8000, 32000]) -> None:
    models = {f"Marian, {words} words": (marian(words).eval(), words) for words in vocabulary}
    models["MiniLM"] = minilm()[0], 30000
    keep({name: ratios(*model, repeats, heads_per_batch) for name, model in models.items()})


class Bench:
    """A model, a random batch for it, and two ways to close each of its heads."""

    def __init__(self, model, words: int, heads_per_batch: int) -> None:
        self.model, self.batch = model, random_batch(model, words, SENTENCES, TOKENS)
        self.index = list(heads.head_index(model))
        size = max(1, SENTENCES // heads_per_batch)
        self.groups = [self.batch.take(torch.arange(i, i + size)) for i in range(0, SENTENCES, size)]
        name = "loss" if model.config.is_encoder_decoder else "agreement"
        self.explain = objectives.objective(name, model).explain(model, lambda: [self.batch])
        variants = [frozenset([head]) for head in self.index]
        self.gates = [head_mask(model, variant) for variant in variants]
        self.runner = Runner(model, TOKENS, self._read, None, variants, "zero", "zero", heads_per_batch)

    def values(self, output, of: Batch) -> torch.Tensor:
        """The metric of each sentence, summed over its steps: [sentence]."""
        explained = self.explain(output, of)
        return torch.where(explained.counted, explained.values, 0.0).sum(-1)

    def forward(self) -> torch.Tensor:
        """The metric of the intact model."""
        with torch.inference_mode():
            return self.values(self.model(**self.batch.inputs, **without_cache(self.model)), self.batch)

    def naive(self) -> torch.Tensor:
        """A full forward of the batch for every head: [head, sentence]."""
        rows = []
        for row in self.gates:
            with mask_heads(self.model, row):
                rows.append(self.forward())
        return torch.stack(rows)

    def swept(self) -> torch.Tensor:
        """What a sweep does: [head, sentence]."""
        found = [torch.from_numpy(self.runner.run(part)[1:, :, 0]) for part in self.groups]
        return torch.cat(found, dim=1).float()

    def _read(self, output, of: Batch):
        return self.values(output, of)[:, None].double().numpy()


def ratios(model, words: int, repeats: int, heads_per_batch: int) -> dict[str, float]:
    bench = Bench(model, words, heads_per_batch)
    times = times_of({"forward": bench.forward, "naive": bench.naive, "swept": bench.swept}, repeats)
    share = _share(model, bench.index)
    bound = [(1 + share * len(bench.index)) * one for one in times["forward"]]
    return {
        "naive loop / sweep": ratio(times["naive"], times["swept"]),
        "sweep / bound": ratio(times["swept"], bound),
        "what must be done again, of a forward": round(share, 3),
        "largest difference": float((bench.naive() - bench.swept()).abs().max()),
    }


def _share(model, index) -> float:
    """The mean share, over heads, of a forward's multiplications that depend on the head (weights', not scores')."""
    config = model.config
    square = config.hidden_size**2
    wide = 2 * config.hidden_size * (getattr(config, "encoder_ffn_dim", None) or config.intermediate_size)
    head = model.get_output_embeddings().weight.numel() if model.get_output_embeddings() is not None else 0
    depth = 1 + max(layer for _, layer, _ in index)
    decoder = depth if config.is_encoder_decoder else 0
    whole = depth * (4 * square + wide) + decoder * (8 * square + wide) + head
    after = {  # what follows the heads of the last layer: projection, feed-forward, and what looks at the states
        "enc-self": square + wide + decoder * (8 * square + wide) - (4 * square if decoder else 0) + head,
        "dec-self": square + 2 * square + wide + head,  # keys and values of an intact encoder are not made again
        "cross": square + wide + head,
    }
    each = {"enc-self": 4 * square + wide, "dec-self": 6 * square + wide, "cross": 6 * square + wide}
    later = sum(after[kind] + (depth - 1 - layer) * each[kind] for kind, layer, _ in index)
    return later / len(index) / whole
