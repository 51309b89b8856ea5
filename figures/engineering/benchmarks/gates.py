"""What learnt gates cost: `python figures/engineering/benchmarks/make.py gates --repeats 15`.

Prints, from one run, the processor time of a training step (forward, backward, AdamW) with Hard Concrete gates on every
head over that of the same step without, as the median of paired repeats with its quartiles, for random models: a Marian
and a BERT of base width with 8,000 words, and a small Marian (d 128). OMP_NUM_THREADS=1 makes processor time the time a
quiet machine takes.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
import transformers
from timing import keep
from torch import Tensor
from transformers import PreTrainedModel

import headroles as hr
from headroles.models import heads as families

WORDS = 8000


def main(repeats: int = 15, output: Path | None = None) -> None:
    found = {name: _ratio(*made, repeats=repeats) for name, made in _models().items()}
    keep({"torch": torch.__version__, "step with gates / without": found}, "gates", output)


def _models() -> dict[str, tuple[PreTrainedModel, dict[str, Tensor]]]:
    torch.manual_seed(0)
    shape = {"encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8, "decoder_attention_heads": 8}
    names = {"vocab_size": WORDS, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    wide = {"d_model": 512, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
    small = {"d_model": 128, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512}
    bert = {"num_hidden_layers": 6, "hidden_size": 768, "num_attention_heads": 12, "vocab_size": WORDS}
    pairs = {"input_ids": torch.randint(2, WORDS, (32, 24)), "labels": torch.randint(2, WORDS, (32, 24))}
    texts = {"input_ids": torch.randint(2, WORDS, (32, 24)), "labels": torch.randint(2, (32,))}
    return {
        "Marian 6+6, d 512": (transformers.MarianMTModel(transformers.MarianConfig(**shape, **names, **wide)), pairs),
        "BERT 6 layers, d 768": (transformers.BertForSequenceClassification(transformers.BertConfig(**bert)), texts),
        "Marian 6+6, d 128": (transformers.MarianMTModel(transformers.MarianConfig(**shape, **names, **small)), pairs),
    }


def _ratio(model: PreTrainedModel, batch: dict[str, Tensor], *, repeats: int) -> dict[str, float]:
    heads = [(kind, layer, head) for kind, layer, head in families.head_index(model)]
    gates = hr.L0(strength=0.01).gates(model, heads, None)
    optimizer = torch.optim.AdamW([*model.parameters(), *gates.parameters()], 1e-5)
    model.train()

    def step() -> float:
        start = time.process_time()
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - start

    def gated() -> float:
        with hr.train_gates(model, gates):
            gates.train()
            return step()

    step(), gated()  # to warm up
    ratios = []
    for turn in range(repeats):  # in turns, who goes first as well
        pair = (gated(), step()) if turn % 2 else (step(), gated())[::-1]
        ratios.append(pair[0] / pair[1])
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return {"median": round(float(middle), 3), "quartiles": [round(float(low), 3), round(float(high), 3)]}  # type: ignore[dict-item]
