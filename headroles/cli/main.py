"""The command line: each subcommand parses its arguments, makes one public call and prints what it wrote."""

from __future__ import annotations

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
) -> None:
    """Accept the options that come before a command."""


def main() -> None:
    """Run the command line; errors print one line and exit with code 2, or a traceback by HEADROLES_TRACEBACK=1."""
    _set_up()
    try:
        code = _command()(prog_name="headroles", standalone_mode=False)
        sys.exit(_fail("interrupted: run it again to continue", 130) if code == 130 else code)
    except USAGE_ERROR as error:
        error.show()
        sys.exit(2)
    except (OSError, ValueError, TypeError, KeyError, ImportError, RuntimeError) as error:
        if os.environ.get("HEADROLES_TRACEBACK"):
            raise
        sys.exit(_fail(" ".join(str(error.args[0] if isinstance(error, KeyError) else error).split()), 2))


def _set_up() -> None:
    """Set up streams and what is logged to them."""
    level = logging.WARNING if _distributed.first() else logging.ERROR  # one process warns for all
    logging.basicConfig(level=level, format="%(message)s", handlers=[_Messages()])
    logging.getLogger(_distributed.__name__).setLevel(logging.INFO)  # lines of progress
    logging.getLogger("huggingface_hub").propagate = False  # it writes its messages itself
    tables = logging.getLogger("transformers.modeling_utils")  # of missing weights: `load` warns of them in a sentence
    tables.addFilter(lambda record: "LOAD REPORT" not in record.getMessage())
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


class _Messages(logging.StreamHandler[Any]):
    """Handler that writes each message once: commands with many steps would repeat their warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record has a new message."""
        count = len(self.shown)
        self.shown.add(record.getMessage())
        return len(self.shown) > count

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        return _line(super().format(record))


def _line(message: str) -> str:
    """Translate a message for the command line, with control characters in names escaped."""
    return f"headroles: {visible(advice(message, next(iter(sys.argv[1:]), '')))}"


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"{_line(message)}\n")
    return code


@cache
def _command() -> Any:
    """Build the parser of all commands, which takes longer than running a small command."""
    command = typer.main.get_command(app)
    for option in command.params:
        option.hidden = "completion" in str(option.name)  # type: ignore[attr-defined]
    return command
