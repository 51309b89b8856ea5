"""Signatures of public functions, read from their source: importing them would load PyTorch before `--help`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
REQUIRED = object()  # default of a parameter without one
UNKNOWN = object()  # a default that only Python can compute: the option is left out unless given
SENTENCE = re.compile(r"(?<=\.) (?=[A-Z`])")  # between two sentences
SIMPLE = ("str", "int", "float", "bool", "Path", "None")


@dataclass(frozen=True)
class Parameter:
    """A parameter: its name, the types that it takes, its default, and the first sentence of its description."""

    name: str
    types: tuple[str, ...]  # such as ("int", "None"), ("Sequence[str]",) or ("Literal", "head", "layer")
    default: object
    help: str

    @property
    def choices(self) -> tuple[str, ...]:
        """The words of its Literal types."""
        return tuple(word for kind in self.types if kind.startswith("Literal") for word in ast.literal_eval(kind[7:]))


@dataclass(frozen=True)
class Signature:
    """What a function does, in one sentence, and its parameters by name."""

    summary: str
    parameters: dict[str, Parameter]

    def types(self) -> set[str]:
        """Return the types of all parameters."""
        return {kind for parameter in self.parameters.values() for kind in parameter.types}


@cache
def signature(name: str) -> Signature:
    """Read the signature of a public function or the fields of a dataclass, such as `score` or `papers.reproduce`."""
    module, _, last = f"headroles.{name}".rpartition(".")
    module, node = _find(module, last)
    document = ast.get_docstring(node) or ""  # type: ignore[arg-type]
    texts = dict(_described(document))
    fields = _arguments(node) if isinstance(node, ast.FunctionDef) else _fields(node)
    parameters = {
        field: Parameter(field, tuple(_types(module, types)), _value(module, default), texts.get(field, ""))
        for field, types, default in fields
        if field in texts
    }
    return Signature(re.sub(r" \([A-Z][^()]*\d{4}[^()]*\)", "", document.partition("\n")[0]), parameters)


@cache
def _tree(module: str) -> ast.Module:
    place = PACKAGE.joinpath(*module.split(".")[1:])
    files = place.with_suffix(".py"), place / "__init__.pyi", place / "__init__.py"
    return ast.parse(next(file for file in files if file.is_file()).read_text(encoding="utf-8"))


def _find(module: str, name: str) -> tuple[str, ast.stmt]:
    """Return the module that defines a name, and its definition; imports are followed."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in map(ast.unparse, _targets(node)):
            return module, node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    source = f"{module}.{node.module}" if node.level else str(node.module)
                    return _find(source, alias.name) if source.startswith("headroles") else (source, node)
    raise LookupError(f"no {name!r} in {module}")


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _arguments(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr | None, ast.expr | object]]:
    """Yield name, annotation and default of each argument."""
    positional = [*function.args.posonlyargs, *function.args.args]
    defaults = [REQUIRED] * (len(positional) - len(function.args.defaults)) + function.args.defaults
    keyword = [REQUIRED if value is None else value for value in function.args.kw_defaults]
    for argument, default in zip(positional + function.args.kwonlyargs, defaults + keyword, strict=True):
        yield argument.arg, argument.annotation, default


def _fields(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None, ast.expr | object]]:
    """Yield name, annotation and default of each field of a dataclass."""
    for field in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            yield field.target.id, field.annotation, field.value or REQUIRED


def _types(module: str, node: ast.expr | None) -> Iterator[str]:
    """Yield the types of an annotation; names of unions and of literals are replaced by what they stand for."""
    if isinstance(node, ast.BinOp):
        yield from _types(module, node.left)
        yield from _types(module, node.right)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _types(module, ast.parse(node.value, mode="eval").body)
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
        words = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        yield f"Literal{tuple(ast.literal_eval(word) for word in words)}"
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("Sequence", "Iterable", "tuple"):
        item = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
        yield f"Sequence[{'|'.join(_types(module, item))}]"
    elif isinstance(node, ast.Name) and node.id not in SIMPLE:
        source, definition = _find(module, node.id)
        alias = isinstance(definition, ast.Assign) and isinstance(definition.value, ast.BinOp | ast.Subscript)
        yield from _types(source, definition.value) if alias else (node.id,)  # type: ignore[attr-defined]
    elif node is not None:
        yield ast.unparse(node)


def _value(module: str, node: ast.expr | object) -> object:
    """Return a default, also that of a named constant."""
    if not isinstance(node, ast.expr):
        return node
    try:
        if isinstance(node, ast.Name):
            source, definition = _find(module, node.id)
            return _value(source, getattr(definition, "value", UNKNOWN))
        return ast.literal_eval(node)
    except (ValueError, LookupError):
        return UNKNOWN


def _described(document: str) -> Iterator[tuple[str, str]]:
    """Yield the names in the section `Args` of a docstring, each with the first sentence about it."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", document, flags=re.MULTILINE)
    for name, text in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", flags=re.MULTILINE):
        first = SENTENCE.split(" ".join(text.split()))[0].replace("`", "")
        yield name, first[:1].upper() + first[1:]
