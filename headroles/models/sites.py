"""A site: one place where a model attends, and the record in its config of the heads that were cut out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn
from transformers import PreTrainedModel

from headroles.tables.frame import Kind


class Outside(NamedTuple):
    """A family outside transformers' attention interface: its attention class returns (output, weights)."""

    out: str  # the output projection, from the attention module; ".." is its parent
    kv_heads: str | None = None  # the attribute that counts key-value heads
    time_major: bool = False  # activations are [time, batch, ...]


OUTSIDE = {
    "modeling_big_bird.BigBirdSelfAttention": Outside("..output.dense"),
    "modeling_bigbird_pegasus.BigBirdPegasusSelfAttention": Outside("..output"),
    "modeling_bloom.BloomAttention": Outside("dense"),
    "modeling_falcon.FalconAttention": Outside("dense", kv_heads="num_kv_heads"),
    "modeling_flava.FlavaSelfAttention": Outside("..output.dense"),
    "modeling_fsmt.Attention": Outside("out_proj", time_major=True),
    "modeling_deberta_v2.DisentangledSelfAttention": Outside("..output.dense"),
    "modeling_codegen.CodeGenAttention": Outside("out_proj"),
    "modeling_deberta.DisentangledSelfAttention": Outside("..output.dense"),
    "modeling_flaubert.MultiHeadAttention": Outside("out_lin"),
    "modeling_xlm.MultiHeadAttention": Outside("out_lin"),
    "modeling_git.GitSelfAttention": Outside("..output.dense"),
    "modeling_gpt_neox_japanese.GPTNeoXJapaneseAttention": Outside("dense"),
    "modeling_imagegpt.ImageGPTAttention": Outside("c_proj"),
    "modeling_gptj.GPTJAttention": Outside("out_proj"),
    "modeling_gpt_neo.GPTNeoSelfAttention": Outside("out_proj"),
    "modeling_megatron_bert.MegatronBertSelfAttention": Outside("..output.dense"),
    "modeling_mpnet.MPNetSelfAttention": Outside("o"),
    "modeling_mpt.MptAttention": Outside("out_proj"),
    "modeling_mvp.MvpAttention": Outside("out_proj"),
    "modeling_openai.Attention": Outside("c_proj"),
    "modeling_rembert.RemBertSelfAttention": Outside("..output.dense"),
    "modeling_roformer.RoFormerSelfAttention": Outside("..output.dense"),
    "modeling_tapas.TapasSelfAttention": Outside("..output.dense"),
    "modeling_trocr.TrOCRAttention": Outside("out_proj"),
    "modeling_xglm.XGLMAttention": Outside("out_proj"),
}


RECORD = "headroles"  # the entry of a config that tells which heads are left
FIELDS = ("kind", "layer", "kv_heads", "size", "name", "out_name", "turn", "of")


@dataclass(frozen=True, eq=False)
class Site:
    """One place where a model attends: `heads` heads of `size` numbers each, side by side at the input of `out`."""

    kind: Kind
    layer: int
    heads: int
    kv_heads: int
    size: int  # numbers per head
    name: str  # of the attention module in the model
    module: nn.Module
    out_name: str | None
    out: nn.Module | None  # the output projection; None where something stands between the heads and it
    turn: int  # which call of `module` in one forward this is (ALBERT calls one module once a layer)
    numbers: tuple[int, ...]  # of the heads: 0, 1, ... unless some were cut out
    of: int  # how many heads there were at first
    silenced: tuple[int, ...] = ()  # numbers of closed heads that had to stay
    outside: Outside | None = None

    @property
    def key(self) -> tuple[Kind, int]:
        """(kind, layer)."""
        return self.kind, self.layer


def record(model: PreTrainedModel, found: Sequence[Site], notes: Mapping[str, Any]) -> None:
    """Write sites into the model's config, where every way of saving it keeps them, with notes of what was cut out."""
    rows = [
        {field: getattr(site, field) for field in FIELDS}
        | {"heads": list(site.numbers), "silenced": list(site.silenced)}
        for site in found
    ]
    setattr(model.config, RECORD, {"sites": rows, **notes})


def recorded(config: Any) -> dict[str, Any] | None:
    """What `record` wrote, None for a model whose heads are all there."""
    found: dict[str, Any] | None = getattr(config, RECORD, None)
    return found


def module_at(model: nn.Module, name: str) -> nn.Module:
    """The module of a name in the model, or in the model without its task's head, or with it."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    names = [name, name.removeprefix(prefix), prefix + name]
    modules: dict[str, nn.Module] = dict(model.named_modules())
    found = next((modules[each] for each in names if each in modules), None)
    if found is None:
        raise ValueError(f"its record of heads speaks of {name!r}, which {type(model).__name__} does not have")
    return found


def recorded_sites(model: PreTrainedModel) -> list[Site] | None:
    """The sites a config tells of; None where it tells nothing, or of weights of other shapes."""
    notes = recorded(model.config)
    found = []
    for row in notes["sites"] if notes else ():
        module, out = module_at(model, row["name"]), module_at(model, row["out_name"])
        if width(out) != len(row["heads"]) * row["size"]:
            return None
        numbers, outside = tuple(row["heads"]), OUTSIDE.get(class_name(module))
        rest = {field: row[field] for field in FIELDS}
        rest |= {"heads": len(numbers), "numbers": numbers, "silenced": tuple(row["silenced"])}
        found.append(Site(**rest, module=module, out=out, outside=outside))
    return found or None


def width(projection: Any) -> int:
    """How many numbers a projection takes in: the weight's axis 1 in nn.Linear, 0 in GPT-2's Conv1D."""
    if projection is None:
        return 0
    return int(projection.weight.shape[0 if type(projection).__name__ == "Conv1D" else 1])


def class_name(module: nn.Module) -> str:
    """The file and the class of a module, as `OUTSIDE` names them."""
    return f"{type(module).__module__.rpartition('.')[2]}.{type(module).__name__}"
