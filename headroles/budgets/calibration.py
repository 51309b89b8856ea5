"""Calibration: the loss of answers to long texts under gates of key-value groups, which stream where a gate is 0."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

from headroles._changes import Changes
from headroles._distributed import track
from headroles.analysis.intervals import Array
from headroles.budgets.attention import streams
from headroles.data.corpus import Chat, Corpus, Sentence
from headroles.models.head_model import HeadModel
from headroles.models.sites import Head, Site
from headroles.models.tokens import vocabulary
from headroles.models.tokens.alignment import pieces
from headroles.patterns import Streaming
from headroles.pruning.learned_gates import L0, RATE, frozen

GROUP_LEVELS = ["kind", "layer", "group"]
POINTS = 4  # of the path of gates from 1 to 0
LONG = 1500  # tokens of a text from which backward passes compute each layer once more, in a third of the memory
Loss = Callable[[Tensor], Tensor]  # gates [..., group] -> losses


class Question(NamedTuple):
    """A text as token ids, and the place at which its answer begins."""

    ids: Tensor  # [1, token]
    answer: int


class Calibration:
    """A decoder, the groups of its layers without a window, and long texts with answers.

    The answer is in the tokens of a text (`hr.needles`, `hr.hidden_facts`), or its `target`. ValueError for a model
    without a cache of keys and values, with attention outside transformers' interface or with windows on all layers.
    """

    def __init__(self, model: HeadModel, corpus: Corpus, pattern: Streaming) -> None:
        self.model, self.corpus, self.pattern = model, corpus, pattern
        self.sites = global_sites(model, pattern)
        self.index = group_index(self.sites)
        self.questions = [question(sentence, number, model) for number, sentence in enumerate(corpus, 1)]
        if not self.questions:
            raise ValueError(f"corpus {corpus.name!r} must have long texts with answers, got no text")
        self.groups: dict[Head, int] = {  # head -> place of its group in the index
            (*site.key, number): group
            for group, (site, _, numbers) in enumerate(_groups(self.sites))
            for number in numbers
        }
        numbers = [self.groups.get(head, len(self.index)) for head in model.gated]  # after the last for one without
        self.numbers = torch.tensor(numbers, device=model.device)  # [heads]

    @contextmanager
    def losses(self) -> Iterator[Callable[[Question], Loss]]:
        """Yield within the block a function of a text, which returns its loss as a function of gates [group]."""
        gates: list[Tensor] = []
        handle, takes = self.model, inspect.signature(self.model.model.forward).parameters
        with handle.evaluating() as changes, frozen(handle.model, "all"):
            outputs = streams(changes, self.sites, self.pattern)
            recompute(changes, handle, max(text.ids.shape[1] for text in self.questions))
            ones = torch.ones(len(handle.gated), device=handle.device)
            with handle.mask(lambda: gates[0] if gates else ones, outputs):

                def loss(text: Question, values: Tensor) -> Tensor:
                    gates[:] = [F.pad(values, (0, 1), value=1.0)[self.numbers]]
                    size = text.ids.shape[1] - text.answer
                    options = {"logits_to_keep": size + 1} if "logits_to_keep" in takes else {}
                    logits = handle.forward({"input_ids": text.ids}, **options).logits[0, -size - 1 : -1]
                    return F.cross_entropy(logits.float(), text.ids[0, text.answer :])

                yield lambda text: lambda values: loss(text, values)

    def measure(self, gates: Tensor) -> Array:
        """Measure the loss of each answer under gates, in nats per token: [text]."""
        with self.losses() as loss_of, self.model.without_gradients():
            return np.array([float(loss_of(text)(gates.to(self.model.device))) for text in self.questions])

    # How much of the loss is due to each group if all stream at once? A single streaming group shows little, since
    # others stand in for it. So all gates move from 1 to 0 together, and the gradient of the loss at each gate is
    # integrated along this path. The integrals sum to the loss of all streaming minus the loss of none (completeness),
    # but for the error of few points. They take a backward pass for each text and point, however many groups there are.
    def along_path(self, points: int = POINTS) -> Array:
        """Integrate gradients of each loss along gates from 1 to 0, by captum: effects of streaming, [text, group]."""
        from captum.attr import IntegratedGradients

        ones = torch.ones(1, len(self.index), device=self.model.device)
        rows = []
        with self.losses() as loss_of, torch.enable_grad():
            for text in track(self.questions, "gradients of streaming", total=len(self.questions)):
                loss = loss_of(text)
                method = IntegratedGradients(lambda gates: torch.stack([loss(row) for row in gates]))  # noqa: B023 - called here
                options = {"n_steps": points, "method": "riemann_middle", "internal_batch_size": 1}
                rows.append(
                    -method.attribute(ones, torch.zeros_like(ones), **options)[0].detach().double().cpu().numpy()
                )
        return np.stack(rows)

    def one_by_one(self) -> Array:
        """Measure the change of each loss if a single group streams: [text, group]."""
        single = 1 - torch.eye(len(self.index), device=self.model.device)
        rows = []
        with self.losses() as loss_of, self.model.without_gradients():
            for text in track(self.questions, "groups that stream", total=len(self.questions)):
                loss = loss_of(text)
                intact = loss(torch.ones_like(single[0]))
                rows.append([float(loss(gates) - intact) for gates in single])
        return np.array(rows)

    def learned(self, keep: int, *, steps: int, seed: int) -> Array:
        """Learn gates by L0 with all weights frozen, as DuoAttention does by an L1 penalty: P(gate != 0), [group]."""
        firsts: list[Head] = [(*site.key, numbers[0]) for site, _, numbers in _groups(self.sites)]
        places = self.model.gated.get_indexer(pd.MultiIndex.from_tuples(firsts)).tolist()
        gates = L0(freeze="all").gates(self.model.model, firsts, keep, unit="group").train()
        gates.horizon = steps
        optimizer = torch.optim.Adam([gates.log_alpha], lr=RATE(steps))
        order = np.random.default_rng(seed).permutation(np.resize(np.arange(len(self.questions)), steps))
        with torch.random.fork_rng(devices=[]), self.losses() as loss_of, torch.enable_grad():
            torch.manual_seed(seed)
            for number in track(order, "learning gates", total=steps):
                gates.draw()
                assert gates.drawn is not None
                total = loss_of(self.questions[number])(gates.drawn[places]) + gates.penalty()
                optimizer.zero_grad()
                total.backward()
                optimizer.step()
        return gates.eval().chances().detach().double().cpu().numpy()


def recompute(changes: Changes, model: HeadModel, tokens: int) -> None:
    """Keep only the inputs of layers for the backward passes of texts of `LONG` tokens or more."""
    names = dict.fromkeys(site.name.rpartition(".")[0] for site in model.sites) if tokens >= LONG else {}
    for layer in (model.model.get_submodule(name) for name in names if name):
        forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        changes.set(layer, "forward", forward)


def question(sentence: Sentence, number: int, model: HeadModel) -> Question:
    """Return the tokens of a text with its answer; ValueError without one, or if the model has too few positions."""
    read = model.tokenizer
    ids, answer = [*getattr(sentence, "ids", ())], 0
    if isinstance(sentence, Chat):
        (row,) = pieces(read, [sentence], words=False)
        ids = row.ids[: max((number for number, is_in in enumerate(row.in_text, 1) if is_in), default=0)]
        answer = next((place for place, is_in in enumerate(row.of_answer or ()) if is_in), 0)
    elif ids:
        answer = getattr(sentence, "answer", 0)
    elif sentence.target is not None:
        ids = pieces(read, [Sentence(sentence.text)], words=False)[0].ids
        if ids and ids[-1] == read.eos_token_id:
            ids.pop()
        answer = len(ids)
        ids += read(f" {sentence.target.text.strip()}", add_special_tokens=False)["input_ids"]
    if not 0 < answer < len(ids):
        raise ValueError(f"text {number} must have its answer as target, got {sentence.text[:40]!r} without one")
    if len(ids) > (limit := vocabulary.positions(read, model.model)):
        raise ValueError(f"text {number} must have at most {limit} tokens, got {len(ids)}")
    return Question(torch.tensor([ids], device=model.device), answer)


def global_sites(model: HeadModel, pattern: Streaming) -> list[Site]:
    """Return the sites that keep keys for the whole text; ValueError for a model that cannot have a budget."""
    sites, name = model.sites, model.name
    if {site.kind for site in sites} != {"dec-self"}:
        raise ValueError(f"a budget needs a decoder-only model, got {name} with {', '.join(sorted(model.kinds))}")
    if outside := next((site for site in sites if site.outside is not None), None):
        raise ValueError(f"a budget needs transformers' attention interface, got {outside.name} of {name} outside it")
    if sinks := next((site for site in sites if hasattr(site.module, "sinks")), None):
        raise ValueError(f"a budget needs attention without learned sinks, got sinks in {sinks.name} of {name}")
    layers: list[Any] = DynamicCache(config=model.model.config).layers
    kinds = {type(layer).__name__ for layer in layers}
    if len(layers) != len(sites) or kinds - {"DynamicLayer", "DynamicSlidingWindowLayer"}:
        got = f"{len(sites)} attention layers and a cache of {len(layers)} ({', '.join(sorted(kinds)) or 'none'})"
        raise ValueError(f"a budget needs a cache with keys and values of each layer, got {name} with {got}")
    windows = [layer.sliding_window for layer in layers if layer.is_sliding]
    if len(windows) == len(sites):
        raise ValueError(f"a budget needs layers without a window, got {name} with {min(windows)} tokens on each")
    if windows and min(windows) < pattern.recent:
        raise ValueError(f"recent must be at most {min(windows)}, the window of {name}, got {pattern.recent}")
    return [site for site, layer in zip(sites, layers, strict=True) if not layer.is_sliding]


def _groups(sites: Sequence[Site]) -> Iterator[tuple[Site, int, list[int]]]:
    """Yield the groups with remaining heads: their place in the weights, and the numbers of these heads."""
    for site in sites:
        for group, numbers in enumerate(site.groups):
            if remaining := [number for number in numbers if number in site.remaining]:
                yield site, group, remaining


def group_index(sites: Sequence[Site]) -> pd.MultiIndex:
    """Return the index (kind, layer, group) of key-value heads."""
    return pd.MultiIndex.from_tuples([(*site.key, group) for site, group, _ in _groups(sites)], names=GROUP_LEVELS)
