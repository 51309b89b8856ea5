"""Identity: everything that changes a model's numbers, hashed by the bytes, for provenance, cache keys and refusals.

A result belongs to the weights and buffers, the active adapters, the options of every module and config, the dtype and
autocast, and every part of the tokenizer. Two handles with one identity give one table. What changes numbers and has no
name, such as a forward hook of the user, is found by `unnamed`: a result is not kept then.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headroles.models.attention_hooks import configs_of
from headroles.models.identity.of_code import LENGTH, code_of, described, replaced
from headroles.models.tokens import languages

DRAWN = "_drawn_weights"  # attribute of a model: values of weights that its checkpoint lacks
NO_OPTIONS = {*vars(nn.Module()), "_compiled_call_impl", "_is_hf_initialized", DRAWN}  # of torch, transformers and ours
PLACED = {"_hf_hook", "_old_forward", "hf_device_map", "forward", "to", "cuda"}  # of accelerate: where weights are
SHARDED = ("_device_mesh", "_mesh_manager", "_is_distributed_loading_by_transformers", "_tp_size", "_fsdp_size")
PLACES = (  # attributes that change no number: where and how it was loaded, and what it has warned about
    *("name_or_path", "_name_or_path", "transformers_version", "deprecation_warnings", "warnings_issued"),
    *("local_files_only", "is_local", "token", "revision", "_commit_hash", "cache_dir", "subfolder", "files_loaded"),
    *("_is_hooked", "_is_accelerate_prepared", "distributed_config", *SHARDED),
    *("vocab_file", "merges_file", "tokenizer_file", "special_tokens_map_file", "trust_remote_code", "use_fast"),
)
NAMED_HOOKS = ("torch.", "transformers.", "accelerate.", "peft.", "headroles.models.pruned")  # by weights and config
OF_BLOCKS = tuple(f"headroles.models.{name}" for name in ("attention_hooks", "heads", "discovery"))  # they read only
IN_BACKEND = ("_tokenizer", "target", "_vocab", "_merges")  # attributes of tokenizers: serialised as a whole
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_weights: dict[str, str] = {}  # fast hash of the state -> `weights_digest`: by content, so that it can't be outdated


def weights_digest(model: PreTrainedModel) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of all weights, with names, shapes and active adapters."""
    named = weights(model)
    fast = _state_hash(named.items())
    if fast not in _weights:
        digest = hashlib.sha256()
        for key, value in named.items():
            digest.update(_heading(key, value).encode())
            for part in _contents(value):
                digest.update(part)
        if len(_weights) > 64:  # of many models in one process
            _weights.clear()
        _weights[fast] = digest.hexdigest()[:LENGTH]
    return _weights[fast] + _adapters(model)


def weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return all weights by name, also those that a `device_map` keeps on disk until a layer needs them."""
    state: dict[str, Tensor] = model.state_dict()
    if not is_offloaded(model):
        return state
    from accelerate.utils.modeling import get_state_dict_offloaded_model

    offloaded = get_state_dict_offloaded_model(model)
    return {key: offloaded.get(key, value) for key, value in state.items()}


def is_offloaded(model: PreTrainedModel) -> bool:
    """Return whether a `device_map` keeps some of the weights on CPU or disk until a layer needs them."""
    return any(value.is_meta for value in model.parameters())


def frozen(model: PreTrainedModel) -> dict[str, str]:
    """Return a digest of the names of parameters that do not train, for the keys of trainings; nothing if all do.

    Nor beside an adapter of PEFT, which trains alone.
    """
    if any(hasattr(module, "base_layer") for module in model.modules()):
        return {}
    constants = [name for name, module in model.named_modules() if "Sinusoid" in type(module).__name__]
    names = [
        name
        for name, value in model.named_parameters()
        if not value.requires_grad and name.rpartition(".")[0] not in constants
    ]
    return {"frozen": hashlib.sha256(repr(names).encode()).hexdigest()[:LENGTH]} if names else {}


def without_gradients(model: PreTrainedModel) -> Any:
    """Return a context without gradients: inference mode, or `no_grad` if a `device_map` loads weights in it.

    Weights that are loaded in inference mode can have no gradients afterwards. It begins and ends with the C++ object
    that this returns, which nothing but a `with` statement may hold: Python code could be interrupted in between.

    Returns:
        The context manager.
    """
    return torch.no_grad() if is_offloaded(model) else torch._C._InferenceMode(True)


def identity(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> str:
    """Return 12 hexadecimal digits of everything that changes the numbers of a model, besides the corpus.

    Every byte is read at every call: nothing is remembered that could be outdated.
    """
    digest = xxhash.xxh3_128(_state_hash([*weights(model).items(), *model.named_buffers()]).encode())
    for part in (_options(model), _code(model), _surroundings(model), *map(str, unnamed(model))):
        digest.update(part.encode())
    if tokenizer is not None:
        digest.update(serialised(tokenizer).encode())
    return digest.hexdigest()[:LENGTH]


def unnamed(model: nn.Module) -> list[str]:
    """Return what changes the numbers of a model and has no name, in words: hooks of others, open blocks of ours."""
    modules = [(name or type(model).__name__, vars(module)) for name, module in model.named_modules()]
    modules.append(("every module", {key: getattr(nn.modules.module, f"_global{key}", {}) for key in HOOKS}))
    reasons = []
    for name, attributes in modules:
        for kind in HOOKS:
            reasons += [f"{fault} on {name}" for hook in attributes[kind].values() if (fault := _unnamed_hook(hook))]
    modes = [mode for mode in torch.overrides._get_current_function_mode_stack() if not _is_device(mode)]
    return reasons + [f"an open {type(mode).__name__}" for mode in modes]


def _unnamed_hook(hook: Any) -> str | None:
    """What a hook is, if it may change numbers."""
    function = getattr(hook, "function", hook)  # `attention_hooks.Hook` holds the function that is called
    function = function.func if isinstance(function, functools.partial) else function
    module = f"{getattr(function, '__module__', None) or type(function).__module__}."
    if module.startswith((*NAMED_HOOKS, *OF_BLOCKS)):
        return None
    if module.startswith("headroles."):
        return "an open block of headroles (mask_heads, lrp_rules ...)"
    return f"the hook {getattr(function, '__qualname__', type(function).__qualname__)}"


def _is_device(mode: object) -> bool:
    return type(mode).__name__ == "DeviceContext"  # of torch.set_default_device


def _state_hash(named: Iterable[tuple[str, Any]]) -> str:
    """A fast hash of names, shapes, dtypes and all bytes, in order; a tensor with two names is read once."""
    digest, seen = xxhash.xxh3_128(), dict[tuple[object, ...], str]()
    for key, value in named:
        digest.update(_heading(key, value).encode())
        local = value.to_local() if hasattr(value, "to_local") else value  # of a DTensor
        place = (local.device, local.data_ptr(), local.shape, local.stride()) if _is_plain(local) else ()
        if place in seen:
            digest.update(seen[place].encode())
            continue
        for part in _contents(value):
            digest.update(part)
        if place and local.data_ptr():
            seen[place] = key
    return digest.hexdigest()


def _heading(key: str, value: Any) -> str:
    return f"{key}{tuple(value.shape)}{value.dtype}" if isinstance(value, Tensor) else key


def _is_plain(value: Any) -> bool:
    return type(value) in (Tensor, nn.Parameter, nn.Buffer) and not value.is_quantized and not value.is_meta


def _contents(value: Any) -> Iterator[memoryview | bytes]:
    """The bytes of a tensor, also of a quantised one; of anything else in a state dict its description."""
    if not isinstance(value, Tensor):
        yield described(value).encode()
    elif value.is_quantized:
        yield from _contents(value.int_repr())
        yield from _contents(value.dequantize())
    elif _is_plain(value):
        yield value.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().data
    elif hasattr(value, "full_tensor"):  # each process gathers the whole: one digest, however many there are
        yield from _contents(value.full_tensor())
    elif hasattr(value, "__tensor_flatten__"):  # of torchao
        names, options = value.__tensor_flatten__()
        for name in names:
            yield from _contents(getattr(value, name))
        yield described(options).encode()


def _adapters(model: PreTrainedModel) -> str:
    """The active adapters, which the names of the weights do not show; empty without adapters."""
    layers = [
        module for module in model.modules() if hasattr(module, "active_adapters") and hasattr(module, "base_layer")
    ]
    if not layers:
        return ""
    active = [None if layer.disable_adapters else (layer.active_adapters, layer.merged) for layer in layers]
    return f"-{xxhash.xxh3_64_hexdigest(repr(active).encode())[:LENGTH]}"


def _options(model: PreTrainedModel) -> str:
    """The options of all modules and their configs as they are now."""
    configs: dict[int, PreTrainedConfig] = {}
    lines = [model.generation_config.to_json_string()] if model.can_generate() and model.generation_config else []
    for name, module in model.named_modules():
        placed = PLACED if {"_hf_hook", "_is_hooked"} & {*vars(module)} else ()
        options = {key: value for key, value in vars(module).items() if key not in (*NO_OPTIONS, *PLACES, *placed)}
        for key in [key for key, value in options.items() if isinstance(value, PreTrainedConfig)]:
            configs.setdefault(id(options[key]), options.pop(key))
        lines.append(f"{name} {type(module).__qualname__} {described(options)}")
    for config in configs.values():
        names = {key: value for key, value in config.to_dict().items() if key not in PLACES}
        lines.append(described({**names, "attention": config._attn_implementation}))
    return "\n".join(lines)


def _code(model: PreTrainedModel) -> str:
    """The classes of all modules and what the user has put in the place of transformers' functions."""
    kinds = dict.fromkeys(map(type, model.modules()))
    files = sorted({base.__module__ for kind in kinds for base in kind.__mro__ if base.__module__ in sys.modules})
    functions = [replaced(vars(sys.modules[file])) for file in files if file.startswith("transformers.")]
    attention = [ALL_ATTENTION_FUNCTIONS.get(config._attn_implementation) for config in configs_of(model.modules())]
    return described([*kinds, functions, [function for function in attention if function is not None]])


def _surroundings(model: PreTrainedModel) -> str:
    """What changes numbers outside the model: default dtype, autocast, precision of products."""
    device = model.device.type
    autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    return f"{torch.get_default_dtype()} {autocast} {torch.get_float32_matmul_precision()} {model.dtype}"


def serialised(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return every part of a tokenizer as text: normaliser, pre-tokeniser, vocabulary, special tokens, longest input.

    Truncation and padding are left out: the calls that use them set them.
    """
    options = {key: value for key, value in vars(tokenizer).items() if key not in (*PLACES, *IN_BACKEND)}
    options["init_kwargs"] = {key: value for key, value in tokenizer.init_kwargs.items() if key not in PLACES}
    parts = [type(tokenizer).__qualname__, code_of(type(tokenizer)), described(options)]
    backends = _backends(tokenizer)
    parts += [text[text.find('"added_tokens"') :] for text in backends if text]
    if not tokenizer.is_fast or None in backends:  # what it makes of a text shows some of what is elsewhere
        parts += [repr(sorted(tokenizer.get_vocab().items())), repr(sample_ids(tokenizer))]
    return "\n".join(parts)


def has_name(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether all parts of a tokenizer can be read: not those of the `tokenizers` library written in Python."""
    return None not in _backends(tokenizer)


def _backends(tokenizer: PreTrainedTokenizerBase) -> list[str | None]:
    """The serialised tokenizers of the library, None for one with a part written in Python."""
    texts: list[str | None] = []
    for backend in (getattr(tokenizer, "_tokenizer", None), getattr(tokenizer, "target", None)):
        try:
            texts += [] if backend is None else [backend.to_str()]
        except Exception as error:  # of no narrower type
            if "cannot be serialized" not in str(error):
                raise
            texts.append(None)
    return texts


def tokens(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the class of a tokenizer and the first 12 hexadecimal digits of the SHA-256 of its vocabulary."""
    pairs = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    return f"{type(tokenizer).__name__}-{hashlib.sha256(repr(pairs).encode()).hexdigest()[:LENGTH]}"


def sample_ids(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the token ids of a short text as a source and as a target: they show which special tokens are added."""
    text = "A b."
    sides = [{"text": text}, *([] if languages.is_unset(tokenizer) else [{"text_target": text}])]
    return [tokenizer(**side)["input_ids"] for side in sides]


def model_name(model: PreTrainedModel) -> str:
    """Return the name of a model in the provenance: the last two parts of its id or folder, or its class."""
    return "/".join(Path(model.config.name_or_path or "").parts[-2:]) or type(model).__name__
