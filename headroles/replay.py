"""Replay: run a batch again with other gates, many variants at once, but not what they cannot have changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from headroles import families
from headroles.batches import Batch
from headroles.gates import Fill, gated
from headroles.heads import Kind
from headroles.probe import without_cache

Place = tuple[str, int]  # ("encoder" | "decoder", layer): a layer of a stack
STACKS = ("encoder", "decoder")


def place(kind: Kind, layer: int) -> Place:
    """Where the heads of a kind and layer are."""
    return ("encoder" if kind == "enc-self" else "decoder", layer)


class Replay:
    """The forward of one batch by the intact model, kept layer by layer, and its variants.

    A variant whose heads of the first layers are open needs none of these layers again: their outputs are handed back.
    One whose encoder is intact needs no encoder.
    """

    def __init__(
        self, model: PreTrainedModel, batch: Batch, fill: Fill | Mapping[tuple[Kind, int], Tensor] = "zero"
    ) -> None:
        self.model, self.batch, self.fill = model, batch, fill
        self.stacks = layers(model)
        self.starts = _starts(model)
        self.kept: dict[Place, Any] = {}
        self.states: Tensor | None = None
        with torch.inference_mode(), ExitStack() as stack:
            for name, modules in self.stacks.items():
                for number, module in enumerate(modules):
                    stack.callback(module.register_forward_hook(self._keep((name, number))).remove)
            encoder = model.get_encoder() if model.config.is_encoder_decoder else None
            if encoder is not None:
                stack.callback(encoder.register_forward_hook(self._keep_states).remove)
            self.output = model(**batch.inputs, **without_cache(model))

    def first(self, gates: Tensor) -> Place:
        """The first layer that any of the variants [variant, heads] touches."""
        touched = (gates != 1).any(0).tolist()
        found = [self.starts[i] for i, each in enumerate(touched) if each]
        return min(found, key=lambda one: (STACKS.index(one[0]), one[1]), default=("decoder", 10**6))

    def run(self, gates: Tensor) -> tuple[Any, Batch]:
        """The model's output for variants, gates [variant, heads], and the batch it is of.

        Both have a row per variant and example: all examples of the first variant, then of the second ...
        """
        many, size = len(gates), len(self.batch.numbers)
        rows = torch.arange(size, device=gates.device).repeat(many)
        batch = self.batch.take(rows)
        part, number = self.first(gates)
        with torch.inference_mode(), self._handed_back(part, number, many), _gates(self, gates, size):
            inputs: dict[str, Any] = dict(batch.inputs)
            if part == "decoder" and self.stacks and self.states is not None:
                inputs = {name: value for name, value in inputs.items() if name != "input_ids"}
                inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=_repeated(self.states, many, size))
            return self.model(**inputs, **without_cache(self.model)), batch

    def write(self, gates: Tensor, **options: Any) -> tuple[Tensor, Batch]:
        """What the model writes, [variant and example, token], with gates [variant, heads]; options of `generate`."""
        many, size = len(gates), len(self.batch.numbers)
        batch = self.batch.take(torch.arange(size, device=gates.device).repeat(many))
        inputs: dict[str, Any] = {name: batch.inputs[name] for name in ("input_ids", "attention_mask")}
        if self.first(gates)[0] == "decoder" and self.stacks and self.states is not None:
            del inputs["input_ids"]
            inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=_repeated(self.states, many, size))
        with torch.inference_mode(), _gates(self, gates, size):
            written: Tensor = self.model.generate(**inputs, **options)  # type: ignore[operator]
        return written, batch

    @contextmanager
    def _handed_back(self, part: str, number: int, many: int) -> Iterator[None]:
        """Within the block the layers of a stack below `number` give what they gave the intact model."""
        below = self.stacks.get(part, [])[:number]
        size = len(self.batch.numbers)
        own = [vars(module).get("forward") for module in below]  # accelerate puts one there
        try:
            for place_, module in enumerate(below):
                module.forward = _giving(_repeated(self.kept[part, place_], many, size))
            yield
        finally:
            for module, forward in zip(below, own, strict=True):
                vars(module).pop("forward", None)
                if forward is not None:
                    module.forward = forward

    def _keep(self, place: Place) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            self.kept[place] = output

        return hook

    def _keep_states(self, _: nn.Module, __: Any, output: Any) -> None:
        self.states = output[0]


def layers(model: PreTrainedModel) -> dict[str, list[nn.Module]]:
    """The layers of each stack in the order they run, where they can be handed back: a module each, batch first."""
    found: dict[str, list[nn.Module]] = {}
    for site in families.sites(model):
        layer = families.layer_of(model, site)
        if layer is None or site.turn or (site.outside and site.outside.time_major):
            return {}
        stack = found.setdefault(place(site.kind, 0)[0], [])
        if layer not in stack:
            stack.append(layer)
    return found


def _starts(model: PreTrainedModel) -> list[Place]:
    """The place of every head, in the order of the table's rows."""
    return [place(site.kind, site.layer) for site in families.sites(model) for _ in range(site.heads)]


@contextmanager
def _gates(replay: Replay, gates: Tensor, size: int) -> Iterator[None]:
    with gated(replay.model, gates.repeat_interleave(size, 0), fill=replay.fill):
        yield


def _giving(output: Any) -> Any:
    def forward(*_: Any, **__: Any) -> Any:
        return output

    return forward


def _repeated(output: Any, many: int, size: int) -> Any:
    """A layer's output for `many` copies of its batch."""
    if isinstance(output, Tensor):
        return output.repeat(many, *[1] * (output.ndim - 1)) if output.ndim and output.shape[0] == size else output
    if isinstance(output, tuple):
        return tuple(_repeated(one, many, size) for one in output)
    return output
