"""Checks by several processes of one machine: with shared work, with a part of the heads each, or with FSDP."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pandas as pd
import torch
from torch import Tensor
from torch.multiprocessing.spawn import start_processes
from transformers import PreTrainedModel

from headroles.models.heads import layers
from headroles.tables.frame import is_whole

Parallel = Literal["data", "tensor", "fsdp"]
Spread = Callable[[PreTrainedModel], PreTrainedModel]  # a whole copy of a model -> a model spread over processes
Check = Callable[[PreTrainedModel, Mapping[str, Tensor] | None, Spread | None], pd.DataFrame]
WORST = ("no", "refused", "yes", "not asked")  # results of a check: the processes have the worst of theirs


def check_options(model: PreTrainedModel, processes: object, parallel: object) -> None:
    """Raise ValueError for a number of processes, or a way to share the model, that is impossible."""
    if parallel not in ("data", "tensor", "fsdp") or not is_whole(processes, least=1):
        raise ValueError(
            f"unknown processes: got processes={processes!r}, parallel={parallel!r}; expected a number from 1 on, and "
            f"'data', 'tensor' or 'fsdp'"
        )
    if parallel == "tensor" and not model.tp_plan:
        raise ValueError(
            f"{type(model).__name__} has no plan for tensor parallelism: got no model.tp_plan; expected one of "
            f"transformers; try parallel='fsdp'"
        )


def in_processes(
    check: Check, model: PreTrainedModel, inputs: Mapping[str, Tensor] | None, processes: int, parallel: Parallel
) -> pd.DataFrame:
    """Run checks in several processes on the CPU, which load the model from a folder each; the worst results count."""
    with TemporaryDirectory() as place:
        model.save_pretrained(place)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        given = check, type(model), model.config.name_or_path, inputs, processes, parallel, Path(place), port
        start_processes(_work, given, processes, start_method=_start_method(check.__module__))
        tables = [pd.read_parquet(Path(place) / f"{rank}.parquet") for rank in range(processes)]
    return worst(tables)


def _start_method(module: str) -> str:
    """Return how processes start: forks of a new one that has imported a module, where there are forks."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    multiprocessing.set_forkserver_preload([module])
    return "forkserver"


def worst(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return of each row that of the table with the worst result, or with the largest deviation."""
    whole = pd.concat(tables).assign(rank=lambda table: table["holds"].map(WORST.index))
    ordered = whole.sort_values(["rank", "off"], ascending=[True, False], kind="stable").drop(columns="rank")
    return ordered[~ordered.index.duplicated()].loc[tables[0].index]


def _work(
    rank: int,
    check: Check,
    kind: type[PreTrainedModel],
    name: str,
    inputs: Mapping[str, Tensor] | None,
    processes: int,
    parallel: Parallel,
    place: Path,
    port: str,
) -> None:
    """In a process: join the others and run the checks."""
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "false", "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes), "RANK": str(rank)}
    torch.set_num_threads(max(1, torch.get_num_threads() // processes))
    torch.distributed.init_process_group("gloo")
    model = kind.from_pretrained(place)
    model.config.name_or_path = name
    ways: dict[Parallel, Spread] = {"tensor": partial(_in_parts, place, processes), "fsdp": _wrapped}
    check(model, inputs, ways.get(parallel)).to_parquet(place / f"{rank}.parquet")
    torch.distributed.destroy_process_group()


def _in_parts(place: Path, processes: int, whole: PreTrainedModel) -> PreTrainedModel:
    """Load a model again, with a part of the heads in each process, and the dtype of the whole one."""
    from transformers.distributed.configuration_utils import DistributedConfig

    config = DistributedConfig(tp_size=processes)
    model: PreTrainedModel = type(whole).from_pretrained(place, distributed_config=config, dtype=whole.dtype)
    model.config.name_or_path = whole.config.name_or_path
    model.eval()
    return model


def _wrapped(whole: PreTrainedModel) -> PreTrainedModel:
    """Wrap the layers of a model, and the model."""
    from torch.distributed.fsdp import fully_shard

    for layer in layers(whole):
        fully_shard(layer)
    fully_shard(whole)
    return whole
