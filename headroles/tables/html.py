"""HTML of small tables, by which notebooks show corpora, studies and attention sites (no torch)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

import pandas as pd


def shown(caption: str, rows: Iterable[Mapping[str, object]]) -> str:
    """Return rows of the same columns as an HTML table below a caption, all text escaped."""
    table = pd.DataFrame([{name: str(value) for name, value in row.items()} for row in rows])
    with pd.option_context("display.max_colwidth", 120):
        body = "" if table.empty else table.to_html(index=False, border=0, justify="left")
    return f"<p>{escape(caption)}</p>{body}"
