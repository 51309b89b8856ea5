"""Sound: recordings in files, bytes or samples, and when the words of a transcript are spoken (no torch)."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]  # of one channel
Times = tuple[float, float]  # seconds at which a word begins and ends
SUFFIXES = (".flac", ".wav", ".mp3", ".ogg", ".opus", ".m4a", ".aiff")
LATE = 0.1  # seconds after the end of a sound up to which a word may end, as aligners round
EXTRA = {"soundfile": "reads sound", "soxr": "changes its rate", "jiwer": "counts wrong words"}


@dataclass(frozen=True)
class Sound:
    """A recording, which is read when it is needed; two with the same samples are equal.

    Attributes:
        digest: First 12 hexadecimal digits of the SHA-256 of its rate and samples.
        seconds: Its length.
        source: Its file, the bytes of one, or samples and their rate.
    """

    digest: str
    seconds: float
    source: Path | bytes | tuple[Samples, int] = field(repr=False, compare=False)

    @classmethod
    def of(cls, given: Any, where: str, folder: Path) -> Sound:
        """Return the sound of a cell: a path, which may begin at `folder`, or what Hugging Face's `Audio` gives."""
        if isinstance(given, Mapping) and given.get("bytes") is not None:
            source: Path | bytes | tuple[Samples, int] = bytes(given["bytes"])
        elif isinstance(given, str | Path) or (isinstance(given, Mapping) and given.get("path")):
            source = folder / str(given["path"] if isinstance(given, Mapping) else given)
        else:
            try:  # decoded, by `datasets` or by torchcodec
                source = np.asarray(given["array"], dtype=np.float32).squeeze().T, int(given["sampling_rate"])
            except (TypeError, KeyError) as error:
                raise ValueError(f"{where} must have the path of a sound in audio, got {given!r:.60}") from error
        samples, rate = _decoded(source, where)
        digest = hashlib.sha256(f"{rate}".encode() + samples.tobytes()).hexdigest()[:12]
        return cls(digest, len(samples) / rate, source)

    def samples(self, rate: int) -> Samples:
        """Return the samples at `rate` a second; of several channels the mean."""
        samples, given = _decoded(self.source, str(self))
        return samples if given == rate else extra("soxr").resample(samples, given, rate).astype(np.float32)


def extra(package: str) -> Any:
    """Import a package of the extra `[audio]`; ModuleNotFoundError without it."""
    if find_spec(package) is None:
        raise ModuleNotFoundError(f"{package}, which {EXTRA[package]}, is missing: pip install 'headroles[audio]'")
    return import_module(package)


def _decoded(source: Path | bytes | tuple[Samples, int], where: str) -> tuple[Samples, int]:
    """Read samples of one channel and their rate; ValueError for a file without finite ones."""
    if isinstance(source, tuple):
        samples, rate = source
    else:
        if isinstance(source, Path) and not source.is_file():
            raise FileNotFoundError(f"{where}: no sound at {source}")
        soundfile = extra("soundfile")
        try:
            samples, rate = soundfile.read(io.BytesIO(source) if isinstance(source, bytes) else source, dtype="float32")
        except soundfile.LibsndfileError as error:
            raise ValueError(f"{where}: the sound cannot be read: {error}") from error
    samples = samples.mean(axis=-1) if samples.ndim > 1 else samples  # of channels
    if not len(samples) or not np.isfinite(samples).all():
        raise ValueError(f"{where}: the sound must have finite samples, got {len(samples) or 'none'}")
    return samples, int(rate)


def recordings(folder: Path) -> list[Path]:
    """Return the files of sounds in a folder; none for a file."""
    return [path for path in (sorted(folder.iterdir()) if folder.is_dir() else ()) if path.suffix.lower() in SUFFIXES]


def with_transcripts(paths: Sequence[Path]) -> Iterator[dict[str, object]]:
    """Yield the rows of sounds, each with the transcript in the file of its name that ends in .txt."""
    for path in paths:
        transcript = path.with_suffix(".txt")
        if not transcript.is_file():
            raise FileNotFoundError(f"no transcript at {transcript}, for {path.name}; expected one beside each sound")
        yield {"audio": path.absolute(), "text": " ".join(transcript.read_text(encoding="utf-8").split())}


def undecoded(rows: Any) -> Any:
    """Return a data set with its sounds as bytes; to decode them `datasets` would need torchcodec."""
    for name, feature in (getattr(rows, "features", None) or {}).items():
        if type(feature).__name__ == "Audio":
            rows = rows.cast_column(name, type(feature)(decode=False))
    return rows


# Aligners write words without punctuation, or in capitals, or with it. So a word is the next one of the transcript from
# its first letter on, whatever stands between words. Then a list of another transcript shows at its first other word.
def timed(
    words: Sequence[Any], text: str, seconds: float, where: str
) -> tuple[tuple[tuple[int, int] | None, ...], tuple[Times | None, ...]]:
    """Return the characters and the seconds of each word; ValueError if they disagree with the text or the sound."""
    spans: list[tuple[int, int] | None] = []
    times: list[Times | None] = []
    at, latest = 0, 0.0
    for number, row in enumerate(words, 1):
        if not isinstance(row, Mapping) or not isinstance(row.get("word"), str):
            raise ValueError(f"{where}: words must have word, start and end, got {row!r:.60}")
        word = re.sub(r"^[\W_]+", "", row["word"].strip())
        match = re.compile(rf"[\W_]*({re.escape(word)})", re.IGNORECASE).match(text, at) if word else None
        if word and match is None:
            raise ValueError(
                f"{where}: word {number} of the list is {row['word']!r}, but the transcript continues with "
                f"{text[at : at + 20].strip()!r}; expected the words of the transcript, in its order"
            )
        spans.append(match and match.span(1))
        at = at if match is None else match.end(1)
        start, end = row.get("start"), row.get("end")
        if match is None or start is None or end is None:
            times.append(None)
            continue
        if not latest <= start <= end <= seconds + LATE or start >= seconds:
            raise ValueError(
                f"{where}: word {number}, {row['word']!r}, must be spoken after the one before and within "
                f"{seconds:.2f} seconds, got {start} to {end}"
            )
        times.append((float(start), min(float(end), seconds)))
        latest = start
    return tuple(spans), tuple(times)
