"""The command line: each subcommand parses its arguments, makes one public call and prints what it wrote."""

from __future__ import annotations

import io
import logging
import os
import sys
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

import typer

from headroles import _distributed
from headroles.cli.advice import advice
from headroles.cli.commands import COMMANDS
from headroles.cli.console import draws
from headroles.cli.summary import summarised
from headroles.tables.frame import visible


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headroles {version('headroles')}")
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Analyse, ablate and prune the attention heads of Hugging Face models.",
)
USAGE_ERROR: Any = typer.BadParameter.__base__  # of words that are no command, argument or option
for heading, commands in COMMANDS.items():
    for command in commands:
        app.command(command.name.replace("_", "-"), rich_help_panel=heading)(summarised(command))


@app.callback()
def start(
    asked: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    figures: Annotated[
        bool,
        typer.Option("--figures/--no-figures", show_default=False, help="Draw figures after measuring."),
    ] = False,
) -> None:
    """Accept the options that come before a command."""
    draws.set(figures)


def main() -> None:
    """Run the command line; errors print one line and exit with code 2, or a traceback by HEADROLES_TRACEBACK=1."""
    _set_up()
    try:
        code = _command()(prog_name="headroles", standalone_mode=len(sys.argv) == 1)  # without words it shows the help
        sys.exit(_fail("interrupted; finished tables are kept", 130) if code == 130 else code)
    except USAGE_ERROR as error:
        sys.exit(_fail(_usage(error), 2))
    except MemoryError:
        sys.exit(_fail("not enough memory; fewer tokens at once (--max-tokens, --batch), or sentences, need less", 2))
    except (OSError, ValueError, TypeError, KeyError, ImportError, RuntimeError) as error:
        if os.environ.get("HEADROLES_TRACEBACK"):
            raise
        message = " ".join(str(error.args[0] if isinstance(error, KeyError) else error).split())
        sys.exit(_fail(advice(message, _name()), 2))


def _name() -> str:
    """The name of the command that was typed; "" without one."""
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _set_up() -> None:
    """Set up streams and what is logged to them."""
    level = logging.WARNING if _distributed.first() else logging.ERROR  # one process warns for all
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("headroles: %(message)s"))
    handler.addFilter(_Once())
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("huggingface_hub").propagate = False  # it writes its messages itself
    logging.getLogger("transformers.modeling_utils").addFilter(_no_report)
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be text


def _no_report(record: logging.LogRecord) -> bool:
    """Leave out transformers' tables of unexpected and missing weights; loading says in a sentence what is wrong."""
    return "LOAD REPORT" not in record.getMessage()


class _Once(logging.Filter):
    """Shows a message once: commands of many steps warn of the same thing in many of them."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record has a new message."""
        new = (message := record.getMessage()) not in self.shown
        self.shown.add(message)
        return new


class _Formatter(logging.Formatter):
    """Messages in the words of the command, without characters that steer a terminal, in names of files or columns."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        return visible(advice(super().format(record), _name()))


def _usage(error: Any) -> str:
    """Return a usage error in one sentence, with the command for its help."""
    message = " ".join(error.format_message().split()).rstrip(".?")
    for theirs, ours in (("Value error, ", ""), (": Input", ": input"), (". Did you", "; did you")):
        message = message.replace(theirs, ours)
    where = error.ctx.command_path if error.ctx else "headroles"
    return f"{message[:1].lower()}{message[1:]}; try {where} --help"


@cache
def _command() -> Any:
    """The parser of all commands, which takes longer to make than a small command does."""
    command = typer.main.get_command(app)
    for option in command.params:
        option.hidden = "completion" in str(option.name)  # type: ignore[attr-defined]
    return command


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"headroles: {visible(message)}\n")
    return code
