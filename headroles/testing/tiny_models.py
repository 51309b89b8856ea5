"""Tiny models of any architecture: its config with all sizes reduced, and random weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

ORIGINAL = "original_max_position_embeddings"
WIDTH, SIZE, HEADS, LAYERS, WORDS = 64, 16, 4, 2, 96
SIZES: dict[str, int] = {  # what the name of an option is like -> the most it may be; the first that fits
    r".*(key_value_heads|kv_heads|query_groups)": 2,
    r"(.*_)?(n_|self_)?(attention_)?heads?": HEADS,
    r"(.*_)?(kv_channels|head_dim|d_kv|d_head|head_size|kv_size)|query_pre_attn_scalar": SIZE,
    r"rotary_dim": SIZE // 2,
    r"(.*_)?(hidden_)?(layers?|blocks)|depth": LAYERS,
    r".*_experts|num_experts_per_layer": 4,
    r".*experts_per_tok(en)?|moe_topk|moe_k": 2,
    r"n_group|topk_group|num_expert_group|first_k_dense_replace|num_dense_layers": 1,
    r"(.*_)?vocab_size(_.*)?": WORDS,
    r"index_topk|keep_window_size": 8,  # at these lengths attention changes
    ORIGINAL: 16,
    r"block_size": 4,
    r".*(position_embeddings|_positions)|model_max_length|context_length|max_length|max_seq_len|n_ctx": 64,
    r"(.*_)?sliding_window(_size)?|attention_window(_size)?|local_attention|attention_chunk_size": 4,
    r"(.*_)?(intermediate_size|ffn_dim|d_ff|ffn_hidden_size|mlp_dim|n_inner|dim_feedforward|d_inner)": 48,
    r"image_size|img_size|num_mel_bins|feature_size|input_feat_per_channel": 16,
    r"patch_size|num_frames|attn_layer_period": 4,
    r"num_conv_pos_embeddings": 8,
    r"num_conv_pos_embedding_groups|attn_layer_offset|sliding_window_pattern": 2,
    r"(.*_)?(dim|size|channels|width|features|rank)|d_model|n_embd|size_per_layer_input": WIDTH,
}
KEPT = ("num_shared_experts", "n_shared_experts", "moe_num_shared_experts", "num_feat_extract_layers")  # as they are
DEPTHS = r"num_hidden_layers|num_layers|n_layers?|depth|(num_)?encoder_layers|(num_)?decoder_layers"
TOKENS = {"bos": 0, "cls": 0, "pad": 1, "eos": 2, "sep": 2, "decoder_start": 2, "mask": 3}  # ids of special tokens
FIRST_FREE = 4  # ids of other special tokens, such as an image's, come after these
SECTIONS = [2, 3, 3]  # of rotary positions in time, height and width: half of a head
BACKBONE = ("out_features", "out_indices", "stage_names")  # they name layers that a tiny model does not have
TASKS = (  # what a model does, where its config does not say: the first that its architecture has
    *("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "MASKED_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "CAUSAL_LM"),
    *("IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION", "AUDIO_CLASSIFICATION"),
)


def tiny_model(kind: str | PreTrainedConfig, *, seed: int = 0, **options: Any) -> PreTrainedModel:
    """Return a model with two layers of four heads and random weights.

    It keeps what distinguishes the architecture: layers of each kind, shared key-value heads, experts, windows. The
    variance of the weights is large enough for attention to be far from uniform.

    Args:
        kind: A model type of transformers, such as "llama", or a config.
        seed: Seed of the weights.
        **options: Options of the config, which replace the reduced ones.

    Returns:
        The model in eval mode, in float32.

    Raises:
        ValueError: transformers does not know the architecture, or it does not accept the reduced sizes.

    Example:
        >>> hr.attention_sites(hr.tiny_model("llama"))
    """
    if isinstance(kind, str) and kind not in CONFIG_MAPPING:
        raise ValueError(
            f"transformers {transformers.__version__} knows no architecture {kind!r}; expected a model_type"
        )
    try:
        whole = CONFIG_MAPPING[kind]() if isinstance(kind, str) else kind
        config = type(whole).from_dict(_with(_small(whole.to_dict()), {"dtype": None, **options}))
        for token in ("pad", "decoder_start") if config.is_encoder_decoder else ():  # its default config may lack them
            if getattr(config, f"{token}_token_id", None) is None:
                setattr(config, f"{token}_token_id", TOKENS[token])
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            model: PreTrainedModel = _class(config)(config)
            for parameter in model.parameters():
                widen(parameter)
    except Exception as error:  # a config or model raises what it likes
        reason = " ".join(str(error).split())
        name = getattr(kind, "model_type", kind)
        raise ValueError(f"no tiny model of {name!r}: {reason}; try options of its config") from error
    model.eval()
    return model


def _with(small: Mapping[str, object], options: Mapping[str, object]) -> dict[str, object]:
    """Replace options; in a sub-config, one by one."""
    merged = {**small, **options}
    for name, value in options.items():
        if isinstance(value, dict) and isinstance(inner := small.get(name), dict):
            merged[name] = _with(inner, value)
    return merged


def _small(options: Mapping[str, object]) -> dict[str, object]:
    kept = _layers(options)
    ids = count(FIRST_FREE)
    return {name: _reduced(name, value, options, kept, ids) for name, value in options.items()}


def _reduced(name: str, value: object, options: Mapping[str, object], kept: list[int], ids: Iterator[int]) -> object:
    """Return the value of one option in a tiny model."""
    if isinstance(value, dict):
        return _nested(name, value, kept)
    if name in BACKBONE:
        return None
    if value is not None and re.search(r"token_(id|index)$", name):
        known = TOKENS.get(re.sub("_token_(id|index)$", "", name))
        token = next(ids) if known is None else known
        return [token] if isinstance(value, list) else token
    if isinstance(value, list):
        return _listed(name, value, options, kept)
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if re.fullmatch(DEPTHS, name):
        return min(value, len(kept))
    if re.fullmatch(r".*(key_value_heads|kv_heads)", name) and value == options.get("num_attention_heads"):
        return HEADS  # nothing is shared
    fits = (most for pattern, most in SIZES.items() if name not in KEPT and re.fullmatch(pattern, name))
    return min(value, next(fits, value))


def _nested(name: str, value: dict[str, object], kept: list[int]) -> dict[str, object] | dict[int, object]:
    """Reduce a sub-config, options per layer, or options of rotary positions."""
    if value and all(str(key).isdigit() for key in value) and name not in ("id2label",):
        numbered = {int(key): options for key, options in value.items()}
        return {new: numbered[old] for new, old in enumerate(kept) if old in numbered}
    if name.startswith("rope"):
        parts = {key: _nested(name, part, kept) if isinstance(part, dict) else part for key, part in value.items()}
        parts |= {key: _reduced(key, part, {}, [], count()) for key, part in parts.items() if key == ORIGINAL}
        return parts | ({"mrope_section": SECTIONS} if "mrope_section" in value else {})
    return value if name in ("id2label", "label2id") else _small(value)


def _listed(name: str, value: list[int], options: Mapping[str, object], kept: list[int]) -> Sequence[object]:
    if len(value) == _depth(options) and len(value) > 1:
        return [value[i] for i in kept]
    if name in ("image_size", "patch_size"):
        return [_reduced(name, size, options, kept, count()) for size in value]
    return [min(size, SIZE) for size in value] if name == "conv_dim" else value


def _depth(options: Mapping[str, object]) -> int:
    sizes = (value for name, value in options.items() if isinstance(value, int) and re.fullmatch(DEPTHS, name))
    return next(sizes, 0)


def _layers(options: Mapping[str, object]) -> list[int]:
    """Return the layers to keep: the first of each kind, and at least two."""
    deep = _depth(options)
    lists = [values for values in options.values() if isinstance(values, list) and len(values) == deep]
    kinds = list(zip(*([str(kind) for kind in values] for values in lists if isinstance(values[0], str)), strict=True))
    first = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    rest = [layer for layer in range(max(deep, LAYERS)) if layer not in first]
    return sorted(first + rest[: max(0, LAYERS - len(first))])


def _class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    if config.architectures:
        return getattr(transformers, config.architectures[0])  # type: ignore[no-any-return]
    multimodal = "text_config" in config.sub_configs
    for task in TASKS if not multimodal else TASKS[:-3]:  # an image classifier lacks the text submodel
        names = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")
        if config.model_type in names:
            name = names[config.model_type]
            return getattr(transformers, name if isinstance(name, str) else name[0])  # type: ignore[no-any-return]
    bare: Any = transformers.MODEL_MAPPING[type(config)]
    return bare if isinstance(bare, type) else bare[0]


def widen(parameter: nn.Parameter) -> None:
    """Draw weights with a variance large enough for attention to be far from uniform."""
    if not parameter.requires_grad:  # fixed sinusoids
        return
    if parameter.ndim >= 2:
        parameter.normal_(std=0.3)
    else:  # biases and norms: off their special values 0 and 1, which hide mistakes
        parameter.add_(torch.randn_like(parameter), alpha=0.1)
