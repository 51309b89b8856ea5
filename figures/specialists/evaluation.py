"""Loss and BLEU of pruned translators, beside what was trained as long with all heads, or from scratch without them."""

from __future__ import annotations

from pathlib import Path

import bilingual
import numpy as np
import pandas as pd
from replication import prepared
from transformers import PreTrainedModel

import headroles as hr
from headroles.ablation.metrics import as_metric
from headroles.ablation.significance import interval
from headroles.ablation.sweep import Sweep
from headroles.models.head_model import HeadModel
from headroles.pruning.cached_evaluation import values

PAIRS = [("pruned", "scratch"), ("pruned", "all heads"), ("scratch", "all heads")]


def bleu(models: Path, pruned: Path, data: Path, output: Path, heads: int = 12) -> None:
    """What is left of the loss and BLEU of the translators in MODELS, pruned into PRUNED/NAME, on the test pairs?

    Rows of OUTPUT, with 95 % intervals over sentences: before pruning, trained as long with all heads, and with HEADS
    encoder heads left (gate seed 0).
    """
    test, rows = prepared(data).test, []
    for place in sorted(path for path in models.iterdir() if (pruned / path.name / "gates-0").is_dir()):
        whole, tokenizer = bilingual.load(place)
        control, small = trained(pruned / place.name / "gates-0", heads)
        for name, model in (("before", whole), ("all heads", control), (f"{heads} heads", small)):
            table = hr.evaluate(model, tokenizer, test, ["loss", "bleu"])
            rows += [{"model": place.name, "encoder": name, "metric": metric, **row} for metric, row in table.T.items()]
            print(place.name, name, table, sep="\n", flush=True)
    pd.DataFrame(rows).to_csv(output, index=False, float_format="%.4f")


def scratch(gates: Path, model: Path, data: Path, output: Path, heads: int = 6) -> None:
    """Is a pruned model better than one trained from scratch with its heads (Voita et al., Table 2)?

    GATES is a training of gates, with the control and the pruned model; MODEL one trained `--without` the other heads.
    Rows of OUTPUT, by loss and BLEU on the test pairs: each of the three models, and differences between two, paired by
    sentence (95 % intervals of 1,000 bootstrap resamples).
    """
    whole, pruned = trained(gates, heads)
    fresh, tokenizer = bilingual.load(model)
    models, test, rows = {"all heads": whole, "pruned": pruned, "scratch": fresh}, prepared(data).test, []
    if numbers(pruned) != numbers(fresh):
        raise ValueError(f"other heads: got {numbers(fresh)} from scratch; expected {numbers(pruned)}, as pruned")
    for name in ("loss", "bleu"):
        chosen = as_metric(name)
        runs = [Sweep(HeadModel.of(one, tokenizer), test, chosen).run([]) for one in models.values()]
        stats = [run.take(np.argsort(run.numbers)).intact for run in runs]
        draws = dict(zip(models, values(chosen, stats), strict=True))
        draws |= {f"{one} less {other}": draws[one] - draws[other] for one, other in PAIRS}
        rows += [[name, what, *interval(draw)] for what, draw in draws.items()]
    table = pd.DataFrame(rows, columns=["metric", "model", "value", "low", "high"])
    print(table.to_string())
    table.to_csv(output, index=False, float_format="%.4f")


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


def numbers(model: PreTrainedModel) -> list[tuple[str, int, int]]:
    """Return the heads that a model has, by their numbers in the whole model."""
    return [(site.kind, site.layer, number) for site in hr.attention_sites(model) for number in site.numbers]
