"""Rankings name every head once, in the order of a score, an effect, roles, the layer or chance."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from helpers.prunings import grid, learnt, setting
from helpers.trainings import films, tokenizer

import headroles as hr
from headroles.analysis import role_rules
from headroles.models import heads as families
from headroles.pruning import rankings
from headroles.pruning.rankings import (
    NAMED,
    ByEffect,
    ByEffectPerTime,
    ByPosition,
    ByRoles,
    ByScore,
    FromColumn,
    Random,
    RankingContext,
)
from headroles.pruning.selection import prune
from headroles.tables import frame
from headroles.testing.case import Case


def placed(where, alternating=False, layers=6):
    """The layers in the order in which `Place` empties them."""
    line = ByPosition(where, alternating).order(RankingContext(None, None, None, grid(layers, 2, "enc-self")))
    return [layer for _, layer, _ in line][::2]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_an_order_has_every_head_once_and_its_reverse_is_the_other_way(name):
    first = rankings.ranking(name).order(setting())
    assert sorted(first) == sorted(families.head_index(learnt()))
    assert rankings.ranking(name).order(setting()) == first
    assert rankings.ranking(f"-{name}").order(setting()) == first[::-1]
    assert rankings.ranking(f"-{name}").name == f"-{name}"


@pytest.mark.parametrize(
    ("where", "alternating", "layers"),
    [("bottom", False, [0, 1, 2, 3, 4, 5]), ("top", False, [5, 4, 3, 2, 1, 0]), ("middle", False, [2, 3, 1, 4, 0, 5]),
     ("ends", False, [0, 5, 1, 4, 2, 3]), ("bottom", True, [0, 2, 4, 1, 3, 5]), ("top", True, [5, 3, 1, 4, 2, 0]),
     ("middle", True, [2, 4, 0, 3, 1, 5])]
)  # fmt: skip
def test_layers_go_in_their_order(where, alternating, layers):
    assert placed(where, alternating) == layers


def test_kinds_take_turns_within_a_place():
    line = ByPosition("bottom").order(RankingContext(None, None, None, grid(2, 4, "enc-self", "cross")))
    assert [layer for _, layer, _ in line] == [0] * 8 + [1] * 8
    assert {kind for kind, _, _ in line[:2]} == {"enc-self", "cross"}


@pytest.mark.parametrize(("spread", "groups"), [("kind", 2), ("layer", 6)])
def test_chance_can_be_spread_over_kinds_or_layers_and_depends_on_the_seed_alone(spread, groups):
    line = Random(spread).order(RankingContext(None, None, None, grid(3, 4, "enc-self", "cross"), 3))
    for start in range(0, len(line), groups):
        part = line[start : start + groups]
        assert len({head[: 1 + (spread == "layer")] for head in part}) == groups
    lines = [Random().order(setting(seed)) for seed in (0, 0, 1)]
    assert lines[0] == lines[1] != lines[2]


def test_a_score_puts_the_smallest_first():
    table = hr.score(learnt(), tokenizer(), films(24), ["importance"], n_resamples=0)
    line = ByScore("importance").order(setting())
    assert table["importance"].loc[line].is_monotonic_increasing
    assert FromColumn(table["importance"]).order(setting()) == line


def test_sinks_go_first():
    """Heads that attend to the first token most, by a loop over the captured attention of each text."""
    model, tokens, mass = learnt(), tokenizer(), dict.fromkeys(families.head_index(learnt()), 0.0)
    for one in films(24):
        inputs = tokens(one.text, return_tensors="pt", return_special_tokens_mask=True)
        content = inputs.pop("special_tokens_mask")[0] == 0

        def add(site, weights, content=content):
            for head in range(site.heads):
                mass[*site.key, head] += float(weights[0, head, content, 0].sum())

        with torch.no_grad(), hr.capture_attention(model, add):
            model(**inputs)
    line = rankings.ranking("sink").order(setting())
    sinks = pd.Series(mass)[line]
    assert (sinks.diff().dropna() <= 1e-4 * sinks.max()).all()
    assert sinks.iloc[0] > 1.2 * sinks.iloc[-1]
    table = prune(learnt(), tokenizer(), films(24), "sink", keep=3, remove=False)
    assert list(table.index[table["survival[sink 3]"] == 1].sort_values()) == sorted(line[-3:])


def test_effect_puts_the_least_missed_first_for_either_direction_of_a_metric():
    for metric, sign in (("loss", 1), ("accuracy", -1)):
        table = hr.ablate(learnt(), tokenizer(), films(24), metric=metric, n_resamples=0)
        line = ByEffect(metric).order(setting())
        assert (sign * table.iloc[:, 0]).loc[line].is_monotonic_increasing


@pytest.mark.parametrize("unit", ["head", "group"])
def test_effects_per_time_divide_by_the_numbers_that_generation_reads(unit):
    """A layer with a window of 4 tokens reads less of the cache: weights and cached numbers, counted from shapes."""
    case = Case(hr.tiny_model("gemma3_text", num_key_value_heads=2))
    heads = [("dec-self", layer, head) for layer in (0, 1) for head in range(4)]
    taken = rankings.time_taken(case.model, 1000, unit)
    for layer, window in ((0, 4), (1, 1000)):
        attention = case.model.model.layers[layer].self_attn
        queries = attention.q_proj.weight.numel() + attention.o_proj.weight.numel()
        shared = attention.k_proj.weight.numel() + attention.v_proj.weight.numel()
        whole = queries + shared + 2 * 2 * 16 * window  # keys and values of two groups
        assert taken["dec-self", layer, 0] == whole / (4 if unit == "head" else 2)
    assert len(rankings.time_taken(hr.remove_heads(hr.tiny_model("bert"), "L0H0,L0H1,L0H2,L0H3"), 1000, unit)) == 4
    corpus = hr.repeated_tokens(case.tokenizer, 4, length=6)
    context = RankingContext(case.model, case.tokenizer, corpus, heads, unit=unit)
    line = ByEffectPerTime(context=1000).order(context)
    effects = hr.ablate(case.model, case.tokenizer, corpus, unit=unit, n_resamples=0).iloc[:, 0]
    assert [effects[head] / taken[head] for head in line] == sorted(effects[head] / taken[head] for head in heads)


def test_roles_go_last_and_the_farthest_from_one_first():
    index = frame.index({("enc-self", 0): 4})
    columns = {"position[-1]": [0.95, 0.2, 0.5, 0.1], "rarity": [0.1, 0.45, 0.1, 0.2], "confidence": [0.9] * 4}
    table = frame.table(columns, index, "made up")
    assert role_rules.margins(table).tolist() == pytest.approx([0.05, -0.05, -0.4, -0.3])
    line = ByRoles(table).order(RankingContext(None, None, None, list(index)))
    assert [head for _, _, head in line] == [2, 3, 1, 0]
    with pytest.raises(ValueError, match="table must have columns of alignment, .*, translation, got confidence$"):
        role_rules.margins(table[["confidence"]])
