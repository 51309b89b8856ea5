"""Sink: how much of a head's attention rests on special tokens, or on the first token."""

from dataclasses import dataclass

from torch import Tensor

from headroles.scores.base import Score, Seen, Sums


@dataclass(frozen=True)
class Sink(Score):
    """Mean over real queries of the weight on special tokens (Clark et al. 2019), and on the first token of any sort.

    A head with nothing to do rests there: on CLS and SEP in BERT, on the first token in decoders (Xiao et al. 2023).
    """

    in_parts = True

    def tally(self, seen: Seen) -> dict[str, Tensor]:
        """The sums of the weights on special tokens and on the first token."""
        special = seen.on_keys(seen.keys.present & ~seen.keys.real)
        return {"special": special, "first": seen.received[..., 0].double()}

    def finish(self, sums: Sums) -> dict[str, Tensor]:
        """`sink[special]` and `sink[first]`."""
        return {f"sink[{where}]": sums[where] / sums["queries"] for where in ("special", "first")}
