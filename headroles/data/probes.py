"""Probes: texts in which a kind of head has something to do, and pairs of a right and a wrong sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from random import Random
from string import ascii_uppercase
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

from headroles.data import synthetic
from headroles.data.corpus import Corpus, Sentence, Tokens, pair
from headroles.data.synthetic import draw_word, forms_of, plural_of
from headroles.tables.arguments import number, one_of

LENGTH = 25  # tokens of one half of a repeated sequence
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
_CLASSES = {
    "days": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "months": "January February March April May June July August September October November December",
    "numbers": "one two three four five six seven eight nine ten eleven twelve",
    "ordinals": "first second third fourth fifth sixth seventh eighth ninth tenth",
    "digits": " ".join(map(str, range(1, 31))),
    "letters": " ".join(ascii_uppercase),
}
CLASSES = {name: words.split() for name, words in _CLASSES.items()}
Phenomenon = Literal["agreement", "attractor", "relative", "determiner", "reflexive", "licensing"]
_FEMININE = "woman mother girl sister queen princess aunt witch nun widow grandmother niece"
FEMININE = tuple(_FEMININE.split())


@dataclass(frozen=True, slots=True)
class Needle(Tokens):
    """A haystack that contains a needle and ends with a copy of it: `ids[needle:needle + size] == ids[answer:]`.

    The needle stands in a passage, `ids[slice(*passage)]`. A question, if there is one, is `ids[question:answer]`.
    """

    needle: int = 0
    answer: int = 0
    size: int = 0
    passage: tuple[int, int] = (0, 0)
    question: int = 0


@dataclass(frozen=True, slots=True)
class Choice(Tokens):
    """A text with the token `right` as its correct continuation, and the tokens `wrong` as wrong ones."""

    right: int = 0
    wrong: tuple[int, ...] = ()


def repeated_tokens(
    tokenizer: PreTrainedTokenizerBase, count: int = 100, *, length: int = LENGTH, seed: int = 0
) -> Corpus:
    """Draw sequences of random tokens that are repeated once.

    They measure induction heads (Olsson et al. 2022). No token occurs twice in one half, none is special. The
    tokenizer's BOS precedes them if it has one.

    Args:
        tokenizer: The model's tokenizer.
        count: Number of sequences.
        length: Tokens of one half.
        seed: Seed of the draw.

    Returns:
        A corpus of `Tokens`.

    Raises:
        ValueError: If the vocabulary has fewer than `length` tokens that are not special.
    """  # noqa: DOC502
    plain, start, rng = _plain(tokenizer), _start(tokenizer), Random(seed)
    number("length", length, least=1, most=len(plain), whole=True)
    rows = [start + 2 * rng.sample(plain, length) for _ in range(count)]
    return Corpus(f"repeated-{length}", tuple(Tokens(str(tokenizer.decode(ids)), ids=tuple(ids)) for ids in rows))


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
            number("size", size, most=len(rest), whole=True)
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
    calibrate which heads need the long context (`hr.cache_budget`). The facts in question lie at all depths in equal
    shares, the others anywhere. The tokenizer's BOS precedes the haystack if it has one.

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
    lengths = [length] if isinstance(length, int) else [*length]
    number("count", count, least=1, whole=True)
    number("facts", facts, least=1, most=len(synthetic.NAMES), whole=True)
    number("length", min(lengths, default=0), least=1, whole=True)
    plain, texts, start = _plain(tokenizer), _texts(tokenizer, haystack), _start(tokenizer)
    rng, sentences = Random(seed), []
    for row in range(count):
        size = lengths[row % len(lengths)]
        hay = rng.choices(plain, k=size) if texts is None else _stacked(texts, size, rng)
        people = rng.sample(synthetic.NAMES, facts)
        places = [_depths(count, size)[row], *(rng.randint(0, size) for _ in people[1:])]
        stated = [_stated(tokenizer, name, rng) for name in people]
        ids, last, needle, passage = [*start], 0, 0, (0, 0)
        for place, fact in sorted(zip(places, range(facts), strict=True)):
            before, code, after = stated[fact]
            ids += hay[last:place]
            if fact == 0:
                needle, passage = len(ids) + len(before), (len(ids), len(ids) + len([*before, *code, *after]))
            ids += [*before, *code, *after]
            last = place
        question = len(ids := ids + hay[last:])
        ids += _ids(tokenizer, "\n" + rng.choice(ASKED).format(name=people[0]))
        sentences.append(replace(_needle(tokenizer, ids, stated[0][1], needle), passage=passage, question=question))
    return Corpus(f"facts-{facts}-{'-'.join(map(str, lengths))}", tuple(sentences))


def _plain(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that are not special."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return sorted({*tokenizer.get_vocab().values()} - special)


def _start(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the token before each text: BOS, if there is one."""
    return [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the tokens of a text, without special tokens."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _texts(tokenizer: PreTrainedTokenizerBase, haystack: Corpus | None) -> list[list[int]] | None:
    """Return the token ids of the sentences of a haystack; None for a haystack of random tokens."""
    return None if haystack is None else [ids for sentence in haystack if (ids := _ids(tokenizer, sentence.text))]


def _stacked(texts: Sequence[list[int]], length: int, rng: Random) -> list[int]:
    """Concatenate random texts up to `length` tokens."""
    hay: list[int] = []
    while len(hay) < length:
        hay += rng.choice(texts)
    return hay[:length]


def _depths(count: int, length: int) -> list[int]:
    """Return places in a haystack from its start to its end, in equal steps."""
    return [row * length // max(1, count - 1) for row in range(count)]


def _stated(tokenizer: PreTrainedTokenizerBase, name: str, rng: Random) -> tuple[list[int], list[int], list[int]]:
    """Draw a fact in one of its wordings: the tokens before the code, of the code, and after it."""
    before, after = rng.choice(STATED)
    code = "".join(rng.choices("0123456789", k=DIGITS))
    parts = f"\n{before.format(name=name)}", f" {code}", f"{after}\n"
    first, second, third = (_ids(tokenizer, part) for part in parts)
    return first, second, third


def _needle(tokenizer: PreTrainedTokenizerBase, ids: list[int], answer: list[int], needle: int) -> Needle:
    """Return a text of token ids that ends with the answer."""
    text = str(tokenizer.decode([*ids, *answer]))
    span = needle, needle + len(answer)
    return Needle(text, ids=(*ids, *answer), needle=needle, answer=len(ids), size=len(answer), passage=span)


def indirect_objects(tokenizer: PreTrainedTokenizerBase, count: int = 100, *, seed: int = 0) -> Corpus:
    """Write prompts to be continued by the indirect object: "When Mary and John walked to the shop, John gave it to".

    They measure name movers (Wang et al. 2022, "Interpretability in the wild", section 2). The right token is the name
    that was mentioned once, the wrong one the other. Half of the sentences have it first. Words are from the toy
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
        both = f"{other} and {subject}" if row % 2 else f"{subject} and {other}"
        text = f"When {both} walked to the {place}, {subject} gave the {thing} to"
        sentences.append(Choice(text, ids=_begun(tokenizer, text), right=right, wrong=(wrong,)))
    return Corpus("indirect-objects", tuple(sentences))


def ordered_words(
    tokenizer: PreTrainedTokenizerBase, count: int = 100, *, classes: Sequence[str] = tuple(CLASSES), seed: int = 0
) -> Corpus:
    """Write ordered words to be continued by the next one: "Monday Tuesday".

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
    """Return the longest run of words of each class that are one token each: class -> word -> id.

    Classes without three such words in a row are left out.

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


def _run(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> dict[str, int]:
    """Return the longest run of words that are one token each."""
    single, runs = _single(tokenizer, words), list[dict[str, int]]([{}])
    for word in words:
        if word in single and single[word] not in runs[-1].values():
            runs[-1][word] = single[word]
        else:
            runs.append({})
    return max(runs, key=len)


def _single(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> dict[str, int]:
    """Return the words that are one known token after another word, each with its id."""
    before = _ids(tokenizer, "to")
    token_ids = {word: _ids(tokenizer, f"to {word}") for word in dict.fromkeys(words)}
    return {
        word: ids[-1]
        for word, ids in token_ids.items()
        if len(ids) == len(before) + 1 and ids[:-1] == before and ids[-1] != tokenizer.unk_token_id
    }


def _begun(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """Return the tokens of a text to be continued: with the special tokens before it, and none after it."""
    ids = list(tokenizer(text, verbose=False)["input_ids"])
    while ids and ids[-1] in {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}:
        ids.pop()
    return tuple(ids)


def minimal_pairs(
    count: int = 100, *, phenomenon: Phenomenon = "agreement", seed: int = 0, translated: bool = False
) -> Corpus:
    """Make minimal pairs of words of the toy grammar, after BLiMP (Warstadt et al. 2020, arXiv 1912.00582).

    - "agreement": the teacher likes / like the book.
    - "attractor": the same with a noun of the other number between: the teacher near the dogs likes / like the book.
    - "relative": the same across a relative clause: the teacher that the dogs saw likes / like the book.
    - "determiner": this teacher / teachers saw the book.
    - "reflexive": the teachers saw themselves / himself.
    - "licensing": no / every teacher has ever seen the book.

    Pair i depends on `seed` and i alone.

    Args:
        count: Number of pairs.
        phenomenon: What the ungrammatical sentence violates.
        seed: Seed of the pairs.
        translated: Make pairs of translations instead, of one English source each: in the made-up language the main
            verb agrees with its subject. Only for "agreement".

    Returns:
        A corpus of 2 x `count` sentences, labelled "good" and "bad" in turn.

    Raises:
        ValueError: For an unknown phenomenon, a negative count, or translated pairs of another phenomenon.

    Example:
        >>> [sentence.label for sentence in hr.minimal_pairs(1)]
        ['good', 'bad']
    """  # noqa: DOC502
    one_of("phenomenon", phenomenon, ("agreement",) if translated else get_args(Phenomenon))
    number("count", count, whole=True)
    name = f"{phenomenon}{'-translated' * translated}"
    if translated:
        sentences = synthetic.synthetic_corpus(count, seed=seed, translated=True)
        return Corpus(name, tuple(chain.from_iterable(map(_translations, sentences))))
    texts = (_MADE[phenomenon](Random(f"{phenomenon} {seed} {number}")) for number in range(count))
    return Corpus(name, tuple(chain.from_iterable(pair(good, bad) for good, bad in texts)))


def _translations(sentence: Sentence) -> tuple[Sentence, Sentence]:
    """Return a sentence with its translation, and with one in which the main verb has the other number's ending."""
    assert sentence.target is not None
    target, root = sentence.target, sentence.target.heads.index(-1)
    start, end = target.spans[root] or (0, 0)
    verb = target.text[start:end]
    other = verb.removesuffix("n") if verb.endswith("n") else f"{verb}n"
    return pair(target.text, target.text[:start] + other + target.text[end:], sentence.text)


def _agreement(rng: Random, between: Callable[[Random, bool], str] = lambda *_: "") -> tuple[str, str]:
    """Write a subject and its verb in the present tense, with a phrase `between` them."""
    plural, base = rng.random() < 0.5, _verb(rng)[0]
    subject, phrase, rest = _noun(rng, plural=plural), between(rng, not plural), f"the {_thing(rng)}."
    verbs = [base, plural_of(base)][:: 1 if plural else -1]
    good, bad = (f"The {subject}{phrase} {verb} {rest}" for verb in verbs)
    return good, bad


def _determiner(rng: Random) -> tuple[str, str]:
    plural, lemma = rng.random() < 0.5, draw_word(rng, synthetic.PEOPLE)
    rest = f"{_verb(rng)[1]} the {_thing(rng)}."
    nouns = [plural_of(lemma), lemma][:: 1 if plural else -1]
    good, bad = (f"{'These' if plural else 'This'} {noun} {rest}" for noun in nouns)
    return good, bad


def _reflexive(rng: Random) -> tuple[str, str]:
    plural, lemma, verb = rng.random() < 0.5, draw_word(rng, synthetic.PEOPLE), _verb(rng)[1]
    pronouns = ["themselves", "herself" if lemma in FEMININE else "himself"][:: 1 if plural else -1]
    good, bad = (f"The {plural_of(lemma) if plural else lemma} {verb} {pronoun}." for pronoun in pronouns)
    return good, bad


def _licensing(rng: Random) -> tuple[str, str]:
    rest = f"{_noun(rng, plural=False)} has ever {_verb(rng)[2]} the {_thing(rng)}."
    return f"No {rest}", f"Every {rest}"


def _noun(rng: Random, *, plural: bool) -> str:
    lemma = draw_word(rng, synthetic.PEOPLE)
    return plural_of(lemma) if plural else lemma


def _verb(rng: Random) -> tuple[str, str, str]:
    return forms_of(draw_word(rng, synthetic.VERBS))


def _thing(rng: Random) -> str:
    return draw_word(rng, synthetic.THINGS)


_NEAR = ("near", "behind", "beside")
_MADE: dict[Phenomenon, Callable[[Random], tuple[str, str]]] = {
    "agreement": _agreement,
    "attractor": lambda rng: _agreement(rng, lambda rng, many: f" {rng.choice(_NEAR)} the {_noun(rng, plural=many)}"),
    "relative": lambda rng: _agreement(rng, lambda rng, many: f" that the {_noun(rng, plural=many)} {_verb(rng)[1]}"),
    "determiner": _determiner,
    "reflexive": _reflexive,
    "licensing": _licensing,
}
