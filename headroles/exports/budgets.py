"""Cache budgets in files for other programs: DuoAttention, kvpress, or plain JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from headroles.analysis.intervals import Array
from headroles.budgets.cache import budget_of
from headroles.tables import frame
from headroles.tables.arguments import one_of
from headroles.tables.io import expanded, replacing

Form = Literal["duo", "kvpress", "json"]
FORMS: tuple[Form, ...] = get_args(Form)


def export_budget(table: pd.DataFrame, folder: str | Path, form: Form = "duo") -> list[Path]:
    """Write the budget of a model for DuoAttention or kvpress, or as plain JSON.

    - "duo": `full_attention_heads.tsv`, a row for each layer with tabs between the key-value heads, 1 for a head that
      keeps its whole cache, and `config.json` with `sink_size` and `recent_size`, as `load_attn_pattern` of
      mit-han-lab/duo-attention (`duo_attn/utils.py`) reads them. Layers with a window have rows of ones.
    - "kvpress": the same files, which `DuoAttentionPress.load_attention_pattern` of NVIDIA/kvpress reads, and in
      `config.json` its `head_compression_ratio`: it lets this share of the heads with the lowest numbers stream. It
      loads files of six known checkpoints only, so you have to replace that method. Its format is taken from its
      source, since it needs transformers below 5.3.
    - "json": `budget.json` with `sink`, `recent`, and `retrieval` and `streaming`, each a list of [layer, group].

    Args:
        table: A table of `hr.cache_budget`.
        folder: Where the files are written.
        form: For which program: "duo", "kvpress" or "json".

    Returns:
        The files.

    Raises:
        ValueError: If the table is of another kind, or layers have different numbers of groups and the form is "duo"
            or "kvpress".
    """  # noqa: DOC502
    one_of("form", form, FORMS)
    pattern, _ = budget_of(table)
    text = dict(frame.fields(frame.provenance(table, "streaming")))
    if form == "json":
        content: dict[str, Any] = {"model": text.get("model"), "weights": text.get("weights")}
        content |= {"sink": pattern.sink, "recent": pattern.recent}
        for role in ("retrieval", "streaming"):
            content[role] = [[int(layer), int(group)] for _, layer, group in table.index[table[role] == 1]]
        files = {"budget.json": json.dumps(content)}
    else:
        matrix = _matrix(table, int(text["layers"]), "emptied" in text)
        config: dict[str, Any] = {"sink_size": pattern.sink, "recent_size": pattern.recent}
        if form == "kvpress":
            config["head_compression_ratio"] = float((matrix == 0).mean())
        files = duo(matrix, config)
    return written(expanded(folder), files)


def duo(matrix: Array, config: dict[str, Any]) -> dict[str, str]:
    """Return the files of DuoAttention and kvpress, of 1 for each group that keeps its whole cache: [layer, group]."""
    rows = "".join("\t".join(f"{value:.18e}" for value in row) + "\n" for row in matrix)
    return {"full_attention_heads.tsv": rows, "config.json": json.dumps(config)}


def written(folder: Path, files: dict[str, str]) -> list[Path]:
    """Write files of a folder, each complete or not at all."""
    for name, contents in files.items():
        with replacing(folder / name) as draft:
            draft.write_text(contents, encoding="utf8")
    return [folder / name for name in files]


def _matrix(table: pd.DataFrame, layers: int, is_emptied: bool) -> Array:
    """Return 1 for each group that keeps its cache, and for all of layers with windows: [layer, group]."""
    numbers = table.index.get_level_values("layer")
    sizes = {int(size) for size in table.groupby(level="layer").size()} | ({0} if is_emptied else set())
    if len(sizes) != 1:
        got = ", ".join(map(str, sorted(sizes)))
        raise ValueError(f"groups of each layer must be equally many for a matrix, got {got}; try form='json'")
    matrix = np.ones((layers, *sizes))
    matrix[numbers, table.index.get_level_values("group")] = table["retrieval"]
    return matrix
