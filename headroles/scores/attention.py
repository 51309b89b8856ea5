"""Attention pass: one forward per batch, in which all attention scores observe every site; norms; token counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headroles._changes import Changes
from headroles.data.corpus import Corpus
from headroles.models import dummy_inputs, heads
from headroles.models.attention_hooks import AttentionCall, observe_attention
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
    """All sites of a forward pass were observed, and the rest of the pass changes no score."""


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
        is_large = any(  # some layer has more weights than one block may have
            site.heads * batch.queries(site.kind).ids.numel() * batch.keys(site.kind).ids.shape[1] > heads.CELLS
            for site in self.model.sites
        )
        in_blocks = is_large and all(score.in_parts for score in self.scores)
        observer = _Observer(self, batch, accumulator)
        captured = self.model.capture(observer, cells=heads.CELLS if in_blocks else None)
        with self.model.without_gradients(), self.norms.reading(), captured, suppress(_AllObservedError):
            self.model.forward_body(batch)
        observer.check()
        if observer.remaining == self.sites:
            raise ValueError(
                f"attention must be that of {next(iter(self.model.sites)).name}, got other modules for texts of "
                f"{batch.source.ids.shape[1]} tokens in {self.model.name}; try attention_type='original_full' in its "
                f"config, or longer texts"
            )


class _Observer:
    """Observes every site in one forward of a batch, in blocks of queries if need be, and ends it after the last."""

    def __init__(self, run: AttentionPass, batch: Batch, accumulator: Accumulator) -> None:
        self.run, self.batch, self.accumulator = run, batch, accumulator
        self.first_sites: dict[Kind, tuple[Kind, int]] = {}
        self.remaining = set(run.sites)
        self.finite: dict[str, list[Tensor]] = {}  # of each site, bool [batch]

    def check(self) -> None:
        """Raise ValueError for attention that is not finite, of the first such site: one look at a batch."""
        if self.finite:
            finite = torch.stack([torch.stack(flags).all(0) for flags in self.finite.values()])  # [site, batch]
            if not finite.all():
                row = int(finite.all(1).int().argmin())
                check_finite(finite[row], [*self.finite][row], self.batch.numbers, self.run.model)

    def __call__(self, site: Site, attention: Tensor, first: int = 0, mask: Tensor | None = None) -> None:
        """Add the sums of one site, or of the block of its queries from `first` on."""
        run, batch = self.run, self.batch
        keys = batch.keys(site.kind)
        queries = batch.queries(site.kind).span(first, first + attention.shape[-2])
        counts, ranks = run.counted["source" if keys is batch.source else "target"]
        if site.outside is not None:  # BigBird fills its texts up to whole blocks
            attention = attention[:, :, : queries.ids.shape[1], : keys.ids.shape[1]]
        attention = attention.float().to(keys.ids.device)
        norms, towards = partial(run.norms.of_keys, site), partial(run.norms.towards, site)
        seen = None if mask is None or not run.by_head else allowed(mask).to(keys.ids.device)
        observation = Observation(
            site.kind, attention, queries, keys, counts, ranks, first, norms, towards, layer=site.layer, allowed=seen
        )
        by_norm = any(score.weights == "norm" for score in run.scores)
        for observed in (observation, *([observation.by_norm] if by_norm else [])):
            flags = self.finite.setdefault(f"the attention of {site.kind} layer {site.layer}", [])
            flags.append(observed.top[0].isfinite().all(-1).all(-1))
        for score in (score for score in run.scores if site.kind in score.kinds):
            self._add(score, site, observation)
        if first + attention.shape[-2] == batch.queries(site.kind).ids.shape[1]:
            self.remaining.discard(site.key)
            if not self.remaining and run.ends_early:
                raise _AllObservedError

    def _add(self, score: Score, site: Site, observation: Observation) -> None:
        """Add the sums of one score, and its denominators: once for all layers of a kind, unless heads differ."""
        observed = observation if score.weights == "attention" else observation.by_norm
        if score.weights == "nosink":
            observed = observation.without_sink(score.least)
        if score.by_head or score.weights == "nosink":
            self.accumulator.add(score, site.key, _of_each_head(score, observed) | score.update(observed))
            return
        self.accumulator.add(score, site.key, score.update(observed))
        if self.first_sites.setdefault(site.kind, site.key) == site.key:
            denominators = score.denominators(observation)
            if wide := [name for name, values in denominators.items() if values.shape[1] != 1]:
                raise ValueError(
                    f"{wide[0]} of score {score.name()!r} must be one number for all heads, got "
                    f"{denominators[wide[0]].shape[1]}; try by_head = True in the class"
                )
            self.accumulator.add(score, site.kind, denominators)


def check_finite(finite: Tensor, what: str, numbers: Sequence[int], model: HeadModel, more: str = "") -> None:
    """Raise ValueError for the first sentence of a batch without finite numbers, bool [batch]."""
    if not finite.all():
        place = numbers[int(finite.int().argmin())] + 1
        advice = dummy_inputs.nan_advice(model.model)
        raise ValueError(f"{what} is not finite on sentence {place} of the corpus; {advice}{more}")


def _of_each_head(score: Score, observation: Observation) -> dict[str, Tensor]:
    """Return the denominators of a score that differ between heads: {name: [batch, heads]}."""
    denominators, heads = score.denominators(observation), observation.weights.shape[1]
    for name, values in denominators.items():
        if values.shape[1] != heads:
            raise ValueError(
                f"{name} of score {score.name()!r} must be counted for each of {heads} heads, got {values.shape[1]}; "
                f"try observation.count"
            )
    return denominators


def frequencies(
    encoded: Encoded, written: Sequence[Batch] | None, reference: Corpus | None, model: HeadModel
) -> Frequencies:
    """Count the tokens of each side of the reference, by default of the corpus with targets that the model wrote."""
    counted = encoded if reference is None else model.tokenised(reference)
    target = counted.counts("target") if written is None else _of_all(written, model)
    return {"source": _ranked(counted.counts("source"), model), "target": _ranked(target, model)}


def without_interval(scores: Sequence[Measure], encoded: Encoded, counted: Frequencies) -> dict[tuple[str, Kind], str]:
    """Return which scores, by label and kind, have no interval since tokens are counted in the corpus, and why."""
    sides = {kind: _key_side(encoded, kind) for kind in KINDS}
    reasons = {
        (score.label, kind): score.reason_no_interval(counted[sides[kind]][0])
        for score in scores
        for kind in score.kinds
        if "counts" in score.needs
    }
    of_side = {kind: f"of the {side}, " * ("target" in sides.values()) for kind, side in sides.items()}
    return {key: f"{of_side[key[1]]}{reason}" for key, reason in reasons.items() if reason}


def uncounted(encoded: Encoded, counted: Frequencies, reference: Corpus | None) -> dict[Kind, str]:
    """Return the kinds of heads with uncounted key tokens, and why they were not counted."""
    where = f"corpus {encoded.corpus.name!r}" if reference is None else f"reference {reference.name!r}"
    reasons = {
        "source": f"{where} has no content tokens to count; try reference= with a corpus of whole sentences",
        "target": f"{where} has no target side to count the decoder's tokens in; try a reference= with translations",
    }
    if encoded.feature_extractor is not None:
        reasons["source"] = "frames of sound are not tokens, so none is rare"
    sides = {kind: _key_side(encoded, kind) for kind in KINDS}
    return {kind: reasons[side] for kind, side in sides.items() if not counted[side][0].any()}


def _key_side(encoded: Encoded, kind: Kind) -> str:
    has_target = bool(encoded.greedy) or encoded.target is not None
    return "target" if has_target and kind == "dec-self" else "source"


def _of_all(written: Sequence[Batch], model: HeadModel) -> Counter[int]:
    """Count each content token in the targets of the batches of all processes."""
    counts: Counter[int] = Counter()
    for batch in written:
        if batch.target is not None:
            counts.update(batch.target.ids[batch.target.content].tolist())
    return sum(model.axis.gathered([counts]), Counter())


def _ranked(counts: Counter[int], model: HeadModel) -> tuple[Tensor, Tensor]:
    """Return counts and ranks: 0 for the most frequent, ties by id; tokens that do not occur come after all others."""
    table = torch.zeros(vocabulary(model.model), dtype=torch.long)
    for token, count in counts.items():
        table[token] = count
    ranks = torch.empty_like(table)
    ranks[table.argsort(descending=True, stable=True)] = torch.arange(len(table))
    ranks[table == 0] += NEVER
    return table.to(model.device), ranks.to(model.device)


class ValueNorms:
    """Norms ||f(x)|| of the values of all sites, `f(x) = (x W_V + b_V) W_O` (Kobayashi et al. 2020).

    The values are those of the model's attention call, with all that the model does to them before it. Nothing is
    computed until a norm is asked for.
    """

    def __init__(self, model: HeadModel) -> None:
        self.model, self.values, self.factors = model, dict[nn.Module, Tensor](), dict[tuple[Kind, int], Tensor]()

    def reading(self) -> Changes:
        """Keep the values of the latest attention call of each module within the block."""

        def keep(call: AttentionCall) -> None:
            self.values = {call.module: call.value}

        def begin(changes: Changes) -> None:
            changes.undos.append(lambda: setattr(self, "values", {}))
            observe_attention(changes, keep)

        return Changes(self.model.model, begin)

    def of_keys(self, site: Site) -> Tensor:
        """Return ||f(x)|| of each key in the latest call of a site: float32 [batch, heads, key]."""
        _refuse("norms", _missing(self.model))
        value = self.values[site.module].float()  # [batch, key-value heads in this process, key, size]
        if site.key not in self.factors:
            rows = output_weight(site).detach().double().cpu().unflatten(0, (-1, site.size))  # [heads, size, width]
            self.factors[site.key] = triangle(rows).to(value)
        factors = self.factors[site.key]
        value = value.repeat_interleave(len(factors) // value.shape[1], dim=1)  # [batch, heads, key, size]
        return site.join((value @ factors.mT).norm(dim=-1))

    def towards(self, site: Site, tokens: Tensor) -> Tensor:
        """Return f(x) of each key along the unembedding of tokens [batch, query]: [batch, heads, query, key]."""
        unembedding = self.model.model.get_output_embeddings()
        _refuse("contributions", _missing(self.model) if unembedding else f"{self.model.name} has no unembedding")
        value = self.values[site.module].float()  # [batch, key-value heads in this process, key, size]
        rows = output_weight(site).detach().to(value).unflatten(0, (-1, site.size))  # [heads, size, width]
        tokens = tokens.to(unembedding.weight.device)
        along = unembedding.weight.detach()[tokens].to(value)[:, None] @ rows.mT  # [batch, heads, query, size]
        return site.join(along @ value.repeat_interleave(len(rows) // value.shape[1], dim=1).mT)


def check_readable(model: HeadModel, what: str = "norms") -> None:
    """Raise ValueError if the values of a model's heads or their output projections cannot be read.

    A small forward shows whether an operation after attention, such as a gate, changes the outputs of heads.
    """
    _refuse(what, _missing(model) or _changed(model))


def _refuse(what: str, fault: str | None) -> None:
    if fault:
        raise ValueError(f"{what} need the values and the output projection of every head: {fault}")


def output_weight(site: Site) -> Tensor:
    """Return the weight of a site's output projection, of the heads in this process: [heads x size, width]."""
    stored: Any = site.out.weight  # type: ignore[union-attr]
    weight: Tensor = stored.to_local() if hasattr(stored, "to_local") else stored
    return weight if type(site.out).__name__ == "Conv1D" else weight.mT


def _missing(model: HeadModel) -> str | None:
    """Return why values or output projections cannot be read, without a forward."""
    name = model.name
    for site in model.sites:
        if site.outside:
            return f"{site.name} in {name} attends outside transformers' attention interface"
        if site.out is None:
            return f"another operation stands between {site.name} in {name} and its output projection"
        if fault := unreadable_weight(site, name):
            return fault
    if model.offloaded:
        return f"some weights of {name} are offloaded; try a device that holds them all"
    return None


def _changed(model: HeadModel) -> str | None:
    """Describe the first site with an output projection that does not read the outputs of its heads unchanged."""
    sites = {site.module: site for site in model.sites}
    outputs, names = dict[nn.Module, Tensor](), list[str]()

    def compare(site: Site, z: Tensor) -> None:
        if not torch.equal(z.flatten(), outputs[site.module].flatten()):
            names.append(site.name)

    def keep(call: AttentionCall) -> None:
        if call.module in sites:
            outputs[call.module] = sites[call.module].join(call.out, 2)

    with model.evaluating() as changes, torch.no_grad():
        read_heads(changes, model.sites, compare)
        observe_attention(changes, keep)
        model.forward_body(dummy_inputs.dummy_inputs(model.model))
    return f"{names[0]} in {model.name} changes the outputs of its heads before that projection" if names else None


def triangle(rows: Tensor) -> Tensor:
    """Return R of rows^T = Q R, which gives products the same norms: [heads, size, size] from [heads, size, width]."""
    factors: Tensor = torch.linalg.qr(rows.mT, mode="r").R
    return factors
