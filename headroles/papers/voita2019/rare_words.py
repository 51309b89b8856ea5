"""Voita et al. 2019, section 5.3: the head that attends to rare words (no torch)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from headroles import plots
from headroles.papers.artefact import Interval, Reproduced, Verdict, beside, bounded, claim, judged, share
from headroles.papers.bench import Bench, best_of_layers, of_kind
from headroles.papers.needs import NEEDS, Missing, Need, functions, trees
from headroles.plots.axes import new_axes
from headroles.tables import frame
from headroles.tables.io import load_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from headroles.data.corpus import Sentence
    from headroles.models.masking import Head
    from headroles.papers.workflow import Workflow

RARE = 0.50  # more than: the role "rare"
LONGEST = 14  # words of a sentence in figures of attention


def _attention(run: Workflow) -> list[Path]:
    """Keep the attention of the encoder head that attends most often to the rarest token, on three short sentences."""
    from headroles.models import identity

    scores = load_table(functions(run)[0])
    if "enc-self" not in scores.index.unique("kind"):
        raise Missing("the rare-word head is a head of an encoder; this model has no encoder")
    rarity = of_kind(scores)["rarity"]
    if rarity.isna().all():
        raise Missing("no sentence with trees has a token outside the 500 most frequent of the training corpus")
    rarest, corpus = rarity.index[int(rarity.argmax())], run.material.sentences or trees(run)
    short = [sentence for sentence in corpus if len(sentence.text.split()) <= LONGEST][:3]
    study, key = run.study("functions"), f"{identity.weights_digest(run.model)} {rarest} {corpus.hash}"
    study.keep("attention-rare", key, lambda: _token_attention(run, short, rarest))
    return [study.path("attention-rare")]


NEEDS["attention"] = Need(
    "attention of the rarest head on sentences",
    "headroles reproduce voita2019 fig5 --model MODEL --data FOLDER",
    "attention-rare",
    _attention,
)


def _token_attention(run: Workflow, sentences: Sequence[Sentence], head: Head) -> pd.DataFrame:
    """Return the attention of a head, a row per query and key; `rarest` is the first least frequent content token."""
    from headroles.models import identity
    from headroles.models.tokens import vocabulary
    from headroles.scores import attention_matrix

    tokenizer, special = run.tokenizer, vocabulary.special(run.tokenizer, run.model)
    counts = Counter(token for sentence in run.frequencies for token in tokenizer(sentence.text)["input_ids"])
    rows = []
    for number, sentence in enumerate(sentences):
        weights = attention_matrix(run.model, tokenizer, sentence, head).to_numpy()
        ids = tokenizer(sentence.text)["input_ids"]
        content = [place for place, token in enumerate(ids) if token not in special]
        rarest = min(content, key=lambda place: counts[ids[place]])
        tokens = tokenizer.convert_ids_to_tokens(ids)
        rows += [
            (number, *head, query, key, tokens[key], weights[query, key], key in content, key == rarest)
            for query in range(len(ids))
            for key in range(len(ids))
        ]
    columns = ["sentence", *frame.LEVELS, "query", "key", "token", "weight", "counted", "rarest"]
    fields = {"model": identity.model_name(run.model), "weights": identity.weights_digest(run.model)}
    return frame.signed(pd.DataFrame(rows, columns=columns), frame.sign(**fields, counted_in=run.frequencies.hash))


def fig5(bench: Bench) -> Reproduced:
    """Show the attention of the rare-word head on sentences, token by token."""
    table = bench.table("attention")
    rows = []
    for name, part in table.groupby("sentence", sort=False):
        tokens = part.drop_duplicates("key").set_index("key")
        content = tokens.index[tokens["counted"]]
        keys = _weights(part)[content].idxmax(axis=1)[content]
        rows.append((name, len(keys), int(tokens.loc[keys, "rarest"].sum())))
    counts = pd.DataFrame(rows, columns=["sentence", "queries", "hits"])
    return judged(fig5_claim, counts, lambda: _draw_sentences(table))


@claim(
    "In a sentence the rare-word head attends to the least frequent token.",
    "Holds if more than half of the tokens of the sentences attend to it most, with the interval of that share.",
)
def fig5_claim(table: pd.DataFrame) -> Verdict:
    hits, queries = int(table["hits"].sum()), int(table["queries"].sum())
    part = share(hits, queries)
    return Verdict(part.above(RARE), f"{hits} of {queries} tokens attend to it most, {part}")


def rare(bench: Bench) -> Reproduced:
    """Show the head of each layer that attends most often to the rarest token (section 5.3, text)."""
    table = of_kind(bench.table("functions"))[bounded("rarity")]
    if table["rarity"].isna().all():
        raise Missing("no sentence has a token outside the 500 most frequent; try headroles score on more sentences")
    return judged(rare_claim, beside(best_of_layers(table, "rarity"), "voita2019-rare", "layer"))


@claim(
    "A head of the first layer attends to the rarest word of the sentence.",
    "Holds if the interval of the best head of layer 0 is above 0.50.",
)
def rare_claim(table: pd.DataFrame) -> Verdict:
    row = table.set_index("layer").loc[0]
    rarity = Interval.of(row, "rarity")
    text = f"layer 0 head {row['head']:.0f} attends to it in {rarity} of the cases, the best head of any layer in "
    return Verdict(rarity.above(RARE), f"{text}{table['rarity'].max():.2f}")


def _weights(part: pd.DataFrame) -> pd.DataFrame:
    return part.pivot_table(index="query", columns="key", values="weight")


def _draw_sentences(table: pd.DataFrame) -> Axes:
    parts = [part for _, part in table.groupby("sentence", sort=False)]
    axes = new_axes((10, 10), cell=0.4, panels=len(parts))
    for ax, part in zip(axes, parts, strict=True):
        wide = _weights(part)
        names = [*part.drop_duplicates("key").set_index("key")["token"].loc[wide.columns]]
        plots.attention(wide.set_axis(names, axis=0).set_axis(names, axis=1), vmax=1, ax=ax)
    axes[0].set_title("layer {layer} head {head}".format(**parts[0].iloc[0]))
    return axes[0]
