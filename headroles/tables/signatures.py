"""Signatures: what a column or a table was made from, in one line of `key:value` fields joined by bars (no torch)."""

from __future__ import annotations

import re
from urllib.parse import unquote

_UNSAFE = re.compile(r"[%|\x00-\x1f\x7f]")  # what a value may not hold as it is


def sign(**fields: object) -> str:
    """Join fields to a signature, as in sacreBLEU's scores; `fields` reads it.

    Bars, percent signs and control characters of a value are written as in a URL: %7C, %25, %0A.
    """
    return "|".join(f"{key}:{_UNSAFE.sub(_escaped, str(value))}" for key, value in fields.items())


def holding(**signatures: str) -> str:
    """Join fields whose values are whole signatures themselves, as they are."""
    return "|".join(f"{key}:{text}" for key, text in signatures.items())


def fields(text: str) -> list[tuple[str, str]]:
    """Read the keys and values of a signature, in order, and of signatures that it holds."""
    parts = (part.partition(":") for part in text.split("|"))
    return [(key, unquote(value)) for key, _, value in parts]


def metric_of(text: str) -> str:
    """Read which metric a signature names: "bleu"; "" where it names none."""
    return dict(fields(text)).get("metric", "").partition("(")[0].lower()


def _escaped(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"
