"""The replication of the papers, at a tiny size: prepared pairs, tables that are made once, the options of a GPU."""

from __future__ import annotations

import pytest
import torch
from marian import marian
from preparation import prepare, prepared
from replicate import Recipe, pace, replicate
from transformers import AutoTokenizer

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.models import identity
from headroles.tables import frame

TINY = Recipe(
    width=32, layers=1, heads=2, epochs=2, batch=16, tune_pairs=32, encoder_keep=(0.5,), keep=(0.5,), n_resamples=20
)
HALVES = {"held_out": 8, "trees": 10, "pieces": 300}
PAIRS = hr.synthetic_corpus(100, translated=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    place = tmp_path_factory.mktemp("prepared") / "toy"
    prepare(place, [PAIRS], **HALVES)
    return prepared(place)


def given(*lines):
    """Pairs of these lines, each "source = target"."""
    sides = [line.split(" = ") for line in lines]
    return Corpus("given", tuple(Sentence(one, target=Sentence(other)) for one, other in sides))


def texts(part):
    return [(one.text, one.target.text) for one in part]


def test_prepare_counts_the_pairs_that_are_left_out(tmp_path):
    words = ["".join(chr(97 + int(digit)) for digit in f"{number:03}") for number in range(40)]
    lines = [f"{word} {word} = {word} {word} {word}" for word in words]
    capitals = [line.upper().replace(" = ", "! = other ") for line in lines]  # the same source but for its case
    faulty = ["12 345 = a", "a b c = 1 2 3", "x\x07y = a b", "w " * 51 + "= a", "aaa   aaa = aaa aaa\taaa"]
    corpora = [given(*lines, *faulty), given(*capitals)]
    counts = prepare(tmp_path / "made", corpora, parsed=PAIRS[:5], held_out=4)
    assert counts["pairs"].to_dict() == {
        "left out: not text": 3, "left out: too long": 1, "left out: twice": 1, "left out: also held out": 8,
        "train": 64, "dev": 4, "test": 4, "parsed": 5
    }  # fmt: skip


@pytest.mark.parametrize("other", [None, given("Good news = Gute Nachricht", "aaa! = x")])
def test_prepare_parts_have_nothing_in_common(other, tmp_path):
    table = prepare(tmp_path / "made", [PAIRS], other, **HALVES)
    found = prepared(tmp_path / "made")
    held = [found.dev, found.test, found.parsed]
    sources = [one.text for part in (*held, found.train) for one in part]
    assert len(sources) == len(set(sources))
    assert [len(part) for part in held] == [8, 8, 10] == table.loc[["dev", "test", "parsed"], "pairs"].tolist()
    known = {one.text: one for one in PAIRS}
    assert all(known[source].target.text == to for part in (found.train, *held) for source, to in texts(part))
    assert table["pairs"].sum() == 100 + (0 if other is None else 2)
    assert all((one.heads, one.spans) == (known[one.text].heads, known[one.text].spans) for one in found.parsed)
    assert not any(one.has_tree for part in (found.train, found.dev, found.test) for one in part)
    assert found.other is None if other is None else texts(found.other) == texts(other)


def test_prepare_draws_the_held_out_parts_by_the_seed(data, tmp_path):
    for seed in (0, 1):
        prepare(tmp_path / str(seed), [PAIRS], **HALVES, seed=seed)
    first, second = (prepared(tmp_path / str(seed)) for seed in (0, 1))
    for part in ("train", "dev", "test", "parsed"):
        assert texts(getattr(first, part)) == texts(getattr(data, part)) != texts(getattr(second, part))


@pytest.mark.shared
@pytest.mark.slow
def test_prepare_parses_sentences_without_trees(shared, tmp_path):
    plain = given(*(f"{one.text} = {one.target.text}" for one in PAIRS))
    counts = prepare(tmp_path / "made", [plain], **HALVES, models=shared / "stanza")
    found = prepared(tmp_path / "made").parsed
    assert counts.loc["parsed", "pairs"] == len(found) == 10
    assert all(one.has_tree and "nsubj" in one.relations for one in found)
    known = dict(texts(plain))
    assert all(known[source] == target for source, target in texts(found))


def test_the_tokenizer_cuts_words_and_gives_them_back(data):
    tokenizer = AutoTokenizer.from_pretrained(data.tokenizer)
    assert len(tokenizer) <= HALVES["pieces"]
    for one in data.train:
        assert tokenizer.decode(tokenizer(one.text)["input_ids"], skip_special_tokens=True) == one.text


def contents(folder):
    return {path.stem: path.read_bytes() for path in folder.glob("*.parquet")}


def brief(*given, **options):
    """A Marian that writes little: what has not learnt does not end."""
    model = marian(*given, **options)
    model.generation_config.max_length = 16
    return model


@pytest.mark.slow
def test_replicate_makes_every_table_once(data, tmp_path, monkeypatch):
    monkeypatch.setattr("replicate.marian", brief)
    replicate(tmp_path / "study", data, TINY)
    study = hr.Study(tmp_path / "study")
    sizes = {f"{table}-l0{kind}" for table in ("sparsity", "survival", "functions") for kind in ("", "-enc-self")}
    related = {"relate", "predictors", "role-changes-l0", "role-changes-l0-enc-self"}
    made = {"history", "heads", "offsets", "roles", "conservation-cp", "evaluation-test", "ablation-loss-head-zero"}
    assert made | sizes | related | {"gates-l0-3", "gates-l0-enc-self-1", "roles-l0-3"} <= set(study.names())
    tables = {name: study.load(name) for name in study.names()}
    assert len(tables["heads"]) == len(tables["ablation-loss-head-zero"]) == 6
    assert list(tables["history"]["epoch"]) == [1, 2]
    assert list(tables["evaluation-test"].index) == ["loss", "bleu", "chrf"]
    assert tables["sparsity-l0-enc-self"]["heads"].tolist() == [6, 5]
    assert tables["sparsity-l0"]["heads"].tolist() == [6, 3]
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
