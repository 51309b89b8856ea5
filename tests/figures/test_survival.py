"""Roles by chance: the draw, the patterns as the model attends by them, and the exchange of heads within a layer."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pandas as pd
import pytest
import torch
from assigned import FREE, Assigned, Patterns, Regular, assign, draw, moved
from contrasts import GATE_SEEDS, SIZES, contrasts, exchanged
from helpers import letters, zoo
from helpers.scripts import script
from transformers import MarianConfig, MarianMTModel

from headroles.data.corpus import Sentence
from headroles.models.tokens.alignment import NO_WORD, TokenizedSentence

# "a b c d": b is the root, c and a depend on it, d on c; c has two pieces. 1 is the end token.
TREE = Sentence(
    "a b c d", spans=((0, 1), (2, 3), (4, 5), (6, 7)), heads=(1, -1, 1, 2), relations=("x", "root", "x", "x")
)
ROW = TokenizedSentence([5, 6, 7, 8, 9, 1], [0, 1, 2, 2, 3, NO_WORD], TREE)
HALF = {2: 0.5, 3: 0.5}
EXPECTED = {
    "before": [{4: 1}, {0: 1}, {1: 1}, {2: 1}, {3: 1}],
    "after": [{1: 1}, {2: 1}, {3: 1}, {4: 1}, {0: 1}],
    "head": [{1: 1}, {5: 1}, {1: 1}, {1: 1}, HALF],
    "dependent": [{5: 1}, {0: 1}, {4: 1}, {4: 1}, {5: 1}],
    "rarest": [{3: 1}] * 5,
}
COUNTS = Counter({5: 9, 6: 8, 7: 7, 8: 1, 9: 3})


def model_with(table: pd.DataFrame, rows: list[TokenizedSentence]) -> MarianMTModel:
    torch.manual_seed(0)
    sizes = {"encoder_layers": 6, "decoder_layers": 1, "encoder_attention_heads": 8, "decoder_attention_heads": 2}
    config = MarianConfig(
        vocab_size=20,
        d_model=16,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        pad_token_id=0,
        decoder_start_token_id=0,
        **sizes,
    )
    model = MarianMTModel(config).eval()
    assign(model, Assigned(table, Patterns(rows, COUNTS), seed=3))
    return model


def test_heads_attend_by_what_was_drawn_in_any_batch():
    table, seen = draw(3), set()
    model = model_with(table, [ROW])
    ids = torch.tensor([ROW.ids, [7, 8, 1, 0, 0, 0]])
    with torch.no_grad():
        encoded = model.get_encoder()(input_ids=ids, attention_mask=(ids != 0).long(), output_attentions=True)
        alone = model.get_encoder()(input_ids=ids[1:, :3], output_attentions=True)
    torch.testing.assert_close(encoded.last_hidden_state[1:, :3], alone.last_hidden_state)
    for layer, head, role, way, control, shift in table.itertuples(index=False):
        weights = encoded.attentions[layer][0, head]
        if role == FREE:
            assert weights.max() < 1  # its softmax
            continue
        places = [*moved(5, shift, f"3 {layer} {role}"), 5] if control else range(6)
        expected = torch.zeros(6, 6)
        for query, keys in enumerate([*EXPECTED[way], {5: 1}]):
            for key, weight in keys.items():
                expected[query, places[key]] = weight
        torch.testing.assert_close(weights, expected)
        seen.add((way, control))
    assert len(seen) == 10  # each pattern and each control


def test_regular_controls_attend_further_away_or_by_the_tree_of_another_sentence():
    chain = Sentence(
        "a b c d e", tuple((2 * i, 2 * i + 1) for i in range(5)), heads=(-1, 0, 1, 2, 3), relations=("x",) * 5
    )
    other = TokenizedSentence([5, 6, 7, 8, 4, 1], [0, 1, 2, 3, 4, NO_WORD], chain)
    table, seen = draw(3, regular=True), set()
    assigned = Assigned(table, Regular([ROW, other], COUNTS), seed=3)
    assigned.read(torch.tensor([ROW.ids]), torch.ones(1, 6, dtype=torch.long))
    offsets = {"other head": -1, "other dependent": 1}
    offsets |= {f"{way} {apart}": sign * apart for way, sign in (("before", -1), ("after", 1)) for apart in (3, 4, 5)}
    for layer, head, role, way, control, shift in table.itertuples(index=False):
        if role in (FREE, "rare"):
            continue
        offset = offsets.get(way, {"before": -1, "after": 1}.get(way))
        places = (
            [{place + offset if 0 <= place + offset < 5 else 5: 1} for place in range(5)] if offset else EXPECTED[way]
        )
        expected = torch.zeros(6, 6)
        for query, keys in enumerate([*places, {5: 1}]):
            for key, weight in keys.items():
                expected[query, key] = weight
        torch.testing.assert_close(assigned.weights[layer, 0, head], expected)
        assert (way in offsets) == control
        assert (shift != 0) == (control and role == "position")
        seen.add(way)
    assert {"other head", "head"} <= seen or {"other dependent", "dependent"} <= seen


def test_syntax_is_that_of_the_trees_of_a_tokenised_corpus():
    """Without the words of tokens each token attended to the end, and no test noticed it."""
    corpus, tokenizer = letters.corpus(6), letters.tokenizer()
    patterns, partners = script("questions/survival")._patterns(zoo.tiny("marian"), tokenizer, (corpus,)), 0
    for sentence in corpus:
        encoded = tokenizer(sentence.text, return_offsets_mapping=True)
        ids, places = encoded["input_ids"], encoded["offset_mapping"][:-1]
        words = [next(word for word, (_, end) in enumerate(sentence.spans) if place[1] <= end) for place in places]
        weights = patterns.of(ids)[2]
        for token, word in enumerate(words):
            head = sentence.heads[word]
            expected = [place for place, other in enumerate(words) if other == head] or [len(words)]
            assert weights[token].nonzero().flatten().tolist() == expected
            partners += head >= 0
    assert partners > 20
    with pytest.raises(ValueError, match="tokens must have words, got none for 'a b c d'"):
        Patterns([TokenizedSentence(ROW.ids, [NO_WORD] * 6, TREE)], COUNTS)


def test_each_layer_has_each_role_its_control_and_two_free_heads():
    drawn = pd.concat([draw(seed).assign(seed=seed) for seed in range(20)])
    counts = drawn.groupby(["seed", "layer", "role", "control"]).size().unstack(["role", "control"])
    assert counts[FREE, False].eq(2).all()
    assert counts.drop(columns=(FREE, False)).eq(1).all(axis=None)
    far = drawn[drawn["shift"] != 0]
    assert far.groupby("seed").size().eq(3).all()
    assert set(far["shift"]) == {-4, -3, -2, 2, 3, 4}
    assert (far["way"].eq("before") == far["shift"].lt(0)).all()  # further in the direction of the role
    shares = drawn[(drawn["role"] == "syntax") & ~drawn["control"]]["head"].value_counts(normalize=True)
    assert shares.max() < 0.25  # by chance .125


@pytest.mark.parametrize("shift", [0, 2, -4])
def test_no_place_of_a_control_stays(shift):
    for size in range(2, 30):
        order = moved(size, shift, "a")
        assert sorted(order) == list(range(size))
        assert all(place != other for place, other in enumerate(order))
    assert moved(9, 0, "a") == moved(9, 0, "a") != moved(9, 0, "b")


def test_the_p_value_is_that_of_all_exchanges():
    differences = [3, 0, 2, -1, 3, 1, 2]
    sums = [
        sum(sign * value for sign, value in zip(signs, differences, strict=True))
        for signs in product((1, -1), repeat=7)
    ]
    assert exchanged(differences) == pytest.approx(sum(abs(total) >= 10 for total in sums) / len(sums))
    assert exchanged([1, -1]) == exchanged([0]) == 1


def test_contrasts_are_of_the_heads_of_one_layer():
    table = pd.concat([draw(seed).assign(model=seed) for seed in (0, 1)], ignore_index=True)
    with_role = table["role"].eq("syntax") & ~table["control"]
    for size in SIZES:
        for seed in GATE_SEEDS:
            left = with_role & ~((table["model"] == 1) & (table["layer"] == 0) & (seed == 0))
            table[f"survival[{size} {seed}]"] = (left | (table["shift"] != 0)).astype(int)
    found = contrasts(table).set_index(["keep", "role"])
    syntax = found.loc[(12, "syntax")]
    assert (syntax["survive"], syntax["control"], syntax["free"]) == (pytest.approx(35 / 36), 0, 0)
    assert syntax["difference"] == syntax["against free"] == pytest.approx(35 / 36)
    assert syntax["difference.low"] < 35 / 36 < syntax["difference.high"]
    assert syntax["p"] == 2 / 2**12
    assert syntax["p.holm"] == 6 / 2**12
    assert (found.xs("rare", level="role")["p"] == 1).all()
    position = found.loc[(12, "position")].set_index("controls")
    assert position["control"].to_dict() == {"all": 0.5, "3 to 5 away": 1, "permuted": 0}
    assert position["p.holm"].notna().tolist() == [True, False, False]


def test_the_picture_has_the_means_of_each_arm():
    table = pd.concat([draw(seed).assign(model=seed) for seed in (0, 1)], ignore_index=True)
    for size in SIZES:
        for seed in GATE_SEEDS:
            table[f"survival[{size} {seed}]"] = (table["role"].eq("rare") & ~table["control"] & (seed > 0)).astype(int)
    axes = script("questions/survival")._drawn(table).axes
    means = {line.get_label(): line.get_ydata() for line in axes[2].lines if not line.get_label().startswith("_")}
    assert [means[label] for label in means if "role" in label][0] == pytest.approx([2 / 3] * 3)
    assert means["free"] == pytest.approx([0] * 3)
    assert means["chance"] == pytest.approx([1 / 2, 1 / 4, 1 / 8])
