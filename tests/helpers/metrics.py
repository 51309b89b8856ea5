"""The statistics that a metric reads from outputs."""

from __future__ import annotations

from functools import cache

import transformers
from helpers import zoo

from headroles.ablation.metrics import Reading
from headroles.models.head_model import HeadModel
from headroles.scores.objectives import objective


def read(one, model, tokenizer, text, groups):
    """Function of an output and its batch: the statistics, for a model and corpus that have what the metric needs."""
    handle = HeadModel(model, tokenizer)
    one.check(handle, text, groups)
    made = None if one.objective is None else objective(one.objective, handle).fit(handle, groups)
    return lambda output, batch: one.update(Reading(handle, text, made, batch, output))


@cache
def choosing(classes):
    config = transformers.BertConfig(**zoo.BERT, num_labels=classes)
    return zoo.drawn(lambda: transformers.BertForSequenceClassification(config))
