"""Sharded weights: tensor parallelism spreads a model over processes, each a rank with some of the heads.

All ranks run the same forwards. `Ranks` joins what they have of the heads of a site, so that each rank has the outputs
of all heads, and splits what replaces them. Processes along the data axis share the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from transformers import PreTrainedModel

from headroles._distributed import Axis, launched

FSDP = {"FSDPModule", "FullyShardedDataParallel"}  # classes of torch


@dataclass(frozen=True)
class Ranks:
    """The processes that share the heads of a site; without a group all heads are in this process."""

    group: Any = None

    @property
    def count(self) -> int:
        """The number of parts."""
        return 1 if self.group is None else int(self.group.size())

    def join(self, part: Tensor, dim: int) -> Tensor:
        """Concatenate the parts of all ranks; gradients flow to the part of this one."""
        if self.group is None:
            return part
        parts = _gathered(part.detach(), self.group)
        parts[self.group.rank()] = part
        return torch.cat(parts, dim)

    def split(self, joined: Tensor, dim: int) -> Tensor:
        """Return the part of this rank; each rank gets the gradients of all parts."""
        if self.group is None:
            return joined
        part: Tensor = _Split.apply(joined, self.group, dim)
        return part


class _Split(Function):
    """The part of this rank; in the backward pass the gradients of all ranks are joined.

    So each rank has the gradients of all heads and of their gates, as one process would have them.
    """

    @staticmethod
    def forward(ctx: Any, joined: Tensor, group: Any, dim: int) -> Tensor:  # noqa: D102
        ctx.group, ctx.dim = group, dim
        part: Tensor = joined.chunk(group.size(), dim)[group.rank()]
        return part

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor, None, None]:  # noqa: D102
        return torch.cat(_gathered(c, ctx.group), ctx.dim), None, None


def _gathered(part: Tensor, group: Any) -> list[Tensor]:
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
    torch.distributed.all_gather(parts, part.contiguous(), group=group)
    return parts


def ranks_of(out: nn.Module | None, features: int | None, width: int) -> Ranks:
    """Return the ranks that have a part of a site's heads each; ValueError if their numbers of heads differ."""
    # `features` are of the heads in this process, None outside the attention interface, and `width` is of all heads
    mesh = getattr(getattr(out, "weight", None), "device_mesh", None)
    if mesh is None or features == width:
        return Ranks()
    if features is None or features * mesh.size() != width:
        raise ValueError(
            f"heads must be spread evenly over {mesh.size()} processes, got {features} of {width} features in one"
        )
    return Ranks(mesh.get_group())


def check_unsharded(model: PreTrainedModel, what: str = "", instead: str = "") -> None:
    """Raise ValueError for sharded weights, which `what` cannot use; the message suggests `instead`."""
    if sign := _sign(model):
        raise _error(model, sign, f" for {what}" if what else "", f"{instead}, or " if instead else "")


def check_supported(model: PreTrainedModel, *, pruned: bool) -> None:
    """Raise ValueError for weights sharded other than by even tensor parallelism."""
    if not (sign := _sign(model)):
        return
    mesh, config = tensor_mesh(model), model.config.get_text_config()
    if mesh is None or pruned:
        raise _error(model, sign)
    counts = [getattr(config, name, None) or 0 for name in ("num_attention_heads", "num_key_value_heads")]
    if any(count % mesh.size() for count in counts):
        raise ValueError(
            f"the number of processes must divide the numbers of heads and key-value heads of {type(model).__name__}, "
            f"got {mesh.size()} processes for {' and '.join(map(str, counts))} heads; try fewer processes"
        )


def is_sharded(model: PreTrainedModel) -> bool:
    """Return whether the weights of a model are spread over processes."""
    return _sign(model) is not None


def _error(model: PreTrainedModel, sign: str, what: str = "", instead: str = "") -> ValueError:
    return ValueError(
        f"the weights of {type(model).__name__} are spread over processes: got {sign}; expected unsharded weights in "
        f"every process{what}; try {instead}one process without tp_plan or FSDP, with device_map='auto', on what "
        f"save_pretrained() writes when all processes call it"
    )


def _sign(model: PreTrainedModel) -> str | None:
    """Describe the sign that a model's weights are spread over processes; FSDP may have gathered them for now."""
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
    """Return the tensor axis of a model if its weights are spread along it alone."""
    config = getattr(model.config, "distributed_config", None)
    sizes = ("pp_size", "fsdp_size", "dp_replicate_size", "ep_size")
    if (model.tp_size or 1) == 1 or any((getattr(config, size, None) or 1) > 1 for size in sizes):
        return None
    if any(_is_fsdp(module) or hasattr(module, "_hf_quantized_needs_local_tp") for module in model.modules()):
        return None
    meshes = {mesh for weight in model.parameters() if (mesh := getattr(weight, "device_mesh", None))}
    return next(iter(meshes)) if len(meshes) == 1 and next(iter(meshes)).ndim == 1 else None


def axis(model: PreTrainedModel) -> Axis:
    """Return the processes that share work: those with the same part of the weights."""
    mesh = tensor_mesh(model)
    if mesh is None:
        return launched()
    if mesh.size() == torch.distributed.get_world_size():
        return Axis(1, 0, ranks=mesh.get_group())
    root = mesh._get_root_mesh()
    names = [name for name in root.mesh_dim_names or () if name not in mesh.mesh_dim_names and root[name].size() > 1]
    if root.size() != torch.distributed.get_world_size() or len(names) != 1:
        raise ValueError(
            f"the mesh must have one data axis and one tensor axis over all {torch.distributed.get_world_size()} "
            f"processes, got weights on {mesh}, of {root}"
        )
    data = root[names[0]]
    return Axis(data.size(), data.get_local_rank(), data.get_group(), ranks=mesh.get_group())
