"""Pruned models: attention modules with fewer heads than the config counts, also when weights are loaded."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from headroles.models.attention_hooks import arguments
from headroles.models.parts import class_name
from headroles.models.sites import RECORD, Site, module_at, recorded, recorded_sites

HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")  # attributes of attention modules: number of heads,
KV_HEADS = ("num_key_value_heads", "num_kv_heads")  # ... of key-value heads,
WIDTH = ("all_head_size", "inner_dim", "split_size")  # ... and of features of all heads
MARK = "-pruned-use-headroles.load"  # end of the model type of smaller checkpoints: transformers' errors quote it
READS_CONFIG = ("modeling_phi3.Phi3Attention",)  # they read the number of heads from their config at every call


def renumber(site: Site) -> None:
    """Set the attributes of an attention module to the heads left at its site."""
    module: Any = site.module
    values = {HEADS: site.heads, KV_HEADS: site.kv_heads, WIDTH: site.heads * site.size}
    for name, value in ((name, value) for names, value in values.items() for name in names):
        if isinstance(module.__dict__.get(name), int):
            setattr(module, name, value)
    if site.kv_heads and "num_key_value_groups" in module.__dict__:
        module.num_key_value_groups = site.heads // site.kv_heads
    if class_name(module) in READS_CONFIG:
        config = module.config.config if isinstance(module.config, Narrowed) else module.config
        module.config = Narrowed(config, num_attention_heads=site.heads)
    narrow(module, site.numbers, site.heads_before_pruning)
    keep_at_zero(site)


def keep_at_zero(site: Site) -> None:
    """Keep the outputs of zeroed heads at zero, so that training does not restore them."""
    out = site.out
    assert out is not None
    for number in [key for key, hook in out._forward_pre_hooks.items() if isinstance(hook, _ZeroColumns)]:
        del out._forward_pre_hooks[number]
    places = [site.numbers.index(number) for number in site.zeroed]
    if places:
        out.register_forward_pre_hook(
            _ZeroColumns([place * site.size + i for place in places for i in range(site.size)])
        )


class _ZeroColumns:
    """The hook that sets columns of the input of a projection to zero, on the device of that input."""

    def __init__(self, columns: list[int]) -> None:
        self.columns = columns

    def __call__(self, _: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        columns = torch.tensor(self.columns, dtype=torch.long, device=args[0].device)
        return args[0].index_fill(-1, columns, 0), *args[1:]


class Empty(nn.Linear):
    """A linear map without inputs or outputs: a subclass, since torch quantises an empty `nn.Linear` wrongly."""


def resize(module: nn.Module, name: str, value: torch.Tensor) -> None:
    """Replace a parameter by one of another shape, and update the module's sizes."""
    before = module.get_parameter(name)
    setattr(module, name, nn.Parameter(value, requires_grad=before.requires_grad))
    if name == "weight" and isinstance(module, nn.Linear):
        module.out_features, module.in_features = value.shape
        if type(module) is nn.Linear and not value.numel():
            module.__class__ = Empty
    elif name == "weight" and type(module).__name__ == "Conv1D":
        module.nx, module.nf = value.shape  # type: ignore[assignment]


def resized(cls: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Return a subclass that builds models with the shapes that the config records."""

    class Resized(cls):  # type: ignore[misc, valid-type]
        def __init__(self, config: PreTrainedConfig, *args: object, **kwargs: object) -> None:
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
    """A config with another number of heads; all other attributes are read from the wrapped config."""

    def __init__(self, config: PreTrainedConfig, *, num_attention_heads: int) -> None:
        self.__dict__.update(num_attention_heads=num_attention_heads, config=config)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "config" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.config, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.config, name, value)


# arguments of attention modules: [batch or 1, head, query, key], and [batch x head, 1, key]
NAMES = ("position_bias", "alibi")
_LEFT = "bias_of_heads"  # attribute of an attention module: (numbers of the heads left, number of all heads)


def narrow(module: nn.Module, keep: Sequence[int], n_heads: int) -> None:
    """Let an attention module read the biases of the heads in `keep` only."""
    if not set(NAMES) & set(inspect.signature(module.forward).parameters):
        return
    if _LEFT not in module.__dict__:
        hook = _Bias()
        module.register_forward_pre_hook(hook.before, with_kwargs=True)
        module.register_forward_hook(hook.after)
        if isinstance(table := getattr(module, "relative_attention_bias", None), nn.Module):
            table.register_forward_hook(hook.select)
    module.__dict__[_LEFT] = list(keep), n_heads


class _Bias:
    """Hooks that select the biases of the heads left, and pass all biases on to the next layers (T5 shares them)."""

    keep: list[int]
    n_heads: int
    full: Tensor | None = None  # [batch or 1, head, query, key], within one call

    def before(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Select the biases among the arguments of an attention module."""
        bound = arguments(module, args, kwargs)
        self.full, (self.keep, self.n_heads) = None, module.__dict__[_LEFT]
        for name in NAMES:
            value = bound.arguments.get(name)
            if isinstance(value, Tensor) and value.ndim == 4:
                self.full, bound.arguments[name] = value, value[:, self.keep]
            elif isinstance(value, Tensor):
                bound.arguments[name] = value.unflatten(0, (-1, self.n_heads))[:, self.keep].flatten(0, 1)
        return bound.args, bound.kwargs

    def select(self, _: nn.Module, __: object, values: Tensor) -> Tensor:
        """Select from the biases, [query, key, head], that the first layer of a T5 computes."""
        self.full = values.permute(2, 0, 1)[None]
        return values[..., self.keep]

    def after(self, module: nn.Module, _: object, output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the output of a T5 layer with the biases of all heads; in cross-attention they are zero."""
        full, self.full = self.full, None
        if not hasattr(module, "has_relative_attention_bias"):
            return output
        full = output[1].new_zeros(1, self.n_heads, *output[1].shape[2:]) if full is None else full
        return (output[0], full, *output[2:])


def is_smaller(model: PreTrainedModel) -> bool:
    """Return whether heads were removed from the weights of a model."""
    notes = recorded(model.config)
    return notes is not None and any(len(row["heads"]) < row["heads_before_pruning"] for row in notes["sites"])


def known_config(model: PreTrainedModel) -> dict[str, PreTrainedConfig]:
    """Return the config of a smaller model, as an option of AutoTokenizer."""
    return {"config": model.config} if is_smaller(model) else {}


def mark(path: Path) -> None:
    """Mark a config.json as a checkpoint that transformers alone cannot load."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["model_type"] = str(config["model_type"]).removesuffix(MARK) + MARK
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def unmarked(name: str | Path, **place: Any) -> PreTrainedConfig | None:
    """Return the config of a checkpoint that `mark` has marked; None for another."""
    config, _ = PreTrainedConfig.get_config_dict(name, **place)
    kind = str(config.get("model_type"))
    if RECORD not in config or not kind.endswith(MARK):
        return None
    kind = kind.removesuffix(MARK)
    return transformers.CONFIG_MAPPING[kind].from_dict(config | {"model_type": kind})


MADE_BY = "Made by headroles"
CARD = Path(__file__).with_name("card.md")


def card(model: PreTrainedModel, weights: str, command: str = "") -> str:
    """Return the Hub's model card of a model with removed heads."""
    from huggingface_hub import ModelCard, ModelCardData

    notes = recorded(model.config)
    rows = notes["sites"] if notes else []
    left = {
        (row["kind"], row["layer"]): (row["heads_before_pruning"], {*row["heads"]} - {*row["zeroed"]}) for row in rows
    }
    removed = [(*place, sorted({*range(of)} - heads)) for place, (of, heads) in left.items()]
    name = model.config.name_or_path or type(model).__name__
    on_hub = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) is not None and not Path(name).exists()
    made = ModelCard.from_template(
        ModelCardData(
            library_name="headroles", base_model=name if on_hub else None, tags=["attention-heads", "pruning"]
        ),
        template_path=str(CARD),
        made_by=MADE_BY,
        name=name if on_hub else Path(name).name,
        count=sum(len(heads) for *_, heads in removed),
        of=sum(of for of, _ in left.values()),
        version=version("headroles"),
        class_name=type(model).__name__,
        removed=[row for row in removed if row[-1]],
        weights=weights,
        command=" ".join(command.split()),
    )
    return str(made)
