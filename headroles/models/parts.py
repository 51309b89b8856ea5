"""Parts of a model: submodels, the model without its task head, linear maps, attention outside the interface."""

from __future__ import annotations

import inspect
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


def submodel(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """Return the part of a multimodal model that reads text, images or sound.

    The part shares its weights with `model` and is accepted wherever a model is, for example by `hr.attention_sites`,
    `hr.score` and `hr.remove_heads`. It returns hidden states. To analyse the prediction of words, pass the whole model
    and a corpus of text instead.

    Args:
        model: A model with sub-configs, such as LLaVA or CLIP.
        name: What the config calls the part ("text", "vision", "audio" ...), or the name of its module.

    Returns:
        The submodel: a module of `model`, not a copy.

    Raises:
        ValueError: `model` has no submodel of this name; the message lists those it has.
    """
    parts = submodels(model)
    names = {module: path for path, module in model.named_modules()}
    for kind, part in parts.items():
        if name in (kind, names[part], names[part].rpartition(".")[2]):
            return part
    listed = ", ".join(f"{kind} ({names[part]})" for kind, part in parts.items()) or "none"
    raise ValueError(f"no submodel {name!r} in {type(model).__name__}; expected one of: {listed}")


def submodels(model: PreTrainedModel) -> dict[str, PreTrainedModel]:
    """Return the outermost models inside `model` that have a sub-config, by the name of that sub-config."""
    configs = {key.removesuffix("_config"): getattr(model.config, key, None) for key in model.config.sub_configs}
    parts: dict[str, PreTrainedModel] = {}
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and module is not model:
            options = module.config.to_dict()  # a submodel may have a copy of the sub-config
            kinds = [kind for kind, config in configs.items() if config is not None and config.to_dict() == options]
            if kinds:
                parts.setdefault(kinds[0], module)
    return parts


def body(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model without its task head, or itself if its base model reads other inputs."""
    base = model.base_model
    if isinstance(base, PreTrainedModel) and model.main_input_name in inspect.signature(base.forward).parameters:
        return base
    return model


def has_non_token_head(model: PreTrainedModel) -> bool:
    """Return whether a model has a task head that predicts no tokens, such as a classifier's."""
    return model.base_model is not model and model.get_output_embeddings() is None


def hint(model: PreTrainedModel) -> str:
    """Return the end of an error message that suggests a submodel; empty where `model` has none."""
    parts = submodels(model)
    return f"; try a submodel, such as hr.submodel(model, {next(iter(parts))!r})" if parts else ""


def sharing(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model that shares the memory of its weights and buffers."""
    tensors: dict[int, Tensor] = {}
    for value in model.parameters():
        if type(value) is nn.Parameter:
            tensors[id(value)] = nn.Parameter(value.detach(), requires_grad=value.requires_grad)
    tensors |= {id(value): value.detach() for value in model.buffers() if type(value) is Tensor}
    copy: PreTrainedModel = deepcopy(model, tensors)
    return copy


def width(projection: nn.Module | None) -> int:
    """Return the number of input features of a projection: axis 0 of the weight of GPT-2's Conv1D, otherwise axis 1."""
    if projection is None:
        return 0
    if isinstance(features := getattr(projection, "in_features", None), int):  # a packed weight has another shape
        return features
    assert isinstance(projection.weight, Tensor)
    return int(projection.weight.shape[0 if type(projection).__name__ == "Conv1D" else 1])


def is_map(module: nn.Module) -> bool:
    """Return whether a module is a linear map: nn.Linear, Conv1D or a replacement of them, also a quantised one."""
    if isinstance(getattr(module, "in_features", None), int):
        return True
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding)


def is_packed(module: nn.Module) -> bool:
    """Return whether a linear map stores its weight in packed form instead of plain numbers: no gradient passes it."""
    weight = getattr(module, "weight", None)
    is_plain = isinstance(weight, Tensor) and not hasattr(weight, "__tensor_flatten__")
    return is_map(module) and not (is_plain or hasattr(weight, "device_mesh"))  # a DTensor holds plain numbers


def is_scaled_by_input(module: nn.Module, dtype: torch.dtype) -> bool:
    """Return whether a linear map with quantised weights rounds an input depending on the rest of its batch.

    `quantize_dynamic` of torch does, by the largest number of a batch, and bitsandbytes' 8 bits, which keep 16 bits of
    a feature that is large in any input. The test: is the output of one input the same in a batch with a large one?
    """
    weight = getattr(module, "weight", None)
    is_plain = weight is None or (isinstance(weight, Tensor) and weight.is_floating_point() and not is_packed(module))
    if is_plain or not is_map(module):
        return False
    device = next((tensor.device for tensor in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    if device.type == "meta":  # offloaded: it cannot be asked here
        return True
    given = torch.linspace(-1, 1, width(module), dtype=dtype, device=device).repeat(2, 1)
    with torch.no_grad():
        with_small = module(given)[0]
        given[1] *= 1000
        return not torch.equal(module(given)[0], with_small)


class Outside(NamedTuple):
    """An attention class outside transformers' attention interface, which returns (output, weights)."""

    out: str  # the output projection, from the attention module; ".." is its parent
    kv_heads: str | None = None  # the attribute that holds the number of key-value heads
    time_major: bool = False  # activations are [time, batch, ...]
    value: str | None = None  # the value map, from the attention module


OUTSIDE = {
    "modeling_big_bird.BigBirdBlockSparseAttention": Outside("..output.dense"),
    "modeling_big_bird.BigBirdSelfAttention": Outside("..output.dense"),
    "modeling_bigbird_pegasus.BigBirdPegasusBlockSparseAttention": Outside("..output"),
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
    "modeling_mpnet.MPNetSelfAttention": Outside("o", value="v"),
    "modeling_mpt.MptAttention": Outside("out_proj"),
    "modeling_mvp.MvpAttention": Outside("out_proj"),
    "modeling_openai.Attention": Outside("c_proj"),
    "modeling_rembert.RemBertSelfAttention": Outside("..output.dense"),
    "modeling_roformer.RoFormerSelfAttention": Outside("..output.dense"),
    "modeling_tapas.TapasSelfAttention": Outside("..output.dense"),
    "modeling_trocr.TrOCRAttention": Outside("out_proj"),
    "modeling_xglm.XGLMAttention": Outside("out_proj"),
}


def outside(module: nn.Module) -> Outside | None:
    """Return how a module attends outside the interface; None if it attends by the interface."""
    row = OUTSIDE.get(class_name(module))
    inside = row and "ALL_ATTENTION_FUNCTIONS" in inspect.unwrap(type(module).forward).__code__.co_names
    return None if inside else row


def class_name(module: nn.Module) -> str:
    """Return the file and the class of a module, as in `OUTSIDE`."""
    return f"{type(module).__module__.rpartition('.')[2]}.{type(module).__name__}"
