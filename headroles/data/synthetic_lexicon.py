"""The words of the two toy languages: real English words by frequency and their forms, and made-up stems for them."""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from random import Random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE = _words(
    """
man woman child doctor teacher friend mother father student king soldier neighbour farmer girl boy dog cat horse
brother sister artist writer driver worker queen lawyer nurse priest captain sailor prince judge baker hunter singer
painter poet thief guard merchant princess professor engineer sheriff bird wolf lion bear cousin uncle aunt stranger
visitor traveller passenger tourist guest dancer actor waiter cook butcher tailor carpenter plumber barber gardener
shepherd fisherman policeman detective spy pilot clerk manager servant knight giant witch wizard monk nun bishop
minister mayor senator general sergeant scientist chemist dentist surgeon librarian journalist photographer musician
drummer pianist violinist composer sculptor architect electrician mechanic blacksmith miner tenant landlord widow
orphan twin toddler teenager grandfather grandmother nephew niece rival enemy prisoner pirate robber beggar beekeeper
goat cow pig rabbit mouse goose fox tiger monkey elephant camel donkey parrot eagle owl sparrow crow turtle frog
lizard spider hedgehog squirrel badger beaver dolphin penguin kitten puppy lamb
"""
)
THINGS = _words(
    """
book letter door window table picture box car chair bottle key song story boat newspaper lamp clock coat hat knife
cup basket map ring mirror blanket carpet ladder bicycle suitcase wallet camera violin guitar piano radio computer
telephone machine engine wheel hammer shovel bucket rope candle curtain pillow towel bowl plate spoon fork kettle pot
pan oven cupboard drawer desk sofa bench shelf cradle statue coin medal crown sword shield helmet arrow cannon banner
flag drum flute trumpet poem novel diary dictionary envelope postcard ticket passport contract recipe notebook pencil
brush canvas portrait album necklace bracelet earring buckle umbrella glove scarf shirt jacket sweater skirt
button needle thread zipper apron boot slipper sandal sandwich potato tomato onion carrot apple lemon cherry melon
pumpkin mushroom biscuit pancake cake loaf sausage tent lantern compass telescope microscope anchor sail raft canoe
wagon carriage tractor plough barrel crate parcel package cage kite puppet doll marble puzzle balloon whistle vase jug
teapot saucer napkin broom mop sponge razor comb thermometer bandage crutch tombstone fountain chimney
"""
)
PLACES = _words(
    """
village city garden forest school river market mountain church hospital kitchen street station castle island harbour
museum farm palace prison theatre library hotel beach bridge valley tower factory office park cellar attic barn
meadow lake desert canyon cave temple monastery cathedral chapel cemetery orchard vineyard windmill lighthouse
shipyard airport railway tavern bakery pharmacy laboratory workshop warehouse stable courtyard balcony corridor
basement nursery stadium circus zoo aquarium gallery embassy parliament courthouse swamp jungle glacier volcano
waterfall peninsula frontier suburb border
"""
)
NAMES = _words(
    """
Maria John Anna Peter Emma Thomas Clara David Julia Robert Laura Martin Alice Daniel Sophie George Helen Oliver Nina
Victor Rosa Felix Irene Simon Marta Hugo Elena Oscar Vera Arthur Diana Walter Lucy Edgar Sylvia Leo Agnes Conrad
Bertha Gustav Ingrid Boris Olga Ivan Tanya Sergei Natasha Pavel Ludmila Karl Greta Dieter Heidi Pierre Colette Marcel
Yvette Luigi Bianca Marco Paola Diego Carmen Pablo Inez Ahmed Fatima Omar Leila Hassan Amina Kenji Yuki Akira Sakura
Ravi Priya Arjun Lakshmi Winston Beatrice Cedric Dorothy Edmund Florence Gilbert Harriet Isaac Josephine Kenneth
Louisa Maurice Nathaniel Ophelia Percy Quentin Rosalind Stanley Theodora Ulysses Vivian Wilfred Xavier Yolanda
Zachary
"""
)
VERBS = _words(  # take any object: base, past and participle where they are irregular
    """
see/saw/seen find/found/found follow watch know/knew/known remember help like love hear/heard/heard meet/met/met
leave/left/left bring/brought/brought draw/drew/drawn hold/held/held forget/forgot/forgotten choose/chose/chosen
describe admire ignore recognise discover protect photograph hide/hid/hidden fear notice miss trust hate carry
catch/caught/caught touch push pull paint lose/lost/lost rescue steal/stole/stolen criticise praise mention
examine observe inspect study avoid chase surround need want expect prefer/preferred/preferred avenge escort cherish
abandon imitate outlive summon sketch blame worship/worshipped/worshipped envy pity mock
"""
)
THING_VERBS = _words(  # take a thing as their object
    """
open close buy/bought/bought sell/sold/sold read/read/read write/wrote/written break/broke/broken repair clean wash
build/built/built move lift drop/dropped/dropped throw/threw/thrown polish borrow burn bury collect copy cover
cut/cut/cut deliver design destroy fold lend/lent/lent mend pack sew/sewed/sewn shake/shook/shaken smash test
tear/tore/torn unlock weigh/weighed/weighed wrap/wrapped/wrapped auction assemble decorate engrave forge
"""
)
INTRANSITIVE = _words(
    """
sleep/slept/slept laugh sing/sang/sung wait work cry run/ran/run dance smile fall/fell/fallen arrive sit/sat/sat
stand/stood/stood rest die live dream disappear return wander travel/travelled/travelled whisper cough shiver
swim/swam/swum stumble kneel/knelt/knelt hesitate sneeze yawn pray grumble limp tremble faint snore vanish
sob/sobbed/sobbed meditate
"""
)
SAYING = _words(
    """
say/said/said think/thought/thought believe hope claim feel/felt/felt announce suspect admit/admitted/admitted
complain insist deny predict boast confess
"""
)
ADJECTIVES = _words(
    """
old young new small big good little great happy beautiful strange famous kind poor rich tall dark quiet clever tired
strong angry lonely red black white green blue brown heavy pretty brave foolish proud modern ancient foreign cheap
expensive dirty dusty forgetful rusty gentle cruel decent lazy busy nervous calm curious jealous polite rude
serious funny lucky famished elegant clumsy crooked golden silver wooden purple yellow pink grey pale bright shiny
smooth rough narrow wide round square tiny huge enormous gigantic slender plump wet dry cold warm frozen fragile
sturdy hollow fresh rotten sweet bitter sour noisy silent shy bold loyal faithful greedy generous humble arrogant
stubborn cheerful gloomy melancholy mysterious invisible peculiar ordinary magnificent splendid shabby ragged
barefoot bald bearded freckled blind deaf limping talkative ticklish superstitious
"""
)
ADVERBS = _words(
    """
quickly often slowly suddenly quietly finally carefully sometimes soon secretly recently usually gladly rarely calmly
nervously eagerly politely angrily sadly happily proudly bravely gently silently patiently cheerfully reluctantly
occasionally frequently eventually immediately accidentally deliberately foolishly wisely kindly rudely boldly
anxiously cautiously hastily lazily clumsily gracefully furiously desperately curiously mysteriously stubbornly
solemnly playfully faithfully tenderly instinctively absently obediently triumphantly warily
"""
)
DEGREES = _words("very quite rather truly extremely unusually remarkably astonishingly")
AUXILIARIES = _words("had could would must might should")  # the first takes the participle, the others the base
MARKS = _words("when because while although before after until unless")
SINGULAR = _words("the the the the a a this every my our")
PLURAL = _words("the the the the some these many my our")
PHRASES = {  # prepositions and their nouns, of a phrase inside a noun phrase and of one beside the verb
    "nmod": ((("of", "from"), PLACES), (("with",), THINGS)),
    "obl": ((("in", "near", "behind", "outside", "beside", "beyond"), PLACES), (("for", "without", "against"), PEOPLE)),
}
IRREGULAR_PLURALS = {
    "man": "men",
    "woman": "women",
    "child": "children",
    "fisherman": "fishermen",
    "policeman": "policemen",
    "thief": "thieves",
    "wolf": "wolves",
    "mouse": "mice",
    "goose": "geese",
    "knife": "knives",
    "shelf": "shelves",
    "scarf": "scarves",
    "loaf": "loaves",
    "potato": "potatoes",
    "tomato": "tomatoes",
}
ONSETS = _words("b d f g h k l m n p r s t v z br dr gr kr tr kl pl sk st sh")
CODAS = ("", "", "", "l", "m", "n", "r", "s")


@cache
def zipf(size: int) -> tuple[float, ...]:
    """Cumulative weights of `size` words whose frequency falls with their rank as Zipf and Mandelbrot have it."""
    return tuple(accumulate(1 / (rank + 2.7) for rank in range(1, size + 1)))


def plural(noun: str) -> str:
    """The English plural of a noun."""
    if noun in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def forms(verb: str) -> tuple[str, str, str]:
    """The base, past and participle of an entry: of "see/saw/seen", or of a regular "open"."""
    base, *irregular = verb.split("/")
    if irregular:
        return base, irregular[0], irregular[1]
    root = base[:-1] + "i" if base.endswith("y") and base[-2] not in "aeiou" else base.removesuffix("e")
    return base, root + "ed", root + "ed"


@cache
def stem(lemma: str) -> str:
    """The made-up stem of an English lemma: two syllables."""
    rng = Random(f"stem {lemma}")
    return "".join(rng.choice(ONSETS) + rng.choice("aeiou") + rng.choice(CODAS) for _ in range(2))


@cache
def particle(verb: str) -> str:
    """The particle of a made-up verb, empty for three verbs of four."""
    return Random(f"particle {verb}").choice(("",) * 9 + ("ul", "ye", "wa"))


@cache
def second_gender(noun: str) -> bool:
    """Whether a made-up noun or name is of the second gender."""
    return Random(f"gender {noun}").random() < 0.5


@cache
def second_class(lemma: str) -> bool:
    """Whether a made-up verb, adjective or adverb is of the second class."""
    return Random(f"class {lemma}").random() < 0.5
