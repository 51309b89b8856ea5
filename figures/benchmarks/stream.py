"""What a long file costs: `python tests/benchmarks/stream.py`, of made-up text, by the scores of a small BERT.

Writes a file of so many lines, reads it all as a stream, and scores its first part and its first ten: how long until
the first part is there, and the peak memory above that before the file was opened, in MiB. Each in a process of its
own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers import zoo
from helpers.letters import tokens_of
from length import _most

import headroles as hr

WORDS = [f"{a}{b}" for a in "abcdefghij" for b in "klmnopqrst"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000])
    parser.add_argument("--one", type=Path, help="a file: print what it costs only")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(_cost(given.one)))
        return
    rows = []
    with TemporaryDirectory() as folder:
        for lines in given.lines:
            file = Path(folder, "text.txt")
            with file.open("w") as out:
                out.writelines(
                    f"{' '.join(WORDS[(7 * n + 13 * i) % 100] for i in range(3 + n % 5))}\n" for n in range(lines)
                )
            done = subprocess.run([sys.executable, __file__, "--one", file], capture_output=True, text=True, check=True)
            rows.append({"lines": lines, "MiB of text": round(file.stat().st_size / 2**20)} | json.loads(done.stdout))
            print(rows[-1], flush=True)
    if given.output:
        given.output.write_text(json.dumps(rows, indent=1) + "\n")


def _cost(file: Path) -> dict[str, float]:
    model, tokenizer = zoo.tiny("bert"), tokens_of("bert")
    before, start = _most(), time.monotonic()
    parts = hr.StreamingCorpus(file).parts()
    first = next(parts)
    found: dict[str, float] = {"seconds to the first part": round(time.monotonic() - start, 2)}
    lines = len(first) + sum(len(part) for part in parts)
    found |= {"lines read": lines, "MiB, all read": round(_most() - before)}
    ten = file.with_name("ten.txt")
    with file.open() as text:
        ten.write_text("".join(islice(text, 10 * len(first))))
    hr.score(model, tokenizer, hr.StreamingCorpus(ten), ["confidence", "entropy"], n_resamples=0, max_tokens=65_536)
    return found | {"MiB, ten parts scored": round(_most() - before)}


if __name__ == "__main__":
    main()
