"""What rounding changes in SmolLM2's scores and roles: python figures/models/real-models/rounded.py MODEL DATA.

The weights at hand are those of a file of 4 bits (Q4_1: blocks of 32 numbers, each with a scale and a smallest number).
Here they are rounded once more, as llama.cpp's other formats do: Q4_0, Q5_0 and Q8_0 (16, 32 and 256 steps around
zero). For each the loss on 100 sentences of English-PUD, and of every score the largest difference over heads and
columns, the least of Spearman's rho over columns, and how many pairs of head and role are kept, lost and gained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import gguf
import pandas as pd
import torch
import typer
from transformers import PreTrainedModel

import headroles as hr
from headroles.analysis.role_rules import held
from headroles.tables.columns import Column
from headroles.tables.frame import LEVELS

HERE = Path(__file__).parent
SENTENCES, SEQUENCES, MEASURED = 200, 100, 100
SCORES = ["confidence", "position", "syntax", "sink"]
REPEATED = ["induction", "duplicate"]
ROLES = {"confidence": "", "position": "positional", "syntax": "syntactic", "sink": "sink"} | {
    name: name for name in REPEATED
}
COUNTS = ("kept", "lost", "gained")
PLACES = ("offset", "best")  # not a share
FORMATS = ("Q8_0", "Q5_0", "Q4_0")


def main(
    folder: Annotated[str, typer.Argument(help="Folder of SmolLM2.")],
    data: Annotated[Path, typer.Argument(help="Folder with ud/pud.")],
) -> None:
    """Score the heads of the model and of its rounded weights, and write rounded.csv."""
    text = hr.read(data / "ud/pud/en_pud-ud-test.conllu.gz").sample(SENTENCES, seed=0)
    own, rows = None, []
    for name in (None, *FORMATS):
        model, tokenizer = hr.load(folder)
        if name is not None:
            _round(model, name)
        repeated = hr.repeated_tokens(tokenizer, SEQUENCES, seed=0)
        scores = hr.join(
            hr.score(model, tokenizer, text, SCORES, n_resamples=0),
            hr.score(model, tokenizer, repeated, REPEATED, n_resamples=0),
        )
        loss = hr.evaluate(model, tokenizer, text[:MEASURED], ["loss"])["value"].iloc[0]
        if own is None:
            own = scores
            rows.append({"weights": "as they are", "loss": loss})
            continue
        rows += _changes(name, loss, own, scores)
    table = pd.DataFrame(rows).astype(dict.fromkeys(COUNTS, "Int64"))
    table.to_csv(HERE / "rounded.csv", index=False, float_format="%.4f")


def _round(model: PreTrainedModel, name: str) -> None:
    """Round the weights of all linear maps and of the embeddings to a format of GGUF, in blocks of 32 along a row."""
    kind = gguf.GGMLQuantizationType[name]
    for weight in model.parameters():
        if weight.ndim == 2:
            blocks = gguf.quants.quantize(weight.detach().numpy(), kind)
            weight.data = torch.from_numpy(gguf.quants.dequantize(blocks, kind).copy())


def _changes(name: str, loss: float, own: pd.DataFrame, scores: pd.DataFrame) -> list[dict[str, object]]:
    """Compare the columns of each score, and the pairs of its role."""
    before, after = (held(hr.roles(table)).set_index([*LEVELS, "role"]).index for table in (own, scores))
    rows = []
    for score, role in ROLES.items():
        parsed = {column: Column.parse(column) for column in own if own[column].notna().all()}
        columns = [x for x, (of, detail, end) in parsed.items() if of == score and detail not in PLACES and not end]
        pairs = [{pair for pair in pairs if Column.parse(pair[-1]).name == role} for pairs in (before, after)]
        counts = [len(pairs[0] & pairs[1]), len(pairs[0] - pairs[1]), len(pairs[1] - pairs[0])]
        largest = float((own[columns] - scores[columns]).abs().max(axis=None))
        rho = min(own[column].corr(scores[column], method="spearman") for column in columns if own[column].std())
        rows.append({"weights": name, "loss": loss, "score": score, "largest": largest, "rho": rho})
        rows[-1] |= dict(zip(COUNTS, counts, strict=True))
    return rows


if __name__ == "__main__":
    typer.run(main)
