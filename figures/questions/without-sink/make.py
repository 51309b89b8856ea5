"""Roles with and without the sink: `make.py measure MODEL FOLDER DATA`, one model at a time.

Question: which heads gain a role when the sink leaves the keys, is it the same on other sentences, and does a model
that has learnt nothing gain as many? Material: 400 sentences of UD English-PUD with gold trees, in two halves of 200;
for induction and duplicate-token heads of decoders 2 x 100 sequences of random tokens, each twice in a row. Token
counts are those of UD English-EWT dev.

The unit is a head with a variant of a role (`syntactic[obj dep>head]`), sinks left out. A pair is *kept* if both halves
have it; the agreement of a model is the share of the pairs of either half that both have. Arms: the model, and the same
architecture with random weights (seed 0). Bounds of the weight left: .01 and, to see how much hangs on it, .1.

Rule, fixed before any number of Gemma 3, of the second halves, and of the untrained models (the counts of SmolLM2 and
MiniLM on one half had been seen): without the sink becomes the default of decoders if, in SmolLM2 and in Gemma 3,
1. more pairs are kept without the sink than with it, at both bounds,
2. the agreement without the sink is at most .10 below that with it, and
3. the untrained model keeps at most a tenth of the pairs that the model gains.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headroles as hr
from headroles.analysis.role_rules import held
from headroles.data.corpus import Corpus
from headroles.models.loading import untrained
from headroles.tables.columns import Column
from headroles.tables.frame import LEVELS

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add  # noqa: E402 - of all studies

SENTENCES, SEQUENCES, RESAMPLES = 200, 100, 200
SCORES = ("confidence", "position", "syntax", "rarity", "sink")
REPEATED = ("induction", "duplicate")
BOUNDS = (0.01, 0.1)
PAIR = [*LEVELS, "role"]


def main(
    name: Annotated[str, typer.Argument(help="Name in the tables: minilm, smollm2, gemma3.")],
    folder: Annotated[str, typer.Argument(help="The model; for minilm any word.")],
    data: Annotated[Path, typer.Argument(help="Folder with ud/ewt and ud/pud.")],
) -> None:
    """Score, assign roles, and write the rows of a model to counts.csv."""
    model, tokenizer = hr.load("minilm" if name == "minilm" else folder)
    text = hr.read(data / "ud/pud/en_pud-ud-test.conllu.gz").sample(2 * SENTENCES, seed=0)
    reference = hr.read(data / "ud/ewt/en_ewt-ud-dev.conllu.gz")
    counts = []
    for arm in ("trained", "untrained"):
        subject = model if arm == "trained" else untrained(model, seed=0)
        for bound in BOUNDS if arm == "trained" else BOUNDS[:1]:
            halves = [
                _scored(subject, tokenizer, text[half * SENTENCES : (half + 1) * SENTENCES], reference, bound, half)
                for half in (0, 1)
            ]
            counts.append(_counted(_pairs(*map(hr.roles, halves))).assign(model=name, arm=arm, bound=bound))
    table = pd.concat(counts)[["model", "arm", "bound", "role", "sink", "first", "second", "both"]]
    path = HERE / "counts.csv"
    others = [pd.read_csv(path).query("model != @name")] if path.is_file() else []
    table = pd.concat([*others, table])
    table.sort_values(["model", "arm", "bound", "role", "sink"]).to_csv(path, index=False)


def _scored(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: Corpus,
    reference: Corpus,
    bound: float,
    half: int,
) -> pd.DataFrame:
    """Score the heads with and without the sink on a half of the text, and a decoder's on repeated tokens."""
    options = {"n_resamples": RESAMPLES, "seed": half}
    classes = hr.scores.list_scores()
    twins = [classes[score](weights="nosink", least=bound) for score in SCORES if score != "sink"]
    table = hr.score(
        model, tokenizer, text, [*SCORES, classes["resting"](least=bound), *twins], reference=reference, **options
    )
    if "dec-self" not in table.index.get_level_values("kind"):
        return table
    twins = [classes[score](weights="nosink", least=bound) for score in REPEATED]
    repeated = hr.repeated_tokens(tokenizer, SEQUENCES, seed=half)
    return hr.join(table, hr.score(model, tokenizer, repeated, [*REPEATED, *twins], **options))


def _pairs(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return a row per head and role that either half has, with and without the sink: columns first and second."""
    parts = []
    for half, roles in (("first", first), ("second", second)):
        rows = held(roles).assign(**{half: True})
        columns = rows["role"].map(Column.parse)
        rows["sink"] = columns.map(lambda column: "without" if column.variant else "with")
        rows["role"] = columns.map(lambda column: str(column.plain))
        rows = rows.rename(columns={part: f"{part} {half}" for part in ("value", "stability")})
        parts.append(rows[~rows["role"].str.startswith("sink")].set_index([*PAIR, "sink"]))
    both = pd.concat(parts, axis=1)
    return both.assign(first=both["first"].eq(other=True), second=both["second"].eq(other=True)).reset_index()


def _counted(pairs: pd.DataFrame) -> pd.DataFrame:
    """Count the pairs of each family of roles, and of all."""
    families = pairs["role"].map(lambda role: Column.parse(role).name)
    rows = []
    for role in [*sorted(set(families)), "all"]:
        for sink in ("with", "without"):
            part = pairs[(pairs["sink"] == sink) & ((families == role) | (role == "all"))]
            first, second = part["first"].astype(bool), part["second"].astype(bool)
            numbers = {"first": first.sum(), "second": second.sum(), "both": (first & second).sum()}
            rows.append({"role": role, "sink": sink, **numbers})
    return pd.DataFrame(rows)


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command("measure")(main)
add(app, HERE)

if __name__ == "__main__":
    app()
