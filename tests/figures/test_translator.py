"""Translators with specialised heads: every arm on toy pairs, resumed and shuffled, and what they are trained on."""

from __future__ import annotations

import runpy
import shutil
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import SimpleNamespace

import arms
import beginnings
import bilingual
import pandas as pd
import pytest
import torch
import transformers
from arms import ARMS, Recipe, longer_twice, masked_texts, specialise
from preparation import prepare, prepared
from typer.testing import CliRunner

import headroles as hr
from headroles.data import synthetic
from headroles.data.corpus import Corpus, Sentence
from headroles.models.heads import attention_sites
from headroles.tables.io import load_table

TINY = Recipe(
    width=16, heads=2, encoder_layers=2, steps=6, batch=8, warmup=2, masked_steps=6, masked_batch=8, masked_warmup=2,
    every=3, pieces=100,
)  # fmt: skip
SIZES = ("width", "heads", "encoder_layers", "steps", "batch", "warmup", "masked_steps", "masked_batch", "every")
KIND = "enc-self"
MAKE = runpy.run_path(str(Path(__file__).parents[2] / "figures/models/translator-en-de/make.py"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Toy pairs, prepared."""
    place = tmp_path_factory.mktemp("specialists") / "toy"
    trees = synthetic.synthetic_corpus(20, seed=9, translated=True)
    prepare(place, [synthetic.synthetic_corpus(200, translated=True)], parsed=trees, held_out=10, pieces=200)
    return prepared(place)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """The arms C and C-shuffled, their tables and folder."""
    place = tmp_path_factory.mktemp("trained")
    tables = {arm: specialise(place, data, arm, recipe=TINY, probed=[data.parsed]) for arm in ("C", "C-shuffled")}
    return place, tables


@pytest.fixture
def small_minilm(monkeypatch):
    """MiniLM's place is taken by an untrained BERT with a tokenizer of BERT's layout; no download."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [mark + letter for letter in "abcdefghijklmnopqrstuvwxyz.," for mark in ("", "##")]
    ids = {token: number for number, token in enumerate([*special, *letters])}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    names = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=128, **{f"{name}_token": token for name, token in names.items()}
    )
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=300, **sizes, max_position_embeddings=128)
    torch.manual_seed(0)
    instead = SimpleNamespace(load=lambda _: (transformers.BertModel(config).eval(), tokenizer))
    monkeypatch.setattr(beginnings, "loading", instead)


@pytest.mark.slow
def test_an_arm_learns_translation_alone(data, tmp_path):
    table = specialise(tmp_path, data, "A", recipe=TINY)
    model, tokenizer = hr.load(tmp_path / "A-0")
    assert isinstance(model, transformers.MarianMTModel)  # arm B, a BART: below, and by the command
    assert len(table) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"A-0"}
    before = beginnings.untrained(tokenizer, ARMS["A"].positions, width=16, heads=2, layers=(2, 1))
    loss = [hr.evaluate(one, tokenizer, data.train[:50], ["loss"], n_resamples=0).iloc[0, 0] for one in (before, model)]
    assert loss[1] < loss[0]


@pytest.mark.slow
def test_sentences_of_a_step_may_have_any_length(data, tmp_path):
    """The spread of lengths within a step, read from the batches that the model gets."""
    spread, forward = {}, transformers.BartForConditionalGeneration.forward
    for by_length in (True, False):
        lengths = []

        @wraps(forward)
        def keep(model, *args, lengths=lengths, **inputs):
            if model.training:
                lengths.append(inputs["attention_mask"].sum(1).float().std().item())
            return forward(model, *args, **inputs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transformers.BartForConditionalGeneration, "forward", keep)
            specialise(tmp_path / str(by_length), data, "B", recipe=replace(TINY, by_length=by_length))
        assert len(lengths) == TINY.steps
        spread[by_length] = sum(lengths)
    assert spread[True] < 0.5 * spread[False]


@pytest.mark.slow
def test_arm_c_begins_with_the_encoder_of_the_masked_language_model(data, trained):
    place, tables = trained
    first, _ = hr.load(place / "masked-0")
    untrained = beginnings.untrained(
        transformers.AutoTokenizer.from_pretrained(data.tokenizer), "learnt", width=16, heads=2, layers=(2, 1), seed=0
    )
    decoder = "model.decoder.layers.0.fc1.weight"
    assert torch.equal(first.state_dict()[decoder], untrained.state_dict()[decoder])
    encoder = "model.encoder.layers.0.fc1.weight"
    assert not torch.equal(first.state_dict()[encoder], untrained.state_dict()[encoder])
    last = tables["C"][tables["C"]["phase"] == "masked"].drop(columns=["phase", "step"]).iloc[-33:]
    start = tables["C"][tables["C"]["phase"] == "translation"].drop(columns=["phase", "step"]).iloc[:33]
    pd.testing.assert_frame_equal(last.reset_index(drop=True), start.reset_index(drop=True))


@pytest.mark.slow
def test_an_arm_may_never_have_some_heads(data, tmp_path):
    heads = ["enc-self:0:1", "enc-self:1:0"]
    table = specialise(tmp_path, data, "C", recipe=TINY, probed=[data.parsed], without=heads)
    assert {(row.layer, row.head) for row in table.itertuples()} == {(0, 0), (1, 1)}
    for name in ("masked-0", "C-0"):
        model, _ = hr.load(tmp_path / name)
        left = [(site.layer, number) for site in attention_sites(model) for number in site.numbers if site.kind == KIND]
        assert left == [(0, 0), (1, 1)]
        assert model.get_encoder().layers[0].self_attn.q_proj.out_features == TINY.width // TINY.heads
    with pytest.raises(ValueError, match="holds training of another model, corpus or options; give another folder, or"):
        specialise(tmp_path, data, "C", recipe=TINY, probed=[data.parsed], without=heads[:1])


@pytest.mark.slow
def test_probes_are_the_best_heads_of_the_score(data, trained):
    place, tables = trained
    model, tokenizer = hr.load(place / "C-0")
    scores = hr.score(model, tokenizer, data.parsed, ["position", "syntax"], n_resamples=0).loc["enc-self"]
    last = tables["C"][tables["C"]["phase"] == "translation"]
    assert last["step"].unique().tolist() == [0, 3, 6]
    last = last[(last["step"] == 6) & (last["rank"] == 0)].set_index("score")
    assert last.loc["position[-1]", "value"] == scores["position[-1]"].max()
    margin = scores["syntax[obj dep>head]"] - scores["syntax[obj dep>head].baseline"]
    found = last.loc["syntax[obj dep>head]"]
    assert found["value"] - found["baseline"] == margin.max()
    assert (found["layer"], found["head"]) == margin.idxmax()
    assert found["words"] == scores["syntax[obj dep>head].words"].iloc[0]


@pytest.mark.slow
def test_shuffling_moves_columns_of_queries_and_keys_and_nothing_else(trained):
    model, _ = hr.load(trained[0] / "masked-0")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    beginnings.shuffle_queries_and_keys(model, seed=3)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    wanted = {f"model.encoder.layers.{i}.self_attn.{part}_proj.weight" for i in (0, 1) for part in "qk"}
    assert changed == wanted
    for name in wanted:
        after = model.state_dict()[name]
        assert torch.equal(
            after.sort(dim=1).values, before[name].sort(dim=1).values
        )  # each head's rows keep their norm
        assert torch.allclose(torch.linalg.svdvals(after), torch.linalg.svdvals(before[name]), rtol=1e-4)


@pytest.mark.slow
def test_the_shuffled_arm_takes_the_same_encoder_and_begins_elsewhere(trained):
    place, tables = trained
    assert {path.name for path in place.iterdir()} == {"masked-0", "C-0", "C-shuffled-0"}  # trained once
    starts = [table[(table["phase"] == "translation") & (table["step"] == 0)]["value"] for table in tables.values()]
    assert starts[0].tolist() != starts[1].tolist()
    sizes = [sum(value.numel() for value in hr.load(place / f"{arm}-0")[0].parameters()) for arm in tables]
    assert sizes[0] == sizes[1]


class _Killed(Exception):
    pass


class _KilledAt(transformers.TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):  # noqa: ARG002
        if state.global_step == self.step:
            raise _Killed


@pytest.mark.slow
def test_what_was_killed_is_resumed_as_if_nothing_had_been(data, trained, tmp_path, monkeypatch):
    """A checkpoint at every step, and the training of the translator ends between two."""
    often, place = replace(TINY, minutes=0.0), tmp_path / "resumed"
    checkpoints, callbacks = arms.Checkpoints, transformers.trainer.DEFAULT_CALLBACKS
    trainings = iter(["masked", "translation"])

    def dying(minutes):
        if next(trainings) == "translation":
            monkeypatch.setattr(transformers.trainer, "DEFAULT_CALLBACKS", [*callbacks, _KilledAt(5)])
        return checkpoints(minutes)

    monkeypatch.setattr(arms, "Checkpoints", dying)
    with pytest.raises(_Killed):
        specialise(place, data, "C", recipe=often, probed=[data.parsed])
    monkeypatch.undo()
    table = specialise(place, data, "C", recipe=often, probed=[data.parsed])
    pd.testing.assert_frame_equal(table, trained[1]["C"])
    whole, again = (hr.load(one / "C-0")[0].state_dict() for one in (trained[0], place))
    assert all(torch.equal(value, again[name]) for name, value in whole.items())


@pytest.mark.slow
def test_another_recipe_in_the_same_folder_is_an_error(data, trained, tmp_path):
    shutil.copytree(trained[0], tmp_path / "copy")
    with pytest.raises(ValueError, match="holds training of another model"):
        specialise(tmp_path / "copy", data, "C", recipe=replace(TINY, masked_rate=1e-4))
    with pytest.raises(ValueError, match="steps must be a multiple of every = 3: got 7"):
        replace(TINY, steps=7)
    with pytest.raises(ValueError, match="unknown arm: got 'D'; expected one of A, B, C"):
        specialise(tmp_path, data, "D")


def test_nothing_held_out_is_trained_on(data):
    train, held = ({one.text for corpus in part for one in corpus} for part in (
        [data.train], [data.dev, data.test, data.parsed]
    ))  # fmt: skip
    assert not train & held
    extra = Corpus("extra", (data.test[0], Sentence("a new one"), data.train[0]))
    texts = [one.text for one in masked_texts(data, extra)]
    assert len(texts) == len(set(texts)) == len(train) + 1
    assert not held & set(texts)


def test_long_sentences_are_read_twice():
    corpus = Corpus("two", (Sentence("only four words here"), Sentence("here are five short words")))
    assert [one.text for one in longer_twice(corpus)] == [corpus[0].text, corpus[1].text, corpus[1].text]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces a better way:FutureWarning")  # transformers' own
def test_arm_e_reads_with_one_tokenizer_writes_with_another_and_is_pruned(data, tmp_path, small_minilm):  # noqa: ARG001
    specialise(tmp_path, data, "E", recipe=TINY)
    model, tokenizer = bilingual.load(tmp_path / "E-0")
    assert isinstance(tokenizer, bilingual.Bilingual)
    assert not isinstance(hr.load(tmp_path / "E-0")[1], bilingual.Bilingual)
    text = data.train[0].target.text
    ids = tokenizer(text_target=text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert ids[-1] == tokenizer.sep_token_id
    assert model.decoder.config.vocab_size > max(ids) > len(tokenizer)  # pieces that sources do not have
    assert tokenizer("ab")["input_ids"] == beginnings.loading.load("minilm")[1]("ab")["input_ids"]
    found = hr.evaluate(model, tokenizer, data.test, ["loss", "bleu"], n_resamples=0)
    assert found["value"].notna().all()
    kinds = hr.score(model, tokenizer, data.parsed, ["confidence"], n_resamples=0).index.get_level_values("kind")
    assert set(kinds) == {"enc-self", "dec-self", "cross"}
    options = {"keep": 2, "kinds": ["enc-self"], "tune": {"epochs": 1, "batch": 8}}
    left = hr.prune(model, tokenizer, data.train[:24], hr.L0(rate=0.1, freeze="decoder"), **options)
    assert left.iloc[:, 0].loc["enc-self"].sum() == 2
    hr.save(model, tokenizer, tmp_path / "smaller")
    both = [(model, tokenizer), bilingual.load(tmp_path / "smaller")]
    pd.testing.assert_frame_equal(*(hr.evaluate(*pair, data.test, ["loss"], n_resamples=0) for pair in both))


@pytest.mark.slow
def test_the_command_trains_an_arm_and_keeps_its_heads(data, tmp_path):
    sizes = [f"--size={name}={getattr(TINY, name)}" for name in SIZES]
    asked = ["train", data.folder, "--output", tmp_path / "out", "--arm", "B", "--study", tmp_path, *sizes]
    done = CliRunner().invoke(MAKE["app"], [*map(str, asked)], catch_exceptions=False)
    assert done.exit_code == 0
    table = load_table(tmp_path / "probes-B-0.parquet")
    assert table["step"].max() == TINY.steps
    best = table[(table["score"] == "position[-1]") & (table["rank"] == 0)]["value"].iloc[-1]
    assert f"{best:.6f}" in done.output


def test_fields_of_the_recipe_are_read():
    recipe_of = MAKE["recipe_of"]
    assert recipe_of(["width=16", "rate=1e-4", "by_length=0"]) == Recipe(width=16, rate=1e-4, by_length=False)
    for text in ("magic=3", "width", "width="):
        with pytest.raises(ValueError, match=f"^no field of the recipe: got '{text}'; expected NAME=NUMBER"):
            recipe_of([text])
