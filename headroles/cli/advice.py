"""Messages of the library in the words of the command line: options for arguments, commands for functions."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from typer.models import OptionInfo

from headroles.cli.commands import COMMANDS
from headroles.cli.options import Command

BY_NAME = {command.name: command for commands in COMMANDS.values() for command in commands}
# Python in a message: a public function, with or without its arguments; a class with arguments; one argument, with or
# without its value. What stands around it says how it is typed: "in Python" that it cannot be a word of the command
# line, "(--flag)" that the flag replaces it.
CODE = re.compile(
    r"(?P<before>in Python )?"
    r"(?:\b(?:hr|headroles)\.(?P<function>\w+(?:\.\w+)*)(?:\((?P<arguments>(?:[^()]|\([^()]*\))*)\))?"
    r"|\b[A-Z]\w*\([^()]*\w=[^()]*\)"
    r"|(?<![\w./=-])(?P<name>[a-z]\w*)=(?P<value>'[^']*'|\"[^\"]*\"|[\w.+-]*\w|)(?![\w/=]))"
    r"(?P<after> in Python| \(--[^()]*\))?"
)
SUBJECT = re.compile(r"^\w+(?= must be )")
ARGUMENT = re.compile(r"(\w+)=([^,]*)")


def advice(message: str, name: str) -> str:
    """Return a message of the library in the words of a command: `keep=0.5` as `--keep 0.5`, hr.parse as a command.

    "in Python" is added to what only Python can do.
    """
    command = BY_NAME.get(name.replace("-", "_"))
    flags = {} if command is None else _flags(command)
    if "strategy" in flags:  # the objective of a ranking cannot be chosen
        message = message.replace("the objective 'similarity' (objective=)", "--strategy confidence")
    message = SUBJECT.sub(lambda match: flags.get(match[0], match[0]), message)
    return CODE.sub(lambda match: _spoken(match, flags), message)


def _spoken(match: re.Match[str], flags: Mapping[str, str]) -> str:
    code, name, after = match[0], match["name"], match["after"] or ""
    if match["before"] or after == " in Python" or f" {code}" in f" {' '.join(sys.argv)}":
        return code  # it says so itself, or was typed
    if name in flags:
        return _given(flags[name], match["value"])
    if after:  # has the options
        return after[2:-1]
    if name is not None:
        return code if match["value"] else f"{code} in Python"
    return _called(match["function"], match["arguments"] or "") or f"{code} in Python"


def _called(function: str | None, text: str) -> str | None:
    """Translate a call into a command, if the function has one with options for all given arguments."""
    if function not in BY_NAME:
        return None
    flags, given = _flags(BY_NAME[function]), ARGUMENT.findall(text)
    options = [_given(flags[name], value) for name, value in given if name in flags]
    words = [f"headroles {function.replace('_', '-')}", *options]
    return " ".join(words) if len(options) == len(given) else None


def _given(flag: str, value: str) -> str:
    """Return an option with its value; of two flags one is for True, the other for False."""
    value = value.strip("'\"")
    yes, _, no = flag.partition("/")
    if value in ("True", "False"):
        return yes if value == "True" else no or f"no {yes}"
    return f"{yes} {value}".rstrip()


def _flags(command: Command) -> dict[str, str]:
    """Return the flag of each parameter that a command has as an option."""
    made = {parameter.name: parameter.annotation.__metadata__[0] for parameter in command.parameters()}
    return {name: str(info.default) for name, info in made.items() if isinstance(info, OptionInfo)}  # kept there
