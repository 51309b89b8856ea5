"""Checkpoints of a training: the last one, and the weights in it, of a model or of its adapter alone."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from headroles.models.loading import is_adapted
from headroles.models.pruned import resized

GATES = "head_gates"  # of the gates among the model's modules, for the Trainer, its optimizer and checkpoints
WEIGHTS, PREFIX = "adapter_model.safetensors", "base_model.model."  # as PEFT writes them


def checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints in the folder by their steps; complete ones have the file that the Trainer writes last."""
    complete = (path.parent for path in folder.glob("checkpoint-*/trainer_state.json"))
    return sorted(complete, key=lambda path: int(path.name.rpartition("-")[2]))


def load_weights(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Load the weights in a folder, or the adapter if the model has one, and gates; return the model in the folder."""
    if is_adapted(model):
        from peft import set_peft_model_state_dict

        adapter = {key.removeprefix(PREFIX): value for key, value in load_file(folder / WEIGHTS).items()}
        set_peft_model_state_dict(model, adapter, adapter_name=adapter_name(model))
        if GATES in model._modules:
            model.get_submodule(GATES).load_state_dict(load_file(folder / f"{GATES}.safetensors"))
        return model
    saved: PreTrainedModel = resized(type(model)).from_pretrained(folder)
    state, names = saved.state_dict(), {*model.state_dict()}  # files have other names where transformers renames
    for file in folder.glob("*.safetensors"):
        state |= {name: value for name, value in load_file(file).items() if name in names - {*state}}
    model.load_state_dict(state)
    return saved


def save_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Save the adapter in the format of PEFT, which `PeftModel.from_pretrained(base, folder)` loads, and gates."""
    from peft import get_peft_model_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    name = adapter_name(model)
    state = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    _save({f"{PREFIX}{key}": value for key, value in state.items()}, folder / WEIGHTS)
    model.peft_config[name].save_pretrained(str(folder))
    if GATES in model._modules:
        _save(model.get_submodule(GATES).state_dict(), folder / f"{GATES}.safetensors")


def adapter_name(model: PreTrainedModel) -> str:
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
