"""The report: the tables of a model's studies written as one HTML file that needs nothing else (no torch)."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from headroles.plots import matrix
from headroles.plots.report import contents
from headroles.plots.report import contents as exhibits
from headroles.plots.report.labels import FINDS, LOOKS, MATTERS
from headroles.plots.report.sources import Studies, Table, gathered, heads_of
from headroles.tables.files import check_ours, mark_of, replacing
from headroles.tables.frame import KINDS

log = logging.getLogger(__name__)
SCRIPTS = ("words", "grids", "tables", "curves", "attention", "card", "start")  # one after the other
HEAVY = 5_000_000  # bytes above which a page is slow to open and to send
MADE_BY = {  # what makes what a page may lack
    "scores": "headroles score",
    "effects": "headroles ablate",
    "roles": "headroles roles",
    "sizes": "headroles prune",
    "curves": "headroles ablation-curve",
    "relate": "headroles relate",
    "attention": "headroles attention-examples",
}


def report(studies: Studies, output: str | Path, *, title: str | None = None, overwrite: bool = False) -> Path:
    """Write one self-contained HTML page of what the tables of one or several studies of a model say; returns its path.

    A study is a `Study` or its folder. A later one adds the columns that the earlier ones lack; what is not there is
    left out, with a sentence that says so. The page asks nothing of the network. Raises FileNotFoundError where no
    folder has a table to show, ValueError for folders of models with other heads, and FileExistsError where `output` is
    a page of another model or not ours, unless `overwrite`.
    """
    tables, others = gathered(studies)
    check_ours(Path(output), ", ".join(exhibits.facts(tables)["weights"]), overwrite=overwrite)
    data, again = _data(tables)
    page = _rendered(tables, data, again=again, others=others, title=title)
    size = len(page.encode())
    if size > HEAVY:
        log.warning("the report has %.1f MB; attention on fewer or shorter sentences makes it smaller", size / 1e6)
    with replacing(Path(output)) as draft:
        draft.write_text(page, encoding="utf-8")
    return Path(output)


def _data(tables: list[Table]) -> tuple[dict[str, Any], list[tuple[str, Table]]]:
    """All that the page's script draws from, and the columns left out because an earlier table has them."""
    index = heads_of(tables)
    columns, again = contents.measured(tables, index)
    data = {
        "heads": index,
        "kinds": {kind: matrix.TITLES[kind] for kind in KINDS if any(head[0] == kind for head in index)},
        "groups": [LOOKS, FINDS, MATTERS],
        "columns": columns,
        "shared": contents.shared(tables, index),
        **contents.roles(tables, index),
        "prunings": contents.prunings(tables, index),
        "gates": exhibits.gates(tables, index),
        "sizes": exhibits.sizes(tables),
        "curves": exhibits.curves(tables),
        "relate": exhibits.relate(tables),
        "attention": exhibits.attention(tables, index),
    }
    return data, again


def _rendered(
    tables: list[Table],
    data: dict[str, Any],
    *,
    again: list[tuple[str, Table]],
    others: list[str],
    title: str | None,
) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("headroles", "plots/report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    facts = exhibits.facts(tables)
    named = title or f"The heads of {', '.join(facts['model'][:1]) or 'a model'}"
    styles, script = _asset("page.css"), "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    return environment.get_template("page.html").render(
        title=named,
        data=data,
        facts=facts,
        mark=mark_of(", ".join(facts["weights"])),
        lacks={name: command for name, command in MADE_BY.items() if not _has(data, name)},
        signatures=exhibits.signatures(tables),
        again=[(name, contents.place(table)) for name, table in again],
        others=others,
        version=version("headroles"),
        styles=Markup(styles),
        script=Markup(script),
        hashes={"style": _hash(styles), "script": _hash(script)},
        json=Markup(_json({"title": named, **data})),
    )


def _has(data: dict[str, Any], name: str) -> bool:
    if name in ("scores", "effects"):
        return any((column["harm"] != 0) == (name == "effects") for column in data["columns"])
    return bool(data[name])


def _asset(name: str) -> str:
    return (files("headroles") / "plots" / "report" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """What the page's policy names its own style and script by: no other may run, whatever a table says."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(data: dict[str, Any]) -> str:
    """JSON that ends no script element, whatever is in it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
