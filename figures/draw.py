"""Draw the pictures of .docs/gallery.toml under their model and corpus: python figures/draw.py [PART OF A NAME ...]."""

from __future__ import annotations

import sys
import tomllib
from io import BytesIO
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
from PIL import Image

import headroles as hr

HERE = Path(__file__).resolve().parent


def titled(code: str, of: str) -> plt.Figure:
    """Run a line that draws, and write above the figure what it is of."""
    exec(compile(code, of, "exec"), {"hr": hr})
    figure = plt.gcf()
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    middle, top = (box.x0 + box.x1) / 2 / width, (box.y1 + 0.12) / height
    figure.text(middle, top, of, ha="center", va="bottom", fontsize=11, weight="bold")
    return figure


def main(names: list[str]) -> None:
    """Draw the pictures with a name in their path, or all, in 256 colours."""
    listed = tomllib.loads((HERE.parent / ".docs/gallery.toml").read_text(encoding="utf-8"))
    for entry in [*listed["figure"], *listed["page"]]:
        if not names or any(name in entry["picture"] for name in names):
            drawn = BytesIO()
            titled(entry["code"], entry["of"]).savefig(drawn, dpi=150, bbox_inches="tight")
            picture = Image.open(drawn).convert("RGB").quantize(256)
            picture.save(HERE / entry["picture"], optimize=True)
            plt.close("all")
            print(entry["picture"])


if __name__ == "__main__":
    main(sys.argv[1:])
