"""Words of the toy languages: English word lists and inflections, and the made-up stems for them (no torch)."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from itertools import accumulate
from random import Random

_LISTS = tomllib.loads((files("headroles") / "data" / "synthetic_lexicon.toml").read_text("utf-8"))
IRREGULAR_PLURALS: dict[str, str] = _LISTS.pop("irregular_plurals")
_WORDS: dict[str, tuple[str, ...]] = {name: tuple(words.split()) for name, words in _LISTS.items()}
PEOPLE, THINGS, PLACES, NAMES = (_WORDS[name] for name in ("people", "things", "places", "names"))
VERBS, THING_VERBS, INTRANSITIVE, SAYING = (_WORDS[name] for name in ("verbs", "thing_verbs", "intransitive", "saying"))
ADJECTIVES, ADVERBS, DEGREES = (_WORDS[name] for name in ("adjectives", "adverbs", "degrees"))
AUXILIARIES, MARKS, SINGULAR, PLURAL = (_WORDS[name] for name in ("auxiliaries", "marks", "singular", "plural"))
ONSETS = _WORDS["onsets"]
CODAS = ("", "", "", "l", "m", "n", "r", "s")
PHRASES = {  # prepositions and their nouns, of a phrase inside a noun phrase and of one beside the verb
    "nmod": ((("of", "from"), PLACES), (("with",), THINGS)),
    "obl": ((("in", "near", "behind", "outside", "beside", "beyond"), PLACES), (("for", "without", "against"), PEOPLE)),
}


@cache
def zipf(size: int) -> tuple[float, ...]:
    """Compute cumulative weights of `size` words with frequencies by rank after Zipf and Mandelbrot."""
    return tuple(accumulate(1 / (rank + 2.7) for rank in range(1, size + 1)))


def plural(noun: str) -> str:
    """Return the English plural of a noun."""
    if noun in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def forms(verb: str) -> tuple[str, str, str]:
    """Return base, past and participle of an entry: "see/saw/seen", or a regular "open"."""
    base, *irregular = verb.split("/")
    if irregular:
        return base, irregular[0], irregular[1]
    root = base[:-1] + "i" if base.endswith("y") and base[-2] not in "aeiou" else base.removesuffix("e")
    return base, root + "ed", root + "ed"


@cache
def stem(lemma: str) -> str:
    """Draw the made-up stem of an English lemma: two syllables."""
    rng = Random(f"stem {lemma}")
    return "".join(rng.choice(ONSETS) + rng.choice("aeiou") + rng.choice(CODAS) for _ in range(2))


@cache
def particle(verb: str) -> str:
    """Draw the particle of a made-up verb, empty for three verbs of four."""
    return Random(f"particle {verb}").choice(("",) * 9 + ("ul", "ye", "wa"))


@cache
def second_gender(noun: str) -> bool:
    """Draw whether a made-up noun or name has the second gender."""
    return Random(f"gender {noun}").random() < 0.5


@cache
def second_class(lemma: str) -> bool:
    """Draw whether a made-up verb, adjective or adverb has the second class."""
    return Random(f"class {lemma}").random() < 0.5
