"""The end of every command: what was left out, the next commands to try, and --json."""

from __future__ import annotations

import inspect
import json
import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from logging.handlers import BufferingHandler
from string import Formatter

from headroles.cli import commands
from headroles.cli.advice import advice
from headroles.cli.console import Record, recording, say, the_console
from headroles.cli.options import Command, option, signature
from headroles.tables.columns import on_repeated

REPORT = "headroles report {study}"
LOADED = ("source_lang", "target_lang", "cls", "submodel", "dtype", "limit", "sample", "allow_random")  # as before
READ = ("chat", "links")  # of the same corpus
NEXT = {  # function of a command -> the next commands to try, if all their words are known
    "parse": ["headroles score MODEL {output} --study study"],
    "score": [
        "headroles ablate {model} {corpus} {target} --metric {works} --study {study}",
        "headroles test-roles {model} CORPUS --metric {tests} --study {study}",
        REPORT,
    ],
    "ablate": [
        "headroles relate {related} {related} --study {related}",
        "headroles score {model} {corpus} {target} --study {unscored}",
        REPORT,
    ],
    "train": ["headroles score {folder} {corpus} {target} --study study"],
    "remove_heads": ["headroles score {output} CORPUS --study smaller-study"],
    "check_model": ["headroles score {model} CORPUS --study study"],
    "demo": ["headroles score minilm CORPUS --study mine"],
    "roles": ["headroles test-roles MODEL CORPUS --study {table}", "headroles report {table}"],
    **dict.fromkeys(("plot", "test_roles", "ablation_curve", "relate", "cache_budget", "compare_pruning"), [REPORT]),
    "sparsity_sweep": ["headroles score {smallest} CORPUS --study smaller-study", REPORT],
}


def summarised(command: Command) -> Callable[..., None]:
    """Return the function of a command for typer, which ends with what was left out and the next commands to try."""

    def run(*, as_json: bool, **given: object) -> None:
        with recording(quiet=as_json) as record:
            with redirect_stdout(sys.stderr if as_json else sys.stdout), _collected() as warnings:
                commands.run(command, given)
            record.warnings = list(dict.fromkeys(advice(entry.getMessage(), command.name) for entry in warnings.buffer))
            record.left_out = {name: advice(reason, command.name) for name, reason in record.left_out.items()}
            following = list(_following(command.name, {**given, **record.words}))
            if as_json:
                _write(record, following)
            else:
                _show(record, following)

    json = option("as_json", bool, False, "Print the result as one JSON object, and nothing else.", "--json")
    drawn = option("figures", bool, False, "Draw figures after measuring.")
    run.__dict__["__signature__"] = inspect.Signature([*command.parameters(), *[drawn] * command.keeps, json])
    run.__name__, run.__doc__ = command.name, signature(command.function).summary.replace("`", "")
    return run


@contextmanager
def _collected() -> Iterator[BufferingHandler]:
    """Collect the warnings that headroles logs within the block."""
    handler, log = BufferingHandler(sys.maxsize), logging.getLogger("headroles")
    handler.setLevel(logging.WARNING)
    log.addHandler(handler)
    try:
        yield handler
    finally:
        log.removeHandler(handler)


def _following(name: str, arguments: dict[str, object]) -> Iterator[str]:
    """Yield the next commands to try, with the arguments of this one; files not known yet are in capitals."""
    words = {key: "" if value is None else shlex.quote(str(value)) for key, value in arguments.items()}
    for template in NEXT.get(name, ()):
        if not {key for _, key, _, _ in Formatter().parse(template) if key} <= {*words}:
            continue
        kept = filter(arguments.get, (*LOADED * ("{model}" in template), *READ * ("{corpus}" in template)))
        more = [f"--{key.replace('_', '-')} {'' if arguments[key] is True else words[key]}".strip() for key in kept]
        text = " ".join([*template.format_map(words).split(), *more])
        yield on_repeated(text, words.get("families", "").split(",")) if " test-roles " in text else text


def _show(record: Record, following: Sequence[str]) -> None:
    """Print what was left out and why, unless a warning said so, and on a terminal the next commands to try."""
    left_out = {what: why for what, why in record.left_out.items() if f"{what}: {why}" not in record.warnings}
    for reason in dict.fromkeys(left_out.values()):
        say(f"left out: {', '.join(what for what, why in left_out.items() if why == reason)}: {reason}")
    for line in (*record.last_lines, *(f"next: {command}" for command in following if the_console().is_terminal)):
        say(line)


def _write(record: Record, following: list[str]) -> None:
    """Write what a command printed as one JSON object."""
    result = {
        "command": ["headroles", *sys.argv[1:]],
        "headroles": version("headroles"),
        "tables": record.tables,
        "lines": [*record.lines, *record.last_lines],
        "warnings": record.warnings,
        "left_out": record.left_out,
        "next": following,
    }
    sys.stdout.write(json.dumps(result, indent=1) + "\n")  # in ASCII: names steer no terminal
