"""A BERT whose heads do what they do because their weights were written by hand, its tokenizer and its corpus."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice
from typing import NamedTuple

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from headroles.data.corpus import Corpus, Sentence, Span

POSITIONS, SIZE, HEADS, LAYERS, SENTENCES = 32, 40, 8, 2, 600
HIDDEN = HEADS * SIZE
# Classes of words: ending, number of frequent types (500 with the function words and endings), number of rare types.
CLASSES = {
    "subject": ("or", 74, 41), "verb": ("ate", 80, 45), "object": ("um", 145, 82), "adjective": ("ish", 109, 62),
    "adverb": ("ly", 80, 45)
}  # fmt: skip
RARE_COUNTS = (1, 1, 1, 2, 3)  # how often the rare types of a class occur, in turn; a frequent type occurs more often
SPECIAL = ("[PAD]", "[CLS]", "[SEP]")
# "withthe" is two words in one piece, so that one has none of its own; an unknown word is a word like any other
FUNCTION = ("the", "a", "with", "near", ".", "withthe", "[UNK]")


class Type(NamedTuple):
    """A word of the vocabulary: its pieces, and how often it occurs in the corpus (0: more often than any rare one)."""

    pieces: tuple[str, ...]
    count: int

    @property
    def form(self) -> str:
        return "".join(piece.removeprefix("##") for piece in self.pieces)


@cache
def lexicon() -> dict[str, tuple[Type, ...]]:
    """The open-class words, frequent ones first; every fourth is two pieces, stem + ending."""
    stems = _stems(random.Random(0))
    return {name: tuple(_types(stems, *shape)) for name, shape in CLASSES.items()}


def _stems(rng: random.Random) -> Iterator[str]:
    seen: set[str] = set()
    while True:
        stem = "".join(rng.choice(letters) for letters in ("bdfgklmnprstvz", "aeiou") * 2 + ("bdgklmnprst",))
        if stem not in seen:
            seen.add(stem)
            yield stem


def _types(stems: Iterator[str], ending: str, frequent: int, rare: int) -> Iterator[Type]:
    counts = [0] * frequent + list(islice(cycle(RARE_COUNTS), rare))
    for number, count in enumerate(counts):
        stem = next(stems)
        yield Type((stem, "##" + ending) if number % 4 == 0 else (stem + ending,), count)


@cache
def vocabulary() -> dict[str, int]:
    """Piece -> id."""
    pieces = [*SPECIAL, *FUNCTION]
    for types in lexicon().values():
        pieces += [piece for word in types for piece in word.pieces]
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


def tokenizer() -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer: [CLS] pieces [SEP], with offsets."""
    made = Tokenizer(models.WordPiece(vocabulary(), unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ids = [(token, vocabulary()[token]) for token in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=POSITIONS, **names)


class Word(NamedTuple):
    """A word of a sentence before its form is chosen: its governor and relation."""

    kind: str  # a class, or a function word; "+": no space before it
    name: str  # unique in the sentence, for governors
    governor: str
    relation: str


@cache
def corpus() -> Corpus:
    """Sentences with gold trees: phrases in free order around the verb, so that no fixed offset finds the subject."""
    rng = random.Random(1)
    skeletons = [_skeleton(rng) for _ in range(SENTENCES)]
    decks = {name: _deck(name, skeletons, rng) for name in CLASSES}
    return Corpus("planted", tuple(_sentence(words, decks, rng) for words in skeletons))


def _skeleton(rng: random.Random) -> list[Word]:
    passive = rng.random() < 0.08  # its subject is an object noun: no head looks there, and nsubj:pass is not nsubj
    phrases = [[Word("verb", "verb", "", "root")]]
    noun, relation = ("object", "nsubj:pass") if passive else ("subject", "nsubj")
    phrases.append(_noun_phrase(noun, "subject", relation, rng.choice((0, 1, 1, 2)), rng))
    if not passive and rng.random() < 0.8:
        phrases.append(_noun_phrase("object", "object", "obj", rng.choice((0, 0, 1)), rng))
    for number in range(rng.choice((0, 1, 1, 2))):
        phrases.append([Word("adverb", f"adverb{number}", "verb", "advmod")])
    for number in range(rng.choice((0, 1, 1, 2))):
        phrases.append(_oblique(f"oblique{number}", rng))
    if rng.random() < 0.05:
        phrases.append([Word("xyzzy", "unknown", "verb", "discourse")])
    rng.shuffle(phrases)
    if rng.random() < 0.2:
        phrases.sort(key=lambda phrase: phrase[0].name.startswith(("subject", "verb")))
    return [word for phrase in phrases for word in phrase] + [Word("+.", "stop", "verb", "punct")]


def _noun_phrase(kind: str, name: str, relation: str, adjectives: int, rng: random.Random) -> list[Word]:
    around = [Word("adjective", f"{name}-adjective{number}", name, "amod") for number in range(adjectives)]
    around.insert(rng.randint(0, adjectives), Word(kind, name, "verb", relation))
    return [Word(rng.choice(("the", "a")), f"{name}-the", name, "det")] * (rng.random() < 0.6) + around


def _oblique(name: str, rng: random.Random) -> list[Word]:
    pair = ("with", "+the") if rng.random() < 0.03 else (rng.choice(("with", "near")), rng.choice(("the", "a")))
    closed = [Word(kind, f"{name}-{kind}", name, link) for kind, link in zip(pair, ("case", "det"), strict=True)]
    return [*closed, Word("object", name, "verb", "obl")]


def _deck(kind: str, skeletons: list[list[Word]], rng: random.Random) -> list[str]:
    """As many words of a class as the sentences need: each rare type its number of times, the rest dealt evenly."""
    needed = sum(word.kind == kind for words in skeletons for word in words)
    rare = [word.form for word in lexicon()[kind] for _ in range(word.count)]
    frequent = [word.form for word in lexicon()[kind] if not word.count]
    deck = rare + list(islice(cycle(frequent), needed - len(rare)))
    rng.shuffle(deck)
    return deck


def _sentence(words: list[Word], decks: dict[str, list[str]], rng: random.Random) -> Sentence:
    text, spans = "", list[Span | None]()
    for word in words:
        form = decks[word.kind].pop() if word.kind in decks else word.kind
        text += form[1:] if form[0] == "+" else " " * bool(text) + form
        spans.append((len(text) - len(form.removeprefix("+")), len(text)))
        if word.kind == "+the" and rng.random() < 0.5:  # like German "zum": two words that are no stretch of the text
            spans[-2:] = [None, None]
    number = {word.name: index for index, word in enumerate(words)}
    heads = tuple(number.get(word.governor, -1) for word in words)
    return Sentence(text, tuple(spans), heads, tuple(word.relation for word in words))


# --- model -----------------------------------------------------------------------------------------------------------
# A token is a set of features: its class, its level of rarity, its position. What head h sees in query i and key j is
# score(i, j) = sum over rows of (weight of i's features) x (weight of j's features), then softmax: 20 wins over 10,
# which wins over 0. Every head but the uniform one falls back on the token itself (10), so that no decision is a tie.

NAMES = [*CLASSES, "function", "special", *(f"count {count}" for count in (0, 3, 2, 1)), *range(POSITIONS)]
Weights = dict[str | int, float]
Rows = list[tuple[Weights, Weights]]  # for each row what a query's and what a key's features weigh

EVERY: Weights = {position: 1.0 for position in range(POSITIONS)}  # each token has one of these
ITSELF: Rows = [({position: 1.0}, {position: 10.0}) for position in range(POSITIONS)]
# the rarest first, then the first; a sentence without rare words says "the first" and does not count
RAREST: Weights = {"count 3": 640.0, "count 2": 1280.0, "count 1": 1920.0, "special": -640.0}

SOURCES: dict[str, tuple[set[str], Rows]] = {
    "previous": ({"positional[-1]"}, [({p: 1.0}, {p: 15.0, p - 1: 20.0}) for p in range(1, POSITIONS)]),
    "next": ({"positional[+1]"}, [({p: 1.0}, {p: 15.0, p + 1: 20.0}) for p in range(POSITIONS - 1)]),
    "subject": ({"syntactic[nsubj head>dep]"}, [*ITSELF, ({"verb": 1.0}, {"subject": 20.0})]),
    "verb": ({"syntactic[nsubj dep>head]"}, [*ITSELF, ({"subject": 1.0}, {"verb": 20.0})]),
    "both": (
        {"syntactic[nsubj head>dep]", "syntactic[nsubj dep>head]"},
        [*ITSELF, ({"verb": 1.0}, {"subject": 20.0}), ({"subject": 1.0}, {"verb": 20.0})],
    ),
    "rarest": ({"rare"}, [(EVERY, RAREST | {position: -20.0 * position for position in range(POSITIONS)})]),
    "special": ({"sink[special]"}, [*ITSELF, (EVERY, {"special": 20.0, 0: -2.0})]),  # [SEP] more than [CLS]
    "uniform": (set(), []),
}
LAYOUT = (  # layer, head
    ("previous", "next", "subject", "verb", "rarest", "uniform", "special", "both"),
    ("uniform", "rarest", "both", "previous", "special", "next", "verb", "subject"),
)
PLANTED: dict[tuple[str, int, int], frozenset[str]] = {
    ("enc-self", layer, head): frozenset(SOURCES[name][0])
    for layer, names in enumerate(LAYOUT)
    for head, name in enumerate(names)
}


@cache
def model() -> BertModel:
    """The model; its attention adds nothing to the stream, so both layers see the embeddings."""
    config = BertConfig(
        vocab_size=len(vocabulary()), hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=8, max_position_embeddings=POSITIONS, pad_token_id=0,
    )  # fmt: skip
    made = BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.fill_(float(name.endswith("LayerNorm.weight")))
        _embed(made)
        for layer, names in zip(made.encoder.layer, LAYOUT, strict=True):
            for head, name in enumerate(names):
                _wire(layer.attention.self, head, SOURCES[name][1])
    return made


def _embed(made: BertModel) -> None:
    """One-hot features and their negatives: every token has mean 0 and the same norm, so LayerNorm only rescales."""
    words, positions = made.embeddings.word_embeddings.weight, made.embeddings.position_embeddings.weight
    for piece, number in vocabulary().items():
        for feature in _features(piece):
            _switch_on(words[number], feature)
    for position in range(POSITIONS):
        _switch_on(positions[position], position)


@cache
def _open_class() -> dict[str, tuple[str, str]]:
    found = {}
    for name, types in lexicon().items():
        found |= {word.pieces[0]: (name, f"count {word.count}") for word in types}
        found["##" + CLASSES[name][0]] = (name, "count 0")
    return found


def _features(piece: str) -> tuple[str, str]:
    return _open_class().get(piece, ("special" if piece in SPECIAL else "function", "count 0"))


def _switch_on(embedding: torch.Tensor, feature: str | int) -> None:
    place = NAMES.index(feature)
    embedding[place], embedding[HIDDEN // 2 + place] = 1.0, -1.0


def _wire(attention: torch.nn.Module, head: int, rows: Rows) -> None:
    """Write the rows of one head into the query and key maps of its layer."""
    lit = math.sqrt(HIDDEN / 6)  # a feature after LayerNorm: six of the HIDDEN numbers are 1 or -1, the others 0
    for row, (query, key) in enumerate(rows, start=head * SIZE):
        for feature, weight in query.items():
            attention.query.weight[row, NAMES.index(feature)] = weight * math.sqrt(SIZE) / lit**2
        for feature, weight in key.items():
            attention.key.weight[row, NAMES.index(feature)] = weight
