"""Corpora of replications: read from a folder; or sentence pairs cleaned, split, parsed and with a tokenizer."""

from __future__ import annotations

import gzip
import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple, get_args

import pandas as pd

from headroles.data.corpus import Corpus, Sentence
from headroles.data.readers import read, write
from headroles.data.stanza_parser import Download, parse
from headroles.tables import frame
from headroles.tables.io import beside, load_table, save_table
from headroles.training.marian import pieced

Fault = Literal["not text", "too long", "twice", "also held out"]
COUNTS, TOKENIZER = "counts.parquet", "tokenizer"
PAIRS = ("train", "dev", "test", "other")  # the parts that are a table of pairs
TREES, TRANSLATIONS = "parsed.conllu.gz", "parsed-translations.txt.gz"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """Corpora of a replication: train, dev, test, sentences with trees, and another domain."""

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


class Material(NamedTuple):
    """Train, dev and test corpora, and more; None if the file is missing."""

    train: Corpus
    dev: Corpus
    test: Corpus
    other: Corpus | None = None  # another domain
    trees: Corpus | None = None
    other_trees: Corpus | None = None
    sentences: Corpus | None = None  # a few, for drawing attention; by default some with trees


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
    """Clean, split and parse sentence pairs, for a replication.

    A tokenizer is trained on them. Left out, and counted, are: pairs of which a side is not mostly letters, or longer
    than `longest` words; repeated pairs; and training pairs of which a side is also in a held-out part (compared
    without case and punctuation). A folder that the same call has made stays as it is.

    Args:
        folder: New folder.
        pairs: Corpora of sentence pairs.
        other: Test pairs of another domain, of which at most `held_out` are taken.
        parsed: Sentences with trees and translations; by default drawn from `pairs` and parsed by Stanza.
        held_out: Number of source sentences each of dev and test, drawn by `seed`, one translation each.
        trees: Number of source sentences drawn to be parsed.
        limit: Largest number of training pairs; by default all the rest.
        pieces: Largest number of pieces of the tokenizer, of both languages, learnt from the training pairs.
        longest: Words of the longest sentence.
        language: Language of the sources, as of `parse`.
        models: Folder of Stanza models, as of `parse`.
        download: Whether to download missing Stanza models, as of `parse`.
        seed: Seed of the split.

    Returns:
        The number of `pairs` of each part, and of those left out by reason.

    Raises:
        ValueError: For too few pairs, and for sentences without translation.
        FileExistsError: If the folder is not empty.
    """  # noqa: DOC502
    place = Path(folder)
    names = ",".join(f"{corpus.name} {corpus.hash}" for corpus in (*pairs, *filter(None, (other, parsed))))
    sizes = {"held_out": held_out, "trees": trees, "limit": limit, "pieces": pieces, "longest": longest}
    made_from = frame.sign_version(sources=names, seed=seed, **sizes, language=language)
    if (kept := _kept(place, made_from)) is not None:
        return kept
    faults: Counter[Fault] = Counter()
    drawn = [] if parsed is not None else [trees]
    clean = list(_clean((pair for corpus in pairs for pair in corpus), longest, faults))
    held, rest = _divided(clean, [held_out, held_out, *drawn], Random(seed))
    rows = {"dev": held[0], "test": held[1]}
    if other is not None:
        rows["other"] = list(_clean(other, longest, faults))[:held_out]
    treed = list(_clean(parsed, longest, faults)) if parsed is not None else held[2]
    rows["train"] = _unseen(rest, [*rows.values(), treed], faults)[:limit]
    if not all(rows.values()) or not treed:
        empty = ", ".join(name for name, part in {**rows, "parsed": treed}.items() if not part)
        why = ", ".join(f"{count} {fault}" for fault, count in faults.items() if count) or "none"
        raise ValueError(f"no pair is left for {empty}; left out were: {why}")
    if not all(sentence.has_tree for sentence in treed):
        treed = [*parse(Corpus("parsed", tuple(treed)), language=language, models=models, download=download)]
    draft = beside(place.absolute())
    try:
        table = _written(draft, rows, treed, pieces, faults, made_from)
        place.mkdir(parents=True, exist_ok=True)
        draft.replace(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return table


def _kept(place: Path, made_from: str) -> pd.DataFrame | None:
    """Return the counts of a folder that the same call has made; FileExistsError if it holds anything else."""
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return None
    if (place / COUNTS).is_file():
        table = load_table(place / COUNTS)
        if frame.provenance(table, "pairs") == made_from:
            return table
    raise FileExistsError(f"{place} exists and is not empty; name another folder, or remove it")


def prepared(folder: str | Path) -> Prepared:
    """Read a folder that `prepare` made; raise FileNotFoundError if a part is missing."""
    place = Path(folder)
    needed = [COUNTS, TOKENIZER, TREES, TRANSLATIONS, *map(_file, ("train", "dev", "test"))]
    if missing := [name for name in needed if not (place / name).exists()]:
        raise FileNotFoundError(f"{place} lacks {', '.join(missing)}; make such a folder with hr.papers.prepare")
    files = {name: place / _file(name) for name in PAIRS}
    parts = {name: read(file, form="parallel", name=name) for name, file in files.items() if file.is_file()}
    return Prepared(place, parsed=read(place / TREES, place / TRANSLATIONS, name="parsed"), **parts)


def material(folder: str | Path, *, limit: int | None = None) -> Material:
    """Read the corpora of a folder, by name; for a classifier train.tsv, or train.source.txt and train.target.txt."""
    place = Path(folder)
    parts = {name: part for name in Material._fields if (part := _part(place, name, limit)) is not None}
    if lacking := [name for name in ("train", "dev", "test") if name not in parts]:
        raise FileNotFoundError(
            f"no {lacking[0]} in {place}; a folder of data has train, dev and test: .tsv with labels, "
            f"or .source.txt and .target.txt; and if you have them other, trees and other_trees (.conllu), sentences"
        )
    return Material(**parts)


def _part(folder: Path, name: str, limit: int | None) -> Corpus | None:
    files = sorted(folder.glob(f"{name}.*"))
    if len(files) == 1:
        return read(files[0], limit=limit)
    sides = [file.name.split(".")[1] for file in files]
    if files and sides != ["source", "target"]:
        raise ValueError(
            f"expected {name}.source.* and {name}.target.* in {folder}; got {', '.join(f.name for f in files)}"
        )
    return read(*files, limit=limit) if files else None


def _clean(sentences: Iterable[Sentence], longest: int, faults: Counter[Fault]) -> Iterable[Sentence]:
    """Yield pairs without a fault, each once; without a tree, runs of white space become one space."""
    seen = set()
    for pair in sentences:
        if pair.target is None:
            raise ValueError(f"{pair.text!r} has no translation; give pairs: a table of two columns, or SOURCE,TARGET")
        source, target = pair.text if pair.has_tree else _spaced(pair.text), _spaced(pair.target.text)
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
        yield replace(pair if pair.has_tree else Sentence(source), target=Sentence(target))


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _is_text(text: str) -> bool:
    """Return whether at least half of the characters without spaces are letters, and all are printable."""
    characters = [letter for letter in text if not letter.isspace()]
    return 2 * sum(map(str.isalpha, characters)) >= len(characters) > 0 and text.isprintable()


def _divided(
    pairs: Sequence[Sentence], sizes: Sequence[int], random: Random
) -> tuple[list[list[Sentence]], list[Sentence]]:
    """Split into parts of some source sentences with their first translation, and all other pairs, shuffled."""
    groups: dict[str, list[Sentence]] = {}
    for pair in pairs:
        groups.setdefault(_key(pair.text), []).append(pair)
    if 2 * sum(sizes) > len(groups):
        raise ValueError(
            f"{len(groups)} different source sentences are too few to hold out {sum(sizes)}; hold out at most half"
        )
    keys = list(groups)
    random.shuffle(keys)
    held = iter(keys)
    parts = [[groups[key][0] for key in islice(held, size)] for size in sizes]
    rest = [pair for key in held for pair in groups[key]]
    rest += [
        pair for key in keys[: sum(sizes)] for pair in groups[key][1:]
    ]  # `_unseen` leaves these out and counts them
    random.shuffle(rest)
    return parts, rest


def _unseen(pairs: Sequence[Sentence], parts: Iterable[Sequence[Sentence]], faults: Counter[Fault]) -> list[Sentence]:
    """Select the pairs without a side in one of the parts."""
    held = {_key(side.text) for part in parts for pair in part for side in (pair, pair.target) if side is not None}
    kept = [pair for pair in pairs if pair.target and not {_key(pair.text), _key(pair.target.text)} & held]
    faults["also held out"] += len(pairs) - len(kept)
    return kept


def _key(text: str) -> str:
    """Return a text without case, punctuation and spaces."""
    return "".join(filter(str.isalnum, text.casefold()))


def _written(
    place: Path,
    rows: dict[str, list[Sentence]],
    treed: Sequence[Sentence],
    pieces: int,
    faults: Counter[Fault],
    made_from: str,
) -> pd.DataFrame:
    place.mkdir(parents=True)
    texts = {name: [(pair.text, _translation(pair)) for pair in part] for name, part in rows.items()}
    for name, part in texts.items():
        _write_lines(place / _file(name), map("\t".join, part))
    write(Corpus("parsed", tuple(treed)), place / TREES)
    _write_lines(place / TRANSLATIONS, map(_translation, treed))
    pieced((side for pair in texts["train"] for side in pair), pieces).save_pretrained(place / TOKENIZER)
    counts: dict[str, int] = {f"left out: {fault}": faults[fault] for fault in get_args(Fault)}
    counts |= {name: len(rows[name]) for name in PAIRS if name in rows} | {"parsed": len(treed)}
    table = pd.DataFrame({"pairs": counts}, dtype=int).rename_axis("part")
    save_table(frame.signed(table, made_from), place / COUNTS)
    return table


def _translation(pair: Sentence) -> str:
    return pair.target.text if pair.target else ""


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


def _file(part: str) -> str:
    return f"{part}.tsv.gz"
