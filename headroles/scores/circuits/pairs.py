"""Pairs: how much each head reads of what a head of an earlier layer writes."""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headroles.models.heads import attention_sites
from headroles.models.provenance import provenance_of
from headroles.scores.circuits.maps import Maps, read_circuits
from headroles.tables import frame
from headroles.tables.frame import Kind

COLUMNS = ["kind", "layer", "head", "to_layer", "to_head", "query", "key", "value"]


def composition(model: PreTrainedModel) -> pd.DataFrame:
    """Compute how much each head reads what each head of an earlier layer writes.

    For W_OV of the writer, and W_QK and W_OV of the reader, the scores are Frobenius norms (Elhage et al. 2021, "A
    mathematical framework for transformer circuits", "Analyzing a Two-Layer Model"):

        query  ||W_QK^T W_OV|| / (||W_QK|| ||W_OV||)
        key    ||W_QK W_OV|| / (||W_QK|| ||W_OV||)
        value  ||W_OV W_OV|| / (||W_OV|| ||W_OV||)

    They are 1 at most; random maps have about 1 / sqrt(width). The source subtracts what random matrices of the same
    shapes have, here nothing is subtracted. The norm before a layer, if any, is in what it reads, with a frozen scale;
    others on the way are not. Rotary positions are those of a query and a key in one place.

    Args:
        model: the model.

    Returns:
        One row per pair of self-attention heads of one stack: `kind`, `layer` and `head` of the writer, `to_layer` and
        `to_head` of the reader, and the scores `query`, `key` and `value`; NaN where a map is 0. The scores are exact
        for these weights, and the weights are no sample: there are no intervals.

    Raises:
        ValueError: if the maps of the model cannot be read.
    """  # noqa: DOC502
    circuits = read_circuits(model)
    rows: list[tuple[Kind | float, ...]] = []
    sites = [site for site in attention_sites(model) if site.kind != "cross" and site.heads]
    for writer in sites:
        for reader in (site for site in sites if site.kind == writer.kind and site.layer > writer.layer):
            scores = _composed(circuits.maps[writer.key], circuits.maps[reader.key])  # [writer, reader, 3]
            for i, head in enumerate(writer.numbers):
                for j, to_head in enumerate(reader.numbers):
                    rows.append((*writer.key, head, reader.layer, to_head, *scores[i, j].tolist()))
    return frame.signed(pd.DataFrame(rows, columns=COLUMNS), provenance_of(model, score="composition"))


def _composed(writer: Maps, reader: Maps) -> Tensor:
    """Composition scores of all pairs of two layers, by products of the size of heads: [writer, reader, 3]."""
    written, read = _triangle(writer.value), writer.out.mT  # [writer, size, size], [writer, width, size]
    scores = []
    for left, right in ((reader.key, reader.query), (reader.query, reader.key), (reader.out, reader.value)):
        whole = _triangle(left)[None] @ (right[None] @ read[:, None]) @ written[:, None].mT
        sizes = _norm(_triangle(left) @ _triangle(right).mT)[None] * _norm(_triangle(writer.out) @ written.mT)[:, None]
        scores.append(torch.where(sizes > 0, _norm(whole) / sizes, torch.nan))
    return torch.stack(scores, -1)


def _triangle(rows: Tensor) -> Tensor:
    """R of rows^T = Q R, of the same Frobenius norm in every product: [heads, rank, size]."""
    factors: Tensor = torch.linalg.qr(rows.mT, mode="r").R
    return factors


def _norm(matrices: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.matrix_norm(matrices)
    return norms
