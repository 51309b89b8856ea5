"""All checks on a tiny model of every known architecture, or of all others: `make.py data`, `tables`, `measure`."""

from __future__ import annotations

import multiprocessing
import resource
import sys
from pathlib import Path
from typing import Annotated

import architectures
import pandas as pd
import typer
from tqdm.auto import tqdm

import headroles as hr

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add  # noqa: E402 - of all studies

MEMORY, SECONDS = 8 << 30, 240  # the most that one model of `--others` may take, of memory and of a processor


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Architectures; all without.", show_default=False)] = None,
    output: Annotated[Path, typer.Option(help="Folder for the table.")] = Path(__file__).parent,
    others: Annotated[bool, typer.Option(help="All model types of transformers that are not in the table.")] = False,
) -> None:
    """Check architectures as tiny models, and write the table of results: families.* or others.*."""
    if names and output.resolve() == Path(__file__).resolve().parent:
        raise typer.BadParameter("a table of some architectures would replace that of all; try --output FOLDER")
    table = _others(names) if others else architectures.architectures(names or None)
    stem = "others" if others else "families"
    hr.save_table(table, output / f"{stem}.parquet")
    (output / f"{stem}.md").write_text(architectures.written(table, reasons=not others) + "\n", encoding="utf-8")


def _others(names: list[str] | None) -> pd.DataFrame:
    """Check every other model type in a process of its own, since some take all memory or never end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["architectures"])
    parts = []
    for name in tqdm(names or architectures.others()):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_one, args=(name, sender))
        process.start()
        sender.close()
        try:
            part = receiver.recv() if receiver.poll(10 * SECONDS) else None
        except EOFError:  # it was killed
            part = None
        process.kill()
        process.join()
        parts.append(architectures.unfinished(name, "other") if part is None else part)
    return architectures.signed(pd.concat(parts))


def _one(name: str, sender: multiprocessing.connection.Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    sender.send(architectures.checked(name, "other"))


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command("measure")(main)
add(app, HERE)

if __name__ == "__main__":
    app()
