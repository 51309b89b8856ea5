"""Metrics: what a model's work is worth on a corpus, from a few numbers per example that add."""

from headroles.ablation.metrics.base import Agreement, Loss, Mean, Metric, Of, Perplexity, Read
from headroles.ablation.metrics.classification import F1, Accuracy, Matthews
from headroles.ablation.metrics.generation import BLEU, ChrF, Written
from headroles.scores import objectives

METRICS: dict[str, Metric] = {
    one.name: one for one in (Loss(), Perplexity(), Agreement(), Accuracy(), F1(), Matthews(), BLEU(), ChrF())
}


def list_metrics() -> dict[str, Metric]:
    """Return the metrics that a name can stand for, beside the names of objectives."""
    return dict(METRICS)


def metric(given: str | Metric | objectives.Objective) -> Metric:
    """The metric of a name, or of an objective. Raises ValueError, with the known ones, for another."""
    if isinstance(given, Metric):
        return given
    if isinstance(given, objectives.Objective):
        same = given.name in METRICS and type(given) is objectives.OBJECTIVES[given.name]
        return METRICS[given.name] if same else Of(given)
    if given in METRICS:
        return METRICS[given]
    if given in objectives.OBJECTIVES:
        return Of(objectives.OBJECTIVES[given]())
    known = dict.fromkeys([*METRICS, *objectives.OBJECTIVES])
    raise ValueError(f"unknown metric {given!r}; known: {', '.join(known)}")


__all__ = [
    "BLEU",
    "F1",
    "METRICS",
    "Accuracy",
    "Agreement",
    "ChrF",
    "Loss",
    "Matthews",
    "Mean",
    "Metric",
    "Of",
    "Perplexity",
    "Read",
    "Written",
    "list_metrics",
    "metric",
]
