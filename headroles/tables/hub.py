"""Studies on the Hugging Face Hub: tables, figures, reports and a card, as a data set of parquet files (no torch)."""

from __future__ import annotations

import logging
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from headroles.tables.columns import without_ends
from headroles.tables.frame import fields
from headroles.tables.io import notes_in

if TYPE_CHECKING:
    from huggingface_hub import HfApi

log = logging.getLogger(__name__)
PATTERNS = ("*.parquet", "*.png", "*.svg", "*.pdf", "*.html", "README.md")  # files of a study; unfinished work stays
WAIT = 6  # seconds
BEGINNING = "Tables of [headroles](https://pypi.org/project/headroles)"
CARD = """---
{{ card_data }}
---

# Attention heads of {{ models | e }}

{{ beginning }} {{ version }}: what each attention head does, and whether it
matters. A row of most tables is a head (`kind`, `layer`, `head`); every column carries its provenance in the file's
metadata.

```python
import headroles as hr

study = hr.Study.from_hub("{{ repo }}")
study.load("{{ first }}")
hr.report(study, "report.html")
```

Without headroles: `datasets.load_dataset("{{ repo }}", "{{ first }}")`, or pandas' `read_parquet`.

## Tables

{% for name, rows, columns in tables -%}
- `{{ name | replace("`", "'") }}`: {{ rows }} rows; {{ columns | e }}
{% endfor %}
## Provenance

{% for text, names in provenance -%}
- {{ names | e }}: `{{ text | replace("`", "'") }}`
{% endfor %}"""


def push(study: Path, repo: str, *, private: bool, message: str, api: HfApi | None) -> str:
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


def prepare(study: Path, folder: str | Path, *, repo: str = "OWNER/NAME") -> Path:
    """Copy the tables, figures and reports of a study into a folder, with a card, as `push` uploads them."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for path in sorted({path for pattern in PATTERNS for path in study.glob(pattern)}):
        if path.is_file() and not path.is_symlink():
            shutil.copyfile(path, place / path.name)
        else:
            log.warning("%s is not uploaded: it is a link, or no file", path)
    if not notes_in(place):
        raise FileNotFoundError(f"no tables in {study}; make them with headroles score")
    written = place / "README.md"
    if not written.exists() or BEGINNING in written.read_text(encoding="utf-8"):  # otherwise the study has its own
        written.write_text(card(place, repo), encoding="utf-8")
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
    if not notes_in(place):
        raise FileNotFoundError(f"no study in the data set {repo}: got no table of headroles; try another name")
    return place


def card(study: Path, repo: str) -> str:
    """Return the card of a study: its tables, their columns and provenance, and how to load it."""
    from huggingface_hub import DatasetCard, DatasetCardData

    models, tables = dict[str, None](), []
    signatures: dict[str, list[str]] = {}
    for name, notes in notes_in(study).items():
        texts = notes["signatures"] or {}
        tables.append((name, notes["rows"], ", ".join(without_ends(texts))))
        for text in dict.fromkeys(texts.values()):
            signatures.setdefault(text, []).append(name)
            models |= dict.fromkeys(value for key, value in fields(text) if key == "model")
    names = [name for name, *_ in tables]
    made = DatasetCard.from_template(
        DatasetCardData(
            tags=["headroles", "attention-heads"],
            configs=[{"config_name": name, "data_files": f"{name}.parquet"} for name in names],
        ),
        template_str=CARD,
        models=", ".join(models) or "a model",
        beginning=BEGINNING,
        version=version("headroles"),
        repo=repo,
        first="heads" if "heads" in names else names[0],
        tables=tables,
        provenance=[(text, ", ".join(dict.fromkeys(of))) for text, of in signatures.items()],
    )
    return str(made)


def unreachable() -> str:
    """Return why the Hub cannot be reached; "" if it can. Libraries that fetch from it would try for minutes."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    reasons = [f"no answer from {constants.ENDPOINT} in {WAIT} s"]

    def ask() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=WAIT)
        except Exception as error:  # noqa: BLE001  # of the HTTP library or of the system
            reasons.append(f"{type(error).__name__} at {constants.ENDPOINT}")
        else:
            reasons.append("")

    thread = Thread(target=ask, daemon=True)  # names are looked up without a limit of time
    thread.start()
    thread.join(WAIT)
    return reasons[-1]
