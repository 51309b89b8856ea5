"""Figures of ablation show exactly their tables, and the commands that close heads make both."""

from __future__ import annotations

from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from helpers.commands import run
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

import headroles as hr
from headroles import plots
from headroles.plots import effects as outcomes
from headroles.tables import frame
from headroles.tables.io import load_table

INDEX = frame.index({("enc-self", 0): 4, ("enc-self", 1): 3, ("cross", 0): 2})


def effects(name="ablation[loss]", *, scale=1.0, seed=0):
    """A table as `hr.ablate` gives it."""
    rng = np.random.default_rng(seed)
    values, p = scale * rng.normal(size=len(INDEX)), rng.uniform(size=len(INDEX)) ** 4
    columns = {"": values, ".low": values - 1, ".high": values + 1, ".p": p, ".holm": np.minimum(1, 9 * p), ".bh": p}
    return frame.table({f"{name}{end}": each for end, each in columns.items()}, INDEX, "made by hand")


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "decimals"), [(1.0, 2), (0.1, 3)])
@pytest.mark.parametrize("kind", ["enc-self", "cross"])
def test_a_map_of_effects_has_their_values_and_marks(kind, scale, decimals):
    table = effects(scale=scale)
    ax = plots.ablation(table, kind=kind)
    own = table.xs(kind, level="kind")
    drawn = np.ma.filled(np.ma.asarray(ax.collections[0].get_array()).astype(float), np.nan).reshape(-1)
    np.testing.assert_allclose(drawn[~np.isnan(drawn)], own["ablation[loss]"])
    marks = (own["ablation[loss].p"] < 0.01).astype(int) + (own["ablation[loss].holm"] < 0.01).astype(int)
    texts = [f"{value:z.{decimals}f}".replace("-", "−") for value in own["ablation[loss]"]]
    texts = [text + "*" * mark for text, mark in zip(texts, marks, strict=True)]
    assert [text.get_text() for text in ax.texts if text.get_text()] == texts
    sure = f"p < 0.01 for {(marks > 0).sum()} of {len(own)} heads, {(marks > 1).sum()} by Holm"
    assert ax.get_title().splitlines()[-1] == sure
    assert ax.figure.axes[-1].get_ylabel().split() == ["cost", "in", "loss", "(nats)", "(above", "0", "is", "harm)"]
    far = table["ablation[loss]"].abs().max()
    assert ax.collections[0].get_clim() == (-far, far)  # of all kinds


def test_a_histogram_counts_every_head_once():
    table = effects()
    ax = plots.histogram(table)
    bars = [patch for container in ax.containers for patch in container]
    assert sum(bar.get_height() for bar in bars) == len(table)
    assert min(bar.get_x() for bar in bars) == pytest.approx(table["ablation[loss]"].min())
    assert [list(line.get_xdata()) for line in ax.lines] == [[0, 0]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["encoder self-attention", "cross-attention"]


def test_a_kind_has_one_colour_in_every_figure():
    found = [patch.get_facecolor()[:3] for patch in plots.histogram(effects()).get_legend().get_patches()]
    lines = plots.by_kind(pd.DataFrame({"heads": [9, 4], "of": 9, "enc-self": [7, 3], "cross": [2, 1]})).lines
    assert found == [tuple(to_rgb(line.get_color())) for line in lines]


def test_two_corpora_are_drawn_against_each_other():
    one, other = effects(), effects("ablation[bleu]", seed=1)
    ax = plots.agreement(one, other, names=("news", ""))
    points = np.concatenate([each.get_offsets() for each in ax.collections])
    expected = np.stack([one["ablation[loss]"], -other["ablation[bleu]"]], axis=1)  # costs
    np.testing.assert_allclose(np.sort(points, axis=0), np.sort(expected, axis=0))
    told = outcomes.correlations(one["ablation[loss]"], -other["ablation[bleu]"]).loc["all"]
    keys = ("pearson", "spearman")
    values = [f"{told[key]:.2f} [{told[f'{key}.low']:.2f}, {told[f'{key}.high']:.2f}]" for key in keys]
    assert ax.get_title() == f"Pearson {values[0]}\nSpearman {values[1]}"
    both = [test(*expected.T).statistic for test in (scipy.stats.pearsonr, scipy.stats.spearmanr)]
    np.testing.assert_allclose(told[["pearson", "spearman"]], both, rtol=1e-12)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("cost in loss (nats) on news", "cost in BLEU")


def test_a_given_ax_is_used():
    for draw, given in ((plots.ablation, {"kind": "cross"}), (plots.histogram, {})):
        _, ax = plt.subplots()
        assert draw(effects(), ax=ax, **given) is ax
    _, ax = plt.subplots()
    assert plots.agreement(effects(), effects(seed=1), ax=ax) is ax


def test_plans_are_said_in_words_and_effects_are_costs():
    names = {"bleu all_but_one": "cost in BLEU, all but one", "own": "cost in own"}
    for name, expected in names.items():
        label = plots.ablation(effects(f"ablation[{name}]"), kind="cross").figure.axes[-1].get_ylabel()
        assert " ".join(label.split()) == f"{expected} (above 0 is harm)"


# --- the commands ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A study of a tiny encoder: every head closed, measured by agreement."""
    from helpers import planted

    folder = tmp_path_factory.mktemp("swept")
    planted.model().save_pretrained(folder / "model")
    planted.tokenizer().save_pretrained(folder / "model")
    text = folder / "given.txt"
    text.write_text("\n".join(sentence.text for sentence in planted.corpus()[:12]) + "\n")
    asked = "--metric", "agreement", "--study", folder / "s", "--resamples", 20
    done = run("ablate", folder / "model", text, *asked, figures=True)
    assert done.code == 0, done.err
    return folder, done


@pytest.mark.slow
def test_ablate_says_what_it_found_and_keeps_it(swept):
    folder, done = swept
    assert "\nno head changes it\n" in done.out
    table = load_table(folder / "s" / "ablation-agreement-head-zero.parquet")
    assert list(table) == [f"ablation[agreement]{end}" for end in ("", ".low", ".high", ".p", ".holm", ".bh")]
    model, tokenizer = hr.load(folder / "model")
    again = hr.ablate(model, tokenizer, hr.read(folder / "given.txt"), metric="agreement", n_resamples=20)
    pd.testing.assert_frame_equal(table, again)
    names = {path.name for path in (folder / "s").glob("*.png")}
    assert names == {f"ablation-agreement-head-zero-{end}.png" for end in ("enc-self", "histogram")}


# --- words and colours -----------------------------------------------------------------------------------------------


def test_of_twelve_rankings_four_and_the_worst_have_a_colour_and_no_two_look_alike():
    orders = ["confidence", "importance", "attribution[FeatureAblation].size", "random 0"]
    orders += [f"relevance[{rules}{of}].size" for rules in ("cp", "attn", "voita", "gradient") for of in ("", " logit")]
    points = list(product(enumerate(orders), (0.0, 0.5, 1.0)))
    rows = [{"order": name, "share": x, "value": 1 - x * place / 12} for (place, name), x in points]
    ax = plots.curves(pd.DataFrame(rows).assign(low=0.0, high=1.0))
    looks = [(to_rgb(line.get_color()), line.get_linestyle(), line.get_marker()) for line in ax.lines]
    assert len(looks) == 12  # every ranking is drawn
    chance, *others, a, b, c, d, worst = looks
    assert {colour for colour, _, _ in others} == {(0.7, 0.7, 0.7)}
    assert len({chance, *others, a, b, c, d, worst}) == 7
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[:3] == ["random", "6 other rankings", "confidence"]
    assert labels[-1] == "size of relevance (gradient), of the whole"  # the worst


@pytest.mark.parametrize(("metric", "sign"), [("bleu", 1), ("loss", -1)])
def test_of_many_rankings_the_best_by_the_metric_have_a_colour(metric, sign):
    names = [f"own {place}" for place in range(8)]  # the best first
    rows = [{"order": name, "share": x, "value": -sign * place * x} for place, name in enumerate(names) for x in (0, 1)]
    table = pd.DataFrame(rows).assign(low=0.0, high=1.0)
    table.attrs["signatures"] = {"value": f"metric:{metric}"}
    ax = plots.curves(table)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["3 other rankings", *names[:4], names[-1]]


def test_sizes_of_two_strategies_share_colours_and_differ_in_marks():
    outcomes = [f"survival[l0 {size}{of}]" for of in ("", " enc-self") for size in (36, 24, 12)]
    rows = [{"score": "confidence", "outcome": name, "auc": 0.7, "spearman": 0.5, "holm": 0.01} for name in outcomes]
    ax = plots.predictors(pd.DataFrame(rows).assign(note="", **{"auc.low": 0.6, "auc.high": 0.8}))
    marks = [(to_rgb(line.get_color()), line.get_marker()) for line in ax.lines if line.get_marker() in ("o", "s")]
    assert len(marks) == len(set(marks)) == 4  # of six the largest and the smallest of each strategy
    assert len({colour for colour, _ in marks}) == 2
    names = ["36 heads (L0)", "12 heads (L0)", "36 heads (L0, encoder)", "12 heads (L0, encoder)"]
    assert [text.get_text() for text in ax.get_legend().get_texts()[:4]] == [f"survival at {name}" for name in names]
    assert ax.get_xlabel().endswith("(2 outcomes between these are in the table)")


def budget_of(layers, groups=3):
    """A budget: layer 1 has a window."""
    rows = [("dec-self", layer, group) for layer in layers for group in range(groups)]
    index = pd.MultiIndex.from_tuples(rows, names=["kind", "layer", "group"])
    effect = np.random.default_rng(0).normal(0.1, 0.2, len(index))
    kept = (effect >= np.sort(effect)[-4]).astype(float)
    columns = {"effect": effect, "retrieval": kept, "streaming": 1 - kept}
    return frame.signed(pd.DataFrame(columns, index=index), "model:toy|sink:4|recent:256|shared:dec-self=3")


@pytest.mark.parametrize("deep", [False, True])
def test_a_map_has_the_effects_and_the_frames_of_the_table(deep):
    budget = budget_of([0, 2, 3, *range(4, 20)] if deep else [0, 2, 3])
    ax = plots.budget(budget)
    drawn = ax.collections[0].get_array().reshape(-1, 20 if deep else 3)
    cells = drawn.T if deep else drawn  # [layer, group]
    for (_, layer, group), effect in budget["effect"].items():
        assert cells[layer, group] == pytest.approx(effect)
    assert np.ma.masked_invalid(cells[1]).mask.all()
    framed = [patch for patch in ax.patches if isinstance(patch, Rectangle) and not patch.get_fill()]
    places = sorted((int(patch.get_x()), int(patch.get_y()))[:: 1 if deep else -1] for patch in framed)
    assert places == [(layer, group) for _, layer, group in budget.index[budget["retrieval"] == 1]]
    low, high = ax.collections[0].get_clim()
    assert -low == high == budget["effect"].abs().max()
    assert ax.get_legend().get_texts()[0].get_text() == f"keeps its whole cache (4 of {len(budget)})"
    assert "key-value head" in (ax.get_ylabel() if deep else ax.get_xlabel())
    assert not ax.collections[1:]  # no lines between groups
    plt.close("all")
