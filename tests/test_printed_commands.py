"""Every command line, file and Python name that the documentation prints exists; commands are parsed and not run."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import json
import operator
import re
import runpy
import shlex
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import typer

from headroles.cli.main import USAGE_ERROR
from headroles.tables.columns import TABLES

ROOT = Path(__file__).resolve().parents[1]
DATED = re.compile(r"PLAN\.md")  # plans of studies, whose words stay as they were registered
PLACEHOLDERS = {"SEED": "0", "STEP": "1", "ARM": "A"}
MADE = {".docs/_build/html", "tests/heads.parquet"}  # by a command beside it
SEPARATORS = re.compile(r"[;|&<>()]+")


def _strings(path: Path) -> Iterator[str]:
    """The texts of a file: all of a page, docstrings of a script, cells and outputs of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield text
    elif path.suffix == ".toml":  # the commands of studies that are made again
        studies = tomllib.loads(text)["study"].values()
        tables = [table for study in studies for table in study.get("table", [])]
        yield from (f"```\n{table['command']}\n```" for table in tables)
    elif path.suffix == ".py":
        nodes = (ast.Module, ast.FunctionDef, ast.ClassDef)
        yield from (ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, nodes))
    else:
        for cell in json.loads(text)["cells"]:
            outputs = "".join("".join(output.get("text", "")) for output in cell.get("outputs", ()))
            source = "".join(cell["source"])
            yield from (source if cell["cell_type"] == "markdown" else f"```\n{source}\n{outputs}\n```",)


def _paths() -> list[Path]:
    pages = [path for path in (ROOT / ".docs").rglob("*.md") if not {"generated", "_build"} & {*path.parts}]
    figures = [path for path in (ROOT / "figures").rglob("*.md") if not DATED.search(path.name)]
    figures.append(ROOT / "figures/studies.toml")
    scripts = [*(ROOT / "figures").rglob("*.py"), *(ROOT / "tests/tools").glob("*.py")]
    roots = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    return sorted([*roots, *pages, *figures, *scripts, *(ROOT / "notebooks").glob("*.ipynb")])


TEXTS = {str(path.relative_to(ROOT)): "\n\n".join(_strings(path)) for path in _paths()}
FENCED = re.compile(r"^(?:>>> )?```.*?\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def _code(text: str) -> list[tuple[bool, str]]:
    """Code of a text: lines of fenced and indented blocks, joined where a backslash ends them, and spans."""
    blocks = FENCED.findall(text)
    rest = FENCED.sub("\n", text)
    blocks += re.findall(r"(?:^(?: {4}).*\n?)+", rest, flags=re.MULTILINE)
    lines = [line for block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", rest))
    return [*((True, line) for line in lines), *((False, span) for span in spans)]


def _commands(code: str) -> Iterator[list[str]]:
    """The words of each command in a line of a shell, without variables before it and comments after it."""
    lexer = shlex.shlex(code, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = [*lexer]
    except ValueError:  # an apostrophe: no line of a shell
        return
    command: list[str] = []
    for word in [*words, ";"]:
        if not SEPARATORS.fullmatch(word):
            command += [word] if command or not re.fullmatch(r"\w+=.*", word) else []
        elif command:
            yield command
            command = []


@functools.cache
def _ours() -> Any:
    from headroles.cli.main import app

    return typer.main.get_command(app)


@functools.cache
def _script(path: str) -> Any:
    """The real parser of a script, which is imported under another name than `__main__`, and so does nothing."""
    folder = ROOT / Path(path).parent
    beside = {file.stem for file in folder.glob("*.py")}
    others = {name: sys.modules.pop(name) for name in beside & {*sys.modules}}  # such as the package `coverage`
    try:
        with mock.patch.object(sys, "path", [str(folder), *sys.path]):
            names = runpy.run_path(str(ROOT / path), run_name="printed")
    finally:
        for name in beside & {*sys.modules}:
            del sys.modules[name]
        sys.modules.update(others)
    app = names.get("app")
    if app is None:
        app = typer.Typer()
        app.command()(names.get("main", lambda: None))  # some take nothing
    return typer.main.get_command(app)


def _program(words: list[str], earlier: bool) -> tuple[Any, list[str]]:
    """The parser of a command, and its words after the program; without `headroles` only where options say so."""
    for number, word in enumerate(words):
        before = words[:number]
        if word.split("/")[-1] == "headroles" and (not before or before[-1] == "-m"):
            return _ours(), words[number + 1 :]
        if re.fullmatch(r"figures/[a-z0-9/_-]+\.py", word) and before in ([], ["python"]):
            return _script(word), words[number + 1 :]
    bare = words[0] in _ours().commands and any(word.startswith("--") for word in words)
    return (_ours(), words) if bare and not earlier else (None, [])


def _options(command: Any) -> set[str]:
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return options.union({"--help"}, *(_options(below) for below in getattr(command, "commands", {}).values()))


def _fault(command: Any, words: list[str], whole: bool) -> str:
    """What is wrong with a line of a shell, by the real parser; nothing is run."""
    words = [PLACEHOLDERS.get(word, word) for word in words if word != "--help"]
    while hasattr(command, "commands"):
        before = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        words = [*itertools.dropwhile(before.__contains__, words)]
        if not words or not re.search("[a-z]", words[0]):  # the program alone, or COMMAND
            return ""
        if words[0] not in command.commands:
            return f"no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    try:
        command.make_context("printed", words)
    except USAGE_ERROR as error:
        message = str(error.format_message())
        named = type(error).__name__ == "MissingParameter" or "requires an argument" in message
        return "" if named and not whole else message  # in a sentence a command is named without its arguments
    return ""


LINES = [
    (name, words, whole) for name, text in TEXTS.items() for whole, code in _code(text) for words in _commands(code)
]


def test_every_printed_command_is_understood_by_the_real_parser():
    read, faults = Counter[str](), []
    for name, words, whole in LINES:
        command, rest = _program(words, earlier=name == "figures/README.md")
        if command is not None:
            read[name] += 1
            faults += [(name, " ".join(words), fault)] if (fault := _fault(command, rest, whole)) else []
    assert faults == []
    assert read.total() > 200
    assert read.keys() >= {"README.md", ".docs/getting-started.md", "figures/README.md"}


def test_former_commands_and_options_are_noticed():
    for line, fault in {
        "headroles stability one two": "no command 'stability'",
        "X=1 headroles remove-heads MODEL L0H2 --zero": "No such option: --zero",
        "headroles prune MODEL text.txt --keep 36,24": "Invalid value for '--keep'",
        "headroles score MODEL": "Missing argument",
        "figures/engineering/quality/make.py nothing": "no command 'nothing'",
    }.items():
        (words,) = _commands(line)
        assert _fault(*_program(words, earlier=False), whole=True).startswith(fault)


def test_every_command_in_a_message_of_the_code_exists_with_its_options():
    written = {
        (path.name, text)
        for path in (ROOT / "headroles").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for text in re.findall(r"\bheadroles ([a-z][a-z-]+(?: [^`;]*)?)", node.value)
    }
    named = [(where, text.split()) for where, text in written if text.split()[0] in _ours().commands]
    assert len(named) > 25
    for where, (name, *rest) in named:
        options = {word.strip('".,') for word in rest if word.startswith("--")}
        assert options <= _options(_ours().commands[name]), (where, rest)


def test_every_command_that_makes_a_missing_table_is_whole():
    made = {table.made_with("my study") for table in TABLES.values() if table.command}
    assert "headroles relate 'my study' 'my study' --study 'my study'" in made
    assert [fault for text in made if (fault := _fault(*_program(shlex.split(text), earlier=False), whole=True))] == []


def test_every_option_alone_is_one_of_a_command():
    scripts = {name for name in TEXTS if name.startswith("figures/") and name.endswith("make.py")}
    known = _options(_ours()).union(*map(_options, map(_script, scripts)))
    for path in (ROOT / "tests/tools").glob("*.py"):
        known |= {*re.findall(r"add_argument\(\"(--[\w-]+)", path.read_text(encoding="utf-8"))}
    alone = {(name, words[0]) for name, words, whole in LINES if not whole and words[0].startswith("--")}
    assert len(alone) > 15
    assert {(name, option) for name, option in alone if option.partition("=")[0] not in known} == set()


def test_every_file_that_is_named_is_there():
    paths = {
        (name, path)
        for name, text in TEXTS.items()
        for path in re.findall(r"(?<![\w./$-])(?:(?:figures|tests|headroles|notebooks|\.docs|\.ci)/[\w./+-]+\w)", text)
        if not re.search(r"[A-Z]{2,}(?<!README)(?<!PLAN)", path)
    }
    assert len(paths) > 150
    assert sorted(found for found in paths if not (ROOT / found[1]).exists() and found[1] not in MADE) == []


def _resolves(name: str) -> bool:
    parts = ["headroles", *name.split(".")[1:]]
    for number in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:number]))
            operator.attrgetter(".".join(parts[number:]))(found) if parts[number:] else None
        except (ImportError, AttributeError):
            continue
        return True
    return False


def test_every_python_name_is_there():
    names = {
        (name, found)
        for name, text in TEXTS.items()
        for _, code in _code(text)
        for found in re.findall(r"(?<![\w./-])(?:hr|headroles)(?:\.[a-zA-Z]\w*)+(?![\w/]|\.\w)", code)
    }
    assert len(names) > 150
    assert sorted(pair for pair in names if not _resolves(pair[1])) == []
