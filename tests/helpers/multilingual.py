"""Tiny translators of many languages, with tokenizers that need no network."""

from __future__ import annotations

import io
import json
from functools import partial

import transformers
from helpers import zoo

WORDS = ["cat", "dog", "bird", "sees", "hears", "big", "small", "house", "tree", "red"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
NLLB, MBART, M2M, PLBART = ("eng_Latn", "deu_Latn"), ("en_XX", "de_DE"), ("en", "de"), ("python", "java")
CODES = {"Nllb": NLLB, "MBart": MBART, "MBart50": MBART, "M2M100": M2M, "PLBart": PLBART}
SIZES = zoo.BART | {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}


def sentencepieces(folder):
    """Write a model of sentencepiece, and a vocabulary of its pieces."""
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    model = io.BytesIO()
    texts = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))] * 5
    options = {"vocab_size": 40, "hard_vocab_limit": False, "minloglevel": 2, "num_threads": 1}
    SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=model, **options)
    (folder / "pieces.model").write_bytes(model.getvalue())
    pieces = SentencePieceProcessor(model_proto=model.getvalue())
    names = [*SPECIAL, *(pieces.id_to_piece(i) for i in range(3, pieces.vocab_size()))]
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))


def tokenizer_of(family, pieces):
    words = [*SPECIAL, "▁", *(f"▁{word}" for word in WORDS)]
    scored = [(word, -float(i)) for i, word in enumerate(words)]
    codes = [(code, 0.0) for code in (*MBART, "fr_XX")]
    if family == "Nllb":
        parts, merges = list(dict.fromkeys("".join(WORDS))), []
        vocabulary = [*SPECIAL, "▁", *parts]
        for word in WORDS:
            for end in range(1, len(word) + 1):
                merges.append((f"▁{word[: end - 1]}", word[end - 1]))
                vocabulary.append(f"▁{word[:end]}")
        ids = {piece: i for i, piece in enumerate(dict.fromkeys(vocabulary))}
        made = partial(transformers.NllbTokenizer, ids, list(dict.fromkeys(merges)))
        return made(extra_special_tokens=[*NLLB, "fra_Latn"])
    if family == "M2M100":
        return transformers.M2M100Tokenizer(str(pieces / "vocab.json"), str(pieces / "pieces.model"))
    if family == "PLBart":
        return transformers.PLBartTokenizer(str(pieces / "pieces.model"), language_codes="multi")
    return getattr(transformers, f"{family}Tokenizer")(vocab=[*scored, *codes, ("<mask>", 0.0)])


def model_of(family, size, seldom):
    """A model that writes the tokens `seldom` less often."""
    name = {"Nllb": "M2M100", "MBart50": "MBart"}.get(family, family)
    config = getattr(transformers, f"{name}Config")(**SIZES | {"vocab_size": size})
    model = zoo.drawn(lambda: getattr(transformers, f"{name}ForConditionalGeneration")(config), seed=3)
    model.get_input_embeddings().weight.data[seldom] *= 0.1
    model.generation_config.max_length = 12
    return model
