"""Code identity: values, functions and classes of a user described by their content, so that an edit shows."""

from __future__ import annotations

import contextlib
import dis
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pandas as pd
import xxhash
from torch import Tensor, nn

LENGTH = 12  # hexadecimal digits


def described(value: Any, seen: set[int] | None = None) -> str:
    """Describe a value by what changes numbers: the code of functions and classes, the bytes of tensors and arrays."""
    seen = set() if seen is None else seen
    if isinstance(value, Tensor | np.ndarray):
        return _numbers(value, seen)
    if isinstance(value, pd.DataFrame | pd.Series):
        value = pd.DataFrame(value).to_dict("tight")
    if isinstance(value, Mapping):
        items = (f"{described(key, seen)}: {described(item, seen)}" for key, item in value.items())
        return f"{{{', '.join(sorted(items))}}}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(described(item, seen) for item in value))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(described(item, seen) for item in value)}]"
    if isinstance(value, FunctionType | MethodType | functools.partial | type) or hasattr(value, "__wrapped__"):
        return code_of(value, seen)
    return _of_object(value, seen)


def _numbers(value: Tensor | np.ndarray[Any, Any], seen: set[int]) -> str:
    if isinstance(value, Tensor):
        array = (value.dequantize() if value.is_quantized else value).detach().cpu()
        value = array.double().numpy() if array.dtype.is_floating_point else array.numpy()
    if value.dtype.hasobject:  # its bytes are addresses
        return described([value.shape, value.tolist()], seen)
    return f"{value.dtype}{value.shape}{xxhash.xxh3_128_hexdigest(np.ascontiguousarray(value).data)}"


def _of_object(value: Any, seen: set[int]) -> str:
    """The attributes of an object and the code of its class; of a library's, what it shows of itself."""
    kind = type(value)
    if is_dataclass(value) or not _is_library(kind.__module__):
        if id(value) in seen:
            return kind.__qualname__
        seen.add(id(value))
        slots = {name: getattr(value, name, None) for name in getattr(kind, "__slots__", ())}
        return f"{code_of(kind, seen)}{described({**slots, **getattr(value, '__dict__', {})}, seen)}"
    text = "" if isinstance(value, ModuleType) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    if isinstance(value, nn.Module):
        return text + described(value.state_dict(), seen)
    return text or value.__name__  # an address is no property of an object, nor is the file of a module


def code_of(thing: Any, seen: set[int] | None = None) -> str:
    """Return a hash of the code of a function, class or object, and of the values and the code that it uses.

    Code of headroles and of installed libraries is described by its name: the version of headroles is in cache keys.
    """
    digest = xxhash.xxh3_128()
    for part in _code(thing, set() if seen is None else seen):
        digest.update(part.encode())
    return digest.hexdigest()[:LENGTH]


def _code(thing: Any, seen: set[int]) -> Iterator[str]:
    if isinstance(thing, functools.partial):
        yield described([thing.args, thing.keywords], seen)
        yield from _code(thing.func, seen)
    elif isinstance(thing, MethodType):
        yield from _code(thing.__func__, seen)
    elif isinstance(thing, FunctionType):
        if id(thing) not in seen:
            seen.add(id(thing))
            yield from _of_function(thing, seen)
    elif hasattr(thing, "__wrapped__"):  # of functools.cache
        yield from _code(thing.__wrapped__, seen)
    elif isinstance(thing, type):
        if id(thing) not in seen:
            seen.add(id(thing))
            yield from _of_class(thing, seen)
    elif _is_library(type(thing).__module__):
        yield from _code(type(thing), seen)
        yield from (described(part, seen) for part in of_user(thing))
    else:
        yield _of_object(thing, seen)


def of_user(thing: Any) -> Iterator[Any]:
    """Yield the functions, classes and objects of a user in the fields of an object of headroles, at any depth."""
    if isinstance(thing, Mapping):
        parts = list(thing.values())
    elif isinstance(thing, list | tuple | set | frozenset):
        parts = list(thing)
    else:
        shown = is_dataclass(thing) and type(thing).__module__.startswith("headroles.")
        parts = [getattr(thing, field.name, None) for field in fields(thing)] if shown else []
    for part in parts:
        if _is_of_user(part):
            yield part
        else:
            yield from of_user(part)


def _is_of_user(value: Any) -> bool:
    while isinstance(value, functools.partial | MethodType):
        value = value.func if isinstance(value, functools.partial) else value.__func__
    if isinstance(value, FunctionType):
        return not _is_of_library(value)
    return not _is_library((value if isinstance(value, type) else type(value)).__module__)


def _of_class(thing: type, seen: set[int]) -> Iterator[str]:
    yield f"{thing.__module__}.{thing.__qualname__}"
    for base in thing.__bases__:
        yield from _code(base, seen)
    attributes = replaced(vars(thing)) if _is_library(thing.__module__) else vars(thing)
    for name, value in sorted(attributes.items()):
        if name not in ("__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl"):
            yield name
            yield from _of_attribute(value, seen)


def _of_attribute(value: Any, seen: set[int]) -> Iterator[str]:
    """An attribute of a class: a method, also a property's, or a value."""
    function = getattr(value, "__func__", None) or getattr(value, "fget", None) or getattr(value, "func", None) or value
    if isinstance(function, FunctionType):
        yield from _code(function, seen)
    else:
        yield described(function, seen)


def _of_function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield f"{function.__module__}.{function.__qualname__}"
    if _is_of_library(function):
        return
    yield from _of_code(function.__code__)
    yield described([function.__defaults__, function.__kwdefaults__], seen)
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # of a name that has no value yet
            yield described(cell.cell_contents, seen)
    for name in _global_names(function.__code__):
        value = function.__globals__.get(name)
        yield described(value, seen)
        if isinstance(value, ModuleType) and not _is_library(value.__name__):
            attributes = (getattr(value, key, None) for key in _attribute_names(function.__code__))
            yield from (described(attribute, seen) for attribute in attributes)


def _of_code(code: CodeType) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant)
        else:
            yield repr(constant)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code and those of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _global_names(code: CodeType) -> list[str]:
    steps = (step for part in _codes(code) for step in dis.get_instructions(part))
    return sorted({step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")})


def _attribute_names(code: CodeType) -> list[str]:
    return sorted({name for part in _codes(code) for name in part.co_names})


def replaced(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return those functions of a library's class or module that the user has put in the place of others."""
    return {
        name: value
        for name, value in attributes.items()
        if isinstance(value, FunctionType) and not _is_of_library(value)
    }


def _is_of_library(function: FunctionType) -> bool:
    """Whether a function is of a library, and not one of the user's that wraps one."""
    return _is_library(function.__module__) and _is_library(function.__globals__.get("__name__"))


def _is_library(module: str | None) -> bool:
    """Whether a module belongs to headroles, to the standard library or to an installed package."""
    return _is_installed((module or "").partition(".")[0])


@functools.cache
def _is_installed(name: str) -> bool:
    if name == "__main__":  # code of the user, also where an installed package runs it (python -m pytest)
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name == "headroles" or "site-packages" in file or name in sys.stdlib_module_names
