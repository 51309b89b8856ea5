"""Films with labels, small classifiers and translators to train."""

from __future__ import annotations

import random
import warnings
from copy import deepcopy
from dataclasses import replace
from functools import cache

import peft
import torch
import transformers
from helpers import zoo

from headroles.data.corpus import Corpus, Sentence

TELLING = {"neg": ("bad", "poor"), "pos": ("good", "fine")}
FILLING = ("the", "film", "was", "a", "book", "it", "in", "and")
PIECES = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *FILLING, *TELLING["neg"], *TELLING["pos"]]  # PAD as in the zoo
CLASSES = dict(enumerate(sorted(TELLING)))


@cache
def tokenizer(*words):
    """A BERT tokenizer that knows each word, and others after them."""
    return transformers.BertTokenizer(vocab={piece: number for number, piece in enumerate([*PIECES, *words])})


@cache
def films(size, seed=0):
    """Sentences with one word that tells the label."""
    rng = random.Random(seed)
    return Corpus("films", tuple(_film(rng) for _ in range(size)))


def _film(rng):
    label = rng.choice(sorted(TELLING))
    words = [rng.choice(TELLING[label]), *rng.choices(FILLING, k=rng.randint(2, 6))]
    rng.shuffle(words)
    return Sentence(" ".join(words), label=label)


def untrained(seed=0, **options):
    """A tiny classifier of films, as it is drawn."""
    names = {"id2label": CLASSES, "label2id": {name: number for number, name in CLASSES.items()}}
    config = transformers.BertConfig(**zoo.BERT | {"num_hidden_layers": 1} | names | options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.BertForSequenceClassification(config).eval()


def translator(seed=0, **options):
    """A tiny translator, as it is drawn."""
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "init_std": 0.1, "scale_embedding": True}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.MarianMTModel(transformers.MarianConfig(**zoo.BART | sizes | options)).eval()


def same_weights(one, other, precision=0.0):
    for (name, value), expected in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=precision, msg=name)


def contents(folder):
    """When each file was written, and what is in it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@cache
def pairs(size=24):
    """Two of these sentences each, labelled by whether they say the same."""
    both = zip(films(size), films(size, 1), strict=True)
    rows = [replace(one, second=two.text, label="pos" if one.label == two.label else "neg") for one, two in both]
    return Corpus("pairs", tuple(rows))


def tokenised(tokens, text, numbers):
    """What a tokenizer makes of some sentences of a corpus."""
    seconds = [text[number].second for number in numbers]
    both = {"text_pair": seconds} if all(seconds) else {}
    return tokens([text[number].text for number in numbers], **both, padding=True, return_tensors="pt")


def labelled(*labels):
    """Sentences with these labels."""
    return Corpus("given", tuple(Sentence("the film", label=label) for label in labels))


def wrapped(*targets, base=None, **options):
    """A tiny decoder with an adapter of PEFT on some of its maps."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PEFT to transformers
        torch.manual_seed(0)
        names = [*(targets or ("q_proj", "v_proj"))]
        config = peft.LoraConfig(target_modules=names, init_lora_weights=False, **options)
        return peft.get_peft_model(base or deepcopy(zoo.tiny("llama-grouped")), config)


class Interrupt(transformers.TrainerCallback):
    """Breaks training off after a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):  # noqa: ARG002
        if state.global_step == self.step:
            raise KeyError("stopped")
