"""Models in files of llama.cpp (GGUF), also with another number of heads in each layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headroles._distributed import track
from headroles.exports.vocabulary import Vocabulary
from headroles.models.head_model import HeadModel, Model
from headroles.models.parts import hint, is_map
from headroles.models.pruned import MADE_BY
from headroles.models.sites import Site, unreadable
from headroles.tables.arguments import one_of
from headroles.tables.io import expanded, replacing

Form = Literal["gguf"]
Precision = Literal["float32", "float16", "q8_0"]
TYPES = {"float32": ("F32", "ALL_F32"), "float16": ("F16", "MOSTLY_F16"), "q8_0": ("Q8_0", "MOSTLY_Q8_0")}
ROTATIONS = {"default", "linear", "llama3"}  # their frequencies do not depend on the length of a text


class Family(NamedTuple):
    """An architecture of llama.cpp."""

    name: str
    varying: str = ""  # the one that reads another number of heads in each layer, if there is one
    activation: str = "silu"


FAMILIES = {  # by `model_type` of transformers
    "llama": Family("llama", "deci"),
    "mistral": Family("llama", "deci"),
    "qwen2": Family("qwen2", "deci"),
    "qwen3": Family("qwen3"),
    "gemma3_text": Family("gemma3", activation="gelu_pytorch_tanh"),
}
INTERLEAVED = ("llama", "deci")  # they rotate neighbouring features together; transformers, those half a head apart
EVERY = 6  # layer of Gemma 3 attends to the whole text


def export_model(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    path: str | Path,
    form: Form = "gguf",
    *,
    precision: Precision = "float16",
) -> Path:
    """Write a model, also one with removed heads, for programs built on llama.cpp.

    llama.cpp, ollama and LM Studio read the file. Where layers differ in their numbers of heads, it has the
    architecture "deci" (made for Nemotron), which reads a number for each layer. Llama, Mistral and Qwen2 can be
    written so; Qwen3 and Gemma 3 need equally many heads in each layer. A layer without heads has no attention, but for
    the first, which keeps a zeroed head. Texts can be as long as a sliding window, in Gemma 3 longer. The file is
    written under a temporary name and then moved.

    Args:
        model: A causal language model, of the classes of Llama, Mistral, Qwen2, Qwen3 or Gemma 3.
        tokenizer: Its tokenizer, of byte-level merges or made from SentencePiece. The chat template is kept.
        path: The file to write.
        form: For which programs: "gguf".
        precision: Numbers of the weight matrices: "float32", "float16", or "q8_0", 8 bits and a scale for 32 of them.

    Returns:
        The path.

    Raises:
        FileExistsError: If the file exists.
        ModuleNotFoundError: If the package gguf of the extra `[llamacpp]` is not installed.
        ValueError: If llama.cpp would compute something else or split texts differently, or weights are quantised,
            adapted or offloaded.

    Example:
        >>> hr.prune(model, tokenizer, corpus, keep=0.5, unit="group")
        >>> hr.export_model(model, tokenizer, "smaller.gguf")
    """  # noqa: DOC502
    one_of("form", form, get_args(Form))
    one_of("precision", precision, get_args(Precision))
    place, handle = free_place(path), HeadModel.of(model, tokenizer)
    source, vocabulary = _Source.of(handle, precision), Vocabulary.of(tokenizer, handle.model)
    ends = getattr(handle.model.generation_config, "eos_token_id", None)
    with replacing(place) as draft, closing(source.begin(draft)) as writer:
        vocabulary.write(writer, tokenizer, {*ends} if isinstance(ends, list) else set())
        source.write(writer)
    return place


def free_place(path: str | Path) -> Path:
    """Return where a file can be written; FileExistsError if there is one, ModuleNotFoundError without gguf."""
    place = expanded(path)
    if place.exists():
        raise FileExistsError(f"{place} exists; name another file")
    if find_spec("gguf") is None:
        raise ModuleNotFoundError("a GGUF file needs the package gguf, in a checkout: pip install '.[llamacpp]'")
    return place


@dataclass(frozen=True)
class _Source:
    """A model as llama.cpp reads it."""

    config: Any
    architecture: str
    size: int  # features of a head
    heads: list[int]  # of each layer
    groups: list[int]  # key-value heads of each layer
    tensors: dict[str, Tensor]  # by their names in the file
    precision: Precision

    @classmethod
    def of(cls, handle: HeadModel, precision: Precision) -> _Source:
        """Name all tensors; ValueError if llama.cpp would compute something else."""
        family, config = _family(handle), handle.model.config
        _check_plain(handle)
        sites = [*handle.sites]
        size, sizes = sites[0].size, [counts(site) for site in sites]
        varies = len({*sizes}) > 1
        if varies and not family.varying:
            raise ValueError(
                f"llama.cpp reads {handle.name} with equally many heads in each layer alone, got {handle.sites.sizes}; "
                f"try to remove as many from each layer"
            )
        name = family.varying if varies else family.name
        factors = _factors(handle, size, name)
        tensors = {"rope_freqs.weight": factors} if len(factors) else {}
        heads, groups = map(list, zip(*sizes, strict=True))
        return cls(config, name, size, heads, groups, tensors | dict(_named(handle, name, heads)), precision)

    def begin(self, draft: Path) -> Any:
        """Begin a file with the numbers of the architecture."""
        import gguf

        config, layers, writer = self.config, len(self.heads), gguf.GGUFWriter(draft, self.architecture)
        varies, window, rotations = self.architecture == "deci", _window(config), config.rope_parameters
        longest = config.max_position_embeddings
        writer.add_description(f"{MADE_BY} {version('headroles')}: {config.name_or_path or config.model_type}")
        writer.add_file_type(gguf.LlamaFileType[TYPES[self.precision][1]])
        writer.add_context_length(longest if window is None or self.architecture == "gemma3" else min(longest, window))
        writer.add_vocab_size(len(self.tensors["token_embd.weight"]))
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(layers)
        writer.add_feed_forward_length([config.intermediate_size] * layers if varies else config.intermediate_size)
        writer.add_head_count(self.heads if varies else self.heads[0])
        writer.add_head_count_kv(self.groups if varies else self.groups[0])
        writer.add_key_length(self.size)
        writer.add_value_length(self.size)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_dimension_count(self.size)
        writer.add_rope_freq_base(rotations.get("full_attention", rotations)["rope_theta"])
        if self.architecture == "gemma3" and window is not None:
            writer.add_sliding_window(window)
        return writer

    def write(self, writer: Any) -> None:
        """Write all tensors, one in memory at a time."""
        import gguf

        types = {name: self._type(weight.shape) for name, weight in self.tensors.items()}
        for name, weight in self.tensors.items():
            block, size = gguf.GGML_QUANT_SIZES[types[name]]
            writer.add_tensor_info(
                name, weight.shape, np.dtype(np.float32), prod(weight.shape) // block * size, types[name]
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, weight in track(self.tensors.items(), "tensors", len(self.tensors)):
            values = self._ordered(name, weight.detach().float().cpu())
            writer.write_tensor_data(gguf.quantize(values.numpy(), types[name]))

    def _type(self, shape: torch.Size) -> Any:
        """Return the type of the numbers of a tensor: of vectors float32, of rows that blocks do not fill float16."""
        import gguf

        if len(shape) == 1:
            return gguf.GGMLQuantizationType.F32
        kind = gguf.GGMLQuantizationType[TYPES[self.precision][0]]
        return kind if shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0 else gguf.GGMLQuantizationType.F16

    def _ordered(self, name: str, values: Tensor) -> Tensor:
        """Return the values of a tensor in the order and with the offset of the architecture."""
        layer, _, part = name.removeprefix("blk.").partition(".")
        counts = {"attn_q": self.heads, "attn_k": self.groups}.get(part.partition(".")[0])
        if counts is not None and self.architecture in INTERLEAVED:
            halves: Tensor = values.unflatten(0, (counts[int(layer)], 2, -1))  # [head, half, pair, ...]
            values = halves.transpose(1, 2).flatten(0, 2).contiguous()
        if self.architecture == "gemma3" and name.endswith("norm.weight"):
            return values + 1  # transformers adds it in the forward
        return values


def _family(handle: HeadModel) -> Family:
    """Return the architecture of a model; ValueError for one that computes something else than llama.cpp."""
    config, sites = handle.model.config, handle.sites
    family = FAMILIES.get(config.model_type)
    if family is None or handle.model.get_output_embeddings() is None:
        known = f"a causal language model of {', '.join(FAMILIES)}"
        raise ValueError(f"GGUF needs {known}, got {handle.name} ({config.model_type}){hint(handle.model)}")
    handle.check_weights("output")
    activation = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)
    capped = getattr(config, "attn_logit_softcapping", None) or getattr(config, "final_logit_softcapping", None)
    scaled = all(abs(site.module.scaling * site.size**0.5 - 1) < 1e-6 for site in sites)
    full = [getattr(site.module, "is_sliding", False) == bool((site.layer + 1) % EVERY) for site in sites]
    if activation != family.activation or capped or not scaled or (family.name == "gemma3" and not all(full)):
        raise ValueError(
            f"llama.cpp computes {family.name} with {family.activation}, scores divided by the root of the size of a "
            f"head, no caps, and in Gemma 3 every sixth layer without a window; the config of {handle.name} differs"
        )
    return family


def _check_plain(handle: HeadModel) -> None:
    """Raise ValueError if weights cannot be read: quantised, adapted or offloaded."""
    fault = "its weights are offloaded; load it whole" if handle.offloaded else None
    for name, part in handle.model.named_modules():
        if is_map(part) or hasattr(part, "base_layer"):
            fault = fault or unreadable(part, f"{name} in {handle.name}")
    if fault:
        raise ValueError(f"{handle.name} cannot be written as it is: {fault}")


def counts(site: Site) -> tuple[int, int]:
    """Return the heads and key-value heads of a layer: none where all are zeroed, but in the first layer.

    llama.cpp takes sizes from the first layer. And a bias of the output stays in a layer without heads.
    """
    empty = not site.remaining and site.layer and getattr(site.out, "bias", None) is None
    return (0, 0) if empty else (site.heads, site.kv_heads)


def _factors(handle: HeadModel, size: int, name: str) -> Tensor:
    """Return what frequencies of rotations are divided by, nothing for plain ones; ValueError for other rotations."""
    parameters, rotary = handle.model.config.rope_parameters, cast(Any, handle.model.base_model).rotary_emb
    whole = parameters.get("full_attention", parameters)
    given: Tensor | None = getattr(rotary, "full_attention_inv_freq", None)
    given = cast(Tensor, rotary.inv_freq if given is None else given).double().cpu()
    plain = whole["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.double) / size)
    kinds = {part.get("rope_type", "default") for part in parameters.values() if isinstance(part, dict)}
    kinds = kinds or {parameters.get("rope_type", "default")}
    same = len(given) == len(plain)
    changed = same and not torch.allclose(given, plain, rtol=1e-4, atol=0)
    if not same or kinds - ROTATIONS or (changed and name not in INTERLEAVED):
        got = f"{', '.join(sorted(kinds))} rotations of {2 * len(given)} of {size} features"
        raise ValueError(f"llama.cpp does not rotate queries and keys as {handle.name} does: got {got}")
    return (plain / given).float() if changed else torch.ones(0)


def _named(handle: HeadModel, architecture: str, heads: list[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors with their names in the file; a tied output has none."""
    import gguf

    key = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(key, len(heads))
    empty = tuple(f"blk.{layer}.attn_" for layer, count in enumerate(heads) if not count)
    for path, weight in handle.model.named_parameters():
        base, _, last = path.rpartition(".")
        name = names.get_name(base)
        if name is None:
            raise ValueError(f"llama.cpp has no place in {architecture} for {path} of {handle.name}")
        if not name.startswith(empty):
            yield f"{name}.{last}", weight


def _window(config: Any) -> int | None:
    """Return the window of layers that do not attend to the whole text, None without such layers."""
    kinds = getattr(config, "layer_types", None)
    window: int | None = getattr(config, "sliding_window", None)
    return window if kinds is None or "sliding_attention" in kinds else None
