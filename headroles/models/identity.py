"""Identity: digests of what a kept result belongs to: a model with its tokenizer, and the user's own code.

A result belongs to the weights and buffers, the active adapters, the options of every module and config, the dtype and
autocast, and every part of the tokenizer (`identity`). Hooks and open contexts are in no digest: `unkeyed` lists them,
and a result is not kept then. A score, metric or pattern of a user is named by its code and values (`fingerprint`).
Functions that were replaced in torch or another library are in no digest either, and are not seen.
"""

from __future__ import annotations

import dis
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import numpy as np
import pandas as pd
import torch
import xxhash
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

LENGTH = 12  # hexadecimal digits
DRAWN = "_drawn_weights"  # attribute of a model: values of weights that its checkpoint lacks
NO_OPTIONS = {*vars(nn.Module()), "_compiled_call_impl", "_is_hf_initialized", DRAWN}  # of torch, transformers and ours
PLACED = {"_hf_hook", "_old_forward", "hf_device_map", "forward", "to", "cuda"}  # of accelerate: where weights are
PLACES = (  # attributes that change no number: where and how it was loaded, and what it has warned about
    *("name_or_path", "_name_or_path", "transformers_version", "deprecation_warnings", "warnings_issued"),
    *("local_files_only", "is_local", "token", "revision", "_commit_hash", "cache_dir", "subfolder", "files_loaded"),
    *("_is_hooked", "_is_accelerate_prepared", "distributed_config", "_device_mesh", "_mesh_manager", "_tp_size"),
    *("_is_distributed_loading_by_transformers", "trust_remote_code", "use_fast", "_fsdp_size"),
    *("vocab_file", "merges_file", "tokenizer_file", "special_tokens_map_file"),
)
IN_BACKEND = ("_vocab", "_merges")  # attributes of tokenizers that are serialised with the backend
OURS = ("attention_hooks", "heads", "discovery", "pruned")  # modules with hooks that only read, or are in the config
KEYED_HOOKS = ("torch.", "transformers.", "accelerate.", "peft.", *(f"headroles.models.{name}." for name in OURS))
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
NO_FIELDS = ("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "_abc_impl")  # of classes
INNER = ("__func__", "__self__", "fget", "func", "args", "keywords", "__wrapped__")  # of descriptors and partials
WRAPPERS = (MethodType, staticmethod, classmethod, property, partial, cached_property, type(cache(len)))
_weights: dict[str, str] = {}  # fast hash of the state -> `weights_digest`: by content, so that it can't be outdated


def identity(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, state: str = "") -> str:
    """Return the digest of everything but the corpus that changes a model's numbers.

    Every byte is read at every call, unless `state` is the second of `state_hashes`: nothing is remembered that could
    be outdated.
    """
    kinds = [type(module) for module in model.modules()]
    parts = [state or state_hashes(model)[1], fingerprint([*dict.fromkeys(kinds)])]
    parts += [_options(model), _surroundings(model), *unkeyed(model)]
    parts += [] if tokenizer is None else [_serialised(tokenizer)]
    return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())[:LENGTH]


def weights_digest(model: PreTrainedModel, fast: str = "") -> str:
    """Return 12 digits of the SHA-256 of all weights, known by their hash `fast`; active adapters are appended."""
    fast = fast or state_hashes(model)[0]
    if fast not in _weights:
        digest = hashlib.sha256()
        for key, value in _state(model).items():
            digest.update(_heading(key, value).encode())
            for part in _contents(value):
                digest.update(part)
        _weights[fast] = digest.hexdigest()[:LENGTH]
    return _weights[fast] + _adapters(model)


def model_name(model: PreTrainedModel) -> str:
    """Return the last two parts of a model's id or folder, or its class."""
    return "/".join(Path(model.config.name_or_path or "").parts[-2:]) or type(model).__name__


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the class of a tokenizer and 12 digits of the SHA-256 of its vocabulary."""
    pairs = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    return f"{type(tokenizer).__name__}-{hashlib.sha256(repr(pairs).encode()).hexdigest()[:LENGTH]}"


def is_offloaded(model: PreTrainedModel) -> bool:
    """Return whether a `device_map` keeps weights elsewhere until a layer needs them."""
    return any(value.is_meta for value in model.parameters())


def unkeyed(model: nn.Module, tokenizer: PreTrainedTokenizerBase | None = None) -> list[str]:
    """List hooks and open contexts that affect results but are not in the cache key."""
    modules = [(name or type(model).__name__, vars(module)) for name, module in model.named_modules()]
    modules.append(("every module", {key: getattr(nn.modules.module, f"_global{key}", {}) for key in HOOKS}))
    hooks = [(hook, name) for name, attributes in modules for kind in HOOKS for hook in attributes[kind].values()]
    reasons = [f"{reason} on {name}" for hook, name in hooks if (reason := _unkeyed_hook(hook))]
    modes = [type(mode).__name__ for mode in torch.overrides._get_current_function_mode_stack()]
    reasons += [f"an open {mode}" for mode in modes if mode != "DeviceContext"]  # of torch.set_default_device
    in_python = tokenizer is not None and None in _backends(tokenizer)
    return reasons + ["a part written in Python, which cannot be serialised, in the tokenizer"] * in_python


def _unkeyed_hook(hook: Any) -> str | None:
    """Describe a hook if it may change numbers."""
    function = getattr(hook, "function", hook)  # our hooks hold the function that is called
    function = function.func if isinstance(function, partial) else function
    module = f"{getattr(function, '__module__', None) or type(function).__module__}."
    if module.startswith("headroles.") and not module.startswith(KEYED_HOOKS):
        return "an open block of headroles (mask_heads, lrp_rules ...)"
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return None if module.startswith(KEYED_HOOKS) else f"the hook {name}"


def _state(model: PreTrainedModel) -> dict[str, Any]:
    """All weights by name, also if a `device_map` keeps them on disk until a layer needs them."""
    state = _state_dict(model)
    if not is_offloaded(model):
        return state
    from accelerate.utils.modeling import get_state_dict_offloaded_model

    offloaded = get_state_dict_offloaded_model(model)
    return {key: offloaded.get(key, value) for key, value in state.items()}


# Some quantised modules (bitsandbytes' of 4 bit on a CPU) convert their own weights to write them, and the next forward
# converts them back, with loss. So what belongs to these parameters is put back.
def _state_dict(module: nn.Module) -> dict[str, Any]:
    """The state dict of a module, which stays as it is."""
    plain = nn.Module._save_to_state_dict
    converting = [part for part in module.modules() if type(part)._save_to_state_dict is not plain]
    kept = []
    for value in (value for part in converting for value in part.parameters(recurse=False)):
        parts = [part for part in vars(value).values() if hasattr(part, "__dict__")]
        fields = [(part, {**vars(part)}) for part in parts if not isinstance(part, Tensor | nn.Module)]
        kept.append((value, value.data, fields))
    try:
        return module.state_dict()
    finally:
        for value, data, fields in kept:
            value.data = data
            for part, before in fields:
                vars(part).clear()
                vars(part).update(before)


# SHA-256 of a billion weights takes seconds, and every public call names its model. So the bytes are first hashed by
# xxHash, at the speed of memory, and the SHA-256 that stands in provenance is computed once for each such hash. A
# tensor that stands under two names (tied embeddings) is read once; afterwards its first name stands for its bytes.
def state_hashes(model: PreTrainedModel) -> tuple[str, str]:
    """Return fast hashes of the weights, and of weights and buffers: names, shapes, dtypes and all bytes, in order."""
    digest, seen, hashes = xxhash.xxh3_128(), dict[tuple[object, ...], str](), list[str]()
    for named in (_state(model).items(), model.named_buffers()):
        for key, value in named:
            digest.update(_heading(key, value).encode())
            part = value.to_local() if hasattr(value, "to_local") else value  # of one spread over processes
            place = (part.device, part.data_ptr(), part.shape, part.stride()) if _is_plain(part) else ()
            if place in seen:
                digest.update(seen[place].encode())
                continue
            for content in _contents(value):
                digest.update(content)
            if place and part.data_ptr():
                seen[place] = key
        hashes.append(digest.hexdigest())
    return hashes[0], hashes[1]


def _heading(key: str, value: Any) -> str:
    return f"{key}{tuple(value.shape)}{value.dtype}" if isinstance(value, Tensor) else key


def _is_plain(value: Any) -> bool:
    return type(value) in (Tensor, nn.Parameter, nn.Buffer) and not value.is_quantized and not value.is_meta


def _contents(value: Any) -> Iterator[memoryview | bytes]:
    """Yield the bytes of a tensor, also if quantised; for anything else in a state dict, its fingerprint."""
    if _is_plain(value):
        yield value.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().data
    elif hasattr(value, "full_tensor"):  # each process gathers the whole: one digest, however many there are
        yield from _contents(value.full_tensor())
    elif hasattr(value, "__tensor_flatten__"):  # of torchao
        names, options = value.__tensor_flatten__()
        for name in names:
            yield from _contents(getattr(value, name))
        yield fingerprint(options).encode()
    elif not isinstance(value, Tensor):
        yield fingerprint(value).encode()
    elif not value.is_meta:
        yield from _contents(value.dequantize() if value.is_quantized else value.detach().as_subclass(Tensor))


def _adapters(model: PreTrainedModel) -> str:
    """Return a digest of the active adapters, which the names of weights do not show; empty without adapters."""
    layers = [part for part in model.modules() if hasattr(part, "active_adapters") and hasattr(part, "base_layer")]
    active = [None if layer.disable_adapters else (layer.active_adapters, layer.merged) for layer in layers]
    return f"-{xxhash.xxh3_64_hexdigest(repr(active).encode())[:LENGTH]}" if active else ""


def _options(model: PreTrainedModel) -> str:
    """Return the current options of all modules and configs, and the attention functions they name."""
    configs: dict[int, PreTrainedConfig] = {}
    lines = [model.generation_config.to_json_string()] if model.can_generate() and model.generation_config else []
    for name, module in model.named_modules():
        placed = PLACED if {"_hf_hook", "_is_hooked"} & {*vars(module)} else ()
        options = {key: value for key, value in vars(module).items() if key not in (*NO_OPTIONS, *PLACES, *placed)}
        for key in [key for key, value in options.items() if isinstance(value, PreTrainedConfig)]:
            configs.setdefault(id(options[key]), options.pop(key))
        lines.append(f"{name} {type(module).__qualname__} {fingerprint(options)}")
    for config in configs.values():
        attention = config._attn_implementation
        lines.append(fingerprint([_elsewhere(config.to_dict()), attention, ALL_ATTENTION_FUNCTIONS.get(attention)]))
    return "\n".join(lines)


def _elsewhere(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options without the places from which something was loaded."""
    return {key: value for key, value in options.items() if key not in PLACES}


def _surroundings(model: PreTrainedModel) -> str:
    """Return settings outside the model that change numbers: default dtype, autocast, precision of products."""
    device = model.device.type
    autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    return f"{torch.get_default_dtype()} {autocast} {torch.get_float32_matmul_precision()} {model.dtype}"


def _serialised(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return every part of a tokenizer as text, except truncation and padding, which calls set themselves."""
    options = {key: value for key, value in _elsewhere(vars(tokenizer)).items() if key not in IN_BACKEND}
    options = {key: value for key, value in options.items() if not isinstance(value, Tokenizer)}
    options["init_kwargs"] = _elsewhere(tokenizer.init_kwargs)
    backends = _backends(tokenizer)
    parts = [type(tokenizer), options, *(text and text[text.find('"added_tokens"') :] for text in backends)]
    is_whole = tokenizer.is_fast and None not in backends
    return fingerprint(parts if is_whole else [*parts, tokenizer.get_vocab(), tokenizer("A b.")["input_ids"]])


def _backends(tokenizer: PreTrainedTokenizerBase) -> list[str | None]:
    """Return the serialised tokenizers of the library `tokenizers`; None for one with a part written in Python."""
    texts: list[str | None] = []
    for backend in (value for value in vars(tokenizer).values() if isinstance(value, Tokenizer)):
        try:
            texts.append(backend.to_str())
        except Exception as error:  # of no narrower type
            if "cannot be serialized" not in str(error):
                raise
            texts.append(None)
    return texts


def fingerprint(thing: Any) -> str:
    """Return the digest of the code and values of a score, metric or pattern.

    Code of headroles and of installed libraries is described by its name: the version of headroles is in cache keys.
    """
    return xxhash.xxh3_128_hexdigest(_described(thing, set()).encode())[:LENGTH]


def _described(value: Any, seen: set[int]) -> str:
    """A value by its content: bytes of arrays, items of collections, code and fields of the user's objects."""
    if type(value) in (int, bool, NoneType) or (type(value) is str and len(value) < 100):
        return _plain(value)
    if isinstance(value, pd.DataFrame | pd.Series):
        value = pd.DataFrame(value).to_dict("tight")
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:  # its bytes are addresses
        value = value.tolist()
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        items = [_described(item, seen) for item in (value.items() if isinstance(value, Mapping) else value)]
        return str(items if isinstance(value, list | tuple) else sorted(items))
    if isinstance(value, Tensor):
        return _heading("", value) + (xxhash.xxh3_128_hexdigest(b"".join(_contents(value))))
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{xxhash.xxh3_128_hexdigest(np.ascontiguousarray(value).data)}"
    if isinstance(value, CodeType):
        return _described([value.co_code.hex(), value.co_names, value.co_consts], seen)
    kind = value if isinstance(value, FunctionType | type) else type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if _is_library(kind):
        return name if kind is value else name + _of_library(value, seen)
    if id(value) in seen:
        return name
    seen.add(id(value))
    return name + _described(_content(value), seen)


@lru_cache(4096, typed=True)
def _plain(value: str | int | bool | None) -> str:
    """A value of Python's own as `_described` has it; not a float, since 0 and -0 are one key."""
    return f"{type(value).__module__}.{type(value).__qualname__}{_of_library(value, set())}"


def _content(value: Any) -> list[Any]:
    """Return the parts of a user's function, class or object."""
    if isinstance(value, FunctionType):
        return _used(value)
    fields = {key: part for key, part in getattr(value, "__dict__", {}).items() if key not in NO_FIELDS}
    if isinstance(value, type):
        return [value.__bases__, fields]
    return [type(value), {key: getattr(value, key, None) for key in getattr(type(value), "__slots__", ())}, fields]


def _used(function: FunctionType) -> list[Any]:
    """Return the code of a function, its defaults, its closure, and the global names that it reads."""
    codes = [*_codes(function.__code__)]
    steps = (step for code in codes for step in dis.get_instructions(code))
    names = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    used = {name: function.__globals__[name] for name in sorted(names & {*function.__globals__})}
    modules = [part for part in used.values() if isinstance(part, ModuleType) and not _is_installed(part.__name__)]
    attributes = {name for code in codes for name in code.co_names}
    parts = [{name: vars(part)[name] for name in sorted(attributes & {*vars(part)})} for part in modules]
    cells = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # of a name that has no value yet
            cells.append(cell.cell_contents)
    return [function.__code__, function.__defaults__, function.__kwdefaults__, cells, used, parts]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and the code of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _of_library(value: Any, seen: set[int]) -> str:
    """Describe a library's object: what it wraps, its fields if it is a dataclass, its weights, and its text."""
    if isinstance(value, WRAPPERS):
        return _described([getattr(value, name, None) for name in INNER], seen)
    if is_dataclass(value):
        return _described({field.name: getattr(value, field.name, None) for field in fields(value)}, seen)
    if isinstance(value, ModuleType):
        return value.__name__  # its file is no property of it
    text = re.sub(r" at 0x[0-9a-f]+", "", str(value))
    return text + (_described(_state_dict(value), seen) if isinstance(value, nn.Module) else "")


def _is_library(kind: Any) -> bool:
    """Whether a function or class belongs to headroles, the standard library or an installed package."""
    module = kind.__globals__.get("__name__") if isinstance(kind, FunctionType) else kind.__module__
    return _is_installed(module) and _is_installed(kind.__module__)


@cache
def _is_installed(module: str | None) -> bool:
    name = (module or "").partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name != "__main__" and (name == "headroles" or "site-packages" in file or name in sys.stdlib_module_names)
