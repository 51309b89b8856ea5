"""Attention sites: where a model attends, with how many heads, and the record of pruned heads in its config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from headroles.models.parts import OUTSIDE, Outside, class_name, is_packed, width
from headroles.models.sharded import Ranks
from headroles.tables import frame
from headroles.tables.arguments import one_of, several
from headroles.tables.frame import KINDS, Kind, parsed_head

Head = tuple[Kind, int, int]  # kind, layer, head
RECORD = "headroles"  # the entry of a config that lists the heads that are left
FIELDS = ("kind", "layer", "kv_heads", "size", "name", "out_name", "call_index", "heads_before_pruning")


@dataclass(frozen=True, eq=False)
class Site:
    """One place where a model attends: `heads` heads of `size` features, concatenated at the input of `out`."""

    kind: Kind
    layer: int
    heads: int
    kv_heads: int
    size: int  # features per head
    name: str  # of the attention module in the model
    module: nn.Module = field(repr=False)
    out_name: str | None
    out: nn.Module | None = field(repr=False)  # output projection; None where another operation changes the heads first
    call_index: int  # of this call among the calls of `module` in a forward (ALBERT calls one module once a layer)
    numbers: tuple[int, ...]  # of the heads: 0, 1, ... unless some were removed
    heads_before_pruning: int
    zeroed: tuple[int, ...] = ()  # numbers of pruned heads that are kept as zeroed heads
    outside: Outside | None = None
    ranks: Ranks = field(default_factory=Ranks, repr=False)  # the processes that have a part of the heads each

    @property
    def key(self) -> tuple[Kind, int]:
        """(kind, layer)."""
        return self.kind, self.layer

    @property
    def remaining(self) -> tuple[int, ...]:
        """Numbers of the remaining heads, without heads that were removed and are kept as zeroed."""
        return tuple(number for number in self.numbers if number not in self.zeroed)

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Numbers of the heads that share each key-value head, in the order of key-value heads."""
        size = self.heads // max(self.kv_heads, 1)
        return [self.numbers[start : start + size] for start in range(0, self.heads, max(size, 1))]

    def read(self, inputs: Tensor) -> Tensor:
        """Return the outputs of all heads, [batch, query, heads, size], in the input of the output projection."""
        z = self.join(inputs.unflatten(-1, (-1, self.size)), -2)
        return z.transpose(0, 1) if self.outside is not None and self.outside.time_major else z

    def write(self, z: Tensor) -> Tensor:
        """Return the input of the output projection with these outputs of all heads: the inverse of `read`."""
        z = z.transpose(0, 1) if self.outside is not None and self.outside.time_major else z
        return self.ranks.split(z, -2).flatten(-2)

    def join(self, part: Tensor, dim: int = 1) -> Tensor:
        """Return a tensor of all heads, which are at `dim`; this process may have a part of them."""
        return part if self.ranks.group is None else self.ranks.join(part, dim)

    def join_mask(self, mask: Tensor | None) -> Tensor | None:
        """Return the attention mask of all heads, [batch, heads or 1, query, key]."""
        return mask if mask is None or mask.shape[1] == 1 else self.join(mask)


class Sites(list[Site]):
    """The attention sites of a model, which name its heads; printed one per line, in notebooks as a table."""

    def __init__(self, sites: Iterable[Site] = (), model: str = "the model") -> None:
        super().__init__(sites)
        self.model = model  # its class, for messages
        self.divisible: bool | None = None  # whether attention may be computed in parts, once it is known

    @property
    def head_index(self) -> pd.MultiIndex:
        """The index (kind, layer, head) of every table: the heads that are left."""
        return frame.index({site.key: site.remaining for site in self})

    @property
    def gate_index(self) -> pd.MultiIndex:
        """The index of gates and masks, including removed heads that are kept as zeroed."""
        return frame.index({site.key: site.numbers for site in self})

    def of_kinds(self, kinds: Sequence[str] | None) -> list[Head]:
        """Return the heads of some kinds or all; ValueError for a kind that the model lacks."""
        heads = [(kind, layer, head) for kind, layer, head in self.head_index]
        present = dict.fromkeys(kind for kind, _, _ in heads)
        chosen = present if kinds is None else [one_of("kind", kind, present) for kind in several(kinds)]
        return [head for head in heads if head[0] in chosen]

    def named(self, heads: Iterable[Head | str] | str, *, zeroed: bool = False) -> list[Head]:
        """Return heads as (kind, layer, head), also those written "L0H2,L1H0" or "enc-self L0H2".

        With `zeroed` they may be heads that were removed and are kept as zeroed.

        Raises:
            ValueError: The model lacks one; the message lists the heads that it has.
        """
        given = heads.split(",") if isinstance(heads, str) else several(heads)
        if unknown := [head for head in given if not isinstance(head, Iterable)]:
            raise ValueError(f"heads must be (kind, layer, head) or text such as L0H2, got {unknown[0]!r}")
        chosen = [self._named(head) if isinstance(head, str) else (*head,) for head in given]
        known = {(*site.key, number) for site in self for number in (site.numbers if zeroed else site.remaining)}
        if lacking := next((head for head in chosen if head not in known), None):
            name = frame.spelled(*lacking) if len(lacking) == 3 else lacking
            raise ValueError(f"no head {name} in {self.model}, which has {self.sizes}")
        return chosen

    def _named(self, text: str) -> Head:
        kind, layer, head = parsed_head(text)
        kinds = [kind for kind in KINDS if any(site.kind == kind for site in self)]
        if kind is None and len(kinds) > 1:
            example = frame.spelled(kinds[0], layer, head)
            raise ValueError(f"head {text!r} has no kind: got a model with {', '.join(kinds)}; try {example!r}")
        return kind or kinds[0], layer, head

    @property
    def sizes(self) -> str:
        """The numbers of layers and heads in words, including removed heads that are kept as zeroed."""
        counts = {kind: [len(site.remaining) for site in self if site.kind == kind] for kind in KINDS}
        zeroed = sum(len(site.zeroed) for site in self)
        parts = [
            f"{kind} {len(heads)} layers of {' to '.join(map(str, sorted({min(heads), max(heads)})))} heads"
            for kind, heads in counts.items()
            if heads
        ]
        return ", ".join([*parts, *([f"and {zeroed} removed, kept as zeroed"] if zeroed else [])])

    def __repr__(self) -> str:
        lines = [f"{site.kind} {site.layer}: {site.heads} heads of {site.size} in {site.name}" for site in self]
        return "\n".join([f"{len(self)} attention sites, {sum(site.heads for site in self)} heads", *lines])

    def _repr_html_(self) -> str:
        rows = [
            {
                **{"kind": site.kind, "layer": site.layer, "heads": site.heads},
                **{"key-value heads": site.kv_heads, "features per head": site.size},
                **{"attention module": site.name, "output projection": site.out_name or "none: cannot be masked"},
            }
            for site in self
        ]
        return frame.shown(f"{len(self)} attention sites, {sum(site.heads for site in self)} heads", rows)


def shared_keys(sites: Iterable[Site]) -> str:
    """Describe how many query heads share a key-value head: "dec-self=4", or "4.2" if layers differ; "" if none do."""
    counts: dict[str, list[int]] = {}
    for site in sites:
        size = site.heads // max(site.kv_heads, 1) or 1
        is_known = size == 1 or site.heads == site.heads_before_pruning  # else head numbers do not identify the groups
        counts.setdefault(site.kind, []).append(size if is_known else 0)
    return ",".join(
        f"{kind}={sizes[0] if len(set(sizes)) == 1 else '.'.join(map(str, sizes))}"
        for kind, sizes in counts.items()
        if set(sizes) != {1}
    )


def record(model: PreTrainedModel, sites: Sequence[Site], notes: Mapping[str, object]) -> None:
    """Write `sites`, and notes on what was removed, into the model's config, so that every way of saving keeps them."""
    rows = [
        {field: getattr(site, field) for field in FIELDS} | {"heads": list(site.numbers), "zeroed": list(site.zeroed)}
        for site in sites
    ]
    setattr(model.config, RECORD, {"sites": rows, **notes})


def recorded(config: PreTrainedConfig) -> dict[str, Any] | None:
    """Return what `record` wrote; None for a model without removed heads."""
    return getattr(config, RECORD, None)


def recorded_sites(model: PreTrainedModel) -> list[Site] | None:
    """Return the sites that the config records; None if it records none, or the weights have other shapes."""
    notes = recorded(model.config)
    sites = []
    for row in notes["sites"] if notes else ():
        module, out = module_at(model, row["name"]), module_at(model, row["out_name"])
        if width(out) != len(row["heads"]) * row["size"]:
            return None
        numbers, outside = tuple(row["heads"]), OUTSIDE.get(class_name(module))
        options = {field: row[field] for field in FIELDS}
        options |= {"heads": len(numbers), "numbers": numbers, "zeroed": tuple(row["zeroed"])}
        sites.append(Site(**options, module=module, out=out, outside=outside))
    return sites or None


def module_at(model: nn.Module, name: str) -> nn.Module:
    """Return the module called `name` in a model; the prefix of the model without its task head may be left out."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    modules: dict[str, nn.Module] = dict(model.named_modules())
    path = next((path for path in (name, name.removeprefix(prefix), prefix + name) if path in modules), None)
    if path is None:
        raise ValueError(
            f"config.{RECORD} refers to module {name!r}, which {type(model).__name__} does not have; "
            f"the checkpoint was pruned for another class"
        )
    return modules[path]


def unreadable_weight(site: Site, model: str, *, merged: bool = True) -> str | None:
    """Return why a site's output projection cannot be read from its weight; with `merged`, merged adapters can."""
    return unreadable(site.out, f"{site.out_name} in {model}", merged=merged)


def unreadable(linear: Any, where: str, *, merged: bool = False) -> str | None:
    """Return why a linear map, called `where`, cannot be read from its weight."""
    if hasattr(linear, "base_layer") and not (merged and (linear.merged or linear.disable_adapters)):
        return f"{where} has an adapter in addition to its weight; try the model that merge_and_unload() returns"
    if is_packed(linear) or not linear.weight.is_floating_point():
        return f"{where} is quantised; try without quantization_config"
    return None
