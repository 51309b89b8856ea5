"""Circuits: copying, succession, composition of heads, by their weights alone, and the matrices read for them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.analysis.intervals import wilson
from headroles.data.probes import CLASSES, ordered_runs
from headroles.models.attention_hooks import Call, attending
from headroles.models.dummy_inputs import dummy_inputs
from headroles.models.head_model import HeadModel, Model
from headroles.models.heads import layer_of, layers
from headroles.models.sites import Site
from headroles.models.tokens.vocabulary import check_fit
from headroles.scores.lrp import lrp_rules
from headroles.scores.outputs import has_vocabulary
from headroles.scores.value_norms import output_weight, unreadable
from headroles.tables import frame
from headroles.tables.frame import Kind
from headroles.tables.study import Study, study_at

OPTIONS = ("circuits", "identity", "classes")  # fields of cache keys in which columns of one table differ
COLUMNS = ["kind", "layer", "head", "to_layer", "to_head", "query", "key", "value"]


def copying(model: Model, *, study: Study | str | Path | None = None) -> pd.DataFrame:
    """Compute the OV copying score of every decoder self-attention head.

    The score is the sum of the eigenvalues of the full OV circuit W_U W_O W_V W_E, divided by the sum of their absolute
    values: 1 if every token raises its own logit, -1 if it lowers it (Elhage et al. 2021, "A mathematical framework for
    transformer circuits", "Detecting Copying Behavior"). The source calls positive eigenvalues evidence, no proof, and
    has no threshold. The circuit is vocabulary by vocabulary; the eigenvalues that are not 0 are those of
    W_V W_E W_U W_O, size of a head by size of a head. The norm before the layer and the final norm are in the maps with
    a frozen scale, a norm after attention (Gemma, OLMo 2) is not.

    Args:
        model: a decoder or an encoder-decoder with an unembedding.
        study: study or folder that keeps the column in its table `circuits`; if it has it, nothing is computed.

    Returns:
        One row per head with the column `copying`; NaN for encoder and cross-attention heads, and for a head that
        writes nothing. The score is exact for these weights, and the weights are no sample: there is no interval.

    Raises:
        ValueError: if the model has no decoder, no unembedding, or maps that cannot be read.
    """
    handle = HeadModel.of(model)
    if study is not None:
        key = handle.cache_key(circuits="copying")
        return study_at(study).keep("circuits", key, lambda: copying(handle), joined=OPTIONS)
    circuits, final = _to_logits(handle, "copying")
    words, logits = _embeddings(handle)
    if words.shape[1] != final.shape[1]:
        name = handle.name
        raise ValueError(f"copying needs embeddings as wide as the layers: got {name}, with a map between")
    rows = min(len(words), len(logits))
    through = words[:rows].mT @ logits[:rows] @ final  # W_E W_U and the final norm: [width, width]
    values = []
    for site in handle.sites:
        if site.kind == "dec-self" and site.heads:
            maps = circuits.maps[site.key]
            values += _shares(maps.value @ through @ maps.out.mT)
        else:
            values += [float("nan")] * site.heads
    return frame.table({"copying": values}, handle.index, handle.provenance(score="copying"))


def succession(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    *,
    classes: Sequence[str] = tuple(CLASSES),
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Compute the share of ordered words that a head's OV circuit maps to their successor: "Monday" to "Tuesday".

    The circuit is W_U W_O W_V MLP_0(W_E), without attention: of all words of a class, the next one has the largest
    logit (Gould et al. 2023, "Successor heads", arXiv 2312.09230). A head with a score above 0.5 is a successor head.
    (The successor score, "proportion of tokens where succession occurs", is in the source's figure 2; the threshold was
    checked in an account by others, not in the full text.) MLP_0(W_E) is what the first layer adds to a word
    alone, with its attention set to 0; a position is in it where the model adds one to its embeddings. Norms are in the
    maps with a frozen scale. The source has more forms of each word, with capitals and without space.

    Args:
        model: a decoder with an unembedding.
        tokenizer: its tokenizer.
        classes: "days", "months", "numbers", "ordinals", "digits", "letters". Of each, the longest run of words is used
            that are one token each; a class without three is left out.
        study: study or folder that keeps the column in its table `circuits`; if it has it, nothing is computed.

    Returns:
        One row per head with `succession`, its 95 % interval, as if words were independent (Wilson 1927), and the
        number of words, `succession.words`. The share itself is exact for these weights and words.

    Raises:
        ValueError: if a class is unknown, the tokenizer has no class in single tokens or does not fit, the model has an
            encoder, no unembedding, or norms after the sums of its layers, or its maps cannot be read.
    """
    handle = HeadModel.of(model, tokenizer)
    if study is not None:
        key = handle.cache_key(circuits="succession", classes=" ".join(classes))
        compute = partial(succession, handle, tokenizer, classes=classes)
        return study_at(study).keep("circuits", key, compute, joined=OPTIONS)
    runs = ordered_runs(tokenizer, classes)
    if handle.config.is_encoder_decoder:
        name = handle.name
        raise ValueError(f"succession is for decoders alone: got {name}, with an encoder; expected a causal model")
    check_fit(tokenizer, handle.model, max(token for run in runs.values() for token in run.values()))
    circuits, final = _to_logits(handle, "succession")
    ids = [torch.tensor([*run.values()]) for run in runs.values()]
    states = _after_first_mlp(handle, torch.cat(ids)).split([len(part) for part in ids])
    unembedding = _embeddings(handle)[1]
    heads = handle.index
    hits = np.zeros(len(heads))
    for part, state in zip(ids, states, strict=True):
        moved = [circuits.maps[site.key] for site in handle.sites if site.heads]
        written = torch.cat([(state[:-1] @ maps.value.mT) @ maps.out for maps in moved])  # [heads, word, width]
        following = (written @ (unembedding[part] @ final).mT).argmax(-1)  # [heads, word]
        nothing = written.abs().amax(-1) == 0
        hits += ((following == torch.arange(1, len(part))) & ~nothing).sum(-1).numpy()
    words = sum(len(part) - 1 for part in ids)
    low, high = wilson(hits / words, words)
    columns = {"succession": hits / words, "succession.low": low, "succession.high": high}
    columns["succession.words"] = np.full(len(heads), float(words))
    text = handle.provenance(tokenizer=handle.tokens, score="succession", classes=" ".join(runs))
    return frame.table(columns, heads, text)


def _to_logits(model: HeadModel, score: str) -> tuple[Circuits, Tensor]:
    """The maps of a decoder and that of its final norm; raise ValueError without an unembedding right after it."""
    name = model.name
    if not any(site.kind == "dec-self" for site in model.sites):
        raise ValueError(f"{score} is for dec-self heads: got {name}, which has none; expected a decoder")
    if not has_vocabulary(model):
        raise ValueError(
            f"{score} needs an unembedding: got {name} without; try the model with its language-model head"
        )
    circuits = read_circuits(model)
    if circuits.final is None:
        raise ValueError(f"{score} needs an unembedding right after the final norm: got {name}, with a map between")
    return circuits, circuits.final


def _after_first_mlp(model: HeadModel, ids: Tensor) -> Tensor:
    """What the first layer adds to each token alone without its attention: float64 [token, width]."""
    site = model.sites[0]
    layer, states, norms = layer_of(model.model, site), list[Tensor](), list[Tensor]()
    if layer is None or not isinstance(site.out, nn.Module):
        raise ValueError(f"succession needs layers that are modules: got {model.name}")

    def added(
        _: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor | tuple[Tensor]
    ) -> None:
        before = args[0] if args else kwargs["hidden_states"]
        after = output if isinstance(output, Tensor) else output[0]
        if any(norm.shape == after.shape and torch.equal(norm, after) for norm in norms):
            raise ValueError(
                f"succession needs what the first MLP adds: got {model.name}, with a norm after the sum; "
                f"expected norms before it"
            )
        states.append((after - before)[:, 0].double().cpu())

    with ExitStack() as stack:
        stack.callback(site.out.register_forward_hook(lambda *call: torch.zeros_like(call[-1])).remove)
        for norm in filter(is_norm, layer.modules()):
            stack.callback(norm.register_forward_hook(lambda *call: norms.append(call[-1])).remove)
        stack.callback(layer.register_forward_hook(added, with_kwargs=True).remove)
        stack.enter_context(model.evaluating())
        stack.enter_context(torch.no_grad())
        model.forward({"input_ids": ids[:, None].to(model.device)})
    return states[0]


def _embeddings(model: HeadModel) -> tuple[Tensor, Tensor]:
    """The embedding that the decoder reads and the unembedding: each float64 [vocabulary, width]."""
    tables: list[nn.Module] = [model.model.get_output_embeddings()]
    stack: PreTrainedModel = model.model.get_decoder() if model.config.is_encoder_decoder else model.model
    tables.insert(0, stack.get_input_embeddings())
    words, logits = (table.get_parameter("weight").detach().double().cpu() for table in tables)
    return words, logits


def _shares(circuits: Tensor) -> list[float]:
    """Sum of eigenvalues over sum of absolute eigenvalues of each head's circuit, [heads, size, size]."""
    eigenvalues = torch.linalg.eigvals(circuits)
    sums, sizes = eigenvalues.sum(-1).real, eigenvalues.abs().sum(-1)
    shares: list[float] = torch.where(sizes > 0, sums / sizes, torch.nan).tolist()
    return shares


def composition(model: Model, *, study: Study | str | Path | None = None) -> pd.DataFrame:
    """Compute how much each head reads what each head of an earlier layer writes.

    For W_OV of the writer, and W_QK and W_OV of the reader, the scores are Frobenius norms (Elhage et al. 2021, "A
    mathematical framework for transformer circuits", "Analyzing a Two-Layer Model"):

        query  ||W_QK^T W_OV|| / (||W_QK|| ||W_OV||)
        key    ||W_QK W_OV|| / (||W_QK|| ||W_OV||)
        value  ||W_OV W_OV|| / (||W_OV|| ||W_OV||)

    They are 1 at most; random maps have about 1 / sqrt(width). The source subtracts what random matrices of the same
    shapes have, here nothing is subtracted. The norm before a layer, if any, is in what it reads, with a frozen scale;
    others on the way are not. Rotary positions are those of a query and a key in one place.

    Args:
        model: the model.
        study: study or folder that keeps the table as `composition`; if it has it, nothing is computed.

    Returns:
        One row per pair of self-attention heads of one stack: `kind`, `layer` and `head` of the writer, `to_layer` and
        `to_head` of the reader, and the scores `query`, `key` and `value`; NaN where a map is 0. The scores are exact
        for these weights, and the weights are no sample: there are no intervals.

    Raises:
        ValueError: if the maps of the model cannot be read.
    """  # noqa: DOC502
    handle = HeadModel.of(model)
    if study is not None:
        return study_at(study).keep("composition", handle.cache_key(circuits="weights"), partial(composition, handle))
    circuits = read_circuits(handle)
    rows: list[tuple[Kind | float, ...]] = []
    sites = [site for site in handle.sites if site.kind != "cross" and site.heads]
    for writer in sites:
        for reader in (site for site in sites if site.kind == writer.kind and site.layer > writer.layer):
            scores = _composed(circuits.maps[writer.key], circuits.maps[reader.key])  # [writer, reader, 3]
            for i, head in enumerate(writer.numbers):
                for j, to_head in enumerate(reader.numbers):
                    rows.append((*writer.key, head, reader.layer, to_head, *scores[i, j].tolist()))
    return frame.signed(pd.DataFrame(rows, columns=COLUMNS), handle.provenance(score="composition"))


def _composed(writer: Maps, reader: Maps) -> Tensor:
    """Composition scores of all pairs of two layers, by products of the size of heads: [writer, reader, 3]."""
    written, read = _triangle(writer.value), writer.out.mT  # [writer, size, size], [writer, width, size]
    scores = []
    for left, right in ((reader.key, reader.query), (reader.query, reader.key), (reader.out, reader.value)):
        whole = _triangle(left)[None] @ (right[None] @ read[:, None]) @ written[:, None].mT
        sizes = _norm(_triangle(left) @ _triangle(right).mT)[None] * _norm(_triangle(writer.out) @ written.mT)[:, None]
        scores.append(torch.where(sizes > 0, _norm(whole) / sizes, torch.nan))
    return torch.stack(scores, -1)


def _triangle(rows: Tensor) -> Tensor:
    """R of rows^T = Q R, of the same Frobenius norm in every product: [heads, rank, size]."""
    factors: Tensor = torch.linalg.qr(rows.mT, mode="r").R
    return factors


def _norm(matrices: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.matrix_norm(matrices)
    return norms


class Maps(NamedTuple):
    """The linear maps of one site: what each head reads from the residual stream, and what it writes."""

    query: Tensor  # [heads, size, width]
    key: Tensor
    value: Tensor
    out: Tensor


class Circuits(NamedTuple):
    """The maps of all sites, and that of the final norm, [width, width], if the unembedding follows it."""

    maps: dict[tuple[Kind, int], Maps]  # of self-attention
    final: Tensor | None


def read_circuits(model: HeadModel) -> Circuits:
    """Read the maps as Jacobians, which needs neither the family's order of queries, keys and values nor its names."""
    if fault := unreadable(model):
        raise ValueError(fault.replace("norms need", "circuits need", 1))
    try:
        return _read(model, every_layer=False)
    except ValueError:  # a layer reads the sum of earlier layers without a norm (OLMo 2)
        return _read(model, every_layer=True)


@dataclass(frozen=True)
class _Reader:
    """One forward, in which the inputs of layers and of norms outside attention are leaves."""

    leaves: list[Tensor] = field(default_factory=list)
    calls: dict[nn.Module, list[Call]] = field(default_factory=dict)
    maps: list[nn.Module] = field(default_factory=list)  # linear maps in the order in which they ran
    last: list[Tensor] = field(default_factory=list)  # the input of each of them

    def jacobian(self, output: Tensor, name: str) -> Tensor:
        """The map from the nearest leaf to a tensor of the first token: [features, width]."""
        flat = output.flatten()
        eye = torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
        reached = torch.autograd.grad(flat.sum(), self.leaves, retain_graph=True, allow_unused=True)
        leaves = [leaf for leaf, slope in zip(self.leaves, reached, strict=True) if slope is not None]
        if len(leaves) != 1:
            raise ValueError(f"maps of {name} cannot be read: got {len(leaves)} norms before it; expected one")
        (rows,) = torch.autograd.grad(flat, leaves, eye, retain_graph=True, is_grads_batched=True)
        return rows[:, 0, 0].double().cpu()  # of the first token


def _read(model: HeadModel, *, every_layer: bool) -> Circuits:
    """Read the maps; a layer reads from its input, or with `every_layer=False` from the input of the norm before."""
    sites, reader = model.sites, _Reader()
    with ExitStack() as stack:
        _hook(stack, model, [site for site in sites if every_layer or site.layer == 0], reader)
        for context in (model.evaluating(), lrp_rules(model, "cp"), torch.enable_grad()):
            stack.enter_context(context)
        model.forward(dummy_inputs(model.model))
        maps = {site.key: _maps(site, reader) for site in sites if site.heads and site.kind != "cross"}
        unembedding = model.model.get_output_embeddings() if has_vocabulary(model) else None
        follows = unembedding in reader.maps and any(
            reader.maps[-2] in layer.modules() for layer in layers(model.model)
        )
        final = reader.jacobian(reader.last[-1][:, :1], "the unembedding") if follows else None
    return Circuits(maps, final)


def _hook(stack: ExitStack, model: HeadModel, starts: list[Site], reader: _Reader) -> None:
    """Make leaves, of layers at `starts` and norms, and keep attention calls and linear maps until `stack` is left."""

    def start(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not args:
            return None
        reader.leaves.append(args[0].detach().requires_grad_())
        return reader.leaves[-1], *args[1:]

    def ran(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        reader.maps.append(module)
        reader.last.append(args[0] if args else torch.empty(0))

    inside = {part for site in model.sites for part in site.module.modules()}
    layers = {layer_of(model.model, site) for site in starts}
    for module in model.model.modules():
        if module in layers or (module not in inside and is_norm(module)):
            stack.callback(module.register_forward_pre_hook(start).remove)
        elif getattr(getattr(module, "weight", None), "ndim", 0) == 2:
            stack.callback(module.register_forward_pre_hook(ran).remove)
    stack.enter_context(attending(model.model, lambda call: reader.calls.setdefault(call.module, []).append(call)))


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm: all its own weights are vectors, and it has no children."""
    weights = list(module.parameters(recurse=False))
    return bool(weights) and all(weight.ndim == 1 for weight in weights) and not any(True for _ in module.children())


def _maps(site: Site, reader: _Reader) -> Maps:
    call = reader.calls[site.module][site.turn]

    def read(tensor: Tensor) -> Tensor:
        rows: Tensor = reader.jacobian(tensor[:, :, :1], site.name).unflatten(0, (tensor.shape[1], -1))
        return rows.repeat_interleave(site.heads // len(rows), dim=0)

    out = output_weight(site).detach().double().cpu().unflatten(0, (site.heads, site.size))
    return Maps(read(call.query), read(call.key), read(call.value), out)
