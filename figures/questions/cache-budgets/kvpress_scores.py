"""What kvpress itself says of the same tokens as our rewriting: python kvpress_scores.py MODEL WORK, by its own Python.

Needs `pip install kvpress "transformers<5.3"` in an environment of its own, and WORK of `questions.py run`. For models
without published scores kvpress draws books from the Hub; here it gets the tokens that `questions.py` kept.
Writes kvpress-scores.csv: for each key-value head kvpress' score, ours, and which a quarter of the heads keeps.
"""

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from transformers import AutoModelForCausalLM, BatchEncoding

KEPT = 22  # of 90


def main(folder: str, work: Path) -> None:
    """Score the heads by kvpress; write them beside ours."""
    import kvpress.presses.duo_attention_press as press  # of the other environment

    torch.set_num_threads(1)
    texts = json.loads((work / "questions/kvpress-ids.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chapters = SimpleNamespace(tolist=lambda: range(len(texts)))
    frame = SimpleNamespace(sample=lambda *_, **__: {"chapter": chapters})
    press.load_dataset = lambda *_, **__: SimpleNamespace(to_pandas=lambda: frame)
    tokens = SimpleNamespace(from_pretrained=lambda _: lambda text, **__: _encoded(texts[text]))
    press.AutoTokenizer = tokens
    theirs = press.duo_attention_on_the_fly(model, num_samples=len(texts)).ravel()
    ours = np.load(work / "questions/kvpress.npy") / len(texts)
    kept = [{*np.argsort(scores, kind="stable")[-KEPT:].tolist()} for scores in (theirs, ours)]
    groups = model.config.num_key_value_heads
    with Path(__file__).with_name("kvpress-scores.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["layer", "group", "kvpress", "ours", "kept by kvpress", "kept by ours"])
        for at, pair in enumerate(zip(theirs, ours, strict=True)):
            rows.writerow(
                [*divmod(at, groups), *(f"{score:.7f}" for score in pair), *(int(at in part) for part in kept)]
            )
    print(f"largest difference {np.abs(theirs - ours).max():.1g}; {len(kept[0] & kept[1])} of {KEPT} heads alike")


def _encoded(ids: list[int]) -> BatchEncoding:
    return BatchEncoding({"input_ids": torch.tensor([ids])})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
