"""The passes of one score of gradients over a corpus: forward and back, batch by batch."""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel

from headroles import families, processes
from headroles.batches import Batch
from headroles.heads import Kind
from headroles.lrp.ledger import NOTHING
from headroles.objectives import Groups
from headroles.scores.book import Book
from headroles.scores.gradient import Gradient, Slopes


class Flow:
    """The passes of one score of gradients over a corpus."""

    def __init__(self, score: Gradient, model: PreTrainedModel, book: Book, groups: Groups) -> None:
        self.score, self.model, self.book = score, model, book
        self.explain = score.explain(model, groups)
        self.notes: list[tuple[int, dict[str, object]]] = []  # of the first batch of which something is explained
        self.felt, self.batches = False, 0

    def read(self, batch: Batch, weights: Tensor) -> None:
        """Add what flows back from one batch."""
        slopes = self.score.slopes(self.model, self.explain, batch)
        self._check_finite(slopes, batch)
        if not self.notes and slopes.counted.any():
            self.notes = [(self.batches, self.score.notes(self.model, self.explain, batch))]
        self.batches += 1
        self.felt |= bool(slopes.gradients.any())
        start, grounded = 0, set[Kind]()
        for site in families.sites(self.model):
            own = slopes.of(site.kind, slice(start, start + site.heads))
            start += site.heads
            if site.kind not in self.score.kinds:
                continue
            self.book.add(self.score, site.key, self.score.tally(own), weights)
            if site.kind not in grounded:
                self.book.add_ground(self.score, site.kind, self.score.ground(own), weights)
            grounded.add(site.kind)

    def close(self) -> dict[str, object]:
        """What the signature says of the passes. Raises ValueError if nothing was explained or flowed back."""
        notes = processes.gathered(self.notes)
        if not notes:
            raise ValueError(NOTHING)
        if not any(processes.gathered([self.felt])):
            raise ValueError(
                f"every gradient of {self.score.label} is zero: no head of {type(self.model).__name__} has a part in "
                f"objective {self.score.chosen(self.model).name!r}; choose another"
            )
        return min(notes, key=lambda pair: pair[0])[1]  # as one process would have them: its first is the first's

    def _check_finite(self, slopes: Slopes, batch: Batch) -> None:
        finite = slopes.gradients.isfinite().flatten(1).all(-1)  # [batch]
        if not finite.all():
            number = batch.numbers[int(finite.int().argmin())]
            raise ValueError(
                f"{self.score.label} is not finite on sentence {number + 1} of the corpus; look for NaN or infinite "
                f"weights in {type(self.model).__name__}, or load it in float32"
            )
