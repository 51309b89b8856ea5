"""Reports: the tables of a model's studies written as one self-contained HTML file (no torch)."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from headroles.analysis.changes import CHANGE, compare_models
from headroles.plots.axes import TITLES
from headroles.plots.matrix import DEEP
from headroles.reports import contents
from headroles.reports.contents import Entry, Head
from headroles.reports.sources import Studies, Table, columns, gathered, heads_of, places
from headroles.tables.columns import TABLES, on_repeated, table_of
from headroles.tables.declared import GROUPS
from headroles.tables.frame import KINDS, bare, provenance, spelled
from headroles.tables.io import check_ours, mark_of, replacing
from headroles.tables.study import Study

SCRIPTS = ("words", "grids", "tables", "curves", "budgets", "attention", "card", "start")  # in this order
CIRCUITS = ("copying", "succession")  # which some studies have beside their other scores
PARTS = {  # data of a part -> its place on the page and its name
    "columns": ("overview", "Measurements"),
    "sizes": ("pruning", "Pruning"),
    "curves": ("curves", "Curves"),
    "budgets": ("budgets", "Cache budgets"),
    "relate": ("relate", "Roles and outcomes"),
}
MADE_BY = {table.part: table for table in TABLES.values() if table.part}  # part of the page -> how it is made


def report(
    studies: Studies,
    output: str | Path,
    *,
    title: str | None = None,
    compare: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write the studies of a model as one self-contained page.

    The page makes no network requests. Missing parts are named, with the command that makes them.

    Args:
        studies: Folders of studies. Or a `Study`, or several. Later ones add the columns that earlier ones lack.
        output: The file to write.
        title: Title of the page; by default from the model's name.
        compare: Whether the second of two studies is of another model of the same shape. The page of the first one then
            has the roles gained and lost and maps of differences (`hr.compare_models`).
        overwrite: Whether to replace a page of another model, or a file of another origin.

    Returns:
        The path of the page.

    Raises:
        ValueError: If studies are of models with other heads, or not two are compared.
    """
    folders = [*places(studies).values()]
    if compare and len(folders) != 2:
        raise ValueError(f"a comparison needs the studies of two models of one shape, got {len(folders)}")
    tables, others = gathered(folders[:1] if compare else folders)
    compared = _compared(folders, heads_of(tables)) if compare else None
    check_ours(Path(output), ", ".join(contents.facts(tables)["weights"]), overwrite=overwrite)
    with replacing(Path(output)) as draft:
        draft.write_text(rendered(tables, others, title=title, compared=compared), encoding="utf-8")
    return Path(output)


def _compared(folders: Sequence[Path], index: Sequence[Head]) -> dict[str, Any]:
    """Collect the facts of two models: their names, roles gained and lost, and the changes of scores."""
    changes = compare_models(*map(Study, folders))
    first, second = places(folders)
    measurements, _ = columns([Table(f"{second} less {first}", "", _differences(changes))])
    entries = (contents.entry_of(change, index) for change in measurements if change.parts[""].notna().any())
    maps = [{name: value for name, value in entry.items() if name != "rank"} for entry in entries]  # more is not better
    roles = contents.along(changes[["gained", "lost", "unsure"]], index)
    return {"first": first, "second": second, "columns": maps, "roles": _role_changes(roles)}


def _differences(changes: pd.DataFrame) -> pd.DataFrame:
    """Return the changes of scores under the scores' names, so that they have their label, unit and direction."""
    names = {str(name): str(name).replace(CHANGE, "") for name in changes if CHANGE in str(name)}
    table = bare(changes)[list(names)].rename(columns=names)
    table.attrs["signatures"] = {names[name]: provenance(changes, name) for name in names}
    return table


def _role_changes(changes: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a row for each role that some head gains or loses, with its heads in words."""
    rows: dict[str, dict[str, Any]] = {}
    one_kind = changes.index.unique("kind").size == 1
    for head, (gained, lost, unsure) in zip(changes.index, changes.to_numpy(), strict=True):
        place = spelled(*head, one_kind=one_kind)
        for what, text in (("gained", gained), ("lost", lost)):
            for name in filter(None, text.split(", ")):
                row = rows.setdefault(name, {"role": name, "gained": [], "lost": []})
                row[what].append(f"{place}{'?' * (name in unsure.split(', '))}")
    return list(rows.values())


def rendered(
    tables: list[Table],
    others: list[str],
    *,
    title: str | None = None,
    notebook: Mapping[str, bool] | None = None,
    compared: Entry | None = None,
) -> str:
    """Render tables as an HTML page; `others` are not shown, `notebook` maps requests of the page to their support."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("headroles", "reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    data, duplicates = _data(tables)
    facts = contents.facts(tables)
    heading = title or f"The heads of {', '.join(facts['model'][:1]) or 'a model'}"
    made = {name: table.made_with(tables[0].folder) for name, table in MADE_BY.items()}
    made["tests"] = on_repeated(made["tests"], [role for role, rows in contents.holders(data).items() if rows])
    names = SCRIPTS if notebook is None else (*SCRIPTS, "notebook")
    styles, script = _asset("page.css"), "\n".join(_asset(f"{name}.js") for name in names)
    script = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    return environment.get_template("page.html").render(
        title=heading,
        data=data,
        deep=max((layer for _, layer, _ in data["heads"]), default=0) >= DEEP,  # type: ignore[attr-defined]
        facts=facts,
        mark=mark_of(", ".join(facts["weights"])),
        compared=compared,
        found=contents.findings(data),
        parts=[(place, name, bool(data[part])) for part, (place, name) in PARTS.items()],
        lacks=[(text, made[name]) for name, text in contents.MISSING.items() if _lacks(data, name)],
        signatures=[*contents.signatures(tables)],
        again=[(name, contents.place(table)) for name, table in duplicates],
        others=others,
        version=version("headroles"),
        styles=Markup(styles),
        script=Markup(script),
        hashes={"style": _hash(styles), "script": _hash(script)},
        json=Markup(_json({"title": heading, **data, "notebook": notebook, "compared": compared})),
    )


def _data(tables: list[Table]) -> tuple[Entry, list[tuple[str, Table]]]:
    """Return the data of the page's script, and the columns that an earlier table had."""
    index = heads_of(tables)
    columns, duplicates = contents.measured(tables, index)
    data = {
        "heads": index,
        "kinds": {kind: TITLES[kind] for kind in KINDS if any(head[0] == kind for head in index)},
        "groups": GROUPS,
        "columns": columns,
        "shared": contents.shared(tables, index),
        **contents.roles(tables, index),
        "tests": contents.tests(tables, index),
        "together": [*contents.tested_together(tables)],
        "prunings": contents.prunings(tables, index),
        "gates": contents.gates(tables, index),
        "sizes": [*contents.sizes(tables)],
        "budgets": [*contents.budgets(tables)],
        "curves": [*contents.curves(tables)],
        "relate": contents.relate(tables),
        "attention": contents.attention(tables, index),
    }
    return data, duplicates


def _lacks(data: Entry, name: str) -> bool:
    """Return whether the page names a part as missing: circuits only for decoders, tests only with roles."""
    wanted = {"circuits": "dec-self" in data["kinds"], "tests": bool(data["roles"])}  # type: ignore[operator]
    columns: list[Entry] = data["columns"]  # type: ignore[assignment]
    parts = {"effects" if column["harm"] else table_of(Path(str(column["from"])).name).part for column in columns}
    parts |= {"circuits"} if any(column["name"] in CIRCUITS for column in columns) else set()
    return wanted.get(name, True) and not data.get(name, name in parts)


def _asset(name: str) -> str:
    return (files("headroles") / "reports" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash by which the content security policy admits only the page's own style and script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(data: Entry) -> str:
    """Return JSON that cannot end a script element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
