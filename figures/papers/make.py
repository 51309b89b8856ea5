"""The papers' figures and verdicts on our studies: `make.py data`, `tables`, `pictures`, in `voita2019/` and so on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

import headroles as hr
from headroles.papers.bench import Bench
from headroles.papers.reproduction import artefacts, reproduce

sys.path.append(str(Path(__file__).parents[1]))
from studies import FIGURES, add, rows_of  # noqa: E402 - of all studies

HERE = Path(__file__).parent
SEEDS = ("", "/S-1", "/S-2")
STUDIES = (  # in figures/models; of the others with verdicts not all of their tables are kept: they are archives
    "multi30k-en-de",
    *(f"minilm-mrpc{seed}" for seed in SEEDS),
)
KEPT = "michel2019 fig2"  # its table is on a page
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def tables() -> None:
    """Judge the claims again by the committed tables (a minute), and write `verdicts.json` of each paper."""
    for study in STUDIES:
        with TemporaryDirectory() as made:
            reproduce(folders=[_folder(study, Path(made) / study)], study=made)
            for paper, verdicts in verdicts_of().items():
                for name in verdicts.get(study, {}):  # what is judged there; another artefact is added by hand
                    facts = json.loads((Path(made) / "papers" / paper / f"{name}.json").read_text(encoding="utf-8"))
                    verdicts[study][name] = facts | {"command": verdicts[study][name]["command"]}
                text = json.dumps(verdicts, indent=1, ensure_ascii=False) + "\n"
                (HERE / paper / "verdicts.json").write_text(text, encoding="utf-8")
            if study == "multi30k-en-de":
                paper, name = KEPT.split()
                table = hr.load_table(Path(made) / "papers" / paper / f"{name}.parquet")
                hr.save_table(table, HERE / paper / f"{name}.parquet")


def _folder(study: str, unpacked: Path) -> Path:
    """Return the folder of a study; the tables of seeds that are pooled in one file are unpacked."""
    name, _, seed = study.partition("/S-")
    if not seed:
        return FIGURES / "models" / study
    for path in (FIGURES / "models" / name).glob("*-seeds.parquet"):
        hr.save_table(rows_of(path, seed=seed), unpacked / f"{path.stem.removesuffix('-seeds')}.parquet")
    return unpacked


def verdicts_of() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the committed verdicts: paper -> study -> artefact -> facts."""
    paths = sorted(HERE.glob("*/verdicts.json"))
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def artefact(paper: str, name: str, study: str) -> Any:
    """Draw an artefact of a paper from the tables of a study."""
    folder = FIGURES / "models" / study
    bench = Bench([folder])
    if (folder / "untrained").is_dir():
        bench.untrained = Bench([folder / "untrained"])
    return artefacts(paper)[name](bench).draw()


add(app, HERE, tables=False)

if __name__ == "__main__":
    app()
