"""Scores of what flows back to the gates: the gradient of an objective, or its relevance where rules stand in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from headroles import _distributed
from headroles.models import dummy_inputs
from headroles.models import heads as families
from headroles.models.batching import Batch
from headroles.models.dummy_inputs import without_cache
from headroles.models.masking import mask_heads
from headroles.scores.accumulator import Accumulator
from headroles.scores.base import Measure
from headroles.scores.lrp import Rules, lrp_rules
from headroles.scores.lrp.composites import check_reached, start
from headroles.scores.lrp.conservation_report import NOTHING
from headroles.scores.lrp.context import inside
from headroles.scores.objectives import Explain, Groups, Name, Objective, objective
from headroles.tables.frame import Kind

Steps = Literal["all", "sum"] | int
Array = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class HeadGradients:
    """What flows back to the gates of one site, or of all sites side by side, from one batch."""

    kind: Kind | None  # None: all sites
    gradients: Tensor  # [batch, step, heads]: d value / d gate, or relevance; 0 where a step does not count
    values: Tensor  # [batch, step]: what is explained
    counted: Tensor  # bool [batch, step]

    def of(self, kind: Kind, part: slice) -> HeadGradients:
        """Those of one site, whose heads stand at `part`."""
        return HeadGradients(kind, self.gradients[..., part], self.values, self.counted)

    @property
    def steps(self) -> Tensor:
        """How many steps count in each example: [batch, 1]."""
        return self.counted.sum(-1, keepdim=True)


@dataclass(frozen=True)
class GradientScore(Measure):
    """A score of the gates' gradients. A subclass is a frozen dataclass in a file of its own; its fields are options.

    `slopes` makes the backward passes, `update` and `compute` are pure as those of `Score`.
    """

    objective: Name | Objective | None = field(default=None, kw_only=True)
    ordinary: ClassVar[Name | None] = None  # the objective where none is given; None: the model's own

    def explain(self, model: PreTrainedModel, groups: Groups) -> Explain:
        """What to explain of each batch."""
        return self.chosen(model).explain(model, groups)

    def chosen(self, model: PreTrainedModel) -> Objective:
        """The objective for this model."""
        return objective(self.objective or self.ordinary, model)

    def notes(self, model: PreTrainedModel, _explain: Explain, _batch: Batch, /) -> dict[str, object]:
        """What a signature says of the run beyond the options, told from its first batch."""
        return {"objective": self.chosen(model)}

    @abstractmethod
    def slopes(self, model: PreTrainedModel, explain: Explain, batch: Batch) -> HeadGradients:
        """What flows back to all gates from one batch."""

    @abstractmethod
    def update(self, slopes: HeadGradients) -> dict[str, Tensor]:
        """What flowed back to each head in each sentence: {name: [batch, heads] or [batch, heads, detail]}."""

    def denominators(self, slopes: HeadGradients) -> dict[str, Tensor]:
        """How many steps there were in each sentence: {name: [batch, 1]}."""
        return {"steps": slopes.steps}


def slopes(
    model: PreTrainedModel,
    explain: Explain,
    batch: Batch,
    *,
    rules: Rules = "gradient",
    epsilon: float = 0.0,
    steps: Steps = "all",
    chunk: int = 4,
    by_token: bool = True,
) -> HeadGradients:
    """What flows back to the unit gates of `model` from what is explained of `batch`, by `rules`.

    `steps`: each step by itself ("all"), their sum as one ("sum", a single backward pass), or so many of each sentence,
    drawn by its number. Steps go back together, `chunk` at a time, which bounds the memory. `by_token`:
    step t is explained by the model's states at token t alone, so that all logits go back to those states at once.
    Relevance by the voita rules starts at 1, by others at the value. All is 0 where no step counts.
    """
    heads = len(families.head_index(model))
    gates = torch.ones(len(batch.numbers), heads, device=model.device, requires_grad=True)
    with (
        torch.enable_grad(),
        lrp_rules(model, rules, epsilon=epsilon),
        mask_heads(model, gates),
        _states(model) as seen,
    ):
        output = model(**batch.inputs, **without_cache(model))
        with inside(model):
            explained = explain(output, batch)
    begin = torch.where(explained.counted, start(explained.values.detach(), rules), 0.0)
    values, counted = explained.values.detach().float() * explained.counted, explained.counted
    places = _places(counted, steps, batch.numbers)
    if places is None and rules.startswith("voita"):  # the sum of the steps starts at 1 as well
        begin = begin / counted.sum(-1, keepdim=True).clamp(min=1)
    if places is None:
        gradients = _grad(explained.values, gates, begin)[:, None]
        return HeadGradients(None, gradients, values.sum(-1, keepdim=True), counted.any(-1, keepdim=True))
    values, counted = (F.pad(each, (0, 1)).gather(1, places) for each in (values, counted))
    root, back = explained.values, begin
    if by_token and len(seen) == 1 and seen[0].shape[:2] == begin.shape:
        root, back = seen[0], _grad(explained.values, seen[0], begin)
    hot = F.one_hot(places, begin.shape[1] + 1)[..., :-1].transpose(0, 1).to(back)  # [step, batch, token]
    hot = hot[..., None] if back.ndim == 3 else hot
    parts = [_grad(root, gates, back * part, batched=True) for part in hot.split(chunk)]
    return HeadGradients(None, torch.cat(parts).transpose(0, 1), values, counted)


def shares(slopes: HeadGradients, *, signed: bool) -> Tensor:
    """Each head's share, [batch, step, heads], of the sum of |R| over the heads of the site, or of R where `signed`.

    0 where nothing flows back.
    """
    found = slopes.gradients.double()
    whole = (found if signed else found.abs()).sum(-1, keepdim=True)
    return torch.where(whole == 0, 0.0, found / torch.where(whole == 0, 1.0, whole))


def check_steps(steps: object) -> None:
    """Raises ValueError for what is no choice of steps."""
    if steps not in ("all", "sum") and not (isinstance(steps, int) and not isinstance(steps, bool) and steps > 0):
        raise ValueError(f"steps are 'all', 'sum' or how many to draw from each sentence; got {steps!r}")


@contextmanager
def _states(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """The states that the vocabulary projection reads, [batch, token, width], where the model has one."""
    seen: list[Tensor] = []

    def keep(_: Any, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].requires_grad:
            seen.append(args[0])

    with ExitStack() as stack:
        projection = model.get_output_embeddings()
        if projection is not None:
            stack.callback(projection.register_forward_pre_hook(keep).remove)
        yield seen


def _places(counted: Tensor, steps: Steps, numbers: Sequence[int]) -> Tensor | None:
    """Which steps go back by themselves, [batch, step]; None: their sum. One past the last stands for no step."""
    if steps == "sum":
        return None
    if steps == "all":
        return torch.arange(counted.shape[1], device=counted.device).expand(counted.shape)
    drawn = [_drawn(number, row, int(steps)) for number, row in zip(numbers, counted.cpu().numpy(), strict=True)]
    return torch.tensor(np.array(drawn), device=counted.device)


def _drawn(number: int, counted: Array, steps: int) -> list[int]:
    """So many of a sentence's steps, in order; what lacks is made up by steps that do not count."""
    there = np.random.Generator(np.random.Philox(key=[0, number])).permutation(np.flatnonzero(counted))[:steps]
    return [*sorted(there.tolist()), *[len(counted)] * (steps - len(there))]


def _grad(of: Tensor, to: Tensor, back: Tensor, *, batched: bool = False) -> Tensor:
    check_reached(of)
    found: Tensor = torch.autograd.grad(of, to, back, retain_graph=True, is_grads_batched=batched)[0]
    return found


class Flow:
    """The passes of one score of gradients over a corpus."""

    def __init__(self, score: GradientScore, model: PreTrainedModel, book: Accumulator, groups: Groups) -> None:
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
        for site in families.attention_sites(self.model):
            own = slopes.of(site.kind, slice(start, start + site.heads))
            start += site.heads
            if site.kind not in self.score.kinds:
                continue
            self.book.add(self.score, site.key, self.score.update(own), weights)
            if site.kind not in grounded:
                self.book.add_ground(self.score, site.kind, self.score.denominators(own), weights)
            grounded.add(site.kind)

    def close(self) -> dict[str, object]:
        """What the signature says of the passes. Raises ValueError if nothing was explained or flowed back."""
        notes = _distributed.gathered(self.notes)
        if not notes:
            raise ValueError(NOTHING)
        if not any(_distributed.gathered([self.felt])):
            raise ValueError(
                f"every gradient of {self.score.label} is zero: no head of {type(self.model).__name__} has a part in "
                f"objective {self.score.chosen(self.model).name!r}; choose another"
            )
        return min(notes, key=lambda pair: pair[0])[1]  # as one process would have them: its first is the first's

    def _check_finite(self, slopes: HeadGradients, batch: Batch) -> None:
        known = slopes.gradients.isfinite().flatten(1).all(-1)  # [batch]
        if not known.all():
            number = batch.numbers[int(known.int().argmin())]
            raise ValueError(
                f"{self.score.label} is not finite on sentence {number + 1} of the corpus; "
                f"{dummy_inputs.advice(self.model)}; or load it in float32"
            )
