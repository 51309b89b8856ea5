"""Training dynamics: ablation curves, importance and roles of heads at every checkpoint of a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from headroles.ablation.curves import ablation_curve, orders
from headroles.ablation.metrics import Metric, as_metric
from headroles.analysis import role_rules
from headroles.analysis.summaries import agreement
from headroles.data.corpus import Corpus, CorpusLike
from headroles.data.readers import as_corpus
from headroles.models import identity, loading
from headroles.models.head_model import HeadModel
from headroles.scores import score
from headroles.tables import frame
from headroles.tables.columns import Column
from headroles.tables.io import expanded
from headroles.tables.study import Study, as_study
from headroles.training.checkpoints import checkpoints


class Dynamics(NamedTuple):
    """Results of `dynamics`: ablation curves, and the ranking of heads and their roles, at each checkpoint."""

    curves: pd.DataFrame
    order: pd.DataFrame


def dynamics(
    training: str | Path,
    corpus: CorpusLike,
    held_out: CorpusLike,
    *,
    metric: str | Metric = "loss",
    steps: int = 10,
    n_resamples: int = 1000,
    study: Study | str | Path | None = None,
) -> Dynamics:
    """Ablate and score heads at each checkpoint of a training (Michel et al. 2019, section 6, Fig. 5).

    Args:
        training: Folder of `hr.train`, with checkpoints.
        corpus: Corpus on which importance and roles are computed.
        held_out: Corpus on which ablated models are evaluated.
        metric: Name of the metric of the curves, or a metric.
        steps: Number of steps in which all heads are ablated.
        n_resamples: Number of bootstrap resamples.
        study: Study or folder that keeps the tables; finished checkpoints are not measured again.

    Returns:
        Two tables. `curves`, kept as `dynamics-curves`, has a row per checkpoint and number of ablated heads, the least
        important first: `epoch`, `step`, `masked`, `share`, `value` with `low` and `high`, and `kept`, the share of the
        intact model's value at that checkpoint. `order`, kept as `dynamics-order`, has a row per checkpoint: Spearman's
        correlation of importance with importance at the last one, over `all` heads and `within` layers, with intervals;
        the number of heads with each family of roles; and the share of the last checkpoint's roles that are assigned.
    """
    places, corpus, held_out, chosen = _checkpoints(training), as_corpus(corpus), as_corpus(held_out), as_metric(metric)
    last = identity.weights_digest(loading.load_model(places[-1][2]))
    kept = as_study(study)
    kept.claim("dynamics-curves", frame.sign(weights=last, text=held_out.hash))
    tables, parts = [], []
    for epoch, step, place in places:
        part, table = _measured(kept, place, step, corpus, held_out, chosen, steps, n_resamples)
        parts.append(part.assign(epoch=epoch, step=step))
        tables.append(table)
    curves = pd.concat(parts, ignore_index=True)
    intact = curves[curves["masked"] == 0].set_index("step")["value"]
    curves["kept"] = curves["value"] / curves["step"].map(intact)
    order = pd.DataFrame(
        {"epoch": epoch, "step": step} | _agreement(table, tables[-1])
        for (epoch, step, _), table in zip(places, tables, strict=True)
    )
    for name, table in (("dynamics-curves", curves), ("dynamics-order", order)):
        kept.save(name, frame.signed(table, frame.provenance(parts[-1], "value")))
    return Dynamics(curves, order)


def _checkpoints(training: str | Path) -> list[tuple[float, int, Path]]:
    """List the checkpoints of a training in order: epoch, step, folder."""
    if not (places := checkpoints(expanded(training))):
        raise FileNotFoundError(f"no checkpoint in {training}; headroles train keeps one each epoch")
    states = [json.loads((place / "trainer_state.json").read_text()) for place in places]
    return [(float(at["epoch"]), int(at["global_step"]), place) for at, place in zip(states, places, strict=True)]


def _measured(
    study: Study, place: Path, step: int, corpus: Corpus, held_out: Corpus, metric: Metric, steps: int, n_resamples: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the curve and the scores of one checkpoint."""
    kept = Study(study.work / ".checkpoints", overwrite=True)
    model, tokenizer = loading.load(place)
    measured = {"held_out": held_out.hash, "metric": metric, "steps": steps, "resamples": n_resamples}
    key = HeadModel(model, tokenizer).cache_key(corpus, code=identity.fingerprint(metric), **measured)

    def scores() -> pd.DataFrame:
        rest = score(model, tokenizer, corpus, n_resamples=min(n_resamples, 200))
        importance = score(model, tokenizer, corpus, ["importance"], n_resamples=n_resamples)
        return frame.join(importance, rest[[name for name in rest if Column.parse(name).name != "importance"]])

    table = kept.keep(f"heads-{step}", key, scores)

    def curve() -> pd.DataFrame:
        ranking = orders(table, ["importance"])
        return ablation_curve(model, tokenizer, held_out, ranking, metric=metric, steps=steps, n_resamples=n_resamples)

    return kept.keep(f"curve-{step}", key, curve), table


def _agreement(table: pd.DataFrame, last: pd.DataFrame) -> dict[str, float]:
    """Compare the importance and roles of heads with those at the last checkpoint."""
    compared = {"now": table, "last": last.loc[table.index]}
    columns = {name: part["importance"] for name, part in compared.items()}
    draws = {name: drawn["importance"] for name, part in compared.items() if (drawn := frame.resamples(part))}
    both = frame.table(columns, frame.rows(table), frame.provenance(table, "importance"), draws=draws)
    row = dict(agreement(both, ["now"], "last").iloc[0])
    if not role_rules.assignable(table):
        return row
    assigned = role_rules.roles(table)
    pairs, last_pairs = (
        {row[:4] for row in role_rules.held(roles).itertuples(index=False, name=None)}  # (kind, layer, head, role)
        for roles in (assigned, role_rules.roles(last))
    )
    variants = role_rules.families(assigned)
    for name in sorted({role.name for role in role_rules.ROLES}):
        row[f"roles[{name}]"] = int(assigned[variants.get(name, [])].any(axis=1).sum())  # a head may hold several
    return row | {"roles of the last": len(pairs & last_pairs) / len(last_pairs) if last_pairs else np.nan}
