"""The smallest forward of any model: what to call it with when only its attention matters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headroles.models import attention_hooks
from headroles.models.loading import vocabulary

SOURCE, TARGET = 7, 5  # lengths: they differ, so that shapes tell cross-attention
MEDIA = ("pixel_values", "input_features", "input_values")


def dummy_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """Arguments for one small forward: token ids, pixels or sound, and a target of another length."""
    name = _main(model)
    generator = torch.Generator().manual_seed(0)
    inputs = {name: _noise(model, 1, generator) if name in MEDIA else _last_words(model, SOURCE)}
    if _writes(model):
        inputs["decoder_input_ids"] = _last_words(model, TARGET)
    return inputs


def examples(model: PreTrainedModel, *, batch: int = 2, seed: int = 0) -> dict[str, Tensor]:
    """Random arguments for one forward of several examples; the second text ends two tokens (target: one) earlier."""
    generator = torch.Generator().manual_seed(seed)
    accepted, name = inspect.signature(model.forward).parameters, _main(model)
    padding = 2 if "attention_mask" in accepted else 0
    if name in MEDIA:
        inputs = {name: _noise(model, batch, generator)}
    else:
        inputs = _texts(model, batch, SOURCE, padding, generator, "")
    if _writes(model):
        inputs |= _texts(model, batch, TARGET, padding // 2, generator, "decoder_")
    return {name: value for name, value in inputs.items() if name in accepted}


def body(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its task's head; itself where what goes by its name reads something else."""
    found: Any = model.base_model
    reads = isinstance(found, PreTrainedModel) and model.main_input_name in inspect.signature(found.forward).parameters
    return found if reads else model


def words(model: PreTrainedModel) -> list[int]:
    """The token ids that stand for text, as far as the config tells: those it has no name for."""
    special = set(_named_ids(model.config.to_dict()))
    written = getattr(model.get_output_embeddings(), "out_features", None)  # pictures may have ids that are not written
    return [i for i in range(min(vocabulary(model), written or vocabulary(model))) if i not in special]


def without_cache(model: nn.Module) -> dict[str, bool]:
    """`use_cache=False` where the forward of `model` takes it: FSMT's decoder is causal only then."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def _main(model: PreTrainedModel) -> str:
    """What a model reads first: token ids where its forward can do with them alone."""
    inner = body(model)
    accepted, usual = inspect.signature(inner.forward).parameters, str(inner.main_input_name)
    name = next((each for each in (usual, *MEDIA) if each in accepted), usual)
    if name not in ("input_ids", *MEDIA) or (name in MEDIA and _shape(model, name) is None):
        raise ValueError(
            f"{type(model).__name__} reads {name!r}, which headroles does not know how to make "
            f"(known: input_ids, {', '.join(MEDIA)}); give sites(model, inputs) the arguments of one small forward"
        )
    return name


def _writes(model: PreTrainedModel) -> bool:
    return bool(model.config.is_encoder_decoder) and "decoder_input_ids" in inspect.signature(model.forward).parameters


def _noise(model: PreTrainedModel, batch: int, generator: torch.Generator) -> Tensor:
    shape = _shape(model, _main(model)) or ()
    return torch.rand((batch, *shape), generator=generator).to(model.device, model.dtype)


def _shape(model: PreTrainedModel, name: str) -> tuple[int, ...] | None:
    """The shape of one picture, clip or sound; None where the config does not tell."""
    config: Any = model.config
    if name == "pixel_values":
        return _picture(config) or _picture(getattr(config, "vision_config", None) or getattr(config, "encoder", None))
    bins = [getattr(config, each, None) for each in ("num_mel_bins", "input_feat_per_channel", "hidden_channels")]
    bins += [getattr(config, "feature_projection_input_dim", None)]
    found = next((one for one in bins if one), None)
    if name == "input_features" and found:
        frames = getattr(config, "max_source_positions", None) if bins[0] else None
        return (found, 2 * frames) if frames else (8 * SOURCE, found)
    if found:
        return config.max_length, found
    if getattr(config, "conv_stride", None):
        return (prod(config.conv_stride) * SOURCE + sum(config.conv_kernel),)
    return None


def _picture(config: Any) -> tuple[int, ...] | None:
    size = getattr(config, "image_size", None)
    if size is None:
        return None
    named = (getattr(config, each, None) for each in ("num_channels", "in_channels", "in_chans"))
    channels = next((int(one) for one in named if isinstance(one, int)), 3)
    frames = getattr(config, "num_frames", None)
    picture = (channels, *(size if isinstance(size, list | tuple) else (size, size)))
    return (frames, *picture) if frames else picture


def _last_words(model: PreTrainedModel, length: int) -> Tensor:
    """Token ids that are no special ones (some families count positions by what is not padding): [1, length]."""
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
    ids[1:2, length - padding :] = 0 if pad is None else pad
    mask[1:2, length - padding :] = 0
    return {f"{side}input_ids": ids.to(model.device), f"{side}attention_mask": mask.to(model.device)}


def _named_ids(options: Mapping[str, Any]) -> Iterator[int]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _named_ids(value)
        elif re.search(r"token_(id|index)$", str(name)):
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int))


def check(model: PreTrainedModel) -> None:
    """Raise ValueError where a weight of `model`, or a number of one small forward, is NaN or infinite."""
    if found := weights(model) or outputs(model):
        raise ValueError(f"the numbers of {type(model).__name__} are not finite: {found}")


def advice(model: PreTrainedModel) -> str:
    """Say what to look for in a model whose numbers were not finite, and in which weights."""
    found = weights(model)
    return f"look for NaN or infinite weights in {type(model).__name__}{f': {found}' if found else ''}"


def weights(model: nn.Module) -> str | None:
    """Name the first parameter with numbers that are NaN or infinite, and how many."""
    for name, value in model.named_parameters():
        if value.is_floating_point() and (bad := int((~value.detach().isfinite()).sum())):
            return f"{bad:,} of {value.numel():,} in {name}"
    return None


def outputs(model: PreTrainedModel) -> str | None:
    """Name the first module that puts out NaN or infinite numbers in one small forward."""
    names = {module: name or type(model).__name__ for name, module in model.named_modules()}
    found: list[str] = []

    def look(module: nn.Module, _: Any, output: Any) -> None:
        parts = output if isinstance(output, tuple) else [output]
        tensors = [one for one in parts if isinstance(one, Tensor) and one.is_floating_point()]
        if not found and any(not one.isfinite().all() for one in tensors):
            found.append(f"those that {names[module]} puts out, in {str(model.dtype).removeprefix('torch.')}")

    with ExitStack() as stack:
        for module in names:
            stack.callback(module.register_forward_hook(look).remove)
        stack.enter_context(attention_hooks.evaluating(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(suppress(Exception))  # a model may ask for other inputs, and raise anything
        output = body(model)(**dummy_inputs(model), **without_cache(body(model)))
        return found[0] if found and not output[0].isfinite().all() else None
    return None
