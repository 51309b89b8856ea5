"""Which heads go and what is left: orders, trainings, sizes, the contest, movement, costs, the course of training."""

from __future__ import annotations

import json
from copy import deepcopy

import pandas as pd
import pytest
import torch
from helpers import zoo
from helpers.close import close
from helpers.commands import run
from helpers.letters import tokens_of
from helpers.messages import whole
from helpers.processes import together
from helpers.prunings import learnt, no_training, setting, training_in
from helpers.trainings import films, same_weights, tokenizer, untrained

import headroles as hr
from headroles.models import heads as families
from headroles.models.loading import untrained as untrained_as
from headroles.pruning.rankings import Random
from headroles.pruning.selection import prune
from headroles.tables import frame
from headroles.tables.io import load_table
from headroles.tables.study import Study
from headroles.training.trainer import train

TUNE = {"epochs": 1, "rate": 1e-3, "batch": 16}


def test_the_table_says_which_heads_stay_and_when_the_others_are_removed():
    table = prune(learnt(), tokenizer(), films(24), "random", keep=0.25, seed=5, remove=False)
    assert table.columns.tolist() == ["survival[random 2]", "survival[random 2].order"]
    gone = table.index[table["survival[random 2]"] == 0].tolist()
    assert table["survival[random 2]"].sum() == 2
    assert sorted(table.loc[gone, "survival[random 2].order"]) == [1, 2, 3, 4, 5, 6]
    assert gone == sorted(Random().order(setting(5))[:6])
    assert "strategy:Random(spread=None)|keep:2|kinds:all|train:no|seed:5" in frame.provenance(
        table, "survival[random 2]"
    )


@pytest.mark.slow
@pytest.mark.parametrize("when", [None, "before", "after", "both"])
def test_pruning_trains_and_removes_as_asked(tmp_path, when):
    model = deepcopy(learnt())
    table = prune(model, tokenizer(), films(48), keep=3, train=when, study=tmp_path, tune=TUNE)
    folder = tmp_path if when is None else training_in(tmp_path)
    parts = {"tuned-before": when in ("before", "both"), "tuned-after": when in ("after", "both")}
    assert {name: (folder / name).is_dir() for name in parts} == parts
    assert list(families.head_index(model)) == table.index[table.iloc[:, 0] == 1].tolist()
    if parts["tuned-after"]:
        again, _ = hr.load(folder / "tuned-after")
        assert list(families.head_index(again)) == list(families.head_index(model))
    if when == "before":
        tuned = deepcopy(learnt())
        train(tuned, tokenizer(), films(48), tmp_path / "other", seed=0, **TUNE)
        expected = prune(tuned, tokenizer(), films(48), keep=3)
        assert expected.equals(table)
        same_weights(tuned, model)


@pytest.mark.parametrize("strategy", ["random", hr.L0(rate=0.5)])
def test_a_model_that_is_not_to_lose_heads_keeps_all(strategy):
    kept, smaller = deepcopy(learnt()), deepcopy(learnt())
    table = prune(kept, tokenizer(), films(48), strategy, keep=3, remove=False, tune=TUNE)
    assert prune(smaller, tokenizer(), films(48), strategy, keep=3, tune=TUNE).equals(table)
    assert len(families.head_index(kept)) == 8
    same_weights(hr.remove_heads(kept, table.iloc[:, 0]), smaller)
    whole_one = deepcopy(learnt())
    assert (prune(whole_one, tokenizer(), films(16), strategy, keep=8).iloc[:, 0] == 1).all()
    assert whole_one.config.to_dict() == learnt().config.to_dict()
    same_weights(whole_one, learnt())


def test_a_study_keeps_the_survival_of_every_size_and_ranks_once(tmp_path, monkeypatch):
    tables = [prune(deepcopy(learnt()), tokenizer(), films(24), "random", keep=size, study=tmp_path) for size in (2, 5)]
    assert list(Study(tmp_path).load("survival-random")) == [*tables[0], *tables[1]]
    monkeypatch.setattr(Random, "order", lambda *_: pytest.fail("ranked again"))
    for size, table in zip((2, 5), tables, strict=True):
        model = deepcopy(learnt())
        again = prune(model, tokenizer(), films(24), "random", keep=size, study=tmp_path)
        pd.testing.assert_frame_equal(again, table, check_exact=True)
        assert again.attrs["signatures"] == table.attrs["signatures"]
        assert len(families.head_index(model)) == size


def test_a_study_of_another_model_is_refused_before_work_and_replaced_if_allowed(tmp_path, monkeypatch):
    prune(deepcopy(learnt()), tokenizer(), films(24), "random", keep=2, study=tmp_path)
    no_training(monkeypatch)
    with pytest.raises(FileExistsError, match="holds another model"):
        prune(untrained(), tokenizer(), films(24), hr.L0(), keep=2, study=tmp_path)
    study = Study(tmp_path, overwrite=True)
    table = prune(untrained(), tokenizer(), films(24), "random", keep=2, study=study)
    assert study.load("survival-random").equals(table)
    assert len(table) == 4


@pytest.mark.slow
def test_prune_is_the_function_and_saves_the_smaller_model(folder):
    asked = ["--strategy", "top", "--keep", "4", "--study", folder / "one", "--output", folder / "pruned"]
    done = run("prune", folder / "model", folder / "train.tsv", *asked)
    assert done.code == 0, done.err
    assert "4 of 8 heads are pruned" in done.out
    model, tokens = hr.load(folder / "model")
    table = hr.prune(model, tokens, hr.read(folder / "train.tsv"), "top", keep=4)
    smaller, _ = hr.load(folder / "pruned")
    assert list(families.head_index(smaller)) == list(families.head_index(model))
    kept = load_table(folder / "one/survival-top.parquet")
    assert kept.iloc[:, 0].tolist() == table.iloc[:, 0].tolist()
    left = run("prune", folder / "model", folder / "train.tsv", *asked[:-2], "--no-remove", "--json")
    assert json.loads(left.out)["lines"][-2] == "4 of 8 heads are pruned"


@pytest.mark.slow
def test_a_model_is_trained_from_scratch_without_the_removed_heads(folder):
    options = ["--epochs", "1", "--smoothing", "0.1", "--from-scratch"]
    removed = run("remove-heads", folder / "model", "enc-self:0:1,enc-self:1:3", "--output", folder / "six")
    assert removed.code == 0, removed.err
    done = run("train", folder / "six", folder / "train.tsv", *options, "--output", folder / "scratch")
    assert done.code == 0, done.err
    model, _ = hr.load(folder / "scratch")
    gone = {("enc-self", 0, 1), ("enc-self", 1, 3)}
    assert set(families.head_index(model)) == set(families.head_index(learnt())) - gone
    start = untrained_as(hr.remove_heads(deepcopy(learnt()), gone))
    assert [one.shape for one in start.parameters()] == [one.shape for one in model.parameters()]
    moved = start.bert.embeddings.word_embeddings.weight - model.bert.embeddings.word_embeddings.weight
    assert 0 < float(moved.detach().abs().max()) < 1e-3  # 3 steps from the same draw, at a small rate


def test_a_strength_that_removes_every_head_is_logged(caplog):
    model = deepcopy(learnt())
    table = prune(model, tokenizer(), films(48), hr.L0(strength=100.0, rate=1.0), tune=TUNE | {"epochs": 3})
    assert table["survival[100]"].sum() == 0
    assert caplog.messages == ["no head is left: lower the strength, or give a number of heads to keep"]
    assert list(families.head_index(model)) == []
    output = model(**tokenizer()("the film", return_tensors="pt"))
    assert output.logits.isfinite().all()


def test_a_number_of_heads_that_is_not_reached_is_said(caplog):
    table = prune(deepcopy(learnt()), tokenizer(), films(48), hr.L0(rate=1e-4), keep=2, tune=TUNE)
    assert table["survival[l0 2]"].sum() == 2
    assert caplog.messages == ["the target is 2 heads, but 8 of 8 gates are expected to be nonzero: "
                               "the likeliest stay; try more steps or a larger rate of gates"]  # fmt: skip


def test_a_loss_that_is_not_finite_ends_the_learning_of_gates(tmp_path):
    model = deepcopy(learnt())
    options = {"study": tmp_path, "tune": TUNE | {"rate": 1e38, "epochs": 2}}
    message = r"^the loss is (nan|inf) after \d+ steps; earlier checkpoints are kept; try a "
    with pytest.raises(ValueError, match=message):
        prune(model, tokenizer(), films(48), hr.L0(), keep=2, **options)
    assert not hasattr(model, "head_gates")
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_record_that_does_not_fit_the_weights_is_no_model(tmp_path):
    hr.save(hr.remove_heads(deepcopy(learnt()), [("enc-self", 0, 1)]), tokenizer(), tmp_path)
    config = tmp_path / "config.json"
    record = json.loads(config.read_text())
    other = "'model.encoder.layers.0.self_attn', which BertForSequenceClassification does not have"
    for change, reason in (
        ({"heads": [0, 2]}, "config.headroles records sizes that differ from those of the weights"),
        ({"heads": [0, 2, 3], "name": "model.encoder.layers.0.self_attn"},
         f"config.headroles refers to module {other}; the checkpoint was pruned for another class"),
    ):  # fmt: skip
        record["headroles"]["sites"][0] |= change
        config.write_text(json.dumps(record))
        hint = "a local folder needs config.json, weights, tokenizer"
        with pytest.raises(OSError, match=whole(f"could not load {str(tmp_path)!r}: {hint}: {reason}")):
            hr.load(tmp_path)


LEARNING = """
import sys
from pathlib import Path
from helpers.trainings import films, tokenizer
from helpers.prunings import learnt
import headroles as hr  # noqa: E402
from headroles import _distributed as processes
from headroles.models.identity import weights_digest

place = Path(sys.argv[1])
tune = {"epochs": 2, "rate": 1e-3, "batch": 8}
asked = {"keep": 3, "remove": False, "study": place / "work", "tune": tune}
table = hr.prune(learnt(), tokenizer(), films(96), hr.L0(rate=0.3), **asked)
(history,) = place.glob("work/.pruning/*/history.parquet")
steps = hr.load_table(history)["step"].tolist()
(place / str(processes.rank())).write_text(repr((steps, weights_digest(learnt()), table.to_numpy().tolist())))
"""


@pytest.mark.slow
def test_two_processes_learn_the_same_gates_each_from_its_share(tmp_path):
    done = together(LEARNING, tmp_path)
    assert done.code == 0, done.err
    told = [(tmp_path / str(rank)).read_text() for rank in (0, 1)]
    assert told[0] == told[1]
    assert told[0].startswith("([6, 12], ")  # of 12 batches in an epoch each takes six
    assert load_table(tmp_path / "work/gates-l0-3.parquet")["step"].max() == 12


# --- language models ------------------------------------------------------------------------------------------------


TEXTS = hr.Corpus.of(["a b c d e f", "b d a", "c c a b d e f a", "a b", "d e f a b c d"] * 2)
FROZEN = hr.L0(freeze="all")
SHORT = {"epochs": 3, "batch": 4, "save_strategy": "no"}


def language_model(name):
    """A tiny language model, a tokenizer and a text."""
    return zoo.tiny(name), *((tokenizer(), films(10)) if name == "bert" else (tokens_of(name), TEXTS))


@pytest.mark.parametrize(
    "name", ["llama-grouped", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "bert"))]
)
def test_gates_alone_change_no_weight_and_the_smaller_model_is_saved(name, tmp_path):
    model, tokens, text = language_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    table = hr.prune(model, tokens, text, FROZEN, keep=4, tune={**SHORT, "epochs": 20}, remove=False)
    survival, chance = table.iloc[:, 0], table.iloc[:, 1]
    assert survival.sum() == 4
    assert chance.nunique() > 1
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    inputs = tokens(text[0].text, return_tensors="pt")
    with torch.no_grad():
        with hr.mask_heads(model, torch.tensor(survival.to_numpy(), dtype=torch.float32)):
            masked = model(**inputs).logits
        hr.remove_heads(model, survival)
        close(model(**inputs).logits, masked)
        hr.save(model, tokens, tmp_path / "smaller")
        again, _ = hr.load(tmp_path / "smaller")
        assert torch.equal(again(**inputs).logits, model(**inputs).logits)


@pytest.mark.slow
def test_gates_prune_the_heads_that_the_loss_can_spare(tmp_path):
    """Of a model that has learnt its text, the heads that gates keep are worth more than the pruned ones."""
    model, tokens, _ = language_model("llama-grouped")
    text = hr.Corpus.of(["a b c d e f a b c d e f", "c d e f a b c d e f a b"] * 4)
    hr.train(model, tokens, text, tmp_path, epochs=15, batch=4, rate=1e-2, save_strategy="no")
    table = hr.prune(model, tokens, text, FROZEN, keep=4, remove=False, tune={**SHORT, "epochs": 40, "batch": 2})
    survival = table.iloc[:, 0]

    def loss(kept):
        with hr.mask_heads(model, torch.tensor(kept.to_numpy(), dtype=torch.float32)):
            return hr.evaluate(model, tokens, text, ["loss"], n_resamples=0)["value"].iloc[0]

    assert loss(survival) < loss(1 - survival)


@pytest.mark.parametrize(
    "groups", ["equal", *(pytest.param(how, marks=pytest.mark.slow) for how in ("whole", "expand"))]
)
def test_tied_embeddings_stay_tied_and_groups_are_those_of_removal(groups, tmp_path):
    model, tokens, text = language_model("llama-grouped")
    model.config.tie_word_embeddings = True
    model.tie_weights()
    table = hr.prune(model, tokens, text, hr.L0(), keep=0.5, tune=SHORT, remove=False)
    hr.remove_heads(model, table.iloc[:, 0], groups=groups)
    hr.train(model, tokens, text, tmp_path / "tuned", epochs=1, batch=4, rate=1e-3)
    again, _ = hr.load(tmp_path / "tuned")
    for tied in (model, again):
        assert tied.lm_head.weight is tied.model.embed_tokens.weight
        kept = {
            (*site.key, head) for site in families.attention_sites(tied) for head in {*site.numbers} - {*site.zeroed}
        }
        assert kept == {tuple(head) for head in table.index[table.iloc[:, 0] == 1]}
    inputs = tokens("a b c", return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits, model(**inputs).logits)


@pytest.mark.slow
def test_a_language_model_is_swept_and_compared_by_its_loss(tmp_path):
    model, tokens, text = language_model("llama-grouped")
    options = {"tune": {**SHORT, "epochs": 1, "length": 8}}
    sizes = hr.sparsity_sweep(model, tokens, text, text, FROZEN, keep=[0.5], study=tmp_path / "sweep", **options)
    assert sizes["heads"].tolist() == [8, 4]
    assert sizes["value"].notna().all()
    compared = hr.compare_pruning(
        model, tokens, text, text, strategies=["importance", FROZEN, "random"], keep=[0.5], seeds=1,
        study=tmp_path / "compared", **options,
    )  # fmt: skip
    assert sorted(compared["strategy"].unique()) == ["all heads", "importance", "l0", "random"]
    assert compared["value"].between(0, 20).all()


def test_the_command_prunes_a_language_model_by_a_text(tmp_path):
    model, tokens, text = language_model("llama-grouped")
    hr.save(model, tokens, tmp_path / "model")
    (tmp_path / "text.txt").write_text("".join(f"{sentence.text}\n" for sentence in text))
    words = ["--strategy", "l0", "--keep", "0.5", "--freeze", "all", "--length", "8", "--batch", "2"]
    place = {"--study": tmp_path / "study", "--output": tmp_path / "smaller"}
    done = run("prune", tmp_path / "model", tmp_path / "text.txt", *words, *(x for pair in place.items() for x in pair))
    assert done.code == 0, done.err
    assert "4 of 8 heads are pruned" in done.out
    smaller, _ = hr.load(tmp_path / "smaller")
    assert smaller.lm_head.weight.equal(model.lm_head.weight)
    trained = run("train", tmp_path / "model", tmp_path / "text.txt", "--epochs", "1", "--output", tmp_path / "trained")
    assert trained.code == 0, trained.err
