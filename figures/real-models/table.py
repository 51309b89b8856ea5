"""The tables of the page of results, from the tables of the study: python figures/real-models/table.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

import headroles as hr

HERE = Path(__file__).parent
MODELS = {"smollm2": "SmolLM2", "gemma3": "Gemma 3", "mpnet": "MPNet"}
ROLES = {"duplicate": "duplicate token", "any": "any but sinks"}
SIZES = (0.75, 0.5, 0.25, 0.125)
SHOWN = 5  # heads of each task


def related() -> Iterator[str]:
    """Heads with a role less others of their layer; the roles of two heads or more, the primary outcomes."""
    for model, title in MODELS.items():
        folder = HERE / model
        flags = hr.load_table(folder / "roles.parquet").select_dtypes(bool)
        held = flags.T.groupby(lambda name: str(name).partition("[")[0]).any().T
        counts = held.sum().to_dict() | {"any": int(held.drop(columns="sink").any(axis=1).sum())}
        heads = len(held)
        for _, row in hr.load_table(folder / "relate.parquet").iterrows():
            named = _outcome(str(row["outcome"]), heads)
            if named and counts[row["role"]] > 1:
                between = [_signed(row[f"within.{end}"]) for end in ("low", "high")]
                ends = "" if pd.isna(row["within.low"]) else f" [{', '.join(between)}]"
                cells = [
                    title,
                    f"{ROLES.get(row['role'], row['role'])} ({counts[row['role']]})",
                    named,
                    f"{_signed(row['within'])}{ends}",
                    _p(row["holm"]),
                ]
                yield _line(cells)


def _outcome(column: str, heads: int) -> str:
    if column.startswith("ablation[agreement"):
        return "agreement without it"
    if column.startswith("ablation"):
        return "loss without it, nats"
    return {"importance": "importance", f"survival[l0 {round(heads / 4)}]": "survival at a quarter"}.get(column, "")


def pruned(model: str) -> Iterator[str]:
    """By how much the loss rises without retraining, at each size."""
    table = pd.read_csv(HERE / model / "sizes.csv", index_col="set")
    heads = len(hr.load_table(HERE / model / "survival.parquet"))
    for size in SIZES:
        part = table["ablation[loss]"][table.index.str.endswith(f" {size:g}")]
        if len(part):
            random = part[part.index.str.startswith("random")]
            found = [f"{part[f'{way} {size:g}']:.2f}" for way in ("l0", "importance")]
            yield _line([f"{round(size * heads)} of {heads}", *found, f"{random.min():.2f} to {random.max():.2f}"])


def tasks(model: str) -> Iterator[str]:
    """The heads without which each task changes most, surely after Holm, and what they add directly or retrieve."""
    scores = hr.load_table(HERE / model / "task-scores.parquet")
    for column, (effect, low, high, holm) in _effects(model):
        sure = effect[holm < 0.05]
        for head in sure.abs().nlargest(SHOWN).index:
            ends = f"{effect[head]:.2f} [{low[head]:.2f}, {high[head]:.2f}]"
            also = [f"{round(scores.loc[head, name], 2) + 0.0:.2f}" for name in ("direct[difference]", "retrieval")]
            yield _line([MODELS[model], column, f"{head[1]}:{head[2]}", ends, *also])


def _effects(model: str) -> Iterator[tuple[str, tuple[pd.Series, ...]]]:
    table = hr.load_table(HERE / model / "task-ablation.parquet")
    for name, column in zip(("indirect objects", "agreement"), ("difference", "pair_difference"), strict=True):
        whole = f"ablation[{column} precision=1.1]"
        yield name, tuple(table[f"{whole}{end}"] for end in ("", ".low", ".high", ".holm"))


def _signed(value: float) -> str:
    return f"{value:+.4f}" if abs(value) < 0.1 else f"{value:+.2f}"


def _p(value: float) -> str:
    if pd.isna(value):  # fewer than five heads with the role, or all alike
        return "not tested"
    return "<0.001" if value < 0.001 else f"{value:.3f}".rstrip("0").rstrip(".")


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the tables."""
    print(*related(), sep="\n")
    for model in ("smollm2", "gemma3"):
        print(f"\n{MODELS[model]}", *pruned(model), sep="\n")
        if (HERE / model / "task-ablation.parquet").is_file():
            print(f"\n{MODELS[model]}", *tasks(model), sep="\n")


if __name__ == "__main__":
    main()
