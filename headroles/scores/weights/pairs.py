"""Pairs of heads: how much one reads of what an earlier one writes, and induction heads found by that."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from headroles.models.head_model import HeadModel, Model
from headroles.scores.weights.maps import Maps, read_circuits
from headroles.tables import frame
from headroles.tables.frame import Kind
from headroles.tables.study import Study, study_at

COLUMNS = ["kind", "layer", "head", "to_layer", "to_head", "query", "key", "value", "matching"]


def composition(model: Model, *, distance: int = 0, study: Study | str | Path | None = None) -> pd.DataFrame:
    """Compute how much each head reads what each head of an earlier layer writes.

    For W_OV of the writer, and W_QK and W_OV of the reader, the first three scores are Frobenius norms (Elhage et al.
    2021, "A mathematical framework for transformer circuits", "Analyzing a Two-Layer Model"):

        query     ||W_QK^T W_OV|| / (||W_QK|| ||W_OV||)
        key       ||W_QK W_OV|| / (||W_QK|| ||W_OV||)
        value     ||W_OV W_OV|| / (||W_OV|| ||W_OV||)
        matching  trace(W_QK W_OV) / (||W_QK|| ||W_OV||)

    They are 1 at most; random maps have about 1 / sqrt(width), and 0 +- 1 / width in `matching`. The source subtracts
    what random matrices of the same shapes have, here nothing is subtracted. `matching` is the part of `key` that looks
    for the same token: the cosine of W_QK^T and W_OV, 1 if a query x rates highest what the writer has made of x. The
    norm before a layer, if any, is in what it reads, with a frozen scale; others on the way are not.

    Args:
        model: the model.
        distance: tokens from a key to a query, by which rotary positions turn W_QK.
        study: study or folder that keeps the table as `composition`; if it has it, nothing is computed.

    Returns:
        One row per pair of self-attention heads of one stack: `kind`, `layer` and `head` of the writer, `to_layer` and
        `to_head` of the reader, and the scores; NaN where a map is 0. The scores are exact for these weights, and the
        weights are no sample: there are no intervals.

    Raises:
        ValueError: if the maps of the model cannot be read, or it has no such distance.
    """  # noqa: DOC502
    handle = HeadModel.of(model)
    options = {"distance": distance} if distance else {}
    if study is not None:
        key = handle.cache_key(circuits="pairs", **options)
        return study_at(study).keep("composition", key, partial(composition, handle, distance=distance))
    maps = read_circuits(handle, distance=distance).maps
    both = {place: (whole, Maps(*map(_triangle, whole))) for place, whole in maps.items()}
    rows: list[tuple[Kind | float, ...]] = []
    sites = [site for site in handle.sites if site.kind != "cross" and site.heads]
    for writer in sites:
        for reader in (site for site in sites if site.kind == writer.kind and site.layer > writer.layer):
            scores = _composed(*both[writer.key], *both[reader.key])  # [writer, reader, 4]
            for i, head in enumerate(writer.numbers):
                for j, to_head in enumerate(reader.numbers):
                    if head in writer.left and to_head in reader.left:
                        rows.append((*writer.key, head, reader.layer, to_head, *scores[i, j].tolist()))
    return frame.signed(pd.DataFrame(rows, columns=COLUMNS), handle.provenance(score="composition", **options))


def _composed(writer: Maps, small: Maps, reader: Maps, small_reader: Maps) -> Tensor:
    """Composition scores of all pairs of two layers, by products of the size of heads: [writer, reader, 4]."""
    written = _norm(small.out @ small.value.mT)[:, None]  # of W_OV
    names = ("key", "query"), ("query", "key"), ("out", "value")
    scores = []
    for left, right in names:
        looked = _crossed(getattr(reader, right), writer.out)  # [writer, reader, size, size]
        outer, inner = getattr(small_reader, left), getattr(small_reader, right)
        sizes = _norm(outer @ inner.mT) * written
        scores.append(torch.where(sizes > 0, _norm(outer @ looked @ small.value[:, None].mT) / sizes, torch.nan))
        if left == "query":  # trace(Q^T K O^T V) is the sum of (K O^T) * (Q V^T)
            trace = (looked * _crossed(reader.query, writer.value)).sum((-2, -1))
            matching = torch.where(sizes > 0, trace / sizes, torch.nan)
    return torch.stack([*scores, matching], -1)


def _crossed(reader: Tensor, writer: Tensor) -> Tensor:
    """The products of the rows of all heads of two layers, as one: [writer, reader, size of reader, of writer]."""
    rows = (reader.flatten(0, 1) @ writer.flatten(0, 1).mT).unflatten(0, reader.shape[:2])
    products: Tensor = rows.unflatten(2, writer.shape[:2]).permute(2, 0, 1, 3)
    return products


def _triangle(rows: Tensor) -> Tensor:
    """R of rows^T = Q R, of the same Frobenius norm in every product: [heads, rank, size]."""
    factors: Tensor = torch.linalg.qr(rows.mT, mode="r").R
    return factors


def _norm(matrices: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.matrix_norm(matrices)
    return norms


def induction_strength(pairs: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Compute how strongly each head can do induction: match a token with what a previous-token head has written.

    An induction head finds the place after an earlier occurrence of the current token because a head of an earlier
    layer has written there which token came before (Elhage et al. 2021, "Induction Heads"). The strength is the largest
    product, over earlier heads, of the weight they give to the token before (`previous`, measured) and the composition
    with them that looks for the same token (`matching`, from the weights). Where a deep head attends can't be read from
    the weights alone: it depends on what earlier layers write.

    Args:
        pairs: table of `hr.composition`.
        scores: table with the column `previous`: of `hr.score(..., ["previous"])`, on random tokens
            (`hr.repeated_tokens`) or on text.

    Returns:
        One row per head of `scores` with `circuit[induction]`, at most 1, and the earlier head with which it has it,
        `circuit[induction].layer` and `circuit[induction].head`; NaN for heads of a first layer.

    Raises:
        ValueError: if there is no column `previous`, or the tables are of different models.
    """
    if "previous" not in scores:
        have = ", ".join(map(str, scores)) or "none"
        raise ValueError(f"no column previous: got {have}; try hr.score(model, tokenizer, corpus, ['previous'])")
    texts = frame.provenance(pairs, "matching"), frame.provenance(scores, "previous")
    weights = [dict(frame.fields(text))["weights"] for text in texts]
    if weights[0] != weights[1]:
        raise ValueError(f"tables of different models: got weights {' and '.join(weights)}; expected the same")
    writers = pd.MultiIndex.from_frame(pairs[["kind", "layer", "head"]])
    products = pairs["matching"] * scores["previous"].reindex(writers).to_numpy()
    best = pairs.loc[products.groupby([pairs["kind"], pairs["to_layer"], pairs["to_head"]]).idxmax()]
    columns = {"": products[best.index], ".layer": best["layer"], ".head": best["head"]}
    readers = pd.MultiIndex.from_frame(best[["kind", "to_layer", "to_head"]], names=scores.index.names)
    table = pd.DataFrame({f"circuit[induction]{name}": values.to_numpy() for name, values in columns.items()}, readers)
    text = frame.holding(pairs=texts[0], previous=texts[1])
    return frame.signed(table.astype(float).reindex(scores.index), text)
