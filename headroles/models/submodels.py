"""Submodels: the parts of a multimodal model that can be analysed by themselves."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel


def submodel(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """The tower of a model for text, pictures or sound: "text", "vision", "audio" ..., or the name of its module.

    It is a part of `model`, shares its weights, and can stand wherever a model is asked for: `hr.attention_sites`, `hr.score`,
    `hr.remove_heads`. It puts out states; where the model around it predicts words, give that model text alone instead.
    Raises ValueError, with the towers there are, for another name.
    """
    found = towers(model)
    modules = {module: part for part, module in model.named_modules()}
    for kind, one in found.items():
        if name in (kind, modules[one], modules[one].rpartition(".")[2]):
            return one
    if not found:
        raise ValueError(f"no tower {name!r} in {type(model).__name__}, which is one itself: leave the name out")
    listed = ", ".join(f"{kind} ({modules[one]})" for kind, one in found.items())
    raise ValueError(f"no tower {name!r} in {type(model).__name__}; it has {listed}")


def towers(model: PreTrainedModel) -> dict[str, PreTrainedModel]:
    """The outermost models inside a model that have a config of their own, by what the config calls that."""
    config: Any = model.config
    parts = {key.removesuffix("_config"): getattr(config, key, None) for key in config.sub_configs}
    found: dict[str, PreTrainedModel] = {}
    for module in _inside(model):
        kinds = [kind for kind, part in parts.items() if part is not None and _of(module, part)]
        if kinds and kinds[0] not in found:
            found[kinds[0]] = module
    return found


def hint(model: PreTrainedModel) -> str:
    """What to say of a model that does not run on one kind of input: choose a tower, where it has several."""
    found = towers(model)
    return f"; choose a tower, such as hr.submodel(model, {next(iter(found))!r})" if found else ""


def _inside(module: nn.Module) -> list[PreTrainedModel]:
    """All models inside a module, those outside others first."""
    return [one for one in module.modules() if isinstance(one, PreTrainedModel) and one is not module]


def _of(module: PreTrainedModel, config: Any) -> bool:
    return module.config is config or (
        module.config.model_type == config.model_type and module.config.to_dict() == config.to_dict()
    )
