"""Studies in figures/: their commands `data`, `tables` and `pictures`, pooled tables, and the list of all pictures.

    python figures/studies.py     # writes figures/README.md from figures/studies.toml

A folder's `make.py data` says what must be at hand, `tables` makes what is missing, `pictures` draws from the tables.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from io import BytesIO
from pathlib import Path, PurePath
from typing import Annotated, Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import typer
from filelock import FileLock
from matplotlib.figure import Figure
from PIL import Image, PngImagePlugin

import headroles as hr

FIGURES = Path(__file__).resolve().parent
ROOT = FIGURES.parent
DPI, MARK = 150, "drawn"  # the text of a PNG that holds the digest of what is drawn


def declared() -> dict[str, dict[str, Any]]:
    """Return the studies of `studies.toml` by their folder."""
    return dict(_all()["study"])


def _all() -> dict[str, Any]:
    return tomllib.loads((FIGURES / "studies.toml").read_text(encoding="utf-8"))


def table_of(file: str) -> dict[str, Any]:
    """Return the declaration of a table with a path in figures/."""
    for folder, study in declared().items():
        for table in study.get("table", []):
            if file.startswith(f"{folder}/") and _matches(file.removeprefix(f"{folder}/"), table["files"]):
                return dict(table)
    raise ValueError(f"a table of a picture must be declared in studies.toml, got {file}")


def _matches(file: str, patterns: list[str]) -> bool:
    """Return whether a path in a folder fits a pattern, with as many parts."""
    return any(file == each or (PurePath(file).match(each) and file.count("/") == each.count("/")) for each in patterns)


def add(app: typer.Typer, folder: Path, *, tables: bool = True) -> None:
    """Give the commands of a folder `data`, `tables` and `pictures`, as it is declared."""
    name = str(folder.resolve().relative_to(FIGURES))

    @app.command("data")
    def data() -> None:
        """Say what the tables need, where it is expected, and where it is from."""
        sources = _all()["data"]
        for key in declared()[name].get("data", []):
            place, source = sources[key]["place"], sources[key]["from"]
            print(f"{'there' if Path(os.path.expandvars(place)).exists() else 'missing'}: {place}: {source}")

    @app.command("pictures")
    def pictures(part: Annotated[str, typer.Argument(help="A part of the names; by default all.")] = "") -> None:
        """Draw the committed pictures from the committed tables."""
        for picture in declared()[name].get("picture", []):
            if part in picture["file"] and "code" in picture:
                save(draw(picture, folder), folder / picture["file"])
                print(picture["file"])

    if tables:

        @app.command("tables")
        def made(
            run: Annotated[bool, typer.Option("--run", help="Run the commands of missing tables; resumes.")] = False,
        ) -> None:
            """List the tables that are done and left, with the commands that make them; --run makes those left."""
            for table in declared()[name].get("table", []):
                left = [file for file in table["files"] if not any(folder.glob(file))]
                state = "archive" if "archive" in table else "left" if left else "done"
                command = table["command"].strip().replace("\n", "\n    ")
                print(f"{state}: {', '.join(table['files'])}\n    {command}")
                if run and state == "left":
                    subprocess.run(["bash", "-ec", table["command"]], check=True, cwd=ROOT)


def draw(picture: dict[str, str], folder: Path) -> Figure:
    """Run the line that draws a picture, and write above it what it is of."""
    before, beside, place = Path.cwd(), {path.stem for path in folder.glob("*.py")}, [str(folder), *sys.path]
    hidden = {name: sys.modules.pop(name) for name in beside & {*sys.modules}}  # of other folders
    sys.path, former = place, sys.path
    try:
        os.chdir(ROOT)
        exec(compile(picture["code"], picture["file"], "exec"), {"hr": hr})
    finally:
        os.chdir(before)
        sys.path = former
        for name in beside & {*sys.modules}:
            del sys.modules[name]
        sys.modules.update(hidden)
    figure = plt.gcf()
    if "of" in picture:
        figure.draw_without_rendering()
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        middle, top = (box.x0 + box.x1) / 2 / width, (box.y1 + 0.12) / height
        figure.text(middle, top, picture["of"], ha="center", va="bottom", fontsize=11, weight="bold")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Save a figure as SVG, or as PNG of 256 colours, with the digest of what it shows, and close it."""
    drawn, notes, text = BytesIO(), PngImagePlugin.PngInfo(), digest(figure)
    if path.suffix == ".svg":
        figure.savefig(path, bbox_inches="tight", metadata={"Description": f"{MARK} {text}", "Date": None})
        plt.close("all")
        return
    notes.add_text(MARK, text)
    figure.savefig(drawn, dpi=DPI, bbox_inches="tight")
    plt.close("all")
    Image.open(drawn).convert("RGB").quantize(256).save(path, optimize=True, pnginfo=notes)


def digest_of(path: Path) -> str:
    """Return the digest that a picture holds."""
    if path.suffix == ".svg":
        return "".join(re.findall(rf"{MARK} ([0-9a-f]+)", path.read_text(encoding="utf-8")))
    with Image.open(path) as picture:
        return str(picture.info.get(MARK, ""))


def digest(figure: Figure) -> str:
    """Return a digest of the numbers and texts that a figure shows, to four digits."""
    parts = [[text.get_text() for text in figure.texts]]
    for ax in figure.axes:
        parts += [[_rounded(line.get_xydata()) for line in ax.lines]]
        parts += [[_rounded(each.get_offsets()), _rounded(each.get_array())] for each in ax.collections]
        parts += [[_rounded(path.vertices) for each in ax.collections for path in each.get_paths()]]
        parts += [[_rounded(image.get_array()) for image in ax.images]]
        parts += [[_rounded(patch.get_path().vertices), _rounded(patch.get_transform().get_matrix()
                   if hasattr(patch, "get_x") else [])] for patch in ax.patches]  # fmt: skip
        parts += [[text.get_text() for text in ax.texts], [ax.get_title(), ax.get_xlabel(), ax.get_ylabel()]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _rounded(values: Any) -> list[str]:
    numbers = np.ma.filled(np.ma.asarray([] if values is None else values, dtype=float), np.nan).ravel()
    return [f"{number + 0.0:.4g}" for number in numbers]


# --- the list of pictures and tables ----------------------------------------------------------------------------------


def readme() -> str:
    """Return README.md: a row for each picture, and one for the tables of each command."""
    studies, pages = declared(), _pages()
    pictures = ["| picture | command | tables | page | made |", "|---|---|---|---|---|"]
    tables = ["| study, and its tables | page | made |", "|---|---|---|"]
    for folder, study in studies.items():
        for picture in study.get("picture", []):
            file = f"{folder}/{picture['file']}"
            used = picture.get("tables") or re.findall(r"figures/([\w./-]+\.parquet)", picture.get("code", ""))
            used = [one if one.startswith("models/") else f"{folder}/{one}" for one in used]
            command = picture.get("by_hand") or f"`{folder}/make.py pictures {picture['file'].removesuffix('.png')}`"
            named = [ROOT / picture["page"]] if "page" in picture else [page for page in pages if file in pages[page]]
            linked, made = " ".join(map(_linked, named)), ", ".join(sorted({*filter(None, map(_when, used))}))
            names = " ".join(one.removeprefix(f"{folder}/") for one in used)
            cells = [f"[{file}]({file})", command, names, linked, made or picture["made"]]
            pictures.append(f"| {' | '.join(cells)} |")
        linked = " ".join(_linked(page) for page in pages if any(f"{folder}/" in link for link in pages[page]))
        tables.append(f"| **[{folder}]({folder}/make.py)**: {study['what']} | {linked} | |")
        for table in study.get("table", []):
            why = f": {table['archive']}" if "archive" in table else ""
            tables.append(f"| {' '.join(table['files'])} | | {_made(table)}{why} |")
    return f"{_all()['about']}\n## Pictures\n\n{_joined(pictures)}\n## Tables\n\n{_joined(tables)}"


def _when(file: str) -> str:
    return _made(table_of(file))


def _made(table: dict[str, str]) -> str:
    """Return when and with which commit a table was made."""
    return f"archive, {table['made']}" if "archive" in table else table["made"]


def _pages() -> dict[Path, set[str]]:
    """Return what each page names in figures/."""
    made = {"generated", "_build", "tutorials", "templates"}
    paths = [path for path in sorted((ROOT / ".docs").rglob("*.md")) if not made & {*path.parts}]
    paths += [ROOT / "README.md", *sorted((ROOT / "notebooks").glob("*.ipynb"))]
    found = {path: {*re.findall(r"figures/([\w./-]+\w)", path.read_text(encoding="utf-8"))} for path in paths}
    return {path: links for path, links in found.items() if links}


def _linked(page: Path) -> str:
    is_a_page = page.is_relative_to(ROOT / ".docs")
    return f"[{page.stem}]({os.path.relpath(page, FIGURES)})" if is_a_page else f"`{page.relative_to(ROOT)}`"


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


# --- tables of several models in one file -----------------------------------------------------------------------------


def put_rows(table: pd.DataFrame, path: Path, **key: str) -> None:
    """Replace the rows of a pooled table that have a key, such as model="minilm"; each row has its provenance."""
    index = [name for name in table.index.names if name]
    columns = {str(name): str(kind) for name, kind in table.dtypes.items()}
    notes = {name: table.attrs[name] for name in ("signatures", "recipe") if table.attrs.get(name)}
    rows = table.reset_index() if index else table.copy()
    rows = rows.assign(**key, provenance=json.dumps({"index": index, "columns": columns, **notes}))
    rows.attrs = {}
    with FileLock(path.with_name(f".{path.name}.lock")):
        if path.is_file():
            former = pd.read_parquet(path)
            others = former[~np.logical_and.reduce([former[name] == value for name, value in key.items()])]
            rows = pd.concat([others, rows])
        rows.sort_values([*key], kind="stable", ignore_index=True).to_parquet(path, compression="zstd")


def rows_of(path: Path, **key: str) -> pd.DataFrame:
    """Return the rows of a pooled table with a key, as `put_rows` was given them; an empty table without any."""
    rows = pd.read_parquet(path) if path.is_file() else pd.DataFrame(columns=[*key])
    rows = rows[np.logical_and.reduce([rows[name] == value for name, value in key.items()])]
    if rows.empty:
        return pd.DataFrame()
    notes = json.loads(rows["provenance"].iloc[0])
    table = rows.set_index(notes["index"]) if notes["index"] else rows.reset_index(drop=True)
    table = table[[*notes["columns"]]].astype(notes["columns"])
    table.attrs = {name: notes[name] for name in ("signatures", "recipe") if name in notes}
    return table


def synthetic_speech(folder: Path) -> hr.Corpus:
    """Read the synthetic utterances of a folder; words without a time are left out of the times alone."""
    rows = json.loads((folder / "meta.json").read_text())
    lines = folder / "synthetic.jsonl"
    lines.write_text(
        "".join(json.dumps({"audio": row["wav"], "text": row["text"], "words": row["words"]}) + "\n" for row in rows)
    )
    return hr.read(lines)


if __name__ == "__main__":
    (FIGURES / "README.md").write_text(readme(), encoding="utf-8")
