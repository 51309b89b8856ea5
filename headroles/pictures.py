"""Pictures: the figure of axes as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headroles.heads import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def save(axes: Axes, path: Path, *, dpi: int = 150) -> Path:
    """Save the figure of `axes` in the format of the path's suffix, and close it."""
    import matplotlib.pyplot as plt

    figure: Any = axes.get_figure(root=True)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=dpi, bbox_inches="tight", format=path.suffix.lstrip(".") or "png")
    plt.close(figure)
    return path
