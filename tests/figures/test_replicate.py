"""The replication of the papers, at a tiny size: its tables, each made once, and the options of a GPU."""

from __future__ import annotations

import pytest
import torch
from helpers.replicating import HALVES, pairs
from replicate import Recipe, pace, replicate
from transformers import AutoTokenizer

import headroles as hr
from headroles.models import identity
from headroles.papers.preparation import prepare, prepared
from headroles.tables import frame

TINY = Recipe(
    width=32, layers=1, heads=2, epochs=2, batch=16, tune_pairs=48, encoder_keep=(0.5,), keep=(0.5,), n_resamples=20
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    place = tmp_path_factory.mktemp("prepared") / "toy"
    prepare(place, [pairs()], **HALVES)
    return prepared(place)


def contents(folder):
    return {path.stem: path.read_bytes() for path in folder.glob("*.parquet")}


@pytest.mark.slow
def test_replicate_makes_every_table_once(data, tmp_path):
    replicate(tmp_path / "study", data, TINY)
    study = hr.Study(tmp_path / "study")
    sizes = {f"{table}-l0{kind}" for table in ("sizes", "survival", "functions") for kind in ("", "-enc-self")}
    related = {"relate", "odds", "predictors", "drift-l0", "drift-l0-enc-self"}
    made = {"history", "heads", "offsets", "roles", "conservation-cp", "evaluation-test", "ablation-loss-single-zero"}
    assert made | sizes | related | {"gates-l0-3", "gates-l0-enc-self-1", "roles-l0-3"} <= set(study.names())
    tables = {name: study.load(name) for name in study.names()}
    assert len(tables["heads"]) == len(tables["ablation-loss-single-zero"]) == 6
    assert list(tables["history"]["epoch"]) == [1, 2]
    assert list(tables["evaluation-test"].index) == ["loss", "bleu", "chrf"]
    assert tables["sizes-l0-enc-self"]["heads"].tolist() == [6, 5]
    assert tables["sizes-l0"]["heads"].tolist() == [6, 3]
    assert {"ablation[loss]", "survival[l0 1 enc-self]", "survival[l0 3]"} <= set(tables["relate"]["outcome"])
    assert data.train.hash in frame.provenance(tables["heads"], "rarity")  # rare by what the model was trained on
    model, _ = hr.load(tmp_path / "study-weights" / "model")
    assert f"weights:{identity.weights_digest(model)}" in frame.provenance(tables["heads"], "confidence")
    before = contents(study.folder)
    replicate(study.folder, data, TINY)
    assert contents(study.folder) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests a machine without a GPU")
def test_pace_without_a_gpu_changes_nothing():
    assert pace() == {}


@pytest.mark.slow
def test_the_options_of_a_gpu_train_the_model_and_its_gates(data, tmp_path):
    """bfloat16, and batches that another process makes: the options of `pace` where there is a GPU."""
    tokenizer = AutoTokenizer.from_pretrained(data.tokenizer)
    model = TINY.model(tokenizer)
    fast = {"bf16": True, "use_cpu": True, "dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    history = hr.train(model, tokenizer, data.train, tmp_path / "model", **TINY.training() | fast)
    assert history["loss"].iloc[-1] < history["loss"].iloc[0]
    before = identity.weights_digest(model)
    strategy = hr.L0(rate=0.5, freeze="decoder")
    found = hr.prune(model, tokenizer, data.train, strategy, keep=1, kinds=["enc-self"], tune=TINY.tuning() | fast)
    assert found.loc["enc-self"].iloc[:, 0].sum() == 1
    assert found.loc["enc-self"].iloc[:, 1].max() < 0.9261  # gates have moved from where they start
    assert identity.weights_digest(model) != before
    assert {value.dtype for value in model.parameters()} == {torch.float32}
