"""What the benchmarks against others run on: a random model, a tokenizer of made-up words, a corpus, its batches."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from timing import device
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel, PreTrainedModel
from transformers import PreTrainedTokenizerFast as Fast

import headroles as hr
from headroles.models import heads as families
from headroles.models.attention_hooks import without_cache
from headroles.models.batching import Batch, TokenView
from headroles.models.head_model import HeadModel
from headroles.scores import outputs

SPECIAL = {"<pad>": 0, "</s>": 1, "<s>": 2}
PLACES = {  # (type of model, kind) -> hooks of TransformerLens, attention module, its output projection
    ("marian", "enc-self"): ("encoder_blocks.{}.attn", "model.encoder.layers.{}.self_attn", "out_proj"),
    ("marian", "dec-self"): ("decoder_blocks.{}.self_attn", "model.decoder.layers.{}.self_attn", "out_proj"),
    ("marian", "cross"): ("decoder_blocks.{}.cross_attn", "model.decoder.layers.{}.encoder_attn", "out_proj"),
    ("gpt2", "dec-self"): ("blocks.{}.attn", "transformer.h.{}.attn", "c_proj"),
}


@dataclass(frozen=True)
class Tool:
    """One way to do a job: `make(setting)` gives what is timed, which returns a table with a row for each head."""

    make: Callable[[Setting], Callable[[], pd.DataFrame]]
    against: str | None = None  # whose numbers it should give
    note: str = ""


@dataclass(frozen=True)
class Job:
    """A job, the tools that do it, ours first, and why others do not."""

    name: str
    tools: dict[str, Tool]
    cannot: dict[str, str]
    size: tuple[int, int] = (16, 24)  # sentences and words of each
    repeats: int = 1  # for each that is asked for


@dataclass
class Setting:
    """A model and a corpus for it. `alone`: one tool has the model for itself, in a process of its own."""

    model: PreTrainedModel
    tokenizer: Fast
    corpus: hr.Corpus
    alone: bool = False
    few: int | None = None  # so many heads are closed, by default all
    max_tokens: int = 4096
    batches: list[Batch] = field(init=False)
    index: pd.MultiIndex = field(init=False)
    handle: HeadModel = field(init=False)
    labels: list[Tensor] = field(init=False)  # what should be written after each token of each batch, -100: nothing

    def __post_init__(self) -> None:
        self.model.eval()
        self.handle = HeadModel.of(self.model, self.tokenizer)
        encoded = self.handle.encode(self.corpus, words=False)
        self.batches = list(self.handle.batches(encoded, max_tokens=self.max_tokens))
        self.index = families.head_index(self.model)
        self.labels = [outputs.labels(self.handle, batch) for batch in self.batches]

    @property
    def closing(self) -> pd.MultiIndex:
        """The heads to be closed, one by one."""
        return self.index if self.few is None else self.index[:: max(1, len(self.index) // self.few)]

    @property
    def heads(self) -> int:
        """How many heads a layer has."""
        return 1 + max(head for _, _, head in self.index)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        return batch.inputs | without_cache(self.model)

    def sites(self) -> list[tuple[str, int]]:
        return list(dict.fromkeys((kind, layer) for kind, layer, _ in self.index))

    def calls(self) -> list[tuple[str, int]]:
        """The sites in the order of a forward, which a trace of nnsight must keep."""
        return sorted(self.sites(), key=lambda site: (site[0] != "enc-self", site[1], site[0] == "cross"))

    def place(self, kind: str, layer: int) -> tuple[str, str, str]:
        """Of one site: its hooks in TransformerLens, its attention module, its output projection."""
        hooks, module, out = (part.format(layer) for part in PLACES[self.model.config.model_type, kind])
        return hooks, module, f"{module}.{out}"

    def own(self) -> PreTrainedModel:
        """The model for a tool that changes what it is given: a copy, where others want it too."""
        return self.model if self.alone else deepcopy(self.model)

    def projections(self) -> list[nn.Module]:
        return [self.model.get_submodule(self.place(*site)[2]) for site in self.sites()]

    def table(self, name: str, values: Tensor | list[float]) -> pd.DataFrame:
        """A column of all heads, or of those that are closed."""
        column = torch.as_tensor(values).detach().double().numpy()
        return pd.DataFrame({name: column}, self.index if len(column) == len(self.index) else self.closing)


def marian(words: int = 8000, *, layers: int = 6, width: int = 512, heads: int = 8) -> MarianMTModel:
    sides = {
        f"{side}_{name}": n
        for side in ("encoder", "decoder")
        for name, n in (("layers", layers), ("attention_heads", heads), ("ffn_dim", 4 * width))
    }
    named = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "decoder_start_token_id": 0}
    torch.manual_seed(0)
    return MarianMTModel(MarianConfig(**sides, **named, d_model=width, vocab_size=words))


def gpt2(words: int = 8000, *, layers: int = 6, width: int = 512, heads: int = 8) -> GPT2LMHeadModel:
    named = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**named, n_layer=layers, n_embd=width, n_head=heads, vocab_size=words))


MODELS: dict[str, Callable[..., PreTrainedModel]] = {"Marian": marian, "GPT-2": gpt2}


def setting(model: PreTrainedModel, sentences: int, words: int, **options: Any) -> Setting:
    """A model and random sentences for it."""
    model.to(device())
    return Setting(model, tokenizer(model.config.vocab_size), random_corpus(model, sentences, words), **options)


def random_corpus(model: PreTrainedModel, sentences: int, words: int) -> hr.Corpus:
    """Random sentences of so many words each, with translations for a model that reads them."""
    size = model.config.vocab_size
    drawn = torch.randint(len(SPECIAL), size, (2, sentences, words), generator=torch.Generator().manual_seed(0))
    source, target = ([" ".join(f"w{i}" for i in row) for row in side.tolist()] for side in drawn)
    pairs = [
        hr.Sentence(one, target=hr.Sentence(other) if model.config.is_encoder_decoder else None)
        for one, other in zip(source, target, strict=True)
    ]
    return hr.Corpus("random words", tuple(pairs))


def tokenizer(words: int) -> Fast:
    """One token for each word, and an end."""
    known = SPECIAL | {f"w{i}": i for i in range(len(SPECIAL), words)}
    each = Tokenizer(models.WordLevel(known, unk_token="<pad>"))
    each.pre_tokenizer = pre_tokenizers.Whitespace()
    each.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return Fast(tokenizer_object=each, pad_token="<pad>", eos_token="</s>", bos_token="<s>")


def lens(of: Setting) -> Any:
    """The model in TransformerLens."""
    from transformer_lens.model_bridge import TransformerBridge

    with (
        tempfile.TemporaryDirectory() as folder
    ):  # it reads the config and the tokenizer, which nothing uses, once more
        of.model.config.save_pretrained(folder)
        of.tokenizer.save_pretrained(folder)
        given = {"hf_model": of.own(), "tokenizer": Fast.from_pretrained(folder), "device": str(of.model.device)}
        return TransformerBridge.boot_transformers(folder, **given)


def lens_inputs(batch: Batch) -> tuple[tuple[Tensor], dict[str, Tensor]]:
    """What TransformerLens is called with."""
    rest = {name: value for name, value in batch.inputs.items() if name != "input_ids"}
    return (batch.inputs["input_ids"],), rest


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss summed over all tokens."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def installed(package: str) -> str:
    """The version of a package that can be imported, or why it cannot, in one line."""
    try:
        __import__(package.replace("-", "_"))
    except Exception as error:  # whatever stops a package from being imported is the answer
        return f"cannot be imported: {type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return version(package)


def random_batch(model: PreTrainedModel, words: int, sentences: int, tokens: int) -> Batch:
    """So many sentences of random tokens, with targets for a model that writes."""
    generator = torch.Generator().manual_seed(0)
    source, target = (_view(torch.randint(3, words, (sentences, tokens), generator=generator)) for _ in range(2))
    inputs = {"input_ids": source.ids, "attention_mask": source.attention_mask.long()}
    if not model.config.is_encoder_decoder:
        return Batch(tuple(range(sentences)), inputs, source, None)
    labels = target.ids.clone()
    return Batch(tuple(range(sentences)), inputs | {"decoder_input_ids": target.ids}, source, target, labels)


def _view(ids: Tensor) -> TokenView:
    present = torch.ones_like(ids, dtype=torch.bool)
    return TokenView(ids, present, present, torch.arange(ids.shape[1]).expand_as(ids), (None,) * len(ids))
