"""Studies on the Hugging Face Hub: tables, figures, reports and a card, as a data set of parquet files (no torch)."""

from __future__ import annotations

import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import parquet

from headroles.tables.columns import without_ends
from headroles.tables.frame import fields
from headroles.tables.io import notes

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from headroles.tables.study import Study

PATTERNS = ("*.parquet", "*.png", "*.svg", "*.pdf", "*.html", "README.md")  # files of a study; unfinished work stays
BEGINNING = "Tables of [headroles](https://pypi.org/project/headroles)"
CARD = """# Attention heads of {models}

{beginning} {version}: what each attention head does, and whether it
matters. A row of most tables is a head (`kind`, `layer`, `head`); every column carries its provenance in the file's
metadata.

```python
import headroles as hr

study = hr.Study.from_hub("{repo}")
study.load("{first}")
hr.report(study, "report.html")
```

Without headroles: `datasets.load_dataset("{repo}", "{first}")`, or pandas' `read_parquet`.

## Tables

{tables}

## Provenance

{provenance}
"""


def push(study: Study, repo: str, *, private: bool, message: str, api: HfApi | None) -> str:
    """Upload a study, as `Study.push_to_hub`; return the address of the commit."""
    from huggingface_hub import HfApi

    client = api or HfApi()
    with tempfile.TemporaryDirectory(prefix="headroles-hub-") as folder:
        prepare(study, folder, repo=repo)
        client.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
        commit = client.upload_folder(
            repo_id=repo,
            repo_type="dataset",
            folder_path=folder,
            commit_message=message or f"Study by headroles {version('headroles')}",
        )
    return str(commit.commit_url)


def prepare(study: Study, folder: str | Path, *, repo: str = "OWNER/NAME") -> Path:
    """Copy the tables, figures and reports of a study into a folder, with a card, as `push` uploads them."""
    if not study.names():
        raise FileNotFoundError(f"no tables in {study.folder}; make them with headroles score")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for path in sorted({path for pattern in PATTERNS for path in study.folder.glob(pattern)}):
        shutil.copyfile(path, place / path.name)
    written = place / "README.md"
    if not written.exists() or BEGINNING in written.read_text(encoding="utf-8"):  # otherwise the study has its own
        written.write_text(card(study, repo), encoding="utf-8")
    return place


def fetch(
    repo: str, folder: str | Path | None, *, revision: str | None, local_files_only: bool, cache: str | Path | None
) -> Path:
    """Download a study, as `Study.from_hub`; return the folder of its tables."""
    from huggingface_hub import snapshot_download

    place = Path(
        snapshot_download(
            repo,
            repo_type="dataset",
            revision=revision,
            allow_patterns=list(PATTERNS),
            local_dir=folder,
            cache_dir=cache,
            local_files_only=local_files_only,
        )
    )
    if not any(notes(path) for path in place.glob("*.parquet")):
        raise FileNotFoundError(f"no study in the data set {repo}: got no table of headroles; try another name")
    return place


def card(study: Study, repo: str) -> str:
    """Return the card of a study: its tables, their columns and provenance, and how to load it."""
    from huggingface_hub import DatasetCardData

    names, models, lines = study.names(), dict[str, None](), []
    signatures: dict[str, list[str]] = {}
    for name in names:
        texts = (notes(study.path(name)) or {}).get("signatures") or {}
        rows = parquet.read_metadata(study.path(name)).num_rows
        lines.append(f"- `{name}`: {rows} rows; {', '.join(without_ends(texts))}")
        for text in dict.fromkeys(texts.values()):
            signatures.setdefault(text, []).append(name)
            models |= dict.fromkeys(value for key, value in fields(text) if key == "model")
    data = DatasetCardData(
        tags=["headroles", "attention-heads"],
        configs=[{"config_name": name, "data_files": f"{name}.parquet"} for name in names],
    )
    text = CARD.format(
        models=", ".join(models) or "a model",
        beginning=BEGINNING,
        version=version("headroles"),
        repo=repo,
        first="heads" if "heads" in names else names[0],
        tables="\n".join(lines),
        provenance="\n".join(f"- {', '.join(dict.fromkeys(of))}: `{text}`" for text, of in signatures.items()),
    )
    return f"---\n{data.to_yaml()}\n---\n\n{text}"
