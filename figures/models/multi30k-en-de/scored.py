"""Scores of the Marian on captions that its other tables lack: by norms, gradients, attribution."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import headroles as hr
from headroles.tables import frame

NORMED = ["confidence", "entropy", "distance", "rarity", "position", "syntax", "sink", "alignment"]
UNSEEN = re.compile(r"syntax|position(-norm)?\[(-2|0|\+1|\+2|offset)\]|.*\.(words|p|bh)$")


def scores(shared: Path, trees: Path, output: Path = Path(__file__).parent / "maps") -> None:
    """Score the heads of the Marian, and write a lean table."""
    torch.set_num_threads(1)
    model, tokenizer = hr.load(shared / "models/multi30k-en-de")
    corpus = hr.read(trees, shared / "data/multi30k/test_2016_flickr.de.gz")
    part = corpus.sample(200)
    patching = [hr.AttributionPatching(), hr.AttributionPatching(drop=False), hr.AttributionPatching(node="query")]
    relevance = [hr.Relevance(), hr.Relevance(rules="attn")]
    table = frame.join(
        hr.score(model, tokenizer, corpus, NORMED, weights="norm", n_resamples=0),
        hr.score(model, tokenizer, corpus, ["importance", hr.Direct(), *relevance], n_resamples=200),
        hr.score(model, tokenizer, part, patching, n_resamples=200),
        hr.attribute(model, tokenizer, part, n_resamples=200),
        hr.scores.copying(model),
    )
    table.attrs.pop("resamples", None)
    seen = [name for name in map(str, table) if not UNSEEN.match(name)]
    hr.save_table(frame.only(table, seen), output / "heads.parquet")
