"""What a model predicts is asked of the model: the library's values beside plain loops over transformers' own loss."""

from __future__ import annotations

import pytest
import torch
import transformers
from helpers.close import close

import headroles as hr
from headroles.data.pairs import pair
from headroles.testing.case import Case
from headroles.testing.reference import read


def value(model, tokenizer, corpus, metric):
    return hr.evaluate(model, tokenizer, corpus, [metric], n_resamples=0)["value"].iloc[0]


@torch.no_grad()
def own_loss(model, corpus):
    """The model's own loss of each token of texts that are numbers of tokens, one text at a time."""
    total = count = 0
    for sentence in corpus:
        ids = torch.tensor([[int(word) for word in sentence.text.split()]])
        steps = ids.numel() if "WithLMHead" in type(model).__name__ else ids.numel() - 1
        total += float(model(input_ids=ids, labels=ids).loss) * steps
        count += steps
    return total / count


@pytest.mark.parametrize("name", ["flaubert", "xlm", "gpt2", "xglm"])
def test_the_loss_is_the_models_own_whatever_its_class_is_called(name):
    model = hr.tiny_model(name)
    case = Case(model)
    close(value(model, case.tokenizer, case.corpus, "loss"), own_loss(model, case.corpus))


@pytest.mark.parametrize("name", ["flaubert", "xlm", "bert-generation"])
def test_a_model_that_reads_later_tokens_gives_sentences_no_likelihood(name):
    model = hr.tiny_model(name)
    pairs = hr.Corpus("pairs", pair("11 12 13", "11 13 12"))
    with pytest.raises(ValueError, match="which does not predict one token after the other"):
        hr.evaluate(model, Case(model).tokenizer, pairs, ["pair_accuracy"], n_resamples=0)


@pytest.mark.parametrize("is_decoder", [False, True])
def test_one_class_is_of_either_kind_by_its_config(is_decoder):
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=32, is_decoder=is_decoder,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.BertLMHeadModel(config).eval()
    case, total, count = Case(model), 0.0, 0
    for sentence in case.corpus:
        ids = torch.tensor([int(word) for word in sentence.text.split()])
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0]
        rows, labels = (logits[:-1], ids[1:]) if is_decoder else (logits, ids)
        total += float(torch.nn.functional.cross_entropy(rows, labels, reduction="sum"))
        count += len(labels)
        assert torch.equal(read(case, sentence)[1][0, : len(rows)], labels)  # what check_model compares with
    close(value(model, case.tokenizer, case.corpus, "loss"), total / count)
