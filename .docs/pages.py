"""Pages that are made from the code and the tables: the reference, commands, verdicts, gallery."""

from __future__ import annotations

import ast
import csv
import inspect
import json
import os
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FIGURES = ROOT / "figures"
sys.path.append(str(FIGURES))
import studies  # noqa: E402 - of all studies

MADE = HERE / "generated"
GROUPS: dict[str, dict[str, Any]] = tomllib.loads((HERE / "reference/groups.toml").read_text(encoding="utf-8"))
PACKAGES = (  # below two
    *("tables", "data", "analysis", "models", "patterns", "scores", "ablation", "training", "pruning", "testing"),
)
PLUG_INS = (  # the classes of a score, pattern, metric, objective or strategy of one's own, and what they are given
    *("headroles.scores.Observation", "headroles.scores.HeadGradients", "headroles.patterns.Pattern"),
    *("headroles.ablation.metrics.Metric", "headroles.ablation.metrics.Reading"),
    *("headroles.scores.objectives.Objective", "headroles.scores.objectives.Explained"),
    *("headroles.pruning.rankings.Ranking", "headroles.pruning.rankings.RankingContext"),
    "headroles.pruning.learned_gates.Gates",
)
OWN = (
    "Base classes of what you add, and what their methods are given; :class:`headroles.Score`, "
    ":class:`headroles.GradientScore` and :class:`headroles.Role` are in their groups. "
    ":doc:`Examples that run </how-to/extend>` show each."
)
STUDIES = {  # study -> what the verdicts of it are of
    "multi30k-en-de": "small Marian",
    "minilm-sst2": "MiniLM on SST-2",
    "minilm-mrpc": "MiniLM on MRPC",
    "paper-size": "Marian of the papers' layers",
    "specialists/minilm": "MiniLM as the encoder of a translator",
}
COPIES = {  # text of the repository -> its page
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "figures/README.md": "studies.md",
}
for _page in sorted([FIGURES / "questions/specialists/README.md", *FIGURES.rglob("PLAN.md")]):
    _parts_of = [part for part in _page.relative_to(FIGURES).with_suffix("").parts[1:] if part != "README"]
    COPIES[str(_page.relative_to(ROOT))] = f"{'-'.join(_parts_of).lower()}.md"  # specialists.md, specialists-plan.md
QUALITY = "figures/engineering/quality"
_current: set[Path] = set()  # files of this version
PAPERS = {"voita2019": "Voita et al. 2019", "michel2019": "Michel et al. 2019", "budhraja2020": "Budhraja et al. 2020"}
LACKS = {  # paper -> what of it there is not
    "voita2019": "**Missing:** the other languages of Fig. 2; here it compares corpora of one language pair.",
    "budhraja2020": "**Missing:** its translators of WMT, BERT on MNLI, QQP and QNLI; only MiniLM on MRPC was "
    "retrained for three epochs.",
}


def write_all() -> None:
    """Write all generated pages, and copy the notebooks; a file that would not change is left alone."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        copy, text = HERE / "tutorials" / path.name, badged(path, os.environ.get("GITHUB_REPOSITORY", ""))
        if not copy.is_file() or copy.read_text(encoding="utf-8") != text:
            copy.write_text(text, encoding="utf-8")
    _reference()
    _commands()
    _columns()
    _verdicts()
    _gallery()
    for source in COPIES:
        _copied(source)
    for path in [path for path in MADE.rglob("*") if path.is_file() and path not in _current]:
        path.unlink()  # of an earlier version


def badged(path: Path, repository: str) -> str:
    """Return a notebook, with a badge under its title that opens it in Colab if its repository is known."""
    text = path.read_text(encoding="utf-8")
    if not repository:
        return text
    notebook = json.loads(text)
    target = f"https://colab.research.google.com/github/{repository}/blob/main/notebooks/{path.name}"
    notebook["cells"][0]["source"][1:1] = ["\n", f"[**Open in Colab**]({target})\n"]
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def check_documented(public: ModuleType) -> None:
    """Raise an error if a public name has no docstring or no place in a group of the reference."""
    placed = {name for group in GROUPS.values() for name in group["names"]}
    modules = {name for name in public.__all__ if inspect.ismodule(getattr(public, name))}
    missing = sorted({*public.__all__} - placed - modules)
    unknown = sorted(placed - {*public.__all__})
    bare = sorted(name for name in public.__all__ if not inspect.getdoc(getattr(public, name)))
    if missing or unknown or bare:
        raise ValueError(
            f"the reference and headroles/__init__.pyi differ: not in reference/groups.toml {missing}; unknown there "
            f"{unknown}; without a docstring {bare}"
        )


def escape(_app: object, _what: str, _name: str, _public: object, _options: object, lines: list[str]) -> None:
    """Escape what reStructuredText would read as markup outside backquotes: `|R|`, `name_` and stars."""
    for number, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [re.sub(r"(?<!\\)([|*]|(?<=\w)_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
        if not line.lstrip().startswith(("..", ">>>")):
            lines[number] = "`".join(parts)


def untyped(app: object, what: str, name: str, public: object, options: object, lines: list[str]) -> None:
    """Restore the sentence of a property, of which napoleon takes what is before a colon for its type."""
    if what in ("property", "attribute") and any(line.startswith(":type:") for line in lines):
        lines[:] = (inspect.getdoc(public) or "").splitlines()
        escape(app, what, name, public, options, lines)


def _reference() -> None:
    """Write a page for each group of public functions, and one for what else the packages export."""
    for group, content in GROUPS.items():
        entries = "".join(f"   headroles.{name}\n" for name in content["names"])
        _put(f"api/{group}.rst", _listed(group.capitalize(), content["about"], entries))
    _put("api/plug-ins.rst", _listed("Plug-ins", OWN, "".join(f"   {name}\n" for name in PLUG_INS)))
    for package in ("plots", "papers"):
        _put(f"api/{package}.rst", _package(package, "="))
    _put(
        "api/packages.rst",
        f"{_title('More of the packages', '=')}\n" + "\n".join(_package(name, "-") for name in PACKAGES),
    )


def _package(name: str, line: str) -> str:
    about = (
        ast.get_docstring(ast.parse((ROOT / f"headroles/{name}/__init__.py").read_text("utf-8"))) or ""
    ).splitlines()[0]
    entries = "".join(f"   headroles.{name}.{other}\n" for other in _others(name))
    return _listed(f"headroles.{name}", about, entries, line)


def _listed(title: str, about: str, entries: str, line: str = "=") -> str:
    _current.update(MADE / f"api/names/{name}.rst" for name in entries.split())
    listed = f".. autosummary::\n   :toctree: names\n   :nosignatures:\n\n{entries}" if entries else ""
    return f"{_title(title, line)}\n{about}\n\n{listed}"


def _others(package: str) -> list[str]:
    """Names that a package's stub exports and the library itself does not, modules left out."""
    top = re.findall(r" as (\w+)$", (ROOT / "headroles/__init__.pyi").read_text(encoding="utf-8"), re.MULTILINE)
    stub = (ROOT / f"headroles/{package}/__init__.pyi").read_text(encoding="utf-8")
    return [
        name
        for name in re.findall(r"^from \.\S+ import .* as (\w+)$", stub, re.MULTILINE)
        if name not in top and not name.isupper() and f"headroles.{package}.{name}" not in PLUG_INS
    ]


def _title(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n"


def _commands() -> None:
    """Write a page for each command from its `--help`, and their index by panels."""
    import typer
    from typer.cli import get_docs_for_click

    from headroles.cli.main import app

    commands = typer.main.get_command(app).commands
    panels: dict[str, list[str]] = {}
    for registered in app.registered_commands:
        name = registered.name or registered.callback.__name__.replace("_", "-")
        if registered.hidden:
            continue
        panel = registered.rich_help_panel
        panels.setdefault(panel if isinstance(panel, str) else "Commands", []).append(name)
        context = typer.Context(commands[name], info_name=f"headroles {name}")
        text = get_docs_for_click(obj=commands[name], ctx=context, name=f"headroles {name}", title=name)
        text = re.sub(r" ?<(bool|boolean)>|\[(bool|boolean)\] ?", "", text)  # a flag has no value
        _put(f"cli/{name}.md", text.replace("```console\n$ ", "```bash\n"))
    index = [
        "# Commands\n",
        "Every command is one call of a function, and prints what it wrote. These pages are its `--help`.\n",
    ]
    for panel, names in panels.items():
        index += [f"## {panel}\n"] if len(panels) > 1 else []
        index += [f"- [`headroles {name}`]({name}.md): {commands[name].get_short_help_str(200)}" for name in names]
        index += ["\n```{toctree}\n:hidden:\n", *names, "```\n"]
    _put("cli/index.md", "\n".join(index))


def _columns() -> None:
    """Write which columns each kind of table has, read from the committed tables."""
    import pyarrow.parquet as pq

    made: dict[str, str] = tomllib.loads((HERE / "reference/tables.toml").read_text(encoding="utf-8"))
    found: dict[str, dict[str, set[str]]] = {}
    for path in sorted(FIGURES.rglob("*.parquet")):
        if "provenance" in pq.read_schema(path).names:  # a table of several models
            continue
        stems = (stem for stem in made if path.stem == stem or path.stem.startswith(f"{stem}-"))
        stem = max(stems, key=len, default=None)
        if stem is not None and "papers" not in path.parts:
            content = found.setdefault(stem, {"columns": set(), "files": set()})
            content["columns"] |= {_family(name) for name in pq.read_schema(path).names if not name.startswith("__")}
            content["files"].add(str(path.relative_to(FIGURES)))
    lines = []
    for stem, about in made.items():
        if stem not in found:
            lines.append(f"## `{stem}`\n\n{about} No study keeps one.\n")
            continue
        names = ", ".join(f"`{name}`" for name in sorted(found[stem]["columns"]))
        lines += [
            f"## `{stem}`\n",
            f"{about}\n",
            f"{names}.\n",
            f"Example: `figures/{min(found[stem]['files'], key=len)}`.\n",
        ]
    _put("parts/columns.md", "\n".join(lines))


def _family(column: str) -> str:
    """Name a column without the details of one study: `syntax[obj dep>head].low` is of `syntax[...].low`."""
    return re.sub(r"\[[^\]]*\]", "[...]", column)


def _verdicts() -> None:
    """Write the claims of each paper, with the rule, the verdict on every study and the figure."""
    for paper, title in PAPERS.items():
        verdicts = _json(f"papers/{paper}/verdicts")
        found = {study: verdicts[study] for study in STUDIES if study in verdicts}
        names = {name for facts in found.values() for name in facts}
        text = [f"# {title}\n", "Written by `headroles reproduce`; [what the verdicts mean](../../papers.md).\n"]
        text.insert(1, _incomparable(paper, found, names))
        for name in sorted(
            names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
        ):
            text += _verdict(paper, name, {study: facts[name] for study, facts in found.items() if name in facts})
        _put(f"papers/{paper}.md", "\n".join(text))


Facts = dict[str, dict[str, Any]]  # study or artefact -> what `headroles reproduce` writes of it


def _incomparable(paper: str, found: dict[str, Facts], names: set[str]) -> str:
    """Return what of a paper is not comparable here and why, and what is missing, as the first line of its page."""
    reasons: dict[str, list[str]] = {}
    for name in sorted(names):
        for study, verdicts in found.items():
            facts = verdicts.get(name, {})
            if facts.get("answer") == "not comparable":
                why = facts["why"].rpartition("; ")[2]
                reasons.setdefault(f"{STUDIES[study]} ({why})", []).append(_called(name))
    texts = (f"{', '.join(called)} of the {study}" for study, called in reasons.items())
    lines = [f"**Not comparable with the paper:** {'; '.join(texts)}."] if reasons else []
    return " ".join([*lines, LACKS.get(paper, "")]).strip() + "\n"


def _called(name: str) -> str:
    """Return the name of an artefact in words: `fig1a` is Fig. 1a."""
    words = re.sub(r"(?<=[a-z])(?=[0-9])|_", " ", name)
    return words.capitalize().replace("Fig ", "Fig. ")


def _verdict(paper: str, name: str, read: Facts) -> list[str]:
    first = next(iter(read.values()))
    text = [
        f"## {_called(name)}\n",
        f"{first['claim']}\n",
    ]
    text += ["| model | verdict | numbers |", "|---|---|---|"]
    for study, verdict in read.items():
        text.append(f"| {STUDIES[study]} | **{verdict['answer']}** | {verdict['why']} |".replace("<", "&lt;"))
    text += _wanted(paper, name, [study for study, verdict in read.items() if verdict["answer"] not in ("yes", "no")])
    text += [
        f"\n*Rule.* {first['rule']}\n",
        *(
            [f"*The paper's numbers.* {_sourced(first['numbers'])}\n", *_printed(paper, name)]
            if first.get("numbers")
            else []
        ),
    ]
    picture = FIGURES / "papers" / paper / f"{name}.png"
    if picture.is_file():
        text.append(f"![{first['what']} {next(map(STUDIES.get, read))}.](../../../{picture.relative_to(ROOT)})\n")
    archives = ", ".join(STUDIES[study] for study, verdict in read.items() if not verdict["command"])
    commands = " · ".join(f"`{verdict['command']}`" for verdict in read.values() if verdict["command"])
    commands += f"{' · ' * bool(commands)}not made again, with an earlier version: {archives}" if archives else ""
    return [*text, f"{commands}; one figure: `headroles reproduce {paper} {name} --from STUDY`\n"]


def _sourced(text: str) -> str:
    """Leave out the marks of the notes in which a number stands."""
    text = re.sub(r" \((VB|MN|VN|PR|VN and S|VB, VN and S agree)\)", "", text.replace(", MN)", ")"))
    return re.sub(r"\((VB|MN|VN|PR); ", "(", text)


def _printed(paper: str, name: str) -> list[str]:
    """Return the numbers that a paper prints of an artefact, or that were read off its picture, as a table."""
    path = ROOT / "headroles/papers/numbers" / f"{paper}-{name}.csv"
    if not path.is_file():
        return []
    rows = [*csv.reader(line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))]
    return [*("| " + " | ".join(row) + " |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])), ""]


def _wanted(paper: str, name: str, undecided: list[str]) -> list[str]:
    """Return what it would take to decide each verdict that is not; raise an error if another list is written."""
    wanted = tomllib.loads((HERE / "wanted.toml").read_text(encoding="utf-8")).get(paper, {}).get(name, {})
    if {*wanted} != {*undecided}:
        raise ValueError(f"wanted.toml must have {undecided} of {paper} {name}, got {[*wanted]}")
    return (
        ["\n*What it would take.*\n", *(f"- {STUDIES[study]}: {wanted[study]}" for study in wanted)] if wanted else []
    )


def _gallery() -> None:
    """Write the gallery: each figure, the line that draws it from its table, the command that made the table."""
    pictures = {
        f"{folder}/{picture['file']}": picture
        for folder, study in studies.declared().items()
        for picture in study.get("picture", [])
    }
    gallery = tomllib.loads((HERE / "gallery.toml").read_text(encoding="utf-8"))
    text = ["# Gallery\n", gallery["about"], "::::::{grid} 2 3 4 5\n:gutter: 2\n"]
    for entry in gallery["figure"]:
        drawn = pictures[entry["picture"]] if "picture" in entry else entry
        picture = f"../../figures/{entry['picture']}" if "picture" in entry else _drawn(entry)
        first, *_ = drawn.get("tables") or re.findall(r"figures/([\w./-]+\.parquet)", drawn["code"])
        table = studies.table_of(first)
        command = "`; `".join(table["command"].strip().splitlines())
        archive = f" (not made again: {table['archive']})" if "archive" in table else ""
        text += [
            f":::::{{grid-item}}\n:class: thumbnail\n\n![{entry['title']}]({picture})\n",
            f"::::{{dropdown}} {entry['title']}\n```python\n{drawn['code'].strip()}\n```\n",
            f"The table was made by{archive}: `{command}`\n::::\n:::::\n",
        ]
    text.append("::::::")
    _put("gallery.md", "\n".join(text))


def _drawn(entry: dict[str, str]) -> str:
    """Draw a figure that is of the gallery alone, unless its tables are older; return its place."""
    name = re.sub(r"\W+", "-", entry["title"].lower())
    path = MADE / "gallery" / f"{name}.png"
    tables = [ROOT / table for table in re.findall(r"figures/[\w./-]+\.parquet", entry["code"])]
    if not path.is_file() or any(table.stat().st_mtime > path.stat().st_mtime for table in tables):
        path.parent.mkdir(parents=True, exist_ok=True)
        studies.save(studies.draw(entry | {"file": path.name}, ROOT), path)
    _current.add(path)
    return f"gallery/{path.name}"


def _copied(source: str) -> None:
    """Copy a text of the repository as a page, with its links."""
    text = _relinked((ROOT / source).read_text(encoding="utf-8"), (ROOT / source).parent, MADE)
    if pages := {"figures/README.md": "*-plan"}.get(source):
        text += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{pages}\n```\n"
    _put(COPIES[source], text)


def relinked(_app: object, name: str, source: list[str]) -> None:
    """Let links of a page to texts of the repository, which work in a checkout, lead to their pages."""
    if (HERE / f"{name}.md").is_file():
        source[0] = _relinked(source[0], (HERE / name).parent, (HERE / name).parent)


def _relinked(text: str, folder: Path, to: Path) -> str:
    """Return a text of a folder with its links as from the folder `to`, those to copied texts to their pages."""

    def link(found: re.Match[str]) -> str:
        path, _, anchor = found[1].partition("#")
        if ":" in path or not path:
            return found[0]
        target = os.path.relpath(folder / path, ROOT)
        place = MADE / COPIES[target] if target in COPIES else folder / path
        return f"]({os.path.relpath(place, to)}{'#' * bool(anchor)}{anchor})"

    return re.sub(r"\]\(([^)\s]+)\)", link, text)


def _json(name: str) -> Any:
    return json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))


def _rows(name: str) -> list[dict[str, str]]:
    if not (FIGURES / f"{name}.csv").is_file():
        return []
    with (FIGURES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _put(name: str, text: str) -> None:
    """Write a page, unless it is there: what has not changed is not built again."""
    path = MADE / name
    _current.add(path)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
