"""What has no number is an error, or is said."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from helpers import zoo
from helpers.letters import tokens_of

import headroles as hr
from headroles.data.corpus import Corpus
from headroles.scores.accumulator import Accumulator
from headroles.tables import frame
from headroles.testing.case import Case


def test_a_score_without_a_value_is_logged(caplog):
    hr.score(zoo.tiny("bert"), tokens_of("bert"), Corpus.of(["a", "b"]), ["previous", "confidence"], n_resamples=0)
    assert caplog.messages == ["previous of enc-self heads is NaN: no sentence of the corpus can be measured"]


def test_totals_are_those_of_every_sum_of_every_batch():
    """Batches of two blocks of queries; two of them have one more sum, once in another order."""
    random = np.random.default_rng(0)
    score, accumulator = hr.list_scores()["distance"](), Accumulator([], n_resamples=3, seed=0)
    expected = {}
    for names in (["far", "mass"], ["far", "mass"], ["far", "mass", "more"], ["more", "mass", "far"], ["far", "mass"]):
        weights = random.integers(0, 3, (4, 5)).astype(float)  # [1 + resamples, batch]
        for layer, _ in [(layer, block) for layer in range(2) for block in range(2)]:
            sums = {name: random.normal(size=(5, 3)) for name in names}
            accumulator.add(score, ("enc-self", layer), {name: torch.from_numpy(each) for name, each in sums.items()})
            for name, each in sums.items():
                expected[layer, name] = expected.get((layer, name), 0) + weights @ each
        accumulator.add(score, "enc-self", {"queries": torch.ones(5, 1)})
        expected["queries"] = expected.get("queries", 0) + weights @ np.ones((5, 1))
        accumulator.weigh(torch.from_numpy(weights))
    assert len(accumulator.totals) == len(expected)
    for (key, _, name), totals in accumulator.totals.items():
        np.testing.assert_allclose(totals, expected["queries" if name == "queries" else (key[1], name)], rtol=1e-12)


def test_a_corpus_of_one_sentence_has_values_and_no_intervals(caplog):
    case = Case(hr.tiny_model("bert"))
    table = hr.score(case.model, case.tokenizer, case.corpus[:1], ["confidence", "entropy"], n_resamples=200)
    ends = [name for name in table if name.endswith((".low", ".high"))]
    assert table[["confidence", "entropy"]].notna().all(axis=None)
    assert len(ends) == 4
    assert table[ends].isna().all(axis=None)
    assert "no interval of confidence, entropy: measured on a single sentence" in caplog.text
    role = hr.roles(table, [hr.Role("sharp", "confidence", 0.1)], test=True)
    assert role[["sharp.stability", "sharp.p", "sharp.holm"]].isna().all(axis=None)


def test_rarity_has_no_interval_where_ties_decide_which_tokens_are_frequent(caplog):
    case = Case(hr.tiny_model("bert"))
    counts = Counter(" ".join(sentence.text for sentence in case.corpus).split())
    repeated = sum(count > 1 for count in counts.values())
    assert 0 < repeated < len(counts)
    for frequent, reference in ((repeated, None), (repeated + 1, None), (repeated + 1, case.corpus)):
        caplog.clear()
        rarity = hr.scores.list_scores()["rarity"](frequent=frequent)
        table = hr.score(case.model, case.tokenizer, case.corpus, [rarity], n_resamples=50, reference=reference)
        known = frequent == repeated or reference is not None
        assert table["rarity"].notna().all()
        assert (table["rarity.low"].notna() == known).all()
        assert frame.resamples(table)
        assert np.isnan(frame.resamples(table)["rarity"]).all() != known
        said = (
            f"no interval of rarity: rare means outside the {frequent} most frequent tokens, and only {repeated} occur"
        )
        assert (said in caplog.text) != known


def test_rarity_says_of_which_side_it_has_no_interval(caplog):
    case = Case(hr.tiny_model("marian"))
    hr.score(case.model, case.tokenizer, case.corpus, [hr.scores.list_scores()["rarity"](frequent=7)], n_resamples=50)
    said = [text.partition(", rare means")[0] for text in caplog.messages if "no interval" in text]
    assert said == ["no interval of rarity: of the source", "no interval of rarity: of the target"]
