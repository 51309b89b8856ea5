"""Reference results for the checks are those of transformers alone."""

from __future__ import annotations

import pytest
import torch
import transformers
from helpers import zoo
from helpers.close import close

import headroles as hr
from headroles.testing import reference
from headroles.testing.case import Case


@pytest.mark.parametrize("is_decoder", [False, True])
def test_a_class_that_shifts_its_labels_predicts_the_next_token_also_if_it_reads_ahead(is_decoder):
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=32, is_decoder=is_decoder,
    )  # fmt: skip
    model = zoo.drawn(lambda: transformers.BertLMHeadModel(config)).eval()
    case, total, count = Case(model), 0.0, 0
    for sentence in case.corpus:
        ids = torch.tensor([int(word) for word in sentence.text.split()])
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0]
        rows, labels = logits[:-1], ids[1:]
        total += float(torch.nn.functional.cross_entropy(rows, labels, reduction="sum"))
        count += len(labels)
        predicted = reference.predicted(case, sentence)  # what check_model compares with
        assert torch.equal(predicted[0, : len(rows)], labels)
    found = hr.evaluate(model, case.tokenizer, case.corpus, ["loss"], n_resamples=0)["value"].iloc[0]
    close(found, total / count)


def test_the_loss_of_a_translator_is_its_own():
    case = Case(zoo.tiny("marian"))
    with torch.no_grad():
        for sentence, row in zip(case.corpus, reference.losses(case, torch.ones(case.heads)), strict=True):
            sides = sentence, sentence.target
            source, target = (torch.tensor([[int(word) for word in side.text.split()]]) for side in sides)
            close(row.mean(), case.model(input_ids=source, labels=target).loss)


def test_importance_is_the_slope_of_the_loss():
    case, step = Case(zoo.tiny("gpt2").double()), 1e-3
    case.model.double()
    means = lambda gates: torch.stack([row.mean() for row in reference.losses(case, gates)])  # noqa: E731
    with torch.no_grad():
        for head, found in enumerate(reference.importance(case)):
            moved = torch.zeros(case.heads).index_fill(0, torch.tensor([head]), step)
            slope = (means(1 + moved) - means(1 - moved)) / (2 * step)  # of each sentence
            assert found.item() == pytest.approx(slope.abs().mean().item(), rel=1e-3)
