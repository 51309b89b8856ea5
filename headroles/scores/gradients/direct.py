"""Direct: what a head writes to the logits without another head or MLP between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from headroles._changes import Changes
from headroles.data.probes import Choice
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.models.heads import layers
from headroles.models.masking import read_heads
from headroles.models.sites import Site
from headroles.scores import outputs
from headroles.scores.gradients.base import GradientScore, HeadGradients
from headroles.scores.lrp import lrp_rules
from headroles.scores.lrp.context import inside
from headroles.scores.objectives import Explained, Name, Objective, Targets
from headroles.scores.outputs import Output
from headroles.tables.frame import Kind


@dataclass(frozen=True)
class Difference(Objective):
    """Logit of the right next token minus the mean logit of the wrong ones, at the end of each text of `Choice`.

    For indirect objects this is the logit difference of Wang et al. (2022). A head that adds to it directly is like
    their name movers, which they find by path patching; there is no threshold, and so no role here. On ordered words
    such a head is like a successor head, which Gould et al. (2023) define by weights, as `hr.scores.succession` does.
    """

    name: ClassVar[str] = "difference"
    reads = "vocabulary"

    def fit(self, model: HeadModel, batches: Iterable[Batch], /) -> Self:
        """Check that the model is a decoder without an encoder."""
        if model.model.config.is_encoder_decoder:
            raise ValueError(f"objective {self.name!r} needs a decoder without an encoder, got {model.name}")
        return super().fit(model, batches)

    def targets(self, output: Output, batch: Batch, /) -> Explained:
        """Compute the differences; texts without a choice have none."""
        logits = outputs.logits(self.model, output)
        values = torch.zeros_like(logits[..., 0])  # [batch, token]
        counted = torch.zeros_like(values, dtype=torch.bool)
        for row, sentence in enumerate(batch.source.sentences):
            if isinstance(sentence, Choice):
                last = logits[row, len(sentence.ids) - 1]
                counted[row, len(sentence.ids) - 1] = True
                change = last[sentence.right] - last[list(sentence.wrong)].mean()
                this_row = torch.arange(len(counted), device=counted.device) == row
                values = torch.where(counted & this_row[:, None], change, values)
        return Explained(values, counted)


@dataclass(frozen=True)
class Direct(GradientScore):
    """Mean direct contribution to the target logit: a head's output by W_O, the final norm and the unembedding.

    This is direct logit attribution (Elhage et al. 2021, "A mathematical framework for transformer circuits"; Wang et
    al. 2022). The path from the head to the logits leads through residual connections and norms only. The scales of
    norms and a cap on logits are frozen at their values in the intact forward pass, so that all is linear, and the
    contributions of all heads, MLPs, biases and the embedding add up to the logit. Columns are `direct[objective]` and
    `direct[objective].size`, the mean of absolute values.

    Args:
        objective: name or instance of the target; default: "reference", the logit of the correct next token.
            `Difference()` for the corpora of `hr.indirect_objects` and `hr.ordered_words`.
    """

    kinds = ("dec-self", "cross")
    ordinary: ClassVar[Name] = "reference"

    @property
    def label(self) -> str:
        """Column name, with the objective."""
        name = self.objective if isinstance(self.objective, str) else getattr(self.objective, "name", self.ordinary)
        return f"direct[{name}]"

    def fit(self, model: HeadModel, batches: Iterable[Batch]) -> Targets:
        """Return an object that computes the targets; ValueError without an unembedding or with sharded weights."""
        model.check_unsharded(self.label)
        outputs.check_vocabulary(model, self.label)
        return super().fit(model, batches)

    def head_gradients(self, model: HeadModel, target: Targets, batch: Batch) -> HeadGradients:
        """Compute the contribution of every head at every step."""
        with torch.enable_grad(), lrp_rules(model, "cp") as changes:
            written_by = direct_paths(changes, model)
            output = model.forward(batch)
            with inside(model):
                explained = target.targets(output, batch)
            counted = explained.counted
            values = torch.where(counted, explained.values, 0.0)
            written = {key: z for key, z in written_by.items() if key[0] in self.kinds and counted.any()}
            gradients = (
                torch.autograd.grad(values.sum(), [*written.values()], materialize_grads=True) if written else ()
            )
        parts = {site.key: torch.zeros(*counted.shape, site.heads, device=counted.device) for site in model.sites}
        for (key, z), gradient in zip(written.items(), gradients, strict=True):
            products = (z.detach() * gradient).float().sum(-1)  # [batch, step, heads]
            parts[key] = products.to(counted.device) * counted[..., None]
        return HeadGradients(None, torch.cat([*parts.values()], -1), values.detach().float(), counted)


def direct_paths(changes: Changes, model: HeadModel) -> dict[tuple[Kind, int], Tensor]:
    """Let gradients reach the heads by the direct path only; return the outputs of the heads in the latest forward."""
    # Linear maps, experts and convolutions inside layers pass no gradient. The output projections of heads do, and
    # their inputs are leaves. With norms frozen (`lrp_rules`) gradients flow from the logits by the residual stream
    # only.
    outputs: dict[tuple[Kind, int], Tensor] = {}  # [batch, query, heads, size]

    def start(site: Site, z: Tensor) -> Tensor:
        outputs[site.key] = z.detach().requires_grad_()
        return outputs[site.key]

    kept = {part for site in model.sites if site.out for part in site.out.modules()}  # one may have an adapter
    modules = dict.fromkeys(module for layer in layers(model.model) for module in layer.modules() if module not in kept)
    for module in modules:
        if any(weight.ndim > 1 for weight in module.parameters(recurse=False)):
            changes.hook(module, _stop, after=True)
    read_heads(changes, model.sites, start)
    return outputs


def _stop(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    if isinstance(output, Tensor):
        return output.detach()
    return tuple(part.detach() if isinstance(part, Tensor) else part for part in output)
