"""What stopping early saves: `python tests/benchmarks/early.py MODEL CORPUS [TARGET] [--limit N]`.

Closes every head and measures the loss, once with early stopping and once on the whole corpus, and a sample of the
sentences by the naive loop (a full forward for every head), all in one run. Prints the processor time of the naive
loop, scaled from the sample to the corpus, and of the whole sweep over that with early stopping, the share of the
examples that was run, and for how many heads the decision at p < 0.01 is the same. OMP_NUM_THREADS=1 makes processor
time the time a quiet machine takes.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

import headroles as hr
from headroles.models import attention_hooks, batching, heads
from headroles.models.dummy_inputs import without_cache
from headroles.models.masking import head_mask, mask_heads
from headroles.scores import objectives


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("target", nargs="?")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=2048)
    given = parser.parse_args()
    model, tokenizer = hr.load(given.model)
    corpus = hr.read(given.corpus, given.target, limit=given.limit)
    naive = _timed(lambda: _naive(model, tokenizer, corpus[:: max(1, len(corpus) // given.sample)], given.max_tokens))[
        1
    ]
    naive *= len(corpus) / len(corpus[:: max(1, len(corpus) // given.sample)])
    options = {"n_resamples": 0, "max_tokens": given.max_tokens}
    early, short = _timed(lambda: hr.ablate(model, tokenizer, corpus, early=True, **options))
    whole, long = _timed(lambda: hr.ablate(model, tokenizer, corpus, **options))
    run = early["ablation[loss early].examples"]
    same = (early["ablation[loss early].p"] < 0.01) == (whole["ablation[loss].p"] < 0.01)
    found = {
        "sentences": len(corpus),
        "naive loop / early": round(naive / short, 2),
        "whole sweep / early": round(long / short, 2),
        "naive loop / whole sweep": round(naive / long, 2),
        "share of examples run": round(float(run.mean()) / len(corpus), 3),
        "heads with p < 0.01": int((whole["ablation[loss].p"] < 0.01).sum()),
        "heads with the same decision": f"{int(same.sum())} of {len(same)}",
    }
    print(json.dumps(found, indent=1))


def _naive(model, tokenizer, corpus, max_tokens: int) -> None:
    encoded = batching.encode(corpus, tokenizer, model, words=False)
    with attention_hooks.evaluating(model), torch.inference_mode():
        groups = list(batching.batches(encoded, model, max_tokens=max_tokens))
        explain = objectives.objective("loss", model).explain(model, lambda: groups)
        for head in heads.head_index(model):
            gates = head_mask(model, [head])
            for batch in groups:
                with mask_heads(model, gates):
                    explain(model(**batch.inputs, **without_cache(model)), batch)


def _timed(run):
    start = time.process_time()
    return run(), time.process_time() - start


if __name__ == "__main__":
    main()
