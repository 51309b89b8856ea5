"""Sweep: run the intact model and variants with masked heads on a corpus, and measure statistics of every example."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headroles._distributed import track
from headroles.ablation.example_stats import SHOWN, ExampleStats, HeadSet, written
from headroles.ablation.forward_cache import Replay, Resample
from headroles.ablation.metrics import METRICS, Metric, Reading, Written
from headroles.analysis.intervals import Array
from headroles.data.corpus import Corpus
from headroles.models import dummy_inputs, masking
from headroles.models.batching import LOGITS, ONE, Batch, longest_output
from headroles.models.head_model import HeadModel
from headroles.models.identity import fingerprint
from headroles.models.masking import Head
from headroles.models.replacements import ByHead, Counted, Need, Replacement, as_replacement
from headroles.models.sharded import is_sharded
from headroles.models.tokens import vocabulary
from headroles.scores import objectives
from headroles.scores.attention import frequencies
from headroles.scores.registry import NEEDED, kinds_with
from headroles.tables.arguments import number, one_of
from headroles.tables.io import replacing

log = logging.getLogger(__name__)

Word = Literal["zero", "mean", "resample", "uniform", "rescale"]
WORDS: tuple[Word, ...] = get_args(Word)
ReplacementLike = Word | Replacement | Mapping[Head, Replacement]  # of the outputs of masked heads
KEPT = 64  # variants with statistics that are kept together: a batch of all heads may take many minutes
OF_STEPS = {type(METRICS[name]) for name in ("loss", "perplexity", "agreement", "pair_accuracy", "pair_difference")}
Read = Callable[[Batch, Any], Reading]  # called with a batch and the output of the model for it


def known_replacement(model: HeadModel, given: ReplacementLike) -> Word | Replacement:
    """Return a replacement: a known word, or one pattern for all heads or for each head."""
    if isinstance(given, Replacement | Mapping):
        return as_replacement(model.model, given)
    return one_of("replacement", given, WORDS, ", or a pattern of headroles.patterns, such as Offset(-1)")


def replacement_name(replacement: Word | Replacement) -> str:
    """Return the name of a replacement in table names, column names, provenance and cache keys."""
    if isinstance(replacement, str):
        return replacement
    return f"pattern={replacement.label}" if replacement.label in WORDS else replacement.label


class Sweep:
    """Runs of a model and of its variants with masked heads on the examples of a corpus.

    Results are exact. Computations that masking the heads of a variant cannot change are done once per batch: the
    layers below the first masked head, and the encoder if its heads are intact. Processes started by `accelerate
    launch` share the batches; each process returns all statistics. A folder keeps the statistics of finished batches,
    and an interrupted sweep continues after them.
    """

    def __init__(
        self,
        model: HeadModel,
        corpus: Corpus,
        metric: Metric,  # makes the statistics
        *,
        replacement: ReplacementLike = "zero",  # as of `ablate`
        max_tokens: int = 4096,  # in one forward pass, which several variants share
        variants_at_once: int = 8,  # fewer for a vocabulary of 2^16 tokens or more; halved when memory runs out
        folder: str | Path | None = None,
        seed: int = 0,  # of the partners of "resample", examples with outputs that replace those of others
    ) -> None:
        number("max_tokens", max_tokens, least=1, whole=True)
        self.model, self.corpus, self.metric, self.seed = model, corpus, metric, seed
        self.replacement = known_replacement(model, replacement)
        self.needs = self.replacement.needs if isinstance(self.replacement, Replacement) else frozenset[Need]()
        self.folder = None if folder is None else Path(folder)
        self.size = max(1, max_tokens // variants_at_once)  # tokens of a batch
        self.encoded = model.encode(corpus, words=bool(self.needs & {"trees", "links"}), max_tokens=self.size)
        self.variants_at_once = 1 if self.encoded.together == "single" else variants_at_once
        if vocabulary := self.encoded.vocabulary:
            self.variants_at_once = max(1, min(self.variants_at_once, LOGITS // (vocabulary * self.size)))
        if self.folder is not None:
            model.check_named()

    def check(self, variants: Sequence[HeadSet]) -> None:
        """Raise ValueError if masked heads cannot attend by their pattern."""
        if isinstance(self.replacement, str):
            return
        sites, given = {site.key: site for site in self.model.sites}, self.replacement
        for head in sorted(set().union(*variants)):
            pattern = given.parts.get(head) if isinstance(given, ByHead) else given
            if pattern is None:
                raise ValueError(
                    f"replacement must have a pattern for each masked head, got none for {written(frozenset([head]))}; "
                    f"try sets="
                )
            pattern.check(sites[head[:2]])
            for need, (what, advice) in NEEDED.items():
                if need in pattern.needs and head[0] not in kinds_with(need, self.encoded):
                    raise ValueError(
                        f"pattern {pattern} needs {what} for {head[0]} heads, got none in corpus "
                        f"{self.corpus.name!r}; {advice}"
                    )
            if self.metric.generates and head[0] != "enc-self":
                raise ValueError(
                    f"pattern {pattern} needs all tokens in one forward: got {self.metric.name}, for which a decoder "
                    f"writes them one by one; expected heads of an encoder; try a metric such as 'loss', or sets="
                )

    @cached_property
    def examples(self) -> list[int]:
        """Numbers of the examples: sentences that fit the model, or pairs of them if the metric compares pairs."""
        return self._places(self.encoded.numbers)[0]

    @cached_property
    def batches(self) -> list[Batch]:
        """All batches of the corpus."""
        return list(self.model.batches(self.encoded, max_tokens=self.size))

    @cached_property
    def read(self) -> Read:
        """Function that makes the reading of a batch; ValueError if the model or corpus does not suit the metric."""
        self.model.check_weights("output")
        self.metric.check(self.model, self.corpus, self.batches)
        objective = None
        if self.metric.objective is not None:
            if self.metric.objective == "loss":
                objectives.check_loss(self.model, "metric='agreement'")
            objective = objectives.objective(self.metric.objective, self.model).fit(self.model, self.batches)
        return partial(Reading, self.model, self.corpus, objective)

    @cached_property
    def outputs(self) -> Replacement:
        """The replacement of outputs; means and partners come from the whole corpus."""
        if self.replacement == "resample":
            return Resample(self.model, self.encoded, self.seed)
        if self.replacement == "mean":
            return as_replacement(self.model.model, masking.mean(self.model.model, self.batches))
        return as_replacement(self.model.model, "zero" if self.replacement == "rescale" else self.replacement)

    @cached_property
    def counted(self) -> Counted | None:
        """Counts of the tokens of the corpus, if a pattern needs them."""
        return frequencies(self.model.encode(self.corpus), None, None, self.model) if "counts" in self.needs else None

    @cached_property
    def signature(self) -> str:
        """Provenance of the statistics."""
        text = self.model.provenance(
            self.corpus,
            examples=len(self.examples),
            too_long=self.encoded.too_long,
            metric=self.metric,
            **self.metric.declaration(),
            replacement=replacement_name(self.replacement),
        )
        return f"{text}|partners:{self.seed}" if self.replacement == "resample" else text

    def run(
        self,
        variants: Sequence[HeadSet],
        rows: Sequence[int] | None = None,
        advice: Callable[[float], str] | None = None,  # of the seconds that are left after the first batch
        what: str = "masking heads",
        later: int = 0,  # variants of the runs after this one
    ) -> ExampleStats:
        """Measure the intact model and every variant on the examples `rows`, by default all."""
        self.check(variants)
        gates, key = self._gates(variants), self._key(variants, rows)
        with self.model.evaluating():
            batches = self.batches
            if rows is not None:
                size = self.metric.sentences
                numbers = [size * row + place for row in rows for place in range(size)]
                batches = list(self.model.batches(self.encoded.take(numbers), max_tokens=self.size))
            parts = [slice(start, start + KEPT) for start in range(0, max(1, len(variants)), KEPT)]
            runs = [
                partial(self._measure, self.read, batch, variants[part], gates[part])
                for batch, part in product(batches, parts)
            ]
            more = later / max(1, len(variants)) * len(runs)  # each part begins with the intact model
            measured = self._spread(runs, key, what=what, advice=advice, later=more)
            of_batch = [measured[start : start + len(parts)] for start in range(0, len(measured), len(parts))]
            whole = [np.concatenate([first, *(part[1:] for part in rest)]) for first, *rest in of_batch]
            joined = np.concatenate(whole, axis=1)  # [1 + variant, example, statistic]
        stats = self._stats(joined[0], dict(zip(variants, joined[1:], strict=True)), batches)
        return stats.check() if rows is None else stats

    def predict(self, variants: Sequence[HeadSet]) -> ExampleStats:
        """Predict every variant by the gradient at a mask of ones: one forward and one backward pass of each batch."""
        self.check(variants)
        gates, key = self._gates(variants), self._key(variants, None)
        with self.model.evaluating():
            runs = [partial(self._gradient, self.read, batch, gates) for batch in self.batches]
            joined = np.concatenate(self._spread(runs, f"{key}-gradient", what="gradients of masks"))
        count = joined.shape[1] - len(variants)  # of [example, statistic + variant]
        stats = self._stats(joined[:, :count], {}, self.batches).check()
        _, places = self._places([number for batch in self.batches for number in batch.numbers])
        changes = joined[places, count:].sum(axis=1)  # [example, variant]
        return replace(stats, predicted=dict(zip(variants, changes.T, strict=True)))

    def _gates(self, variants: Sequence[HeadSet]) -> Tensor:
        """Return the gates of variants, [variant, heads], on the host; "rescale" scales up what remains of a layer."""
        places = {head: place for place, head in enumerate(self.model.gated)}
        gates = torch.ones(len(variants), len(places))
        for row, masked in zip(gates, variants, strict=True):
            row[[places[head] for head in self.model.sites.named(masked, zeroed=True)]] = 0
        if self.replacement == "rescale":
            sites = self.model.sites
            for site, layer in zip(sites, gates.split([site.heads for site in sites], dim=1), strict=True):
                # 0 for a head that is zeroed in the weights
                present = layer.new_tensor([number in site.remaining for number in site.numbers])
                left = (layer * present).sum(1, keepdim=True)
                layer *= torch.where(left > 0, present.sum() / left, 1.0)
        return gates

    def _key(self, variants: Sequence[HeadSet], rows: Sequence[int] | None) -> str:
        """Return the cache key of a run, as a digest; empty without a folder."""
        if self.folder is None:
            return ""
        seed = self.seed if self.replacement == "resample" else None
        return fingerprint([self.cache_key(seed=seed), self.size, rows, [sorted(masked) for masked in variants]])

    def cache_key(self, **fields: object) -> str:
        """Return the cache key of statistics, with further fields."""
        fields |= {"pattern": fingerprint(self.replacement)} if isinstance(self.replacement, Replacement) else {}
        name, code = replacement_name(self.replacement), fingerprint(self.metric)
        return self.model.cache_key(self.corpus, metric=self.metric, code=code, replacement=name, **fields)

    def _spread(self, runs: Sequence[Callable[[], Array]], key: str, **progress: Any) -> list[Array]:
        """Load the statistics of each batch from the folder, or measure and keep them; processes share the batches."""
        axis = self.model.axis
        share = range(axis.rank, len(runs), axis.count)
        paths = [None if self.folder is None else self.folder / f"{key}-{place}.npy" for place in share]
        kept = axis.agreed([path is not None and path.is_file() for path in paths])
        rows = [*zip(share, paths, kept, strict=True)]
        measured = [(place, np.load(path, allow_pickle=False)) for place, path, is_kept in rows if path and is_kept]
        left = [(place, path) for place, path, is_kept in rows if not is_kept]
        for place, path in track(left, total=len(left), **progress):
            statistics = runs[place]()
            if path is not None:
                with replacing(path) as draft, draft.open("wb") as file:
                    np.save(file, statistics, allow_pickle=False)
            measured.append((place, statistics))
        return [statistics for _, statistics in sorted(axis.gathered(axis.agreed(measured)))]

    def _measure(self, read: Read, batch: Batch, variants: Sequence[HeadSet], gates: Tensor) -> Array:
        """Return the statistics of a batch by the intact model and every variant: [1 + variant, example, statistic]."""
        # Which variants share a forward? A variant reuses the outputs of the intact model up to its first masked head
        # (`Replay.first`), and all rows of a forward start at the same layer. So variants are grouped by their first
        # masked head, and each group runs in chunks of `variants_at_once`. Heads of late layers then cost few layers.
        of_steps = type(self.metric) in OF_STEPS  # a subclass may read other logits
        replay = Replay(self.model, batch, self.outputs, self.counted, of_steps=of_steps)
        if self.metric.generates:
            intact = self._masked(read, replay, torch.ones(1, gates.shape[1]), [None])[0]
        else:
            intact = self._update(read(batch, replay.output), [None])[0]
            del replay.output  # logits over a vocabulary are large
        statistics = np.full((1 + len(variants), *intact.shape), np.nan)
        statistics[0] = intact
        firsts = [replay.first(row[None]) for row in gates]
        if self.metric.generates:  # only the states of an intact encoder are reused
            firsts = [(int(first[0] >= replay.encoded), 0) for first in firsts]
        for first in sorted(set(firsts)):
            rows = [row for row, start in enumerate(firsts) if start == first]
            while rows:
                chunk = rows[: self.variants_at_once]
                try:
                    values = self._masked(read, replay, gates[chunk], [variants[row] for row in chunk])
                except (torch.OutOfMemoryError, MemoryError) as error:
                    self._halve(error)
                    continue
                statistics[[1 + row for row in chunk]] = values
                rows = rows[len(chunk) :]
        return statistics

    def _halve(self, error: Exception) -> None:
        """Run fewer variants at a time after an out-of-memory error."""
        if self.variants_at_once == 1 or is_sharded(self.model.model):  # other processes wait in the same forward
            raise error
        self.variants_at_once //= 2
        log.warning("out of memory (%s): %d variants at a time from here on", error, self.variants_at_once)

    def _masked(self, read: Read, replay: Replay, gates: Tensor, variants: Sequence[HeadSet | None]) -> Array:
        """Measure variants that run in one forward: [variant, example, statistic]."""
        if not isinstance(self.metric, Written):
            output, batch = replay.run(gates)
            return self._update(read(batch, output), variants)
        nan = torch.zeros(len(gates), len(replay.batch.numbers), dtype=torch.bool, device=self.model.device)

        def note_nan(_: Tensor, scores: Tensor) -> Tensor:
            nan.logical_or_(scores.isnan().any(-1).view(*nan.shape, -1).any(-1))  # scores: [example x beam, token]
            return scores

        options = self._generation_options(self.metric)
        tokens, batch = replay.write(gates, logits_processor=[note_nan], **options)
        return self._update(read(batch, tokens), variants, nan.flatten().cpu().numpy())

    def _update(
        self, reading: Reading, variants: Sequence[HeadSet | None], nan: npt.NDArray[np.bool_] | None = None
    ) -> Array:
        """Compute the statistics of variants (None: intact), [variant, example, statistic]; ValueError for NaN."""
        values, count = self.metric.update(reading), len(reading.batch.numbers)
        if len(values) != count:
            raise ValueError(
                f"metric {self.metric.name!r} has statistics of other examples: got {len(values)} rows; expected "
                f"{count}, one of each example of the batch"
            )
        if nan is not None:
            values = np.where(nan[:, None], np.nan, values)
        statistics = values.reshape(len(variants), -1, values.shape[-1])
        for rows, masked in zip(statistics, variants, strict=True):
            bad = ~np.isfinite(rows).all(-1)
            if bad.any():
                who = "the intact model" if masked is None else f"the model without {sorted(masked)}"
                numbers = sorted(reading.batch.numbers[row] + 1 for row in np.flatnonzero(bad))
                more = ", ..." if len(numbers) > SHOWN else ""
                raise ValueError(
                    f"{self.metric.name} of {who} is not finite on sentence {', '.join(map(str, numbers[:SHOWN]))}"
                    f"{more} of the corpus; {dummy_inputs.nan_advice(self.model.model)}; finished batches are kept"
                )
        return statistics

    def _gradient(self, read: Read, batch: Batch, gates: Tensor) -> Array:
        """Compute the intact statistics, and the changes that a gradient predicts: [example, statistic + variant]."""
        self.model.check_gradients()
        replacement = self.outputs.bind(batch, self.counted)
        mask = torch.ones(len(batch.numbers), gates.shape[1], device=self.model.device, requires_grad=True)
        with torch.enable_grad(), self.model.mask(mask, replacement):
            output = self.model.forward(batch)
            targets = self.metric.targets(read(batch, output))
            total = torch.where(targets.counted, targets.values, 0.0).sum()
        (gradient,) = torch.autograd.grad(total, mask)  # [example, heads]
        predicted = (gradient.cpu().double() @ (gates - 1).double().T).numpy()  # [example, variant]
        detached = {name: value.detach() if isinstance(value, Tensor) else value for name, value in output.items()}
        (statistics,) = self._update(read(batch, type(output)(**detached)), [None])
        return np.concatenate([statistics, predicted], axis=1)

    def _generation_options(self, metric: Written) -> dict[str, object]:
        config = self.model.model.generation_config
        options: dict[str, object] = {"num_beams": metric.beams, **ONE, **self.encoded.language}
        if not config.max_new_tokens:
            positions = vocabulary.positions(self.model.tokenizer, self.model.model, target=True)
            options["max_length"] = longest_output(self.model.model, positions)
        if self.replacement == "resample":
            options["use_cache"] = False  # a layer needs all tokens, to replace the common ones
        return options

    def _stats(self, intact: Array, masked: dict[HeadSet, Array], groups: Sequence[Batch]) -> ExampleStats:
        numbers, places = self._places([number for batch in groups for number in batch.numbers])
        merged = {variant: self.metric.merged(values[places]) for variant, values in masked.items()}
        whole = self.metric.merged(intact[places])
        return ExampleStats(whole, merged, numbers, self.encoded.too_long, self.metric, self.signature)

    def _places(self, numbers: Sequence[int]) -> tuple[list[int], npt.NDArray[np.int64]]:
        """Return the numbers of the complete examples, and the rows of their sentences: [example, sentence]."""
        size, row = self.metric.sentences, {number: row for row, number in enumerate(numbers)}
        sentences = {number // size: [size * (number // size) + part for part in range(size)] for number in numbers}
        complete = {example: parts for example, parts in sentences.items() if all(part in row for part in parts)}
        rows = [row[part] for parts in complete.values() for part in parts]
        return list(complete), np.array(rows, np.int64).reshape(-1, size)
