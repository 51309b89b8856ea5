"""Every figure lies within its page."""

from __future__ import annotations

import matplotlib
import pytest
from helpers.drawn import column, distances, index, syntax, table_of_roles

from headroles import plots

matplotlib.use("Agg")


pytestmark = pytest.mark.usefixtures("nothing_shown")


@pytest.mark.slow
def test_every_figure_can_be_rendered_and_lies_within_its_page() -> None:
    drawn = [
        plots.heatmap(column(index(enc_self=(6, 12)), name="a name that is rather long [of its detail]")),
        plots.roles(table_of_roles()),
        plots.offsets(distances())[0],
        plots.dependency(syntax()),
    ]
    for ax in drawn:
        ax.figure.canvas.draw()
        page, used = ax.figure.bbox, ax.figure.get_tightbbox(ax.figure.canvas.get_renderer())
        dpi = ax.figure.dpi
        assert used.x0 * dpi >= page.x0 - 1
        assert used.y0 * dpi >= page.y0 - 1
        assert used.x1 * dpi <= page.x1 + 1
        assert used.y1 * dpi <= page.y1 + 1
