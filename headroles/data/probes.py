"""Probes: token sequences in which a kind of head has something to do, for any tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

from headroles.data import synthetic
from headroles.data.corpus import Corpus, Tokens
from headroles.tables.arguments import number, one_of

HAYSTACK, NEEDLE = 200, 10  # tokens
LONG, DIGITS = 1000, 5  # tokens of a long haystack, digits of a code
STATED = (
    ("The code of {name} is", "."),
    ("Do not forget that {name} was given the number", " as a code."),
    ("{name} opens the door with", ", and with nothing else."),
    ("To enter, {name} types", " on the keys."),
)
ASKED = (
    "Question: Which code does {name} have? Answer: The code of {name} is",
    "Question: What does {name} type to open the door? Answer: {name} types",
    "Question: Which number was given to {name}? Answer: The number of {name} is",
)
FEWEST = 3  # members of an ordered class of words
_NUMBERS = "one two three four five six seven eight nine ten eleven twelve"
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth"
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
_MONTHS = "January February March April May June July August September October November December"
CLASSES = {
    "days": _DAYS.split(),
    "months": _MONTHS.split(),
    "numbers": _NUMBERS.split(),
    "ordinals": _ORDINALS.split(),
    "digits": [str(number) for number in range(1, 31)],
    "letters": list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}


@dataclass(frozen=True, slots=True)
class Needle(Tokens):
    """A haystack with a needle in it, which the end repeats: `ids[needle:needle + size] == ids[answer:]`."""

    needle: int = 0
    answer: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Choice(Tokens):
    """A text that `right` continues, a token, and none of `wrong`."""

    right: int = 0
    wrong: tuple[int, ...] = ()


def needles(
    tokenizer: PreTrainedTokenizerBase,
    count: int = 100,
    *,
    length: int = HAYSTACK,
    size: int = NEEDLE,
    haystack: Corpus | None = None,
    seed: int = 0,
) -> Corpus:
    """Hide a needle, distinct random tokens, in a haystack that ends with the needle once more.

    They measure retrieval heads (Wu et al. 2024, "Retrieval head mechanistically explains long-context factuality",
    arXiv 2404.15574). The needles lie at all depths in equal shares. No token of a needle is in its haystack, none is
    special. The tokenizer's BOS precedes the haystack if it has one.

    Args:
        tokenizer: The model's tokenizer.
        count: Number of sequences.
        length: Tokens of the haystack.
        size: Tokens of the needle.
        haystack: Sentences that make up the haystacks; default: random tokens.
        seed: Seed of the draw.

    Returns:
        A corpus of `Needle`.

    Raises:
        ValueError: If a size is out of range or the vocabulary has too few tokens.
    """  # noqa: DOC502
    plain = _plain(tokenizer)
    number("count", count, least=1, whole=True)
    number("length", length, least=1, whole=True)
    number("size", size, least=2, below=len(plain), whole=True)
    texts, start, rng, sentences = _texts(tokenizer, haystack), _start(tokenizer), Random(seed), []
    for depth in _depths(count, length):
        drawn = rng.sample(plain, size)
        if texts is None:
            hay = rng.choices(sorted({*plain} - {*drawn}), k=length)
        else:
            hay = _stacked(texts, length, rng)
            rest = sorted({*plain} - {*hay})
            if len(rest) < size:
                raise ValueError(f"too few tokens outside the haystack: got {len(rest)}; expected size={size} or more")
            drawn = rng.sample(rest, size)
        ids = [*start, *hay[:depth], *drawn, *hay[depth:]]
        sentences.append(_needle(tokenizer, ids, drawn, len(start) + depth))
    return Corpus(f"needles-{length}-{size}", tuple(sentences))


def hidden_facts(
    tokenizer: PreTrainedTokenizerBase,
    count: int = 100,
    *,
    facts: int = 4,
    length: int | Sequence[int] = LONG,
    haystack: Corpus | None = None,
    seed: int = 0,
) -> Corpus:
    """Hide several facts in a long haystack, each in one of several wordings, and ask for one of them in another.

    A fact is that somebody has a code of five digits; the text ends with the code that the question asks for. They
    calibrate what heads need the long context (`hr.cache_budget`). The facts that are asked for lie at all depths in
    equal shares, the others anywhere. The tokenizer's BOS precedes the haystack if it has one.

    Args:
        tokenizer: The model's tokenizer.
        count: Number of texts.
        facts: Facts in each text, of different people.
        length: Tokens of the haystack, or several lengths, which take turns.
        haystack: Sentences that make up the haystacks; default: random tokens.
        seed: Seed of the draw.

    Returns:
        A corpus of `Needle`: the needle is the code where it is stated, the answer the code at the end.

    Raises:
        ValueError: If a number is out of range.
    """  # noqa: DOC502
    names, lengths = synthetic.NAMES, [length] if isinstance(length, int) else [*length]
    number("count", count, least=1, whole=True)
    number("facts", facts, least=1, most=len(names), whole=True)
    number("length", min(lengths, default=0), least=1, whole=True)
    plain, texts, start, rng, sentences = (
        _plain(tokenizer),
        _texts(tokenizer, haystack),
        _start(tokenizer),
        Random(seed),
        [],
    )
    for row in range(count):
        size = lengths[row % len(lengths)]
        hay = rng.choices(plain, k=size) if texts is None else _stacked(texts, size, rng)
        people = rng.sample(names, facts)
        places = [_depths(count, size)[row], *(rng.randint(0, size) for _ in people[1:])]
        stated = [_stated(tokenizer, name, rng) for name in people]
        ids, last, needle = [*start], 0, 0
        for place, fact in sorted(zip(places, range(facts), strict=True)):
            before, code, after = stated[fact]
            ids += hay[last:place]
            needle = len(ids) + len(before) if fact == 0 else needle
            ids += [*before, *code, *after]
            last = place
        ids += hay[last:] + _ids(tokenizer, "\n" + rng.choice(ASKED).format(name=people[0]))
        sentences.append(_needle(tokenizer, ids, stated[0][1], needle))
    return Corpus(f"facts-{facts}-{'-'.join(map(str, lengths))}", tuple(sentences))


def _texts(tokenizer: PreTrainedTokenizerBase, haystack: Corpus | None) -> list[list[int]] | None:
    """The token ids of the sentences of a haystack; None for one of random tokens."""
    return None if haystack is None else [ids for sentence in haystack if (ids := _ids(tokenizer, sentence.text))]


def _start(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token before each text: BOS, if there is one."""
    return [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]


def _depths(count: int, length: int) -> list[int]:
    """Places in a haystack from its start to its end, in equal steps."""
    return [row * length // max(1, count - 1) for row in range(count)]


def _needle(tokenizer: PreTrainedTokenizerBase, ids: list[int], answer: list[int], needle: int) -> Needle:
    """A text of token ids that ends with the answer."""
    text = str(tokenizer.decode([*ids, *answer]))
    return Needle(text, ids=(*ids, *answer), needle=needle, answer=len(ids), size=len(answer))


def _stated(tokenizer: PreTrainedTokenizerBase, name: str, rng: Random) -> tuple[list[int], list[int], list[int]]:
    """Return a fact in one of its wordings: the tokens before the code, of the code, and after it."""
    before, after = rng.choice(STATED)
    code = "".join(rng.choices("0123456789", k=DIGITS))
    parts = f"\n{before.format(name=name)}", f" {code}", f"{after}\n"
    first, second, third = (_ids(tokenizer, part) for part in parts)
    return first, second, third


def indirect_objects(tokenizer: PreTrainedTokenizerBase, count: int = 100, *, seed: int = 0) -> Corpus:
    """Write beginnings that the indirect object continues: "When Mary and John walked to the shop, John gave it to".

    They measure name movers (Wang et al. 2022, "Interpretability in the wild", section 2). The right token is the name
    that was mentioned once, the wrong one the other. Half of the sentences have it first. Words are those of the toy
    grammar; names are used that are one token.

    Args:
        tokenizer: The model's tokenizer.
        count: Number of sentences.
        seed: Seed of the draw.

    Returns:
        A corpus of `Choice`.

    Raises:
        ValueError: If `count` is below 1 or fewer than two names are one token.
    """  # noqa: DOC502
    names = _single(tokenizer, synthetic.NAMES)
    number("count", count, least=1, whole=True)
    number("names that are one token", len(names), least=2, whole=True)
    rng, sentences = Random(seed), []
    for row in range(count):
        (subject, wrong), (other, right) = rng.sample(sorted(names.items()), 2)
        place, thing = rng.choice(synthetic.PLACES), rng.choice(synthetic.THINGS)
        pair = f"{other} and {subject}" if row % 2 else f"{subject} and {other}"
        text = f"When {pair} walked to the {place}, {subject} gave the {thing} to"
        sentences.append(Choice(text, ids=_begun(tokenizer, text), right=right, wrong=(wrong,)))
    return Corpus("indirect-objects", tuple(sentences))


def ordered_words(
    tokenizer: PreTrainedTokenizerBase,
    count: int = 100,
    *,
    classes: Sequence[str] = tuple(CLASSES),
    seed: int = 0,
) -> Corpus:
    """Write words in their order that the next one continues: "Monday Tuesday".

    They measure successor heads (Gould et al. 2023, "Successor heads", arXiv 2312.09230). The right token is the next
    word of the class, the wrong ones are all others. Words are used that are one token, where three or more follow each
    other; a class without them is left out.

    Args:
        tokenizer: The model's tokenizer.
        count: Number of sequences, of one to three words.
        classes: "days", "months", "numbers", "ordinals", "digits", "letters".
        seed: Seed of the draw.

    Returns:
        A corpus of `Choice`; `label` is the class.

    Raises:
        ValueError: If `count` is below 1, a class is unknown, or the tokenizer has no class in single tokens.
    """  # noqa: DOC502
    number("count", count, least=1, whole=True)
    runs = ordered_runs(tokenizer, classes)
    rng, sentences = Random(seed), []
    for row in range(count):
        name = sorted(runs)[row % len(runs)]
        words, ids = list(runs[name]), list(runs[name].values())
        shown = rng.randint(1, min(3, len(words) - 1))
        first = rng.randrange(len(words) - shown)
        text, right = " ".join(words[first : first + shown]), ids[first + shown]
        wrong = tuple(sorted({*ids} - {right}))
        sentences.append(Choice(text, ids=_begun(tokenizer, text), label=name, right=right, wrong=wrong))
    return Corpus("ordered-words", tuple(sentences))


def ordered_runs(tokenizer: PreTrainedTokenizerBase, classes: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return of each class the longest run of words that are one token each, with their ids.

    Args:
        tokenizer: The tokenizer.
        classes: Names in `CLASSES`; one without three words in a row is left out.

    Returns:
        Class -> word -> id, in the order of the words.

    Raises:
        ValueError: If a class is unknown, or none is left.
    """
    for name in classes:
        one_of("class", name, CLASSES)
    runs = {name: run for name in classes if len(run := _run(tokenizer, CLASSES[name])) >= FEWEST}
    if not runs:
        raise ValueError(
            f"the tokenizer has no ordered words: got none of {', '.join(classes)} with {FEWEST} words in a row that "
            f"are one token each; try other classes"
        )
    return runs


def _plain(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that are not special."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return sorted({*tokenizer.get_vocab().values()} - special)


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The tokens of a text without special ones."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _begun(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """The tokens of a text that continues: with what the tokenizer puts before it, and nothing after it."""
    ids = list(tokenizer(text, verbose=False)["input_ids"])
    while ids and ids[-1] in {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}:
        ids.pop()
    return tuple(ids)


def _single(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> dict[str, int]:
    """The words that are one known token after another word, with its id."""
    before = _ids(tokenizer, "to")
    token_ids = {word: _ids(tokenizer, f"to {word}") for word in dict.fromkeys(words)}
    return {
        word: ids[-1]
        for word, ids in token_ids.items()
        if len(ids) == len(before) + 1 and ids[:-1] == before and ids[-1] != tokenizer.unk_token_id
    }


def _run(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> dict[str, int]:
    """The longest run of words that are one token each."""
    single, runs = _single(tokenizer, words), list[dict[str, int]]([{}])
    for word in words:
        if word in single and single[word] not in runs[-1].values():
            runs[-1][word] = single[word]
        else:
            runs.append({})
    return max(runs, key=len)


def _stacked(texts: Sequence[list[int]], length: int, rng: Random) -> list[int]:
    """Random texts one after the other, as many tokens as asked for."""
    hay: list[int] = []
    while len(hay) < length:
        hay += rng.choice(texts)
    return hay[:length]
