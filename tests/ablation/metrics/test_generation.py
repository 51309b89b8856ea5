"""Metrics of translations are those of sacrebleu."""

from __future__ import annotations

import logging
from urllib.parse import unquote

import numpy as np
import pytest
import sacrebleu
import torch
import torch.nn.functional as F
from helpers import ablations, letters, zoo
from helpers.close import close
from helpers.metrics import read
from helpers.objectives import in_one
from helpers.worded import of_words
from sacrebleu.tokenizers import tokenizer_ja_mecab

import headroles as hr
from headroles.ablation.metrics import BLEU, WER, ChrF, Metric
from headroles.data.corpus import Corpus, Sentence

WRITTEN = [BLEU(), ChrF()]
BY_NAME = {"ids": lambda one: one.name if isinstance(one, Metric) else None}
TEXTS = {  # reference: what is written
    "The cat sat on the mat , and the dog did not .": "The cat sat on the mat , but the dog did not .",
    "It was raining all day .": "It rained all day .",
    "He said nothing about it at all": "",
    "She has 3.5 apples - and \" two \" pears !": "She has 3.5 pears and two apples !",
    "Yes .": "Yes .",
}  # fmt: skip


def words(texts):
    """A tokenizer that has every word of some texts, and gives back what it was given."""
    known = ["<s>", "<pad>", "</s>", "<unk>", *dict.fromkeys(word for text in texts for word in text.split())]
    return of_words(known, pad_token="<pad>", eos_token="</s>")


def written(one, pairs):
    """The statistics of a metric of pairs of a reference and what is written instead: [example, statistic]."""
    tokenizer = words([text for pair in pairs for text in pair])
    text = Corpus("pairs", tuple(Sentence("a b", target=Sentence(reference)) for reference, _ in pairs))
    (batch,) = in_one(zoo.tiny("marian"), "marian", text)
    ids = tokenizer([pairs[number][1] for number in batch.numbers], return_tensors="pt", padding=True)["input_ids"]
    assert tokenizer.eos_token_id == zoo.EOS
    ids = F.pad(ids.long(), (0, 1), value=zoo.EOS)
    return read(one, zoo.tiny("marian"), tokenizer, text, [batch])(ids, batch)[np.argsort(batch.numbers)]


SCORES = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf}


@pytest.mark.parametrize("pairs", [[*TEXTS.items()], [*TEXTS.items()][:2], [("He said nothing", "")]], ids=len)
@pytest.mark.parametrize("one", WRITTEN, **BY_NAME)
def test_what_is_written_is_worth_what_sacrebleu_says(one, pairs):
    references, hypotheses = zip(*pairs, strict=True)
    expected = SCORES[one.name](hypotheses, [references]).score
    assert one.compute(written(one, pairs).sum(0)) == pytest.approx(expected, abs=1e-9)
    assert (expected > 10) == (len(pairs) > 1)


def test_a_sum_of_resamples_is_that_of_the_repeated_texts():
    """Weights of a bootstrap are whole numbers."""
    weights = np.array([2, 0, 1, 3, 1.0])
    pairs = list(TEXTS.items())
    repeated = [pair for pair, weight in zip(pairs, weights, strict=True) for _ in range(int(weight))]
    references, hypotheses = zip(*repeated, strict=True)
    for one in WRITTEN:
        found = one.compute(weights @ written(one, pairs))
        assert found == pytest.approx(SCORES[one.name](hypotheses, [references]).score, abs=1e-9)


def test_word_errors_are_those_of_jiwer_on_normalised_texts():
    """An empty text misses all words; case and punctuation are none."""
    pairs = [*TEXTS.items()]
    plain = [tuple("".join(c if c.isalnum() else " " for c in text.lower()).split() for text in pair) for pair in pairs]
    errors = [distance(*pair) for pair in plain]
    found = written(WER(), pairs)
    assert found[:, 0].tolist() == errors
    assert found[:, 1].tolist() == [len(reference) for reference, _ in plain]
    assert WER().compute(found.sum(0)) == pytest.approx(sum(errors) / sum(len(reference) for reference, _ in plain))


def distance(words, other):
    """The edit distance of two lists of words."""
    row = [*range(len(other) + 1)]
    for i, word in enumerate(words, 1):
        last, row[0] = row[0], i
        for j, second in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != second))
    return row[-1]


CHINESE = "这只猫喜欢坐在窗边看外面的狗。", "这只猫喜欢坐在窗边看外面的鸟。"


def of(metric, hypothesis, reference):
    """What a metric gives for one text."""
    return float(metric.compute(metric.statistics([hypothesis], [reference]).sum(0))[()])


@pytest.mark.parametrize("tokenize", ["13a", "zh", "char", "intl", "none"])
def test_bleu_is_sacrebleus_in_every_tokenisation(tokenize):
    expected = sacrebleu.corpus_bleu([CHINESE[0]], [[CHINESE[1]]], tokenize=tokenize).score
    close(of(BLEU(tokenize=tokenize), *CHINESE), expected, size=100)
    assert (expected > 80) == (tokenize in ("zh", "char"))


def test_a_tokenisation_that_sacrebleu_lacks_is_its_own_message(monkeypatch):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(RuntimeError, match=r"Japanese tokenization requires extra dependencies(.|\n)*sacrebleu\[ja\]"):
        hr.evaluate(letters.writing("marian"), letters.tokenizer(), chinese(), [BLEU(tokenize="ja-mecab")])


def chinese(texts=(CHINESE[1],) * 4):
    return hr.Corpus("pairs", tuple(hr.Sentence("a b", target=hr.Sentence(text)) for text in texts))


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        (CHINESE[1], True),
        ("この猫は窓際に座るのが好きです。", True),
        ("แมวตัวนี้ชอบนั่งริมหน้าต่าง ดูนกข้างนอก", True),
        ("ឆ្មានេះចូលចិត្តអង្គុយក្បែរបង្អួច", True),
        ("ແມວໂຕນີ້ມັກນັ່ງຢູ່ແຄມປ່ອງຢ້ຽມ", True),
        ("ဤကြောင်သည် ပြတင်းပေါက်နားတွင် ထိုင်ရတာ ကြိုက်သည်", True),
        ("这 只 猫 喜欢 坐 在 窗边", False),  # split into words already
        ("이 고양이는 창가에 앉아 있다", False),
        ("Rindfleischetikettierungsüberwachungsaufgabenübertragungsgesetz", False),
        ("The sign says 猫猫 in two places", False),
    ],
)
def test_references_without_spaces_are_warned_of(text, warned, caplog):
    model, tokenizer = ablations.terse(), letters.tokenizer()
    with caplog.at_level(logging.WARNING, "headroles"):
        hr.evaluate(model, tokenizer, chinese([text] * 4), ["bleu"], n_resamples=0)
        said = "the references of pairs have no spaces, at which BLEU (13a) splits words: it is about 0 whatever"
        assert any(message.startswith(said) and "try bleu-zh" in message for message in caplog.messages) == warned
        caplog.clear()
        hr.evaluate(model, tokenizer, chinese([text] * 4), ["bleu-char", "chrf"], n_resamples=0)
        assert not caplog.messages


def test_two_tokenisations_are_two_columns_and_two_tables(tmp_path):
    model, tokenizer, text = letters.writing("marian"), letters.tokenizer(), ablations.translated()
    study, options = hr.Study(tmp_path), {"n_resamples": 0, "study": tmp_path}
    tables = [hr.ablate(model, tokenizer, text, metric=name, **options) for name in ("bleu", "bleu-char")]
    words, characters = (table.iloc[:, 0] for table in tables)
    assert [words.name, characters.name] == ["ablation[bleu]", "ablation[bleu-char]"]
    assert not words.equals(characters)
    assert {"ablation-bleu-head-zero", "ablation-bleu-char-head-zero"} <= {*study.names()}
    assert {words.name, characters.name} <= {*study.scores()}
    assert "tokenize='char'" in unquote(hr.provenance(tables[1], characters.name))
    assert "tokenize" not in unquote(hr.provenance(tables[0], words.name))  # as before there was a choice
    label = hr.plots.ablation(tables[1], kind="enc-self").figure.axes[-1].get_ylabel()
    assert label.startswith("cost in BLEU (char)")


def test_effects_on_bleu_of_characters_are_sacrebleus():
    model, tokenizer, text = letters.writing("marian"), letters.tokenizer(), ablations.translated()
    table = hr.ablate(model, tokenizer, text, metric=BLEU(tokenize="char"), n_resamples=0)
    references = [[sentence.target.text for sentence in text]]
    texts, head = [sentence.text for sentence in text], int(table.iloc[:, 0].abs().argmax())
    masks = torch.ones(len(table)), torch.arange(len(table)) != head
    worth = [
        sacrebleu.corpus_bleu(ablations.generated(texts, mask.float(), 1), references, tokenize="char").score
        for mask in masks
    ]
    assert worth[1] != worth[0]
    close(table.iloc[head, 0], worth[1] - worth[0], size=100)
