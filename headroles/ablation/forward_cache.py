"""Forward cache: run variants of a batch without recomputing what their masked heads cannot change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import ModelOutput

from headroles.data.corpus import partners
from headroles.models import heads
from headroles.models.attention_hooks import exclusive
from headroles.models.batching import Batch, Encoded, make_batch
from headroles.models.head_model import HeadModel
from headroles.models.masking import Fill, read_heads
from headroles.models.sites import Site
from headroles.scores.outputs import Output
from headroles.tables.frame import KINDS, Kind

Start = tuple[int, int]
Keep = Callable[[nn.Module, tuple[object, ...], object], None]  # called with a module, its arguments and output
NEVER = 10**9


class Replay:
    """Forward pass of one batch by the intact model, of which variants reuse the unchanged outputs.

    Time is counted in calls of linear maps. Outputs computed before the output projection of the first masked heads are
    unchanged: those of the encoder, of whole layers, and of the query, key and value maps of the masked layer. So are
    outputs computed from the states of an intact encoder, and decoder outputs computed before the decoder first reads
    the states of a changed encoder.
    """

    def __init__(
        self,
        model: HeadModel,
        batch: Batch,
        replacement: Fill | Mapping[tuple[Kind, int], Tensor] | Instead = "zero",
    ) -> None:
        self.model, self.batch, self.replacement = model, batch, replacement
        self.layers = layers(model)
        self.kept: dict[nn.Module, object] = {}  # outputs of layers and maps
        self.calls: dict[nn.Module, list[tuple[int, int]]] = {}  # module -> (start, end) of its runs
        self.readers: set[nn.Module] = set()  # maps of the encoder's states
        self.states: Tensor | None = None
        self.shell: type[ModelOutput] = BaseModelOutput  # output class of the encoder
        self.outs = {site.out for site in model.sites}
        self.time = self.encoded = 0
        with model.without_gradients(), ExitStack() as stack:
            stack.enter_context(exclusive(model.model))
            for module in self.layers:
                self._watch(stack, module, self._keep_layer)
                for linear in filter(_is_map, module.modules()):
                    self._watch(stack, linear, self._keep_map)
            encoder = model.model.get_encoder() if model.config.is_encoder_decoder else None
            if encoder is not None:
                stack.callback(encoder.register_forward_hook(self._keep_states).remove)
            self.output = model.forward(batch)
        self.starts = [self._start(site) for site in model.sites for _ in range(site.heads)]
        self.looked = self.encoded  # when the decoder first reads the states; at once if that is unknown
        if len(self.readers) >= sum(site.kind == "cross" for site in model.sites) > 0:
            self.looked = min(self.calls[reader][0][0] for reader in self.readers)

    def first(self, gates: Tensor) -> Start:
        """Return when the first masked heads of gates [variant, heads] are projected: of all, and of the decoder."""
        masked = (gates != 1).any(0).tolist()
        starts = [start for start, is_masked in zip(self.starts, masked, strict=True) if is_masked]
        return min(starts, default=NEVER), min((start for start in starts if start >= self.encoded), default=NEVER)

    def run(self, gates: Tensor) -> tuple[Output, Batch]:
        """Run variants, gates [variant, heads], in one forward pass: all examples of the first variant, then on."""
        count, size = len(gates), len(self.batch.numbers)
        batch = self.batch.take(torch.arange(size, device=gates.device).repeat(count))
        first = self.first(gates)
        inputs = self._inputs(dict(batch.inputs), first, count)
        with (
            self.model.without_gradients(),
            exclusive(self.model.model),
            self._reused(first, count),
            self._mask(gates, size),
        ):
            return self.model.forward(inputs), batch

    def write(self, gates: Tensor, **options: object) -> tuple[Tensor, Batch]:
        """Generate text with variants, gates [variant, heads]: tokens [variant x example, token], and their batch."""
        count, size = len(gates), len(self.batch.numbers)
        batch = self.batch.take(torch.arange(size, device=gates.device).repeat(count))
        inputs = {name: value for name, value in batch.inputs.items() if not name.startswith("decoder")}
        inputs = self._inputs(inputs, self.first(gates), count)
        with self.model.without_gradients(), self._mask(gates, size):
            tokens: Tensor = self.model.model.generate(**inputs, **options)
        return tokens, batch

    def _mask(self, gates: Tensor, size: int) -> AbstractContextManager[None]:
        kept = self.replacement
        replacement = partial(kept, variants=len(gates)) if isinstance(kept, Instead) else kept
        return self.model.mask(gates.repeat_interleave(size, 0), replacement)

    def _inputs(self, inputs: dict[str, Any], first: Start, count: int) -> dict[str, Any]:
        """Replace the tokens of an intact encoder by its states."""
        if not self.layers or self.states is None or first[0] < self.encoded:
            return inputs
        states = _repeated(self.states, count, len(self.batch.numbers))
        rest = {name: value for name, value in inputs.items() if name != "input_ids"}
        return rest | {"encoder_outputs": self.shell(last_hidden_state=states)}

    @contextmanager
    def _reused(self, first: Start, count: int) -> Iterator[None]:
        """Let modules that masking from `first` on cannot change return their kept outputs within the block."""
        same = [module for module in self.kept if self._is_same(module, first)]
        size = len(self.batch.numbers)
        forwards = [vars(module).get("forward") for module in same]  # accelerate puts one there
        try:
            for module in same:
                module.forward = partial(_repeated, self.kept[module], count, size)
            yield
        finally:
            for module, forward in zip(same, forwards, strict=True):
                vars(module).pop("forward", None)
                if forward is not None:
                    module.forward = forward

    def _is_same(self, module: nn.Module, first: Start) -> bool:
        """Return whether masking from `first` on leaves the output of a layer or map unchanged."""
        ((begun, ended),) = self.calls[module]
        if first[0] < 0:
            return False
        if ended <= first[0] or (module in self.readers and first[0] >= self.encoded):
            return True
        return begun >= self.encoded and ended <= min(self.looked, first[1])

    def _start(self, site: Site) -> int:
        """Return when the heads of a site are projected; -1 (nothing is unchanged) if that is unknown."""
        calls = self.calls.get(site.out, []) if site.out is not None else []
        return calls[0][0] if len(calls) == 1 else -1

    def _watch(self, stack: ExitStack, module: nn.Module, keep: Keep) -> None:
        begun: list[int] = []

        def before(*_: object) -> None:
            begun.append(self.time)

        def after(module: nn.Module, args: tuple[object, ...], output: object) -> None:
            keep(module, args, output)
            self.calls.setdefault(module, []).append((begun.pop(), self.time))
            if len(self.calls[module]) > 1:
                self.kept.pop(module, None)

        stack.callback(module.register_forward_pre_hook(before).remove)
        stack.callback(module.register_forward_hook(after).remove)

    def _keep_layer(self, module: nn.Module, _: tuple[object, ...], output: object) -> None:
        self.kept[module] = output
        maps = [part for part in module.modules() if part in self.calls]
        last = max((self.calls[linear][0][0] for linear in maps if linear in self.outs), default=NEVER)
        for linear in maps:  # maps after the last heads of the layer are reused only with the whole layer
            if self.calls[linear][0][0] >= last and linear not in self.readers:
                self.kept.pop(linear, None)

    def _keep_map(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        self.time += 1
        if args and self.states is not None and args[0] is self.states:
            self.readers.add(module)
        if isinstance(output, Tensor) and output.ndim > 2 and len(output) == len(self.batch.numbers):
            self.kept[module] = output.clone()  # some models scale queries in place

    def _keep_states(self, _: nn.Module, __: object, output: ModelOutput | tuple[Tensor, ...]) -> None:
        self.states, self.encoded = output[0], self.time
        self.shell = type(output) if isinstance(output, ModelOutput) else BaseModelOutput


def layers(model: HeadModel) -> list[nn.Module]:
    """Return the layers of all stacks; none if a layer is not one module, or is not batch first."""
    ordered: list[nn.Module] = []
    for site in model.sites:
        layer = heads.layer_of(model.model, site)
        if layer is None or site.turn or (site.outside and site.outside.time_major):
            return []
        if layer not in ordered:
            ordered.append(layer)
    return ordered


def _is_map(module: nn.Module) -> bool:
    """Return whether a module is a linear map: nn.Linear, Conv1D or a replacement of them."""
    weight = getattr(module, "weight", None)
    return weight is not None and weight.ndim == 2 and not isinstance(module, nn.Embedding)


def _repeated(output: object, count: int, size: int, *_: object, **__: object) -> object:
    """Repeat the output of a layer or map for `count` copies of its batch, whatever its arguments are."""
    if isinstance(output, Tensor):
        return output.repeat(count, *[1] * (output.ndim - 1)) if output.ndim and output.shape[0] == size else output
    if isinstance(output, tuple):
        return tuple(_repeated(part, count, size) for part in output)
    return output


class Others:
    """Resample ablation: head outputs of the intact model for the partners of the examples of a batch."""

    def __init__(self, model: HeadModel, encoded: Encoded, seed: int) -> None:
        self.model, self.encoded = model, encoded
        lengths = zip(*(map(len, side) for side in (encoded.source, encoded.target) if side), strict=True)
        places = partners([tuple(pair) for pair in lengths], seed)
        self.partner = dict(zip(encoded.numbers, places, strict=True))  # sentence number -> row

    def of(self, batch: Batch) -> Instead:
        """Run the partners of the examples of a batch and keep the outputs of their heads."""
        other = make_batch([self.partner[number] for number in batch.numbers], self.encoded, self.model.model)
        outputs: dict[tuple[Kind, int], Tensor] = {}
        with torch.no_grad(), ExitStack() as stack:
            stack.enter_context(exclusive(self.model.model))
            read_heads(stack, self.model.model, self.model.sites, lambda site, z: outputs.update({site.key: z}))
            self.model.forward(other)
        return Instead(outputs, {kind: other.queries(kind).attention_mask for kind in KINDS})


class Instead:
    """Replacement of head outputs by those for other examples, at the tokens that both examples have."""

    def __init__(self, outputs: dict[tuple[Kind, int], Tensor], masks: dict[Kind, Tensor]) -> None:
        self.outputs = outputs  # by site: [example, query, heads, size]
        self.masks = masks  # attention masks of the queries: bool [example, query]

    def __call__(self, site: Site, z: Tensor, variants: int) -> Tensor:
        """Return `z` [variant x example x beam, query, heads, size] replaced where both examples have a token."""
        other, mask = self.outputs[site.key].to(z), self.masks[site.kind].to(z.device)
        common, beams = min(z.shape[1], other.shape[1]), len(z) // (variants * len(other))
        other, mask = (
            tensor[:, :common].repeat(variants, *[1] * (tensor.ndim - 1)).repeat_interleave(beams, 0)
            for tensor in (other, mask)
        )
        replacement = z.detach().clone()
        replacement[:, :common] = torch.where(mask[..., None, None], other, replacement[:, :common])
        return replacement
