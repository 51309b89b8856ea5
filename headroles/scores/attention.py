"""Attention pass: a forward per batch in which all attention scores observe every site; value norms; token counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor, nn

from headroles._changes import Changes
from headroles.data.corpus import Corpus
from headroles.models import dummy_inputs, heads
from headroles.models.attention_hooks import Call, observe_attention
from headroles.models.batching import Batch, Encoded
from headroles.models.head_model import HeadModel
from headroles.models.masking import read_heads
from headroles.models.replacements import allowed
from headroles.models.sites import Site, unreadable_weight
from headroles.models.tokens.vocabulary import vocabulary
from headroles.scores.accumulator import Accumulator
from headroles.scores.base import Measure, Observation, Score
from headroles.tables.frame import KINDS, Kind

NEVER = 2**32  # is added to the ranks of tokens that do not occur
Frequencies = dict[str, tuple[Tensor, Tensor]]  # "source", "target" -> counts and ranks, each [vocabulary]


class _AllObservedError(Exception):
    """Every site of a forward pass was observed: the rest of the pass changes no score."""


class AttentionPass:
    """Forward passes of all attention scores over a corpus. Each pass ends at the last attention of the model."""

    def __init__(self, scores: Sequence[Score], model: HeadModel, counted: Frequencies) -> None:
        model.check_weights("attention")
        self.scores, self.model, self.counted = scores, model, counted
        self.by_head = any(score.by_head for score in scores)
        self.norms = ValueNorms(model)
        self.sites = {site.key for site in model.sites if site.heads}
        self.ends_early = not model.offloaded  # hooks send weights back at the end of each module

    def read(self, batch: Batch, accumulator: Accumulator) -> None:
        """Add the sums of one batch."""
        observer = _Observer(self, batch, accumulator)
        cells = heads.CELLS if all(score.in_parts for score in self.scores) and self._is_large(batch) else None
        captured = self.model.capture(observer, cells=cells)
        with self.model.without_gradients(), self.norms.reading(), captured, suppress(_AllObservedError):
            self.model.forward_body(batch)

    def _is_large(self, batch: Batch) -> bool:
        """Whether some layer has more weights than one block may have."""
        return any(
            site.heads * batch.queries(site.kind).ids.numel() * batch.keys(site.kind).ids.shape[1] > heads.CELLS
            for site in self.model.sites
        )


class _Observer:
    """Observes every site in one forward of a batch, whole or in blocks of queries, and ends it after the last."""

    def __init__(self, run: AttentionPass, batch: Batch, accumulator: Accumulator) -> None:
        self.run, self.batch, self.accumulator = run, batch, accumulator
        self.first_sites: dict[Kind, tuple[Kind, int]] = {}
        self.remaining = set(run.sites)

    def __call__(self, site: Site, attention: Tensor, first: int = 0, mask: Tensor | None = None) -> None:
        """Add the sums of one site, or of the block of its queries from `first` on."""
        run, batch = self.run, self.batch
        keys = batch.keys(site.kind)
        queries = batch.queries(site.kind).span(first, first + attention.shape[-2])
        counts, ranks = run.counted["source" if keys is batch.source else "target"]
        attention = attention.float().to(keys.ids.device)
        norms = partial(run.norms.of, site)
        seen = None if mask is None or not run.by_head else allowed(mask).to(keys.ids.device)
        observation = Observation(
            site.kind, attention, queries, keys, counts, ranks, first, norms, layer=site.layer, allowed=seen
        )
        self._check_finite(observation, site)
        if any(score.weights == "norm" for score in run.scores):
            self._check_finite(observation.by_norm, site)
        for score in (score for score in run.scores if site.kind in score.kinds):
            if score.weights == "nosink":
                self.accumulator.add(score, site.key, _by_head(score, observation.without_sink(score.least)))
                continue
            observed = observation if score.weights == "attention" else observation.by_norm
            if score.by_head:
                self.accumulator.add(score, site.key, _by_head(score, observed))
                continue
            self.accumulator.add(score, site.key, score.update(observed))
            if self.first_sites.setdefault(site.kind, site.key) == site.key:  # all layers of a kind share them
                self.accumulator.add_denominators(score, site.kind, score.denominators(observation))
        if first + attention.shape[-2] == batch.queries(site.kind).ids.shape[1]:
            self.remaining.discard(site.key)
            if not self.remaining and run.ends_early:
                raise _AllObservedError

    def _check_finite(self, observation: Observation, site: Site) -> None:
        finite = observation.top[0].isfinite().all(-1).all(-1)  # [batch]
        if not finite.all():
            number = self.batch.numbers[int(finite.int().argmin())]
            raise ValueError(
                f"the attention of {site.kind} layer {site.layer} is not finite on sentence {number + 1} of the "
                f"corpus; {dummy_inputs.advice(self.run.model.model)}"
            )


def _by_head(score: Score, observation: Observation) -> dict[str, Tensor]:
    """Return the sums of a score, and its denominators, which differ between heads."""
    denominators, heads = score.denominators(observation), observation.weights.shape[1]
    if shared := [name for name, values in denominators.items() if values.shape[1] != heads]:
        raise ValueError(
            f"score {score.name()!r} counts the same queries for all heads: got {shared[0]!r} of "
            f"shape {[*denominators[shared[0]].shape]}; expected one for each of {heads} heads; try observation.count"
        )
    return denominators | score.update(observation)


def frequencies(
    encoded: Encoded,
    written: Sequence[Batch] | None,
    reference: Corpus | None,
    model: HeadModel,
) -> Frequencies:
    """Count the tokens of each side of the reference, by default of the corpus with targets that the model wrote."""
    counted = encoded if reference is None else model.tokenised(reference)
    target = counted.counts("target") if written is None else _of_all(written, model)
    return {"source": _ranked(counted.counts("source"), model), "target": _ranked(target, model)}


def unsettled(scores: Sequence[Measure], encoded: Encoded, counted: Frequencies) -> dict[tuple[str, Kind], str]:
    """Return which scores, by label and kind, have no interval since tokens are counted in the corpus, and why."""
    reasons = {
        (score.label, kind): score.unsettled(counted[side][0])
        for kind, side in _sides(encoded).items()
        for score in scores
        if "counts" in score.needs and kind in score.kinds
    }
    return {key: reason for key, reason in reasons.items() if reason}


def uncounted(encoded: Encoded, counted: Frequencies, reference: Corpus | None) -> dict[Kind, str]:
    """Return the kinds of heads with uncounted key tokens, and why they were not counted."""
    where = f"corpus {encoded.corpus.name!r}" if reference is None else f"reference {reference.name!r}"
    reasons = {
        "source": f"{where} has no content tokens to count; try reference= with a corpus of whole sentences",
        "target": f"{where} has no target side to count the decoder's tokens in; try a reference= with translations",
    }
    return {kind: reasons[side] for kind, side in _sides(encoded).items() if not counted[side][0].any()}


def _sides(encoded: Encoded) -> dict[Kind, str]:
    """Side of the key tokens of each kind, "source" or "target"."""
    has_target = bool(encoded.greedy) or encoded.target is not None
    return {kind: "target" if has_target and kind == "dec-self" else "source" for kind in KINDS}


def _of_all(written: Sequence[Batch], model: HeadModel) -> Counter[int]:
    """How often each content token occurs in the targets of the batches of all processes."""
    counts: Counter[int] = Counter()
    for batch in written:
        if batch.target is not None:
            counts.update(batch.target.ids[batch.target.content].tolist())
    return sum(model.axis.gathered([counts]), Counter())


def _ranked(counts: Counter[int], model: HeadModel) -> tuple[Tensor, Tensor]:
    """Counts and ranks, 0 for the most frequent, ties by id; tokens that do not occur rank beyond any threshold."""
    table = torch.zeros(vocabulary(model.model), dtype=torch.long)
    for token, count in counts.items():
        table[token] = count
    ranks = torch.empty_like(table)
    ranks[table.argsort(descending=True, stable=True)] = torch.arange(len(table))
    ranks[table == 0] += NEVER
    return table.to(model.device), ranks.to(model.device)


NEEDS = "norms need the values and the output projection of every head"


class ValueNorms:
    """Norms ||f(x)|| of the values of all sites, of which `f(x) = (x W_V + b_V) W_O` (Kobayashi et al. 2020).

    Values are those of the model's own attention call, so that norms, rotations and latents before it are in them.
    Nothing is computed until a norm is asked for.
    """

    def __init__(self, model: HeadModel) -> None:
        self.model, self.values, self.factors = model, dict[nn.Module, Tensor](), dict[tuple[Kind, int], Tensor]()

    def reading(self) -> Changes:
        """Keep the values of the latest attention call of each module within the block."""

        def keep(call: Call) -> None:
            self.values = {call.module: call.value}

        def begin(changes: Changes) -> None:
            changes.undos.append(lambda: setattr(self, "values", {}))
            observe_attention(changes, keep)

        return Changes(self.model.model, begin)

    def of(self, site: Site) -> Tensor:
        """Return ||f(x)|| of each key of the latest call of a site for each head: float32 [batch, heads, key]."""
        if fault := _missing(self.model):
            raise ValueError(fault)
        value = self.values[site.module].float()  # [batch, key-value heads, key, size], of those in this process
        if site.key not in self.factors:
            self.factors[site.key] = _triangles(site).to(value)
        factors = self.factors[site.key]
        value = value.repeat_interleave(len(factors) // value.shape[1], dim=1)  # [batch, heads, key, size]
        return site.join((value @ factors.mT).norm(dim=-1))


def unreadable(model: HeadModel) -> str | None:
    """Return why the values of a model's heads or their output projections cannot be read; None if they can.

    This makes a small forward: a gate after attention would change what values become.
    """
    if fault := _missing(model):
        return fault
    if changed := _changed(model):
        name = model.name
        return f"{NEEDS}: {changed} in {name} changes the outputs of its heads before its output projection"
    return None


def output_weight(site: Site) -> Tensor:
    """Return the weight of a site's output projection, of the heads in this process: [heads x size, width]."""
    weight = site.ranks.local(site.out.weight)  # type: ignore[arg-type, union-attr]
    return weight if type(site.out).__name__ == "Conv1D" else weight.mT


def _missing(model: HeadModel) -> str | None:
    """Why there are no values or no output projections, without a forward."""
    name = model.name
    for site in model.sites:
        if site.outside:
            return f"{NEEDS}: {site.name} in {name} attends outside transformers' attention interface"
        if site.out is None:
            return f"{NEEDS}: another operation stands between {site.name} in {name} and its output projection"
        if fault := unreadable_weight(site, name):
            return f"{NEEDS}: {fault}"
    if model.offloaded:
        return f"{NEEDS}: some weights of {name} are offloaded; try a device that holds them all"
    return None


def _changed(model: HeadModel) -> str | None:
    """The first site with another input of its output projection than attention gives (a gate), by a small forward."""
    sites = {site.module: site for site in model.sites}
    outputs: dict[nn.Module, Tensor] = {}
    names: list[str] = []

    def compare(site: Site, z: Tensor) -> None:
        if not torch.equal(z.flatten(), outputs[site.module].flatten()):
            names.append(site.name)

    def keep(call: Call) -> None:
        if call.module in sites:
            outputs[call.module] = sites[call.module].join(call.out, 2)

    with model.evaluating() as changes, torch.no_grad():
        read_heads(changes, model.sites, compare)
        observe_attention(changes, keep)
        model.forward_body(dummy_inputs.dummy_inputs(model.model))
    return names[0] if names else None


def _triangles(site: Site) -> Tensor:
    """R of W_O^T = Q R for each head: ||v W_O|| = ||R v||, at the cost of size x size; [heads, rank, size]."""
    weight = output_weight(site).detach().double().cpu().unflatten(0, (-1, site.size))  # [heads, size, width]
    factors: Tensor = torch.linalg.qr(weight.mT, mode="r").R
    return factors
