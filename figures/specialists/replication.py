"""What studies of specialised heads take from the replication of the papers: prepared pairs, options of training."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "papers" / "replicate"))

from preparation import Prepared, prepared  # noqa: E402
from replicate import pace  # noqa: E402

__all__ = ["Prepared", "pace", "prepared"]
