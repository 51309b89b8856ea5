"""What studies of specialised heads take from the replication: prepared pairs, tokenizers, options of training."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "papers" / "replicate"))

from marian import LONGEST, pieced  # noqa: E402
from preparation import Prepared, prepared  # noqa: E402
from replicate import pace  # noqa: E402

__all__ = ["LONGEST", "Prepared", "pace", "pieced", "prepared"]
