"""Training examples: the tokens and labels that a model learns from a corpus, and their batches."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerState

from headroles.data.corpus import Corpus
from headroles.models.head_model import HeadModel, Model
from headroles.models.speech import extractor, features
from headroles.models.tokens import vocabulary
from headroles.models.tokens.alignment import TokenizedSentence, pieces
from headroles.scores import outputs
from headroles.scores.outputs import check_labels
from headroles.tables.arguments import number

Row = dict[str, Any]  # an example: its tokens, and its label or labels; without labels if the collator masks tokens
UNMASKED = "label_ids"  # column of the tokens that are never masked, under a name that the Trainer leaves
MASKED = 0.15  # share of tokens that a masked language model learns to predict, as in BERT


def is_language_model(handle: HeadModel) -> bool:
    """Return whether a model predicts the tokens of the text itself: the next one, or masked ones."""
    return outputs.has_vocabulary(handle) and not handle.model.config.is_encoder_decoder


def check_examples(model: Model, corpus: Corpus, *, length: int | None = None) -> None:
    """Raise ValueError, before work is done, if a model cannot learn from a corpus."""
    handle = HeadModel.of(model)
    if length is not None and not is_language_model(handle):
        raise ValueError(f"length must be left out except for language models, got {handle.name} and length={length}")
    if length is not None:
        number("length", length, least=2, most=vocabulary.positions(handle.tokenizer, handle.model), whole=True)
    elif outputs.has_classes(handle):
        check_labels(corpus, of_words=outputs.labels_words(handle))
    elif not outputs.has_vocabulary(handle):
        raise ValueError(
            f"the model must classify or predict tokens, got {handle.name}; try headroles train, or "
            f"headroles.load_classifier(name, corpus) in Python, which adds a classification head, or a class that "
            f"predicts tokens, such as cls='AutoModelForMaskedLM' (--cls)"
        )
    elif not is_language_model(handle) and any(sentence.target is None for sentence in corpus):
        raise ValueError(f"a translator learns translations, got corpus {corpus.name!r} without them; give a target")


def examples(handle: HeadModel, corpus: Corpus, *, length: int | None = None) -> list[Row]:
    """Return the collator's input: the tokens of each example, its label or those of its words, or its translation.

    An example of a language model is a sentence, or with `length` so many tokens of all sentences together. A causal
    model learns each token from the tokens before it, a masked one the tokens that the collator masks.
    """
    check_examples(handle, corpus, length=length)
    if is_language_model(handle):
        return _text_rows(handle, corpus, length)
    encoded = handle.encode(corpus, words=False)
    labels: Sequence[int | float | list[int] | list[float]]
    if outputs.labels_words(handle):
        sentences = [words.sentence for words in encoded.source]
        labels = outputs.word_labels(handle, sentences, [words.words for words in encoded.source])
    elif encoded.target is None or outputs.has_classes(handle):
        labels = outputs.label_values(handle, [words.sentence.label for words in encoded.source])
    else:
        labels = [_labels(words) for words in encoded.target]
    pairs = zip(encoded.source, labels, strict=True)
    if encoded.feature_extractor is not None and encoded.target is not None:  # the collator reads the sound
        return [
            {"input_ids": ids, "decoder_input_ids": ids, "input_features": sound, "labels": label}
            for (sound, label), words in zip(pairs, encoded.target, strict=True)
            for ids in [[*(sound.prompt or [])[:1], *words.ids[:-1]]]
        ]
    return [{"input_ids": words.ids, **_types(words), "labels": label} for words, label in pairs]


def _text_rows(handle: HeadModel, corpus: Corpus, length: int | None) -> list[Row]:
    """Return the examples of a language model that have a token to predict."""
    if length is None:
        rows = [
            {"input_ids": words.ids, **_types(words), "labels": _labels(words)}
            for words in handle.encode(corpus, words=False).source
        ]
    else:
        rows = _parts(handle, corpus, length)
    if handle.predicts_next:  # the first token is not predicted, though the Trainer counts it for GPT-2 (5.24)
        rows = [{**row, "labels": [-100, *row["labels"][1:]]} for row in rows if {*row["labels"][1:]} - {-100}]
    else:
        left = {*handle.tokenizer.all_special_ids, -100}
        rows = [{**row, UNMASKED: [int(label in left) for label in row["labels"]]} for row in rows]
        rows = [row for row in rows if row.pop("labels") and 0 in row[UNMASKED]]  # the collator makes the labels
    if not rows:
        raise ValueError(f"corpus {corpus.name!r} must have tokens to predict, got none; try length=128")
    return rows


def _types(words: TokenizedSentence) -> dict[str, list[int]]:
    return {"token_type_ids": words.types} if words.types else {}


def _labels(words: TokenizedSentence) -> list[int]:
    """Return the tokens to learn, -100 for others: the tokens that have a loss when a model is evaluated."""
    learned = words.learned
    return words.ids if learned is None else [i if is_in else -100 for i, is_in in zip(words.ids, learned, strict=True)]


def _parts(handle: HeadModel, corpus: Corpus, length: int) -> list[Row]:
    """Join the tokens of all sentences and divide them into parts of a length; the last may be shorter."""
    end = handle.tokenizer.eos_token_id  # between sentences, unless the tokenizer adds special tokens
    marks = vocabulary.special(handle.tokenizer, handle.model)
    ids, labels = list[int](), list[int]()
    for row in pieces(handle.tokenizer, corpus.sentences, words=False):
        ends = [] if end is None or not marks.isdisjoint(row.ids) else [end]
        ids += [*row.ids, *ends]
        labels += [*_labels(row), *(ends if row.learned is None else [-100] * len(ends))]
    parts = (slice(start, start + length) for start in range(0, len(ids), length))
    return [{"input_ids": ids[part], "labels": labels[part]} for part in parts]


def collator(
    handle: HeadModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row], *, seed: int, masked: float = MASKED
) -> Any:
    """Return the collator of transformers that makes batches of examples."""
    if "input_features" in rows[0]:
        padding = vocabulary.padding(tokenizer, handle.model)
        return partial(_spoken, padding=padding, read=extractor(handle.model, tokenizer), dtype=handle.model.dtype)
    tokenizer = _padding_right(handle, tokenizer)
    if outputs.labels_words(handle):
        return transformers.DataCollatorForTokenClassification(tokenizer)
    if outputs.has_classes(handle):
        return transformers.DataCollatorWithPadding(tokenizer)
    if is_language_model(handle) and "labels" not in rows[0]:
        return Masking(tokenizer, mlm_probability=masked, order=seed)
    return transformers.DataCollatorForSeq2Seq(tokenizer, model=handle.model)


def _spoken(rows: Sequence[Row], *, padding: int, read: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return a batch of sounds, with what the decoder reads and its labels."""
    sides = {
        name: pad_sequence([torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=fill)
        for name, fill in (("decoder_input_ids", padding), ("labels", -100))
    }
    return {"input_features": features([row["input_features"] for row in rows], read).to(dtype), **sides}


def _padding_right(handle: HeadModel, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return the tokenizer, or a copy that pads after a text, where positions are those without padding."""
    if tokenizer.padding_side == "right" and tokenizer.pad_token is not None:
        return tokenizer
    tokenizer = deepcopy(tokenizer)
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(vocabulary.padding(tokenizer, handle.model))
    return tokenizer


class Masking(transformers.DataCollatorForLanguageModeling):
    """Collator that masks tokens by the seed, the epoch and the examples of a batch, at least one token in each batch.

    So a resumed training masks the same tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, mlm_probability: float, order: int) -> None:
        super().__init__(tokenizer, mlm_probability=mlm_probability)
        self.order = order
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers that stay alive see it change

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        """Return a batch of examples with masked tokens, and their labels."""
        drawn = repr((self.order, int(self.epoch), [list(row["input_ids"]) for row in examples])).encode()
        self.generator = torch.Generator().manual_seed(zlib.crc32(drawn))
        names = {UNMASKED: "special_tokens_mask"}  # as the collator calls it
        rows: list[Any] = [{names.get(name, name): row[name] for name in row} for row in examples]
        while True:
            batch: dict[str, Any] = super().torch_call(rows)
            if bool((batch["labels"] >= 0).any()):
                return batch


class Epochs(TrainerCallback):
    """Callback that sets the epoch of a collator, so that each epoch masks other tokens."""

    def __init__(self, masking: Masking) -> None:
        self.masking = masking

    def on_epoch_begin(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:  # noqa: ARG002
        """Set the epoch."""
        self.masking.epoch.fill_(int(state.epoch or 0))
