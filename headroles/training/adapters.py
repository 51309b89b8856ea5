"""Adapters of PEFT (LoRA and so on) in training: what is saved and loaded are adapters and gates, not the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

GATES = "head_gates"  # of the gates among the model's modules, for the Trainer, its optimizer and checkpoints
WEIGHTS, PREFIX = "adapter_model.safetensors", "base_model.model."  # as PEFT writes them


def check(model: PreTrainedModel) -> None:
    """Raise ValueError for adapters that could not be loaded again, or weights that would train beside them."""
    name, kept = type(model).__name__, {value.data_ptr() for value in _state(model).values()}
    strays = [
        key
        for key, value in model.named_parameters()
        if value.requires_grad and value.data_ptr() not in kept and not key.startswith(GATES)
    ]
    if strays:
        raise ValueError(
            f"weights of {name} would train beside its adapter and not be saved with it: got {strays[0]} and "
            f"{len(strays) - 1} more; expected the adapter alone; try requires_grad_(False) on them, or name their "
            f"modules in modules_to_save of the adapter's config"
        )


def save(model: PreTrainedModel, folder: Path) -> None:
    """Save the adapter in the format of PEFT, which `PeftModel.from_pretrained(base, folder)` loads, and gates."""
    folder.mkdir(parents=True, exist_ok=True)
    _save({f"{PREFIX}{key}": value for key, value in _state(model).items()}, folder / WEIGHTS)
    model.peft_config[_adapter(model)].save_pretrained(str(folder))
    if GATES in model._modules:
        _save(model.get_submodule(GATES).state_dict(), folder / f"{GATES}.safetensors")


def load(model: PreTrainedModel, folder: Path) -> None:
    """Load what `save` wrote into a model with the same adapter, and the same gates."""
    from peft import set_peft_model_state_dict

    state = {key.removeprefix(PREFIX): value for key, value in load_file(folder / WEIGHTS).items()}
    set_peft_model_state_dict(model, state, adapter_name=_adapter(model))
    if GATES in model._modules:
        model.get_submodule(GATES).load_state_dict(load_file(folder / f"{GATES}.safetensors"))


def _state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights of the adapter by PEFT's names."""
    from peft import get_peft_model_state_dict

    state: dict[str, Tensor] = get_peft_model_state_dict(
        model, adapter_name=_adapter(model), save_embedding_layers=False
    )
    return state


def _adapter(model: PreTrainedModel) -> str:
    """Return the name of the adapter; ValueError for several."""
    names = [*getattr(model, "peft_config", ())]
    if len(names) != 1:
        raise ValueError(
            f"{type(model).__name__} has several adapters: got {', '.join(names) or 'no peft_config'}; expected one; "
            f"try delete_adapter(name), or the model that merge_and_unload() returns"
        )
    return str(names[0])


def _save(state: Mapping[str, Tensor], path: Path) -> None:
    save_file({key: value.contiguous() for key, value in state.items()}, path, metadata={"format": "pt"})
