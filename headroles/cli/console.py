"""Console output of the command line: lines, tables of numbers, heads with roles, verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import headroles as hr
from headroles import _distributed
from headroles.cli.record import draws, record
from headroles.tables.columns import Column, without_ends
from headroles.tables.frame import LEVELS, fields, provenance

if TYPE_CHECKING:
    import pandas as pd

WHOLE = ("step", "heads", "parameters", "pairs", "count", "undecided")  # columns of counts


def say(text: str) -> None:
    """Print one line without markup."""
    record().lines.append(text)
    the_console(soft_wrap=True, highlight=False).print(text, markup=False)


def draw_figures(study: hr.Study) -> None:
    """Draw every figure that the tables of a study allow, and print their names; none after --no-figures."""
    if draws.get():
        list_figures(hr.papers.draw(study), study.folder)
    else:
        say(f"tables are in {study.folder}; headroles plot {study.folder} draws figures")


def list_figures(files: list[Path], folder: Path) -> None:
    """Print the folder of the tables and the names of the drawn figures."""
    say(f"tables are in {folder}, and these figures: {', '.join(file.name for file in files)}")


def show_roles(assigned: pd.DataFrame) -> None:
    """Print the heads that have roles, a line each: the role, its score, its stability."""
    from headroles.analysis.role_rules import held

    title = f"{held(assigned).groupby(['kind', 'layer', 'head']).ngroups} of {len(assigned)} heads have a role"
    record().keep(assigned, title)
    rows = held(assigned)
    sinks = rows.assign(family=[Column.parse(role).name for role in rows["role"]]).sort_values("value")
    sinks = sinks[sinks["family"].str.startswith("sink")]  # the first token is often a special one: listed once
    rows = rows.drop(sinks.index[sinks.duplicated([*LEVELS, "family"], keep="last")])
    sure = rows["stability"].map(" ({:.2f})".format).where(rows["stability"].notna(), "")
    rows["text"] = rows["role"] + rows["value"].map(" {:.2f}".format) + sure
    lines = rows.groupby(LEVELS, sort=False)["text"].agg(", ".join).reset_index()
    rows = lines.rename(columns={"text": "roles"}).astype(str)
    _show_grid(rows, title, caption="role, its score, its stability", right=["layer", "head"])


def show_measured(table: pd.DataFrame, left_out: Mapping[str, str]) -> None:
    """Print what a score table measures, and keep for the end what was left out and why."""
    scores = dict.fromkeys(Column.parse(name).name for name in table if table[name].notna().any())
    facts = dict(fields(provenance(table, str(table.columns[0]))))
    on = f"{facts.get('sentences', '?')} sentences of {facts.get('corpus')}"
    say(f"measured: {', '.join(scores)} of {len(table)} heads of {facts.get('model')} on {on}")
    record().left_out.update(left_out)


def show_table(
    table: pd.DataFrame, title: str, *, label: str = "", rows: Sequence[str] = (), whole: pd.DataFrame | None = None
) -> None:
    """Print a table of numbers with intervals, rows named by `label` and `rows`; --json has the `whole` table."""
    record().keep(table if whole is None else whole, title)
    columns = without_ends(table)
    cells = {name: [_cell(row, name) for _, row in table.iterrows()] for name in columns}
    _show_columns({label or str(table.index.name): list(rows) or list(map(str, table.index))} | cells, title)


def show_effects(table: pd.DataFrame, intact: dict[str, float], metric: str) -> None:
    """Print the score of the intact model, the largest effects of ablation, and how many have a small p."""
    ends = "" if math.isnan(intact["low"]) else f" [{intact['low']:.3f}, {intact['high']:.3f}]"
    say(f"the intact model: {metric} {intact['value']:.3f}{ends}")
    name = str(table.columns[0])
    most = table.loc[table[name].abs().sort_values(ascending=False, kind="stable").index[:10]]
    most.columns = ["change", "change.low", "change.high", "p", "Holm", "BH", *most.columns[6:]]
    heads = [f"{kind} layer {layer} head {head}" for kind, layer, head in most.index]
    shown = most[["change", "change.low", "change.high", "p", "Holm", "BH"]]
    show_table(shown, f"the largest of {len(table)} effects", label="head", rows=heads, whole=table)
    for part, label in (("p", "p"), ("holm", "p after Holm"), ("bh", "p after Benjamini-Hochberg")):
        say(f"{(table[f'{name}.{part}'] < 0.01).sum()} of {len(table)} heads with {label} < 0.01")
    if f"{name}.examples" in table:
        whole = int(dict(fields(provenance(table, name)))["examples"])
        say(f"heads were ablated on {table[f'{name}.examples'].mean() / whole:.0%} of the {whole} examples")
    if f"{name}.explained" in table:
        say(f"the gradient explains {table[f'{name}.explained'].median():.0%} of an effect's variance (median head)")


def show_gating(table: pd.DataFrame) -> None:
    """Print how many heads help, do nothing and harm, and those that help and harm most."""
    names = ("facilitating", "irrelevant", "interfering")
    shown = {f"gating[{name}]{end}": f"{name}{end}" for name in names for end in ("", ".low", ".high")}
    scores = table[[*shown]].rename(columns=shown)
    role = scores[list(names)].idxmax(axis=1)
    for name in ("facilitating", "interfering"):
        most = scores.loc[scores[name].sort_values(ascending=False, kind="stable").index[:5]]
        heads = [f"{kind} layer {layer} head {head}" for kind, layer, head in most.index]
        show_table(most, f"the most {name} of {len(table)} heads", label="head", rows=heads)
    say(", ".join(f"{(role == name).sum()} heads are {name}" for name in names))


def show_best(table: pd.DataFrame, how: str) -> None:
    """Print the best head to keep alone in each layer."""
    names = {"effect": "change", "effect.low": "change.low", "effect.high": "change.high"}
    shown = table.rename(columns=names | {"effect.p": "p", "effect.holm": "Holm"})[[*names.values(), "p", "Holm"]]
    heads = [
        f"{kind} layer {layer}: head {head}" for (kind, layer), head in zip(table.index, table["head"], strict=True)
    ]
    show_table(shown, f"the best head to keep alone{f', {how}' if how else ''}", label="kept", rows=heads, whole=table)


def show_sizes(intact: pd.DataFrame, table: pd.DataFrame, what: str) -> None:
    """Print the intact model and the sizes of `prune`, by number of heads."""
    import pandas as pd

    whole, *rest = table["heads"]
    names = [f"{whole}, intact", f"{whole}, control", *map(str, rest)]
    shown = pd.concat([intact, table]).rename(columns={"low": "value.low", "high": "value.high"})
    shown = shown[[name for name in shown if str(name).startswith(("value", "change", "undecided"))]]
    title = f"{what}, and the change against the control"
    show_table(shown, title, label="heads", rows=names, whole=pd.concat([intact, table]))
    say("intact: the given model; control: with all its heads, after the same training as the others")


def show_comparison(table: pd.DataFrame, title: str) -> None:
    """Print the compared pruning strategies, by strategy and number of heads."""
    names = [f"{row.strategy}, {row.heads} heads{', retrained' if row.tuned else ''}" for row in table.itertuples()]
    shown = table.drop(columns=["strategy", "heads", "tuned", "seeds.sd"])
    show_table(shown, title, label="choice", rows=names, whole=table)


def show_speed(table: pd.DataFrame) -> None:
    """Print the speed of a model without some of its heads, by share, way and batch size."""
    names = [f"{row.share:.0%} ablated, {row.way}, batch {row.batch}" for row in table.itertuples()]
    shown = table[["parameters", "speedup", "speedup.low", "speedup.high", "allowed"]]
    show_table(shown, "speed over that of the whole model", label="model", rows=names, whole=table)


def show_relations(table: pd.DataFrame) -> None:
    """Print the relations of roles and outcomes, then the reasons of those without numbers."""
    known = table[table["auc"].notna()]
    names = [f"{row.role}: {row.outcome}" for row in known.itertuples()]
    title = "auc: larger with the role than without; p: within layers"
    if names:
        shown = known[["auc", "auc.low", "auc.high", "p", "holm"]]
        show_table(shown, title, label="role: outcome", rows=names, whole=table)
        say(f"{(known['holm'] < 0.05).sum()} of {len(known)} relations have p < 0.05 within layers after Holm")
    for (role, note), rows in table[table["auc"].isna()].groupby(["role", "note"], sort=False):
        say(f"{role}: {note} ({len(rows)} outcomes)")


def show_claims(rows: pd.DataFrame) -> None:
    """Print whether the claim of each artefact of a paper holds, a line each, and why."""
    title = "do the papers' claims hold here?"
    record().keep(rows, title)
    shown = rows[["paper", "artefact", "answer", "why", "controls"]]
    _show_grid(shown.set_axis(["paper", "artefact", "holds", "why", "negative controls"], axis=1), title, whole=2)


def show_rows(table: pd.DataFrame, title: str) -> None:
    """Print a table of numbers and words; missing values are blank."""
    record().keep(table, title)
    cells = {
        str(name): ["" if value != value or value is None else _plain(value) for value in table[name]] for name in table
    }
    _show_columns(cells, title)


def show_answers(table: pd.DataFrame, title: str) -> None:
    """Print the results of checks, a line each, with their deviations, then each reason once."""
    record().keep(table, title)
    off = ["" if math.isnan(number) else f"{number:.1g}" for number in table["off"]]
    _show_grid(table[["of", "holds"]].assign(off=off).rename_axis("check").reset_index(), title, right=["off"])
    for why, rows in table[table["why"] != ""].groupby("why", sort=False):
        say(f"{', '.join(rows.index)}: {why}")


def show_removed(before: pd.MultiIndex, after: pd.MultiIndex) -> None:
    """Print the removed heads, a line for each layer, from the heads before and after."""
    removed: dict[tuple[str, int], list[str]] = {}
    for kind, layer, head in before.difference(after, sort=False):
        removed.setdefault((kind, layer), []).append(str(head))
    for (kind, layer), numbers in removed.items():
        say(f"removed: {kind} layer {layer}, head{'s' * (len(numbers) > 1)} {', '.join(numbers)}")
    say(f"{len(before) - len(after)} of {len(before)} heads are removed")


def _show_grid(
    rows: pd.DataFrame, title: str, *, caption: str | None = None, right: Sequence[str] = (), whole: int = 0
) -> None:
    """Print rows of text, some columns at the right of their cells, the words of the first ones `whole`."""
    shown = Table(title=escape(title), caption=caption)
    for place, column in enumerate(map(str, rows)):
        shown.add_column(column, justify="right" if column in right else "left", no_wrap=place < whole, overflow="fold")
    for row in rows.to_numpy().tolist():
        shown.add_row(*map(escape, row))
    the_console().print(shown)


def _show_columns(columns: dict[str, list[str]], title: str) -> None:
    """Print columns of text; columns beyond the width of the terminal follow below, beside the first column."""
    console, widths = the_console(), {name: max(map(cell_len, (name, *cells))) for name, cells in columns.items()}
    (first, labels), *rest = columns.items()
    half = console.width // 2
    whole = console.width - 4 - min(half, widths[first])  # less borders and padding
    parts, room = [list[str]()], whole
    for name, _ in rest:
        if parts[-1] and 3 + widths[name] > room:
            parts.append([])
            room = whole
        parts[-1].append(name)
        room -= 3 + widths[name]
    for number, names in enumerate(parts):
        shown = Table(title=None if number else escape(title))
        shown.add_column(escape(first), overflow="fold", max_width=half)
        for name in names:
            shown.add_column(escape(name), justify="right", overflow="fold")
        for row in zip(labels, *(columns[name] for name in names), strict=True):
            shown.add_row(*map(escape, row))
        console.print(shown)


def the_console(*, soft_wrap: bool = False, highlight: bool = True) -> Console:
    """Return the console; of several processes only the first one prints, and with --json none."""
    return Console(quiet=not _distributed.first() or record().quiet, soft_wrap=soft_wrap, highlight=highlight)


def _cell(row: pd.Series[float], name: str) -> str:
    """Format a number with its interval; a missing one is blank."""
    number, low, high = row[name], row.get(f"{name}.low", math.nan), row.get(f"{name}.high", math.nan)
    if math.isnan(number):
        return ""
    interval = "" if math.isnan(low + high) else f" [{low:.3f}, {high:.3f}]"
    return f"{number:.0f}" if name in WHOLE else f"{number:.3f}{interval}"


def _plain(value: object) -> str:
    """Format a number: whole ones without decimals, others with three."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value.is_integer() else f"{value:.3f}"
