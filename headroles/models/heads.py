"""Where attention lives: every attention site of a model, found by one spy forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models import dummy_inputs as finite
from headroles.models.discovery import ask_for_weights, discover_sites
from headroles.models.dummy_inputs import dummy_inputs
from headroles.models.sites import OUTSIDE, Site, recorded_sites
from headroles.tables import frame
from headroles.tables.frame import KINDS, Kind

_known: WeakKeyDictionary[PreTrainedModel, tuple[Any, list[Site]]] = WeakKeyDictionary()


def attention_sites(model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> list[Site]:
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
    found = recorded_sites(model) or discover_sites(model, dict(inputs or dummy_inputs(model)))
    if not found:
        raise ValueError(
            f"no attention found in {type(model).__name__} ({model.config.model_type!r}): no module called "
            f"transformers' attention interface, none is of a class known outside it: {', '.join(sorted(OUTSIDE))}; "
            f"add the class to headroles.models.sites.OUTSIDE if it has attention"
        )
    if all(site.out for site in found) or not (finite.weights(model) or finite.outputs(model)):
        _known[model] = print_now, found  # by numbers that are not finite no projection is recognised
    return found


def remember(model: PreTrainedModel, found: list[Site]) -> None:
    """These are the sites of the model as it is now: for parameters that join it and change none of them."""
    _known[model] = _print(model), found


def head_index(model: PreTrainedModel) -> Any:
    """The head index of `model`: a pandas MultiIndex (kind, layer, head)."""
    return frame.index({site.key: site.numbers for site in attention_sites(model)})


def check_head(model: PreTrainedModel, head: tuple[Kind, int, int]) -> None:
    """Raises ValueError, with what there is, for a (kind, layer, head) that `model` does not have."""
    found = attention_sites(model)
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
            for hook in ask_for_weights(module, handler):
                stack.callback(hook.remove)
        yield


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
