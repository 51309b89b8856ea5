"""Code identity: values, functions and classes of a user described by their content, so that an edit shows."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import xxhash
from torch import Tensor

LENGTH = 12  # hexadecimal digits
PLAIN = (int, float, str, bytes, bool, tuple, list, dict, set, frozenset, Tensor, np.ndarray, type(None))


def described(value: Any, seen: set[int] | None = None) -> str:
    """Describe a value by what changes numbers: the code of functions and classes, the bytes of tensors and arrays."""
    seen = set() if seen is None else seen
    if isinstance(value, Tensor):
        array = (value.dequantize() if value.is_quantized else value).detach().cpu()
        value = array.double().numpy() if array.dtype.is_floating_point else array.numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{xxhash.xxh3_128_hexdigest(np.ascontiguousarray(value).data)}"
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__qualname__}{described(vars(value), seen)}"
    if isinstance(value, Mapping):
        items = (f"{described(key, seen)}: {described(item, seen)}" for key, item in value.items())
        return f"{{{', '.join(sorted(items))}}}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(described(item, seen) for item in value))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(described(item, seen) for item in value)}]"
    if isinstance(value, FunctionType | MethodType | functools.partial | type):
        return code_of(value, seen)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # an address is no property of an object


def code_of(thing: Any, seen: set[int] | None = None) -> str:
    """Return a hash of the code of a function, of a class or of an object's class, and of what it uses of its module.

    Code of headroles and of installed libraries is described by its name: their versions stand in cache keys.
    """
    digest = xxhash.xxh3_128()
    for part in _code(thing, set() if seen is None else seen):
        digest.update(part.encode())
    return digest.hexdigest()[:LENGTH]


def _code(thing: Any, seen: set[int]) -> Iterator[str]:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, functools.partial):
        yield described([thing.args, thing.keywords], seen)
        yield from _code(thing.func, seen)
    elif isinstance(thing, MethodType):
        yield from _code(thing.__func__, seen)
    elif isinstance(thing, FunctionType):
        yield from _of_function(thing, seen)
    elif isinstance(thing, type):
        yield f"{thing.__module__}.{thing.__qualname__}"
        if not _is_library(thing.__module__):
            for base in thing.__bases__:
                yield from _code(base, seen)
            for name, value in sorted(vars(thing).items()):
                if name not in ("__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl"):
                    yield name
                    yield from _of_attribute(value, seen)
    else:
        yield from _code(type(thing), seen)


def _of_attribute(value: Any, seen: set[int]) -> Iterator[str]:
    """An attribute of a class: a method, also a property's, or a value."""
    function = getattr(value, "__func__", None) or getattr(value, "fget", None) or getattr(value, "func", None) or value
    if isinstance(function, FunctionType):
        yield from _code(function, seen)
    else:
        yield described(function, seen)


def _of_function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield f"{function.__module__}.{function.__qualname__}"
    if _is_library(function.__module__):
        return
    yield from _of_code(function.__code__)
    yield described([function.__defaults__, function.__kwdefaults__], seen)
    used = [cell.cell_contents for cell in function.__closure__ or ()]
    used += [function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__]
    for value in used:
        if isinstance(value, FunctionType | type):
            if value.__module__ == function.__module__:
                yield from _code(value, seen)
        elif isinstance(value, PLAIN):
            yield described(value, seen)


def _of_code(code: CodeType) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant)
        else:
            yield repr(constant)


def _names(code: CodeType) -> list[str]:
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return sorted({*code.co_names, *inner})


def _is_library(module: str | None) -> bool:
    """Whether a module belongs to headroles, to the standard library or to an installed package."""
    name = (module or "").partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name == "headroles" or "site-packages" in file or (name in sys.stdlib_module_names and name != "__main__")
