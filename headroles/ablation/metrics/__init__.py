"""Metrics: the quality of a model on a corpus, computed from additive statistics of its examples."""

from headroles.ablation.metrics.base import Agreement, Loss, Mean, Metric, Of, Perplexity, Reading
from headroles.ablation.metrics.classification import (
    F1,
    Accuracy,
    Matthews,
    PairAccuracy,
    PairDifference,
    Pearson,
    Spearman,
)
from headroles.ablation.metrics.generation import BLEU, WER, ChrF, Written
from headroles.scores import objectives
from headroles.tables.arguments import one_of

_BUILT_IN = Loss, Perplexity, Agreement, Accuracy, F1, Matthews, BLEU, ChrF, WER, PairAccuracy, PairDifference
METRICS: dict[str, Metric] = {metric.name: metric for metric in (kind() for kind in (*_BUILT_IN, Pearson, Spearman))}


def list_metrics() -> dict[str, Metric]:
    """Return the metrics by name; names of objectives are names of metrics, too."""
    return dict(METRICS)


def as_metric(given: str | Metric | objectives.Objective) -> Metric:
    """Return the metric of a name, the mean of an objective (or of its name), or the given metric.

    `bleu-zh` names BLEU with the tokenisation zh of sacrebleu.
    """
    if isinstance(given, Metric):
        return given
    if isinstance(given, objectives.Objective):
        same = given.name in METRICS and type(given) is objectives.OBJECTIVES[given.name]
        return METRICS[given.name] if same else Of(given)
    if isinstance(given, str) and given.startswith("bleu-"):
        return BLEU(tokenize=given.removeprefix("bleu-"))
    one_of("metric", given, dict.fromkeys([*METRICS, *objectives.OBJECTIVES]))
    return METRICS[given] if given in METRICS else Of(objectives.OBJECTIVES[given]())


__all__ = ["BLEU", "F1", "METRICS", "Accuracy", "Agreement", "ChrF", "Loss", "Matthews", "Mean", "Metric", "Reading"]
__all__ += ["Of", "PairAccuracy", "PairDifference", "Pearson", "Perplexity", "Spearman", "WER", "Written", "as_metric"]
__all__ += ["list_metrics"]
