"""Scores from the weights only: the QK and OV circuits of heads, copying, succession, composition."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles._changes import Changes
from headroles.analysis.intervals import wilson
from headroles.data.probes import CLASSES, ordered_runs
from headroles.models.attention_hooks import AttentionCall, observe_attention
from headroles.models.dummy_inputs import dummy_inputs
from headroles.models.head_model import HeadModel, Model
from headroles.models.heads import layer_of, layers
from headroles.models.identity import tokenizer_digest
from headroles.models.masking import Head
from headroles.models.sites import Site
from headroles.models.tokens.vocabulary import check_fit
from headroles.scores.attention import check_readable, output_weight, triangle
from headroles.scores.lrp import lrp_rules
from headroles.scores.outputs import check_vocabulary, has_vocabulary
from headroles.tables import frame
from headroles.tables.arguments import number, one_of
from headroles.tables.frame import Kind
from headroles.tables.study import Study, kept

Circuit = Literal["QK", "OV"]
OPTIONS = ("circuits", "identity", "classes")  # fields of cache keys in which columns of one table differ
PAIRS = ["kind", "layer", "head", "to_layer", "to_head", "query", "key", "value", "matching"]
SIZE = 64.0  # root mean square of the inputs of norms, so large that their epsilon does not count
QUERY = 1  # the token of the query at a distance; keys, values and all else are of token 0


def circuit_matrix(model: Model, head: Head | str, circuit: Circuit, *, distance: int = 0) -> Tensor:
    """Return the QK or OV circuit of a head: what it looks for, or how it maps what it reads to what it writes.

    For states x and y of the residual stream, as rows, x QK y^T is the attention logit of a query x on a key y, without
    biases and before it is scaled by the size of heads; x OV is what the head writes of x (Elhage et al. 2021, "A
    mathematical framework for transformer circuits"). They include the weights and centring of the norm before the
    layer, with 1 for the scale by which it divides x, but no norm (Gemma 3) or factor (Granite) between the head and
    the residual stream. Embeddings on both sides give the circuits from token to token.

    Args:
        model: the model.
        head: (kind, layer, head) of self-attention, or "L0H2" where there is one kind, or "enc-self:0:2".
        circuit: "QK" or "OV".
        distance: tokens from the key to the query, by which rotary positions turn QK.

    Returns:
        The matrix, float64 [width, width], of rank at most the size of the head.

    Raises:
        ValueError: if the maps are not linear: with a norm of queries and keys (Gemma 3, Qwen 3) there is no QK.
    """
    handle = HeadModel.of(model)
    (place,) = handle.sites.named([head])
    one_of("circuit", circuit, get_args(Circuit))
    one_of("kind of the head", place[0], ("enc-self", "dec-self"))
    (site,) = (site for site in handle.sites if site.key == place[:2])
    row, matrices = list(site.numbers).index(place[2]), []
    for roll in (0, 1):  # if maps differ between two states of the norms, they are not linear
        maps = read_circuits(handle, distance=distance, only=site.key, roll=roll).maps[site.key]
        left, right = (maps.query, maps.key) if circuit == "QK" else (maps.value, maps.out)
        matrices.append(left[row].mT @ right[row])
    if (matrices[0] - matrices[1]).norm() > 0.01 * matrices[0].norm():
        raise ValueError(
            f"{circuit} of {site.name} must be linear: got a norm within the attention of {handle.name}; try "
            f"hr.scores.composition or hr.scores.copying, which need it only up to a factor"
        )
    return matrices[0]


def copying(model: Model, *, study: Study | str | Path | None = None) -> pd.DataFrame:
    """Compute the OV copying score of every decoder self-attention head.

    The score is the sum of the eigenvalues of the full OV circuit W_U W_O W_V W_E, divided by the sum of their absolute
    values: 1 if every token raises its own logit, -1 if it lowers it (Elhage et al. 2021, "A mathematical framework for
    transformer circuits", "Detecting Copying Behavior"; positive eigenvalues are evidence, not proof, and there is no
    threshold). Its nonzero eigenvalues are the same as of W_V W_E W_U W_O, which is only as large as a head. The maps
    include the norm before the layer and the final norm with a frozen scale, but no norm after attention (Gemma).

    Args:
        model: a decoder or an encoder-decoder with an unembedding.
        study: study or folder that keeps the column in its table `circuits`; if it has it, nothing is computed.

    Returns:
        One row per head with the column `copying`, exact and so without an interval; NaN for encoder and
        cross-attention heads, and for a head that writes nothing.
    """
    handle = HeadModel.of(model)
    key = lambda: handle.cache_key(circuits="copying")  # noqa: E731
    return kept(study, "circuits", key, lambda: _copying(handle), joined=OPTIONS)


def _copying(model: HeadModel) -> pd.DataFrame:
    circuits, final = _to_logits(model, "copying")
    words, logits = _embeddings(model)
    if words.shape[1] != final.shape[1]:
        raise ValueError(f"embeddings must be as wide as the layers for copying, got {model.name} with a map between")
    rows = min(len(words), len(logits))
    through = words[:rows].mT @ logits[:rows] @ final  # W_E W_U and the final norm: [width, width]
    values: list[float] = []
    for site in model.sites:
        if site.kind == "dec-self" and site.heads:
            maps = circuits.maps[site.key]
            eigenvalues = torch.linalg.eigvals(maps.value @ through @ maps.out.mT)  # [heads, size]
            sums, sizes = eigenvalues.sum(-1).real, eigenvalues.abs().sum(-1)
            values += torch.where(sizes > 0, sums / sizes, torch.nan).tolist()
        else:
            values += [float("nan")] * site.heads
    return model.table({"copying": values}, model.provenance(score="copying"))


def succession(
    model: Model, tokenizer: PreTrainedTokenizerBase, *, study: Study | str | Path | None = None
) -> pd.DataFrame:
    """Compute the share of ordered words that a head's OV circuit maps to their successor: "Monday" to "Tuesday".

    The circuit is W_U W_O W_V MLP_0(W_E), without attention: among all words of a class, the next one has the largest
    logit (Gould et al. 2023, "Successor heads", arXiv 2312.09230, figure 2). A head with a score above 0.5 is a
    successor head (the threshold is from a secondary source, not from the full text). MLP_0(W_E) is what the
    first layer adds to a single word with its attention set to 0. Norms are in the maps with a frozen scale.

    The classes are days, months, numbers, ordinals, digits and letters, of each the longest run of words that are one
    token each; a class without three is left out. The source also has words with capitals and without space.

    Args:
        model: a decoder with an unembedding.
        tokenizer: its tokenizer.
        study: study or folder that keeps the column in its table `circuits`; if it has it, nothing is computed.

    Returns:
        One row per head with `succession`, its 95 % interval, as if words were independent (Wilson 1927), and the
        number of words, `succession.words`.
    """
    handle = HeadModel.of(model, tokenizer)
    key = lambda: handle.cache_key(circuits="succession", classes=" ".join(CLASSES))  # noqa: E731
    return kept(study, "circuits", key, lambda: _succession(handle), joined=OPTIONS)


def _succession(model: HeadModel) -> pd.DataFrame:
    runs = ordered_runs(model.tokenizer, tuple(CLASSES))
    if model.model.config.is_encoder_decoder:
        raise ValueError(f"succession needs a decoder without an encoder, got {model.name}")
    check_fit(model.tokenizer, model.model, max(token for run in runs.values() for token in run.values()))
    circuits, final = _to_logits(model, "succession")
    ids = [torch.tensor([*run.values()]) for run in runs.values()]
    states = _after_first_mlp(model, torch.cat(ids)).split([len(part) for part in ids])
    unembedding = _embeddings(model)[1]
    hits = np.zeros(len(model.gated))
    for part, state in zip(ids, states, strict=True):
        moved = [circuits.maps[site.key] for site in model.sites if site.heads]
        written = torch.cat([(state[:-1] @ maps.value.mT) @ maps.out for maps in moved])  # [heads, word, width]
        following = (written @ (unembedding[part] @ final).mT).argmax(-1)  # [heads, word]
        writes = written.abs().amax(-1) > 0
        hits += ((following == torch.arange(1, len(part))) & writes).sum(-1).numpy()
    words = sum(len(part) - 1 for part in ids)
    low, high = wilson(hits / words, words)
    columns = {"succession": hits / words, "succession.low": low, "succession.high": high}
    columns["succession.words"] = np.full(len(hits), float(words))
    text = model.provenance(tokenizer=tokenizer_digest(model.tokenizer), score="succession", classes=" ".join(runs))
    return model.table(columns, text)


def _to_logits(model: HeadModel, score: str) -> tuple[Circuits, Tensor]:
    """Return the maps of a decoder and of its final norm; ValueError without an unembedding right after it."""
    if "dec-self" not in model.kinds:
        raise ValueError(f"{score} needs a decoder, got {model.name}")
    check_vocabulary(model, score)
    model.check_weights("output")
    circuits = read_circuits(model)
    if circuits.final is None:
        raise ValueError(
            f"{score} needs an unembedding right after the final norm, got {model.name} with a map between"
        )
    return circuits, circuits.final


def _after_first_mlp(model: HeadModel, ids: Tensor) -> Tensor:
    """Return what the first layer, without its attention, adds to each single token: float64 [token, width]."""
    site = model.sites[0]
    layer, states, norms = layer_of(model.model, site), list[Tensor](), list[Tensor]()
    if layer is None or not isinstance(site.out, nn.Module):
        raise ValueError(f"succession needs layers that are modules, got {model.name}")

    def added(
        _: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor | tuple[Tensor]
    ) -> None:
        before = args[0] if args else kwargs["hidden_states"]
        after = output if isinstance(output, Tensor) else output[0]
        if any(norm.shape == after.shape and torch.equal(norm, after) for norm in norms):
            raise ValueError(
                f"succession needs norms before the sums of layers, got {model.name} with norms after them"
            )
        states.append((after - before)[:, 0].double().cpu())

    with model.evaluating() as changes, torch.no_grad():
        changes.hook(site.out, lambda *call: torch.zeros_like(call[-1]), after=True)
        for norm in filter(is_norm, layer.modules()):
            changes.hook(norm, lambda *call: norms.append(call[-1]), after=True)
        changes.hook(layer, added, after=True, with_kwargs=True)
        model.forward({"input_ids": ids[:, None].to(model.device)})
    return states[0]


def _embeddings(model: HeadModel) -> tuple[Tensor, Tensor]:
    """Return the embedding that the decoder reads and the unembedding: each float64 [vocabulary, width]."""
    stack: PreTrainedModel = model.model.get_decoder() if model.model.config.is_encoder_decoder else model.model
    tables: tuple[nn.Module, nn.Module] = stack.get_input_embeddings(), model.model.get_output_embeddings()
    words, logits = (table.get_parameter("weight").detach().double().cpu() for table in tables)
    return words, logits


def composition(model: Model, *, distance: int = 0, study: Study | str | Path | None = None) -> pd.DataFrame:
    """Compute how much each head reads what each head of an earlier layer writes.

    For W_OV of the writer, and W_QK and W_OV of the reader, the first three scores are Frobenius norms (Elhage et al.
    2021, "A mathematical framework for transformer circuits", "Analyzing a Two-Layer Model"):

        query     ||W_QK^T W_OV|| / (||W_QK|| ||W_OV||)
        key       ||W_QK W_OV|| / (||W_QK|| ||W_OV||)
        value     ||W_OV W_OV|| / (||W_OV|| ||W_OV||)
        matching  trace(W_QK W_OV) / (||W_QK|| ||W_OV||)

    They are 1 at most; random maps have about 1 / sqrt(width), and 0 +- 1 / width in `matching`; the source subtracts
    this, here it is not subtracted. `matching` is the part of `key` that looks for the same token: the cosine of W_QK^T
    and W_OV, 1 if a query x rates highest what the writer has made of x. The norm before a layer is in what it reads,
    with a frozen scale; other norms are not.

    Args:
        model: the model.
        distance: tokens from a key to a query, by which rotary positions turn W_QK.
        study: study or folder that keeps the table as `composition`; if it has it, nothing is computed.

    Returns:
        One row per pair of self-attention heads of one stack: `kind`, `layer` and `head` of the writer, `to_layer` and
        `to_head` of the reader, and the scores; NaN where a map is 0. The scores are exact, so there are no intervals.
    """
    handle = HeadModel.of(model)
    options = {"distance": distance} if distance else {}
    key = lambda: handle.cache_key(circuits="pairs", **options)  # noqa: E731
    return kept(study, "composition", key, lambda: _composition(handle, options))


def _composition(model: HeadModel, options: dict[str, int]) -> pd.DataFrame:
    maps = read_circuits(model, distance=options.get("distance", 0)).maps
    small = {place: Maps(*map(triangle, parts)) for place, parts in maps.items()}
    rows: list[tuple[Kind | float, ...]] = []
    sites = [site for site in model.sites if site.kind != "cross" and site.heads]
    for writer in sites:
        for reader in (site for site in sites if site.kind == writer.kind and site.layer > writer.layer):
            scores = _composed(maps[writer.key], small[writer.key], maps[reader.key], small[reader.key])
            for i, head in enumerate(writer.numbers):
                for j, to_head in enumerate(reader.numbers):
                    if head in writer.remaining and to_head in reader.remaining:
                        rows.append((*writer.key, head, reader.layer, to_head, *scores[i, j].tolist()))
    return frame.signed(pd.DataFrame(rows, columns=PAIRS), model.provenance(score="composition", **options))


def _composed(writer: Maps, small: Maps, reader: Maps, small_reader: Maps) -> Tensor:
    """Return composition scores of all pairs of heads of two layers, by head-sized products: [writer, reader, 4]."""
    # A Frobenius norm does not change under rotations, so that each map [size, width] at the end of a product may be
    # replaced by the triangle R [size, size] of its QR decomposition. Only the product in the middle, of what the
    # reader reads and what the writer writes, is taken over the width, once for all pairs of heads.
    norm = torch.linalg.matrix_norm
    written = norm(small.out @ small.value.mT)[:, None]  # of W_OV
    scores = []
    for left, right in (("key", "query"), ("query", "key"), ("out", "value")):
        looked = _crossed(getattr(reader, right), writer.out)  # [writer, reader, size, size]
        outer, inner = getattr(small_reader, left), getattr(small_reader, right)
        sizes = norm(outer @ inner.mT) * written
        scores.append(torch.where(sizes > 0, norm(outer @ looked @ small.value[:, None].mT) / sizes, torch.nan))
        if left == "query":  # trace(Q^T K O^T V) is the sum of (K O^T) * (Q V^T)
            trace = (looked * _crossed(reader.query, writer.value)).sum((-2, -1))
            matching = torch.where(sizes > 0, trace / sizes, torch.nan)
    return torch.stack([*scores, matching], -1)


def _crossed(reader: Tensor, writer: Tensor) -> Tensor:
    """Return the products of all rows of two layers: [writer, reader, size of reader, size of writer]."""
    rows = (reader.flatten(0, 1) @ writer.flatten(0, 1).mT).unflatten(0, reader.shape[:2])
    products: Tensor = rows.unflatten(2, writer.shape[:2]).permute(2, 0, 1, 3)
    return products


# Maps are read as Jacobians of one forward pass, so that the names and order of queries, keys and values in a family
# need not be known. In this pass the inputs of all norms outside attention are leaves with rows of mean 0 and size
# `SIZE`, and norms divide by a constant (the LRP rules "cp"). From each leaf to the next queries, keys and values all
# is then linear, and the Jacobian times `SIZE` is the map from states of size 1. A layer without a norm before it (OLMo
# 2) reads its own input, which is then the leaf.


class Maps(NamedTuple):
    """The linear maps of one site: what each head reads from the residual stream, and what it writes."""

    query: Tensor  # [heads, size, width]
    key: Tensor
    value: Tensor
    out: Tensor


class Circuits(NamedTuple):
    """The maps of all sites, and the map of the final norm, [width, width], if the unembedding follows it."""

    maps: dict[tuple[Kind, int], Maps]  # of self-attention
    final: Tensor | None


def read_circuits(
    model: HeadModel, *, distance: int = 0, only: tuple[Kind, int] | None = None, roll: int = 0
) -> Circuits:
    """Read the maps of a model, or of one site; `roll` changes the states that norms get."""
    model.check_weights("attention")
    check_readable(model, "circuits")
    inputs = dummy_inputs(model.model) | _positions(model, distance)
    sites = [site for site in model.sites if site.heads and site.kind != "cross" and only in (None, site.key)]
    query = QUERY if "position_ids" in inputs else 0
    try:
        return _read(model, inputs, sites, _Reader(query, roll), every_layer=False)
    except ValueError:  # a layer reads the sum of earlier layers without a norm
        return _read(model, inputs, sites, _Reader(query, roll), every_layer=True)


def _positions(model: HeadModel, distance: int) -> dict[str, Tensor]:
    """Return positions of the dummy input, in which token `QUERY` is `distance` tokens after the first one."""
    limit = getattr(model.model.config.get_text_config(), "max_position_embeddings", None) or float("inf")
    if number("distance", distance, below=limit, whole=True) == 0:
        return {}
    if "position_ids" not in inspect.signature(model.model.forward).parameters:
        raise ValueError(f"distance must be 0 for {model.name}, which takes no position_ids, got {distance}")
    positions = torch.full_like(dummy_inputs(model.model)["input_ids"], distance)
    positions[:, 0] = 0
    return {"position_ids": positions}


@dataclass(frozen=True)
class _Reader:
    """One forward, in which the inputs of layers and of norms outside attention are leaves."""

    query: int  # the token of the query
    roll: int  # by which the states that norms get are moved along the width
    leaves: list[Tensor] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)  # of leaves: what a norm divides by
    calls: dict[nn.Module, list[AttentionCall]] = field(default_factory=dict)
    maps: list[nn.Module] = field(default_factory=list)  # linear maps in the order in which they ran
    inputs: list[Tensor] = field(default_factory=list)  # of these maps

    def jacobian(self, output: Tensor, name: str, token: int = 0) -> Tensor:
        """Return the map from the nearest leaf to a tensor of one token: [features, width]."""
        flat = output.flatten()
        eye = torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
        reached = torch.autograd.grad(flat.sum(), self.leaves, retain_graph=True, allow_unused=True)
        pairs = zip(self.leaves, self.sizes, reached, strict=True)
        read = [(leaf, size) for leaf, size, slope in pairs if slope is not None]
        if len(read) != 1:
            raise ValueError(f"maps of {name} cannot be read: expected one norm before it, got {len(read)}")
        leaf, size = read[0]
        (rows,) = torch.autograd.grad(flat, [leaf], eye, retain_graph=True, is_grads_batched=True)
        return rows[:, 0, token].double().cpu() * size

    def of(self, site: Site) -> Maps:
        """Return the maps of a site."""
        call = self.calls[site.module][site.call_index]

        def read(tensor: Tensor, token: int = 0) -> Tensor:
            flat = self.jacobian(tensor[:, :, token : token + 1], site.name, token)
            rows: Tensor = flat.unflatten(0, (tensor.shape[1], -1))
            return rows.repeat_interleave(site.heads // len(rows), dim=0)

        out = output_weight(site).detach().double().cpu().unflatten(0, (site.heads, site.size))
        scaling = getattr(call.module, "scaling", 1.0)  # of the queries of OPT and Whisper, a parameter in TimesFM
        scale = scaling if call.scaling == 1 and isinstance(scaling, float) else 1.0
        return Maps(read(call.query, self.query) / scale, read(call.key), read(call.value), out)


def _read(
    model: HeadModel, inputs: dict[str, Tensor], sites: list[Site], reader: _Reader, *, every_layer: bool
) -> Circuits:
    """Read the maps from the input of each layer, or with `every_layer=False` from the input of the norm before."""
    with model.evaluating() as changes, lrp_rules(model, "cp"), torch.enable_grad():
        _hook(changes, model, [site for site in model.sites if every_layer or site.layer == 0], reader)
        model.forward(inputs)
        maps = {site.key: reader.of(site) for site in sites}
        unembedding = model.model.get_output_embeddings() if has_vocabulary(model) else None
        follows = unembedding in reader.maps and any(
            reader.maps[-2] in layer.modules() for layer in layers(model.model)
        )
        final = reader.jacobian(reader.inputs[-1][:, :1], "the unembedding") if follows else None
    return Circuits(maps, final)


def _hook(changes: Changes, model: HeadModel, starts: list[Site], reader: _Reader) -> None:
    """Make leaves at the layers of `starts` and at norms, and keep attention calls and linear maps."""

    def start(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not args:
            return None
        leaf, size = (args[0], 1.0) if module in starting else (_standard(args[0], reader.roll), SIZE)
        reader.leaves.append(leaf.detach().requires_grad_())
        reader.sizes.append(size)
        return reader.leaves[-1], *args[1:]

    def ran(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        reader.maps.append(module)
        reader.inputs.append(args[0] if args else torch.empty(0))

    inside = {part for site in model.sites for part in site.module.modules()}
    starting = {layer_of(model.model, site) for site in starts}
    for module in model.model.modules():
        if module in starting or (module not in inside and is_norm(module)):
            changes.hook(module, start)
        elif getattr(getattr(module, "weight", None), "ndim", 0) == 2:
            changes.hook(module, ran)
    observe_attention(changes, lambda call: reader.calls.setdefault(call.module, []).append(call))


def _standard(states: Tensor, roll: int) -> Tensor:
    """Return rows of mean 0 and root mean square `SIZE`, the number by which layer norm and RMS norm divide."""
    row = torch.arange(states.shape[-1], dtype=torch.float64) - (states.shape[-1] - 1) / 2
    row *= SIZE / row.square().mean().sqrt()
    return row.roll(roll).to(states).expand_as(states)


def is_norm(module: nn.Module) -> bool:
    """Return whether a module is a norm: it has no children, and all its weights are vectors."""
    weights = list(module.parameters(recurse=False))
    return bool(weights) and all(weight.ndim == 1 for weight in weights) and not any(True for _ in module.children())
