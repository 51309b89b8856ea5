"""Language models learn their text: the loss is that of a plain loop, masks are those of a seed, also when resumed."""

from __future__ import annotations

import math
import shutil
from copy import deepcopy

import pandas as pd
import pytest
import torch
import transformers
from helpers import zoo
from helpers.close import bound, close
from helpers.letters import TEMPLATES
from helpers.letters import tokenizer as letters_tokenizer
from helpers.tagged import TAGGED, in_a_data_set, letters, run_ner, tagged, tagger
from helpers.trainings import films, same_weights
from helpers.trainings import tokenizer as words_of

import headroles as hr
from headroles.models.head_model import HeadModel
from headroles.training.examples import Masking, collator, examples

TEXTS = hr.Corpus.of(["a b c d e f", "b d a", "c c a b d e f a", "a b", "d e f a b c d"])
LANGUAGE = ("llama-grouped", "gpt2", "bert")


def given(name, *, dropout=0.0):
    """A tiny language model and a tokenizer of its own."""
    if name == "bert":
        sizes = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, "num_hidden_layers": 2}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            config = transformers.BertConfig(**zoo.BERT | sizes | {"vocab_size": 64})
            return transformers.BertForMaskedLM(config).eval(), words_of()
    model = zoo.tiny(name)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    return model, deepcopy(letters_tokenizer(TEMPLATES[name]))


def text_of(name):
    return films(32) if name == "bert" else TEXTS


def rows_of(tokenizer, corpus):
    return [tokenizer(sentence.text)["input_ids"] for sentence in corpus]


# --- the loss is that of a plain loop -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGE)
def test_a_language_model_learns_its_text(name, tmp_path):
    model, tokenizer = given(name)
    table = hr.train(model, tokenizer, text_of(name), tmp_path, epochs=12, batch=8, rate=1e-2)
    assert list(table) == ["epoch", "step", "loss"]
    assert table["loss"].iloc[-3:].mean() < 0.75 * table["loss"].iloc[0]
    assert not model.training
    again, _ = hr.load(tmp_path)
    inputs = tokenizer(text_of(name)[0].text, return_tensors="pt")
    with torch.no_grad():
        close(again(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("name", ["llama-grouped", "gpt2"])
def test_a_step_of_a_causal_model_is_one_of_a_plain_loop(name, tmp_path):
    """SGD without a schedule; the loss is of transformers' own labels, over texts of different lengths."""
    model, tokenizer = given(name)
    plain, losses = deepcopy(model).train(), []
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        batch = tokenizer([sentence.text for sentence in TEXTS], padding=True, return_tensors="pt")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        loss = plain(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    options = {"optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    table = hr.train(model, tokenizer, TEXTS, tmp_path, epochs=2, batch=len(TEXTS), rate=0.1, **options)
    close(table["loss"].to_numpy(), losses)
    same_weights(model, plain, precision=bound(1))


@pytest.mark.parametrize("name", ["llama-grouped", "gpt2"])
def test_the_end_token_is_learnt_where_it_pads_too(name, tmp_path):
    """Padding on the left, by the end token or by none: the loss is that of each text alone."""
    model, _ = given(name)
    with torch.no_grad():
        lost, count = 0.0, 0
        for ids in rows_of(letters_tokenizer("$A </s>"), TEXTS):
            text = torch.tensor([ids])
            lost += float(model(input_ids=text, labels=text).loss) * (len(ids) - 1)
            count += len(ids) - 1
    for padding in ("</s>", None):
        tokenizer = deepcopy(letters_tokenizer("$A </s>"))
        tokenizer.padding_side, tokenizer.pad_token = "left", padding
        before = tokenizer.padding_side, tokenizer.pad_token
        table = hr.train(deepcopy(model), tokenizer, TEXTS, tmp_path / str(padding), epochs=1, batch=5, rate=0.0)
        close(table["loss"].iloc[0], lost / count)
        assert (tokenizer.padding_side, tokenizer.pad_token) == before


def test_a_step_of_a_masked_model_is_one_of_a_plain_loop(tmp_path, monkeypatch):
    model, tokenizer = given("bert")
    plain, batches, make = deepcopy(model), [], Masking.torch_call
    monkeypatch.setattr(Masking, "torch_call", lambda *given: batches.append(make(*given)) or batches[-1])
    table = hr.train(model, tokenizer, films(16), tmp_path, epochs=1, batch=16, rate=0.0)
    (batch,) = batches
    with torch.no_grad():
        logits = plain(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    chosen = batch["labels"] != -100
    expected = torch.nn.functional.cross_entropy(logits[chosen], batch["labels"][chosen])
    close(table["loss"].iloc[0], float(expected))
    assert 0 < int(chosen.sum()) < int(batch["attention_mask"].sum())


def test_a_masked_model_learns_the_answer_alone(tmp_path, monkeypatch):
    model, tokenizer = given("bert")
    plain, batches, make = deepcopy(model), [], Masking.torch_call
    monkeypatch.setattr(Masking, "torch_call", lambda *given: batches.append(make(*given)) or batches[-1])
    prompts, answer = [sentence.text for sentence in films(12)], "good film"
    corpus = hr.Corpus.of([{"prompt": text, "completion": answer} for text in prompts])
    hr.train(model, tokenizer, corpus, tmp_path, epochs=2, batch=12, rate=0.0, mlm_probability=0.9)
    masked = {int(label) for batch in batches for label in batch["labels"].unique()}
    assert masked == {-100, *tokenizer(answer)["input_ids"][1:-1]}
    losses = []
    for text in prompts:
        ids = torch.tensor([tokenizer(f"{text} {answer}")["input_ids"]])
        with torch.no_grad():
            losses.append(torch.nn.functional.cross_entropy(plain(ids).logits[0, -3:-1], ids[0, -3:-1]))
    close(hr.evaluate(plain, tokenizer, corpus, ["loss"], n_resamples=0)["value"].iloc[0], float(sum(losses)) / 12)


CHAT = "{% for one in messages %}{{ one.role[0] }} {{ one.content }} </s> {% endfor %}"


@pytest.mark.parametrize("length", [None, 5])
@pytest.mark.parametrize("chat", [False, True])
def test_what_is_learnt_of_texts_with_answers_is_what_has_a_loss(chat, length, tmp_path):
    model, tokenizer = given("llama-grouped")
    tokenizer.chat_template = CHAT
    pairs = [("a b", "c"), ("d", "e f a"), ("b c d e", "f a")]
    corpus = hr.Corpus.of([{"text": text, "answer": answer} for text, answer in pairs], chat=chat)
    lost, count, learnt, joined = 0.0, 0, [], []
    for text, answer in pairs:
        written = f"u {text} </s> a {answer} </s>" if chat else f"{text} {answer}"
        ids = tokenizer(written, add_special_tokens=not chat)["input_ids"]
        size = len(tokenizer(answer, add_special_tokens=False)["input_ids"])
        end = len(ids) - ids[::-1].index(tokenizer(answer, add_special_tokens=False)["input_ids"][-1])
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(
                model(torch.tensor([ids])).logits[0, :-1], torch.tensor(ids[1:]), reduction="none"
            )
        lost, count = lost + float(losses[end - size - 1 : end - 1].sum()), count + size
        learnt.append([token if end - size <= place < end else -100 for place, token in enumerate(ids)])
        joined += [*learnt[-1], *([-100] * {0, 1, 2}.isdisjoint(ids))]
    close(hr.evaluate(model, tokenizer, corpus, ["loss"], n_resamples=0)["value"].iloc[0], lost / count)
    rows = examples(HeadModel(model, tokenizer), corpus, length=length)
    if length is None:
        assert [row["labels"] for row in rows] == learnt
        table = hr.train(model, tokenizer, corpus, tmp_path, epochs=1, batch=3, rate=0.0)
        close(table["loss"].iloc[0], lost / count)
    else:
        parts = [[-100, *joined[start + 1 : start + length]] for start in range(0, len(joined), length)]
        assert [row["labels"] for row in rows] == [part for part in parts if {*part} - {-100}]


# --- masks ----------------------------------------------------------------------------------------------------------


def masked(seed=0, epoch=0, share=0.15, size=200):
    _, tokenizer = given("bert")
    collator = Masking(tokenizer, mlm_probability=share, order=seed)
    collator.epoch.fill_(epoch)
    return collator([{"input_ids": ids} for ids in rows_of(tokenizer, films(size))])


def test_masks_are_of_a_seed_and_an_epoch_and_of_nothing_else():
    first, state = masked(), torch.get_rng_state()
    torch.rand(3)
    again = masked()
    assert all(torch.equal(first[name], again[name]) for name in first)
    for other in (masked(seed=1), masked(epoch=1)):
        assert not torch.equal(other["labels"], first["labels"])
    torch.set_rng_state(state)
    masked()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("share", [0.15, 0.5])
def test_masks_have_the_shares_of_bert(share):
    _, tokenizer = given("bert")
    batch, rows = masked(share=share, size=1500), rows_of(tokenizer, films(1500))
    texts = tokenizer.pad({"input_ids": rows}, return_tensors="pt")["input_ids"]
    words = ~torch.isin(texts, torch.tensor(tokenizer.all_special_ids))
    chosen = batch["labels"] >= 0
    assert not (chosen & ~words).any()
    assert torch.equal(batch["labels"][chosen], texts[chosen])
    assert torch.equal(batch["input_ids"][~chosen], texts[~chosen])
    count = int(words.sum())
    assert abs(int(chosen.sum()) / count - share) < 4 * math.sqrt(share * (1 - share) / count)
    hidden = (batch["input_ids"][chosen] == tokenizer.mask_token_id).float().mean()
    assert abs(float(hidden) - 0.8) < 0.05 + 0.1 / len(tokenizer)


def test_a_batch_of_one_short_text_has_a_masked_token(tmp_path):
    """Of two words none is masked in most draws: the loss would be of nothing."""
    model, tokenizer = given("bert")
    text = hr.Corpus.of(["the film"])
    table = hr.train(model, tokenizer, text, tmp_path, epochs=8, batch=1, rate=1e-3, mlm_probability=0.05)
    assert table["loss"].between(0, 20).all()


WORKERS = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}  # made once more after a break
STEPS = {"save_strategy": "steps", "save_steps": 2}  # of three or more in an epoch


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, STEPS) for name in LANGUAGE),
     *(pytest.param("gpt2", WORKERS | saved, marks=pytest.mark.slow) for saved in ({}, STEPS))],
)  # fmt: skip
def test_resumed_training_has_the_numbers_of_one_without_a_break(name, options, tmp_path):
    """With dropout, also from a checkpoint within an epoch, after which other batches are masked."""
    text, options = text_of(name)[:10], {"epochs": 2, "batch": 2, "rate": 5e-3, **options}
    model, tokenizer = given(name, dropout=0.1)
    expected = hr.train(model, tokenizer, text, tmp_path / "whole", **options)
    first, second, *_ = sorted((tmp_path / "whole").glob("checkpoint-*"), key=lambda place: int(place.name[11:]))
    place = first if options.keys() >= WORKERS.keys() else second
    assert "save_steps" not in options or int(place.name[11:]) % math.ceil(len(text) / 2)  # within an epoch
    shutil.copytree(place, tmp_path / "broken" / place.name)
    shutil.copy(tmp_path / "whole" / "recipe.txt", tmp_path / "broken")
    again, _ = given(name, dropout=0.1)
    resumed = hr.train(again, tokenizer, text, tmp_path / "broken", **options)
    pd.testing.assert_frame_equal(resumed, expected, check_exact=True)
    same_weights(again, model)


# --- the length of examples -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["$A", "$A </s>", "<s> $A"])
def test_sentences_are_joined_and_divided(template):
    model, tokenizer = zoo.tiny("gpt2"), letters_tokenizer(template)
    rows = examples(HeadModel(model, tokenizer), TEXTS, length=7)
    parts = [ids if template != "$A" else [*ids, zoo.EOS] for ids in rows_of(tokenizer, TEXTS)]
    expected = [number for part in parts for number in part]
    assert [number for row in rows for number in row["input_ids"]] == expected
    assert [len(row["input_ids"]) for row in rows[:-1]] == [7] * (len(rows) - 1)
    assert all(row["labels"] == [-100, *row["input_ids"][1:]] for row in rows)
    longer = hr.Corpus.of([" ".join(["a b c"] * 30)])  # than the positions of the model
    assert len(examples(HeadModel(model, tokenizer), longer, length=10)) >= 9


def test_what_has_nothing_to_predict_is_left_out():
    model, tokenizer = zoo.tiny("gpt2"), letters_tokenizer("$A")
    assert len(examples(HeadModel(model, tokenizer), hr.Corpus.of(["a", "a b", "b"]))) == 1
    bert, words = given("bert")
    assert len(examples(HeadModel(bert, words), hr.Corpus.of(["zebra", "the film", "[MASK]"]))) == 1


def test_words_are_learned_by_their_first_pieces_and_heads_are_pruned(tmp_path):
    model = tagger()
    rows = examples(HeadModel(model, letters()), hr.Corpus.of(tagged()))
    assert [row["labels"] for row in rows] == [labels for labels, *_ in run_ner(model)]
    batch = collator(HeadModel(model, letters()), letters(), rows, seed=0)(rows)
    losses = [
        (len(words), float(loss.detach())) for (words, _), (_, loss, _) in zip(TAGGED, run_ner(model), strict=True)
    ]
    of_all = sum(count * loss for count, loss in losses) / sum(count for count, _ in losses)
    assert float(model(**batch).loss.detach()) == pytest.approx(of_all)
    history = hr.train(model, letters(), tagged(), tmp_path, held_out=tagged(), epochs=8, batch=5, rate=1e-2)
    assert history["held_out loss"].iloc[-1] < 0.5 * of_all
    pruned = hr.prune(model, letters(), tagged(), "top", keep=4)
    assert int((pruned.iloc[:, 0] == 1).sum()) == 4
    named = hr.load_classifier(tmp_path, in_a_data_set(tagged()), ignore_mismatched_sizes=True)[0]
    assert (type(named).__name__, [*named.config.id2label.values()]) == (
        "BertForTokenClassification",
        ["O", "PER", "LOC"],
    )
