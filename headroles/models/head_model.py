"""HeadModel: a model with its tokenizer, the handle that all internal functions pass on.

It knows its attention sites and its identity, encodes a corpus into batches, runs a forward, masks heads and hands
attention to observers. It is bound to a call: public functions make one at their entry or take one, and whoever changes
the weights or removes heads makes a new one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy.typing as npt
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles._changes import Changes, heal, opened
from headroles._distributed import Axis
from headroles.data.corpus import Chat, Corpus
from headroles.models import attention_hooks, batching, dummy_inputs, heads, identity, masking, missing, sharded
from headroles.models.attention_hooks import PartCallback, without_cache
from headroles.models.batching import Batch, Encoded, groups, keep_memory, make_batch
from headroles.models.generation import continued
from headroles.models.independence import together
from headroles.models.loading import rounding
from headroles.models.parts import body, is_packed
from headroles.models.replacements import ReplacementLike
from headroles.models.sites import Head, Sites
from headroles.models.tokens import alignment, languages, vocabulary
from headroles.tables import frame
from headroles.tables.arguments import number
from headroles.tables.frame import Kind, sign, sign_version


class HeadModel:
    """A transformers model, of a compiled one the module behind it, with its tokenizer, if text is read.

    With `allow_sharded`, weights may be spread over processes by tensor parallelism.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, *, allow_sharded: bool = False
    ) -> None:
        heal()
        self.model = heads.uncompiled(model)
        self.body = body(self.model)  # without its task head, or itself if its base model reads other inputs
        self._tokenizer, self._tokenised = tokenizer, dict[int, tuple[Corpus, Encoded]]()
        self._checked: set[missing.What] = set()
        self._together: dict[str, dict[str, str]] = {}  # of each corpus, which of its texts may share a batch
        if not allow_sharded:
            self.check_unsharded()

    @classmethod
    def of(
        cls,
        model: PreTrainedModel | HeadModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        allow_sharded: bool = False,
    ) -> Self:
        """Return the handle of a model; a handle as it is."""
        if isinstance(model, cls):
            if not allow_sharded:
                model.check_unsharded()
            return model
        return cls(model, tokenizer, allow_sharded=allow_sharded)  # type: ignore[arg-type]

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer; ValueError without one."""
        if self._tokenizer is None:
            raise ValueError(f"no tokenizer: got {self.name} alone; expected the tokenizer that belongs to it")
        return self._tokenizer

    @property
    def name(self) -> str:
        """The class of the model, for messages."""
        return type(self.model).__name__

    @property
    def device(self) -> torch.device:
        """The device of the model's inputs."""
        device: torch.device = self.model.device
        return device

    @cached_property
    def sites(self) -> Sites:
        """The attention sites, in the order of the rows of every table."""
        return heads.attention_sites(self.model)

    @cached_property
    def index(self) -> pd.MultiIndex:
        """The index (kind, layer, head) of every table: the heads that are left."""
        return self.sites.head_index

    @cached_property
    def gated(self) -> pd.MultiIndex:
        """The index of gates and masks, including removed heads that are kept as zeroed heads."""
        return self.sites.gate_index

    def table(self, columns: Mapping[str, Any], text: str) -> pd.DataFrame:
        """Make a table, a row per head that is left, of values in the order of gates, with the provenance `text`."""
        return frame.table(columns, self.gated, text).loc[self.index]

    @property
    def heads(self) -> list[Head]:
        """(kind, layer, head) of every head that is left."""
        return [(kind, layer, head) for kind, layer, head in self.index]

    @cached_property
    def groups(self) -> dict[Head, frozenset[Head]]:
        """The remaining heads that share the key-value head of each head, itself included."""
        left = set(self.heads)
        shared = [{(*site.key, number) for number in group} & left for site in self.sites for group in site.groups]
        return {head: frozenset(group) for group in shared for head in group}

    @property
    def group_numbers(self) -> Tensor:
        """The number of every gate's key-value group among the groups of all layers: Tensor[heads]."""
        groups = [group for site in self.sites for group in site.groups]
        numbers = [place for place, group in enumerate(groups) for _ in group]
        return torch.tensor(numbers, dtype=torch.long, device=self.device)

    @property
    def kinds(self) -> set[Kind]:
        """The kinds of attention with heads."""
        return {site.kind for site in self.sites if site.heads}

    @cached_property
    def offloaded(self) -> bool:
        """Whether a `device_map` keeps some of the weights on CPU or disk."""
        return identity.is_offloaded(self.model)

    @cached_property
    def classifies(self) -> Literal["", "texts", "words"]:
        """What the model predicts a row of numbers for, one for each label: texts, or words by their first tokens."""
        return dummy_inputs.classifies(self.model)

    @cached_property
    def predicts_next(self) -> bool:
        """Whether the loss of a model without an encoder is that of the next token, as its class computes it."""
        if self.model.config.is_encoder_decoder or all(site.kind != "enc-self" for site in self.sites):
            return bool(self.sites) and not self.model.config.is_encoder_decoder
        inputs = dummy_inputs.dummy_inputs(self.model) if self.model.can_generate() else {}
        ids = inputs.get("input_ids")
        if ids is None or "labels" not in inspect.signature(self.model.forward).parameters:
            return False
        with self.evaluating(), torch.no_grad():  # attention may go both ways, and the labels still be shifted
            output = self.model(**inputs, labels=ids, **without_cache(self.model))
        logits = getattr(output, "logits", None)
        if output.loss is None or logits is None or logits.shape[:2] != ids.shape:
            return False
        rows = logits[0].float()
        itself, following = F.cross_entropy(rows, ids[0]), F.cross_entropy(rows[:-1], ids[0, 1:])
        return bool((output.loss - following).abs() < (output.loss - itself).abs())

    def check_unsharded(self, what: str = "", instead: str = "") -> None:
        """Raise ValueError for sharded weights: `what` needs all of them in one process, `instead` does not."""
        sharded.check_unsharded(self.model, what, instead)

    @cached_property
    def axis(self) -> Axis:
        """The processes that share the work; processes with a part of each weight do the same work."""
        return sharded.axis(self.model)

    # provenance and keys of kept results

    @cached_property
    def _hashes(self) -> tuple[str, str]:
        self.sites  # noqa: B018 - of a forward, the first of which changes the form of some quantised weights
        return identity.state_hashes(self.model)

    @cached_property
    def weights(self) -> str:
        """The digest of all weights, as in the provenance."""
        return identity.weights_digest(self.model, self._hashes[0])

    @cached_property
    def identity(self) -> str:
        """The digest of everything but the corpus that changes numbers (`headroles.models.identity`)."""
        return identity.identity(self.model, self._tokenizer, self._hashes[1])

    def provenance(self, corpus: Corpus | None = None, /, **fields: object) -> str:
        """Return the provenance of what was measured: model, weights, identity, corpus, other fields, version."""
        parts: dict[str, object] = {"model": identity.model_name(self.model), "weights": self.weights}
        parts |= rounding(self.model) | languages.named(self._tokenizer)
        parts["identity"] = self.identity
        if corpus is not None:
            parts |= {"corpus": corpus.name, "text": corpus.hash, **alignment.chat_digest(self._tokenizer, corpus)}
            parts |= self._together.get(corpus.hash, {})
        return f"{sign(**parts)}|{sign_version(**fields)}"

    def cache_key(self, corpus: Corpus | None = None, /, **fields: object) -> str:
        """Return the key of a kept result: identity, corpus, other fields, and the version of headroles.

        Call it before blocks are opened on the model, which it would refuse (`check_named`).
        """
        self.check_named()
        text = {} if corpus is None else {"text": corpus.hash, **alignment.chat_digest(self._tokenizer, corpus)}
        return sign_version(weights=self.weights, identity=self.identity, **text, **fields)

    def check_named(self) -> None:
        """Raise ValueError if hooks or open blocks, which the cache key does not cover, may change a kept result."""
        if reasons := identity.unkeyed(self.model, self._tokenizer):
            raise ValueError(
                f"the result cannot be kept: got {reasons[0]} of {self.name}, which may change its numbers and is "
                f"not in the provenance; leave the block or remove the hook first, or call without study="
            )

    # the corpus

    @cached_property
    def one_example_per_batch(self) -> bool:
        """Whether the model reads one example at a time, because other examples would change its numbers."""
        return batching.one_example_per_batch(self.model)

    def encode(
        self, corpus: Corpus, *, words: bool = True, generate: int | None = None, max_tokens: int = 4096
    ) -> Encoded:
        """Return a tokenised corpus; sentences longer than the model's positions are left out, and counted.

        With `generate` the model writes at most this many tokens after each text (`headroles.models.generation`), in
        batches of at most `max_tokens`.
        """
        self.check_writes(generate)
        self._check_tokenizer  # noqa: B018 - once
        self.predicts_next  # noqa: B018 - by a forward, before blocks are opened
        with self.evaluating():
            encoded = batching.encode(corpus, self.tokenizer, self.model, words=words)
            texts = [row.ids for row in encoded.source if not isinstance(row.sentence, Chat)]  # which templates begin
            vocabulary.check_beginning(self.tokenizer, self.model, texts)
            encoded = self._grouped(encoded, max_tokens)
        if encoded.greedy:  # the decoder reads what the model writes
            self.check_weights("output")
        if generate is None:
            return encoded
        positions = vocabulary.positions(self.tokenizer, self.model, target=self.model.config.is_encoder_decoder)
        with self.evaluating():  # texts are longer then
            return self._grouped(continued(encoded, self.model, generate, positions, max_tokens), max_tokens)

    def _grouped(self, encoded: Encoded, max_tokens: int) -> Encoded:
        """Note which texts may share a batch, also for the provenance."""
        mode = together(self.model, self.sites, encoded, max_tokens, self.forward_body)
        self._together[encoded.corpus.hash] = {} if mode == "any" else {"batches": mode}
        return replace(encoded, together=mode)

    @cached_property
    def _check_tokenizer(self) -> None:
        vocabulary.check_belongs(self.tokenizer, self.model)

    def tokenised(self, corpus: Corpus) -> Encoded:
        """Tokenise a corpus without words, once for this handle."""
        if id(corpus) not in self._tokenised:
            self._tokenised[id(corpus)] = corpus, self.encode(corpus, words=False)
        return self._tokenised[id(corpus)][1]

    def check_writes(self, generate: int | None) -> None:
        """Raise ValueError, before work is done, for a model that cannot write `generate` tokens; None needs none."""
        if generate is None:
            return
        number("generate", generate, least=1, whole=True)
        if not self.model.can_generate():
            raise ValueError(
                f"generate={generate} (--generate) needs a model that writes text, got {self.name}; try "
                f"cls='AutoModelForCausalLM' (--cls)"
            )
        self.check_weights("output")

    def batches(self, encoded: Encoded, *, max_tokens: int = 4096, part: tuple[int, int] = (0, 1)) -> Iterator[Batch]:
        """Yield batches of similar lengths, the longest first; `part` (p, q) yields batches p, p + q, p + 2 q ..."""
        return (make_batch(rows, encoded, self.model) for rows in groups(encoded, max_tokens, part))

    # forwards

    def forward(self, batch: Batch | Mapping[str, Tensor], **options: Any) -> Any:
        """Run the model on a batch, or on the arguments of one forward, without a cache of keys and values."""
        inputs = batch.inputs if isinstance(batch, Batch) else batch
        return self.model(**inputs, **without_cache(self.model), **options)

    def forward_body(self, batch: Batch | Mapping[str, Tensor]) -> Any:
        """Run the model without its task head."""
        inputs = batch.inputs if isinstance(batch, Batch) else batch
        return self.body(**inputs, **without_cache(self.body))

    def evaluating(self) -> Changes:
        """Set the model to eval mode within the block, and leave inference mode."""

        def begin(changes: Changes) -> None:
            if any(block.by_example and self.model in block.model.modules() for block in opened):
                raise ValueError(
                    f"a block of hr.mask_heads is open on {self.name} with gates per example: got a function that "
                    f"makes its own batches; expected one gate per head; try it outside the block"
                )
            keep_memory()
            attention_hooks.set_eval(changes)
            if torch.is_inference_mode_enabled():
                grad, modes = torch.is_grad_enabled(), list[object]()
                changes.undos.append(modes.clear)
                modes.append(torch._C._InferenceMode(False))  # for as long as this object lives
                torch.set_grad_enabled(grad)  # which leaving inference mode switches on

        return Changes(self.model, begin)

    def check_gradients(self, *, all_floating: bool = False) -> None:
        """Raise ValueError for weights that pass no gradient, with `all_floating` for any integer weights."""
        names = [name for name, module in self.model.named_modules() if is_packed(module)]
        if all_floating:
            names += [name for name, weight in self.model.named_parameters() if not weight.is_floating_point()]
            names += ["a quantization_config"] * getattr(self.model, "is_quantized", False)
        if packed := next(iter(names), None):
            raise ValueError(
                f"no gradient passes through the weights of {self.name}: got {packed}, which is quantised; expected "
                f"floating-point weights; try the model without quantization_config, before it was quantised"
            )

    def check_weights(self, what: missing.What) -> None:
        """Raise ValueError if the output or the attention depends on weights that the checkpoint lacks."""
        if what not in self._checked and (names := missing.needed(self.model, self.sites, what)):
            more = f" and {len(names) - 3} more" if names[3:] else ""
            raise ValueError(
                f"the {what} of {self.name} would be random: its checkpoint lacks {', '.join(names[:3])}{more}; try "
                f"another class, such as cls='AutoModel' (--cls AutoModel), or train it first; for a test of random "
                f"weights load it with allow_random=True (--allow-random)"
            )
        self._checked.add(what)

    def to_be_trained(self) -> Self:
        """Return this handle without checks of random weights, since these will be trained."""
        self._checked |= {"output", "attention"}
        return self

    def without_gradients(self) -> AbstractContextManager[None]:
        """Return a context without gradients: inference mode, or `no_grad` if a `device_map` loads weights in it.

        Weights that are loaded in inference mode can have no gradients afterwards. It begins and ends with the C++
        object that this returns, which only a `with` statement may hold: Python could be interrupted in between.
        """
        return torch.no_grad() if self.offloaded else torch._C._InferenceMode(True)

    def mask(
        self, gates: Tensor | npt.ArrayLike | Callable[[], Tensor], replacement: ReplacementLike = None
    ) -> Changes:
        """Replace every head's output z by g z + (1 - g) replacement within the block (`hr.mask_heads`)."""
        return masking.masked(self.model, self.sites, gates, replacement)

    @cached_property
    def _divisible(self) -> bool:
        return heads.divisible(self.model)

    def capture(self, callback: PartCallback, *, cells: int | None = None) -> Changes:
        """Call `callback(site, weights, first, mask)` at each attention in the block, for at most `cells` weights."""
        # A part has some queries, from position `first` on, so that memory is linear in the length of a text.
        cells = cells if cells and self._divisible else None  # a model that allows no parts gives all weights of a call
        return Changes(self.model, lambda changes: attention_hooks.capture(changes, self.sites, callback, cells))


Model = PreTrainedModel | HeadModel  # what public functions take
