"""Commands and their options, made from the signatures of public functions, and read back into arguments."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headroles.tables.arguments import several
from headroles.tables.columns import REPEATED, Printed
from headroles.tables.declared import LEARNED

if TYPE_CHECKING:
    from headroles.ablation.example_stats import ExampleStats
    from headroles.data.corpus import Corpus
    from headroles.pruning.learned_gates import Freeze
    from headroles.pruning.selection import Strategy

Rule = tuple[tuple[str, ...], Mapping[str, Collection[str]]]  # options, and parameter -> its values, () for any
PACKAGE = Path(__file__).parents[1]
REQUIRED = inspect.Parameter.empty  # default of a parameter without one
BY_NAME = inspect.Parameter.KEYWORD_ONLY
UNKNOWN = object()  # a default that only Python can compute: the option is left out unless given
SENTENCE = re.compile(r"(?<=\.) (?=[A-Z`])")  # between two sentences
SIMPLE = ("str", "int", "float", "bool", "Path", "None")

PYTHON = ("command", "note", "side", "gpu", "cache")  # parameters for Python alone
LOADS = ("submodel", "dtype", "cls", "allow_random", "source_lang", "target_lang")  # options of `load`
TRAINER = {"warmup": "warmup_steps", "smoothing": "label_smoothing_factor", "sampling": "train_sampling_strategy"}


def option(name: str, type_: Any, default: object, text: str, *flags: str, **limits: Any) -> inspect.Parameter:
    """Return one option; `default` may be REQUIRED, and the flag follows from the name."""
    info = typer.Option(*(flags or (f"--{name.replace('_', '-')}",)), help=text, **limits)
    return inspect.Parameter(name, BY_NAME, default=default, annotation=Annotated[type_, info])


def argument(name: str, type_: Any, default: object, text: str) -> inspect.Parameter:
    """Return one positional argument."""
    return inspect.Parameter(name, BY_NAME, default=default, annotation=Annotated[type_, typer.Argument(help=text)])


SAMPLING = "shuffled_groups"  # the default of `hr.train`
SAMPLINGS = Literal["shuffled_groups", "group_by_length", "random"]
BATCHED = "Examples of a batch: of similar length; the same, the longest first; of any length."
TRAINER_OPTIONS = (  # of transformers' Trainer, that trainings here need most
    option("warmup", int, 0, "Number of warm-up steps.", min=0),
    option("smoothing", float, 0.0, "Label smoothing.", min=0, max=1),
    option("sampling", SAMPLINGS, SAMPLING, BATCHED),
)
FROZEN = Literal["nothing", "decoder", "all"]
GATES = (  # options of strategies of pruning
    option("gate_rate", float | None, None, "Learning rate of gates; by default large enough to converge."),
    option("freeze", FROZEN, "nothing", "Parameters to freeze while gates are trained."),
    option("role_scores", Path | None, None, "Score table (heads.parquet) for the strategy roles."),
)


@dataclass(frozen=True)
class Command:
    """A command: a public function, where its options differ from its signature, and how its result is printed."""

    function: str  # name of the public function, after `headroles.`
    words: tuple[str, ...] = ()  # parameters given by their place
    _: KW_ONLY
    called: str = ""  # by default like the function
    defaults: Mapping[str, object] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)  # parameter -> name of its option
    extra: tuple[inspect.Parameter, ...] = ()  # options that are no parameters
    rules: tuple[Rule, ...] = ()  # options that are read only with certain values of others, and else refused
    makes: Mapping[str, Callable[[Call], Corpus]] = field(default_factory=dict)  # corpora made for the loaded model
    trains: bool = False  # the model is loaded onto one device, examples of the corpus are drawn
    before: tuple[Callable[[Call], None], ...] = ()  # done before the model is loaded
    load: Callable[[Call], None] | None = None  # by default `Call.load`
    prints: Printed | None = None  # how the result is printed as a table
    show: Callable[[Call], None] | None = None  # what is printed then, or instead

    @property
    def name(self) -> str:
        """Name of the command: by default of the function, without its package."""
        return self.called or self.function.rpartition(".")[2]

    @property
    def keeps(self) -> bool:
        """Whether it makes a study from which figures can be drawn."""
        study = signature(self.function).parameters.get("study")
        return study is not None and "study" not in self.words and "Study" in study.types

    def parameters(self) -> list[inspect.Parameter]:
        """Return the words and options of the command."""
        made: dict[str, inspect.Parameter] = {}
        for parameter in self.shown():
            for option in self._of(parameter):
                made.setdefault(option.name, option)
        return list((made | {option.name: option for option in self.extra}).values())

    def shown(self) -> list[Parameter]:
        """Return the function's parameters that appear on the command line."""
        return [part for part in signature(self.function).parameters.values() if part.name not in PYTHON]

    def _of(self, parameter: Parameter) -> Iterator[inspect.Parameter]:
        if "PreTrainedModel" in parameter.types:
            yield from self._model(parameter.name)
        elif "Corpus" in parameter.types and parameter.name not in self.words:
            yield from self._corpus(parameter)
        elif "Study" in parameter.types and parameter.name == "study":
            yield from self._study()
        elif parameter.name == "tune":
            for name in self.trained():
                yield from self._plain(signature("train").parameters[name])
            yield from TRAINER_OPTIONS
        elif "PreTrainedTokenizerBase" not in parameter.types:
            yield from self._plain(parameter)
        if parameter.name in ("strategy", "strategies"):
            yield from GATES

    def _model(self, name: str) -> Iterator[inspect.Parameter]:
        yield argument(name, str, REQUIRED, "Hub id or local folder of a Hugging Face model with its tokenizer.")
        devices = "PyTorch device" + ("" if self.trains else ", or auto for all available devices")
        yield option("device", str | None, None, f"{devices}; by default a GPU if available.")
        yield option("cls", str | None, None, "Class in transformers, such as AutoModel; by default the checkpoint's.")
        yield option("allow_random", bool, False, "Accept random weights that the checkpoint lacks.")
        if "PreTrainedTokenizerBase" in signature(self.function).types():
            for side in ("source", "target"):
                text = f"{side.title()} language of a multilingual translator, such as deu_Latn."
                yield option(f"{side}_lang", str | None, None, text)
        if not self.trains:
            yield option("submodel", str | None, None, "Submodel of a multimodal model, such as text.")
            precision = Literal["auto", "float32", "bfloat16", "float16"]
            yield option("dtype", precision | None, None, "Precision of the model; by default that of transformers.")

    def _corpus(self, parameter: Parameter) -> Iterator[inspect.Parameter]:
        """Yield the corpus of the model as words, any other corpus as options."""
        name = parameter.name
        if name == "corpus":
            kinds = "Corpus: CoNLL-U (trees), text, parallel or labelled TSV, minimal pairs; .gz too."
            kinds += f" Or {REPEATED}: 100 texts of random tokens, each twice in a row." * (REPEATED in self.makes)
            yield argument("corpus", Path, REQUIRED, kinds)
            yield argument("target", Path | None, None, "Translations of the corpus, line by line or as CoNLL-U.")
            drawn = "training examples, drawn at random" if self.trains else "sentences to read from the start"
            if "limit" not in signature(self.function).parameters:
                yield option("limit", int | None, None, f"Number of {drawn}; by default all.", min=1)
            text = "Apply the tokenizer's chat template to each text; a translation or second text is the answer."
            yield option("chat", bool, False, text)
            yield option("links", Path | None, None, "Word links of the pairs in the format of fast_align: 0-0 1-2.")
            if not self.trains:
                yield option("sample", int | None, None, "Number of sentences to draw at random from all.", min=1)
            return
        type_, default = (Path, REQUIRED) if parameter.default is REQUIRED else (Path | None, None)
        yield option(name, type_, default, parameter.help)
        yield option(f"{name}_target", Path | None, None, f"Translations of --{name.replace('_', '-')}.")

    def _study(self) -> Iterator[inspect.Parameter]:
        if "study" in self.words:
            yield argument("study", Path, REQUIRED, "Study folder with tables, to which results are added.")
        else:
            yield option("study", Path, Path("study"), "Folder for the tables and figures.")
        yield option("overwrite", bool, False, "Remove tables of another model or corpus from the folder.")

    def trained(self) -> list[str]:
        """Return the options of `train` that a function takes as `tune`, with the seed unless it has its own."""
        has_seed = not {"seed", "seeds"} & signature(self.function).parameters.keys()
        return ["epochs", "batch", "rate", "length", *(["seed"] if has_seed else [])]

    def _plain(self, parameter: Parameter) -> Iterator[inspect.Parameter]:
        if (type_ := _type(parameter)) is None:
            return
        name, default = parameter.name, self.defaults.get(parameter.name, parameter.default)
        if isinstance(default, tuple) and type_ is str:
            default = ",".join(map(str, default))
        if default is UNKNOWN or default is None:
            type_, default = type_ | None, None
        commas = type_ in (str, str | None) and any(text.startswith("Sequence") for text in parameter.types)
        text = f"{parameter.help.rstrip('.')}{', separated by commas' * commas}."
        if name in self.words:
            yield argument(name, type_, default, text)
            return
        flag = f"--{self.flags.get(name, name.removeprefix('n_').replace('_', '-'))}"
        flag += f"/--no-{name}" if default is True else ""
        limits: dict[str, Any] = {"min": 0 if name.startswith("n_") else 1} if type_ is int and default else {}
        if any(text.startswith("Sequence[float") for text in parameter.types):
            limits = {"parser": numbers, "metavar": "numbers"}
        yield option(name, type_, default, text, flag, **limits)


def _type(parameter: Parameter) -> Any:
    """Return the type of a parameter on the command line; None for what cannot be typed there."""
    types = set(parameter.types) - {"None"}
    several = next((text for text in types if text.startswith("Sequence")), "")
    if "Path" in several:
        return list[str]
    if parameter.choices and not types & {"str", "int", "float", "Path"}:  # objects cannot be typed
        return Literal[parameter.choices]
    for name, type_ in {"bool": bool, "int": int, "float": float, "Path": Path, "str": str}.items():
        if name in types:
            return type_
    return str if any(word in several for word in ("str", "int", "float", "Literal")) else None


class Call:
    """One run of a command: what was typed, by name, the arguments that the function gets, and its result."""

    def __init__(self, command: Command, given: dict[str, Any]) -> None:
        by_name = {parameter.name: parameter for parameter in command.parameters()}
        for rule in command.rules:
            _check_read(rule, given, by_name)
        self.command, self.given = command, given
        self.arguments: dict[str, Any] = {}
        self.result: Any = None
        self.tokenizer: Any = None
        self.heads: Any = None  # of the model before some are removed
        self.intact: ExampleStats | None = None  # of the model before heads are pruned
        self.measured: Any = None  # corpus of that metric
        parameters = signature(command.function).parameters
        if "study" in parameters and "Study" in parameters["study"].types:
            from headroles.tables.study import Study

            self.arguments["study"] = Study(given["study"], overwrite=given["overwrite"])
            self.arguments["study"].check_writable()  # before a model is loaded
        if "command" in parameters:
            self.arguments["command"] = command_line()
        for parameter in command.shown():
            self._read(parameter)

    def _read(self, parameter: Parameter) -> None:
        """Add the argument of a parameter, unless it is left to the function or follows from the model."""
        name, given, value = parameter.name, self.given, None
        if "Corpus" in parameter.types and name not in self.command.words:
            value = self.corpus(name)
        elif parameter.name == "tune":
            value = {key: given[key] for key in self.command.trained() if given[key] is not None} | trainer(given)
        elif name not in self.arguments and "PreTrainedModel" not in parameter.types:
            value = _converted(parameter, given.get(name))
        if name in ("strategy", "strategies") and value is not None:
            chosen = [strategy_of(word, *(given[part.name] for part in GATES)) for word in several(value)]
            value = chosen if name == "strategies" else chosen[0]
        if value is not None:
            self.arguments[name] = value

    def corpus(self, name: str) -> Any:
        """Read the corpus of a parameter; None if it is not given, or made once the model is loaded."""
        import headroles as hr

        given = self.given
        made = name == "corpus" and str(given[name]) in self.command.makes
        if made and (unread := [part for part in ("target", "sample", "chat", "links") if given.get(part)]):
            raise ValueError(f"corpus {given[name]} takes no {unread[0]}, got {given[unread[0]]}")
        if made or given[name] is None:
            return None
        if name != "corpus":
            return hr.read(given[name], given.get(f"{name}_target"), chat=given["chat"] and name != "reference")
        counts = {} if self.command.trains else {word: given[word] for word in ("limit", "sample")}
        corpus = hr.read(given[name], given["target"], **counts, chat=given["chat"], links=given["links"])
        return corpus.sample(given["limit"]) if self.command.trains else corpus

    def load(self) -> None:
        """Load the model ("auto": onto all devices, unless it is trained), its tokenizer, and a corpus made for it."""
        from headroles.models import loading

        given = self.given
        parts = {name: given[name] for name in LOADS if name in given}
        spread: dict[str, Any] = {"device_map": "auto"} if given["device"] == "auto" and not self.command.trains else {}
        model, self.tokenizer = loading.load(given["model"], **spread, **parts)
        self.arguments["model"] = model if spread else loading.place(model, given["device"])
        if "PreTrainedTokenizerBase" in signature(self.command.function).types():
            self.arguments["tokenizer"] = self.tokenizer
        if (make := self.command.makes.get(str(given.get("corpus")))) is not None:
            self.arguments["corpus"] = make(self)


def _check_read(rule: Rule, given: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    """Raise ValueError for an option that differs from its default, but is not read with the values of the others."""
    unread = [name for name in rule[0] if given[name] != parameters[name].default]
    needed = {name: values for name, values in rule[1].items() if name in parameters}
    typed = {name: [] if given[name] is None else names(str(given[name])) for name in needed}
    if unread and not any({*typed[name]} & {*(values or typed[name])} for name, values in needed.items()):
        texts = ", or ".join(f"{name}={' or '.join(values)}" for name, values in needed.items())
        raise ValueError(f"{unread[0]}= requires {texts}")


def _converted(parameter: Parameter, value: Any) -> Any:
    """Return an argument from what was typed: names split at commas, thresholds as a dictionary."""
    items = next((text for text in parameter.types if text.startswith("Sequence")), "")
    if isinstance(value, str) and items and "str" not in parameter.types:
        return names(value)
    if "Mapping[str, float]" in parameter.types:
        return dict(value or ()) or None
    return int(value) if parameter.name == "keep" and isinstance(value, float) and value.is_integer() else value


def trainer(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of transformers' Trainer that were given and have an effect; others are not in provenance."""
    without = {"warmup": None, "smoothing": 0.0, "sampling": SAMPLING}
    return {TRAINER[name]: given[name] for name in TRAINER if given[name] != without[name]}


def command_line() -> str:
    """Return the command as it was typed, for the cards of models and the records of artefacts."""
    return shlex.join(["headroles", *sys.argv[1:]])


def names(text: str) -> list[str]:
    """Split names at commas, which the library checks."""
    return [name.strip() for name in text.split(",")]


def numbers(text: str) -> tuple[float, ...]:
    """Parse numbers of heads, or shares."""
    return tuple(int(part) if part.strip().isdigit() else float(part) for part in text.split(","))


def threshold(text: str) -> tuple[str, float]:
    """Parse a text such as positional=0.8."""
    role, _, value = text.partition("=")
    return role, float(value)


def strategy_of(name: str, gate_rate: float | None, freeze: Freeze, role_scores: Path | None) -> str | Strategy:
    """Return the strategy of a name: gates with their options, roles from a score table."""
    from headroles.pruning.learned_gates import L0
    from headroles.pruning.rankings import ByRoles
    from headroles.tables.io import load_table

    if name in LEARNED:
        return L0(rate=gate_rate, freeze=freeze)
    return name if name != "roles" or role_scores is None else ByRoles(load_table(role_scores))


# --- signatures of functions, read from their source ------------------------------------------------------------------

# To import a function loads PyTorch and transformers, which takes seconds, and its help needs none of it. So names,
# types and defaults of parameters are read from the syntax tree of its module, and their help from its docstring.
# Types are kept as texts; an alias, such as a Literal or a union of another module, is followed to where it stands.


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
    """Read the signature of a public function, such as `score` or `papers.reproduce`; importing it takes seconds."""
    module, _, last = f"headroles.{name}".rpartition(".")
    module, node = _find(module, last)
    assert isinstance(node, ast.FunctionDef)
    document = ast.get_docstring(node) or ""
    texts, given = dict(_described(document)), node.args
    defaults = [*[None] * (len(given.args) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    parameters = {
        part.arg: Parameter(part.arg, tuple(_types(module, part.annotation)), _value(module, default), texts[part.arg])
        for part, default in zip(given.args + given.kwonlyargs, defaults, strict=True)
        if part.arg in texts
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
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in map(ast.unparse, targets):
                return module, node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    source = f"{module}.{node.module}" if node.level else str(node.module)
                    return _find(source, alias.name) if source.startswith("headroles") else (source, node)
    raise LookupError(f"no {name!r} in {module}")


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


def _value(module: str, node: ast.expr | None) -> object:
    """Return a default; a named constant is followed to its value."""
    if node is None:
        return REQUIRED
    try:
        if isinstance(node, ast.Name):
            source, definition = _find(module, node.id)
            return _value(source, definition.value) if hasattr(definition, "value") else UNKNOWN
        return ast.literal_eval(node)
    except (ValueError, LookupError):
        return UNKNOWN


def _described(document: str) -> Iterator[tuple[str, str]]:
    """Yield the names in the section `Args` of a docstring, each with the first sentence about it."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", document, flags=re.MULTILINE)
    for name, text in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", flags=re.MULTILINE):
        first = SENTENCE.split(" ".join(text.split()))[0].replace("`", "")
        yield name, first[:1].upper() + first[1:]
