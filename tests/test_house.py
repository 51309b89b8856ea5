"""The house rules, held over the source: what may import what, how long things are, what they are called."""

from __future__ import annotations

import ast
import importlib
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import headroles

ROOT = Path(headroles.__file__).parent
FLOORS: tuple[tuple[str, ...], ...] = (  # a module imports only from the floors before its own
    ("processes",),
    ("text", "heads", "lexicon", "progress", "seam", "corrections", "layered", "frames", "towers", "miniatures",
     "conformance.table"),
    ("hub", "sharing"),
    ("papers", "papers.verdict", "papers.bench", "papers.printed"),
    ("site", "bias"),
    ("resize",),
    ("models",),
    ("probe", "pieces", "conllu", "toy", "repeats", "role", "study"),
    ("discovery",),
    ("families", "side", "corpus", "maps"),
    ("batches",),
    ("streams",),
    ("pages", "relation"),
    ("prediction", "logistic", "succession"),
    ("meeting",),
    ("gates", "watch", "parsing", "flows", "outcomes", "survivors", "trends", "outputs", "lrp.operations",
     "lrp.rules", "reports.sources", "reports.wording"),
    ("forests",),
    ("plots", "objectives", "attended", "reports.contents", "papers.material"),
    ("pictures", "reports.exhibits"),
    ("reports.page",),
    ("papers.reproduced", "papers.voita_claims", "papers.michel_claims", "papers.budhraja_claims"),
    ("papers.voita2019", "papers.michel2019", "papers.budhraja2020"),
    ("papers.running",),
    ("reports",),
    ("marian", "tokenised"),
    ("prepared",),
    ("lrp.alphabeta",),
    ("lrp.methods",),
    ("lrp.mode",),
    ("lrp.ledger",),
    ("lrp", "scores.base"),
    ("scores.gradient",),
    ("scores.induction",),
    ("scores.alignment", "scores.attribution", "scores.book", "scores.confidence", "scores.distance",
     "scores.duplicate", "scores.entropy", "scores.importance", "scores.position", "scores.rarity", "scores.relevance",
     "scores.sink", "scores.syntax"),
    ("scores.flow",),
    ("scores.run",),
    ("scores",),
    ("survey", "translator", "attribution", "replay", "metrics.base", "screen"),
    ("metrics.choosing", "metrics.writing"),
    ("metrics",),
    ("examples",),
    ("variants", "significance"),
    ("sweep",),
    ("curves", "evaluation", "stopping"),
    ("ablation", "comparison", "training"),
    ("pruning", "pruning.layout", "pruning.learnt"),
    ("pruning.cutting", "pruning.compensation", "pruning.l0", "pruning.order"),
    ("pruning.run", "pruning.trials"),
    ("pruning.sizes", "pruning.contest"),
    ("costs", "course", "papers.looking", "conformance.case"),
    ("conformance.by_hand",),
    ("conformance.seeing", "conformance.closing", "conformance.relevance", "conformance.cutting"),
    ("conformance.run",),
    ("conformance.zoo", "conformance"),
    ("papers.making",),
    ("papers.tiny",),
    ("recipe",),
    ("forecast",),
    ("replication",),
    ("asked", "demo", "checks"),
    ("experiments",),
    ("reductions", "reproduction"),
    ("replications",),
    ("cli",),
    ("__main__",),
)  # fmt: skip
FRONT = "headroles"  # the package itself names everything and imports nothing before it is asked for
PLUG_INS = {  # what is looked for when it is asked for
    ("scores.base", "scores"),  # `known` looks for scores in the files beside it
}
WITHOUT_TORCH = (
    *("text", "heads", "hub", "sharing", "lexicon", "conllu", "corpus", "streams", "role", "study"),
    *("maps", "flows", "outcomes", "survivors"),
    *("trends", "plots", "corrections", "layered", "relation", "prediction"),
    *("logistic", "succession", "meeting", "forests", "pictures", "frames"),
    *("reports", "reports.page", "reports.contents", "reports.exhibits", "reports.sources", "reports.wording"),
    *("papers", "papers.bench", "papers.printed", "papers.reproduced", "papers.running"),
    *("papers.verdict", "papers.material", "papers.voita_claims", "papers.michel_claims", "papers.budhraja_claims"),
    *("papers.voita2019", "papers.michel2019", "papers.budhraja2020"),
)
HEAVY = {"torch", "transformers", "stanza", "captum", "matplotlib", "seaborn", "sacrebleu", "accelerate", "jinja2"}
LONGEST_FILE, LONGEST_FUNCTION, MEDIAN, NINTH_DECILE = 260, 50, 8, 25
SAY_NOTHING = {"utils", "helpers", "manager", "process"}  # names
BROAD = {  # where `except Exception` is, and what the comment beside it says
    "parsing": "Stanza raises many kinds",
    "conformance.run": "a model may raise anything",
    "watch": "a model's own code meets a mask that is no tensor",
    "models": "besides transformers', those of safetensors and of tokenizers",
}
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
} | {FRONT: ROOT / "__init__.py"}
FILES.pop("__init__", None)
MODULES = sorted(set(FILES) - {FRONT})


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text())


def floor(module: str) -> int:
    return next(number for number, modules in enumerate(FLOORS) if module in modules)


def imported(module: str, *, when_loaded: bool = False) -> Iterator[str]:
    """The modules of this package that `module` imports; `when_loaded`: not those inside functions or for types."""
    for node in _statements(tree(module), when_loaded):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("headroles.") for alias in node.names if _ours(alias.name))
        elif isinstance(node, ast.ImportFrom) and _ours(node.module or ""):
            room = (node.module or "").removeprefix("headroles").removeprefix(".")
            for alias in node.names:
                inside = f"{room}.{alias.name}".removeprefix(".")
                yield inside if inside in FILES else room or FRONT


def outside(module: str) -> set[str]:
    """The packages of others that are imported when `module` is loaded."""
    found: set[str] = set()
    for node in _statements(tree(module), when_loaded=True):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def _ours(name: str) -> bool:
    return name.partition(".")[0] == "headroles"


def _statements(node: ast.AST, when_loaded: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if when_loaded and (for_types or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            continue
        yield child
        yield from _statements(child, when_loaded)


def functions(module: str) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree(module)) if isinstance(node, ast.FunctionDef))


def length(function: ast.FunctionDef, lines: list[str]) -> int:
    """Lines of code of a function: without its docstring, comments and blank lines."""
    first = function.body[0]
    docstring = range(0)
    if ast.get_docstring(function) is not None:
        docstring = range(first.lineno, (first.end_lineno or 0) + 1)
    own = [i for i in range(function.lineno, (function.end_lineno or 0) + 1) if i not in docstring]
    return sum(bool(lines[i - 1].strip()) and not lines[i - 1].strip().startswith("#") for i in own)


LENGTHS = {
    f"{module}.{function.name}": length(function, FILES[module].read_text().splitlines())
    for module in FILES
    for function in functions(module)
}


def test_every_module_has_its_floor_and_one_only():
    listed = [module for modules in FLOORS for module in modules]
    assert len(listed) == len(set(listed))
    assert set(MODULES) <= set(listed)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    for other in imported(module):
        assert floor(other) < floor(module) or (module, other) in PLUG_INS, f"{module} imports {other}"


def test_the_front_door_imports_nothing_when_loaded():
    assert list(imported(FRONT, when_loaded=True)) == []
    assert outside(FRONT) <= {"importlib", "typing"}


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_torch_stops_at_the_line(module):
    """Neither by itself nor by anything it imports, also not inside a function or for types."""
    seen, ahead = set(), {module}
    while ahead:
        one = ahead.pop()
        seen.add(one)
        ahead |= set(imported(one)) - seen
    assert seen <= set(WITHOUT_TORCH)
    packages = {name for one in seen for node in ast.walk(tree(one)) for name in _packages(node)}
    assert not packages & {"torch", "transformers", "captum", "stanza"}


def _packages(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    return {(node.module or "").partition(".")[0]} if isinstance(node, ast.ImportFrom) else set()


def test_in_a_fresh_interpreter_torch_is_not_loaded_either():
    code = f"import sys, headroles; [__import__('headroles.' + name) for name in {WITHOUT_TORCH}]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & HEAVY


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_are_imported_where_they_are_used(module):
    assert not outside(module) & (HEAVY - {"torch", "transformers"})


@pytest.mark.parametrize("module", FILES)
def test_no_file_is_long(module):
    assert len(FILES[module].read_text().splitlines()) <= LONGEST_FILE


def test_functions_are_short():
    assert {name: lines for name, lines in LENGTHS.items() if lines > LONGEST_FUNCTION} == {}
    assert statistics.median(LENGTHS.values()) <= MEDIAN
    assert statistics.quantiles(LENGTHS.values(), n=10)[-1] <= NINTH_DECILE


@pytest.mark.parametrize("module", FILES)
def test_the_first_line_says_in_one_sentence_what_a_file_is(module):
    first = (ast.get_docstring(tree(module)) or "").splitlines()[0]
    assert re.fullmatch(r"[A-Z`].*[.?:]", first)
    assert not re.search(r"[.?] [A-Z]", first)
    assert ast.get_docstring(tree(module)) == first or not (ast.get_docstring(tree(module)) or "").splitlines()[1]


@pytest.mark.parametrize("module", FILES)
def test_nothing_is_printed_or_left_to_do(module):
    calls = [node.func for node in ast.walk(tree(module)) if isinstance(node, ast.Call)]
    assert not [call.lineno for call in calls if isinstance(call, ast.Name) and call.id in ("print", "breakpoint")]
    assert not re.findall(r"\b(TODO|FIXME|XXX|HACK)\b", FILES[module].read_text())


@pytest.mark.parametrize("module", FILES)
def test_names_say_something(module):
    names = set(module.split("."))
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    assert not {word for name in names for word in name.lower().strip("_").split("_")} & SAY_NOTHING


@pytest.mark.parametrize("module", FILES)
def test_errors_are_caught_by_their_kind(module):
    lines = FILES[module].read_text().splitlines()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ExceptHandler):
            kinds = ast.unparse(node.type) if node.type else "everything"
            if re.search(r"\b(everything|Exception|BaseException)\b", kinds):
                assert module in BROAD, f"line {node.lineno} catches {kinds}"
                assert BROAD[module] in lines[node.lineno - 1].partition("#")[2]


@pytest.mark.parametrize("module", FILES)
def test_nothing_that_is_read_can_run(module):
    """No pickles and no code of a checkpoint: weights are safetensors, tables and arrays are plain numbers."""
    pickles = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    runs = {"eval", "exec", "compile", "__import__", "torch.load", "pd.read_pickle", "np.loads"}
    safe = {"trust_remote_code": "False", "allow_pickle": "False", "weights_only": "True", "shell": "False"}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            assert not {name.partition(".")[0] for name in names} & pickles
        elif isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in runs
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert all(given.get(name, value) == value for name, value in safe.items())
            assert ast.unparse(node.func) != "np.load" or "allow_pickle" in given


@pytest.mark.parametrize(
    "module", sorted(set(FILES) - {"cli", "experiments", "reductions", "replications", "reproduction"})
)  # whose arguments typer passes by name
def test_a_bare_true_or_false_cannot_be_an_argument(module):
    """What is on or off is said by name at the call."""
    for function in functions(module):
        given = function.args.posonlyargs + function.args.args
        switches = [
            arg.arg
            for arg, default in zip(given[::-1], function.args.defaults[::-1], strict=False)
            if isinstance(default, ast.Constant) and isinstance(default.value, bool)
        ]
        assert not switches, f"{function.name}({', '.join(switches)})"


def test_what_is_public_is_said_three_times_alike():
    for_types = next(node for node in tree(FRONT).body if isinstance(node, ast.If))
    rooms = {
        alias.name: (node.module or "").removeprefix("headroles.")
        for node in for_types.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert rooms == headroles._ROOMS
    assert headroles.__all__ == sorted([*headroles._ROOMS, *headroles._MODULES])
    assert set(headroles._MODULES) <= set(MODULES)


@pytest.mark.parametrize("name", headroles.__all__)
def test_every_public_name_is_there(name):
    found = getattr(headroles, name)
    room = headroles._ROOMS.get(name, name)
    module = importlib.import_module(f"headroles.{room}")
    assert found is (getattr(module, name) if name in headroles._ROOMS else module)


def test_a_name_that_is_not_public_is_refused():
    message = f"module 'headroles' has no attribute 'nonsense'; known: {', '.join(headroles.__all__)}"
    with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
        headroles.nonsense  # noqa: B018


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"__main__"}))  # which runs when it is imported
def test_a_list_of_public_names_is_complete(module):
    """`__all__`, where a module has one, names what is there and nothing hidden."""
    loaded = importlib.import_module(f"headroles.{module}")
    for name in getattr(loaded, "__all__", ()):
        assert hasattr(loaded, name)
        assert not name.startswith("_")
