"""Names and options that may be typed, read from the source of the library: others fail before PyTorch is loaded."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo

from headroles.cli.arguments import names
from headroles.cli.signatures import PACKAGE, signature
from headroles.tables.arguments import unknown

GATES = ("l0", "exactly")
STRATEGIES = (
    *("importance", "relevance", "confidence", "sink", "effect", "roles"),
    *("random", "random per kind", "random per layer"),
    *(f"{where}{turn}" for where in ("bottom", "middle", "top", "ends") for turn in ("", " alternating")),
)
COUNTS = {  # attributes of configs that count layers or heads, however a model has them
    "layer": {"num_hidden_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"},
    "head": {"num_attention_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads"},
}


def check_typed(given: Mapping[str, Any]) -> None:
    """Raise ValueError for a name or a head that nobody knows, and OSError for a file in place of a model."""
    from headroles.tables.io import check_no_file

    for parameter, (what, known) in TYPED.items():
        names = _split(given.get(parameter))
        listed = known() if names else []
        for name in names:
            if _bare(parameter, name) not in listed:
                raise ValueError(unknown(what, name, listed))
    if given.get("model") is not None:
        check_no_file(given["model"])
    for parameter in ("heads", "alone"):
        if isinstance(given.get(parameter), str) and ".parquet" not in given[parameter]:
            _check_heads(given[parameter], given.get("model"))


@dataclass(frozen=True)
class Need:
    """Options that are read only if one of other options has one of some words.

    Args:
        options: The options, by parameter.
        where: Those others, by parameter, with their words; without words any value will do. Those that a command does
            not have are left out.
    """

    options: tuple[str, ...]
    where: Mapping[str, tuple[str, ...]]

    def check(self, given: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
        """Raise ValueError for an option that was given, by another value than its default, but is not read."""
        where = {name: words for name, words in self.where.items() if name in parameters}
        typed = {name: [] if given[name] is None else names(str(given[name])) for name in where}
        unread = [name for name in self.options if given[name] != parameters[name].default]
        if unread and not any({*typed[name]} & {*(words or typed[name])} for name, words in where.items()):
            got = [_written(parameters[name], ",".join(words), "" if words else "no ") for name, words in typed.items()]
            expected = [_written(parameters[name], " or ".join(words)) for name, words in where.items()]
            raise ValueError(
                f"{unread[0]}= is not read: got {', '.join(got)}; expected {', or '.join(expected)}; try without "
                f"{unread[0]}="
            )


def _written(parameter: inspect.Parameter, text: str, before: str = "") -> str:
    """Return an option, or a word given by its place in capitals, with its text."""
    if isinstance(parameter.annotation.__metadata__[0], ArgumentInfo):
        return f"{before}{parameter.name.upper()} {text}".rstrip()
    return f"{before}{parameter.name}=" + (f"'{text}'" if text else "")


def check_read(needs: Iterable[Need], given: Mapping[str, Any], parameters: Iterable[inspect.Parameter]) -> None:
    """Raise ValueError for an option that this run does not read, such as translations of a corpus without it."""
    by_name = {parameter.name: parameter for parameter in parameters}
    targets = [Need((name,), {name.removesuffix("_target"): ()}) for name in by_name if name.endswith("_target")]
    for need in [*needs, *targets]:
        need.check(given, by_name)


def scores() -> list[str]:
    """Return the names of all scores: their classes in lower case."""
    bases = {"Score", "GradientScore"}
    files = sorted((PACKAGE / "scores").rglob("*.py"))
    return sorted(name for path in files for name in _named(path, bases))


def metrics() -> list[str]:
    """Return the names of metrics, then of objectives."""
    from headroles.tables.declared import METRICS

    return list(dict.fromkeys([*METRICS, *signature("attribute").parameters["objective"].choices]))


def rules() -> list[str]:
    """Return the names of rule sets of relevance."""
    return list(signature("scores.Relevance").parameters["rules"].choices)


def kinds() -> list[str]:
    """Return the kinds of heads."""
    from headroles.tables.frame import KINDS

    return list(KINDS)


def roles() -> list[str]:
    """Return the names of roles."""
    from headroles.analysis.role_rules import ROLES

    return sorted(role.name for role in ROLES)


TYPED: dict[str, tuple[str, Callable[[], list[str]]]] = {  # parameter -> what its names are of, and the known ones
    "scores": ("score", scores),
    "metric": ("metric", metrics),
    "metrics": ("metric", metrics),
    "rules": ("rule set", rules),
    "kinds": ("kind of heads", kinds),
    "thresholds": ("role", roles),
    "strategy": ("strategy", lambda: [*STRATEGIES, *GATES]),
    "strategies": ("strategy", lambda: [*STRATEGIES, *GATES]),
}


def _split(typed: object) -> list[str]:
    """Return the names that were typed: split at commas, of texts such as role=number the role."""
    if isinstance(typed, list):
        return [name.partition("=")[0].strip() for name in typed if "=" in name]
    return [name.strip() for name in typed.split(",")] if isinstance(typed, str) else []


def _bare(parameter: str, name: str) -> str:
    """Return a name without the language of BLEU, or the minus that reverses a ranking."""
    if name.startswith("bleu-"):
        return "bleu"
    reverses = parameter in ("strategy", "strategies") and name[1:] not in GATES
    return name.removeprefix("-") if reverses else name


def _check_heads(text: str, model: str | None) -> None:
    """Raise ValueError for heads of another form or kind, and for a number that the config of a model excludes."""
    from headroles.tables.frame import parsed_head

    known = kinds()
    config = _config(model)
    for part in text.split(","):
        match part.replace(":", " ").split():
            case [kind, layer, head] if layer.isdigit() and head.isdigit():
                if kind not in known:
                    raise ValueError(unknown("kind of heads", kind, known))
                if ":" not in part:
                    raise ValueError(f"no head {part.strip()!r}: expected kind:layer:head; try {kind}:{layer}:{head}")
        _, *places = parsed_head(part)
        for name, place in zip(COUNTS, places, strict=True):
            count = max(_counts(config, COUNTS[name]), default=place + 1)
            if place >= count:
                raise ValueError(f"no head {part.strip()!r} in {model}: got {name} {place}; expected 0 to {count - 1}")


def _counts(config: Mapping[str, Any], names: Iterable[str]) -> list[int]:
    return [config[name] for name in names if isinstance(config.get(name), int)]


def _config(model: str | None) -> dict[str, Any]:
    """Return the config of a model on disk; empty without it, of a model of several parts, and of a pruned one."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    from headroles.models.weights.at_hand import at_hand

    if model is None:
        return {}
    place, _ = at_hand(model)
    path: object = Path(place, "config.json")
    if not Path(place).is_dir():
        try:
            path = try_to_load_from_cache(str(place), "config.json")
        except HFValidationError:  # neither a folder nor the name of a hub's model
            return {}
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8")) if isinstance(path, str | Path) else {}
    except (OSError, ValueError):
        config = {}
    if not isinstance(config, dict):  # loading the model says what is wrong
        return {}
    parts = [name for name, value in config.items() if name.endswith("_config") and isinstance(value, dict)]
    return {} if "headroles" in config or set(parts) - {"quantization_config"} else dict(config)


def _named(path: Path, bases: set[str]) -> Iterator[str]:
    """Yield the names of the scores in a file: what their method `name` returns, else the class in lower case."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & bases - {node.name}:
            texts = [
                ast.literal_eval(line.value)
                for method in node.body
                if isinstance(method, ast.FunctionDef) and method.name == "name"
                for line in method.body
                if isinstance(line, ast.Return) and isinstance(line.value, ast.Constant)
            ]
            yield texts[0] if texts else node.name.lower()
