"""A command is a public function: of its name, with its parameters, defaults and words, read without importing it."""

from __future__ import annotations

import inspect
import operator
from typing import get_args

import pytest
import typer
from helpers.commands import run

import headroles as hr
from headroles.cli import main
from headroles.cli.signatures import REQUIRED, UNKNOWN, signature

COMMANDS = {command.name: command for commands in main.COMMANDS.values() for command in commands}
PARSED = typer.main.get_command(main.app).commands  # type: ignore[attr-defined]


def function_of(name):
    return operator.attrgetter(COMMANDS[name].function)(hr)


def test_a_command_has_the_name_of_its_function_and_there_are_at_most_twenty():
    assert len(COMMANDS) <= 20
    assert [name.replace("-", "_") for name in PARSED] == [*COMMANDS]
    for name in COMMANDS:
        assert inspect.unwrap(function_of(name)).__name__ == name


def test_the_help_fits_a_screen():
    assert len(run("--help").out.splitlines()) <= 40


@pytest.mark.parametrize("name", COMMANDS)
def test_a_signature_read_from_the_source_is_that_of_the_function(name):
    function = inspect.unwrap(function_of(name))
    parameters = dict(inspect.signature(function).parameters)
    read = signature(COMMANDS[name].function)
    assert (function.__doc__ or "").startswith(read.summary.removesuffix("."))
    assert [*read.parameters] == [
        one for one in parameters if parameters[one].kind is not inspect.Parameter.VAR_KEYWORD
    ]
    for key, parameter in read.parameters.items():
        default = parameters[key].default
        if parameter.default is not UNKNOWN:
            assert parameter.default is (REQUIRED if default is inspect.Parameter.empty else parameter.default)
            assert default is inspect.Parameter.empty or parameter.default == default
        assert parameter.help


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_has_the_default_of_its_parameter(name):
    command = COMMANDS[name]
    read = signature(command.function).parameters
    for option in PARSED[name.replace("_", "-")].params:
        if option.name in command.defaults or option.name in ("study", "model", "overwrite") or option.name not in read:
            continue
        expected = read[option.name].default
        expected = ",".join(map(str, expected)) if isinstance(expected, tuple) else expected
        if expected not in (REQUIRED, UNKNOWN) and option.name not in ("folders",):
            assert option.default == expected, option.name


def test_a_literal_alias_is_followed_to_where_it_stands():
    from headroles.ablation.units import Unit, Word
    from headroles.pruning.removal import Groups

    read = {name: signature(name).parameters for name in ("ablate", "remove_heads", "relate")}
    assert read["ablate"]["unit"].choices == get_args(Unit)
    assert read["ablate"]["replacement"].choices == get_args(Word)
    assert read["remove_heads"]["groups"].choices == get_args(Groups)
    assert read["relate"]["kinds"].types == ("Sequence[Literal('enc-self', 'dec-self', 'cross')]", "None")
    with pytest.raises(LookupError, match=r"^no 'nothing' in headroles$"):
        signature("nothing")
