"""Checkpoints of a training: the last complete one, and the weights in it, of a model or of its adapter alone."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from headroles.models.loading import is_adapted
from headroles.models.pruned import resized

GATES = "head_gates"  # of the gates among the model's modules, for the Trainer, its optimizer and checkpoints
WEIGHTS, PREFIX = "adapter_model.safetensors", "base_model.model."  # as PEFT writes them


def last_checkpoint(folder: Path) -> Path | None:
    """Return the last complete checkpoint in the folder: one that was being written at a kill is incomplete."""
    complete = filter(_is_complete, folder.glob("checkpoint-*"))
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def _is_complete(checkpoint: Path) -> bool:
    """Return whether the file that the Trainer writes last can be read."""
    try:
        return "log_history" in json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return False


def load_weights(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Load the weights in a folder into a model, also those of gates among its modules, or of its adapter alone.

    Files have other names than modules where transformers renames the weights, as of experts.

    Returns:
        The model in the folder; with an adapter the given one.
    """
    if is_adapted(model):
        _load_adapter(model, folder)
        return model
    saved: PreTrainedModel = resized(type(model)).from_pretrained(folder)
    state, names = saved.state_dict(), {*model.state_dict()}
    for file in folder.glob("*.safetensors"):
        state |= {name: value for name, value in load_file(file).items() if name in names - {*state}}
    model.load_state_dict(state)
    return saved


def save_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Save the adapter in the format of PEFT, which `PeftModel.from_pretrained(base, folder)` loads, and gates."""
    folder.mkdir(parents=True, exist_ok=True)
    _save({f"{PREFIX}{key}": value for key, value in _adapter_state(model).items()}, folder / WEIGHTS)
    model.peft_config[_adapter(model)].save_pretrained(str(folder))
    if GATES in model._modules:
        _save(model.get_submodule(GATES).state_dict(), folder / f"{GATES}.safetensors")


def check_adapter(model: PreTrainedModel) -> None:
    """Raise ValueError for several adapters, or for weights that would train with an adapter and not be saved."""
    saved = {value.data_ptr() for value in _adapter_state(model).values()}
    trained = {key: value for key, value in model.named_parameters() if value.requires_grad}
    if strays := [key for key, value in trained.items() if value.data_ptr() not in saved and not key.startswith(GATES)]:
        raise ValueError(
            f"the adapter of {type(model).__name__} must train alone, got {strays[0]} and {len(strays) - 1} more "
            f"weights; try requires_grad_(False) on them, or modules_to_save in the adapter's config"
        )


def _load_adapter(model: PreTrainedModel, folder: Path) -> None:
    from peft import set_peft_model_state_dict

    state = {key.removeprefix(PREFIX): value for key, value in load_file(folder / WEIGHTS).items()}
    set_peft_model_state_dict(model, state, adapter_name=_adapter(model))
    if GATES in model._modules:
        model.get_submodule(GATES).load_state_dict(load_file(folder / f"{GATES}.safetensors"))


def _adapter_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights of the adapter by PEFT's names."""
    from peft import get_peft_model_state_dict

    name = _adapter(model)
    state: dict[str, Tensor] = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    return state


def _adapter(model: PreTrainedModel) -> str:
    """Return the name of the adapter; ValueError for several."""
    names = [*getattr(model, "peft_config", ())]
    if len(names) != 1:
        raise ValueError(
            f"{type(model).__name__} must have one adapter, got {', '.join(names) or 'no peft_config'}; try "
            f"delete_adapter(name), or the model that merge_and_unload() returns"
        )
    return str(names[0])


def _save(state: dict[str, Tensor], path: Path) -> None:
    save_file({key: value.contiguous() for key, value in state.items()}, path, metadata={"format": "pt"})
