"""Replay: run a batch again with other gates, many variants at once, but not what they cannot have changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import ModelOutput

from headroles.ablation.resample import Instead
from headroles.models import heads
from headroles.models.attention_hooks import exclusive
from headroles.models.batching import Batch
from headroles.models.dummy_inputs import without_cache
from headroles.models.masking import Fill, mask_heads
from headroles.models.sites import Site
from headroles.tables.frame import Kind

Start = tuple[int, int]
NEVER = 10**9


class Replay:
    """The forward of one batch by the intact model, kept piece by piece, and its variants.

    Time is counted in calls of linear maps. What ran before the output projection of the first heads that a variant
    closes, gives the same again: the encoder, whole layers, and in the touched layer the maps to queries, keys and
    values. So does what is computed from the states of an intact encoder, and of a changed one's decoder what comes
    before it first looks at them. All of that is handed back.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        batch: Batch,
        replacement: Fill | Mapping[tuple[Kind, int], Tensor] | Instead = "zero",
    ) -> None:
        self.model, self.batch, self.replacement = model, batch, replacement
        self.layers = layers(model)
        self.kept: dict[nn.Module, Any] = {}  # what layers and maps gave
        self.calls: dict[nn.Module, list[tuple[int, int]]] = {}  # from when to when each of them ran
        self.readers: set[nn.Module] = set()  # the maps of the encoder's states
        self.states: Tensor | None = None
        self.shell: type[ModelOutput] = BaseModelOutput  # what the encoder gives them in
        self.outs = {site.out for site in heads.attention_sites(model)}
        self.time = self.encoded = 0
        with torch.inference_mode(), ExitStack() as stack:
            stack.enter_context(exclusive(model))
            for module in self.layers:
                self._watch(stack, module, self._keep_layer)
                for each in filter(_is_map, module.modules()):
                    self._watch(stack, each, self._keep_map)
            encoder = model.get_encoder() if model.config.is_encoder_decoder else None
            if encoder is not None:
                stack.callback(encoder.register_forward_hook(self._keep_states).remove)
            self.output = model(**batch.inputs, **without_cache(model))
        sites = heads.attention_sites(model)
        self.starts = [self._start(site) for site in sites for _ in range(site.heads)]
        self.looked = self.encoded  # when the decoder first looks at the states; if that is not known, at once
        if len(self.readers) >= sum(site.kind == "cross" for site in sites) > 0:
            self.looked = min(self.calls[one][0][0] for one in self.readers)

    def first(self, gates: Tensor) -> Start:
        """When the first heads that any of the variants [variant, heads] touches are projected: of all, of a decoder's.

        Variants for which this is the same have the same handed back.
        """
        touched = (gates != 1).any(0).tolist()
        found = [start for start, each in zip(self.starts, touched, strict=True) if each]
        return min(found, default=NEVER), min((one for one in found if one >= self.encoded), default=NEVER)

    def run(self, gates: Tensor) -> tuple[Any, Batch]:
        """The model's output for variants, gates [variant, heads], and the batch it is of.

        Both have a row per variant and example: all examples of the first variant, then of the second ...
        """
        many, size = len(gates), len(self.batch.numbers)
        rows = torch.arange(size, device=gates.device).repeat(many)
        batch = self.batch.take(rows)
        first = self.first(gates)
        with torch.inference_mode(), exclusive(self.model), self._handed_back(first, many), _gates(self, gates, size):
            inputs = self._inputs(dict(batch.inputs), first, many)
            return self.model(**inputs, **without_cache(self.model)), batch

    def write(self, gates: Tensor, **options: Any) -> tuple[Tensor, Batch]:
        """What the model writes, [variant and example, token], with gates [variant, heads]; options of `generate`."""
        many, size = len(gates), len(self.batch.numbers)
        batch = self.batch.take(torch.arange(size, device=gates.device).repeat(many))
        inputs = {name: value for name, value in batch.inputs.items() if not name.startswith("decoder")}
        inputs = self._inputs(inputs, self.first(gates), many)
        with torch.inference_mode(), _gates(self, gates, size):
            written: Tensor = self.model.generate(**inputs, **options)  # type: ignore[operator]
        return written, batch

    def _inputs(self, inputs: dict[str, Any], first: Start, many: int) -> dict[str, Any]:
        """`inputs` with the encoder's states instead of its tokens, if it is intact."""
        if not self.layers or self.states is None or first[0] < self.encoded:
            return inputs
        states = _repeated(self.states, many, len(self.batch.numbers))
        rest = {name: value for name, value in inputs.items() if name != "input_ids"}
        return rest | {"encoder_outputs": self.shell(last_hidden_state=states)}

    @contextmanager
    def _handed_back(self, first: Start, many: int) -> Iterator[None]:
        """Within the block what variants touched from `first` on cannot have changed gives what it gave before."""
        same = [module for module in self.kept if self._is_same(module, first)]
        size = len(self.batch.numbers)
        own = [vars(module).get("forward") for module in same]  # accelerate puts one there
        try:
            for module in same:
                module.forward = _giving(self.kept[module], many, size)
            yield
        finally:
            for module, forward in zip(same, own, strict=True):
                vars(module).pop("forward", None)
                if forward is not None:
                    module.forward = forward

    def _is_same(self, module: nn.Module, first: Start) -> bool:
        """Whether a layer or map gives the same again to a variant that is touched from `first` on."""
        ((begun, ended),) = self.calls[module]
        if first[0] < 0:
            return False
        if ended <= first[0] or (module in self.readers and first[0] >= self.encoded):
            return True
        return begun >= self.encoded and ended <= min(self.looked, first[1])

    def _start(self, site: Site) -> int:
        """When the heads of a site are projected; -1, nothing is the same, where that is not known."""
        calls = self.calls.get(site.out, []) if site.out is not None else []
        return calls[0][0] if len(calls) == 1 else -1

    def _watch(self, stack: ExitStack, module: nn.Module, keep: Any) -> None:
        begun: list[int] = []

        def before(*_: Any) -> None:
            begun.append(self.time)

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            keep(module, args, output)
            self.calls.setdefault(module, []).append((begun.pop(), self.time))
            if len(self.calls[module]) > 1:
                self.kept.pop(module, None)

        stack.callback(module.register_forward_pre_hook(before).remove)
        stack.callback(module.register_forward_hook(after).remove)

    def _keep_layer(self, module: nn.Module, _: tuple[Any, ...], output: Any) -> None:
        self.kept[module] = output
        maps = [each for each in module.modules() if each in self.calls]
        last = max((self.calls[each][0][0] for each in maps if each in self.outs), default=NEVER)
        for each in maps:  # what comes after the last heads of the layer is never handed back without it
            if self.calls[each][0][0] >= last and each not in self.readers:
                self.kept.pop(each, None)

    def _keep_map(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.time += 1
        if args and self.states is not None and args[0] is self.states:
            self.readers.add(module)
        if isinstance(output, Tensor) and output.ndim > 2 and len(output) == len(self.batch.numbers):
            self.kept[module] = output.clone()  # some models scale queries in place

    def _keep_states(self, _: nn.Module, __: Any, output: Any) -> None:
        self.states, self.encoded = output[0], self.time
        self.shell = type(output) if isinstance(output, ModelOutput) else BaseModelOutput


def layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers of all stacks, where they can be handed back: a module each, batch first; none where not."""
    found: list[nn.Module] = []
    for site in heads.attention_sites(model):
        layer = heads.layer_of(model, site)
        if layer is None or site.turn or (site.outside and site.outside.time_major):
            return []
        if layer not in found:
            found.append(layer)
    return found


def _is_map(module: nn.Module) -> bool:
    """Whether a module is a linear map: nn.Linear, Conv1D and what replaces them."""
    weight = getattr(module, "weight", None)
    return weight is not None and weight.ndim == 2 and not isinstance(module, nn.Embedding)


@contextmanager
def _gates(replay: Replay, gates: Tensor, size: int) -> Iterator[None]:
    own = replay.replacement
    replacement = partial(own, variants=len(gates)) if isinstance(own, Instead) else own
    with mask_heads(replay.model, gates.repeat_interleave(size, 0), replacement=replacement):
        yield


def _giving(output: Any, many: int, size: int) -> Any:
    def forward(*_: Any, **__: Any) -> Any:
        return _repeated(output, many, size)

    return forward


def _repeated(output: Any, many: int, size: int) -> Any:
    """What a layer or map gave, for `many` copies of its batch."""
    if isinstance(output, Tensor):
        return output.repeat(many, *[1] * (output.ndim - 1)) if output.ndim and output.shape[0] == size else output
    if isinstance(output, tuple):
        return tuple(_repeated(one, many, size) for one in output)
    return output
