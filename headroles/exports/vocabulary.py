"""Vocabularies of GGUF files: the tokens, merges and scores by which llama.cpp splits texts as a tokenizer does."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.models.tokens.vocabulary import check_belongs, vocabulary

SPACE = "▁"  # how SentencePiece writes a space
PROBE = """I'LL say it's 12345 o'clock,  don't   we? We'd\tgo\n\n  at 3:07pm!!\r\n
def f(x): return {"a": x**2, 'b': [1_000, 0x1F]}  # ≠ ½ ² №5
Größe naïve Ελλάδα Привет мир! שלום مرحبا नमस्ते 你好，世界。こんにちは 안녕 ไทย
ﬁne ＡＢＣ① e\u0301té XMLHttpRequest camelCaseWord UPPER lowerUPPER'S 👩‍👩‍👧🇩🇪 … “quoted” a/b\n \n"""


def _split(pattern: str) -> PreTokenizer:
    return Sequence([Split(Regex(pattern), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])


WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS += r"|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LOWER, UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
CASES = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
CASES += r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# The names that llama.cpp has for ways to split a text into words before byte-level merges, with the way, and whether
# a word that is a token is taken as it is.
SPLITS: dict[str, tuple[PreTokenizer, bool]] = {
    "gpt-2": (ByteLevel(add_prefix_space=False), False),
    "smollm": (Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]), False),
    "qwen2": (_split(WORDS.replace("DIGITS", r"\p{N}")), False),
    "llama-bpe": (_split(WORDS.replace("DIGITS", r"\p{N}{1,3}")), True),
    "smaug-bpe": (_split(WORDS.replace("DIGITS", r"\p{N}{1,3}")), False),
    "tekken": (_split(CASES), True),
}


@dataclass(frozen=True)
class Vocabulary:
    """What llama.cpp needs to split texts: its kind of tokenizer, tokens by id, and how they are merged."""

    kind: str  # "gpt2": byte-level merges by rank; "llama": merges of SentencePiece by score
    pre: str
    tokens: list[str]
    types: list[int]
    merges: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Vocabulary:
        """Read the vocabulary of a tokenizer; ValueError if llama.cpp has no tokenizer that splits texts as it does."""
        check_belongs(tokenizer, model)
        backend: Tokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
        spec = {} if backend is None else json.loads(backend.to_str())
        parts, name = spec.get("model", {}), type(tokenizer).__name__
        if backend is None or parts.get("type") != "BPE":
            got = parts.get("type", "no tokenizer.json")
            raise ValueError(f"llama.cpp needs a tokenizer of byte-pair merges, got {name} with {got}")
        if not _keeps(backend):
            raise ValueError(
                f"llama.cpp does not change texts before it splits them, but the normalizer of {name} does"
            )
        merges = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in parts["merges"]]
        tokens, types = _tokens(spec, vocabulary(model))
        if "ByteLevel" in _steps(spec["pre_tokenizer"]):
            pre = _pre(backend, ignores=bool(parts.get("ignore_merges")))
            if pre is None:
                known = ", ".join(SPLITS)
                raise ValueError(f"llama.cpp has to split texts into words as {name} does, which is none of {known}")
            return cls("gpt2", pre, tokens, types, merges=[" ".join(pair) for pair in merges])
        if not parts.get("byte_fallback") or not _is_complete(spec, {*merges}):
            raise ValueError(f"llama.cpp needs byte-level merges or those of SentencePiece, got others in {name}")
        ranks: dict[str, int] = {}
        for rank, pair in enumerate(merges):
            ranks.setdefault("".join(pair), rank)
        return cls("llama", "default", tokens, types, scores=[-float(ranks.get(token, 0)) for token in tokens])

    def write(self, writer: Any, tokenizer: PreTrainedTokenizerBase, ends: set[int]) -> None:
        """Add the vocabulary, the special tokens and the chat template to a file; `ends` are tokens that end a text."""
        writer.add_tokenizer_model(self.kind)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        writer.add_token_merges(self.merges)
        writer.add_token_scores(self.scores)
        for role in ("bos", "eos", "unk", "pad"):
            if (number := getattr(tokenizer, f"{role}_token_id")) is not None:
                getattr(writer, f"add_{role}_token_id")(number)
        for number in sorted(ends - {tokenizer.eos_token_id})[:1]:  # there is one place for a second
            writer.add_eot_token_id(number)
        text = list(tokenizer("a")["input_ids"])
        writer.add_add_bos_token(tokenizer.bos_token_id is not None and text[0] == tokenizer.bos_token_id)
        writer.add_add_eos_token(tokenizer.eos_token_id is not None and text[-1] == tokenizer.eos_token_id)
        if self.kind == "llama":
            first = tokenizer.convert_ids_to_tokens(tokenizer("a", add_special_tokens=False)["input_ids"])[0]
            writer.add_add_space_prefix(first.startswith(SPACE))
        if tokenizer.chat_template:
            templates: Any = tokenizer.chat_template
            named = templates.items() if isinstance(templates, dict) else ()
            writer.add_chat_template([{"name": key, "template": text} for key, text in named] or templates)


def _keeps(backend: Tokenizer) -> bool:
    """Return whether the normalizer changes nothing but spaces and, as llama.cpp's users accept, composed letters."""
    if backend.normalizer is None:
        return True
    text = backend.normalizer.normalize_str(PROBE).replace(SPACE, " ").removeprefix(" ")
    return text in (PROBE, unicodedata.normalize("NFC", PROBE))


def _tokens(spec: dict[str, Any], size: int) -> tuple[list[str], list[int]]:
    """Return the token of each embedding, and its type in a GGUF file."""
    from gguf import TokenType

    words = spec["model"]
    tokens, types = [f"[PAD{number}]" for number in range(size)], [TokenType.UNUSED] * size
    for token, number in words["vocab"].items():
        is_byte = words["byte_fallback"] and len(token) == 6 and token.startswith("<0x")
        tokens[number], types[number] = token, TokenType.BYTE if is_byte else TokenType.NORMAL
    for entry in spec["added_tokens"]:
        kind = TokenType.CONTROL if entry["special"] else TokenType.USER_DEFINED
        tokens[entry["id"]], types[entry["id"]] = entry["content"], kind
    if words["byte_fallback"] and words["unk_token"] in words["vocab"]:
        types[words["vocab"][words["unk_token"]]] = TokenType.UNKNOWN
    return tokens, [int(kind) for kind in types]


def _steps(step: dict[str, Any] | None) -> Iterator[str]:
    """Yield the types of the steps of a pre-tokenizer."""
    for part in (step or {}).get("pretokenizers", [step or {"type": ""}]):
        yield part["type"]


# llama.cpp does not read the expressions by which a tokenizer splits texts into words: it knows them by names. So the
# tokenizer and each named way split a text in which all of them differ.
def _pre(backend: Tokenizer, *, ignores: bool) -> str | None:
    """Return the name in llama.cpp of the way in which a byte-level tokenizer splits texts into words, if any."""
    text = PROBE if backend.normalizer is None else backend.normalizer.normalize_str(PROBE)
    given = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
    for name, (way, ignored) in SPLITS.items():
        if ignores == ignored and given == [word for word, _ in way.pre_tokenize_str(text)]:
            return name
    return None


def _is_complete(spec: dict[str, Any], merges: set[tuple[str, ...]]) -> bool:
    """Return whether any two neighbours that form a token merge, as they do in SentencePiece, whatever the pair."""
    vocab, added = spec["model"]["vocab"], {entry["content"] for entry in spec["added_tokens"]}
    return all(
        (token[:place], token[place:]) in merges
        for token in vocab.keys() - added
        for place in range(1, len(token))
        if token[:place] in vocab and token[place:] in vocab
    )
