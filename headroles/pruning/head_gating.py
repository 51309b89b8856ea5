"""Causal head gating: heads help, do nothing or harm by gates fitted under pressure up and down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles._distributed import track
from headroles.analysis.intervals import Array, over_seeds
from headroles.data.corpus import CorpusLike
from headroles.data.readers import corpus_of
from headroles.models import dummy_inputs
from headroles.models.batching import Batch, fitting
from headroles.models.head_model import HeadModel
from headroles.scores.lrp import lrp_rules
from headroles.scores.objectives import Targets, objective
from headroles.tables.study import Study, study_at

LIMIT = 4.0  # of the logit of a gate


def causal_gating(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    *,
    strength: float = 0.1,
    n_updates: int = 200,
    rate: float = 1.0,
    seeds: int = 5,
    max_tokens: int = 4096,
    seed: int = 0,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Fit gates of all heads under pressure up and down: causal head gating (Nam et al. 2025).

    Gates between 0 and 1 are fitted to the loss, from random ones, while the weights of the model stay as they are.
    From there they are fitted twice more: with a reward for gates near 1, and with the same reward for gates near 0. A
    head that stays open against the pressure helps, one that stays closed against the pressure harms, and one that
    follows it either way does nothing. What a head is depends on the other heads that a fit leaves: fits from other
    random gates may differ, which the intervals show. (arXiv 2505.13737: the loss, with the inverse sigmoid of the
    gates clipped, the start of both fits from one without a reward, and the kinds of heads were checked in accounts of
    the paper, the three products in the released code; not in the full text, so no sections are cited.)

    Args:
        model: A Hugging Face model that has a loss; its weights do not change.
        tokenizer: Its tokenizer.
        corpus: The corpus on which the loss is measured.
        strength: Reward for the mean logit of the gates, on the mean loss of an example in nats per token (or per
            sentence), as in the released code; the paper's loss has sums for both. Logits stay between -4 and 4, gates
            between 0.018 and 0.982. (There they may go further, where no reward moves them: a gate that begins there
            stays, whatever the head does.)
        n_updates: Updates of each of the three fits, each on one batch, by Adam. The released code has 500, and clips
            the norm of the gradient to 1.
        rate: Learning rate of the logits.
        seeds: Number of random gates from which fits begin. All read the same batches.
        max_tokens: Tokens in one forward pass, seeds together.
        seed: Seed of the random gates and of the order of the batches.
        study: Study or folder that keeps the table as `gating`; if it has it, nothing is computed.

    Returns:
        A table with a row per head; all columns are means over seeds, with a 95 % interval of t over seeds.

        - gating[gate+], gating[gate-]: the gates fitted with pressure up and down.
        - gating[facilitating]: gate-.
        - gating[irrelevant]: gate+ x (1 - gate-).
        - gating[interfering]: 1 - gate+.

    Raises:
        ValueError: If an option is out of range, the model or the corpus has no loss, or the loss is not finite.

    Example:
        >>> table = hr.causal_gating(model, tokenizer, corpus)
        >>> table["gating[facilitating]"].nlargest(3)
    """
    if min(n_updates, seeds) < 1 or not strength > 0 or not rate > 0:
        raise ValueError(
            f"causal gating out of range: got n_updates={n_updates}, seeds={seeds}, strength={strength}, rate={rate}; "
            f"expected at least one update and one seed, a strength and a rate above 0"
        )
    handle, corpus = HeadModel(model, tokenizer), corpus_of(corpus)
    options: dict[str, Any] = {"strength": strength, "updates": n_updates, "rate": rate, "seeds": seeds, "seed": seed}

    def compute() -> pd.DataFrame:
        encoded = handle.encode(corpus, words=False)
        with handle.evaluating(), lrp_rules(handle.model, "gradient"):  # weights take no gradient
            batches = list(handle.batches(encoded, max_tokens=max(1, fitting(encoded, max_tokens) // seeds)))
            target = objective("loss", handle).fit(handle, batches)
            fit = _Fit(handle, target, batches, n_updates, rate, seed)
            free = fit.run(fit.random(seeds), 0.0)
            up, down = (fit.run(free, pressure).sigmoid().double().cpu() for pressure in (strength, -strength))
        text = handle.provenance(corpus, examples=len(encoded.numbers), too_long=encoded.too_long, **options)
        return handle.table(_columns(up.numpy(), down.numpy()), text)

    if study is None:
        return compute()
    return study_at(study).keep("gating", handle.cache_key(corpus, **options, max_tokens=max_tokens), compute)


@dataclass(frozen=True)
class _Fit:
    """Fits of the gates of all seeds at once: one forward pass holds the examples of a batch with the gates of each."""

    handle: HeadModel
    target: Targets
    batches: Sequence[Batch]
    n_updates: int
    rate: float
    seed: int

    def random(self, seeds: int) -> Tensor:
        """Draw the logits of uniform gates: [seed, heads]."""
        drawn = np.random.default_rng(self.seed).uniform(size=(seeds, len(self.handle.gated)))
        return torch.tensor(drawn, dtype=torch.float32, device=self.handle.device).logit().clamp(-LIMIT, LIMIT)

    def run(self, start: Tensor, strength: float) -> Tensor:
        """Fit gates from the logits `start`, with a reward of large ones: [seed, heads]."""
        logits = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([logits], lr=self.rate)
        for batch in track(islice(self._shuffled(), self.n_updates), "fitting gates", total=self.n_updates):
            with torch.enable_grad():
                loss = self._losses(batch, logits.sigmoid()) - strength * logits.mean(-1)  # [seed]
            if not loss.isfinite().all():
                raise ValueError(
                    f"the loss is not finite on the sentences {min(batch.numbers) + 1} to {max(batch.numbers) + 1} of "
                    f"the corpus; {dummy_inputs.advice(self.handle.model)}"
                )
            (logits.grad,) = torch.autograd.grad(loss.sum(), logits)
            optimizer.step()
            logits.data.clamp_(-LIMIT, LIMIT)
        return logits.detach()

    def _losses(self, batch: Batch, gates: Tensor) -> Tensor:
        """Compute the mean loss of the examples of a batch with each gates: [seed]."""
        if self.handle.alone and len(gates) > 1:
            return torch.cat([self._losses(batch, row) for row in gates.split(1)])
        size = len(batch.numbers)
        copies = batch.take(torch.arange(size, device=gates.device).repeat(len(gates)))
        with self.handle.mask(gates.repeat_interleave(size, 0)):
            target = self.target.targets(self.handle.forward(copies), copies)
        sums = torch.where(target.counted, target.values, 0.0).sum(-1)
        return (sums / target.counted.sum(-1).clamp(min=1)).reshape(len(gates), size).mean(-1)

    def _shuffled(self) -> Iterator[Batch]:
        """Yield batches without end, each time in another order."""
        generator = np.random.default_rng(self.seed)
        while True:
            yield from (self.batches[place] for place in generator.permutation(len(self.batches)))


def _columns(up: Array, down: Array) -> dict[str, Array]:
    """Compute all columns from the fitted gates, [seed, heads]."""
    scores = {
        "gate+": up,
        "gate-": down,
        "facilitating": down,
        "irrelevant": up * (1 - down),
        "interfering": 1 - up,
    }
    columns: dict[str, Array] = {}
    for name, values in scores.items():
        ends = np.array([over_seeds(np.stack([head, head], axis=1)) for head in values.T])  # [head, 2]
        low, high = ends.clip(0, 1).T
        columns |= {f"gating[{name}]": values.mean(0), f"gating[{name}].low": low, f"gating[{name}].high": high}
    return columns
