"""Claims of Voita et al. can hold, not hold, and not be decided."""

from __future__ import annotations

import shutil
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import cases, frame, judged, put, with_cost_of_all

from headroles.papers import voita2019
from headroles.papers.bench import Bench
from headroles.tables.frame import signed
from headroles.tables.io import load_table, save_table

matplotlib.use("agg")
FIGURES = Path(__file__).resolve().parents[2] / "figures/models"
THIRDS = [f"{kind} {third}" for kind in ("dec-self", "cross") for third in ("lower", "middle", "upper")]
KINDS = "heads of enc-self dec-self cross"


def shares(*ends: float, untrained: float = 1.6) -> pd.DataFrame:
    columns = "layer head share share.low share.high equal"
    rows = (0, 0, 0.12, 0.11, 0.13, 0.125), (1, 3, *ends, 0.125), (2, 1, *ends, 0.125)
    return frame(columns, *rows).assign(untrained=untrained)


def ranks(low: float, high: float, untrained: float = 0.2) -> pd.DataFrame:
    row = ("rank correlation with relevance", (low + high) / 2, low, high, untrained)
    return frame("what ours ours.low ours.high untrained", row)


def functions(*counts: tuple[float, float]) -> pd.DataFrame:
    rows = [("positional", 3, 3, 4, 12), ("syntactic", 2, 2, 2, 12), *(("rare", 1, *each, 12) for each in counts)]
    return frame("function heads sure possible of", *rows)


def commonest(low: float, high: float) -> pd.DataFrame:
    relations = ("nsubj", "obj", "amod", "advmod")
    return frame("relation share low high paper", *((one, 0.4, low, high, 0.35) for one in relations))


def dependencies(low: float, high: float) -> pd.DataFrame:
    """All four of subjects and objects alike; amod is no better than its baseline."""
    ways = [(relation, way) for relation in ("nsubj", "obj") for way in ("dep>head", "head>dep")]
    rows = [(*way, (low + high) / 2, low, high, 0.4) for way in ways]
    return frame("relation way ours low high baseline", *rows, ("amod", "dep>head", 0.7, 0.69, 0.71, 0.7))


def rarities(*effect: float) -> pd.DataFrame:
    return frame("layer head rarity rarity.low rarity.high", (0, 2, *effect), (1, 0, 0.1, 0.1, 0.1))


def sizes(low: float, high: float) -> pd.DataFrame:
    rows = (48, 48, 0, 0, 0), (24, 48, 0, 0, 0), (10, 48, 0.02, low, high)
    return with_cost_of_all(frame("heads of cost cost.low cost.high", *rows))


def left(*few: float) -> pd.DataFrame:
    return frame("heads none", (48, 34), (30, 18), few)


def kinds(*small: float, half: tuple[int, int, int] = (9, 31, 32)) -> pd.DataFrame:
    return frame(KINDS, (144, 144, 48, 48, 48), (72, 144, *half), (36, 144, *small))


def thirds(*counts: float) -> pd.DataFrame:
    row = dict(zip(THIRDS, counts, strict=True)) | {f"{name}.of": 16 for name in THIRDS}
    return pd.DataFrame([row | {"heads": 40, "of": 96}])


def scratch(low: float, high: float, steps: float = 900) -> pd.DataFrame:
    columns = "heads of finetuned gap gap.low gap.high steps.finetuned steps.scratch"
    return frame(columns, (72, 144, 30, (low + high) / 2, low, high, 454, steps))


FORMULAS = voita2019.fig6(Bench([])).table
RULES = {  # tables with which a claim holds, does not hold, and cannot be decided
    "fig1a": (shares(0.3, 0.28, 0.32), shares(0.15, 0.14, 0.16), shares(0.2, 0.17, 0.22)),
    "fig1b": (ranks(0.1, 0.5), ranks(-0.5, -0.1), ranks(-0.1, 0.4)),
    "fig1c": (functions((1, 1)), functions((0, 0)), functions((0, 2))),
    "fig2": (
        functions((1, 1)).assign(corpus="b"),
        functions((0, 0)).assign(corpus="b"),
        functions((0, 0)).assign(corpus="b", sure=0, possible=0),  # no head has any function
    ),
    "fig3": (commonest(0.36, 0.5), commonest(0.1, 0.3), commonest(0.3, 0.4)),
    "fig4": (dependencies(0.6, 0.7), dependencies(0.41, 0.45), dependencies(0.45, 0.55)),
    "table1": (dependencies(0.5, 0.7), dependencies(0.41, 0.45), dependencies(0.45, 0.55)),
    "fig5": tuple(frame("queries hits hits.two", (20, hits, hits)) for hits in (19, 2, 11)),
    "rare": (rarities(0.6, 0.55, 0.65), rarities(0.2, 0.1, 0.3), rarities(0.5, 0.4, 0.6)),
    "fig6": (FORMULAS, FORMULAS.assign(**{"ours P(0)": 0.5}), None),
    "fig7": (sizes(0.0, 0.02), sizes(0.04, 0.1), sizes(0.0, 0.05)),
    "fig8": (left(8, 0), frame("heads none", (48, 2), (12, 10)), left(8, 5)),
    "fig9": (kinds(3, 14, 19), kinds(20, 8, 8), kinds(11, 12, 13, half=(22, 24, 26))),
    "fig10": (thirds(9, 5, 2, 1, 4, 14), thirds(9, 5, 2, 14, 4, 1), thirds(5, 5, 5, 1, 4, 14)),
    "table2": (scratch(1, 2), scratch(-2, -1), scratch(-0.5, 0.5)),
    "gates": tuple(frame("of undecided masked", (288, count, 9)) for count in (5, 80, 25)),
}


@pytest.mark.parametrize(("rule", "table", "answer"), cases(voita2019, RULES))
def test_a_rule_says_yes_no_and_undecided(rule, table, answer):
    judged(rule, table, answer)


def test_fig1a_the_share_of_an_untrained_model_is_not_large():
    assert voita2019.fig1a_claim(shares(0.19, 0.189, 0.191, untrained=1.4)).holds is True
    assert voita2019.fig1a_claim(shares(0.19, 0.189, 0.191, untrained=1.6)).holds is False
    unknown = voita2019.fig1a_claim(shares(0.3, 0.28, 0.32, untrained=np.nan))
    assert unknown.holds is None
    assert "layers a head has more than 1.5 equal shares; the most of any head" in unknown.why
    assert not unknown.why.startswith("in 0 of")
    assert voita2019.fig1b_claim(ranks(0.1, 0.5, untrained=0.4)).holds is None


@pytest.mark.parametrize(("many", "answer"), [(1, False), (3, False), (4, True)])
def test_fig1a_one_layer_of_six_is_not_most_layers(many, answer):
    """As in the Marian, whose layer 4 alone is above what an untrained model reaches."""
    low, high = (0.15, 0.14, 0.16), (0.3, 0.28, 0.32)
    rows = [(layer, 4, *(high if layer < many else low), 0.125) for layer in range(6)]
    table = frame("layer head share share.low share.high equal", *rows).assign(untrained=1.75)
    verdict = voita2019.fig1a_claim(table)
    assert verdict.holds is answer
    assert verdict.why.startswith(f"in {many} of 6 layers ")


def test_relations_that_are_missing_are_not_found():
    """Trees with the relation dobj have no obj: subjects alone are not both."""
    table = dependencies(0.5, 0.7)
    assert voita2019.table1_claim(table.query("relation != 'obj'")).holds is None
    without = table.assign(ours=table["ours"].where(table["relation"] != "obj"))
    assert voita2019.table1_claim(without).holds is None
    assert voita2019.fig3_claim(commonest(0.36, 0.5).query("relation == 'amod'")).holds is None


def test_fig4_the_best_of_many_heads_must_exceed_the_best_of_many_by_chance():
    """48 heads whose interval is a tenth wide to each side: the best is 0.2 above 0.4 now and then."""
    table = dependencies(0.51, 0.71)
    assert voita2019.fig4_claim(table).holds is True
    assert voita2019.fig4_claim(table.assign(of=48)).holds is None


def test_rare_words_counted_in_the_scored_sentences_cannot_refute():
    """On PUD a head that always attends to the rarest word, by counts of a larger corpus, has .22 to .30 of ours."""
    table = rarities(0.2, 0.1, 0.3)
    table.attrs["signatures"] = {"rarity": "corpus:pud|frequencies:self"}
    assert voita2019.rare_claim(table).holds is None
    table.attrs["signatures"] = {"rarity": "corpus:pud|frequencies:train-3a1d"}
    assert voita2019.rare_claim(table).holds is False


@pytest.mark.parametrize(("corpus", "known"), [("pud", True), ("ewt", False), (None, False)])
def test_fig1c_scores_without_resamples_are_as_stable_as_the_roles_beside_them(tmp_path, corpus, known):
    """The scores of this repository have no resamples; roles of another corpus say nothing about them."""
    shutil.copy(FIGURES / "minilm" / "pud" / "heads.parquet", tmp_path)
    if corpus:
        shutil.copy(FIGURES / "minilm" / corpus / "roles.parquet", tmp_path)
    found = voita2019.fig1c(Bench([tmp_path]))
    counts = found.table.set_index("function")
    assert counts["heads"].tolist() == [2, 6, 0]
    assert found.verdict.holds is (False if known else None)
    sure, possible = counts.loc["syntactic", ["sure", "possible"]]
    if known:
        stable = load_table(tmp_path / "roles.parquet").filter(regex=r"^syntactic.*\.stability$").max(axis=1)
        assert (sure, possible) == ((stable >= 0.95).sum(), (stable >= 0.05).sum()) == (5, 8)
    else:
        assert np.isnan([sure, possible]).all()


def test_fig6_formulas_are_those_of_the_paper():
    assert FORMULAS["ours P(0)"].tolist() == pytest.approx([0.232, 0.039, 0.858], abs=5e-4)


def test_fig7_costs_of_a_loss_are_nats():
    table = sizes(0.029, 0.037).assign(metric="loss", **{"all.metric": "loss"})
    assert voita2019.fig7_claim(table).why == (
        "with 10 of 48 heads left the control's score loses 0.020 [0.029, 0.037] nats, without any and without "
        "training 0.500 nats"
    )


def swept(folder: Path, name: str, value: float) -> Bench:
    columns = {"enc-self": [48, 10], "value": [36.0, value], "low": [35.9, value - 0.1], "high": [36.1, value + 0.1]}
    changes = {"change": [0, value - 36], "change.low": [0, value - 36.1], "change.high": [0, value - 35.9]}
    put(folder / f"{name}.parquet", columns | changes, "model:m|metric:BLEU(beams=1)")
    return Bench([folder])


def test_fig8_counts_how_many_of_the_heads_with_a_function_before_remain(tmp_path):
    """Of the heads 0, 1 and 5 two remain; head 2 is left and has become syntactic; a sink has no function."""
    index = pd.MultiIndex.from_tuples([("enc-self", 0, head) for head in range(8)], names=["kind", "layer", "head"])
    whole = {"positional[-1]": {0, 1}, "syntactic[obj dep>head]": {0, 5}, "rare": set(), "sink[first]": {6}}
    roles = pd.DataFrame({name: [head in heads for head in range(8)] for name, heads in whole.items()}, index)
    roles = roles.assign(**{f"{name}.stability": 1.0 for name in whole})
    survival = pd.DataFrame({"survival[l0 4 enc-self]": [1.0, 0, 1, 0, 0, 1, 1, 0]}, index)
    for name, table in (("roles-l0-enc-self-8", roles), ("survival-l0-enc-self", survival)):
        save_table(signed(table, "model:m"), tmp_path / f"{name}.parquet")
    counts = {"kind": "enc-self", "function": ["positional", "none", "syntactic", "none"], "count": [3, 5, 3, 1]}
    put(tmp_path / "functions-l0-enc-self.parquet", counts | {"heads": [8, 8, 4, 4]})
    found = voita2019.fig8(Bench([tmp_path])).table.dropna(subset="first").set_index("heads")
    before = [head for head in range(8) if any(head in whole[name] for name in whole if name != "sink[first]")]
    left = [head for head in before if survival.iloc[head, 0] == 1]
    assert (found["first"].unique().tolist(), found["first.left"].to_dict()) == ([3], {8: 3, 4: len(left)})


def test_fig8_of_few_heads_says_how_many_of_the_first_remain():
    table = left(8, 2).assign(**{"first": 14, "first.left": [14, 12, 5]})
    assert voita2019.fig8_claim(table).why.endswith("; of the 14 that had one 5 remain, 2.3 by chance")


@pytest.mark.parametrize("other", ["l0-dec-self-enc-self", "l0-cross-enc-self", "importance-enc-self"])
def test_fig7_shows_only_gates_of_the_encoder(tmp_path, other):
    """Tables of other kinds and strategies come earlier by the alphabet."""
    swept(tmp_path, f"sparsity-{other}", 10.0)
    bench = swept(tmp_path, "sparsity-l0-enc-self", 35.9)
    assert voita2019.fig7(bench).table.set_index("heads")["value"].loc[10].max() == 35.9


@pytest.mark.parametrize("table", [scratch(-2, -1, steps=4540), scratch(1, 2, steps=np.nan)])
def test_table2_models_with_unlike_training_are_not_comparable(table):
    verdict = voita2019.table2_claim(table)
    assert (verdict.holds, verdict.comparable, verdict.answer) == (None, False, "not comparable")


def put_scratch(folder: Path) -> None:
    names = (("finetuned", 30), ("scratch", 20))
    ends = {f"{name}{end}": [value] for name, value in names for end in ("", ".low", ".high")}
    put(folder / "scratch.parquet", {"heads": [72], "e": [8], "d": [32], "c": [32], **ends}, "metric:BLEU(beams=1)")
    put(folder / "sparsity-l0.parquet", {"heads": [144, 72], "of": [144, 144], "cross": [48, 32]})


@pytest.mark.parametrize(("base", "steps"), [([("base", 9000)], 9454), ([], np.nan)])
def test_table2_counts_the_steps_before_pruning(tmp_path, base, steps):
    """A model that was trained for 9,000 steps and pruned in 454 is no fair comparison for one of 900."""
    what, counts = zip(*base, ("finetuned", 454), ("scratch", 900), strict=True)
    put(tmp_path / "trainings.parquet", {"what": what, "steps": counts, "epochs": np.nan})
    put_scratch(tmp_path)
    artefact = voita2019.table2(Bench([tmp_path]))
    assert artefact.table["steps.finetuned"].max() == pytest.approx(steps, nan_ok=True)
    assert artefact.verdict.answer == "not comparable"


def test_table2_does_not_count_steps_of_another_study(tmp_path):
    other, study = tmp_path / "other", tmp_path / "study"
    lengths = {"what": ["base", "finetuned", "scratch"], "steps": 100, "epochs": 1.0}
    put(other / "trainings.parquet", lengths)
    put_scratch(study)
    assert voita2019.table2(Bench([study, other])).verdict.answer == "not comparable"
    put(study / "trainings.parquet", lengths)
    assert voita2019.table2(Bench([other, study])).verdict.answer == "yes"


def test_fig9_sizes_of_an_untrained_toy_do_not_satisfy_the_rule():
    """Its gates keep 1, 9 and 8, then 1, 2 and 4 heads of the kinds: the encoder goes first, cross is not the last."""
    rows = (36, 36, 12, 12, 12), (18, 36, 1, 9, 8), (7, 36, 1, 2, 4)
    verdict = voita2019.fig9_claim(frame(KINDS, *rows))
    assert (verdict.holds, verdict.why) == (
        None,
        "with 7 of 36 heads left: enc-self 1, dec-self 2, cross 4; cross-attention keeps the largest share in 1 of "
        "2 sizes with at most half (one training for each size)",
    )


def test_fig9_a_difference_of_one_head_refutes_nothing():
    yes = kinds(3, 14, 19)
    assert voita2019.fig9_claim(yes).holds is True
    more = pd.concat([yes, frame(KINDS, (135, 144, 45, 44, 46))], ignore_index=True)
    assert voita2019.fig9_claim(more).holds is None


def test_fig9_compares_kinds_by_the_share_of_their_heads():
    """The encoder has twice as many heads, and keeps a tenth of them where cross-attention keeps most of its own."""
    rows = (192, 192, 96, 48, 48), (146, 192, 50, 48, 48), (90, 192, 14, 36, 40), (50, 192, 6, 14, 30)
    assert voita2019.fig9_claim(frame(KINDS, *rows)).answer == "yes"


@pytest.mark.parametrize(
    ("kept", "answer"),
    [((0.5, 0.5, 0.5, 0.5), "cannot be said"), ((1, 0.25, 0.25, 1), "yes"), ((0.25, 1, 1, 0.25), "no")],
)
def test_fig10_compares_thirds_by_the_share_of_their_heads(kept, answer):
    """Of eight layers the lower third has three and the upper two: 24 and 16 heads of each kind."""
    counts = dict(zip(THIRDS, (24, 24, 16) * 2, strict=True))
    shares = dict(zip(THIRDS, (kept[0], 0.5, kept[1], kept[2], 0.5, kept[3]), strict=True))
    row = {name: shares[name] * counts[name] for name in THIRDS} | {f"{name}.of": counts[name] for name in THIRDS}
    assert voita2019.fig10_claim(pd.DataFrame([row | {"heads": 72, "of": 192}])).answer == answer
