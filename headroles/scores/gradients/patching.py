"""Attribution patching: what patching a head would change, to first order, with the corrections of AtP*."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd import Function

from headroles._changes import Changes
from headroles.data.corpus import partners
from headroles.models.attention_hooks import AttentionCall, eager, observe_attention
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.models.heads import layer_of, layers
from headroles.models.masking import read_heads
from headroles.models.replacements import Word
from headroles.models.sites import Site
from headroles.scores.gradients.base import GradientScore, HeadGradients
from headroles.scores.lrp import lrp_rules
from headroles.scores.objectives import Explained, Targets
from headroles.scores.outputs import Output
from headroles.tables.arguments import one_of
from headroles.tables.frame import Kind

Node = Literal["output", "query", "key"]
Patch = Literal["zero", "resample"]


@dataclass(frozen=True)
class AttributionPatching(GradientScore):
    """Effect of patching each head on the target (averaged over steps), from gradients: AtP* (Kramár et al. 2024).

    The effect is (z - patched z) times the gradient of the target at the head's output z (AtP; the source has the other
    sign). A node is a head at all tokens of an example, in the source a head at one token. Patched queries or keys pass
    through the softmax again, so that saturated attention hides nothing (QK fix). With GradDrop the effect is computed
    once for each layer, with a gradient that skips what this layer adds to the residual stream, so that a direct and
    an indirect effect do not cancel. The layer of the head itself gives 0: sums over L layers are divided by L - 1.
    With a norm after the sum (BERT, Marian), a layer adds its output minus its input. (arXiv 2403.00745; the authors
    published no code. Formulas were checked in the abstract and in two other implementations, not in the full text, so
    no sections are cited.)

    Columns are `attribution[AtP*]`, the mean effect with its sign, and `attribution[AtP*].size`, the mean absolute
    effect: over examples, of the mean of |effect| over dropped layers. "query", "key" and "resample" follow the name.

    Args:
        node: what is patched: the head's "output", its "query" or its "key" vectors at all tokens. Heads that share
            keys are patched one by one.
        drop: whether to use GradDrop (AtP*, not AtP).
        replacement: "zero", or "resample": from another example of similar length, at the tokens that both have.
        seed: seed of the draw of the other examples.
        objective: name or instance of the target; default: the model's own.
    """

    node: Node = "output"
    drop: bool = True
    replacement: Word | Patch = "zero"
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("node", self.node, get_args(Node))
        one_of("replacement", self.replacement, get_args(Patch))

    @property
    def label(self) -> str:
        """Column name, with the options."""
        words = [f"AtP{'*' * self.drop}", self.node * (self.node != "output"), self.replacement.replace("zero", "")]
        return f"attribution[{' '.join(filter(None, words))}]"

    def fit(self, model: HeadModel, batches: Iterable[Batch]) -> Targets:
        """Return an object that computes the targets, with the partners of all examples."""
        sites, name = model.sites, model.name
        outside = next((site.name for site in sites if site.outside), None)
        if self.node != "output" and outside:
            raise ValueError(
                f"node must be 'output' for {name}, which attends outside transformers' attention interface in "
                f"{outside}, got {self.node!r}"
            )
        layers = {(layer_of(model.model, site), site.call_index) for site in sites}
        if self.drop and (len(layers) < 2 or any(layer is None for layer, _ in layers)):
            raise ValueError(f"GradDrop needs two layers that are modules, got {name}; try drop=False, or method='AtP'")
        kept = list(batches) if self.replacement == "resample" else []
        return _Paired(super().fit(model, kept or batches), kept, self.seed)

    def head_gradients(self, model: HeadModel, target: Targets, batch: Batch) -> HeadGradients:
        """Compute the effects with each layer dropped, or with none, as the steps of an example."""
        assert isinstance(target, _Paired)
        sources = [(rows, source, _states(model, source, self.node)) for rows, source in target.sources(batch)]
        patch, drops = _Patching(model, self.node, sources, self.replacement), _Drops()
        gates = torch.ones(len(batch.numbers), len(model.gated), device=model.device, requires_grad=True)
        plain = self.node == "output" and self.replacement == "zero"
        mask = model.mask(gates, replacement=None if plain else patch)
        with lrp_rules(model, "gradient") as changes, mask, torch.enable_grad():
            if self.drop:
                drops.on(changes, model)
            if self.node != "output":
                observe_attention(changes, patch.attended)
            explained = target.targets(model.forward(batch), batch)
            values = torch.where(explained.counted, explained.values, 0.0).sum(-1)
            values = values / explained.counted.sum(-1).clamp(min=1)
            gradients: list[Tensor] = []
            for layer in range(drops.calls) if self.drop else [None]:
                drops.dropped = layer
                gradients += torch.autograd.grad(values.sum(), gates, retain_graph=True)
        counted = explained.counted.any(-1, keepdim=True).expand(-1, len(gradients))
        scale = len(gradients) / (len(gradients) - 1) if self.drop else 1.0  # a mean over L - 1 layers
        return HeadGradients(None, scale * torch.stack(gradients, 1), values.detach()[:, None] * counted, counted)


class _Paired:
    """Targets of batches, and for each example the example from which it is patched, its partner."""

    def __init__(self, target: Targets, batches: list[Batch], seed: int) -> None:
        self.target, self.batches = target, batches
        places = sorted(
            (number, place, row) for place, batch in enumerate(self.batches) for row, number in enumerate(batch.numbers)
        )
        self.partner: dict[int, tuple[int, int]] = {}  # sentence number -> batch, row
        if places:
            pairs = partners([self._lengths(place, row) for _, place, row in places], seed)
            self.partner = {number: places[pair][1:] for (number, _, _), pair in zip(places, pairs, strict=True)}

    def targets(self, output: Output, batch: Batch, /) -> Explained:
        """Compute the targets."""
        return self.target.targets(output, batch)

    def sources(self, batch: Batch) -> Iterator[tuple[Tensor, Batch]]:
        """Yield rows of a batch, and their partners as a batch, for each batch with partners."""
        places = [self.partner[number] for number in batch.numbers] if self.partner else []
        for place in dict.fromkeys(place for place, _ in places):
            rows = [row for row, (partner_place, _) in enumerate(places) if partner_place == place]
            device = batch.source.ids.device
            partner_rows = torch.tensor([places[row][1] for row in rows], device=device)
            yield torch.tensor(rows, device=device), self.batches[place].take(partner_rows)

    def _lengths(self, place: int, row: int) -> tuple[int, ...]:
        batch = self.batches[place]
        views = [batch.source, *([batch.target] if batch.target is not None and not batch.is_generated else [])]
        return tuple(int(view.attention_mask[row].sum()) for view in views)


def _states(model: HeadModel, batch: Batch, node: Node) -> list[Tensor]:
    """Return the outputs, queries or keys of all heads, call by call: [batch, token, heads, size] each."""
    states: list[Tensor] = []

    def keep(call: AttentionCall) -> None:
        states.append((call.query if node == "query" else call.key).transpose(1, 2))

    with Changes(model.model) as changes, torch.no_grad():
        if node == "output":
            read_heads(changes, model.sites, lambda _, z: states.append(z))
        else:
            observe_attention(changes, keep)
        model.forward(batch)
    return states


class _Patching:
    """Outputs of patched heads, made during a forward pass of the intact model."""

    def __init__(
        self, model: HeadModel, node: Node, sources: Sequence[tuple[Tensor, Batch, list[Tensor]]], replacement: str
    ) -> None:
        self.node, self.sources, self.replacement = node, sources, replacement
        self.sites: dict[nn.Module, Site] = {site.module: site for site in model.sites}
        self.outputs: dict[nn.Module, Tensor] = {}
        self.calls = 0

    def __call__(self, site: Site, z: Tensor) -> Tensor:
        """Return the output of the heads of a site, patched: [batch, query, heads, size]."""
        return self._filled(z, site.kind) if self.node == "output" else self.outputs.pop(site.module)

    def attended(self, call: AttentionCall) -> None:
        """Attend again with patched queries or keys."""
        vectors = (call.query if self.node == "query" else call.key).transpose(1, 2)
        with torch.no_grad():
            site = self.sites.get(call.module)
            patched = self._filled(vectors, site.kind if site else "enc-self").transpose(1, 2)
            query, key = (patched, call.key) if self.node == "query" else (call.query, patched)
            outputs = eager(call.module)(call.module, query, key, call.value, call.mask, **call.options)[0]
            self.outputs[call.module] = site.join(outputs, 2) if site else outputs

    def _filled(self, vectors: Tensor, kind: Kind) -> Tensor:
        """Replace states [batch, token, heads, size] by zero, or by the states of partners at common tokens."""
        number, self.calls = self.calls, self.calls + 1
        if self.replacement == "zero":
            return torch.zeros_like(vectors)
        filled = vectors.detach().clone()
        for rows, source, states in self.sources:
            view = source.keys(kind) if self.node == "key" else source.queries(kind)
            common = min(vectors.shape[1], view.attention_mask.shape[1])
            mask = view.attention_mask[:, :common, None, None].to(vectors.device)
            filled[rows, :common] = torch.where(mask, states[number][:, :common].to(vectors), filled[rows, :common])
        return filled


class _Drops:
    """The layers of a model; the gradient skips one of them."""

    # A layer's output is its input plus what the layer adds. `_Residual` keeps the forward value, and in the backward
    # pass sends the gradient either through the layer or, in the dropped layer, straight to the layer's input. One
    # forward pass thus serves the backward passes of all dropped layers.

    def __init__(self) -> None:
        self.calls = 0  # of layers in the forward pass
        self.dropped: int | None = None  # the call that is dropped

    def on(self, changes: Changes, model: HeadModel) -> None:
        """Let the gradient skip any layer of a model, for one forward pass."""
        for layer in layers(model.model):
            changes.hook(layer, self._hook, after=True, with_kwargs=True)

    def _hook(
        self, _: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor | tuple[Tensor, ...]
    ) -> Tensor | tuple[Tensor, ...]:
        number, self.calls = self.calls, self.calls + 1
        before = args[0] if args else kwargs["hidden_states"]
        parts = output if isinstance(output, tuple) else (output,)
        if before.shape != parts[0].shape:
            raise ValueError(
                f"GradDrop needs layers that keep the shape of states, got one from {list(before.shape)} to "
                f"{list(parts[0].shape)}; try drop=False, or method='AtP'"
            )
        after: Tensor = _Residual.apply(before, parts[0], lambda: self.dropped == number)
        return (after, *parts[1:]) if isinstance(output, tuple) else after


class _Residual(Function):
    """The output of a layer; the gradient passes through the layer, or skips it."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, after: Tensor, is_dropped: Callable[[], bool]) -> Tensor:
        """Return the layer's output."""
        ctx.is_dropped = is_dropped
        return after.view_as(after)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Pass the gradient to the layer's input, with zeros for a layer in parts, or to its output."""
        return (gradient, torch.zeros_like(gradient), None) if ctx.is_dropped() else (None, gradient, None)
