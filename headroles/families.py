"""Where attention lives: every attention site of a model, found by one spy forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles import heads, seam
from headroles.heads import KINDS, Kind
from headroles.probe import probe, without_cache
from headroles.site import OUTSIDE, Outside, Site, class_name, recorded_sites, width

_known: WeakKeyDictionary[PreTrainedModel, tuple[Any, list[Site]]] = WeakKeyDictionary()


def sites(model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> list[Site]:
    """Every attention site of `model`, in the order of its table's rows: by kind, then by layer.

    One spy forward finds them, through the attention interface and without per-model code. `inputs` are its arguments
    where the model needs others than token ids, pixels or log-mel features; for an encoder-decoder its source and
    target must differ in length. Raises TypeError for what is no transformers model, ValueError for one without
    attention.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"expected a transformers model, got {type(model).__name__}; load one with headroles.load(name)"
        )
    print_now = _print(model)
    if inputs is None and model in _known and _known[model][0] == print_now:
        return _known[model][1]
    found = recorded_sites(model) or _spy(model, dict(inputs or probe(model)))
    if not found:
        raise ValueError(
            f"no attention found in {type(model).__name__} ({model.config.model_type!r}): no module called "
            f"transformers' attention interface, none is of a class known outside it: {', '.join(sorted(OUTSIDE))}; "
            f"add the class to headroles.families.OUTSIDE if it has attention"
        )
    _known[model] = print_now, found
    return found


def remember(model: PreTrainedModel, found: list[Site]) -> None:
    """These are the sites of the model as it is now: for parameters that join it and change none of them."""
    _known[model] = _print(model), found


def index(model: PreTrainedModel) -> Any:
    """The head index of `model`: a pandas MultiIndex (kind, layer, head)."""
    return heads.index({site.key: site.numbers for site in sites(model)})


def check_head(model: PreTrainedModel, head: tuple[Kind, int, int]) -> None:
    """Raises ValueError, with what there is, for a (kind, layer, head) that `model` does not have."""
    found = sites(model)
    if len(head) != 3 or not any(site.key == tuple(head[:2]) and head[2] in site.numbers for site in found):
        raise ValueError(f"no head {tuple(head)} in {type(model).__name__}, which has {sizes(found)}")


def layer_of(model: PreTrainedModel, site: Site) -> nn.Module | None:
    """The layer of the model that holds a site: the outermost element of a list of modules on the way to it."""
    module: nn.Module = model
    for name in site.name.split("."):
        inside, module = module, module.get_submodule(name)
        if isinstance(inside, nn.ModuleList):
            return module
    return None


def sizes(sites: list[Site]) -> str:
    """The numbers of layers and heads in words."""
    counts = {kind: [site.heads for site in sites if site.kind == kind] for kind in KINDS}
    return ", ".join(f"{kind} {len(each)} layers of {_range(each)} heads" for kind, each in counts.items() if each)


def _range(counts: list[int]) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"


@contextmanager
def outside_attending(sites: list[Site], handler: Callable[[nn.Module, Tensor], None]) -> Iterator[None]:
    """Within the block `handler` sees (attention module, weights) of every call of the sites outside the interface."""
    with ExitStack() as stack:
        for module in {site.module: None for site in sites if site.outside}:
            for hook in _ask_for_weights(module, handler):
                stack.callback(hook.remove)
        yield


@dataclass
class _Sighting:
    """What the spy saw of one attention call."""

    module: nn.Module
    weights: Tensor  # [batch, heads, query, key]
    flat: Tensor | None  # the heads side by side, to be recognised at the input of the output projection
    kv_heads: int | None
    outside: Outside | None
    out: nn.Module | None = None

    @property
    def kind(self) -> Kind:
        """Cross-attention looks at another length than its own; a decoder's first query sees no later key."""
        if self.weights.shape[-2] != self.weights.shape[-1]:
            return "cross"
        return "dec-self" if not self.weights[..., 0, 1:].any() else "enc-self"


def _spy(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Site]:
    seen: list[_Sighting] = []
    outside = {module: row for module in model.modules() if (row := OUTSIDE.get(class_name(module)))}

    def from_interface(call: seam.Call) -> None:
        seen.append(_Sighting(call.module, call.weights, call.out.flatten(), call.key.shape[1], None))

    def from_outside(module: nn.Module, weights: Tensor) -> None:
        row = outside[module]
        kv_heads = getattr(module, row.kv_heads) if row.kv_heads else None
        seen.append(_Sighting(module, weights, None, kv_heads, row, _relative(model, module, row.out)))

    def at_projection(module: nn.Module, args: tuple[Any, ...]) -> None:
        last = seen[-1] if seen else None
        if last and last.flat is not None and args and _same(args[0], last.flat):
            last.out, last.flat = module, None

    with ExitStack() as stack:
        for module in outside:
            for hook in _ask_for_weights(module, from_outside):
                stack.callback(hook.remove)
        for module in model.modules():
            if getattr(getattr(module, "weight", None), "ndim", 0) == 2:
                stack.callback(module.register_forward_pre_hook(at_projection).remove)
        stack.enter_context(seam.attending(model, from_interface))
        stack.enter_context(seam.evaluating(model))
        with torch.no_grad():
            model.base_model(**inputs, **without_cache(model.base_model))
    return _numbered(model, seen)


def _numbered(model: PreTrainedModel, seen: list[_Sighting]) -> list[Site]:
    names = {module: name for name, module in model.named_modules()}
    layers: Counter[str] = Counter()
    turns: Counter[nn.Module] = Counter()
    found = []
    for one in seen:
        heads = one.weights.shape[1]
        found.append(
            Site(
                kind=one.kind,
                layer=layers[one.kind],
                heads=heads,
                kv_heads=one.kv_heads or heads,
                size=width(one.out) // heads,
                name=names[one.module],
                module=one.module,
                out_name=names.get(one.out) if one.out is not None else None,
                out=one.out,
                turn=turns[one.module],
                numbers=tuple(range(heads)),
                of=heads,
                outside=one.outside,
            )
        )
        layers[one.kind] += 1
        turns[one.module] += 1
    return sorted(found, key=lambda site: (KINDS.index(site.kind), site.layer))


def _ask_for_weights(module: nn.Module, handler: Callable[[nn.Module, Tensor], None]) -> list[Any]:
    """Hooks that make an attention module outside the interface give its weights to `handler` and to nobody else."""
    first: list[bool] = []  # blocks nest: the outermost is the first to ask for the weights and the last to take them

    def ask(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = seam.arguments(module, args, kwargs)
        first.append(not bound.arguments.get("output_attentions"))
        bound.arguments["output_attentions"] = True
        return bound.args, bound.kwargs

    def take(module: nn.Module, _: Any, output: tuple[Any, ...]) -> tuple[Any, ...] | None:
        handler(module, output[1])
        return (output[0], None, *output[2:]) if first.pop() else None

    return [module.register_forward_pre_hook(ask, with_kwargs=True), module.register_forward_hook(take, prepend=True)]


def _same(given: Any, flat: Tensor) -> bool:
    return isinstance(given, Tensor) and given.numel() == flat.numel() and torch.equal(given.flatten(), flat)


def _relative(model: nn.Module, module: nn.Module, path: str) -> nn.Module:
    name = next(name for name, each in model.named_modules() if each is module)
    if path.startswith(".."):
        return model.get_submodule(f"{name.rpartition('.')[0]}.{path[2:]}")
    return module.get_submodule(path)


def _print(model: PreTrainedModel) -> tuple[Any, ...]:
    """What changes when heads are cut out: the shapes of the weights."""
    found: list[Any] = []
    seen: set[nn.Module] = set()
    left: list[nn.Module] = [model]
    while left:  # by hand, since `parameters` takes five times as long, and this is asked for at every forward
        module = left.pop()
        if module not in seen:
            seen.add(module)
            found += [weight.shape for weight in module._parameters.values() if weight is not None]
            left += [inside for inside in module._modules.values() if inside is not None]
    return tuple(found)
