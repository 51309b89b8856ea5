"""Every artefact is made of toys."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest
from helpers.artefacts import WANTED
from toy_translator import Settings, translator
from toys import PAPERS as TOYS
from toys import workflows

from headroles.papers import workflow
from headroles.papers.bench import Bench
from headroles.papers.reproduction import PAPERS, artefacts, written
from headroles.papers.verdicts import Missing, Reproduced
from headroles.papers.workflow import Workflow
from headroles.tables import frame as heads
from headroles.tables.io import load_table
from headroles.training.hf_trainer import TrainOptions

DRAWN = {*(f"fig{number}" for number in range(1, 11)), "fig1a", "fig1b", "fig1c", "gates", "claim1", "claim3", "claim4"}


class Made(NamedTuple):
    """An artefact of a toy: the toy's name, and all but its files."""

    toy: str
    artefact: Reproduced


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Workflow]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workflow, "COUNT", 2)  # untrained models
        patch.setattr("toys.translator", partial(translator, settings=Settings(steps=10, pairs=400)))
        toys = workflows(tmp_path_factory.mktemp("toys"))
    less = {"timed": {"shares": (0.0, 0.5), "batches": (1, 4), "length": 8, "repeats": 2}, "n_resamples": 10}
    less |= {"keep": (0.2,), "tune": TrainOptions(max_steps=2, batch=16)}  # trainings of one size, and few steps
    scratch = {"translation": {"scratch": TrainOptions(epochs=2, batch=16)}, "classifier": {}}
    few = {"train": slice(32), "dev": slice(16), "test": slice(16), "trees": slice(24)}
    found = {}
    for name, toy in toys.items():
        parts = {part: getattr(toy.material, part)[rows] for part, rows in few.items()}
        found[name] = replace(toy, material=toy.material._replace(**parts), **less, **scratch[name])
    return found


@pytest.fixture(scope="module")
def made(toys: dict[str, Workflow]) -> dict[tuple[str, str], Made]:
    """All artefacts of the toys, of tables computed by need: neither drawn nor asked of controls, as committed ones."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workflow, "COUNT", 2)
        for toy, run in toys.items():
            for paper in TOYS[toy]:
                for name, make in artefacts(paper).items():
                    if (paper, name) not in found:
                        with suppress(Missing):
                            found[paper, name] = Made(toy, make(Bench([run.folder], run)))
    return found


@pytest.mark.slow
def test_every_artefact_is_made_of_toys(made):
    assert {*made} == {(paper, name) for paper in PAPERS for name in WANTED[paper].split()}
    for (paper, name), (_, artefact) in made.items():
        assert len(artefact.table), (paper, name)
        assert artefact.verdict.holds in (True, False, None)
        assert re.search(r"\d|no task", artefact.verdict.why), (paper, name)
        assert "nan" not in artefact.verdict.why, (paper, name)
        assert (artefact.draw is not None) == (name in DRAWN), (paper, name)
    assert made["michel2019", "table3"].toy == "classifier"  # what a toy lacks is made of the other
    assert made["michel2019", "table2"].toy == "translation"


@pytest.mark.slow
def test_toys_artefacts_show_the_tables_they_are_from(toys, made):
    study = toys["translation"].folder
    scores = load_table(study / "relevance" / "heads.parquet").loc["enc-self", "relevance[cp].size"]
    assert made["voita2019", "fig1a"].artefact.table["share"].tolist() == scores.groupby("layer").max().tolist()
    sizes_ = load_table(study / "pruning" / "sparsity-l0.parquet")
    ours = made["voita2019", "fig9"].artefact.table.dropna(subset="enc-self")
    assert ours[["heads", "cross"]].to_numpy().tolist() == sizes_[["heads", "cross"]].to_numpy().tolist()
    layers = made["voita2019", "fig10"].artefact.table.dropna(subset="cross lower")
    layers = layers.sort_values("heads", ascending=False)
    assert layers.filter(regex="^cross [a-z]+$").sum(axis=1).tolist() == sizes_["cross"].tolist()[1:]
    table = made["michel2019", "fig1"].artefact.table
    effects = load_table(study / "ablation" / "ablation-loss-head-zero.parquet")
    assert table["change"].tolist() == effects.loc["enc-self", "ablation[loss]"].tolist()
    signature = heads.provenance(effects, "ablation[loss]").split("|")
    intact = float(dict(part.split(":", 1) for part in signature)["intact"])
    assert (table["score"] - table["change"]).to_numpy() == pytest.approx(intact)
    table = made["michel2019", "table1"].artefact.table
    assert table["significant"].sum() == (effects.loc["enc-self", "ablation[loss].p"] < 0.01).sum()
    assert made["michel2019", "fig3"].artefact.table["paired"].all()
    contest = load_table(toys["classifier"].folder / "compare-pruning" / "compare-pruning.parquet")
    contest = contest.set_index(["strategy", "heads", "tuned"])
    for row in made["budhraja2020", "claim2"].artefact.table.itertuples():
        assert row.gain == contest.loc[(row.strategy, row.heads, True), "gain"]


@pytest.mark.slow
def test_reproduced_writes_an_artefact_of_each_toy(toys, made):  # noqa: ARG001
    for run in toys.values():
        written(Bench([run.folder], run), run.folder, "michel2019", "fig1")
        place = run.folder / "papers" / "michel2019"
        assert {path.name for path in place.iterdir()} == {"fig1.json", "fig1.parquet", "fig1.png"}
        assert json.loads((place / "fig1.json").read_text())["signatures"]
