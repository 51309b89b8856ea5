"""What a user's own score, metric, role and ranking declare is in figures, report and relations, from disk too."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import seaborn as sns
from helpers import letters, zoo
from helpers.reports import told
from matplotlib.colors import to_hex

import headroles as hr
from headroles.ablation.metrics import BLEU, METRICS, Loss, Mean, as_metric
from headroles.plots import gallery, styling
from headroles.plots.labels import column_label, label_of
from headroles.pruning.rankings import Ranking
from headroles.tables import columns, declared
from headroles.tables.study import Study

pytestmark = pytest.mark.usefixtures("nothing_shown")


class Surprise(Mean):
    """Twice the loss: smaller is better."""

    name = "surprise"
    better = -1
    title, unit = "surprise of readers", "bits"
    objective = "loss"


class Gain(Mean):
    """The loss, as if larger were better."""

    name = "gain"
    objective = "loss"


@dataclass(frozen=True)
class Itself(hr.Score):
    """Mean weight of a token on itself."""

    kinds = ("enc-self", "dec-self")
    title = "weight on itself"
    about = "Mean weight of a token on itself, 0 to 1. Larger: more."
    matters = "lower"

    def update(self, observation):
        return {"itself": observation.over_queries(observation.on_real.diagonal(dim1=-2, dim2=-1))}

    def compute(self, sums):
        return {"itself": sums["itself"] / sums["queries"]}


@dataclass(frozen=True)
class OddFirst(Ranking):
    """Remove heads with odd numbers first."""

    title: ClassVar[str] = "odd heads first"
    name = "odd"

    def order(self, setting):
        return sorted(setting.among, key=lambda head: (head[2] % 2 == 0, head))


SELFISH = hr.Role("selfish", "itself", 0.2, about="at itself", short="self", hue=8)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study with all of them, as another process loads it."""
    place = Study(tmp_path_factory.mktemp("declared") / "study")
    model, tokenizer = zoo.tiny("gpt2"), letters.tokenizer("$A")
    corpus = letters.corpus(24, trees=False, translated=False)
    heads = hr.score(model, tokenizer, corpus, ["confidence", Itself()], n_resamples=20, study=place)
    roles = hr.roles(heads, [replace(SELFISH, threshold=float(heads["itself"].median()))])
    hr.save_table(roles, place.path("roles"))
    for given in (Surprise(), Gain(), Loss()):
        hr.ablate(model, tokenizer, corpus, metric=given, n_resamples=20, study=place)
    alive = hr.prune(model, tokenizer, corpus, OddFirst(), keep=0.5, remove=False)
    hr.save_table(alive, place.path("survival-odd"))
    related = hr.relate(roles, place.scores(), n_resamples=99, n_permutations=99)
    hr.save_table(related, place.path("relate"))
    return Study(place.folder)


def test_the_metrics_of_the_package_are_known_by_their_provenance():
    assert {declared.metric_of(f"metric:{known}") for known in METRICS.values()} == {*METRICS}
    objectives = {declared.metric_of(f"metric:{as_metric(name)}") for name in declared.OBJECTIVES}
    assert objectives == {*declared.OBJECTIVES}
    assert {name: known.declaration() for name, known in METRICS.items()} == dict.fromkeys(METRICS, {})
    assert str(declared.quality(BLEU().name)) == "BLEU"


def test_a_role_of_the_package_has_the_provenance_of_before():
    scores = hr.tables.frame.table({"rarity": [0.2, 0.7]}, hr.tables.frame.index({("enc-self", 0): 2}), "made:by hand")
    text = hr.provenance(hr.roles(scores), "rare")
    assert text == ("made:by hand|role:Role(name='rare', column='rarity', threshold=0.5, over=None, strictly=True)")


def test_harm_of_a_metric_of_ones_own_is_red(study):
    for name in ("surprise", "gain", "loss"):
        table = study.load(f"ablation-{name}-head-zero")
        ax = plots_of(table[f"ablation[{name}]"])
        harmful = sns.color_palette("vlag", as_cmap=True)(0.9)
        assert ax.collections[0].cmap(0.9) == harmful, name
        label = hr.plots.ablation(table).collections[0].colorbar.ax.get_ylabel().replace("\n", " ")
        assert label.startswith("cost in ")
        assert label.endswith("(above 0 is harm)")
        styled = hr.style_table(table, [f"ablation[{name}]"]).to_html()
        assert "background-color" in styled
    assert "surprise of readers" in label_of("ablation[surprise]", _signature(study, "surprise"))
    plt.close("all")


def plots_of(values: pd.Series):
    return hr.plots.heatmaps(values)[0]


def _signature(study, name):
    return hr.provenance(study.load(f"ablation-{name}-head-zero"), f"ablation[{name}]")


def test_the_report_shows_what_they_declare(study, tmp_path):
    data = told(hr.report(study, tmp_path / "page.html").read_text(encoding="utf-8"))
    shown = {column["name"]: column for column in data["columns"]}
    harm = {name: shown[f"ablation[{name}]"]["harm"] for name in ("surprise", "gain", "loss")}
    assert harm == {"surprise": 1, "gain": 1, "loss": 1}  # costs
    about = shown["ablation[surprise]"]["about"]
    assert about.startswith("Cost in surprise of readers (bits) when")
    assert about.endswith("Larger: matters more.")
    assert (shown["itself"]["label"], shown["itself"]["about"]) == (Itself.title, Itself.about)
    assert shown["itself"]["group"] == column_label("importance").group
    (role,) = data["roles"]
    assert role["short"] == "self"
    (family,) = data["families"]
    assert (family["about"], family["colour"]) == ("at itself", to_hex(styling.hue(8)))
    outcomes = {row["outcome"] for row in data["relate"]["rows"]}
    assert {"weight on itself", "effect on surprise of readers"} <= outcomes
    assert any("odd heads first" in outcome for outcome in outcomes)


def test_relations_know_which_way_they_matter(study):
    table = study.load("relate")
    matters = dict(zip(table["outcome"], table["matters"], strict=True))
    expected = {"ablation[surprise]": "higher", "ablation[gain]": "lower", "ablation[loss]": "higher"}
    expected |= {"itself": "lower"}
    assert {name: matters[name] for name in expected} == expected


def test_a_role_of_ones_own_has_its_colour_in_every_figure(study):
    face = styling.hue(8)
    assert styling.colours(["selfish"], study.load("roles")) == {"selfish": face}
    figures = {figure.name: figure for figure in gallery.figures(study.names(), study.load)}
    assert "heatmap-itself" in figures
    ax = hr.plots.roles(study.load("roles"), kind="dec-self")
    assert any(text.startswith("selfish (") and "at itself" in text for text in legend(ax))
    lines = hr.plots.relation(study.load("relate")).lines
    assert {line.get_color() for line in lines if line.get_marker() == "o"} == {styling.hue(8, 0.8)}
    plt.close("all")


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_declarations_survive_joining_and_saving(study):
    joined = study.scores()
    assert declared.declared("metric", "surprise", declared.signature_of(joined, "ablation[surprise]")) == {
        "better": "-1", "title": "surprise of readers", "unit": "bits",
    }  # fmt: skip
    assert declared.carried(joined[["confidence"]].pipe(lambda part: hr.tables.frame.only(joined, [*part]))) == ""
    assert columns.table_of("survival-odd").part == "prunings"


def test_harm_of_an_effect_and_of_other_columns():
    assert [declared.harm(name) for name in ("importance", "ablation[loss]", "ablation[own]", None)] == [0, 1, -1, 0]
