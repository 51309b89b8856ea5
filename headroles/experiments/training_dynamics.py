"""Dynamics: at every checkpoint of a training, what closing heads costs, which heads count, and which have roles."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from headroles.ablation.curves import ablation_curve, orders
from headroles.analysis import role_rules
from headroles.data.corpus import Corpus
from headroles.experiments.compare_scores import agreement
from headroles.models import loading
from headroles.scores import score
from headroles.tables import frame
from headroles.tables.io import save_table
from headroles.tables.study import Study


def dynamics(
    study: Study,
    training: str | Path,
    corpus: Corpus,
    held_out: Corpus,
    *,
    metric: str = "loss",
    steps: int = 10,
    n_resamples: int = 1000,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """At each checkpoint in a folder of `train` (Michel et al. 2019, section 6, Fig. 5); kept in the study.

    `dynamics-curves`: a row per checkpoint and number of closed heads, those of the smallest importance on `corpus`
    first: `epoch`, `step`, `closed`, `share`, `value` on `held_out` with `low`, `high`, and `kept`, the share of the
    whole model's value at that checkpoint. `dynamics-order`: a row per checkpoint: Spearman's correlation of importance
    with that at the last, over `all` heads and `within` layers, with intervals; and how many heads have each family of
    roles, and how many of the `last` checkpoint's roles are there already. Finished checkpoints are not read again.
    Raises FileNotFoundError where there is no checkpoint.
    """
    found = checkpoints(training)
    last = loading.revision(loading.alone(found[-1][2]))
    gone = study.claim("dynamics-curves", frame.sign(weights=last, text=held_out.hash))
    tables, parts = [], []
    for epoch, step, place in found:
        part, table = _one(study, place, step, corpus, held_out, metric, steps, n_resamples)
        parts.append(part.assign(epoch=epoch, step=step))
        tables.append(table)
    curves = pd.concat(parts, ignore_index=True)
    whole = curves[curves["closed"] == 0].set_index("step")["value"]
    curves["kept"] = curves["value"] / curves["step"].map(whole)
    rows = [
        {"epoch": epoch, "step": step} | _settled(table, tables[-1])
        for (epoch, step, _), table in zip(found, tables, strict=True)
    ]
    ordered = pd.DataFrame(rows)
    study.remove(gone)
    for name, made in (("dynamics-curves", curves), ("dynamics-order", ordered)):
        made.attrs["signatures"] = dict.fromkeys(map(str, made.columns), parts[-1].attrs["signatures"]["value"])
        save_table(made, study.path(name))
    return curves, ordered


def checkpoints(training: str | Path) -> list[tuple[float, int, Path]]:
    """The checkpoints of a training, in order: epoch, step, folder. Raises FileNotFoundError where there is none."""
    places = sorted(Path(training).glob("checkpoint-*"), key=lambda one: int(one.name.rpartition("-")[2]))
    if not places:
        raise FileNotFoundError(f"no checkpoint in {training}; headroles train keeps one each epoch")
    states = [json.loads((place / "trainer_state.json").read_text()) for place in places]
    return [(float(one["epoch"]), int(one["global_step"]), place) for one, place in zip(states, places, strict=True)]


def _one(
    study: Study,
    place: Path,
    step: int,
    corpus: Corpus,
    held_out: Corpus,
    metric: str,
    steps: int,
    n_resamples: int,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The curve and the scores of one checkpoint."""
    kept = Study(study.work / ".checkpoints", overwrite=True)
    model, tokenizer = loading.load(place)
    recipe = frame.sign(
        weights=loading.revision(model),
        text=corpus.hash,
        held_out=held_out.hash,
        metric=metric,
        steps=steps,
        resamples=n_resamples,
        headroles=version("headroles"),
    )

    def scores() -> pd.DataFrame:
        told: Any = score(model, tokenizer, corpus, n_resamples=min(n_resamples, 200))
        importance = score(model, tokenizer, corpus, ["importance"], n_resamples=n_resamples)
        return frame.join(importance, told[[name for name in told if not str(name).startswith("importance")]])

    table = kept.keep(f"heads-{step}", recipe, scores)
    line = orders(table, ["importance"])
    part = kept.keep(
        f"curve-{step}",
        recipe,
        lambda: ablation_curve(model, tokenizer, held_out, line, metric=metric, steps=steps, n_resamples=n_resamples),
    )
    return part, table


def _settled(table: pd.DataFrame, last: pd.DataFrame) -> dict[str, float]:
    """How much the order of heads is that of the last checkpoint, and its roles."""
    index = frame.rows(table)
    drawn = {"now": frame.resamples(table), "last": frame.resamples(last)}
    draws = {name: one.of("importance", index) for name, one in drawn.items() if one is not None}
    columns = {"now": table["importance"], "last": last["importance"].reindex(table.index)}
    both = frame.table(columns, index, frame.provenance(table, "importance"), draws=draws)
    row = dict(agreement(both, ["now"], "last").iloc[0])
    if not role_rules.assignable(table):
        return row
    now, then = (_held(each) for each in (table, last))
    families_ = [name.partition("[")[0] for _, name in now]
    row |= {f"roles[{name}]": families_.count(name) for name in sorted({one.name for one in role_rules.ROLES})}
    return row | {"roles of the last": float(np.nan) if not then else len(now & then) / len(then)}


def _held(table: pd.DataFrame) -> set[tuple[Any, str]]:
    held: Any = role_rules.held(role_rules.roles(table))
    return {((row.kind, row.layer, row.head), row.role) for row in held.itertuples()}
