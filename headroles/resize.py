"""Resizing: a model whose attention has other numbers of heads than its config says, and the loading of its weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from headroles.bias import narrow
from headroles.site import Site, class_name, module_at, recorded, recorded_sites

HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")  # what attention modules call the number of heads,
KV_HEADS = ("num_key_value_heads", "num_kv_heads")  # ... of key-value heads,
WIDTH = ("all_head_size", "inner_dim", "split_size")  # ... and of numbers of all heads
_SILENT = "silent_heads"  # where an output projection keeps the columns it does not read
ASKS_CONFIG = ("modeling_phi3.Phi3Attention",)  # they ask their config for the number of heads at every call


def renumber(site: Site) -> None:
    """Tell a site's attention module which heads are left: those of the site."""
    module: Any = site.module
    values = {HEADS: site.heads, KV_HEADS: site.kv_heads, WIDTH: site.heads * site.size}
    for name, value in ((name, value) for names, value in values.items() for name in names):
        if isinstance(module.__dict__.get(name), int):
            setattr(module, name, value)
    if site.kv_heads and "num_key_value_groups" in module.__dict__:
        module.num_key_value_groups = site.heads // site.kv_heads
    if class_name(module) in ASKS_CONFIG:
        whole = module.config.config if isinstance(module.config, Narrowed) else module.config
        module.config = Narrowed(whole, num_attention_heads=site.heads)
    narrow(module, site.numbers, site.of)
    silence(site)


def silence(site: Site) -> None:
    """From now on what silenced heads put out is zero, also in training, which cannot wake them."""
    out: Any = site.out
    places = [site.numbers.index(number) for number in site.silenced]
    if places and _SILENT not in out.__dict__:
        out.register_forward_pre_hook(_without_silent)
    if places or _SILENT in out.__dict__:
        out.__dict__[_SILENT] = [place * site.size + i for place in places for i in range(site.size)]


def _without_silent(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    columns = torch.tensor(module.__dict__[_SILENT], dtype=torch.long, device=args[0].device)
    return args[0].index_fill(-1, columns, 0), *args[1:]


def resize(module: nn.Module, name: str, value: torch.Tensor) -> None:
    """Put a tensor of another shape in the place of a parameter, and let the module know its sizes."""
    before = module.get_parameter(name)
    setattr(module, name, nn.Parameter(value, requires_grad=before.requires_grad))
    if name == "weight" and isinstance(module, nn.Linear):
        module.out_features, module.in_features = value.shape
    elif name == "weight" and type(module).__name__ == "Conv1D":
        module.nx, module.nf = value.shape  # type: ignore[assignment]


def resized(cls: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """The class `cls`, but that a new model has the shapes and heads its config's record tells of: to load weights."""

    class Resized(cls):  # type: ignore[misc, valid-type]
        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            notes = recorded(config)
            for name, shape in (notes["shapes"] if notes else {}).items():
                path, _, last = name.rpartition(".")
                module = module_at(self, path)
                before = module.get_parameter(last)
                resize(module, last, torch.empty(shape, dtype=before.dtype, device=before.device))
            for site in recorded_sites(self) or ():
                renumber(site)

    Resized.__name__, Resized.__qualname__, Resized.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return Resized


class Narrowed:
    """A config that says another number of heads, and in all else is the one it stands for."""

    def __init__(self, config: Any, **own: Any) -> None:
        self.__dict__.update(own, config=config)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "config" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.config, name, value)
