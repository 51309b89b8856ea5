"""Run all checks on a tiny model of every known architecture, and write the table: python figures/families/make.py."""

from __future__ import annotations

from pathlib import Path

import headroles as hr
from headroles.testing import architectures

FOLDER = Path(__file__).parent

if __name__ == "__main__":
    table = architectures.architectures()
    hr.save_table(table, FOLDER / "families.parquet")
    (FOLDER / "families.md").write_text(architectures.written(table) + "\n", encoding="utf-8")
