"""Claims: rules that can say yes, no and undecided, their tables, and negative controls."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import CLAIMS, WANTED, michel2019, put, voita2019, worth
from helpers.messages import whole

from headroles.papers.artefact import of_wmt, printed
from headroles.papers.bench import UNREPEATED, Bench, stake
from headroles.papers.claims import PAPERS, Control, artefacts, controls, decided, reproduce
from headroles.papers.needs import Missing
from headroles.tables import frame as heads
from headroles.tables.io import load_table, save_table

matplotlib.use("agg")


ROOT = Path(__file__).resolve().parents[2]


# --- what there is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", PAPERS)
def test_every_artefact_is_there_with_its_claim(paper):
    assert set(artefacts(paper)) == set(WANTED[paper].split())
    for name, make in artefacts(paper).items():
        assert len(inspect.getsource(make).splitlines()) <= 35
        assert inspect.getdoc(make)
        claim = getattr(CLAIMS[paper], f"{name}_claim")
        assert claim.text.endswith(".")
        assert re.match(r"(Holds if|The rule of)", claim.rule)


def test_what_there_is_not():
    known = ", ".join(artefacts("voita2019"))
    with pytest.raises(
        ValueError, match=whole(f"unknown artefact of voita2019 'fig99'; did you mean 'fig9'; known: {known}")
    ):
        reproduce(Bench([]), "nowhere", "voita2019", "fig99")
    with pytest.raises(ValueError, match=whole("unknown paper 'vaswani2017'; known: " + ", ".join(PAPERS))):
        artefacts("vaswani2017")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match=whole("no folder nowhere; give the folder of a study")):
        Bench(["nowhere"]).table("single")


# --- the rules ------------------------------------------------------------------------------------------------------


def test_the_rules_hold_on_the_papers_own_numbers():
    kinds_ = of_wmt("voita2019-fig9")
    whole_ = {"enc-self": 48, "dec-self": 48, "cross": 48, "of": 144, "heads": 144}
    kinds_ = pd.concat([pd.DataFrame([whole_]), kinds_], ignore_index=True)
    assert voita2019.fig9_claim(kinds_).holds is True
    layers = printed("voita2019-fig10").assign(heads=kinds_["heads"][1:].to_numpy())
    layers = layers.assign(**{f"{name}.of": 16 for name in layers if name.endswith(("er", "le"))})
    assert voita2019.fig10_claim(layers).holds is True
    counts = printed("voita2019-fig8").rename(columns={"paper.none": "none"})
    assert voita2019.fig8_claim(counts).holds is True
    sinks = counts.assign(none=0, sink=counts["none"])
    assert voita2019.fig8_claim(sinks) == voita2019.fig8_claim(counts)
    bleu = printed("voita2019-fig7").assign(cost=lambda rows: 1 - rows["paper"] / 29.6).dropna(subset="paper")
    bleu = worth(bleu.assign(**{"cost.low": bleu["cost"], "cost.high": bleu["cost"]}))
    assert voita2019.fig7_claim(bleu).holds is True
    for name in ("table2", "table5", "table3", "table6"):
        rows = printed(f"michel2019-{name}")
        rows = rows.assign(cost=-rows["paper"], p=np.where(rows["paper.sure"] == 1, 0.001, 0.5), little=np.nan)
        told = getattr(michel2019, f"{name}_claim")(worth(rows.assign(**{"cost.low": np.nan, "cost.high": np.nan})))
        assert told.holds is None  # they are printed without intervals, and p >= 0.01 is no equivalence


# --- from saved tables ----------------------------------------------------------------------------------------------


def pruned(folder: Path) -> Path:
    """A study with what became of an encoder of 48 heads."""
    columns = {"heads": [144, 120, 106], "of": 144, "enc-self": [48, 24, 10], "dec-self": 48, "cross": 48}
    columns |= {"value": [30.0, 30.1, 29.9], "low": [29, 29.1, 28.9], "high": [31, 31.1, 30.9]}
    columns |= {"change": [0, 0.1, -0.1], "change.low": [0, -0.1, -0.3], "change.high": [0, 0.3, 0.1]}
    put(folder / "sparsity-l0-enc-self.parquet", columns, "model:m|metric:BLEU(beams=1)")
    curve_ = {"order": "enc-self by importance", "masked": [0, 48], "share": [0, 1], "value": [30.0, 20.0]}
    curve_ |= {"low": [29, 19], "high": [31, 21], "change": [0, -10], "change.low": [0, -11], "change.high": [0, -9]}
    put(folder / "curves-bleu-each.parquet", curve_, "model:m|metric:BLEU(beams=1)")
    return folder


def test_an_artefact_is_written_with_its_claim_and_what_it_is_from(tmp_path):
    study = pruned(tmp_path / "mine")
    found = reproduce(Bench([study]), study, "voita2019", "fig7", command="headroles reproduce")
    assert found.to_dict("records") == [
        {
            "paper": "voita2019", "artefact": "fig7", "made": True, "holds": True, "answer": "yes",
            "why": "with 10 of 48 heads left the control's score loses 0.3 [-0.3, 1.0] %, without any and without "
            "training 33.3 %",
            "controls": "untrained: not asked; shuffled: not asked",
        }
    ]  # fmt: skip
    place = study / "papers" / "voita2019"
    table = load_table(place / "fig7.parquet").set_index("heads")
    assert table.loc[48, ["value", "paper", "paper.subtitles"]].tolist() == [30.0, 29.60, 32.40]
    assert table.loc[10, ["change", "paper"]].tolist() == [-0.1, 29.45]
    assert heads.provenance(table, "value") == "model:m|metric:BLEU(beams=1)"
    assert heads.provenance(table, "paper").startswith("Voita et al. 2019, Fig. 7")
    facts = json.loads((place / "fig7.json").read_text())
    assert facts["holds"] is True
    assert facts["answer"] == "yes"
    assert facts["controls"]["untrained"] == {
        "yes": 0, "of": 0, "why": "no tables of an untrained model", "passes": False
    }  # fmt: skip
    assert facts["tables"] == ["mine/sparsity-l0-enc-self.parquet", "mine/curves-bleu-each.parquet"]
    assert facts["command"] == "headroles reproduce"
    assert (place / "fig7.png").read_bytes().startswith(b"\x89PNG")
    (study / "sparsity-l0-enc-self.parquet").unlink()
    again = reproduce(Bench([study]), study, "voita2019", "fig7")
    assert not again["made"].any()
    assert list(place.iterdir()) == []  # nothing is left of what can no longer be made


@pytest.mark.slow
def test_drawing_again_needs_no_torch(tmp_path):
    study = pruned(tmp_path / "mine")
    code = (
        "import sys\nclass Blocked:\n def find_spec(self, name, *_):\n"
        "  if name in ('torch', 'transformers'): raise ImportError\n"
        "sys.meta_path.insert(0, Blocked())\n"
        f"sys.argv = ['headroles', 'reproduce', 'voita2019', 'fig7', '--from', {str(study)!r}]\n"
        "from headroles.cli.main import main\nmain()"
    )
    environment = os.environ | {"COLUMNS": "200", "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fig7" in done.stdout
    assert f"written: {study / 'papers'}, 1 of 1 artefacts" in done.stdout


# --- negative controls ----------------------------------------------------------------------------------------------


def of_heads(**columns: object) -> pd.DataFrame:
    """A table of a translation model, six layers of eight heads of each kind, from functions of a head."""
    index = heads.index({(kind, layer): 8 for kind in ("enc-self", "dec-self", "cross") for layer in range(6)})
    return pd.DataFrame({name: [float(rule(*head)) for head in index] for name, rule in columns.items()}, index)


def effects(noise: int) -> pd.DataFrame:
    """Effects of heads that are alike on all corpora, but for a little noise."""
    random = np.random.default_rng(noise)
    found = of_heads(**{"ablation[loss]": lambda _, layer, head: layer + head + random.normal(scale=0.5)})
    return found.assign(**{"ablation[loss].p": 0.5, "ablation[loss].holm": 1.0})


def put_heads(path: Path, table: pd.DataFrame, text: str = "t") -> None:
    signature = f"model:m|corpus:{text}|text:{text}|metric:Loss()|intact:2.0"
    table.attrs["signatures"] = dict.fromkeys(table, signature)
    save_table(table, path)


def test_curves_without_random_rankings_are_judged_without_that_control(telling):
    place = telling.folders[0] / "curves-loss.parquet"
    table = load_table(place)
    save_table(table[table["order"] == "importance"], place)
    found = reproduce(telling, telling.folders[0], "michel2019", "fig3").iloc[0]
    assert found["made"]
    assert found["controls"] == "untrained: not asked; shuffled: not asked"


@pytest.fixture
def telling(tmp_path: Path) -> Bench:
    """A study in which the kinds, the layers and the single heads that matter are plain to see."""
    for number, name in enumerate(("ablation", "other")):
        put_heads(tmp_path / name / "ablation-loss-head-zero.parquet", effects(number), name)
    columns = {"order": np.repeat(["importance", "random 0", "random 1"], 3), "masked": [0, 58, 144] * 3}
    columns |= {"share": [0, 0.4, 1] * 3, "value": [2, 2.01, 5, *[2, 3, 5] * 2], "low": 2, "high": 2}
    columns |= {"change": [0, 0.01, 3, *[0, 1, 3] * 2], "change.low": [0, 0, 2.9, *[0, 0.9, 2.9] * 2]}
    put(tmp_path / "curves-loss.parquet", columns | {"change.high": [0, 0.02, 3.1, *[0, 1.1, 3.1] * 2]})
    stays = {
        "enc-self": lambda layer, head: layer == 5 and head < 3,
        "dec-self": lambda layer, head: layer < 2 and head < 7,
        "cross": lambda layer, head: layer > 3 or (layer == 3 and head < 3),
    }
    columns = {f"survival[l0 {size}]": lambda kind, *head: stays[kind](*head) for size in (36,)}
    columns["survival[l0 36].open"] = columns["survival[l0 36]"]
    put_heads(tmp_path / "survival-l0.parquet", of_heads(**columns))
    counts = {"heads": [144, 36], "of": 144, "enc-self": [48, 3], "dec-self": [48, 14], "cross": [48, 19]}
    put(tmp_path / "sparsity-l0.parquet", counts | {"value": 2.0, "low": 2.0, "high": 2.0})
    return Bench([tmp_path])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["voita2019 fig9", "voita2019 fig10", "michel2019 fig2"])
def test_a_claim_about_which_heads_holds_of_no_shuffled_heads(telling, tmp_path, name):
    paper, _, artefact = name.partition(" ")
    make = artefacts(paper)[artefact]
    for number, corpus in enumerate(("ablation", "other")):  # other heads matter on each corpus
        table = effects(number)
        table = table.sample(frac=1, random_state=number).set_axis(table.index)
        put_heads(tmp_path / "untrained" / corpus / "ablation-loss-head-zero.parquet", table, corpus)
    telling.untrained = Bench([tmp_path / "untrained"])
    assert make(telling).verdict.holds is True
    told = controls(make(telling), make, telling)
    assert (told["shuffled"].of, told["shuffled"].passes) == (20, False)
    assert decided(make(telling).verdict, told) == make(telling).verdict


@pytest.mark.slow
def test_a_rule_that_an_untrained_model_passes_is_none(telling):
    make = artefacts("michel2019")["fig2"]
    assert make(telling).verdict.holds is None
    assert "the value of untrained models is unknown" in make(telling).verdict.why
    telling.untrained = telling
    told = controls(make(telling), make, telling)
    assert (told["untrained"].of, told["untrained"].passes) == (1, False)
    verdict = decided(make(telling).verdict, told)
    assert verdict.holds is None
    assert "untrained models reach 0.97" in verdict.why
    telling.untrained = Bench([telling.folders[0] / "ablation"])  # one corpus, no curve
    found = controls(make(telling), make, telling)["untrained"]
    assert (found.of, found.why.partition(",")[0]) == (0, "Fig. 2 compares two corpora")


def test_chance_may_say_yes_once_in_twenty():
    assert [Control(yes, 20, "").passes for yes in (0, 1, 2)] == [False, False, True]
    assert [Control(0, 0, "").passes, Control(1, 1, "").passes] == [False, True]


def collected() -> pd.DataFrame:
    """The committed answers on negative controls."""
    return pd.read_csv(ROOT / "figures" / "quality" / "negative-controls.csv", keep_default_na=False)


ASKED = {  # which rules of real studies were asked of an untrained model: all that need no pruning and no training
    "multi30k-en-de": {
        "michel2019": "fig1 fig2 fig3 fig4 fig6 table1 table2 table5",
        "voita2019": "fig1a fig1b fig1c fig2 fig4 fig5 rare table1",
    },
    "minilm-sst2": {
        "michel2019": "fig1 fig3 fig6 table1 table3 table6",
        "voita2019": "fig1a fig1b fig1c fig2 fig4 rare table1",
    },
    "paper-size": {"michel2019": "fig1 table1", "voita2019": "fig1a fig1b fig1c fig4 rare table1"},
}


ONCE = [(study, paper, name) for study, rules in ASKED.items() for paper in rules for name in rules[paper].split()]


def test_no_rule_holds_of_the_controls_that_were_run():
    table = collected()
    toys_ = table[table["study"].isin(["translation", "classifier"])]
    assert set(toys_["paper"] + " " + toys_["artefact"]) == {
        f"{paper} {name}" for paper, names_ in WANTED.items() for name in names_.split()
    }
    asked = toys_[toys_["of"] > 0].groupby(["paper", "artefact"])["of"].sum()
    unasked = {("voita2019", "fig6"), ("michel2019", "heads_share")}  # a formula, a count
    assert set(zip(toys_["paper"], toys_["artefact"], strict=True)) - set(asked.index) == unasked
    assert not toys_["passes"].any()
    assert not (table["passes"] & (table["answer"] == "yes")).any()


def test_rules_of_real_studies_are_asked_of_an_untrained_model():
    table = collected()
    real = table[~table["study"].isin(["translation", "classifier"]) & (table["control"] == "untrained")]
    keys = ["study", "paper", "artefact"]
    assert set(real[real["of"] == 1][keys].itertuples(index=False, name=None)) == set(ONCE)
    assert not real["passes"].any()
    trained = set()
    for row in real[real["of"] == 0].itertuples():
        exempt = getattr(CLAIMS[row.paper], f"{row.artefact}_claim").exempt
        assert row.why == (exempt or UNREPEATED)
        trained |= set() if exempt else {f"{row.paper} {row.artefact}"}
    assert trained == {
        *("budhraja2020 claim1", "budhraja2020 claim2", "budhraja2020 claim3", "budhraja2020 claim4"),
        *("michel2019 fig5", "voita2019 fig7", "voita2019 fig8", "voita2019 fig9", "voita2019 fig10"),
        "voita2019 table2",
    }


def test_the_collected_controls_are_those_of_the_studies():
    table = collected()
    for study in ASKED:
        rows = table[table["study"] == study].set_index(["paper", "artefact", "control"])
        files = sorted((ROOT / "figures" / study).glob("papers/*/*.json"))
        told = {path: json.loads(path.read_text()) for path in files}
        assert len(rows) == 2 * len(files)
        for facts in told.values():
            for name, control in facts["controls"].items():
                row = rows.loc[(facts["paper"], facts["artefact"], name)]
                assert row[["yes", "of", "why", "passes"]].to_dict() == control
                assert row["answer"] == facts["answer"]


@pytest.mark.parametrize(("study", "paper", "name"), ONCE)
def test_committed_tables_of_untrained_models_give_the_committed_answers(study, paper, name):
    folders = [ROOT / "figures" / study, *([ROOT / "figures" / "minilm"] if study == "minilm-sst2" else [])]
    bench = Bench([folder / "untrained" for folder in folders], shared=Bench(folders))
    verdict = artefacts(paper)[name](bench).verdict
    facts = json.loads((ROOT / "figures" / study / "papers" / paper / f"{name}.json").read_text())
    assert facts["controls"]["untrained"]["why"] == f"{verdict.answer}: {verdict.why}"
    assert verdict.holds is not True
    weights = {
        signature.partition("|weights:")[2].partition("|")[0]
        for path in bench.used
        for signature in load_table(path).attrs["signatures"].values()
        if "untrained" in path.parts
    }
    trained = {signature.partition("|weights:")[2].partition("|")[0] for signature in facts["signatures"]}
    assert weights - {""}
    assert not weights & trained - {""}


def test_what_takes_training_is_said_not_to_be_repeated(tmp_path):
    for path in (tmp_path, tmp_path / "untrained"):
        put(path / "ablation-loss-head-zero.parquet", {"ablation[loss]": [1.0]})
    bench = Bench([tmp_path / "untrained"], shared=Bench([tmp_path]))
    with pytest.raises(Missing, match=whole("pruning and training are not repeated for an untrained model")):
        bench.table("sizes")
    with pytest.raises(Missing, match="^no table of a translation model pruned to several sizes in "):
        bench.shared.table("sizes")
    assert bench.table("single")["ablation[loss]"].tolist() == [1.0]


def test_what_all_heads_are_worth_is_measured_as_their_effects_are(tmp_path):
    for metric, last in (("bleu", 10.0), ("loss", 5.0)):
        columns = {"order": "importance", "masked": [0, 4], "share": [0, 1], "value": [20.0, last], "change": [0, -9]}
        columns |= {"low": 0, "high": 0, "change.low": [0, -9], "change.high": [0, -9]}
        put(tmp_path / f"curves-{metric}.parquet", columns)
    tables = [pd.DataFrame() for _ in range(3)]
    for table, metric in zip(tables, ("loss", "bleu", "chrf"), strict=True):
        table.attrs["file"] = f"ablation-{metric}-head-zero.parquet"
    assert [stake(Bench([tmp_path]), table)["all"] for table in tables] == [-9, 0.45, 0.45]


@pytest.mark.parametrize("weights", ["a", "b", "c"])
def test_what_all_heads_are_worth_is_that_of_the_same_model(tmp_path, weights):
    """Curves of another model say nothing of this one, and are not among its sources."""
    for name, cost in (("a", -3), ("b", -9)):
        columns = {"order": "importance", "masked": [0, 4], "share": [0, 1], "value": [20.0, 10], "change": [0, cost]}
        columns |= {"low": 0, "high": 0, "change.low": [0, cost], "change.high": [0, cost]}
        put(tmp_path / name / "curves-bleu.parquet", columns, f"model:m|weights:{name}|metric:BLEU(beams=1)")
    table = pd.DataFrame()
    table.attrs |= {"signatures": {"x": f"model:m|weights:{weights}|metric:BLEU(beams=1)"}}
    bench = Bench([tmp_path])
    assert stake(bench, table)["all"] == pytest.approx({"a": 0.15, "b": 0.45, "c": np.nan}[weights], nan_ok=True)
    assert [path.parent.name for path in bench.used] == [weights] * (weights != "c")
