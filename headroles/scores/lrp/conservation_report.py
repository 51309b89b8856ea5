"""The conservation report: where the relevance of what is explained ends up, layer by layer."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles._progress import track
from headroles.data.corpus import Corpus
from headroles.models import attention_hooks, batching, heads
from headroles.models.batching import Batch
from headroles.models.dummy_inputs import without_cache
from headroles.scores import objectives
from headroles.scores.lrp.composites import Rules, check_reached, start, table
from headroles.scores.lrp.context import enter, inside
from headroles.scores.lrp.rules import ADD, GROUP_NORM, LINEAR, NORM, SUBTRACT, Rule
from headroles.scores.objectives import Explain, Name, Objective

COLUMNS = ["arrives", "leaves", "source", "biases", "residue"]
STACKS = ("decoder", "encoder")
NOTHING = "nothing to explain: every step of the corpus is padding or comes after the end token"
Place = tuple[str, int]  # ("encoder" | "decoder", layer), OUTPUT or INPUT
OUTPUT: Place = ("output", 0)
INPUT: Place = ("input", 0)


def conservation(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    rules: Rules = "cp",
    *,
    epsilon: float = 0.0,
    objective: Name | Objective | None = None,
    max_tokens: int = 4096,
) -> pd.DataFrame:
    """The report of `balance` over a whole corpus, every step of which is explained; `totals` has it in three numbers.

    Its rows are no heads but layers. Raises ValueError as `headroles.score` does.
    """
    encoded = batching.encode(corpus, tokenizer, model, words=False)
    with attention_hooks.evaluating(model):
        explain = objectives.objective(objective, model).explain(
            model, lambda: batching.batches(encoded, model, max_tokens=max_tokens)
        )
        groups = track(
            batching.batches(encoded, model, max_tokens=max_tokens),
            "balance",
            len(batching.groups(encoded, max_tokens)),
        )
        reports = [report(model, explain, batch, rules, epsilon=epsilon) for batch in groups]
    reports = [one for one in reports if one.attrs["explained"]]
    if not reports:
        raise ValueError(NOTHING)
    whole = sum(one.attrs["explained"] for one in reports)
    shares = [one.attrs["explained"] / whole * one for one in reports]
    found: pd.DataFrame = pd.concat(shares).groupby(level=["part", "layer"], sort=False).sum()
    found.attrs = {"explained": whole}
    return found


def report(
    model: PreTrainedModel, explain: Explain, batch: Batch, rules: Rules = "cp", *, epsilon: float = 0.0
) -> pd.DataFrame:
    """The report of `balance` on all that is explained of a batch."""

    def whole(output: Any) -> Tensor:
        explained = explain(output, batch)
        values = torch.where(explained.counted, explained.values, 0.0)
        return (values * start(values.detach(), rules)).sum()

    return balance(model, batch.inputs, whole, rules, epsilon=epsilon)


def balance(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    whole: Callable[[Any], Tensor],
    rules: Rules = "cp",
    *,
    epsilon: float = 0.0,
) -> pd.DataFrame:
    """Where the relevance of a number `whole(output)` goes: a row per layer, from the output to the input.

    As shares of what is explained: what `arrives` at a layer's output; what `leaves` it for the layer below (in the
    row "input": for the embeddings of tokens and positions); what a decoder layer sends to the `source` by
    cross-attention; what its `biases` absorb; and the `residue`, arrives - leaves - source - biases, which a conserving
    rule set leaves at 0. The row "output" is all above the last layers, and counts what comes back from the source.
    """
    book = _Book(model)
    rows = {**table(rules, epsilon)}
    with torch.enable_grad(), ExitStack() as stack:
        enter(stack, model, rows | book.openings(rows))
        for layer, part in book.layers.items():
            stack.callback(layer.register_forward_pre_hook(book.enters(part), with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(book.left).remove)
        output = model(**book.opened(inputs), **without_cache(model))
        with inside(model):
            total = whole(output)
    return book.closed(total)


def totals(report: pd.DataFrame) -> dict[str, float]:
    """What reaches the inputs, what all biases absorb, and the residue: shares that sum to 1."""
    reached, absorbed = float(report["leaves"].iloc[-1]), float(report["biases"].sum())
    return {"inputs": reached, "biases": absorbed, "residue": 1 - reached - absorbed}


class _Entry(NamedTuple):
    """A tensor whose relevance is asked for, and where it counts."""

    place: Place
    column: str
    tensor: Tensor


class _Book:
    """Follows one forward: which layer is running, and the tensors whose relevance makes the report."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.layers = model, _layers(model)
        self.entries: list[_Entry] = []
        self.calls: Counter[str] = Counter()
        self.here: Place = INPUT  # between layers: the input until one has run, the output after it

    def opened(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of the model, pixels and sounds as entries (token ids become so when they are looked up)."""
        return {
            name: self.entry(INPUT, "leaves", given) if given.is_floating_point() and "mask" not in name else given
            for name, given in inputs.items()
        }

    def entry(self, place: Place, column: str, tensor: Tensor) -> Tensor:
        """A leaf with the values of `tensor`, entered."""
        leaf = tensor.detach().requires_grad_()
        self.entries.append(_Entry(place, column, leaf))
        return leaf.clone()  # some families change it in place

    def enters(self, part: str) -> Callable[..., Any]:
        """A hook before a layer: its arguments are entered, the first as the stream, others as the source's states."""

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self.here = (part, self.calls[part])
            self.calls[part] += 1
            columns = _after("leaves", "source")
            given = tuple(self._tapped(one, columns) for one in args)
            return given, {name: self._tapped(one, columns) for name, one in kwargs.items()}

        return hook

    def left(self, _: nn.Module, __: Any, output: Any) -> None:
        """A hook after a layer: its output is entered."""
        self.entries.append(_Entry(self.here, "arrives", output if isinstance(output, Tensor) else output[0]))
        self.here = OUTPUT

    def openings(self, base: Mapping[Any, Rule]) -> dict[Any, Rule]:
        """Rules that enter what is looked up, added and concatenated, and then do as `base` says."""

        def looked_up(func: Rule, *args: Any, **kwargs: Any) -> Tensor:
            if self.here == OUTPUT:  # the decoder's embeddings, after the encoder
                self.here = INPUT
            return self.entry(INPUT, "leaves", func(*args, **kwargs))

        def added(func: Rule, a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
            rule = base.get(func, _plain)
            if rule is _plain and isinstance(a, Tensor) and a.requires_grad and isinstance(b, int | float):
                b = torch.full_like(a, b)  # a constant of the code, such as the 1 in (1 + up) gate
            if isinstance(a, Tensor) and isinstance(b, Tensor):
                biases = rule is _plain  # a rule for sums gives them none
                a, b = self._constant(a, b, biases=biases), self._constant(b, a, biases=biases)
            return rule(func, a, b, *args, **kwargs)

        def joined(func: Rule, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if any(one.requires_grad for one in tensors):
                tensors = [one if one.requires_grad else self.entry(INPUT, "leaves", one) for one in tensors]
            return func(tensors, *args, **kwargs)

        def normalised(func: Rule, x: Tensor, *args: Any, **kwargs: Any) -> Any:
            y = base.get(func, _plain)(func, x, *args, **kwargs)
            if not x.requires_grad:
                return y
            shift = self.entry(self.here, "biases", func(torch.zeros_like(x), *args, **kwargs))
            return y + (shift - shift.detach())  # the bits of y

        opened: dict[Any, Rule] = {F.embedding: looked_up, torch.cat: joined} | dict.fromkeys((*ADD, *SUBTRACT), added)
        opened |= dict.fromkeys((F.batch_norm, torch.batch_norm), normalised)
        opened |= {func: self._with_bias(base.get(func, _plain), 2) for func in LINEAR}
        opened |= {func: self._with_bias(base.get(func, _plain), 3) for func in (*NORM, *GROUP_NORM)}
        opened |= {func: self._with_bias(base.get(func, _plain), 0) for func in (torch.addmm, Tensor.addmm)}
        return opened

    def closed(self, total: Tensor) -> pd.DataFrame:
        """The report."""
        check_reached(total)
        found = torch.autograd.grad(total, [entry.tensor for entry in self.entries], allow_unused=True)
        sums: dict[tuple[Place, str], float] = defaultdict(float)
        for (place, column, tensor), c in zip(self.entries, found, strict=True):
            if c is not None:  # masks hold infinities, to which nothing flows back
                sums[place, column] += float(torch.where(c == 0, 0.0, c.double() * tensor.detach().double()).sum())
        parts: list[list[Place]] = [[(part, i) for i in reversed(range(self.calls[part]))] for part in STACKS]
        ends = [(part[0], part[-1]) for part in parts if part]
        whole = float(total.detach().double())
        sums[OUTPUT, "arrives"] = whole + sum(sums[place, "source"] for part in parts for place in part)
        sums[OUTPUT, "leaves"] = sum(sums[last, "arrives"] for last, _ in ends)
        sums[INPUT, "arrives"] = sum(sums[first, "leaves"] for _, first in ends)
        places = [OUTPUT, *parts[0], *parts[1], INPUT]
        shared = whole or math.nan  # nothing explained has no shares
        values = [[sums[place, column] / shared for column in COLUMNS[:-1]] for place in places]
        index = pd.MultiIndex.from_tuples(places, names=["part", "layer"])
        report = pd.DataFrame(values, index=index, columns=COLUMNS[:-1])
        report["residue"] = report["arrives"] - report[["leaves", "source", "biases"]].sum(axis=1)
        report.attrs["explained"] = whole
        return report

    def _tapped(self, given: Any, columns: Iterator[str]) -> Any:
        if not (isinstance(given, Tensor) and given.requires_grad):
            return given
        tap = given.view_as(given)
        self.entries.append(_Entry(self.here, next(columns), tap))
        return tap

    def _constant(self, one: Tensor, other: Tensor, *, biases: bool) -> Tensor:
        """A constant that is added to the stream: a position where it has a row for each token, otherwise a bias."""
        if one.requires_grad or not (other.requires_grad and one.is_floating_point()):
            return one
        if one.ndim > 1 and other.ndim > 1 and one.shape[-2] == other.shape[-2] > 1 and self.here == INPUT:
            return self.entry(INPUT, "leaves", one)
        return self.entry(self.here, "biases", one) if biases else one

    def _with_bias(self, base: Rule, place: int) -> Rule:
        def rule(func: Rule, *args: Any, **kwargs: Any) -> Any:
            given = list(args)
            if len(given) > place and isinstance(given[place], Tensor):
                given[place] = self.entry(self.here, "biases", given[place])
            elif isinstance(kwargs.get("bias"), Tensor):
                kwargs["bias"] = self.entry(self.here, "biases", kwargs["bias"])
            return base(func, *given, **kwargs)

        return rule


def _layers(model: PreTrainedModel) -> dict[nn.Module, str]:
    """The layers that hold the attention sites, and the stack they are of."""
    found = ((heads.layer_of(model, site), site.kind) for site in heads.attention_sites(model))
    return {layer: "encoder" if kind == "enc-self" else "decoder" for layer, kind in found if layer is not None}


def _after(first: str, rest: str) -> Iterator[str]:
    yield first
    while True:
        yield rest


def _plain(func: Rule, *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)
