"""A replay equals the gated model, each effect a plain loop, each p its textbook, and a stopped sweep goes on."""

from __future__ import annotations

import signal
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import sacrebleu
import scipy.stats
import torch
import transformers
from accelerate.hooks import ModelHook, add_hook_to_module
from helpers import zoo
from helpers.ablations import (
    ALL,
    Stopping,
    by_hand,
    closing,
    column,
    files,
    generated,
    given,
    looped,
    mean,
    measured,
    naive,
    near,
    sweep,
    terse,
    translated,
)
from helpers.close import bound, close
from helpers.letters import STEP, corpus, tokens_of, writing
from helpers.messages import whole
from helpers.objectives import classifier, labelled
from helpers.processes import Fork
from helpers.traces import NAMES, _traces

import headroles as hr
from headroles.ablation.effects import ablate
from headroles.ablation.forward_cache import Replay, layers
from headroles.ablation.metrics import BLEU, ChrF, Loss, Perplexity
from headroles.ablation.significance import effects
from headroles.ablation.units import REPLACEMENTS, UNITS, on_disk
from headroles.analysis.intervals import bootstrap_counts
from headroles.analysis.multiple_testing import benjamini_hochberg, holm
from headroles.data.corpus import partners
from headroles.models import batching, masking
from headroles.models import heads as families
from headroles.models.head_model import HeadModel
from headroles.tables import frame

WHOLE = ["albert", "fsmt"]  # whose layers cannot be handed back: one module for all, and time first
MODELS = ["marian", "classifier", "gpt2"]


# --- replay ---------------------------------------------------------------------------------------------------------


def several(model):
    """Heads alone, pairs across layers and kinds, whole layers, all heads and none: sets of heads."""
    index = list(families.head_index(model))
    pairs = [(one, other) for one in index[::4] for other in index[::4] if one < other]
    whole_layers = [[head for head in index if head[:2] == key] for key in dict.fromkeys(head[:2] for head in index)]
    return [[head] for head in index] + pairs + whole_layers + [index, []]


def fills(model):
    return ["zero"] if any(site.outside for site in families.attention_sites(model)) else ["zero", "uniform"]


# what a replay hands back differs: two stacks (of which one may not be handed back), one, one module for all layers, a
# layer's output that is a tuple, attention of another form, sounds, pictures
REPLAYED = [
    *zoo.USUAL,
    "marian-asymmetric",
    "whisper",
    "bert2gpt2",
    "deberta-v2",
    "vit",
    "modernbert",
    "gemma3",
    "phi3",
    "mixtral",
]


@pytest.mark.parametrize("name", zoo.variants(REPLAYED))
def test_variants_are_those_of_the_gated_model(name):
    model, batch = by_hand(name)
    every = torch.stack([masking.head_mask(model, masked) for masked in several(model)])
    if name not in ("marian", "gpt2"):
        every = torch.cat([every[:-1:2], every[-1:]])
    for replacement in fills(model):
        rows = every if replacement == "zero" else torch.cat([every[:-1:3], every[-1:]])
        replay = Replay(HeadModel(model), batch, replacement)
        expected = torch.stack([naive(model, batch, row, replacement) for row in rows])
        assert all(not torch.allclose(one, replay.output.logits, atol=1e-4) for one in expected[:-1])
        near(expected[-1], replay.output.logits)
        heads_per_batch = replay.run(rows)[0].logits
        near(heads_per_batch.reshape(expected.shape), expected)
        parts = zip(rows.split(3), expected.split(3), strict=True) if name in ("marian", "gpt2") else ()
        for some, one in parts:
            near(replay.run(some)[0].logits.reshape(one.shape), one)


def test_rows_are_all_examples_of_the_first_variant_and_then_of_the_second():
    model, batch = by_hand("marian")
    found = Replay(HeadModel(model), batch).run(torch.ones(3, len(families.head_index(model))))[1]
    assert found.numbers == (0, 1) * 3
    assert torch.equal(found.inputs["input_ids"], batch.inputs["input_ids"].repeat(3, 1))


def calls(model, replay, row):
    """How often the heads of each (kind, layer) are run again for a variant."""
    found = Counter()
    with ExitStack() as stack:
        for site in families.attention_sites(model):
            hook = site.out.register_forward_hook(lambda *_, key=site.key: found.update([key]))
            stack.callback(hook.remove)
        replay.run(row[None])
    return dict(found)


@pytest.mark.parametrize("name", zoo.each(name for name in REPLAYED if name not in WHOLE))
def test_what_lies_below_the_first_masked_head_is_not_run(name):
    model, batch = by_hand(name)
    keys = [site.key for site in families.attention_sites(model)]
    replay = Replay(HeadModel(model), batch)
    height = {(kind, layer): (kind != "enc-self", layer) for kind, layer in keys}
    for key in keys:
        row = masking.head_mask(model, [(*key, 0)])
        assert calls(model, replay, row) == {other: 1 for other in keys if height[other] >= height[key]}


@pytest.mark.parametrize("name", zoo.each(NAMES))
def test_all_layers_are_known_or_none(name):
    model = zoo.tiny(name)
    expected = {(site.kind == "enc-self", site.layer) for site in families.attention_sites(model)}
    assert len(layers(HeadModel(model))) == (0 if name in WHOLE else len(expected))


def traces(model):
    return _traces(model), [module for module in model.modules() if "forward" in vars(module)]


@pytest.mark.parametrize("name", ["marian", "bert", "gpt2", "albert"])
def test_a_replay_leaves_no_trace_even_by_an_exception(name):
    model, batch = by_hand(name)
    before = traces(model)
    last = masking.head_mask(model, [families.head_index(model)[-1]])[None]
    Replay(HeadModel(model), batch).run(last)
    assert traces(model) == before
    with pytest.raises(KeyError):  # in the last layer: the filling has nothing for it
        Replay(HeadModel(model), batch, {}).run(last)
    assert traces(model) == before
    with pytest.raises(IndexError):
        Replay(
            HeadModel(model), replace(batch, inputs={**batch.inputs, "input_ids": batch.inputs["input_ids"] + 10**4})
        )
    assert traces(model) == before


def test_a_layer_keeps_a_forward_of_its_own():
    """Those of accelerate's `device_map` move tensors to where the weights are."""
    model, batch = by_hand("gpt2")
    layer = model.transformer.h[0]
    add_hook_to_module(layer, ModelHook())
    before = layer.forward
    Replay(HeadModel(model), batch).run(masking.head_mask(model, [("dec-self", 1, 0)])[None])
    assert vars(layer).get("forward") is before


# --- effects --------------------------------------------------------------------------------------------------------


def ablated(name, **options):
    return ablate(*given(name), **{"n_resamples": 0, "max_tokens": ALL} | options)


@pytest.mark.parametrize(
    ("name", "unit", "replacement"),
    [  # every two of them
        (MODELS[(i + j) % len(MODELS)], unit, replacement)
        for i, unit in enumerate(UNITS)
        for j, replacement in enumerate(REPLACEMENTS)
    ],
)
def test_every_effect_is_that_of_a_plain_loop(name, unit, replacement):
    table = ablated(name, unit=unit, replacement=replacement)
    model, intact = given(name)[0], mean(name, frozenset())
    expected = [mean(name, masked, replacement) - intact for masked in closing(name, unit)]
    roundings = 32 if replacement == "uniform" else 16  # the naive loop attends in another way below the closed heads
    name = column(unit, replacement=replacement)
    close(table[name], expected, size=intact, operations=roundings)
    assert list(table.index) == list(families.head_index(model))
    fields = frame.provenance(table, name).split("|")
    said = {f"intact:{intact:.6g}", f"plan:{on_disk(unit)}", f"fill:{on_disk(replacement)}", "examples:6"}
    assert said <= set(fields)


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 2])
def test_another_example_does_not_depend_on_the_batch_where_the_model_writes(beams):
    """Nor does it with beams, where the next row was another beam of the same sentence."""
    asked = {"replacement": "resample", "metric": ChrF(beams=beams), "unit": "kind"}
    parts = writing("marian"), tokens_of("marian"), corpus(4)
    expected = ablate(*parts, **asked, n_resamples=0, max_tokens=ALL)
    found = ablate(*parts, **asked, n_resamples=0, heads_per_batch=2, max_tokens=40)
    name = column("kind", "chrf", "resample")
    np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-6)
    assert expected[name].abs().gt(0.1).any()


def test_another_example_is_drawn_by_the_seed():
    name = column("head", replacement="resample")
    first, same, second = (ablated("gpt2", replacement="resample", seed=seed) for seed in (0, 0, 1))
    assert first[name].equals(same[name])
    assert not np.allclose(first[name], second[name])
    assert "partners:1" in frame.provenance(second, name).split("|")


@pytest.mark.parametrize("seed", [0, 1])
def test_partners_are_others_of_like_length_and_each_is_one_once(seed):
    lengths = [(3, 4), (9, 9), (3, 4), (5, 2), (3, 4), (7, 1), (7, 1), (5, 3), (20, 1)]
    found = partners(lengths, seed)
    assert sorted(found) == list(range(9))
    assert all(one != other for one, other in enumerate(found))
    buckets = [{0, 2, 4}, {3, 7}, {5, 6}, {1, 8}]
    assert all({one, found[one]} <= next(each for each in buckets if one in each) for one in range(9))
    few = partners([(1,), (2,), (9,)], seed)
    assert sorted(few) == [0, 1, 2]
    assert all(one != other for one, other in enumerate(few))


def test_a_single_example_has_no_other():
    message = (
        "replacement 'resample' takes the output for another example of the corpus: got 1 examples; expected 2 or "
        "more; try another replacement"
    )
    model, tokenizer, _ = given("gpt2")
    with pytest.raises(ValueError, match=whole(message)):
        ablate(model, tokenizer, corpus(1), replacement="resample")


@pytest.mark.slow
def test_plans_and_fills_differ():
    found = [
        ablated("gpt2", unit=unit, replacement=replacement)[column(unit, replacement=replacement)]
        for unit in UNITS
        for replacement in REPLACEMENTS[:4]
    ]
    assert all(not np.allclose(one, other) for i, one in enumerate(found) for other in found[:i])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_agreement_is_with_the_intact_model(name):
    table = ablated(name, metric="agreement", max_tokens=100)
    expected = [mean(name, masked, metric="agreement") - 1 for masked in closing(name, "head")]
    close(table["ablation[agreement]"], expected, size=1)
    assert min(expected) < 0


def test_a_perplexity_is_of_the_whole_corpus():
    table = ablated("gpt2", metric="perplexity")
    expected = [np.exp(mean("gpt2", each)) - np.exp(mean("gpt2", frozenset())) for each in closing("gpt2", "head")]
    close(table["ablation[perplexity]"], expected, size=np.exp(mean("gpt2", frozenset())), operations=256)


def test_the_mean_of_a_model_that_reads_a_cache_otherwise_is_of_what_it_does_here():
    """FSMT's decoder sees what is to come if its forward makes a cache."""
    model, tokenizer = zoo.tiny("fsmt"), tokens_of("fsmt")
    options = {"replacement": "mean", "unit": "layer", "n_resamples": 0}
    found = ablate(model, tokenizer, corpus(4), **options)
    model.config.use_cache = False
    pd.testing.assert_frame_equal(found, ablate(model, tokenizer, corpus(4), **options), rtol=0, atol=bound(5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "replacement"),
    [("marian", "zero"), ("marian", "resample"), ("classifier", "mean"), ("gpt2", "uniform"), ("gpt2", "rescale")],
)
def test_neither_how_many_go_together_nor_batches_matter(name, replacement):
    expected = ablated(name, replacement=replacement)
    for heads_per_batch, max_tokens in ((3, ALL), (1, 40)):
        found = ablated(name, replacement=replacement, heads_per_batch=heads_per_batch, max_tokens=max_tokens)
        pd.testing.assert_frame_equal(found, expected, rtol=0, atol=1e-3)  # p are the least exact
        effects = column("head", replacement=replacement)
        close(found[effects], expected[effects], size=mean(name, frozenset()), operations=32)


def test_a_head_alone_in_its_layer_has_no_rest():
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**zoo.GPT2 | {"n_head": 1})).eval()
    table = ablate(model, tokens_of("gpt2"), corpus(4), unit="all_but_one", n_resamples=20)
    assert (table[["ablation[loss rest]", "ablation[loss rest].low", "ablation[loss rest].high"]] == 0).all(axis=None)
    assert (table["ablation[loss rest].p"] == 1).all()


class Counting(Loss):
    """The loss, and how many examples it was read of."""

    seen = 0

    def update(self, observation):
        self.seen += len(observation.batch.numbers)
        return super().update(observation)


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "variants"), [("head", 24), ("all_but_one", 24), ("layer", 6), ("kind", 3)])
def test_what_several_heads_share_is_measured_once(unit, variants):
    metric = Counting()
    pd.testing.assert_frame_equal(ablated("marian", metric=metric, unit=unit), ablated("marian", unit=unit))
    assert metric.seen == 6 * (1 + variants)


class Large(Loss):
    """The loss, for which there is no memory of more than `most` rows."""

    def __init__(self, most):
        self.most = most

    def update(self, observation):
        if len(observation.batch.numbers) > self.most:
            raise MemoryError("no room")
        return super().update(observation)


def test_out_of_memory_fewer_go_together(caplog):
    pd.testing.assert_frame_equal(ablated("gpt2", metric=Large(12)), ablated("gpt2"))
    start, end = "out of memory (no room): ", " variants at a time from here on"
    assert [record.message for record in caplog.records] == [f"{start}{many}{end}" for many in (4, 2)]
    with pytest.raises(MemoryError):
        ablated("gpt2", metric=Large(5))


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training):
    model = zoo.tiny("marian").train(training)
    before = traces(model)
    found = ablate(model, tokens_of("marian"), corpus(6), n_resamples=0, max_tokens=ALL)
    assert traces(model) == before
    pd.testing.assert_frame_equal(found, ablated("marian"))  # and was measured without dropout


# --- statistics -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_intervals_and_resamples_are_of_the_weights_that_scores_have(name):
    table = ablated(name, n_resamples=200, seed=3)
    weights = bootstrap_counts(range(6), 200, 3)[1:]
    drawn = frame.resamples(table).draws["ablation[loss]"]
    ends = table[["ablation[loss].low", "ablation[loss].high"]].to_numpy()
    for row, masked in enumerate(closing(name, "head")):
        one, other = (looped(name, each) for each in (masked, frozenset()))
        draws = weights @ one[0] / (weights @ one[1]) - weights @ other[0] / (weights @ other[1])
        close(ends[row], np.quantile(draws, [0.025, 0.975]), size=other[0] / other[1])
        np.testing.assert_allclose(drawn[row], draws, rtol=STEP, atol=bound(other[0] / other[1]))
    assert (ends[:, 0] <= table["ablation[loss]"]).all()
    assert (table["ablation[loss]"] <= ends[:, 1]).all()


def test_without_resamples_there_are_no_intervals():
    table = ablated("gpt2", metric="perplexity")
    lacking = [f"ablation[perplexity]{end}" for end in (".low", ".high", ".p", ".holm", ".bh")]
    assert table[lacking].isna().all(axis=None)
    assert frame.resamples(table) is None
    assert ablated("gpt2")["ablation[loss].p"].between(0, 1).all()


@pytest.mark.parametrize("metric", ["loss", "perplexity"])
def test_resamples_without_an_example_are_left_out(metric):
    """Of two sentences every seventh resample draws none."""
    table = ablate(zoo.tiny("gpt2"), tokens_of("gpt2"), corpus(2), metric=metric, n_resamples=100)
    assert table.notna().all(axis=None)


def p_of(found, **options):
    return effects(found, **{"n_resamples": 200} | options).columns[".p"]


@pytest.mark.parametrize("count", [1.0, 4.0])
def test_p_of_a_mean_is_that_of_a_paired_t_test(count):
    changes = np.random.default_rng(1).normal(0.2, 1, (20, 30))
    found = measured(np.full(30, count), changes)
    expected = [scipy.stats.ttest_rel(each[:, 0], found.intact[:, 0]).pvalue for each in found.masked.values()]
    np.testing.assert_allclose(p_of(found, n_resamples=0), expected, rtol=1e-9)


def test_p_of_a_ratio_is_that_of_a_t_test_of_its_linear_part():
    rng = np.random.default_rng(2)
    counts = rng.integers(1, 20, 40).astype(float)
    changes = rng.normal(0.3, 1, (20, 40)) * counts
    ratios = changes.sum(1) / counts.sum()
    linear = ratios[:, None] + (changes - ratios[:, None] * counts) / counts.mean()
    expected = scipy.stats.ttest_1samp(linear, 0, axis=1).pvalue
    np.testing.assert_allclose(p_of(measured(counts, changes), n_resamples=0), expected, rtol=1e-9)


def test_an_effect_that_is_always_the_same_is_certain_and_none_is_nothing():
    for metric, certain in ((Loss(), 2.0**-49), (Perplexity(), 2 / 201)):
        found = measured(np.ones(50), np.stack([np.zeros(50), np.ones(50)]), metric)
        assert p_of(found).tolist() == [1, certain]
    assert p_of(measured(np.ones(1), np.ones((1, 1))), n_resamples=0).tolist() == [1]


def test_p_of_another_metric_is_how_often_a_resample_is_on_the_other_side():
    found = measured(np.ones(30), np.random.default_rng(3).normal(0.2, 1, (20, 30)), Perplexity())
    effect = effects(found, n_resamples=200, seed=5)
    for draws, p in zip(effect.draws, effect.columns[".p"], strict=True):
        other_side = min((draws <= 0).sum(), (draws >= 0).sum())
        assert p == pytest.approx(min(1, 2 * (other_side + 1) / 201))
        assert p >= 2 / 201


@pytest.mark.parametrize("metric", [Loss(), Perplexity()], ids=lambda metric: metric.name)
def test_where_there_is_no_effect_p_is_uniform_and_nothing_is_found(metric):
    rng = np.random.default_rng(4)
    counts = rng.integers(1, 20, 120).astype(float)
    found = effects(measured(counts, rng.normal(0, 1, (200, 120)) * np.sqrt(counts), metric), n_resamples=1000)
    assert scipy.stats.kstest(found.columns[".p"], "uniform").pvalue > 0.01
    assert found.columns[".holm"].min() > 0.01
    assert found.columns[".bh"].min() > 0.01


@pytest.mark.parametrize("seed", range(5))
def test_corrections_are_those_of_textbooks(seed):
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(30) ** 3, 2)  # some are equal
    many, order = len(p), np.argsort(p)
    stepped_down, stepped_up = np.empty(many), np.empty(many)
    for rank, place_ in enumerate(order):
        stepped_down[place_] = min(1, max((many - i) * p[order[i]] for i in range(rank + 1)))
        stepped_up[place_] = min(1, min(many / (i + 1) * p[order[i]] for i in range(rank, many)))
    np.testing.assert_allclose(holm(p), stepped_down)
    np.testing.assert_allclose(benjamini_hochberg(p), stepped_up)
    np.testing.assert_allclose(benjamini_hochberg(p), scipy.stats.false_discovery_control(p))


def test_what_was_tested_once_counts_once():
    """The heads of a kind share a test: three tests are corrected for, not 24."""
    table = ablated("marian", unit="kind")
    p = table["ablation[loss kind].p"].groupby("kind", sort=False).first()
    np.testing.assert_allclose(table["ablation[loss kind].holm"].groupby("kind", sort=False).first(), holm(p.array))


# --- going on -------------------------------------------------------------------------------------------------------


SMALL = {"max_tokens": 160, "unit": "kind", "n_resamples": 20}  # several batches of few sentences


def test_a_sweep_resumes_after_its_last_finished_batch(tmp_path):
    metric, expected = Stopping(), ablated("marian", **SMALL)
    metric.after = 4 * 2 + 2  # the intact model and three kinds: in the third batch
    with pytest.raises(InterruptedError):
        ablated("marian", metric=metric, folder=tmp_path, heads_per_batch=1, **SMALL | {"max_tokens": 20})
    finished = files(tmp_path)
    assert len(finished) == 2
    metric.after = 10**9
    found = ablated("marian", metric=metric, folder=tmp_path, heads_per_batch=1, **SMALL | {"max_tokens": 20})
    pd.testing.assert_frame_equal(found, expected, rtol=0, atol=bound(5))
    assert len(files(tmp_path)) > 3
    assert finished.items() <= files(tmp_path).items()


def test_a_finished_sweep_is_read(tmp_path):
    first = ablated("marian", folder=tmp_path, **SMALL)
    finished = files(tmp_path)
    assert len(finished) > 1
    pd.testing.assert_frame_equal(ablated("marian", metric=Loss(), folder=tmp_path, **SMALL), first)
    assert files(tmp_path) == finished
    again = ablated("marian", folder=tmp_path, **SMALL | {"n_resamples": 50, "seed": 1})
    pd.testing.assert_series_equal(again["ablation[loss kind]"], first["ablation[loss kind]"])
    assert files(tmp_path) == finished


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 4, 60, -9])
def test_a_damaged_batch_is_named(left, tmp_path):
    ablated("marian", folder=tmp_path, **SMALL)
    path = max(tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:left])
    said = r"\.npy is damaged: .+; remove the file to have it measured again\Z"
    with pytest.raises(ValueError, match=said) as error:
        ablated("marian", folder=tmp_path, **SMALL)
    assert str(error.value).startswith(str(path))


ELSE = {  # what differs, of what a translator writes of three sentences
    "model": lambda: {"model": terse(seed=1)},
    "generation": lambda: {"model": terse(most=6)},
    "tokenizer": lambda: {"tokenizer": tokens_of("bert")},
    "corpus": lambda: {"corpus": corpus(4)},
    "replacement": lambda: {"replacement": "mean"},
    "unit": lambda: {"unit": "layer"},
    "metric": lambda: {"metric": "bleu"},
    "beams": lambda: {"metric": ChrF(2)},
    "max_tokens": lambda: {"max_tokens": 160},
}


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """What a sweep was made from, and the folder with what it kept."""
    first = {"model": terse(), "tokenizer": tokens_of("marian"), "corpus": corpus(3), "metric": "chrf"}
    first |= SMALL | {"max_tokens": ALL}
    folder = tmp_path_factory.mktemp("kept")
    ablate(**first, folder=folder)
    return first, folder


@pytest.mark.slow
@pytest.mark.parametrize("what", ELSE)
def test_what_was_made_from_something_else_is_not_read(what, unfinished):
    first, folder = unfinished
    before, other = files(folder), first | ELSE[what]()
    found = ablate(**other, folder=folder)
    pd.testing.assert_frame_equal(found, ablate(**other))
    assert before.items() < files(folder).items()


def test_what_is_not_finite_says_where_and_keeps_what_is_finished(tmp_path):
    model, tokenizer, text = given("gpt2")
    variants = [frozenset([head]) for head in families.head_index(model)]
    groups = list(batching.batches(batching.encode(text, tokenizer, model), model, max_tokens=20))
    metric = Stopping()
    metric.after, metric.fails = len(variants) + 1 + 3, False  # in the second batch, of the third variant
    numbers = groups[1].numbers
    listed = ", ".join(str(number + 1) for number in sorted(numbers))
    message = (
        f"loss of the model without [('dec-self', 0, 2)] is not finite on sentence {listed} of the corpus; look for "
        f"NaN or infinite weights in GPT2LMHeadModel; finished batches are kept"
    )
    with pytest.raises(ValueError, match=whole(message)):
        sweep(model, tokenizer, text, variants, metric, max_tokens=20, heads_per_batch=1, folder=tmp_path)
    assert len(files(tmp_path)) == 1


KILLED = """
import sys
from pathlib import Path
import headroles as hr
from headroles.ablation.effects import ablate
place = Path(sys.argv[1])
given = *hr.load(place), hr.read(place / "source.txt", place / "target.txt")
ablate(*given, unit="layer", max_tokens=80, n_resamples=20, folder=place / "kept")
"""


@pytest.mark.slow
def test_a_killed_sweep_resumes(tmp_path):
    zoo.tiny("marian").save_pretrained(tmp_path)
    tokens_of("marian").save_pretrained(tmp_path)
    for name, side in (("source", corpus(40)), ("target", [one.target for one in corpus(40)])):
        (tmp_path / f"{name}.txt").write_text("".join(f"{one.text}\n" for one in side))
    process, folder = Fork(KILLED, tmp_path), tmp_path / "kept"
    while len(list(folder.glob("*.npy"))) < 3:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    finished = {name: what for name, what in files(folder).items() if name.endswith(".npy")}
    options = {"unit": "layer", "max_tokens": 80, "n_resamples": 20}
    given = *hr.load(tmp_path), hr.read(tmp_path / "source.txt", tmp_path / "target.txt")
    found = ablate(*given, folder=folder, **options)
    pd.testing.assert_frame_equal(found, ablate(*given, **options))
    number = len(list(batching.batches(batching.encode(given[2], *given[1::-1]), given[0], max_tokens=10)))
    assert len(finished) < number == len(list(folder.glob("*.npy")))
    assert finished.items() <= files(folder).items()


# --- what is written ------------------------------------------------------------------------------------------------


SCORES = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf}


@pytest.mark.parametrize("beams", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_scores_of_what_is_written_are_those_of_sacrebleu(beams):
    model, text = writing("marian"), translated()
    references = [[sentence.target.text for sentence in text]]
    sources = [sentence.text for sentence in text]
    variants = dict.fromkeys(closing("marian", "layer"))
    written = {masked: generated(sources, masking.head_mask(model, masked), beams) for masked in variants}
    intact = generated(sources, masking.head_mask(model, []), beams)
    for metric, heads_per_batch, max_tokens in ((BLEU, 1, ALL), (ChrF, 4, 160)):
        score = SCORES[metric.name]
        expected = [score(texts, references).score - score(intact, references).score for texts in written.values()]
        assert len(set(expected)) > 3
        options = {
            "metric": metric(beams),
            "unit": "layer",
            "heads_per_batch": heads_per_batch,
            "max_tokens": max_tokens,
            "n_resamples": 0,
        }
        table = ablate(model, tokens_of("marian"), text, **options)
        found = dict(zip(closing("marian", "layer"), table[column("layer", metric.name)], strict=True))
        assert list(found.values()) == pytest.approx(expected, abs=1e-9)


def test_a_signature_distinguishes_beams():
    model, tokenizer = writing("marian"), tokens_of("marian")
    options = {"unit": "kind", "n_resamples": 0}
    tables = [ablate(model, tokenizer, translated(), metric=ChrF(beams), **options) for beams in (1, 2)]
    one, two = (set(frame.provenance(table, "ablation[chrf kind]").split("|")) for table in tables)
    assert {field for field in one ^ two if not field.startswith("intact:")}


def test_no_more_is_written_than_the_model_has_positions():
    table = ablate(zoo.tiny("marian"), tokens_of("marian"), corpus(2), metric="chrf", unit="kind", n_resamples=0)
    assert table.notna().to_numpy()[:, 0].all()


# --- errors ---------------------------------------------------------------------------------------------------------

UNKNOWN = {
    "unit": "unknown unit 'all'; known: head, all_but_one, layer, kind",
    "replacement": "unknown replacement 'all'; known: zero, mean, resample, uniform, rescale",
    "metric": "unknown metric 'all'; known: loss, perplexity, agreement, accuracy, f1, matthews, bleu, chrf, "
    "pair_accuracy, pair_difference, "
    "top, reference, class, similarity",
}


@pytest.mark.parametrize("option", UNKNOWN)
def test_what_is_not_known(option):
    with pytest.raises(ValueError, match=whole(UNKNOWN[option])):
        ablated("gpt2", **{option: "all"})


def test_a_head_that_there_is_not():
    message = "no head ('enc-self', 0, 0) in GPT2LMHeadModel, which has dec-self 2 layers of 4 heads"
    with pytest.raises(ValueError, match=whole(message)):
        sweep(*given("gpt2"), [frozenset([("enc-self", 0, 0)])], Loss())


REFUSED = [
    ("classifier", "bleu", labelled(), "metric 'bleu' needs a translation model; "
     "BertForSequenceClassification writes none"),
    ("marian", "bleu", corpus(3, translated=False), "metric 'bleu' needs references, and corpus 'letters' lacks some"),
    ("marian", "accuracy", corpus(3), "metric 'accuracy' is for classifiers; MarianMTModel has no classes"),
    ("classifier", "accuracy", corpus(3), "corpus 'letters' has no labels; give a table with a "
     "column of labels (label= names it) that has a label in each row"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "metric", "text", "message"), REFUSED)
def test_metrics_that_are_not_to_be_had(name, metric, text, message):
    model = classifier() if name == "classifier" else writing(name)
    with pytest.raises(ValueError, match=whole(message)):
        ablate(model, given(name)[1], text, metric=metric, n_resamples=0)


def test_a_model_with_weights_that_are_not_finite():
    model = zoo.tiny("gpt2")
    model.transformer.h[1].mlp.c_proj.bias.data[0] = torch.nan
    message = (
        "loss of the intact model is not finite on sentence 1, 2, 3, 4, 5, ... of the corpus; look for NaN or infinite "
        "weights in GPT2LMHeadModel: 1 of 32 in transformer.h.1.mlp.c_proj.bias; finished batches are kept"
    )
    with pytest.raises(ValueError, match=whole(message)):
        ablate(model, tokens_of("gpt2"), corpus(6), n_resamples=0)
