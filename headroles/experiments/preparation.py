"""Pairs made ready for training: cleaned, divided into parts, parsed, with a tokenizer of their own, in one folder."""

from __future__ import annotations

import gzip
import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args

import pandas as pd

from headroles.data.corpus import Corpus, Sentence
from headroles.data.readers import read, write
from headroles.data.stanza_parser import Download, parse
from headroles.tables import frame
from headroles.tables.files import beside
from headroles.tables.io import save_table
from headroles.training.marian import pieced

Fault = Literal["not text", "too long", "twice", "also held out"]
COUNTS, TOKENIZER = "counts.parquet", "tokenizer"
PAIRS = ("train", "dev", "test", "other")  # the parts that are a table of pairs
TREES, TRANSLATIONS = "parsed.conllu.gz", "parsed-translations.txt.gz"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """What a replication needs: pairs to train on, held-out ones, those of another domain, and sentences with trees."""

    folder: Path
    train: Corpus
    dev: Corpus
    test: Corpus
    parsed: Corpus
    other: Corpus | None = None

    @property
    def tokenizer(self) -> Path:
        """The folder of the tokenizer."""
        return self.folder / TOKENIZER


def prepare(
    folder: str | Path,
    pairs: Sequence[Corpus],
    other: Corpus | None = None,
    *,
    parsed: Corpus | None = None,
    held_out: int = 1000,
    trees: int = 1000,
    limit: int | None = None,
    pieces: int = 8000,
    longest: int = 50,
    language: str = "en",
    models: str | Path | None = None,
    download: Download | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Put what `replicate` needs into a new folder, from sentence pairs of one or several corpora: how many went where.

    `held_out` source sentences each go into dev and test and `trees` into the part with trees, drawn by `seed`, one
    translation each; the rest is to train on, at most `limit` pairs. What is drawn for trees is parsed by Stanza
    (`language`, `models`, `download`: as for `parse`) unless it has trees; `parsed` are sentences with trees and
    translations to take instead. `other` is a test of another domain, of which at most `held_out` pairs are taken.

    Left out, and counted: pairs of which a side is not mostly letters, or longer than `longest` words; pairs that come
    twice; and pairs to train on of which a side is in a held-out part too (compared without case and punctuation). The
    tokenizer has at most `pieces` pieces of both languages, learnt from what is to train on. Raises ValueError for too
    few pairs, for sentences without translation, and FileExistsError for a folder that is not empty.
    """
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise FileExistsError(f"{place} is there already, and not empty; name another folder, or remove it")
    faults: Counter[Fault] = Counter()
    drawn = [] if parsed is not None else [trees]
    clean = list(_clean((one for corpus in pairs for one in corpus), longest, faults))
    held, rest = _divided(clean, [held_out, held_out, *drawn], Random(seed))
    rows = {"dev": held[0], "test": held[1]}
    if other is not None:
        rows["other"] = list(_clean(other, longest, faults))[:held_out]
    treed = list(_clean(parsed, longest, faults)) if parsed is not None else held[2]
    rows["train"] = _unseen(rest, [*rows.values(), treed], faults)[:limit]
    if not all(rows.values()) or not treed:
        empty = ", ".join(name for name, own in {**rows, "parsed": treed}.items() if not own)
        why = ", ".join(f"{count} {fault}" for fault, count in faults.items() if count) or "none"
        raise ValueError(f"no pair is left for {empty}; left out were: {why}")
    if not all(one.has_tree for one in treed):
        treed = [*parse(Corpus("parsed", tuple(treed)), language=language, models=models, download=download)]
    draft = beside(place.absolute())
    try:
        table = _written(draft, rows, treed, pieces, faults, [*pairs, *filter(None, (other, parsed))], seed)
        place.mkdir(parents=True, exist_ok=True)
        draft.replace(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return table


def prepared(folder: str | Path) -> Prepared:
    """What `prepare` put into a folder. Raises FileNotFoundError with what is missing."""
    place = Path(folder)
    needed = [COUNTS, TOKENIZER, TREES, TRANSLATIONS, *map(_file, ("train", "dev", "test"))]
    if missing := [name for name in needed if not (place / name).exists()]:
        raise FileNotFoundError(f"{place} lacks {', '.join(missing)}; make such a folder with headroles prepare")
    parts = {name: read(place / _file(name), form="parallel", name=name) for name in PAIRS if _has(place, name)}
    return Prepared(place, parsed=read(place / TREES, place / TRANSLATIONS, name="parsed"), **parts)


def _clean(sentences: Iterable[Sentence], longest: int, faults: Counter[Fault]) -> Iterable[Sentence]:
    """Pairs without a fault, each once, runs of white space made one space where there is no tree."""
    seen = set()
    for one in sentences:
        if one.target is None:
            raise ValueError(f"{one.text!r} has no translation; give pairs: a table of two columns, or SOURCE,TARGET")
        source, target = one.text if one.has_tree else _spaced(one.text), _spaced(one.target.text)
        fault: Fault | None = None
        if not (_is_text(source) and _is_text(target)):
            fault = "not text"
        elif max(len(source.split()), len(target.split())) > longest:
            fault = "too long"
        elif (source, target) in seen:
            fault = "twice"
        if fault is not None:
            faults[fault] += 1
            continue
        seen.add((source, target))
        yield replace(one if one.has_tree else Sentence(source), target=Sentence(target))


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _is_text(text: str) -> bool:
    """Whether at least half of the characters but spaces are letters, and none is a control character."""
    characters = [one for one in text if not one.isspace()]
    return 2 * sum(map(str.isalpha, characters)) >= len(characters) > 0 and text.isprintable()


def _divided(
    pairs: Sequence[Sentence], sizes: Sequence[int], random: Random
) -> tuple[list[list[Sentence]], list[Sentence]]:
    """Parts of so many source sentences, the first translation of each; and all other pairs in random order."""
    groups: dict[str, list[Sentence]] = {}
    for one in pairs:
        groups.setdefault(_key(one.text), []).append(one)
    if 2 * sum(sizes) > len(groups):
        raise ValueError(
            f"{len(groups)} different source sentences are too few to hold out {sum(sizes)}; hold out at most half"
        )
    keys = list(groups)
    random.shuffle(keys)
    parts, start = [], 0
    for size in sizes:
        parts.append([groups[key][0] for key in keys[start : start + size]])
        start += size
    rest = [one for key in keys[start:] for one in groups[key]]
    rest += [one for key in keys[:start] for one in groups[key][1:]]  # which `_unseen` leaves out and counts
    random.shuffle(rest)
    return parts, rest


def _unseen(pairs: Sequence[Sentence], parts: Iterable[Sequence[Sentence]], faults: Counter[Fault]) -> list[Sentence]:
    """The pairs neither side of which is in one of the parts."""
    held = {_key(side.text) for part in parts for one in part for side in (one, one.target) if side is not None}
    kept = [one for one in pairs if one.target and not {_key(one.text), _key(one.target.text)} & held]
    faults["also held out"] += len(pairs) - len(kept)
    return kept


def _key(text: str) -> str:
    """What two texts have in common that are the same but for case, punctuation and spaces."""
    return "".join(filter(str.isalnum, text.casefold()))


def _written(
    place: Path,
    rows: dict[str, list[Sentence]],
    treed: Sequence[Sentence],
    pieces: int,
    faults: Counter[Fault],
    sources: Sequence[Corpus],
    seed: int,
) -> pd.DataFrame:
    place.mkdir(parents=True)
    texts = {name: [(one.text, one.target.text if one.target else "") for one in own] for name, own in rows.items()}
    for name, sides in texts.items():
        _write_lines(place / _file(name), ["\t".join(pair) for pair in sides])
    write(Corpus("parsed", tuple(treed)), place / TREES)
    _write_lines(place / TRANSLATIONS, [one.target.text if one.target else "" for one in treed])
    pieced((side for pair in texts["train"] for side in pair), pieces).save_pretrained(place / TOKENIZER)
    counts: dict[str, Any] = {f"left out: {fault}": faults[fault] for fault in get_args(Fault)}
    counts |= {name: len(rows[name]) for name in PAIRS if name in rows} | {"parsed": len(treed)}
    table = pd.DataFrame({"pairs": counts}, dtype=int).rename_axis("part")
    text = frame.sign(
        sources=",".join(f"{one.name} {one.hash}" for one in sources), seed=seed, headroles=version("headroles")
    )
    table.attrs["signatures"] = {"pairs": text}
    save_table(table, place / COUNTS)
    return table


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


def _file(part: str) -> str:
    return f"{part}.tsv.gz"


def _has(place: Path, part: str) -> bool:
    return (place / _file(part)).is_file()
