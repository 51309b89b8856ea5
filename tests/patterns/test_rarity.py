"""Rarest: the rarest token of a sentence by counts of the corpus, in a plain loop; ablated by these counts."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from helpers.imposed import at, by_loop, lettered, table
from helpers.letters import observation

import headroles as hr
from headroles.patterns import Rarest


@pytest.mark.parametrize("kind", ["enc-self", "dec-self", "cross"])
def test_targets_are_the_rarest_token(kind):
    """Small ids are frequent here; of two that occur as often, the first is taken."""
    seen = observation(torch.ones(5, 5), kind=kind, special=(4,), ids=[5, 30, 600, 600, 999])
    expected = [at(2, 5).tolist() if kind != "dec-self" or query >= 2 else [0.0] * 5 for query in range(5)]
    assert table(Rarest(), seen) == expected
    assert table(Rarest(700), seen) == [[0.0] * 5] * 5


def test_ablated_is_a_slow_loop():
    case, head = lettered("gpt2"), ("dec-self", 1, 2)
    rows = [case.tokenizer(sentence.text)["input_ids"] for sentence in case.corpus]
    special = set(case.tokenizer.all_special_ids)
    counts = Counter(token for row in rows for token in row if token not in special)
    changes, steps = 0.0, 0
    slow = case.sharing(whole=True)
    site = next(site for site in hr.attention_sites(slow) if site.key == head[:2])
    for ids in rows:
        rarest = min(range(len(ids)), key=lambda place: counts[ids[place]] or len(rows) ** 3)  # noqa: B023
        row = lambda query, _: at(rarest, len(ids)) if query >= rarest and ids[query] not in special else None  # noqa: B023, E731
        inputs = torch.tensor([ids])
        labels = inputs.clone()
        with torch.no_grad(), by_loop(slow, site, head[2], row):
            imposed = slow(inputs, labels=labels).loss
        with torch.no_grad():
            changes += float(imposed - case.model(inputs, labels=labels).loss) * (len(ids) - 1)
        steps += len(ids) - 1
    table = hr.ablate(
        case.model, case.tokenizer, case.corpus, sets={"one": [head]}, replacement=Rarest(0), n_resamples=0
    )
    assert abs(changes / steps) > 1e-3
    assert table.iloc[0, 0] == pytest.approx(changes / steps, rel=1e-4)
