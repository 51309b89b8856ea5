"""Lists of heads in files for other programs: alignment heads of Whisper, or heads of any role, with ranks."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from headroles.analysis.intervals import Array
from headroles.exports.budgets import duo, written
from headroles.tables import frame
from headroles.tables.arguments import number, one_of
from headroles.tables.columns import without_ends
from headroles.tables.declared import group_sizes, groups, signature_of
from headroles.tables.io import expanded, replacing

Form = Literal["json", "generation_config", "ctranslate2", "openai", "whisper.cpp", "vllm-hook", "duo"]
FORMS: tuple[Form, ...] = get_args(Form)
CONFIGS = {"generation_config": "generation_config.json", "ctranslate2": "config.json"}  # files that are changed


def export_heads(
    table: pd.DataFrame, path: str | Path, form: Form = "json", *, column: str = "chosen", count: int | None = None
) -> Path:
    """Write a list of heads for another program: the heads marked in a column, or the first ones by a score.

    - "json": all heads by rank, each with its value, interval, rank, and 95 % interval of the rank by the resamples of
      the table. How many heads pass a threshold depends on the corpus; which ones come first depends on it less. Heads
      of `hr.alignment_heads` are ranked as they were chosen, then by their error, which is given.
    - "generation_config": `alignment_heads` in the generation_config.json of a folder of transformers.
    - "ctranslate2": the same in the config.json of a folder of CTranslate2, which faster-whisper reads.
    - "openai": the text that `model.set_alignment_heads` of openai/whisper reads (base85 of a compressed mask), which
      needs a row for every cross head.
    - "whisper.cpp": the array of `whisper_ahead` for `dtw_aheads` of whisper.cpp.
    - "vllm-hook": `important_heads`, which `HookLLM.load_config` of IBM/vLLM-Hook reads.
    - "duo": a folder as of `hr.export_budget`, for DuoAttention and kvpress: a key-value group with a head of the list
      keeps its whole cache, all others the first 4 and the last 256 tokens, also in layers with a longer window.

    Pairs are [layer, head]. Those of alignment heads count the cross heads that are left; others have the numbers of
    the whole model.

    Args:
        table: A table with a row per head, such as `heads` of `hr.alignment_heads`, or of `hr.score` or `hr.roles`.
        path: The file; for "generation_config" and "ctranslate2", the file or folder with the list that is replaced;
            for "duo" a folder.
        form: For which program.
        column: The column: 1 for the heads of the list, or a score; then its `count` largest heads are written.
        count: Number of heads by the score; None for a column of 0 and 1.

    Returns:
        The file.

    Raises:
        ValueError: If the table has no such column, the list is empty, or alignment heads are not cross heads.
        FileNotFoundError: If there is no file with a list to be replaced.

    Example:
        >>> hr.export_heads(result.heads, "my-whisper-ct2", form="ctranslate2")
        >>> hr.export_heads(table, "retrieval.json", column="retrieval", count=10)
    """  # noqa: DOC502
    one_of("form", form, FORMS)
    one_of("column", column, without_ends(table))
    ranked = table[column].astype(float).sort_values(ascending=False, kind="stable").dropna()
    if count is not None:
        number("count", count, least=1, most=len(ranked), whole=True)
    elif not ranked.isin([0, 1]).all():
        raise ValueError(f"column {column!r} must hold 0 and 1, or give count=, got {ranked.iloc[0]:g}")
    chosen = list((ranked[ranked == 1] if count is None else ranked.head(count)).index)
    if not chosen:
        raise ValueError(f"column {column!r} must have heads to write, got none with 1")
    path = expanded(path)
    if form == "duo":
        return written(path, duo(_groups(table, chosen), {"sink_size": 4, "recent_size": 256}))[0]
    text = dict(frame.fields(signature_of(table, column)))
    source = {"model": text.get("model"), "weights": text.get("weights")}
    if form == "json":
        content = json.dumps({**source, "column": column, "heads": _rows(table, ranked, chosen, column)}, indent=1)
    elif form == "vllm-hook":
        pairs = [[int(layer), int(head)] for _, layer, head in chosen]
        content = json.dumps({"model_info": {"model_id": text.get("model")}, "params": {"important_heads": pairs}})
    else:
        path = path / CONFIGS[form] if form in CONFIGS and path.is_dir() else path
        content = _alignment(table, chosen, path, form)
    with replacing(path) as draft:
        draft.write_text(content, encoding="utf8")
    return path


def _rows(table: pd.DataFrame, ranked: pd.Series[float], chosen: list[Any], column: str) -> Any:
    """Return the entries of all heads, the first one first."""
    entries = ranked.rename("value").to_frame()
    entries["rank"] = ranked.rank(ascending=False, method="min").astype(int)
    if column == "chosen" and {"order", "error"} <= {*table}:
        first = table.loc[ranked.index].sort_values(["order", "error"]).index
        entries = entries.assign(error=table["error"]).loc[first]
        entries["rank"] = range(1, len(entries) + 1)
    entries["chosen"] = entries.index.isin(chosen)
    for end in (end for end in ("low", "high") if f"{column}.{end}" in table):
        entries[end] = table[f"{column}.{end}"]
    drawn = frame.resamples_of(table, column)
    if drawn is not None and drawn.shape[1]:
        ranks = pd.DataFrame(drawn, table.index).rank(ascending=False, method="min").loc[entries.index]
        entries["rank_low"], entries["rank_high"] = ranks.quantile([0.025, 0.975], axis=1).to_numpy()
    return json.loads(entries.reset_index().to_json(orient="records"))


def _groups(table: pd.DataFrame, chosen: list[Any]) -> Array:
    """Return 1 for each key-value group with a chosen head: [layer, group]."""
    if others := sorted({kind for kind, _, _ in chosen} - {"dec-self"}):
        raise ValueError(f"heads of form 'duo' must be dec-self heads, got {others[0]} heads; try form='json'")
    heads, of = table.index.to_frame(index=False), groups(table)
    heads["group"] = heads["head"] if of is None else of.to_numpy()
    heads["kept"] = table.index.isin(chosen)
    matrix = heads[heads["kind"] == "dec-self"].pivot_table("kept", "layer", "group", "max")
    matrix = matrix.reindex(range(1 + matrix.index.max())).astype(float)
    if matrix.isna().to_numpy().any() or 0 in group_sizes(table.loc[["dec-self"]]):
        raise ValueError("groups of each layer must be equally many for form='duo', got a pruned one; try form='json'")
    return matrix.to_numpy()


def _alignment(table: pd.DataFrame, chosen: list[Any], path: Path, form: Form) -> str:
    """Return the contents of a file with alignment heads."""
    if others := sorted({kind for kind, _, _ in chosen} - {"cross"}):
        raise ValueError(f"alignment heads must be cross heads, got {others[0]} heads; try form='json'")
    cross = table.xs("cross").sort_index()
    left = {layer: [int(head) for _, head in rows.index] for layer, rows in cross.groupby(level="layer")}
    pairs = sorted([int(layer), left[layer].index(head)] for _, layer, head in chosen)
    if form == "whisper.cpp":
        return f"static const whisper_ahead aheads[] = {{ {', '.join(f'{{ {a}, {b} }}' for a, b in pairs)} }};\n"
    if form == "openai":
        mask = np.zeros((len(left), max(map(len, left.values()))), dtype=bool)
        for layer, head in pairs:
            mask[layer, head] = True
        return base64.b85encode(gzip.compress(mask.tobytes(), mtime=0)).decode()
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}, in which {form} has its alignment heads; name its folder")
    content = json.loads(path.read_text(encoding="utf8")) | {"alignment_heads": pairs}
    return json.dumps(content, indent=2) + "\n"
