"""Compensation: how far the weights of each head that is left moved in fine-tuning, and whether all moved alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor
from transformers import PreTrainedModel

from headroles.models import dummy_inputs, loading
from headroles.models import heads as families
from headroles.models.sites import Site
from headroles.pruning.layout import Layout, layouts
from headroles.tables import frame

PARTS = ("q", "k", "v", "o")


def weight_change(before: PreTrainedModel, after: PreTrainedModel) -> pd.DataFrame:
    """How far each head of `after` moved from what it was in `before` (Budhraja et al. 2020): a row per head.

    `after` may lack heads; heads of the same number are compared. Columns, for queries, keys, values, the output
    projection and all of them: `distance[q]`, the Frobenius norm of the change, `moved[q]`, that over the norm of the
    weights before, and `cosine[q]` of the weights before and after. Heads that share a key-value head share its k and
    v. The paper does not say which distance it uses. Raises ValueError for a head that `before` lacks.
    """
    old, new = _slices(before), _slices(after)
    index = families.head_index(after)
    if lacking := [head for head in index if head not in old]:
        raise ValueError(f"the model before lacks head {lacking[0]} of the model after; give them in the other order")
    columns: dict[str, list[float]] = {}
    for part in (*dict.fromkeys(name for head in index for name in new[head]), "all"):
        pairs = [(_part(old[head], part), _part(new[head], part)) for head in index]
        if any(one.shape != two.shape for one, two in pairs):
            raise ValueError(f"{part!r} of a head has other sizes in the two models: they are not of one family")
        columns[f"distance[{part}]"] = [float((two - one).norm()) for one, two in pairs]
        columns[f"moved[{part}]"] = [float((two - one).norm() / one.norm()) for one, two in pairs]
        columns[f"cosine[{part}]"] = [float(torch.cosine_similarity(one, two, dim=0)) for one, two in pairs]
    signature = frame.sign(
        model=loading.name(before), before=loading.revision(before), after=loading.revision(after), distance="frobenius"
    )
    return frame.table(columns, index, signature)


def uniformity(tables: Sequence[pd.DataFrame], column: str = "moved[all]") -> pd.DataFrame:
    """Do all heads move alike? Tables of `compensation` after fine-tuning with several seeds: a row per question.

    "heads": over all heads; "heads of a layer": each head's movement over the mean of its layer. `cv` is the standard
    deviation over heads of the mean movement, over its mean; `w` is Kendall's concordance of the seeds' orders of heads
    (0: chance, 1: the same order each time) and `p` that of Friedman's test that every head is as likely to have any
    rank. Raises ValueError for fewer than three tables, or tables of other heads.
    """
    if len(tables) < 3 or any(not one.index.equals(tables[0].index) for one in tables):
        raise ValueError(f"expected tables of the same heads after at least 3 fine-tunings; got {len(tables)}")
    moved = pd.concat([one[column].rename(seed) for seed, one in enumerate(tables)], axis=1)  # [head, seed]
    inside = moved / moved.groupby(level=["kind", "layer"]).transform("mean")
    rows = {"heads": moved, "heads of a layer": inside}
    found = pd.DataFrame({name: _alike(values.to_numpy()) for name, values in rows.items()}).T.rename_axis("of")
    found.attrs["signatures"] = dict.fromkeys(found.columns, frame.provenance(tables[0], column))
    return found


def alike(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """`uniformity` of distances and of relative movement, of all weights and of each part."""
    columns = [name for name in map(str, tables[0]) if name.startswith(("distance[", "moved["))]
    parts = [uniformity(tables, name) for name in columns]
    for name, part in zip(columns, parts, strict=True):
        part.index = pd.Index([f"{name} of {of}" for of in part.index], name="of")
    found = pd.concat(parts)
    found.attrs["signatures"] = dict.fromkeys(found.columns, frame.provenance(tables[0], columns[0]))
    return found


def _alike(values: Any) -> dict[str, float]:
    test = stats.friedmanchisquare(*values) if len(values) > 2 else None  # a block is a seed, a treatment a head
    count, seeds = values.shape
    mean = values.mean(1)
    return {
        "cv": float(mean.std() / mean.mean()),
        "largest over mean": float(mean.max() / mean.mean()),
        "w": float(test.statistic / (seeds * (count - 1))) if test else np.nan,
        "p": float(test.pvalue) if test else np.nan,
    }


def _slices(model: PreTrainedModel) -> dict[Any, dict[str, Tensor]]:
    """The weights of each head: (kind, layer, number) -> part -> flat float64."""
    dummy_inputs.check(model)
    rows = layouts(model)
    found: dict[Any, dict[str, Tensor]] = {}
    for site in families.attention_sites(model):
        columns = _weight(site.out).unflatten(1, (site.heads, site.size)) if site.heads else None
        for place, number in enumerate(site.numbers):
            parts = _inputs(site, rows[site.module], place)
            assert columns is not None
            found[*site.key, number] = parts | {"o": columns[:, place].flatten()}
    return found


def _inputs(site: Site, layout: Layout, place: int) -> dict[str, Tensor]:
    """Queries, keys and values of a head: the maps by their first letter, the thirds of a fused map in this order."""
    found: dict[str, list[Tensor]] = {}
    for name, runs in layout.items():
        weight = _weight(site.module.get_submodule(name))
        own = [start for heads, start, stop in runs if place in heads for start in range(start, stop, site.size)]
        fused = len(own) == 3
        for i, start in enumerate(own):
            part = PARTS[i] if fused else name[0] if name[0] in PARTS else name
            found.setdefault(part, []).append(weight[start : start + site.size].flatten())
    return {part: torch.cat(each) for part, each in found.items()}


def _part(slices: dict[str, Tensor], part: str) -> Tensor:
    return torch.cat(list(slices.values())) if part == "all" else slices[part]


def _weight(module: Any) -> Tensor:
    """[out, in], as float64."""
    weight: Tensor = module.weight.detach().double().cpu()
    return weight.T if type(module).__name__ == "Conv1D" else weight
