"""Fixtures and helpers first written for flips, which several tests share."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from headroles.tables import frame
from headroles.tables.io import load_table, save_table

INDEX = frame.index({("enc-self", 0): 4, ("cross", 0): 2})


SIGNATURE = "model:a|weights:1|corpus:b|text:2|headroles:0"


def table():
    rng = np.random.default_rng(0)
    draws = {"a": rng.random((6, 20)).astype("float32")}
    made = frame.table({"a": rng.random(6), "b": range(6)}, INDEX, SIGNATURE, draws=draws)
    made.attrs["recipe"] = SIGNATURE
    return made


def made(folder):
    """A kept table with what reads it."""
    return {save_table(table(), folder / "table.parquet"): load_table}


def flips(count, seed=0):
    """So many flips of one bit in kept files, each alone; how many of them were read as if nothing were."""
    chance, numbers = random.Random(seed), {"flips": 0, "unnoticed": 0}
    with TemporaryDirectory() as folder:
        files = [(path, read, path.read_bytes()) for path, read in made(Path(folder)).items()]
        for number in range(count):
            path, read, content = files[number % len(files)]
            bit = chance.randrange(8 * len(content))
            path.write_bytes(flipped(content, bit))
            numbers["flips"] += 1
            numbers["unnoticed"] += noticed(path, read) is None
    return numbers


def flipped(content, bit):
    return content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]


def noticed(path, read):
    """The message of the error that reading ends with, None where it is read."""
    try:
        read(path)
    except ValueError as error:
        return str(error) if str(error).startswith(f"{path} is ") else None
    return None
