"""Direct: what a head writes to the logits without another head or MLP between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.data.probes import Choice
from headroles.models.attention_hooks import without_cache
from headroles.models.batching import Batch
from headroles.models.heads import attention_sites, layers
from headroles.models.masking import read_heads
from headroles.models.sites import Site
from headroles.scores.gradients.base import GradientScore, HeadGradients
from headroles.scores.lrp import lrp_rules
from headroles.scores.lrp.context import inside
from headroles.scores.objectives import Explain, Explained, Groups, Name, Objective
from headroles.scores.outputs import Output, has_vocabulary
from headroles.tables.frame import Kind


@dataclass(frozen=True)
class Difference(Objective):
    """Logit of the right next token minus the mean logit of the wrong ones, at the end of each text of `Choice`.

    For indirect objects this is the logit difference of Wang et al. (2022); a head that adds to it directly is like a
    name mover. They find name movers by path patching, and check that the OV circuits copy names (into the first five
    of all tokens); there is no threshold, and so no role here. On ordered words such a head is like a successor head in
    context; Gould et al. (2023) define successor heads by weights, as `hr.succession` does.
    """

    name: ClassVar[str] = "difference"

    def explain(self, model: PreTrainedModel, groups: Groups, /) -> Explain:  # noqa: ARG002
        """Return the targets; texts without a choice have none. Raise ValueError for a model with an encoder."""
        _check_vocabulary(model, self.name)
        if model.config.is_encoder_decoder:
            raise ValueError(
                f"{self.name!r} is the token that continues a text: got {type(model).__name__}, of which the encoder "
                f"reads the text; expected a decoder alone; try another objective"
            )

        def difference(output: Output, batch: Batch) -> Explained:
            values = torch.zeros_like(output.logits[..., 0])  # [batch, token]
            counted = torch.zeros_like(values, dtype=torch.bool)
            for row, sentence in enumerate(batch.source.sentences):
                if isinstance(sentence, Choice):
                    last = output.logits[row, len(sentence.ids) - 1]
                    counted[row, len(sentence.ids) - 1] = True
                    change = last[sentence.right] - last[list(sentence.wrong)].mean()
                    this_row = torch.arange(len(counted), device=counted.device) == row
                    values = torch.where(counted & this_row[:, None], change, values)
            return Explained(values, counted)

        return difference


@dataclass(frozen=True)
class Direct(GradientScore):
    """Mean direct contribution to the target logit: a head's output by W_O, the final norm and the unembedding.

    This is direct logit attribution (Elhage et al. 2021, "A mathematical framework for transformer circuits"; Wang et
    al. 2022). The path from the head to the logits leads through residual connections and norms only, in post-norm
    models through the norms of later layers too. A norm's scale is frozen at its value in the intact forward pass, so
    that all is linear; a cap on logits is frozen in the same way. The contributions of all heads, MLPs, biases and the
    embedding add up to the logit. Columns are `direct[objective]` and `direct[objective].size`, the mean of absolute
    values.

    Args:
        objective: name or instance of the target; default: "reference", the logit of the correct next token.
            `Difference()` for the corpora of `hr.indirect_objects` and `hr.ordered_words`.
    """

    kinds = ("dec-self", "cross")
    ordinary: ClassVar[Name] = "reference"

    @property
    def label(self) -> str:
        """Column name, which includes the objective."""
        name = self.objective if isinstance(self.objective, str) else getattr(self.objective, "name", self.ordinary)
        return f"direct[{name}]"

    def explain(self, model: PreTrainedModel, groups: Groups) -> Explain:
        """Return the function that computes targets; ValueError without an unembedding."""
        _check_vocabulary(model, self.label)
        return super().explain(model, groups)

    def head_gradients(self, model: PreTrainedModel, explain: Explain, batch: Batch) -> HeadGradients:
        """Compute the contribution of every head at every step."""
        sites = attention_sites(model)
        with torch.enable_grad(), lrp_rules(model, "cp"), direct_paths(model) as outputs:
            output = model(**batch.inputs, **without_cache(model))
            with inside(model):
                explained = explain(output, batch)
            counted = explained.counted
            values = torch.where(counted, explained.values, 0.0)
            written = {key: z for key, z in outputs.items() if key[0] in self.kinds and counted.any()}
            gradients = (
                torch.autograd.grad(values.sum(), [*written.values()], materialize_grads=True) if written else ()
            )
        products = {
            key: (z.detach() * gradient).float().sum(-1)
            for (key, z), gradient in zip(written.items(), gradients, strict=True)
        }
        parts = []
        for site in sites:
            nothing = torch.zeros(*counted.shape, site.heads, device=counted.device)  # [batch, step, heads]
            parts.append(products.get(site.key, nothing).to(nothing.device) * counted[..., None])
        return HeadGradients(None, torch.cat(parts, -1), values.detach().float(), counted)


@contextmanager
def direct_paths(model: PreTrainedModel) -> Iterator[dict[tuple[Kind, int], Tensor]]:
    """Let gradients reach the heads by the direct path alone.

    Every linear map inside a layer passes none but the output projections; their inputs are leaves. With norms frozen
    (`lrp_rules`) gradients flow from the logits to a head by the residual stream only.

    Yields:
        (kind, layer) -> output of the heads in the latest forward pass, [batch, query, heads, size].
    """
    sites = attention_sites(model)
    outputs: dict[tuple[Kind, int], Tensor] = {}

    def start(site: Site, z: Tensor) -> Tensor:
        outputs[site.key] = z.detach().requires_grad_()
        return outputs[site.key]

    with ExitStack() as stack:
        for module in _maps(model, sites):
            stack.callback(module.register_forward_hook(_stop).remove)
        read_heads(stack, model, sites, start)
        yield outputs


def _maps(model: PreTrainedModel, sites: list[Site]) -> list[nn.Module]:
    """The linear maps, experts and convolutions inside the layers, without the output projections of heads."""
    kept = {site.out for site in sites}
    modules = dict.fromkeys(module for layer in layers(model) for module in layer.modules() if module not in kept)
    return [module for module in modules if any(weight.ndim > 1 for weight in module.parameters(recurse=False))]


def _stop(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    if isinstance(output, Tensor):
        return output.detach()
    return tuple(part.detach() if isinstance(part, Tensor) else part for part in output)


def _check_vocabulary(model: PreTrainedModel, name: str) -> None:
    if not has_vocabulary(model):
        raise ValueError(
            f"{name!r} needs logits over a vocabulary: {type(model).__name__} has no unembedding; try the model with "
            f"its language-model head"
        )
