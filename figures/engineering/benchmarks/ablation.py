"""What closing every head costs: `make.py ablation`, on a Marian of base size and on MiniLM.

Prints, all from one run on the same random batch of sentences (16 of 24 tokens; Marian: 6+6 layers, d 512, 8 heads,
feed-forward 2048, random weights): the processor time of the naive loop (a full forward of the batch for every head,
its gate closed) over that of a sweep, the largest difference of the two in nats, and the sweep over its bound: the
multiplications that must be done again, at the speed of the plain forward. OMP_NUM_THREADS=1 makes processor time the
time a quiet machine takes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from setting import marian, random_corpus, tokenizer
from timing import keep, ratio, times_of

import headroles as hr
from headroles.ablation.metrics import as_metric
from headroles.ablation.sweep import Sweep
from headroles.models.head_model import HeadModel
from headroles.models.loading import load
from headroles.scores import objectives

SENTENCES, TOKENS = 16, 24


def main(
    repeats: int = 3, variants: int = 8, vocabulary: list[int] = [8000, 32000], output: Path | None = None
) -> None:
    models = {f"Marian, {words} words": (marian(words).eval(), tokenizer(words)) for words in vocabulary}
    corpora = {name: random_corpus(model, SENTENCES, TOKENS) for name, (model, _) in models.items()}
    models["MiniLM"] = load("minilm")
    words = [word for word in sorted(models["MiniLM"][1].get_vocab()) if word.isalpha()]
    drawn = np.random.default_rng(0).choice(words, (SENTENCES, TOKENS))
    corpora["MiniLM"] = hr.Corpus("random words", tuple(hr.Sentence(" ".join(row)) for row in drawn))
    found = {name: ratios(HeadModel.of(*pair), corpora[name], repeats, variants) for name, pair in models.items()}
    keep(found, "ablation", output)


class Bench:
    """A model, random sentences for it, and two ways to close each of its heads."""

    def __init__(self, model: HeadModel, corpus: hr.Corpus, variants: int) -> None:
        self.model, self.index = model, model.heads
        (self.batch,) = self.model.batches(self.model.encode(corpus, words=False), max_tokens=10**6)
        name = "loss" if model.config.is_encoder_decoder else "agreement"
        self.target = objectives.objective(name, self.model).fit(self.model, [self.batch])
        options = {"variants_at_once": variants, "max_tokens": SENTENCES * (TOKENS + 2)}
        self.sweep = Sweep(self.model, corpus, as_metric(name), **options)
        self.sweep.observe  # noqa: B018 - before anything is timed

    def forward(self) -> np.ndarray:
        """The metric of each sentence by the intact model, summed over its steps."""
        with torch.inference_mode():
            explained = self.target.targets(self.model.forward(self.batch), self.batch)
            values = torch.where(explained.counted, explained.values, 0.0).sum(-1)
        return values.double().numpy()[np.argsort(self.batch.numbers)]

    def naive(self) -> np.ndarray:
        """A full forward of the batch for every head: [head, sentence]."""
        rows = []
        for head in self.index:
            with hr.mask_heads(self.model.model, hr.head_mask(self.model.model, [head])):
                rows.append(self.forward())
        return np.stack(rows)

    def swept(self) -> np.ndarray:
        """What a sweep does: [head, sentence]."""
        found = self.sweep.run([frozenset([head]) for head in self.index])
        return np.stack([values[np.argsort(found.numbers), 0] for values in found.masked.values()])


def ratios(model: HeadModel, corpus: hr.Corpus, repeats: int, variants: int) -> dict[str, float]:
    bench = Bench(model, corpus, variants)
    times = times_of({"forward": bench.forward, "naive": bench.naive, "swept": bench.swept}, repeats)
    share = _share(model.model, bench.index)
    bound = [(1 + share * len(bench.index)) * one for one in times["forward"]]
    return {
        "naive loop / sweep": ratio(times["naive"], times["swept"]),
        "sweep / bound": ratio(times["swept"], bound),
        "what must be done again, of a forward": round(share, 3),
        "largest difference": float(np.abs(bench.naive() - bench.swept()).max()),
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
