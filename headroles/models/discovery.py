"""Discovery of attention sites: one forward through transformers' attention interface, with hooks on projections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models import attention_hooks
from headroles.models.attention_hooks import AttentionCall, ask_for_weights, evaluating, observe_attention
from headroles.models.parts import Outside, body, hint, is_map, outside, width
from headroles.models.sharded import ranks_of
from headroles.models.sites import Site
from headroles.tables.frame import KINDS, Kind

TEXT = {"input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask"}  # inputs of text alone


def discover_sites(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Site]:
    """Return the sites that attend in one forward on `inputs`, by kind and layer."""
    modules = list(model.modules())
    recorder = _CallRecorder(model)
    with evaluating(model) as changes:
        for module in recorder.outside:
            ask_for_weights(changes, module, recorder.from_outside)
        for module in modules:
            if is_map(module):
                changes.hook(module, recorder.at_projection)
        observe_attention(changes, recorder.from_interface)
        _run(model, inputs)
        is_too_short = modules != list(model.modules())  # BigBird attends to it with other modules
    if is_too_short:
        return discover_sites(model, {name: torch.cat([value, value], 1) for name, value in inputs.items()})
    calls = recorder.calls
    for number, call in enumerate(calls):
        if call.out is None:
            n_outside = sum(earlier.outside is not None for earlier in calls[:number])
            call.out = _projection_behind(model, inputs, number - n_outside, call)
    _check(model, inputs, calls)
    return _sites(model, calls)


@dataclass
class _ObservedCall:
    """One attention call in the forward, and the linear maps after it."""

    module: nn.Module
    weights: Tensor  # [batch, heads, query, key]
    flat: Tensor | None  # the concatenated heads, to recognise the input of the output projection
    kv_heads: int | None
    outside: Outside | None
    out: nn.Module | None = None
    width: int | None = None  # of the concatenated heads in this process
    later: list[tuple[nn.Module, Tensor]] = field(default_factory=list)  # later maps with inputs of the same size

    @property
    def kind(self) -> Kind:
        """Kind: cross-attention has other numbers of queries than keys; a decoder's first query sees no later key."""
        if self.weights.shape[-2] != self.weights.shape[-1]:
            return "cross"
        return "dec-self" if not self.weights[..., 0, 1:].any() else "enc-self"


class _CallRecorder:
    """Callbacks that record every attention call of a forward, with its output projection where it is recognised."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.calls: list[_ObservedCall] = []
        self.outside = {module: row for module in model.modules() if (row := outside(module))}

    def from_interface(self, call: AttentionCall) -> None:
        """Record a call through the attention interface."""
        heads, size = call.out.shape[-2:]
        flat, kv_heads = call.out.flatten(), call.key.shape[1]
        self.calls.append(_ObservedCall(call.module, call.weights, flat, kv_heads, None, width=heads * size))

    def from_outside(self, module: nn.Module, weights: Tensor) -> None:
        """Record a call of an attention module outside the interface."""
        row = self.outside[module]
        kv_heads = getattr(module, row.kv_heads) if row.kv_heads else None
        out = _relative(self.model, module, row.out)
        self.calls.append(_ObservedCall(module, weights, None, kv_heads, row, out))

    def at_projection(self, module: nn.Module, args: tuple[object, ...]) -> None:
        """Recognise the output projection of the last call by its input, or note the map as a candidate."""
        call = self.calls[-1] if self.calls else None
        if call is None or call.flat is None or not args:
            return
        if not isinstance(args[0], Tensor) or args[0].numel() != call.flat.numel():
            return
        if torch.equal(args[0].flatten(), call.flat):
            call.out, call.flat = module, None
        else:
            call.later.append((module, args[0].clone()))


def _relative(model: nn.Module, module: nn.Module, path: str) -> nn.Module:
    if path.startswith(".."):
        return model.get_submodule(f"{_name(model, module).rpartition('.')[0]}.{path[2:]}")
    return module.get_submodule(path)


def _name(model: nn.Module, module: nn.Module) -> str:
    names: dict[nn.Module, str] = {part: name for name, part in model.named_modules()}
    return names[module]


def _run(model: PreTrainedModel, inputs: dict[str, Tensor]) -> None:
    try:
        with torch.no_grad():
            body(model)(**inputs, **attention_hooks.without_cache(body(model)))
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{type(model).__name__} does not run on {' and '.join(inputs)} alone ({reason}); try "
            f"hr.attention_sites(model, inputs) with the inputs of one small forward{hint(model)}"
        ) from error


# Some models multiply the heads by a gate after attention: no map then reads what attention gave. So the forward runs
# once more, with 1 added to the output of head 0 in this call alone. Maps after it with inputs of the size of the heads
# are candidates; the output projection is the first one in which the slice of head 0, and no other, has changed.
def _projection_behind(
    model: PreTrainedModel, inputs: dict[str, Tensor], number: int, call: _ObservedCall
) -> nn.Module | None:
    """Find the projection behind the model's own gate: in its input, only head 0 changes with the output of head 0."""
    numbers, changed_inputs = count(), list[tuple[nn.Module, Tensor]]()

    def changed(interface_call: AttentionCall) -> Tensor | None:
        if next(numbers) != number:
            return None
        out = interface_call.out.clone()
        out[..., 0, :] += 1  # [batch, query, heads, size]
        return out

    with evaluating(model) as changes:
        for module in {module for module, _ in call.later}:
            changes.hook(module, lambda module, args: changed_inputs.append((module, args[0])))
        observe_attention(changes, changed)
        _run(model, inputs)
    for module, before in (later for later in call.later if later[1].shape[-1] % call.weights.shape[1] == 0):
        for after in (x for other, x in changed_inputs if other is module and x.shape == before.shape):
            parts = (before != after).unflatten(-1, (call.weights.shape[1], -1))
            differs = parts.any(-1).flatten(0, -2).any(0)  # [head]
            if differs[0] and not differs[1:].any():
                return module
    return None


def _check(model: PreTrainedModel, inputs: Mapping[str, Tensor], calls: list[_ObservedCall]) -> None:
    """Raise ValueError for attention that mixes heads or kinds, or is not among tokens but, say, among layers."""
    lengths = {ids.shape[1] for ids in inputs.values()} if set(inputs) <= TEXT else set()
    without_projection = Counter(call.module for call in calls if call.out is None)
    for call in calls:
        queries, keys = call.weights.shape[-2:]
        if (times := without_projection[call.module]) > 1:
            fault = f"attends {times} times before its output projection, which mixes the outputs of its heads; such"
        elif keys > queries > 1 and not call.weights[..., 0, 1:queries].any():
            fault = f"attends from {queries} queries to {keys} self and cross keys in one call; such mixed"
        elif lengths and not {queries, keys} & lengths:
            got = f"{queries} queries and {keys} keys for {' and '.join(map(str, sorted(lengths)))} tokens"
            fault = f"does not attend among the tokens of a text: got {got}; such"
        else:
            continue
        raise ValueError(f"{_name(model, call.module)} in {type(model).__name__} {fault} attention is not supported")


def _sites(model: PreTrainedModel, calls: list[_ObservedCall]) -> list[Site]:
    names = {module: name for name, module in model.named_modules()}
    layers: Counter[str] = Counter()
    n_calls: Counter[nn.Module] = Counter()
    sites = []
    for call in calls:
        ranks = ranks_of(call.out, call.width, width(call.out))
        heads = call.weights.shape[1] * ranks.count
        sites.append(
            Site(
                kind=call.kind,
                layer=layers[call.kind],
                heads=heads,
                kv_heads=ranks.count * call.kv_heads if call.kv_heads else heads,
                size=width(call.out) // heads,
                name=names[call.module],
                module=call.module,
                out_name=names.get(call.out) if call.out is not None else None,
                out=call.out,
                call_index=n_calls[call.module],
                numbers=tuple(range(heads)),
                heads_before_pruning=heads,
                outside=call.outside,
                ranks=ranks,
            )
        )
        layers[call.kind] += 1
        n_calls[call.module] += 1
    return sorted(sites, key=lambda site: (KINDS.index(site.kind), site.layer))
