"""Count the files of the package of which functions run while an attention score reads a batch.

    python tests/tools/files_run.py

`hr.score` computes the confidence of a tiny BERT; `sys.setprofile` notes each function of the package that runs from
the call that reads a batch to its sums.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from helpers import zoo  # noqa: E402
from helpers.letters import corpus, tokens_of  # noqa: E402

import headroles as hr  # noqa: E402
from headroles.scores.attention import AttentionPass  # noqa: E402

ROOT = Path(hr.__file__).parent


def files_run():
    """The functions that run, by file."""
    found, read, reads = defaultdict(set), AttentionPass.read.__code__, False

    def note(frame, event, _):
        nonlocal reads
        if frame.f_code is read:
            reads = event == "call"
        if reads and event == "call" and frame.f_code.co_filename.startswith(f"{ROOT}/"):
            found[frame.f_code.co_filename.removeprefix(f"{ROOT}/")].add(frame.f_code.co_qualname)

    model, tokenizer = zoo.tiny("bert"), tokens_of("bert")
    hr.attention_sites(model)  # which are found once
    sys.setprofile(note)
    try:
        hr.score(model, tokenizer, corpus(6), ["confidence"], n_resamples=0)
    finally:
        sys.setprofile(None)
    return dict(found)


if __name__ == "__main__":
    for place, names in sorted(files_run().items()):
        print(place, *sorted(names), sep="\n    ")
