"""Dummy inputs: arguments for a small forward of any model, and checks that its numbers are finite."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import inf, prod
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models.attention_hooks import evaluating, without_cache
from headroles.models.parts import body, has_non_token_head
from headroles.models.tokens.vocabulary import vocabulary

SOURCE, TARGET = 7, 5  # lengths: they differ, so that cross-attention is recognised by shape
MEDIA = ("pixel_values", "input_features", "input_values")


def dummy_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the arguments of one small forward: token ids, pixels or sound, and a target of another length."""
    name = _main(model)
    generator = torch.Generator().manual_seed(0)
    inputs = {name: _noise(model, 1, generator) if name in MEDIA else _last_words(model, SOURCE)}
    if has_decoder(model):
        inputs["decoder_input_ids"] = _last_words(model, TARGET)
    return inputs


def examples(model: PreTrainedModel, *, batch: int = 2, seed: int = 0, length: int = SOURCE) -> dict[str, Tensor]:
    """Draw arguments for several examples; the second text is two tokens (its target: one) shorter."""
    generator = torch.Generator().manual_seed(seed)
    accepted, name = inspect.signature(model.forward).parameters, _main(model)
    padding = 2 if "attention_mask" in accepted else 0
    if name in MEDIA:
        inputs = {name: _noise(model, batch, generator)}
    else:
        inputs = _texts(model, batch, length, padding, generator, "")
    if has_decoder(model) and not reads_source_twice(model):
        inputs |= _texts(model, batch, TARGET, padding // 2, generator, "decoder_")
    return {name: value for name, value in inputs.items() if name in accepted}


def words(model: PreTrainedModel) -> list[int]:
    """Return the token ids of text: all but the special tokens of the config."""
    special = set(_named_ids(model.config.to_dict()))
    written = getattr(model.get_output_embeddings(), "out_features", None)  # ids of images may never be predicted
    return [i for i in range(min(vocabulary(model), written or vocabulary(model))) if i not in special]


def _main(model: PreTrainedModel) -> str:
    """Return the name of the main input: token ids if the forward accepts them."""
    inner = body(model)
    accepted, usual = inspect.signature(inner.forward).parameters, str(inner.main_input_name)
    name = next((name for name in (usual, *MEDIA) if name in accepted), usual)
    if name not in ("input_ids", *MEDIA) or (name in MEDIA and _shape(model, name) is None):
        raise ValueError(
            f"{type(model).__name__} reads {name!r}, for which headroles has no dummy input; expected one of: "
            f"input_ids, {', '.join(MEDIA)}; try hr.attention_sites(model, inputs) with the inputs of one small forward"
        )
    return name


def has_decoder(model: PreTrainedModel) -> bool:
    """Return whether a model has an encoder, and a decoder with separate input tokens."""
    return bool(model.config.is_encoder_decoder) and "decoder_input_ids" in inspect.signature(model.forward).parameters


def reads_source_twice(model: PreTrainedModel) -> bool:
    """Return whether a model has a non-token head, so that its decoder reads the source (BART's classifier)."""
    return has_non_token_head(model) and has_decoder(model) and not model.can_generate()


def classifies(model: PreTrainedModel) -> Literal["", "texts", "words"]:
    """Return whether a small forward gives `num_labels` numbers for each text or token; ValueError if it fails."""
    if not has_non_token_head(model):
        return ""
    labels = model.config.num_labels
    length = SOURCE + (labels == SOURCE)  # so that a label of each token is not taken for a class
    try:
        with torch.no_grad(), evaluating(model):
            output = model(**examples(model, batch=1, length=length), **without_cache(model))
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{type(model).__name__} does not run on one text, image or sound alone ({reason})") from error
    logits = getattr(output, "logits", None)
    shape = logits.shape if isinstance(logits, Tensor) else ()
    return "texts" if shape == (1, labels) else "words" if shape == (1, length, labels) else ""


def _noise(model: PreTrainedModel, batch: int, generator: torch.Generator) -> Tensor:
    shape = _shape(model, _main(model)) or ()
    return torch.rand((batch, *shape), generator=generator).to(model.device, model.dtype)


def _shape(model: PreTrainedModel, name: str) -> tuple[int, ...] | None:
    """Return the shape of one image, video or sound; None if the config does not have it."""
    config = model.config
    if name == "pixel_values":
        inner = getattr(config, "vision_config", None) or getattr(config, "encoder", None)
        return _image_shape(config) or _image_shape(inner)
    names = ("num_mel_bins", "input_feat_per_channel", "hidden_channels", "feature_projection_input_dim")
    sizes = [getattr(config, option, None) for option in names]
    size = next((size for size in sizes if size), None)
    if name == "input_features" and size:
        frames = getattr(config, "max_source_positions", None) if sizes[0] else None
        return (size, 2 * frames) if frames else (8 * SOURCE, size)
    if size:
        return getattr(config, "max_length", None) or 8 * SOURCE, size
    if getattr(config, "conv_stride", None):
        return (prod(config.conv_stride) * SOURCE + sum(config.conv_kernel),)
    return None


def _image_shape(config: object) -> tuple[int, ...] | None:
    size = getattr(config, "image_size", None)
    if size is None:
        return None
    counts = (getattr(config, option, None) for option in ("num_channels", "in_channels", "in_chans"))
    channels = next((int(count) for count in counts if isinstance(count, int)), 3)
    frames = getattr(config, "num_frames", None)
    shape = (channels, *(size if isinstance(size, list | tuple) else (size, size)))
    return (frames, *shape) if frames else shape


def _last_words(model: PreTrainedModel, length: int) -> Tensor:
    """Return token ids of text only (some architectures count positions without padding): [1, length]."""
    ids = words(model)[-length:]
    return torch.tensor([(ids * length)[:length]], device=model.device)


def _texts(
    model: PreTrainedModel, batch: int, length: int, padding: int, generator: torch.Generator, side: str
) -> dict[str, Tensor]:
    known = torch.tensor(words(model))
    ids = known[torch.randint(len(known), (batch, length), generator=generator)]  # [batch, token]
    mask = torch.ones_like(ids)
    start = getattr(model.config, "decoder_start_token_id", None)
    if side and start is not None:
        ids[:, 0] = start
    pad = getattr(model.config, "pad_token_id", None)
    end = getattr(model.config, "eos_token_id", None)
    if reads_source_twice(model) and isinstance(end, int):  # its classifiers read the state at the end token
        ids[:, length - 1] = ids[1:2, length - padding - 1] = end
    ids[1:2, length - padding :] = 0 if pad is None else pad
    mask[1:2, length - padding :] = 0
    return {f"{side}input_ids": ids.to(model.device), f"{side}attention_mask": mask.to(model.device)}


def _named_ids(options: Mapping[str, object]) -> Iterator[int]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _named_ids(value)
        elif re.search(r"token_(id|index)$", str(name)):
            yield from (token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int))


def check_finite(model: PreTrainedModel) -> None:
    """Raise ValueError if a weight of `model`, or an output of one small forward, is NaN or infinite."""
    if place := nonfinite_weight(model) or nonfinite_output(model):
        raise ValueError(f"the numbers of {type(model).__name__} are not finite: {place}")


def nan_advice(model: PreTrainedModel) -> str:
    """Return the end of an error message on numbers that are not finite: which weights to check."""
    place = nonfinite_weight(model)
    return f"look for NaN or infinite weights in {type(model).__name__}{f': {place}' if place else ''}"


def nonfinite_weight(model: nn.Module) -> str | None:
    """Return the name of the first parameter with NaN or infinite values, and their number; None without any."""
    for name, value in model.named_parameters():
        if not (value.is_floating_point() and value.numel()):
            continue
        if not torch.linalg.vector_norm(value.detach(), inf).isfinite():  # without a copy in memory
            bad = int((~value.detach().isfinite()).sum())
            return f"{bad:,} of {value.numel():,} in {name}"
    return None


def nonfinite_output(model: PreTrainedModel) -> str | None:
    """Return the name of the first module with a NaN or infinite output in one small forward; None without any."""
    names = {module: name or type(model).__name__ for name, module in model.named_modules()}
    places: list[str] = []

    def callback(module: nn.Module, _: object, output: object) -> None:
        parts = output if isinstance(output, tuple) else [output]
        tensors = [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
        if not places and any(not tensor.isfinite().all() for tensor in tensors):
            places.append(f"the output of {names[module]}, in {str(model.dtype).removeprefix('torch.')}")

    with evaluating(model) as changes, torch.no_grad(), suppress(Exception):  # other inputs may raise anything
        for module in names:
            changes.hook(module, callback, after=True)
        output = body(model)(**dummy_inputs(model), **without_cache(body(model)))
        return places[0] if places and not output[0].isfinite().all() else None
    return None
