"""Which heads of SmolLM2 can do induction, by their weights, and do they? `make.py measure MODEL`.

Writes the composition of all pairs of heads, `pairs.parquet` (the column `matching` alone), and of each head in
`heads.parquet`: `previous` and `induction`, measured on repeated random tokens, and the strength of the induction
circuit. Prints the numbers that the page on scores gives (.docs/concepts/scores.md), read from these tables.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import typer

import headroles as hr
from headroles.tables import frame

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add  # noqa: E402 - of all studies

TEXTS, SEED = 100, 0  # of repeated random tokens
WRITER = ("dec-self", 16, 0)  # the previous-token head


def main(folder: Path) -> None:
    model, tokenizer = hr.load(folder)
    pairs = hr.scores.composition(model)
    again = hr.repeated_tokens(tokenizer, TEXTS, seed=SEED)
    scores = hr.score(model, tokenizer, again, ["previous", "induction"])
    measured = scores[["previous", "induction"]]
    strength = induction_strength(pairs, measured)
    heads = hr.join(measured, strength)
    heads.attrs.pop("resamples", None)
    kept = pairs.drop(columns=["query", "key", "value"]).astype({"matching": "float32"})
    hr.save_table(kept, HERE / "pairs.parquet")
    hr.save_table(heads, HERE / "heads.parquet")
    print(pd.Series(numbers(kept, heads)).to_string())


def induction_strength(pairs: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Compute how strongly each head can do induction, matching a token with the output of a previous-token head.

    An induction head finds the place after an earlier occurrence of the current token because an earlier head has
    written there which token came before (Elhage et al. 2021, "Induction Heads"). The strength is the largest product,
    over earlier heads, of their weight on the token before (`previous`, measured) and their composition with this head
    that looks for the same token (`matching`, from the weights); beside it stands the earlier head.
    """
    writers = pd.MultiIndex.from_frame(pairs[["kind", "layer", "head"]])
    products = pairs["matching"] * scores["previous"].reindex(writers).to_numpy()
    best = pairs.loc[products.groupby([pairs["kind"], pairs["to_layer"], pairs["to_head"]]).idxmax()]
    columns = {"": products[best.index], ".layer": best["layer"], ".head": best["head"]}
    readers = pd.MultiIndex.from_frame(best[["kind", "to_layer", "to_head"]], names=scores.index.names)
    table = pd.DataFrame({f"circuit[induction]{name}": values.to_numpy() for name, values in columns.items()}, readers)
    text = frame.holding(pairs=frame.provenance(pairs, "matching"), previous=frame.provenance(scores, "previous"))
    return frame.signed(table.astype(float).reindex(scores.index), text)


def numbers(pairs: pd.DataFrame, heads: pd.DataFrame) -> dict[str, float]:
    """Compute the numbers that the page gives."""
    of_writer = pairs[(pairs["layer"] == WRITER[1]) & (pairs["head"] == WRITER[2]) & pairs["to_layer"].isin((17, 18))]
    matching = of_writer.set_index(["to_layer", "to_head"])["matching"].sort_values(ascending=False)
    strength, induction = heads["circuit[induction]"].dropna(), heads["induction"]
    by_both = [set(column.nlargest(n).index) for n in (5, 10) for column in (strength, induction)]
    first = {f"matching L{layer}H{head}": value for (layer, head), value in matching.head(7).items()}
    return {
        "pairs": len(pairs),
        "standard deviation of matching": float(pairs["matching"].std()),
        **first,
        "heads with a strength": len(strength),
        "Spearman": float(strength.corr(induction[strength.index], method="spearman")),
        "of the five strongest": len(by_both[0] & by_both[1]),
        "of the ten strongest": len(by_both[2] & by_both[3]),
        "five first by matching, that do most induction": len(
            {("dec-self", *place) for place in matching.head(5).index} & by_both[1]
        ),
        "strength L18H8": float(strength["dec-self", 18, 8]),
        "strength L20H7": float(strength["dec-self", 20, 7]),
        "induction L18H8": float(induction["dec-self", 18, 8]),
        "induction L20H7": float(induction["dec-self", 20, 7]),
    }


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command("measure")(main)
add(app, HERE)

if __name__ == "__main__":
    app()
