"""Conservation report: which share of a target's relevance layers pass on, biases absorb, and rules lose."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import chain, repeat

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from headroles._distributed import track
from headroles.data.corpus import CorpusLike
from headroles.data.readers import as_corpus
from headroles.models import batching, heads
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel, Model
from headroles.scores import objectives
from headroles.scores.lrp import rules as lrp
from headroles.scores.lrp.context import Rules, Table, applied, check_reached, inside, start, table
from headroles.scores.lrp.rules import Operand, Operation, Rule, plain
from headroles.scores.objectives import Name, Objective, Targets
from headroles.scores.outputs import Output

COLUMNS = ["arrives", "leaves", "source", "biases", "residue"]
STACKS = ("decoder", "encoder")
NOTHING = (
    "the corpus must have steps at which the model predicts a token of the text, got none; try longer texts (a decoder "
    "predicts from the second token on)"
)
Place = tuple[str, int]  # ("encoder" | "decoder", layer), OUTPUT or INPUT
OUTPUT: Place = ("output", 0)
INPUT: Place = ("input", 0)


def conservation(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    rules: Rules = "cp",
    *,
    objective: Name | Objective | None = None,
    max_tokens: int = 4096,
) -> pd.DataFrame:
    """Compute the conservation report of a rule set on a corpus.

    All steps of a batch are sent back at once. The rules of Voita, which are not linear, thus give the numbers of the
    sum of the steps, not the mean of the numbers of each step.

    Args:
        model: the model.
        tokenizer: tokenizer of the model.
        corpus: the sentences; every step of each counts.
        rules: name of the rule set (`headroles.scores.lrp.context.table`).
        objective: name or instance of the target; default: the model's own.
        max_tokens: upper bound on tokens per batch and side, padding included.

    Returns:
        The report of `balance`, with one row per layer; `totals` sums it up in three numbers.

    Raises:
        ValueError: if no step of the corpus has a target.
    """
    handle = HeadModel.of(model, tokenizer)
    encoded = handle.tokenised(as_corpus(corpus))
    with handle.evaluating():
        target = objectives.objective(objective, handle).fit(handle, handle.batches(encoded, max_tokens=max_tokens))
        batches, count = handle.batches(encoded, max_tokens=max_tokens), len(batching.groups(encoded, max_tokens))
        made = (report(handle, target, batch, rules) for batch in track(batches, "balance", count))
        reports = [table for table in made if table.attrs["explained"]]
    if not reports:
        raise ValueError(NOTHING)
    total = sum(table.attrs["explained"] for table in reports)
    shares = [table.attrs["explained"] / total * table for table in reports]
    mean: pd.DataFrame = pd.concat(shares).groupby(level=["part", "layer"], sort=False).sum()
    mean.attrs = {"explained": total}
    return mean


def report(model: HeadModel, target: Targets, batch: Batch, rules: Rules = "cp") -> pd.DataFrame:
    """Compute the report of `balance` on all targets of a batch, with the sum of their sizes in `attrs["size"]`."""
    sizes: list[Tensor] = []

    def total(output: Output) -> Tensor:
        explained = target.targets(output, batch)
        values = torch.where(explained.counted, explained.values, 0.0)
        started = values * start(values.detach(), rules)
        sizes.append(started.detach().double().abs().sum())
        return started.sum()

    table = balance(model, batch.inputs, total, rules)
    table.attrs["size"] = float(sizes[0])
    return table


def balance(
    model: HeadModel, inputs: Mapping[str, Tensor], total: Callable[[Output], Tensor], rules: Rules = "cp"
) -> pd.DataFrame:
    """Compute where the relevance of `total`, a number computed from the model's output, ends up, layer by layer.

    Returns:
        One row per layer, from output to input, as shares of the target. `arrives`: relevance of the layer's output;
        `leaves`: relevance of its input, in the row "input" of the embeddings; `source`: relevance that a decoder layer
        passes to the source by cross-attention; `biases`: relevance that biases absorb; `residue`: arrives - leaves -
        source - biases, 0 for a conserving rule set. The row "output" is everything above the last layers, where the
        relevance of the source arrives again. Keys and values that later layers reuse are part of the stream.
    """
    recorder = _Recorder(model)
    rows = {**table(rules)}
    with applied(model, rows | recorder.rules(rows)) as changes, torch.enable_grad():
        for layer, part in recorder.layers.items():
            changes.hook(layer, partial(recorder.before, part), with_kwargs=True)
            changes.hook(layer, recorder.after, after=True, with_kwargs=True)
        inputs = {  # token ids are recorded at the embedding
            name: recorder.entry(INPUT, "leaves", value) if value.is_floating_point() and "mask" not in name else value
            for name, value in inputs.items()
        }
        output = model.forward(inputs)
        with inside(model):
            value = total(output)
    return recorder.report(value)


def totals(report: pd.DataFrame) -> dict[str, float]:
    """Return the shares of a report that "inputs" receive, "biases" absorb, and rules lose ("residue"): 1 in sum."""
    inputs, biases = float(report["leaves"].iloc[-1]), float(report["biases"].sum())
    return {"inputs": inputs, "biases": biases, "residue": 1 - inputs - biases}


def worst(report: pd.DataFrame) -> tuple[str, float]:
    """Return the module with the largest residue in a report of `balance`, and the residue.

    In some families (XLM) a layer is its attention only, and the stream passes outside: the rows "output" and "input"
    and what is lost between layers are then a single residue.
    """
    residues = report["residue"]
    between = totals(report)["residue"] - float(residues.sum())
    names = {OUTPUT: "what follows the last layers", INPUT: "what precedes the first layer", **report.attrs["modules"]}
    if abs(between) > 1e-4:
        outside = residues[OUTPUT] + residues[INPUT] + between
        residues = residues.drop(INPUT)
        residues[OUTPUT], names[OUTPUT] = outside, "what is outside the layers"
    row = int(residues.abs().to_numpy().argmax())
    return names[residues.index[row]], float(residues.iloc[row])


class _Recorder:
    """Records, during one forward pass, the tensors of the report and the layer that is running."""

    # The relevance of a tensor x is the sum of x times its gradient, so that the report needs one backward pass to all
    # tensors at which relevance is counted. Hooks collect them: before a layer its stream and the states of the source,
    # after it its output. The rules below replace operations, and turn every constant that takes a share (embeddings,
    # biases, positions) into a leaf. What is between layers belongs to the row "input" until a layer has run, and then
    # to "output".

    def __init__(self, model: HeadModel) -> None:
        kinds = heads.layers(model.model)
        self.layers = {layer: "encoder" if kind == "enc-self" else "decoder" for layer, kind in kinds.items()}
        self.names = {module: name for name, module in model.model.named_modules()}
        self.modules: dict[Place, str] = {}  # names of the layers that have run
        self.entries: list[tuple[Place, str, Tensor]] = []  # row, column, tensor
        self.calls: Counter[str] = Counter()
        self.here: Place = INPUT

    def entry(self, place: Place, column: str, tensor: Tensor) -> Tensor:
        """Record a leaf with the values of `tensor` and return it."""
        leaf = tensor.detach().requires_grad_()
        self.entries.append((place, column, leaf))
        return leaf.clone()  # some families change it in place

    def before(
        self, part: str, layer: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Record a layer's arguments: first the stream, then the states of the source."""
        self.here = (part, self.calls[part])
        self.modules[self.here] = self.names[layer]
        self.calls[part] += 1
        columns = chain(["leaves"], repeat("source"))
        self._tap_shared(args, kwargs, "leaves")
        positional = tuple(self._tapped(value, columns) for value in args)
        return positional, {name: self._tapped(value, columns) for name, value in kwargs.items()}

    def after(
        self, _: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: Tensor | tuple[Tensor, ...]
    ) -> None:
        """Record a layer's output."""
        self.entries.append((self.here, "arrives", output if isinstance(output, Tensor) else output[0]))
        self._tap_shared(args, kwargs, "arrives")
        self.here = OUTPUT

    def _tapped(self, value: object, columns: Iterator[str]) -> object:
        if not (isinstance(value, Tensor) and value.requires_grad):
            return value
        tap = value.view_as(value)
        self.entries.append((self.here, next(columns), tap))
        return tap

    def _tap_shared(self, args: tuple[object, ...], kwargs: dict[str, object], column: str) -> None:
        """Record keys and values that later layers reuse: states in the mappings among a layer's arguments."""
        for mapping in (value for value in (*args, *kwargs.values()) if isinstance(value, MutableMapping)):
            for key, states in mapping.items():
                if isinstance(states, tuple):
                    mapping[key] = tuple(self._tapped(state, repeat(column)) for state in states)

    def rules(self, base: Table) -> dict[Operation, Rule]:
        """Return rules that record embeddings, summands, concatenated tensors and biases, then apply `base`."""
        with_bias = (  # functions, and the place of the bias among their arguments
            (lrp.LINEAR, 2),
            ((*lrp.NORM, *lrp.GROUP_NORM), 3),
            ((torch.addmm, Tensor.addmm), 0),
        )
        rules: dict[Operation, Rule] = {F.embedding: self._embedded, torch.cat: self._joined}
        rules |= {func: partial(self._added, base.get(func, plain)) for func in (*lrp.ADD, *lrp.SUBTRACT)}
        rules |= {func: partial(self._normed, base.get(func, plain)) for func in (F.batch_norm, torch.batch_norm)}
        for functions, place in with_bias:
            rules |= {func: partial(self._with_bias, base.get(func, plain), place) for func in functions}
        return rules

    def _embedded(self, func: Rule, *args: object, **kwargs: object) -> Tensor:
        if self.here == OUTPUT:  # the decoder's embeddings, after the encoder
            self.here = INPUT
        return self.entry(INPUT, "leaves", func(*args, **kwargs))

    def _joined(self, func: Rule, tensors: Sequence[Tensor], *args: object, **kwargs: object) -> Tensor:
        if any(tensor.requires_grad for tensor in tensors):
            tensors = [x if x.requires_grad else self.entry(INPUT, "leaves", x) for x in tensors]
        return func(tensors, *args, **kwargs)

    def _added(self, rule: Rule, func: Rule, a: Operand, b: Operand, *args: object, **kwargs: object) -> Tensor:
        if rule is plain and isinstance(a, Tensor) and a.requires_grad and isinstance(b, int | float):
            b = torch.full_like(a, b)  # a constant of the code, such as the 1 in (1 + up) gate
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            biases = rule is plain  # a rule for sums gives them none
            a, b = self._constant(a, b, biases=biases), self._constant(b, a, biases=biases)
        return rule(func, a, b, *args, **kwargs)

    def _normed(self, rule: Rule, func: Rule, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        y = rule(func, x, *args, **kwargs)
        if not x.requires_grad:
            return y
        shift = self.entry(self.here, "biases", func(torch.zeros_like(x), *args, **kwargs))
        return y + (shift - shift.detach())  # the bits of y

    def _constant(self, tensor: Tensor, stream: Tensor, *, biases: bool) -> Tensor:
        """Record a constant added to the stream: a position if it has a row for each token, otherwise a bias."""
        if tensor.requires_grad or not (stream.requires_grad and tensor.is_floating_point()):
            return tensor
        by_token = min(tensor.ndim, stream.ndim) > 1 and tensor.shape[-2] == stream.shape[-2] > 1
        if by_token and self.here == INPUT:
            return self.entry(INPUT, "leaves", tensor)
        return self.entry(self.here, "biases", tensor) if biases else tensor

    def _with_bias(self, base: Rule, place: int, func: Rule, *args: object, **kwargs: object) -> Tensor:
        positional = list(args)
        if len(args) > place and isinstance(bias := args[place], Tensor):
            positional[place] = self.entry(self.here, "biases", bias)
        elif isinstance(bias := kwargs.get("bias"), Tensor):
            kwargs["bias"] = self.entry(self.here, "biases", bias)
        return base(func, *positional, **kwargs)

    def report(self, target: Tensor) -> pd.DataFrame:
        """Compute the report from the gradients of the target."""
        check_reached(target)
        entries = [entry for entry in self.entries if entry[2].requires_grad]  # some models run in part without
        gradients = torch.autograd.grad(target, [tensor for _, _, tensor in entries], allow_unused=True)
        sums: dict[tuple[Place, str], float] = defaultdict(float)
        for (place, column, tensor), c in zip(entries, gradients, strict=True):
            if c is not None:  # masks hold infinities, with gradient 0
                sums[place, column] += float(torch.where(c == 0, 0.0, c.double() * tensor.detach().double()).sum())
        parts: list[list[Place]] = [[(part, i) for i in reversed(range(self.calls[part]))] for part in STACKS]
        ends = [(part[0], part[-1]) for part in parts if part]
        total = float(target.detach().double())
        source = sum(sums[place, "source"] for part in parts for place in part)
        sums[OUTPUT, "arrives"] = total + (source if all(parts) else 0)
        sums[OUTPUT, "leaves"] = sum(sums[last, "arrives"] for last, _ in ends)
        sums[INPUT, "arrives"] = sum(sums[first, "leaves"] for _, first in ends) + (0 if all(parts) else source)
        places = [OUTPUT, *parts[0], *parts[1], INPUT]
        divisor = total or math.nan  # a target of 0 has no shares
        values = [[sums[place, column] / divisor for column in COLUMNS[:-1]] for place in places]
        index = pd.MultiIndex.from_tuples(places, names=["part", "layer"])
        report = pd.DataFrame(values, index=index, columns=COLUMNS[:-1])
        report["residue"] = report["arrives"] - report[["leaves", "source", "biases"]].sum(axis=1)
        report.attrs |= {"explained": total, "modules": self.modules}
        return report
