"""Resizing: a model whose attention has other numbers of heads than its config says, and the loading of its weights."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models import attention_hooks
from headroles.models.sites import Site, class_name, module_at, recorded, recorded_sites

HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")  # what attention modules call the number of heads,
KV_HEADS = ("num_key_value_heads", "num_kv_heads")  # ... of key-value heads,
WIDTH = ("all_head_size", "inner_dim", "split_size")  # ... and of numbers of all heads
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
    for number in [key for key, hook in out._forward_pre_hooks.items() if isinstance(hook, _Silence)]:
        del out._forward_pre_hooks[number]
    places = [site.numbers.index(number) for number in site.silenced]
    if places:
        out.register_forward_pre_hook(_Silence([place * site.size + i for place in places for i in range(site.size)]))


class _Silence:
    """The hook that sets columns of what a projection takes in to zero: it keeps them, so that it can be moved."""

    def __init__(self, columns: list[int]) -> None:
        self.columns = columns

    def __call__(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        columns = torch.tensor(self.columns, dtype=torch.long, device=args[0].device)
        return args[0].index_fill(-1, columns, 0), *args[1:]


class Empty(nn.Linear):
    """A linear map of no numbers in or out: torch quantises `nn.Linear` alone, and gives rubbish for an empty one."""


def resize(module: nn.Module, name: str, value: torch.Tensor) -> None:
    """Put a tensor of another shape in the place of a parameter, and let the module know its sizes."""
    before = module.get_parameter(name)
    setattr(module, name, nn.Parameter(value, requires_grad=before.requires_grad))
    if name == "weight" and isinstance(module, nn.Linear):
        module.out_features, module.in_features = value.shape
        if type(module) is nn.Linear and not value.numel():
            module.__class__ = Empty
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


# arguments of attention modules: [batch or 1, head, query, key], and [batch x head, 1, key]
NAMES = ("position_bias", "alibi")
_LEFT = "bias_of_heads"  # where an attention module keeps which


def narrow(module: nn.Module, keep: Sequence[int], of: int) -> None:
    """From now on the attention module reads only the biases of the heads `keep` of the `of` that others speak of."""
    if not set(NAMES) & set(inspect.signature(module.forward).parameters):
        return
    if _LEFT not in module.__dict__:
        hook = _Bias()
        module.register_forward_pre_hook(hook.before, with_kwargs=True)
        module.register_forward_hook(hook.after)
        if isinstance(table := getattr(module, "relative_attention_bias", None), nn.Module):
            table.register_forward_hook(hook.made)
    module.__dict__[_LEFT] = list(keep), of


class _Bias:
    """Takes the biases of the heads that are left, and hands all of them on to the layers above (T5's are shared)."""

    keep: list[int]
    of: int
    full: Tensor | None = None  # [batch or 1, head, query, key], within one call

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = attention_hooks.arguments(module, args, kwargs)
        self.full, (self.keep, self.of) = None, module.__dict__[_LEFT]
        for name in NAMES:
            value = bound.arguments.get(name)
            if isinstance(value, Tensor) and value.ndim == 4:
                self.full, bound.arguments[name] = value, value[:, self.keep]
            elif isinstance(value, Tensor):
                bound.arguments[name] = value.unflatten(0, (-1, self.of))[:, self.keep].flatten(0, 1)
        return bound.args, bound.kwargs

    def made(self, _: nn.Module, __: Any, values: Tensor) -> Tensor:
        """The first layer of a T5 makes the bias of all, [query, key, head]."""
        self.full = values.permute(2, 0, 1)[None]
        return values[..., self.keep]

    def after(self, module: nn.Module, _: Any, output: Any) -> Any:
        """What a T5 hands on: the bias of all heads; that of cross-attention is zero."""
        full, self.full = self.full, None
        if not hasattr(module, "has_relative_attention_bias"):
            return output
        full = output[1].new_zeros(1, self.of, *output[1].shape[2:]) if full is None else full
        return (output[0], full, *output[2:])
