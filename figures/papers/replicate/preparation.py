"""Sentence pairs cleaned, split and parsed, with a tokenizer that is trained on them."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random

import pandas as pd
from marian import pieced

import headroles as hr
from headroles import Corpus, Sentence
from headroles.data.readers import write
from headroles.tables import frame

FAULTS = ("not text", "too long", "twice", "also held out")
PAIRS = ("train", "dev", "test", "other")  # the parts that are a table of pairs
LONGEST = 50  # words of a sentence


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
        return self.folder / "tokenizer"


def prepared(folder: str | Path) -> Prepared:
    """Read a folder that `prepare` made."""
    place = Path(folder)
    files = {name: place / f"{name}.tsv.gz" for name in PAIRS}
    parts = {name: hr.read(file, form="parallel", name=name) for name, file in files.items() if file.is_file()}
    parsed = hr.read(place / "parsed.conllu.gz", place / "parsed-translations.txt.gz", name="parsed")
    return Prepared(place, parsed=parsed, **parts)


def prepare(
    folder: str | Path,
    pairs: Sequence[Corpus],
    other: Corpus | None = None,
    *,
    parsed: Corpus | None = None,
    held_out: int = 1000,
    trees: int = 1000,
    pieces: int = 8000,
    models: str | Path | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Clean and split sentence pairs, parse some, and train a tokenizer on them.

    Left out are pairs of which a side is not mostly letters or too long, repeated pairs, and training pairs of which a
    side is also held out (compared without case and punctuation).

    Args:
        folder: New folder.
        pairs: Corpora of sentence pairs.
        other: Test pairs of another domain; at most `held_out` are taken.
        parsed: Sentences with trees and translations; by default `trees` are drawn from `pairs` and parsed by Stanza.
        held_out: Number of source sentences each of dev and test, drawn by `seed`, with one translation each.
        trees: Number of source sentences drawn to be parsed.
        pieces: Largest number of pieces of the tokenizer of both languages.
        models: Folder of Stanza models.
        seed: Seed of the split.

    Returns:
        The number of `pairs` of each part, and of those left out by reason; the last table of the folder.
    """
    place, faults = Path(folder), Counter[str]()
    clean = list(_clean((pair for corpus in pairs for pair in corpus), faults))
    held, rest = _divided(clean, [held_out, held_out, *([] if parsed else [trees])], Random(seed))
    rows = {"dev": held[0], "test": held[1]}
    if other is not None:
        rows["other"] = list(_clean(other, faults))[:held_out]
    treed = list(_clean(parsed, faults)) if parsed else held[2]
    rows["train"] = _unseen(rest, [*rows.values(), treed], faults)
    if not all(sentence.has_tree for sentence in treed):
        treed = [*hr.parse(Corpus("parsed", tuple(treed)), models=models)]
    place.mkdir(parents=True)
    for name, part in rows.items():
        _write_lines(place / f"{name}.tsv.gz", (f"{pair.text}\t{_translation(pair)}" for pair in part))
    write(Corpus("parsed", tuple(treed)), place / "parsed.conllu.gz")
    _write_lines(place / "parsed-translations.txt.gz", map(_translation, treed))
    texts = (side for pair in rows["train"] for side in (pair.text, _translation(pair)))
    pieced(texts, pieces).save_pretrained(place / "tokenizer")
    counts = {f"left out: {fault}": faults[fault] for fault in FAULTS}
    counts |= {name: len(rows[name]) for name in PAIRS if name in rows} | {"parsed": len(treed)}
    sources = ",".join(f"{corpus.name} {corpus.hash}" for corpus in pairs)
    table = frame.signed(pd.DataFrame({"pairs": counts}).rename_axis("part"), frame.sign(sources=sources, seed=seed))
    hr.save_table(table, place / "counts.parquet")
    return table


def _clean(sentences: Iterable[Sentence], faults: Counter[str]) -> Iterator[Sentence]:
    """Yield pairs without a fault, each once; without a tree, runs of white space become one space."""
    seen = set()
    for pair in sentences:
        source, target = pair.text if pair.has_tree else _spaced(pair.text), _spaced(_translation(pair))
        if not (_is_text(source) and _is_text(target)):
            faults["not text"] += 1
        elif max(len(source.split()), len(target.split())) > LONGEST:
            faults["too long"] += 1
        elif (source, target) in seen:
            faults["twice"] += 1
        else:
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
        raise ValueError(f"at most half of the source sentences can be held out: got {sum(sizes)} of {len(groups)}")
    keys = list(groups)
    random.shuffle(keys)
    held = iter(keys)
    parts = [[groups[key][0] for key in islice(held, size)] for size in sizes]
    rest = [pair for key in held for pair in groups[key]]
    rest += [pair for key in keys[: sum(sizes)] for pair in groups[key][1:]]  # `_unseen` leaves these out
    random.shuffle(rest)
    return parts, rest


def _unseen(pairs: Sequence[Sentence], parts: Iterable[Sequence[Sentence]], faults: Counter[str]) -> list[Sentence]:
    """Select the pairs without a side in one of the parts."""
    held = {_key(text) for part in parts for pair in part for text in (pair.text, _translation(pair))}
    unseen = [pair for pair in pairs if not {_key(pair.text), _key(_translation(pair))} & held]
    faults["also held out"] += len(pairs) - len(unseen)
    return unseen


def _key(text: str) -> str:
    """Return a text without case, punctuation and spaces."""
    return "".join(filter(str.isalnum, text.casefold()))


def _translation(pair: Sentence) -> str:
    if pair.target is None:
        raise ValueError(f"pairs must have translations, got {pair.text!r} without one")
    return pair.target.text


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
