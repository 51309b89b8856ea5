"""What is left of the BLEU of pruned translators? `python tests/benchmarks/pruned_bleu.py MODELS PRUNED DATA OUTPUT`.

For each model in the folder MODELS, pruned by `prune_arm` into PRUNED/NAME: loss and BLEU on the test pairs of DATA,
with 95 % intervals over sentences, before pruning, trained as long with all heads, and with `--heads` encoder heads
left (gate seed 0), as rows of the table OUTPUT.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from transformers import PreTrainedModel

import headroles as hr
from headroles.papers import prepared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("models", "pruned", "data", "output"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--heads", type=int, default=12, help="encoder heads left")
    given = parser.parse_args()
    test, rows = prepared(given.data).test, []
    for place in sorted(path for path in given.models.iterdir() if (given.pruned / path.name / "gates-0").is_dir()):
        whole, tokenizer = hr.load(place)
        control, pruned = trained(given.pruned / place.name / "gates-0", given.heads)
        for name, model in (("before", whole), ("all heads", control), (f"{given.heads} heads", pruned)):
            table = hr.evaluate(model, tokenizer, test, ["loss", "bleu"])
            rows += [{"model": place.name, "encoder": name, "metric": metric, **row} for metric, row in table.T.items()]
            print(place.name, name, table, sep="\n", flush=True)
    pd.DataFrame(rows).to_csv(given.output, index=False, float_format="%.4f")


def trained(gates: Path, heads: int) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return the control with all heads and the model pruned to `heads` encoder heads of a training of gates."""
    trials = [path for path in (gates / ".trials").iterdir() if path.is_dir()]
    survivals = {trial: survival(trial) for trial in trials}
    (control,) = (trial for trial in trials if survivals[trial] is None)  # fails for an unfinished training
    (small,) = (trial for trial, left in survivals.items() if left is not None and left.sum() == heads)
    pruned = hr.load(small)[0]
    stays = hr.load_table(small / "survival.parquet").iloc[:, 0]
    return hr.load(control)[0], hr.remove_heads(pruned, stays.index[stays == 0])


def survival(trial: Path) -> pd.Series | None:
    """Return whether each encoder head of a trained trial survives; None for the control."""
    file = trial / "survival.parquet"
    return hr.load_table(file).iloc[:, 0].loc["enc-self"] if file.is_file() else None


if __name__ == "__main__":
    main()
