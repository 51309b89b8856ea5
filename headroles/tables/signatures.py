"""Signatures: provenance in one line of `key:value` fields joined by bars (no torch)."""

from __future__ import annotations

import re
from urllib.parse import unquote

_UNSAFE = re.compile(r"[%|\x00-\x1f\x7f]")  # characters that are escaped in values


def sign(**fields: object) -> str:
    """Join fields into a signature, as in sacreBLEU; `fields` reads it.

    Args:
        **fields: Names and values. Bars, percent signs and control characters are escaped as in a URL: %7C, %25, %0A.

    Returns:
        The signature.
    """
    return "|".join(f"{key}:{_UNSAFE.sub(_escaped, str(value))}" for key, value in fields.items())


def holding(**signatures: str) -> str:
    """Join fields with whole signatures as values, which are not escaped."""
    return "|".join(f"{key}:{text}" for key, text in signatures.items())


def fields(text: str) -> list[tuple[str, str]]:
    """Read the keys and values of a signature, in order, including those of nested signatures."""
    parts = (part.partition(":") for part in text.split("|"))
    return [(key, unquote(value)) for key, _, value in parts]


def metric_of(text: str) -> str:
    """Return the metric that a signature names, such as "bleu"; "" if it names none."""
    return dict(fields(text)).get("metric", "").partition("(")[0].lower()


def _escaped(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"
