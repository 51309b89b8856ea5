"""The maps of the study of PLAN.md: roles above the effect of ablation: python figures/real-models/picture.py."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image

import headroles as hr

HERE = Path(__file__).parent
TITLES = {"smollm2": "SmolLM2-135M-Instruct", "gemma3": "Gemma 3 270M", "mpnet": "MPNet base"}


def main() -> None:
    """Draw a map for each model that has tables."""
    for name, title in TITLES.items():
        if not (HERE / name / "ablation.parquet").is_file():
            continue
        effects = hr.load_table(HERE / name / "ablation.parquet")
        column = effects.columns[0]
        files = [HERE / name / f".{part}.png" for part in ("roles", "effects")]
        ax = hr.plots.roles(hr.load_table(HERE / name / "roles.parquet"))
        ax.set_title(f"{title}: what each head attends to")
        below = hr.plots.heatmap(effects[column], cbar=False)
        below.set_title("what the model loses without each head")
        unit = "the loss, nats" if "loss" in str(column) else "agreement with the intact model's states"
        bar = below.figure.colorbar(below.collections[0], ax=below, orientation="horizontal", shrink=0.4, aspect=40)
        bar.set_label(f"change of {unit}")
        for drawn, file in zip((ax, below), files, strict=True):
            drawn.figure.savefig(file, dpi=120)
            plt.close(drawn.figure)
        parts = [Image.open(file).convert("RGB") for file in files]
        whole = Image.new("RGB", (max(part.width for part in parts), sum(part.height for part in parts)), "white")
        for part, top in zip(parts, (0, parts[0].height), strict=True):
            whole.paste(part, (0, top))
        whole.save(HERE / name / "map.png")
        for file in files:
            file.unlink()


if __name__ == "__main__":
    main()
