"""Rows of every shape give the same sentences in every container; classes of data sets keep their names."""

from __future__ import annotations

import json
import pickle
import random
from copy import deepcopy

import datasets
import pandas as pd
import pytest

import headroles as hr
from headroles.data.readers import as_corpus
from headroles.data.sentences import Chat, ClassName, Prompt, Sentence, Tagged, as_chat, pair

PIECES = ["dog", "Hündin", '"', "a\nb", "\u2028", "NA", "3", "{}", "the"]
SYSTEM = ("system", "Be kind.")


def message(role, text):
    return {"role": role, "content": text}


def spans(first, second):
    return (0, len(first)), (len(first) + 1, len(first) + 1 + len(second))


def shapes(a, b, c, n):
    """Of each shape, a row of these texts and this number, and its sentences."""
    answered, ending = Sentence(b), [message("user", a), message("assistant", b)]
    turns = (SYSTEM, ("user", b), ("assistant", c)) * (1 + n % 2)
    return {
        "text": ({"text": a}, Sentence(a)),
        "text and class": ({"text": a, "label": n}, Sentence(a, label=str(n))),
        "class, if any": ({"label": n or None, "text": a}, Sentence(a, label=str(n) if n else None)),
        "two texts": ({"premise": a, "hypothesis": b, "label": n + 0.5}, Sentence(a, second=b, label=str(n + 0.5))),
        "answers": ({"text": f" {a}", "answer": b}, Prompt(a, target=answered)),
        "completions": (
            {"id": n, "prompt": f"{a}\n", "completion": f" {b}"}, Prompt(f"{a}\n", target=Sentence(f" {b}")),
        ),
        "one turn each": ({"messages": ending}, as_chat(Sentence(a, target=answered))),
        "to be answered": ({"messages": [message(*SYSTEM), message("user", a)]}, Chat(a, before=(SYSTEM,))),
        "several turns": (
            {"messages": [*(message(*turn) for turn in turns), *ending]}, Chat(a, target=answered, before=turns),
        ),
        "completed chats": (
            {"prompt": [message(*SYSTEM), ending[0]], "completion": ending[1:]},
            Chat(a, target=answered, before=(SYSTEM,)),
        ),
        "translations": ({"translation": {"en": a, "de": b}}, Sentence(a, target=answered)),
        "labelled words": (
            {"id": n, "tokens": [a, b], "ner_tags": [n, 0]}, Tagged(f"{a} {b}", spans(a, b), labels=(str(n), "0")),
        ),
        "words": ({"tokens": [b, c]}, Sentence(f"{b} {c}", spans(b, c))),
        "minimal pairs": ({"sentence_good": a, "sentence_bad": b}, *pair(a, b)),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("shape", shapes("a", "b", "c", 1))
def test_rows_give_the_same_corpus_in_every_container(shape, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for seed in range(2):
        rng = random.Random(f"{shape} {seed}")
        drawn = [[f"x{' '.join(rng.choices(PIECES, k=rng.randint(0, 6)))}." for _ in range(3)] for _ in range(7)]
        made = [shapes(*texts, number % 3)[shape] for number, texts in enumerate(drawn)]
        rows, expected = [row for row, *_ in made], tuple(one for _, *some in made for one in some)
        file, folder = tmp_path / f"{seed}.jsonl", tmp_path / f"folder{seed}"
        file.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        folder.mkdir()
        data = datasets.Dataset.from_list(rows)
        data.to_parquet(folder / "train.parquet")
        frames = pd.DataFrame(rows), pd.read_parquet(folder / "train.parquet")  # whose cells are arrays
        for given in (rows, iter(rows), *frames, data, file, folder, str(folder)):
            assert as_corpus(given).sentences == expected
        for read in (hr.Corpus.of(data, chat=True), hr.read(file, chat=True)):
            assert read.sentences == tuple(map(as_chat, expected))


def test_the_fields_of_an_unknown_file_are_named_and_may_be_chosen(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"body": "one", "mood": 3, "title": "two"}\n')
    with pytest.raises(ValueError, match=r"x\.jsonl has no known text column: got body, mood, title; give text= and"):
        hr.read(tmp_path / "x.jsonl")
    expected = (Sentence("one", second="two", label="3"),)
    assert hr.read(tmp_path / "x.jsonl", text=("body", "title"), label="mood").sentences == expected


def test_an_answer_counts_alone_unless_one_asks_for_both():
    rows = [{"text": "one", "answer": "1"}]
    for chat in (False, True):
        alone, both = (hr.Corpus.of(rows, chat=chat, answer_only=answer_only) for answer_only in (True, False))
        assert [alone[0].answer_only, both[0].answer_only, as_chat(both[0]).answer_only] == [True, False, False]
        assert alone.hash != both.hash


def test_classes_have_the_names_of_their_data_set(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    names = ("pos", "neg", "neu")
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(names))}
    data = datasets.Dataset.from_dict({"text": list("abcd"), "label": [2, 0, -1, 1]}, datasets.Features(features))
    (tmp_path / "data").mkdir()
    data.to_parquet(tmp_path / "data" / "train.parquet")
    for given in (data, tmp_path / "data"):
        corpus = as_corpus(given)
        assert [one.label for one in corpus] == ["neu", "pos", None, "neg"]
        assert [one.label.number for one in corpus if one.label] == [2, 0, 1]
    other = as_corpus(data.cast_column("label", datasets.ClassLabel(names=["neu", "pos", "neg"])))
    assert other.hash != as_corpus(data).hash
    bare = data.cast_column("label", datasets.ClassLabel(names=["LABEL_0", "LABEL_1", "LABEL_2"]))
    assert [one.label for one in as_corpus(bare)] == ["2", "0", "-1", "1"]
    name = ClassName.of(2, names)
    for copied in (pickle.loads(pickle.dumps(name)), deepcopy(name)):
        assert (copied, copied.number, copied.names, repr(copied)) == ("neu", 2, names, "'neu' (2)")
