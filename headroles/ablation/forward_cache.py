"""Forward cache: run variants of a batch without recomputing what their masked heads cannot change."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import ModelOutput

from headroles._changes import Changes
from headroles.data.corpus import partners
from headroles.models import dummy_inputs, heads
from headroles.models.batching import Batch, Encoded, make_batch
from headroles.models.head_model import HeadModel
from headroles.models.masking import read_heads
from headroles.models.parts import is_map
from headroles.models.replacements import Counted, Replacement, ReplacementLike, Values, as_replacement
from headroles.models.sharded import is_sharded
from headroles.models.sites import Site
from headroles.scores.outputs import Output, steps
from headroles.tables.frame import KINDS, Kind

Start = tuple[int, int]
Keep = Callable[[nn.Module, tuple[object, ...], object], None]  # called with a module, its arguments and output
Entries = dict[int | str, dict[object, object]]  # argument, by place or name -> entries of a mapping
NEVER = 10**9
MOST = 0.9  # share of tokens that are steps; with more, to leave out the others takes longer than to project them


class Replay:
    """Forward pass of one batch by the intact model; variants reuse its unchanged outputs.

    Outputs of the encoder, of entire layers, and of query, key and value maps are unchanged by heads that are masked
    after them (`_is_same`). With `of_steps` only the logits of steps that count are computed and others are 0, unless
    nearly all tokens are such steps.
    """

    def __init__(
        self,
        model: HeadModel,
        batch: Batch,
        replacement: ReplacementLike = "zero",
        counted: Counted | None = None,
        *,
        of_steps: bool = False,
    ) -> None:
        self.model, self.batch, self.counted = model, batch, counted
        self.replacement = as_replacement(model.model, replacement)
        self.projection = model.model.get_output_embeddings() if of_steps and not is_sharded(model.model) else None
        self.steps = steps(model, batch).flatten().nonzero().flatten() if self.projection else torch.empty(0)
        self.layers = layers(model)
        self.copies: dict[int, Batch] = {}  # the batch, so many times
        self.kept: dict[nn.Module, object] = {}  # outputs of layers and maps
        self.written: dict[nn.Module, Entries] = {}  # what layers add to mappings that the forward passes on
        self.dims: dict[nn.Module, int] = {}  # layer -> dimension of the batch in its output
        self.calls: dict[nn.Module, list[tuple[int, int]]] = {}  # module -> (start, end) of its runs
        self.readers: set[nn.Module] = set()  # maps of the encoder's states
        self.states: Tensor | None = None
        self.shell: type[ModelOutput] = BaseModelOutput  # output class of the encoder
        self.outs = {site.out for site in model.sites}
        self.time = self.encoded = 0
        # One forward of the intact model counts the calls of linear maps. A module that ran once, from call `begun` to
        # call `ended`, has read nothing that masked heads change if it ended before their projection was called. Only
        # the order of calls decides, so no architecture needs code of its own; outputs of modules that run twice are
        # not kept.
        with Changes(model.model) as changes, model.without_gradients():
            for module in self.layers:
                self._watch(changes, module, self._keep_layer)
                for linear in filter(is_map, module.modules()):
                    self._watch(changes, linear, self._keep_map)
            encoder = model.model.get_encoder() if dummy_inputs.has_decoder(model.model) else None
            if encoder is not None:
                changes.hook(encoder, self._keep_states, after=True)
            self._project_steps(changes, 1)
            self.output = model.forward(batch)
        self.starts = [self._start(site) for site in model.sites for _ in range(site.heads)]
        self.states_read = self.encoded  # when the decoder first reads the states; if unknown, at once
        if len(self.readers) >= sum(site.kind == "cross" for site in model.sites) > 0:
            self.states_read = min(self.calls[reader][0][0] for reader in self.readers)

    def first(self, gates: Tensor) -> Start:
        """Return when the first masked heads of gates [variant, heads], on the host, are projected: in all, decoder."""
        masked = (gates != 1).any(0).tolist()
        starts = [start for start, is_masked in zip(self.starts, masked, strict=True) if is_masked]
        return min(starts, default=NEVER), min((start for start in starts if start >= self.encoded), default=NEVER)

    def run(self, gates: Tensor) -> tuple[Output, Batch]:
        """Run variants, gates [variant, heads], in one forward pass: first all examples of the first variant."""
        count, batch, first = len(gates), self._copied(len(gates)), self.first(gates)
        inputs = self._inputs(dict(batch.inputs), first, count)
        with Changes(self.model.model) as changes, self.model.without_gradients(), self._mask(gates, batch):
            self._reuse(changes, first, count)
            self._project_steps(changes, count)
            return self.model.forward(inputs), batch

    def write(self, gates: Tensor, **options: object) -> tuple[Tensor, Batch]:
        """Generate text with variants, gates [variant, heads]: tokens [variant x example, token], and the batch."""
        count, batch = len(gates), self._copied(len(gates))
        inputs = {name: value for name, value in batch.inputs.items() if not name.startswith("decoder")}
        inputs = self._inputs(inputs, self.first(gates), count)  # keeps the source: rules of generation may read it
        if batch.prompt is not None:
            inputs["decoder_input_ids"] = batch.prompt
        with self.model.without_gradients(), self._mask(gates, batch):
            tokens: Tensor = self.model.model.generate(**inputs, **options)  # type: ignore[operator]
        return tokens, batch

    def _copied(self, count: int) -> Batch:
        """Return the batch `count` times, made once: it reads the places of rows from the device."""
        if count not in self.copies:
            rows = torch.arange(len(self.batch.numbers), device=self.model.device)
            self.copies[count] = self.batch.take(rows.repeat(count))
        return self.copies[count]

    def _mask(self, gates: Tensor, batch: Batch) -> AbstractContextManager[object]:
        replacement = self.replacement.bind(batch, self.counted)
        rows = gates.to(self.model.device).repeat_interleave(len(self.batch.numbers), 0)
        return self.model.mask(rows, replacement)

    def _inputs(self, inputs: dict[str, Any], first: Start, count: int) -> dict[str, Any]:
        """Add the states of an intact encoder, so that it does not run."""
        if not self.layers or self.states is None or first[0] < self.encoded:
            return inputs
        states = _repeated(self.states, count, len(self.batch.numbers))
        return inputs | {"encoder_outputs": self.shell(last_hidden_state=states)}

    def _reuse(self, changes: Changes, first: Start, count: int) -> None:
        """Let modules return their kept outputs if masking from `first` on cannot change them."""
        size = len(self.batch.numbers)
        for module in (module for module in self.kept if self._is_same(module, first)):
            written, dim = self.written.get(module, {}), self.dims.get(module, 0)
            changes.set(module, "forward", partial(_replayed, self.kept[module], written, dim, count, size))

    def _project_steps(self, changes: Changes, count: int) -> None:
        tokens = count * (self.batch.target or self.batch.source).ids.numel()
        if isinstance(self.projection, nn.Linear) and len(self.steps) * count <= MOST * tokens:
            places = torch.arange(0, tokens, tokens // count, device=self.steps.device)  # of the copies of the batch
            rows = (places[:, None] + self.steps).flatten()
            changes.set(self.projection, "forward", partial(_projected, self.projection.forward, rows, tokens))

    def _is_same(self, module: nn.Module, first: Start) -> bool:
        """Return whether masking from `first` on leaves the output of a layer or map unchanged."""
        # Heads change only what is computed after their projection. Besides what ended before the first masked one,
        # two outputs stay: what maps the encoder's states, if all masked heads are in the decoder; and what the decoder
        # computes before it first reads changed states and before its own first masked head.
        ((begun, ended),) = self.calls[module]
        if first[0] < 0:
            return False
        if ended <= first[0] or (module in self.readers and first[0] >= self.encoded):
            return True
        return begun >= self.encoded and ended <= min(self.states_read, first[1])

    def _start(self, site: Site) -> int:
        """Return when the heads of a site are projected; -1 (nothing is unchanged) if that is unknown."""
        calls = self.calls.get(site.out, []) if site.out is not None else []
        return calls[0][0] if len(calls) == 1 else -1

    def _watch(self, changes: Changes, module: nn.Module, keep: Keep) -> None:
        begun: list[tuple[int, Entries]] = []

        def before(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            begun.append((self.time, _entries(args, kwargs)))

        def after(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
            keep(module, args, output)
            time, entries = begun.pop()
            self.calls.setdefault(module, []).append((time, self.time))
            self.written[module] = _changed(entries, _entries(args, kwargs))
            if len(self.calls[module]) > 1:
                self.kept.pop(module, None)

        changes.hook(module, before, with_kwargs=True)
        changes.hook(module, after, after=True, with_kwargs=True)

    def _keep_layer(self, module: nn.Module, _: tuple[object, ...], output: object) -> None:
        dims = _batch_dims(output, len(self.batch.numbers))
        if len(dims) == 1:
            self.kept[module], self.dims[module] = output, dims[0]
        maps = [part for part in module.modules() if part in self.calls]
        last = max((self.calls[linear][0][0] for linear in maps if linear in self.outs), default=NEVER)
        for linear in maps:  # maps after the last heads of the layer are reused only with the whole layer
            is_after = self.calls[linear][0][0] >= last and linear not in self.readers
            kept = self.kept.get(linear)  # with more dimensions than [batch, token, width] the first is not the batch
            if is_after or (dims != [0] and isinstance(kept, Tensor) and kept.ndim > 3):
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


def _projected(forward: Callable[[Tensor], Tensor], rows: Tensor, tokens: int, states: Tensor) -> Tensor:
    """Return logits [batch, token, vocabulary]; they are 0 at tokens that are not in these rows of all `tokens`."""
    if states.shape[:-1].numel() != tokens:
        return forward(states)
    logits = forward(states.flatten(0, -2)[rows])  # [step, vocabulary]
    whole: Tensor = logits.new_zeros(*states.shape[:-1], logits.shape[-1])
    whole.flatten(0, -2).index_copy_(0, rows, logits)
    return whole


def layers(model: HeadModel) -> list[nn.Module]:
    """Return the layers of all stacks; none if a layer is not one module, or is not batch first."""
    ordered: list[nn.Module] = []
    for site in model.sites:
        layer = heads.layer_of(model.model, site)
        if layer is None or site.call_index or (site.outside and site.outside.time_major):
            return []
        if layer not in ordered:
            ordered.append(layer)
    return ordered


def _entries(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Entries:
    """Return the entries of the mappings among the arguments of a call."""
    given: Iterator[tuple[int | str, object]] = itertools.chain(enumerate(args), kwargs.items())
    return {name: dict(value) for name, value in given if isinstance(value, MutableMapping)}


def _changed(before: Entries, after: Entries) -> Entries:
    """Return the entries that a call has added or replaced, such as keys and values for later layers."""
    new = {
        name: {key: value for key, value in entries.items() if before[name].get(key) is not value}
        for name, entries in after.items()
    }
    return {name: entries for name, entries in new.items() if entries}


def _replayed(
    output: object, written: Entries, dim: int, count: int, size: int, *args: object, **kwargs: object
) -> object:
    """Return the kept output of a layer or map, whatever its arguments, and repeat what it wrote into them."""
    for name, entries in written.items():
        mapping: Any = args[name] if isinstance(name, int) else kwargs[name]
        mapping.update({key: _repeated(value, count, size) for key, value in entries.items()})
    return _repeated(output, count, size, dim)


def _repeated(output: object, count: int, size: int, dim: int = 0) -> object:
    """Repeat the output of a layer or map for `count` copies of its batch, which is dimension `dim`."""
    if isinstance(output, Tensor):
        times = [count if place == dim else 1 for place in range(output.ndim)]
        return output.repeat(times) if output.ndim > dim and output.shape[dim] == size else output
    if isinstance(output, tuple | list):
        parts = [_repeated(part, count, size, dim) for part in output]
        return parts if isinstance(output, list) else tuple(parts)
    return output


def _batch_dims(output: object, size: int) -> list[int]:
    """Return which dimensions of the stream, [..., token, width], may be the batch: in Gemma 3n the second."""
    stream = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(stream, Tensor):
        return []
    return [dim for dim in range(max(1, stream.ndim - 2)) if stream.shape[dim] == size]


class Resample(Replacement):
    """Resample ablation: the outputs of the intact model's heads for other examples of similar length (partners)."""

    def __init__(self, model: HeadModel, encoded: Encoded, seed: int) -> None:
        self.model, self.encoded = model, encoded
        lengths = zip(*(map(len, side) for side in (encoded.source, encoded.target) if side), strict=True)
        places = partners([tuple(pair) for pair in lengths], seed)
        self.partner = dict(zip(encoded.numbers, places, strict=True))  # sentence number -> row
        self.latest: tuple[tuple[int, ...], PartnerOutputs] | None = None  # batches of the same examples share them

    def bind(self, batch: Batch, counted: Counted | None = None) -> PartnerOutputs:  # noqa: ARG002
        """Run the partners of the examples of a batch and keep the outputs of their heads."""
        numbers = tuple(dict.fromkeys(batch.numbers))  # of a batch that repeats its examples for each variant
        if self.latest is None or self.latest[0] != numbers:
            self.latest = numbers, self._run([self.partner[number] for number in numbers])
        return self.latest[1]

    def _run(self, rows: list[int]) -> PartnerOutputs:
        parts = [rows] if self.encoded.together == "any" else [[row] for row in rows]
        outputs, masks = defaultdict[tuple[Kind, int], list[Tensor]](list), defaultdict[Kind, list[Tensor]](list)
        with Changes(self.model.model) as changes, torch.no_grad():
            read_heads(changes, self.model.sites, lambda site, z: outputs[site.key].extend(z))
            for part in parts:
                other = make_batch(part, self.encoded, self.model.model)
                self.model.forward(other)
                for kind in KINDS:
                    masks[kind] += other.queries(kind).attention_mask
        padded = partial(pad_sequence, batch_first=True)
        return PartnerOutputs(
            {key: padded(z) for key, z in outputs.items()}, {kind: padded(mask) for kind, mask in masks.items()}
        )


class PartnerOutputs(Replacement):
    """Outputs of heads for other examples, at the tokens that both examples have."""

    def __init__(self, partners: dict[tuple[Kind, int], Tensor], masks: dict[Kind, Tensor]) -> None:
        self.partners = partners  # by site: [example, query, heads, size]
        self.masks = masks  # attention masks of the queries: bool [example, query]

    def outputs(self, site: Site, z: Tensor, values: Values, gates: Tensor) -> Tensor:  # noqa: ARG002
        """Return `z` [variant x example x beam, query, heads, size] replaced where both examples have a token."""
        other, mask = self.partners[site.key].to(z), self.masks[site.kind].to(z.device)
        variants = len(gates) // len(other) if gates.ndim == 2 else 1
        common, beams = min(z.shape[1], other.shape[1]), len(z) // (variants * len(other))
        other, mask = (
            tensor[:, :common].repeat(variants, *[1] * (tensor.ndim - 1)).repeat_interleave(beams, 0)
            for tensor in (other, mask)
        )
        replacement = z.detach().clone()
        replacement[:, :common] = torch.where(mask[..., None, None], other, replacement[:, :common])
        return replacement
