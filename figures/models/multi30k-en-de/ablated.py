"""Effects of the Marian's heads by the loss, on captions, mscoco and news, and of untrained weights; it resumes.

Written are `ablation`, `ablation-mscoco` and `ablation-newstest`, and of untrained weights `untrained`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

import headroles as hr
from headroles.models.loading import untrained

HERE = Path(__file__).parent
CORPORA = {  # study -> files of both languages, and how many pairs are read
    "ablation": ("multi30k/test_2016_flickr", None),
    "ablation-mscoco": ("multi30k/test_2017_mscoco", None),
    "ablation-newstest": ("ntrex/newstest2019", 500),
}
NAMES = ("ablation-loss-head-zero", "best-loss-zero", "best-loss-zero-halves")


def ablation(
    shared: Path,
    work: Annotated[Path, typer.Option(help="Folder of unfinished work.")] = Path(".ablation"),
) -> None:
    """Ablate every head alone, and on test 2016 all but one head of each layer."""
    torch.set_num_threads(1)
    model, tokenizer = hr.load(shared / "models/multi30k-en-de")
    for arm, subject in (("", model), ("untrained", untrained(model, seed=0))):
        for name, (files, limit) in CORPORA.items():
            if arm and name == "ablation-newstest":
                continue
            texts = shared / "data" / files
            corpus = hr.read(*(texts.with_name(f"{texts.name}.{side}.gz") for side in ("en", "de")), limit=limit)
            study = work / arm / name
            for unit in ("head", "all_but_one") if name == "ablation" else ("head",):
                hr.ablate(subject, tokenizer, corpus, unit=unit, study=study)
            for table in filter(lambda table: (study / f"{table}.parquet").is_file(), NAMES):
                made = hr.load_table(study / f"{table}.parquet")
                made.attrs.pop("resamples", None)
                hr.save_table(made, HERE / arm / name / f"{table}.parquet")
