"""Circuits of single heads by their weights: QK and OV, copying, succession."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.analysis.intervals import wilson
from headroles.data.probes import CLASSES, ordered_runs
from headroles.models.head_model import HeadModel, Model
from headroles.models.heads import layer_of
from headroles.models.masking import Head
from headroles.models.tokens.vocabulary import check_fit
from headroles.scores.outputs import has_vocabulary
from headroles.scores.weights.maps import Circuits, is_norm, read_circuits
from headroles.tables.study import Study, study_at

Circuit = Literal["QK", "OV"]
OPTIONS = ("circuits", "identity", "classes")  # fields of cache keys in which columns of one table differ


def circuit_matrix(model: Model, head: Head | str, circuit: Circuit, *, distance: int = 0) -> Tensor:
    """Return the QK or OV circuit of a head: what it looks for, or what it makes of what it reads.

    For states x and y of the residual stream, as rows, x QK y^T is the attention logit of a query x on a key y, without
    biases and before it is scaled by the size of heads; x OV is what the head writes of x (Elhage et al. 2021, "A
    mathematical framework for transformer circuits"). Heads that share keys and values each have their circuits.
    The norm before the layer is in them with its weights, centring, and 1 in the place of what it divides x by. What
    comes between the head and the residual stream is not: a norm (Gemma 3) or a factor (Granite).
    Embeddings on both sides give the circuits from token to token.

    Args:
        model: the model.
        head: (kind, layer, head) of self-attention, or "L0H2" where there is one kind, or "enc-self:0:2".
        circuit: "QK" or "OV".
        distance: tokens from the key to the query, by which rotary positions turn QK; exact. Other positions are no
            part of it.

    Returns:
        The matrix, float64 [width, width], of rank at most the size of the head.

    Raises:
        ValueError: if the circuit is unknown, the head is of cross-attention, or the maps cannot be read or are not
            linear: a norm of queries and keys (Gemma 3, Qwen 3), which leaves no QK.
    """
    handle = HeadModel.of(model)
    (place,) = handle.named_heads([head])
    if circuit not in get_args(Circuit):
        raise ValueError(f"no circuit {circuit!r}: expected one of {', '.join(get_args(Circuit))}")
    if place[0] == "cross":
        raise ValueError(f"circuits are of self-attention: got {place}; expected enc-self or dec-self")
    (site,) = (site for site in handle.sites if site.key == place[:2])
    number, matrices = list(site.numbers).index(place[2]), []
    for turn in (0, 1):
        maps = read_circuits(handle, distance=distance, only=site.key, turn=turn).maps[site.key]
        left, right = (maps.query, maps.key) if circuit == "QK" else (maps.value, maps.out)
        matrices.append(left[number].mT @ right[number])
    if (matrices[0] - matrices[1]).norm() > 0.01 * matrices[0].norm():
        raise ValueError(
            f"{circuit} of {site.name} is no matrix: got a norm within attention, of {handle.name}; expected maps that "
            f"are linear; try hr.composition or hr.copying, which need them but for a factor"
        )
    return matrices[0]


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
    return handle.table({"copying": values}, handle.provenance(score="copying"))


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
    hits = np.zeros(len(handle.gated))
    for part, state in zip(ids, states, strict=True):
        moved = [circuits.maps[site.key] for site in handle.sites if site.heads]
        written = torch.cat([(state[:-1] @ maps.value.mT) @ maps.out for maps in moved])  # [heads, word, width]
        following = (written @ (unembedding[part] @ final).mT).argmax(-1)  # [heads, word]
        nothing = written.abs().amax(-1) == 0
        hits += ((following == torch.arange(1, len(part))) & ~nothing).sum(-1).numpy()
    words = sum(len(part) - 1 for part in ids)
    low, high = wilson(hits / words, words)
    columns = {"succession": hits / words, "succession.low": low, "succession.high": high}
    columns["succession.words"] = np.full(len(hits), float(words))
    text = handle.provenance(tokenizer=handle.tokens, score="succession", classes=" ".join(runs))
    return handle.table(columns, text)


def _to_logits(model: HeadModel, score: str) -> tuple[Circuits, Tensor]:
    """The maps of a decoder and that of its final norm; raise ValueError without an unembedding right after it."""
    name = model.name
    if not any(site.kind == "dec-self" for site in model.sites):
        raise ValueError(f"{score} is for dec-self heads: got {name}, which has none; expected a decoder")
    if not has_vocabulary(model):
        raise ValueError(
            f"{score} needs an unembedding: got {name} without; try the model with its language-model head"
        )
    model.check_weights("output")
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

    with model.evaluating() as changes, torch.no_grad():
        changes.hook(site.out, lambda *call: torch.zeros_like(call[-1]), after=True)
        for norm in filter(is_norm, layer.modules()):
            changes.hook(norm, lambda *call: norms.append(call[-1]), after=True)
        changes.hook(layer, added, after=True, with_kwargs=True)
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
