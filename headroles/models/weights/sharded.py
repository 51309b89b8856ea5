"""Sharded weights: those of a model that is spread over processes by tensor parallelism.

Under tensor parallelism each process of the tensor axis has some of the heads, and all of them run the same forwards.
What a process observes of its heads is joined with what the others observe, so that all have the whole; what replaces
it is cut again. Other processes, along the axis of data, share the work.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles._distributed import Axis, launched
from headroles.models.sites import recorded, width

T = TypeVar("T")
FSDP = {"FSDPModule", "FullyShardedDataParallel"}  # classes of torch


def check_whole(model: PreTrainedModel, what: str = "", instead: str = "") -> None:
    """Raise ValueError for weights that are spread over processes: `what` needs whole weights, `instead` does not."""
    if sign := _sign(model):
        raise _error(model, sign, f" for {what}" if what else "", f"{instead}, or " if instead else "")


def is_sharded(model: PreTrainedModel) -> bool:
    """Return whether the weights of a model are spread over processes."""
    return _sign(model) is not None


def check_supported(model: PreTrainedModel) -> None:
    """Raise ValueError for weights that are spread over processes otherwise than by tensor parallelism alone."""
    if (sign := _sign(model)) and (tensor_mesh(model) is None or recorded(model.config)):
        raise _error(model, sign)


def _error(model: PreTrainedModel, sign: str, what: str = "", instead: str = "") -> ValueError:
    return ValueError(
        f"the weights of {type(model).__name__} are spread over processes: got {sign}; expected whole weights in "
        f"every process{what}; try {instead}one process without tp_plan or FSDP, with device_map='auto', on what "
        f"save_pretrained() writes when all processes call it"
    )


def _sign(model: PreTrainedModel) -> str | None:
    """What shows that the weights of a model are spread over processes; FSDP may have gathered them for now."""
    for name, module in model.named_modules():
        if _is_fsdp(module):
            return f"FSDP in {name or 'the model itself'}"
        for key, weight in module._parameters.items():
            if "DTensor" in (type(weight).__name__, type(getattr(weight, "data", None)).__name__):
                return f"a DTensor for {name}.{key}"
    mesh = getattr(model, "_device_mesh", None)  # layers of a pipeline, experts, packed weights
    return None if mesh is None or mesh.size() == 1 else f"a device mesh of {mesh.size()} processes"


def _is_fsdp(module: nn.Module) -> bool:
    return any(base.__name__ in FSDP for base in type(module).__mro__)


def tensor_mesh(model: PreTrainedModel) -> Any:
    """Return the tensor axis of a model; None without one, or if its weights are also spread in another way."""
    config = getattr(model.config, "distributed_config", None)
    others = ("pp_size", "fsdp_size", "dp_replicate_size", "ep_size")
    if (model.tp_size or 1) == 1 or any((getattr(config, size, None) or 1) > 1 for size in others):
        return None
    if any(_is_fsdp(module) or hasattr(module, "_hf_quantized_needs_local_tp") for module in model.modules()):
        return None
    meshes = {mesh for weight in model.parameters() if (mesh := getattr(weight, "device_mesh", None))}
    return next(iter(meshes)) if len(meshes) == 1 and next(iter(meshes)).ndim == 1 else None


def axis(model: PreTrainedModel) -> Axis:
    """Return the processes that share work: of one tensor axis those that have the same part of the weights."""
    mesh = tensor_mesh(model)
    if mesh is None:
        return launched()
    if mesh.size() == torch.distributed.get_world_size():
        return Axis(1, 0)
    root = mesh._get_root_mesh()
    names = [name for name in root.mesh_dim_names or () if name not in mesh.mesh_dim_names and root[name].size() > 1]
    if root.size() != torch.distributed.get_world_size() or len(names) != 1:
        raise ValueError(
            f"the axis of data is unknown: got weights on {mesh}, of {root}; expected a mesh of all "
            f"{torch.distributed.get_world_size()} processes with one axis of data and one of tensors"
        )
    data = root[names[0]]
    return Axis(data.size(), data.get_local_rank(), data.get_group())


def agreed(model: PreTrainedModel, values: list[T]) -> list[T]:
    """Return the values of the first process of the tensor axis, so that what is decided by them is decided alike."""
    mesh, shared = tensor_mesh(model), list[Any]([values])
    if mesh is not None:
        torch.distributed.broadcast_object_list(shared, group=mesh.get_group(), group_src=0)
    first: list[T] = shared[0]
    return first


def group(out: nn.Module | None, features: int | None) -> Any:
    """Return the processes that have a part of the heads each; None if all heads are here.

    Args:
        out: The output projection.
        features: The width of the concatenated heads in this process; None outside the attention interface.

    Returns:
        A process group of torch.

    Raises:
        ValueError: Processes have different numbers of heads.
    """
    mesh = getattr(getattr(out, "weight", None), "device_mesh", None)
    if mesh is None or features == width(out):
        return None
    if features is None or features * mesh.size() != width(out):
        raise ValueError(
            f"the heads are not spread evenly: got {features} of {width(out)} features in one of {mesh.size()} "
            f"processes; expected the same number of heads in each"
        )
    return mesh.get_group()


def joined(part: Tensor, group: Any, dim: int) -> Tensor:
    """Join what the processes of a group have; gradients flow to the part of this one."""
    if group is None:
        return part
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
    torch.distributed.all_gather(parts, part.detach().contiguous(), group=group)
    parts[group.rank()] = part
    return torch.cat(parts, dim)


def own(whole: Tensor, group: Any, dim: int) -> Tensor:
    """Return the part of this process."""
    return whole if group is None else whole.chunk(group.size(), dim)[group.rank()]


def reduced(gates: Tensor, group: Any) -> Tensor:
    """Return gates that get the sum of the gradients in all processes of a group."""
    if group is None:
        return gates
    from transformers.distributed.parallel_utils import _AllReduceBackward

    summed: Tensor = _AllReduceBackward.apply(gates, group)
    return summed


def gathered(weight: Tensor) -> Tensor:
    """Return a whole weight, which all processes that have a part of it ask for."""
    whole: Tensor = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return whole


def is_elsewhere(weight: Tensor) -> bool:
    """Return whether a weight, or a part of it, is not here."""
    return weight.is_meta or hasattr(weight, "device_mesh")
