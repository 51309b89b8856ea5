"""Metrics of translations are those of sacrebleu."""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu
import torch.nn.functional as F
from helpers import zoo
from helpers.metrics import read
from helpers.objectives import in_one
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headroles.ablation.metrics import BLEU, ChrF, Metric
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
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


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
