"""The study at the papers' size, at a tiny one: what is prepared, what each stage leaves, that none is run twice."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

import pytest
import torch
from helpers.commands import forked, run
from helpers.messages import line, whole
from helpers.replicating import HALVES, pairs

import headroles as hr
from headroles.data.readers import write
from headroles.models import heads as families
from headroles.models import identity, loading
from headroles.models.batching import encode
from headroles.models.head_model import HeadModel
from headroles.papers.preparation import prepare, prepared
from headroles.papers.replication import MAKES, STAGES, Recipe, replicate
from headroles.tables import frame
from headroles.tables.io import load_table, save_table
from headroles.training.marian import END, marian, pieced
from headroles.training.trainer import train

TINY = Recipe(
    width=32, layers=1, heads=2, epochs=2, batch=16, tune_pairs=48, encoder_keep=(0.5,), keep=(0.5,), n_resamples=20
)
OPTIONS = (
    *("--width", 32, "--layers", 1, "--heads", 2, "--epochs", 2, "--batch", 16, "--tune-pairs", 48),
    *("--encoder-keep", 0.5, "--keep", 0.5, "--resamples", 20),
)
DRAWN = {"heads", "stages", "sizes-l0", "sizes-l0-enc-self", "gates-l0-3", *MAKES.values()}


def contents(folder):
    """What is in each file, and when it was written."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.fixture(scope="module")
def killed(folder, tmp_path_factory):
    """A study of which the command was killed when its model was trained, and what was in the folder of that model."""
    study = tmp_path_factory.mktemp("replicated") / "study"
    place = study.with_name("study-weights") / "model"
    process = forked("replicate", folder, "--study", study, *OPTIONS)
    while not (place / "history.parquet").exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    (study / "stages.parquet").unlink(missing_ok=True)  # where the stage ended before the signal came
    for draft in study.glob(".*"):  # a table it was writing; a process that began later removes it, this one is older
        draft.unlink()
    return study, contents(place)


@pytest.fixture(scope="module")
def replicated(data, killed):
    """That study, of which every stage but the figures was then finished, and what was said."""
    said = []
    replicate(killed[0], data, TINY, only=STAGES[:-1], report=said.append)
    return killed[0], said


# --- preparing -------------------------------------------------------------------------------------------------------


def test_the_tokenizer_cuts_words_and_gives_them_back(data):
    tokenizer = loading.tokenizer_of(data.tokenizer)
    assert len(tokenizer) <= HALVES["pieces"]
    for one in data.train:
        assert tokenizer.decode(tokenizer(one.text)["input_ids"], skip_special_tokens=True) == one.text
    model = TINY.model(tokenizer)
    assert (
        encode(data.parsed, tokenizer, model).alignment["unaligned"] == 0
    )  # each word has a piece of its own, which syntax needs
    encoded = encode(data.train, tokenizer, model)
    assert not any(tokenizer.unk_token_id in one.ids for one in (*encoded.source, *encoded.target))
    assert all(one.ids[-1] == tokenizer.convert_tokens_to_ids(END) for one in encoded.source)


def test_the_untrained_model_is_of_the_size_that_was_asked(data):
    tokenizer = loading.tokenizer_of(data.tokenizer)
    model = Recipe(width=48, layers=2, heads=3).model(tokenizer)
    assert len(families.head_index(model)) == 3 * 2 * 3
    shapes = {tuple(value.shape) for name, value in model.named_parameters() if "layers" in name}
    assert shapes == {(48, 48), (48,), (192, 48), (192,), (48, 192)}
    same = (Recipe(width=48, layers=2, heads=3, seed=seed).model(tokenizer) for seed in (0, 1))
    assert [identity.weights_digest(one) == identity.weights_digest(model) for one in same] == [True, False]


def test_a_corpus_is_tokenised_once(data):
    tokenizer = loading.tokenizer_of(data.tokenizer)
    model, other = TINY.model(tokenizer), pieced(["a b c"], 100)
    handle = HeadModel(model, tokenizer)
    first = handle.tokenised(data.dev)
    assert handle.tokenised(data.dev) is first
    small = marian(other, width=16, layers=1, heads=2, inner=16)
    assert HeadModel(small, other).tokenised(data.dev).source[0].ids != first.source[0].ids


# --- replicating -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_stage_leaves_its_tables_and_nothing_else(replicated, data):
    study, said = replicated
    assert list(hr.Study(study).load("stages").index) == list(STAGES[:-1])
    assert said[::2] == [f"{number} of 8, {name}: begins" for number, name in enumerate(STAGES[:-1], 1)]
    assert {path.suffix for path in study.rglob("*")} == {".parquet"}
    names = set(hr.Study(study).names())
    made = {"heads", "offsets", "conservation-cp", "evaluation-test", "examples-loss-single-zero"}
    sizes = {f"{table}-l0{kind}" for table in ("sizes", "survival", "functions") for kind in ("", "-enc-self")}
    gates = {"gates-l0-3", "gates-l0-enc-self-1"}
    left = {"roles-l0-6", "roles-l0-3", "roles-l0-enc-self-2", "roles-l0-enc-self-1"}
    related = {"odds", "predictors", "drift-l0", "drift-l0-enc-self"}
    assert names == made | sizes | gates | left | related | set(MAKES.values())
    tables = {name: hr.Study(study).load(name) for name in names}
    assert len(tables["heads"]) == len(tables["ablation-loss-single-zero"]) == 6
    assert list(tables["history"]["epoch"]) == [1, 2]
    assert list(tables["evaluation-test"].index) == ["loss", "bleu", "chrf"]
    assert tables["sizes-l0-enc-self"]["heads"].tolist() == [6, 5]
    assert tables["sizes-l0"]["heads"].tolist() == [6, 3]
    assert {"ablation[loss]", "survival[l0 1 enc-self]", "survival[l0 3]"} <= set(tables["relate"]["outcome"])
    counted = frame.provenance(tables["heads"], "rarity")
    assert data.train.hash in counted  # words are rare by what the model was trained on


@pytest.mark.slow
def test_weights_are_beside_the_study_without_what_unfinished_training_needs(replicated):
    study, _ = replicated
    weights = study.with_name("study-weights")
    assert not list(weights.rglob("checkpoint-*"))
    model, _ = hr.load(weights / "model")
    assert f"weights:{identity.weights_digest(model)}" in frame.provenance(hr.Study(study).load("heads"), "confidence")


@pytest.mark.slow
def test_what_is_finished_is_not_done_again(replicated, data):
    study, _ = replicated
    before, said = contents(study.parent), []
    replicate(study, data, TINY, only=STAGES[:-1], report=said.append)
    assert said == [f"{number} of 8, {name}: kept" for number, name in enumerate(STAGES[:-1], 1)]
    assert contents(study.parent) == before


def copied(replicated, place):
    """A copy of the study, without its weights."""
    place.mkdir()
    for path in replicated[0].iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    return place


@pytest.mark.slow
def test_a_missing_table_is_made_again_and_what_follows_from_it(replicated, data, tmp_path):
    study, weights = copied(replicated, tmp_path / "study"), replicated[0].with_name("study-weights")
    (study / "ablation-loss-single-zero.parquet").unlink()
    before, said = contents(study), []
    replicate(study, data, TINY, weights=weights, only=STAGES[:-1], report=said.append)
    again = [one.partition(", ")[2].partition(":")[0] for one in said if one.endswith("begins")]
    assert again == ["ablate", "relate"]
    after = contents(study)
    related = {"relate", "odds", "predictors", "drift-l0", "drift-l0-enc-self"}
    changed = {name.removesuffix(".parquet") for name in after if after[name] != before.get(name)}
    assert changed == related | {"ablation-loss-single-zero", "stages"}


@pytest.mark.slow
def test_without_weights_what_is_finished_stays_and_the_rest_is_refused(replicated, data, tmp_path):
    study = copied(replicated, tmp_path / "study")
    replicate(study, data, TINY, only=STAGES[:-1])
    (study / "roles.parquet").unlink()
    message = (
        f"the trained model is not in {tmp_path}/study-weights/model; name its folder, or remove "
        f"{study}/stages.parquet to train it again"
    )
    with pytest.raises(FileNotFoundError, match=whole(message)):
        replicate(study, data, TINY, only=["score"])


@pytest.mark.slow
def test_the_options_of_a_gpu_train_the_model_and_its_gates(data, tmp_path):
    """bfloat16, and batches that another process makes: what `recipe.pace` asks for where there is a GPU."""
    tokenizer = loading.tokenizer_of(data.tokenizer)
    model = TINY.model(tokenizer)
    fast = {"bf16": True, "use_cpu": True, "dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    history = train(model, tokenizer, data.train, tmp_path / "model", **TINY.training() | fast)
    assert history["loss"].iloc[-1] < history["loss"].iloc[0]
    before = identity.weights_digest(model)
    strategy = hr.L0(rate=0.5, freeze="decoder")
    found = hr.prune(model, tokenizer, data.train, strategy, keep=1, kinds=["enc-self"], tune=TINY.tuning() | fast)
    assert found.loc["enc-self"].iloc[:, 0].sum() == 1
    assert found.loc["enc-self"].iloc[:, 1].max() < 0.9261  # gates have moved from where they start
    assert identity.weights_digest(model) != before
    assert {value.dtype for value in model.parameters()} == {torch.float32}


@pytest.mark.slow
def test_after_it_was_killed_the_trained_model_is_not_trained_again(killed, replicated):
    before, after = killed[1], contents(replicated[0].with_name("study-weights") / "model")
    assert {name for name in after if after[name] != before.get(name)} <= {"recipe.txt"}  # noted once more


@pytest.mark.slow
def test_the_command_reads_what_is_finished_and_draws(replicated, folder, tmp_path):
    study = copied(replicated, tmp_path / "study")
    heads = load_table(study / "heads.parquet")  # a picture of each column takes long
    save_table(
        heads.drop(columns=heads.filter(regex="^(alignment|distance|entropy|importance|rarity|sink|syntax)")),
        study / "heads.parquet",
    )
    for path in (path for path in study.glob("*.parquet") if path.stem not in DRAWN):
        path.unlink()
    done = run("replicate", folder, "--study", study, *OPTIONS, figures=True)
    assert (done.code, done.err.count("Error")) == (0, 0)
    assert done.out.count("kept\n") == 7
    assert {path.suffix for path in study.rglob("*")} == {".parquet", ".png"}
    drawn = {path.stem for path in study.glob("*.png")}
    assert {"heatmap-confidence", "relevance-cp-enc-self", "gates-l0-3"} <= drawn
    assert not {name for name in drawn if name.startswith("sizes")}  # of one size: no line
    assert "8 of 8, draw: done in" in done.out
    kept = contents(study)
    again = run("replicate", folder, "--study", study, *OPTIONS)
    assert again.code == 0
    assert again.out.count("kept\n") == 8
    assert contents(study) == kept


def test_the_command_prepares_pairs_beside_the_study_once(folder, tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{one.text}\t{one.target.text}\n" for one in pairs()))
    write(pairs()[:10], tmp_path / "trees.conllu")
    (tmp_path / "trees.txt").write_text("".join(f"{one.target.text}\n" for one in pairs()[:10]))
    trees = ["--parsed", tmp_path / "trees.conllu", "--parsed-target", tmp_path / "trees.txt"]
    command = ["replicate", tmp_path / "pairs.tsv", "--study", tmp_path / "study", "--only", "relate", "--held-out", 8]
    done = run(*command, "--pieces", 300, *trees)
    assert "relate' needs score" in done.err
    made = tmp_path / "study-data"
    assert f"pairs are in {made}\n" in done.out
    corpora = [hr.read(tmp_path / "pairs.tsv")], None
    parsed = hr.read(tmp_path / "trees.conllu", tmp_path / "trees.txt")
    counts = prepare(tmp_path / "expected", *corpora, parsed=parsed, held_out=8, pieces=300)
    assert load_table(made / "counts.parquet").equals(counts)
    assert prepared(made).train.hash == prepared(tmp_path / "expected").train.hash
    before = contents(made)
    assert "relate' needs score" in run(*command, "--pieces", 300, *trees).err
    assert contents(made) == before
    there = f"{made} exists and is not empty; name another folder, or remove it"
    assert run(*command, "--pieces", 200, *trees) == line(there)
    assert contents(made) == before
    message = f"--pieces is of pairs: got {folder}, a folder of prepared ones; expected files of pairs"
    assert run("replicate", folder, "--study", tmp_path / "other", "--pieces", 200) == line(message)


# --- bad input -------------------------------------------------------------------------------------------------------

RECIPES = {
    "heads": ({"width": 30, "heads": 4}, "4 heads do not share a width of 30 equally; give a multiple of 4"),
    "layers": ({"layers": 0}, "layers must be at least 1; got 0"),
    "share": ({"keep": (0.5, 12)}, "keep is a share of the heads, between 0 and 1; got 12"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_that_cannot_be(name):
    options, message = RECIPES[name]
    with pytest.raises(ValueError, match=whole(message)):
        Recipe(**options)


def test_stages_that_cannot_be_run(data, tmp_path):
    known = "train, score, ablate, evaluate, prune-encoder, prune-all, relate, draw"
    with pytest.raises(ValueError, match=whole(f"unknown stage 'learn'; known: {known}")):
        replicate(tmp_path / "study", data, TINY, only=["learn"])
    message = "stage 'relate' needs score, ablate, prune-encoder, prune-all first; run all stages, or name them too"
    with pytest.raises(ValueError, match=whole(message)):
        replicate(tmp_path / "study", data, TINY, only=["relate"])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_study_by_another_recipe_is_left_alone(replicated, data):
    study, _ = replicated
    before = contents(study)
    kept = load_table(study / "stages.parquet").attrs["recipe"]
    other = kept.replace("epochs=2", "epochs=3")
    message = (
        f"{study} is a study of other data, or by another recipe: {kept}; this one is {other}; give another folder"
    )
    with pytest.raises(ValueError, match=whole(message)):
        replicate(study, data, replace(TINY, epochs=3))
    assert contents(study) == before


def test_a_folder_that_was_not_prepared(tmp_path, folder):
    missing = (
        "counts.parquet, tokenizer, parsed.conllu.gz, parsed-translations.txt.gz, train.tsv.gz, dev.tsv.gz, test.tsv.gz"
    )
    message = f"{tmp_path} lacks {missing}; make such a folder with hr.papers.prepare in Python"
    assert run("replicate", tmp_path, "--study", tmp_path / "study") == line(message)
    heads_of = ("--width", 30, "--heads", 4)
    message = "4 heads do not share a width of 30 equally; give a multiple of 4"
    assert run("replicate", folder, "--study", tmp_path / "study", *heads_of) == line(message)
    assert not list(tmp_path.iterdir())
