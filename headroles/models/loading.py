"""Load a model with its tokenizer, and what the two say of themselves: tokens, positions, a name for the weights."""

from __future__ import annotations

import hashlib
import shutil
from copy import deepcopy
from filecmp import cmp
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from headroles import _distributed
from headroles.models import submodels, tokenization
from headroles.models.pruned import resized
from headroles.models.sites import recorded, recorded_sites
from headroles.models.tokenization import check_belongs as check_belongs
from headroles.models.tokenization import check_fit as check_fit
from headroles.models.tokenization import remember
from headroles.models.tokenization import tokens as tokens
from headroles.models.tokenization import vocabulary as vocabulary
from headroles.tables.files import beside, forget_drafts


def load(
    name: str | Path, *, cls: str | None = None, submodel: str | None = None, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and tokenizer of a hub id or a local folder, in eval mode.

    It is of the class the checkpoint was saved from, or of `cls`, such as "AutoModelForSequenceClassification";
    `options` go to the model's `from_pretrained`. `tower`: only that part of a model of text, pictures or sound, as
    `hr.submodel`. A model whose heads were cut out comes back as it was saved. Weights the checkpoint lacks, such as a
    pooler's, are drawn the same at every load. Code that comes with a checkpoint is run only with
    `trust_remote_code=True`. Raises OSError with the name and what was missing.
    """
    model = alone(name, cls=cls, submodel=submodel, **options)
    try:
        tokenizer = tokenization.load(name) or transformers.AutoTokenizer.from_pretrained(name, **_trust(options))
    except Exception as error:  # besides transformers', those of safetensors and of tokenizers, which are bare
        raise _unloadable(name, reason_of(error)) from error
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):  # what transformers makes of no files
        raise _unloadable(name, "no vocabulary in its tokenizer, or no tokenizer")
    check_belongs(tokenizer, model)
    remember(tokenizer, model)
    return model, tokenizer


def alone(name: str | Path, *, cls: str | None = None, submodel: str | None = None, **options: Any) -> PreTrainedModel:
    """The model that `load` gives, without a tokenizer: of pictures or sound, for one."""
    try:
        config = transformers.AutoConfig.from_pretrained(name, **_trust(options))
        called = cls or (config.architectures or ["AutoModel"])[0]
        chosen = getattr(transformers, called)
        if not (hasattr(chosen, "_model_mapping") or issubclass(chosen, PreTrainedModel)):
            raise ValueError(f"its config names {called} as its class, which is no model")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the revision is of all weights
            model = _loaded(chosen, config, name, options | _trust(options))
    except Exception as error:  # besides transformers', those of safetensors and of tokenizers, which are bare
        raise _unloadable(name, reason_of(error)) from error
    found = model if submodel is None else submodels.submodel(model, submodel)
    found.eval()
    return found


def _trust(options: dict[str, Any]) -> dict[str, bool]:
    """Off unless asked for: by default transformers asks on a terminal."""
    return {"trust_remote_code": bool(options.get("trust_remote_code"))}


def configured(path: Path) -> PreTrainedConfig:
    """The config in a file. Raises OSError where it cannot be read."""
    try:
        return transformers.AutoConfig.from_pretrained(path)  # type: ignore[no-any-return]
    except Exception as error:  # besides transformers', those of safetensors and of tokenizers, and of JSON
        raise OSError(f"could not read the config {str(path)!r}: {reason_of(error)}") from error


def tokenizer_of(folder: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer that a folder holds without a model."""
    made: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return made


def _loaded(cls: Any, config: Any, name: str | Path, options: dict[str, Any]) -> PreTrainedModel:
    if recorded(config) is None:
        whole: PreTrainedModel = cls.from_pretrained(name, **options)
        return whole
    if hasattr(cls, "_model_mapping"):  # AutoModelFor...
        cls = cls._model_mapping[type(config)]
    cut: PreTrainedModel = resized(cls).from_pretrained(name, **options)
    cut.__class__ = cls
    if recorded_sites(cut) is None:
        raise ValueError("its record of heads is of weights of other sizes")
    return cut


def untrained(model: PreTrainedModel, *, seed: int = 0) -> PreTrainedModel:
    """A model of the same class, sizes and heads as another, its weights drawn anew."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh: PreTrainedModel = resized(type(model))(deepcopy(model.config))
    fresh.__class__ = type(model)
    if model.can_generate():
        fresh.generation_config = deepcopy(model.generation_config)
    fresh.to(model.device)  # type: ignore[arg-type]
    fresh.eval()
    return fresh


def shifted(model: PreTrainedModel, labels: torch.Tensor) -> torch.Tensor:
    """What a decoder reads that is to write `labels`: its start token and all of them but the last."""
    own: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if own is not None:
        return own(labels=labels)  # type: ignore[no-any-return]
    config: Any = model.config
    return torch.cat([torch.full_like(labels[:, :1], config.decoder_start_token_id), labels[:, :-1]], dim=1)


def name(model: PreTrainedModel) -> str:
    """What a signature calls a model: the last two parts of the name or folder it was loaded by, or its class."""
    return "/".join(Path(model.config.name_or_path or "").parts[-2:]) or type(model).__name__


def revision(model: PreTrainedModel) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of all weights, with their names and shapes."""
    digest = hashlib.sha256()
    for key, value in weights(model).items():
        digest.update(f"{key}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """All weights by their names, also those that a `device_map` keeps on a disk until a layer needs them."""
    here: dict[str, torch.Tensor] = model.state_dict()
    if not is_offloaded(model):
        return here
    from accelerate.utils.modeling import get_state_dict_offloaded_model

    found = get_state_dict_offloaded_model(model)
    return {key: found.get(key, value) for key, value in here.items()}


def is_offloaded(model: PreTrainedModel) -> bool:
    """Whether a `device_map` keeps some of the weights away until a layer needs them."""
    return any(value.is_meta for value in model.parameters())


def configuration(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """12 hexadecimal digits of all that a model's work follows from besides its weights: configs and tokenizer."""
    generation: Any = model.generation_config if model.can_generate() else None
    told = [model.config.to_json_string(), None if generation is None else generation.to_json_string()]
    sample = "A b."
    ids = [tokenizer(sample)["input_ids"], tokenizer(text_target=sample)["input_ids"]]
    return hashlib.sha256(repr((told, tokens(tokenizer), ids)).encode()).hexdigest()[:12]


def special(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> frozenset[int]:
    """Ids of the tokens that stand for no text: EOS, BOS, CLS, SEP, padding and start tokens, but not unknown words.

    A model may pad or start with the token of unknown words: a word it is all the same, and padding is known by place.
    """
    ends: set[Any] = {getattr(tokenizer, f"{role}_token_id", None) for role in ("bos", "eos", "cls", "sep")}
    ends |= {getattr(model.config, "decoder_start_token_id", None)} - {tokenizer.unk_token_id}
    return frozenset(({*tokenizer.all_special_ids} - {tokenizer.unk_token_id} | ends) - {None})


def positions(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """How many tokens the model has positions for; a very large number where nothing limits them."""
    config: Any = model.config
    limits = [tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or 10**9]
    offset = getattr(model.base_model, "embeddings", None)
    padding = getattr(getattr(offset, "position_embeddings", None), "padding_idx", None)
    if padding is not None:  # RoBERTa counts positions from padding_idx + 1
        limits[1] -= padding + 1
    return int(min(limits))


def padding(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """The id that fills up a batch: the padding token's, without one the end token's (it is masked)."""
    config: Any = model.config
    candidates = (tokenizer.pad_token_id, getattr(config, "pad_token_id", None), tokenizer.eos_token_id, 0)
    return int(next(i for i in candidates if i is not None))


def causal(model: PreTrainedModel) -> bool:
    """Whether a model without an encoder predicts the token that comes next, also one that reads pictures too."""
    config: Any = model.config
    if type(model).__name__.endswith(("CausalLM", "LMHeadModel")) or getattr(config, "is_decoder", False):
        return True
    return bool(model.can_generate()) and not config.is_encoder_decoder


def place(model: PreTrainedModel, device: str | None = None) -> PreTrainedModel:
    """The model on `device`, by default on this process's GPU if there is one.

    Raises ValueError for a device torch cannot use.
    """
    device = device or (f"cuda:{_distributed.local_rank()}" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1).to(device).cpu()  # `meta` would take the weights and give nothing back
        model.to(torch.device(device))  # type: ignore[arg-type]
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {device!r} cannot be used: {reason}") from error
    return model


def _unloadable(name: str | Path, reason: str) -> OSError:
    there = "a local folder needs config.json, weights, tokenizer"
    hint = there if Path(name).is_dir() else "no such folder here; a hub id is owner/name"
    return OSError(f"could not load {str(name)!r}: {reason} ({hint})")


def reason_of(error: Exception) -> str:
    """The first line of what the error says, with its kind where that alone says little."""
    first = (str(error).strip().splitlines() or [""])[0]
    return first if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {first}"


def save(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: str | Path, *, overwrite: bool = False
) -> Path:
    """Save a model, whole or with heads cut out, and its tokenizer in a folder, for `load`.

    Files are written beside the folder and moved there when all are whole: a full disk leaves what was there before.
    Raises FileExistsError for a study, or a folder of another model, unless `overwrite`; OSError with the path and the
    reason.
    """
    place = Path(folder)
    if not overwrite:
        check_no_study(place)
    draft = beside(place.absolute())
    try:
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        if not overwrite:
            _check_same_model(place, draft)
        place.mkdir(parents=True, exist_ok=True)
        for file in draft.iterdir():
            file.replace(place / file.name)
        forget_drafts(place.absolute())
    except FileExistsError:
        raise
    except Exception as error:  # besides transformers', those of safetensors and of tokenizers, which are bare
        raise OSError(f"could not write {place}: {reason_of(error)}; what was there before is unchanged") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place


def check_no_study(place: Path) -> None:
    """Raise FileExistsError for a folder of tables: a model does not belong there."""
    if tables := sorted(file.name for file in place.glob("*.parquet")):
        raise FileExistsError(
            f"{place} is a study: it holds {', '.join(tables[:3])}; name another folder for the model"
        )


def weight_files(place: Path) -> list[Path]:
    """The files of weights in a folder."""
    return [*place.glob("*.safetensors"), *place.glob("pytorch_model*.bin")]


def _check_same_model(place: Path, draft: Path) -> None:
    """Raise FileExistsError where files of a folder would be replaced by other ones, or weights stay beside others."""
    files = {file.name for file in draft.iterdir()} - {"tokenizer_config.json"}  # which is another after each load
    others = [file for file in files if (place / file).is_file() and not cmp(place / file, draft / file, shallow=False)]
    weights = [file.name for file in weight_files(place)]
    if wrong := sorted({*others, *weights} - (files - {*others})):
        raise FileExistsError(
            f"{place} holds another model: its {', '.join(wrong)} would be replaced or stay beside; name another "
            f"folder, or overwrite it (--overwrite)"
        )
