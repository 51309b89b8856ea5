"""Prediction-powered effects: real ablations of some examples and predicted ones of all, in one unbiased estimate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from headroles.ablation.example_stats import ExampleStats, HeadSet

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """Estimated effect of a variant on the mean of a metric."""

    effect: float
    error: float  # standard error as an estimate for the population that the corpus was drawn from
    whole_error: float  # the standard error that ablating the whole corpus would have
    corpus_error: float  # standard error as an estimate of the effect on this corpus; 0 if all of it was ablated
    freedom: int  # degrees of freedom of the residuals
    slope: float  # effect per unit of the predicted one: lambda of PPI++ x (1 + n / N), n ablated, N others
    explained: float  # share of the variance over the ablated examples that the prediction explains
    changed: int  # number of ablated examples that the ablation changed; few prove little, however small the error
    influence: Array  # what each example adds to the estimate, which sums to 0: [example]

    @property
    def p(self) -> float:
        """Two-sided p-value of a t-test of no effect."""
        if self.freedom < 1:
            return 1.0
        if not self.error:
            return 0.0 if self.effect else 1.0
        return float(2 * stats.t.sf(abs(self.effect / self.error), self.freedom))

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval for the population."""
        return float(stats.t.ppf(0.975, self.freedom) * self.error) if self.freedom > 0 else np.nan

    @property
    def widening(self) -> float:
        """Width of the interval over the width that ablating the whole corpus would give."""
        whole = stats.t.ppf(0.975, len(self.influence) - 1) * self.whole_error
        return self.half_width / whole if whole else 1.0

    @property
    def information(self) -> float:
        """Share of the whole corpus's information about the effect, at most 1."""
        return min(1.0, (self.whole_error / self.error) ** 2) if self.error else 1.0


def estimate(change: Array, steps: Array, predicted: Array) -> Estimate:
    """Return the estimated change of a metric, sum(change) / sum(steps) over all examples, by ablating some of them.

    The change on the ablated examples (NaN on the others) is regressed on its prediction and on the number of steps.
    The means of these two over all examples are known. The estimate is the regression at these means: a
    prediction-powered mean (Angelopoulos et al. 2023) with fitted weights, in survey sampling the regression estimator
    (Cochran 1977, chapter 7). With examples of one length it is that of PPI++ (2023b, arXiv 2311.01453) with its best
    lambda, which the authors' code cuts to [0, 1] and here is free. A prediction that explains nothing gets a slope
    near 0, which leaves the mean over the ablated examples. There is no cross-fitting, neither there nor here.

    The jackknife takes away the bias of a slope that is fitted on the same examples, and gives the errors: residuals
    are divided by 1 - leverage, so that they hold where examples differ in spread.
    """
    ablated = np.isfinite(change)
    count, size, mean_steps = int(ablated.sum()), len(change), float(steps.mean())
    design = np.stack([np.ones(size), _standardised(predicted), _standardised(steps)], axis=1)  # [example, 3]
    rows, y = design[ablated], change[ablated]
    scales, axes = np.linalg.eigh(rows.T @ rows)
    used = scales > 1e-10 * scales.max()  # a constant prediction or number of steps has no axis
    inverse = (axes[:, used] / scales[used]) @ axes[:, used].T
    rank = int(used.sum())
    coefficients = inverse @ rows.T @ y
    residual = y - rows @ coefficients
    leverage = np.einsum("ij,jk,ik->i", rows, inverse, rows)
    weights = rows @ inverse[0]  # of the ablated examples in the estimate
    parts = weights * residual / np.maximum(1 - leverage, 1e-9)
    jackknife = (1 - 1 / count) * (1 - count / size) * parts.sum()  # minus the bias of a fitted slope
    effect = (coefficients[0] + jackknife) / mean_steps
    fit = design @ coefficients - coefficients[0] / mean_steps * steps  # sums to 0
    spread = (residual**2).sum() / max(1, count - rank)
    influence = fit / size
    influence[ablated] += parts
    return Estimate(
        effect=float(effect),
        error=float(np.sqrt((parts**2).sum() + (fit**2).sum() / size**2) / mean_steps),
        whole_error=float(np.sqrt((spread + (fit**2).mean()) / size) / mean_steps),
        corpus_error=float(np.sqrt((parts**2).sum() * (1 - count / size)) / mean_steps),
        freedom=count - rank,
        slope=float(coefficients[1] / predicted.std()) if predicted.std() else 0.0,
        explained=_explained(y, predicted[ablated]),
        changed=int(np.count_nonzero(y)),
        influence=influence / mean_steps,
    )


def estimates(found: ExampleStats, variants: list[HeadSet] | None = None) -> list[Estimate]:
    """Estimate the effects of variants, by default all, from example statistics with predictions."""
    assert found.predicted is not None
    total, steps = found.intact.T
    return [
        estimate(found.closed[variant][:, 0] - total, steps, found.predicted[variant])
        for variant in (found.closed if variants is None else variants)
    ]


def _standardised(values: Array) -> Array:
    centred = values - values.mean()
    spread = centred.std()
    return centred / spread if spread > 1e-12 * np.abs(values).max() else np.zeros_like(centred)


def _explained(change: Array, predicted: Array) -> float:
    """Squared correlation; 0 where one of the two does not vary."""
    if len(change) < 3 or not change.std() or not predicted.std():
        return 0.0
    return float(np.corrcoef(change, predicted)[0, 1] ** 2)
