"""Heads of the Marian ablated cumulatively, by the rankings of Michel et al. and others, on test 2017; it resumes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

import headroles as hr
from headroles.ablation.curves import orders as orders_by
from headroles.tables import frame

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "minilm-mrpc"))

from again import ranked_again  # noqa: E402 - in another folder

MICHEL = ["importance[layer]", "importance"]  # normalised within layers, as in the paper, and raw
OTHERS = ["-importance", "confidence", "relevance[cp].size", "ablation[loss]"]
SCORES = ["confidence", "importance", hr.Importance(norm="layer"), "relevance"]
RANKED, AGAIN = 500, 300  # pairs of val, by which heads are ranked for the effect, and ranked again at each step


def curves(
    shared: Path,
    part: Annotated[Literal["together", "each"], typer.Argument(help="All kinds together, or each alone.")],
    work: Annotated[Path, typer.Option(help="Folder of unfinished work.")] = Path(".curves"),
    limit: Annotated[int | None, typer.Option(help="Captions; fewer only to try the script.")] = None,
) -> None:
    """Rank the heads on val; ablate more and more of them on test 2017, measured by BLEU."""
    torch.set_num_threads(1)
    model, tokenizer = hr.load(shared / "models/multi30k-en-de")
    captions = shared / "data/multi30k"
    val = hr.read(captions / "val.en.gz", captions / "val.de.gz", limit=limit)
    test = hr.read(captions / "test_2017_flickr.en.gz", captions / "test_2017_flickr.de.gz", limit=limit)
    scores = hr.score(model, tokenizer, val, SCORES, study=work)
    effects = hr.ablate(model, tokenizer, val[:RANKED], study=work)
    kind = "each" if part == "each" else None
    rankings = MICHEL if kind else MICHEL + OTHERS
    orders = orders_by(frame.join(scores, effects), rankings, kind=kind, seeds=0 if kind else 3)
    if not kind:
        orders["importance, again"] = ranked_again(model, tokenizer, val[:AGAIN])
    hr.ablation_curve(model, tokenizer, test, orders, metric="bleu", kind=kind, study=work)
    place, suffix = work if limit else HERE / "curves", "-each" if kind else ""  # a trial is no result
    for name in (f"curves-bleu{suffix}", "heads", "ablation-loss-head-zero"):
        made = hr.load_table(work / f"{name}.parquet")
        made.attrs.pop("resamples", None)
        hr.save_table(made, place / f"{name}.parquet")
