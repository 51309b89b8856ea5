"""All scores of all heads of a small decoder, trained and untrained: `python figures/models/decoder/make.py FOLDER`.

FOLDER is where the trained model is kept. It is a Llama of 4 layers x 8 heads, with the most frequent words of the toy
grammar as tokens, trained on a mixture: sentences of the grammar, random tokens twice in a row, needles in haystacks,
sentences with an indirect object, ordered words, and the grammatical halves of minimal pairs. So each behaviour that a
score looks for is there to be learnt; the texts that are scored are other draws. Measured are the trained model, the
same model before its training, and what ablating each head costs in each of the behaviours. The maps are
`hr.plots.score_map` of `hr.analysis.score_correlations`.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import transformers
import typer
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import headroles as hr
from headroles.data import synthetic as lexicon
from headroles.data.corpus import Corpus, Tokens
from headroles.data.probes import CLASSES, Choice
from headroles.tables import frame

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add  # noqa: E402 - of all studies

LOOKS = ["confidence", "entropy", "distance", "position", "syntax", "sink"]
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8}
SPECIAL = ("<pad>", "</s>", "<s>", "<unk>")
STEPS, BATCH, RATE, WORDS = 6000, 32, 2e-3, 200
ALONE = 3000  # steps at first, of repeated tokens alone
PARTS = {"grammar": 0.25, "repeated": 0.35, "needles": 0.1, "objects": 0.1, "ordered": 0.1, "pairs": 0.1}
UNSEEN = re.compile(r"syntax|position(-norm)?\[(-2|0|\+1|\+2|offset)\]|.*\.(words|p|bh)$")
PAIRS = ("agreement", "reflexive")


def main(
    folder: Path,
    steps: Annotated[int, typer.Option(help="Stop the training after so many.")] = STEPS,
    output: Path = Path(__file__).parent,
) -> None:
    """Train and measure the heads of the decoder, and write lean tables."""
    torch.set_num_threads(1)
    if not folder.is_dir():
        model, tokenizer = untrained()
        train(model, tokenizer, steps)
        hr.save(model, tokenizer, folder)
    for name, pair in {"": hr.load(folder), "untrained": untrained()}.items():
        (output / name).mkdir(exist_ok=True)
        hr.save_table(lean(decoder(*pair)), output / name / "heads.parquet")


def untrained() -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """The decoder before its training, and a tokenizer of frequent words and of those that the probes need."""
    cut = pre_tokenizers.Whitespace()
    words = {*lexicon.NAMES[:30], "When", "and", "walked", "gave"}.union(*CLASSES.values())
    for corpus in (hr.synthetic_corpus(5000, seed=1), *(pairs(kind, 2000) for kind in PAIRS)):
        counts = Counter(word for one in corpus for word, _ in cut.pre_tokenize_str(one.text))
        words |= {word for word, _ in counts.most_common(WORDS)}
    known = {word: number for number, word in enumerate([*SPECIAL, *sorted(words)])}
    whole = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    whole.pre_tokenizer = cut
    whole.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", known["<s>"])])
    names = {f"{name}_token": text for name, text in zip(("pad", "eos", "bos", "unk"), SPECIAL, strict=True)}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=whole, **names)
    transformers.set_seed(0)
    ends = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "tie_word_embeddings": True}
    config = transformers.LlamaConfig(vocab_size=len(known), max_position_embeddings=512, **SIZES, **ends)
    return transformers.LlamaForCausalLM(config).eval(), tokenizer


def pairs(phenomenon: Any, count: int, seed: int = 0) -> hr.Corpus:
    """Minimal pairs."""
    return hr.minimal_pairs(count, phenomenon=phenomenon, seed=seed)


def known(corpus: hr.Corpus, tokenizer: transformers.PreTrainedTokenizerBase, size: int, each: int = 1) -> hr.Corpus:
    """The first sentences, or groups of so many, of which the tokenizer knows every word."""
    groups = [corpus[start : start + each] for start in range(0, len(corpus), each)]
    kept = [one for one in groups if all(tokenizer.unk_token_id not in tokenizer(s.text).input_ids for s in one)]
    return Corpus(corpus.name, tuple(sentence for group in kept[:size] for sentence in group))


def train(model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase, steps: int) -> None:
    """Train on the mixture."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=STEPS, pct_start=0.1)
    model.train()
    losses: dict[str, list[float]] = {}
    for step, (part, texts) in zip(range(1, steps + 1), batches(tokenizer), strict=False):
        inputs = tokenizer.pad({"input_ids": texts}, return_tensors="pt")
        labels = inputs.input_ids.masked_fill(inputs.attention_mask == 0, -100)
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        losses.setdefault(part, []).append(loss.item())
        if step % 250 == 0:
            print(step, {name: round(float(np.mean(values[-20:])), 2) for name, values in losses.items()}, flush=True)
    model.eval()


def batches(tokenizer: transformers.PreTrainedTokenizerBase) -> Iterator[tuple[str, list[list[int]]]]:
    """A part of the mixture and texts of it, as ids."""
    draw = np.random.default_rng(1)
    sentences = known(hr.synthetic_corpus(20_000, seed=1), tokenizer, 20_000)
    for step in count():
        part = "repeated" if step < ALONE else str(draw.choice([*PARTS], p=[*PARTS.values()]))
        seed = int(draw.integers(1000, 2**31))
        if part == "grammar":
            texts = [tokenizer(sentences[int(n)].text).input_ids for n in draw.integers(len(sentences), size=BATCH)]
        elif part == "repeated":
            corpus = hr.repeated_tokens(tokenizer, BATCH, length=int(draw.integers(10, 30)), seed=seed)
            texts = [list(one.ids) for one in corpus if isinstance(one, Tokens)]
        elif part == "needles":
            corpus = hr.needles(tokenizer, BATCH, length=int(draw.integers(10, 40)), size=6, seed=seed)
            texts = [list(one.ids) for one in corpus if isinstance(one, Tokens)]
        elif part == "pairs":
            texts = [tokenizer(one.text).input_ids for one in pairs(PAIRS[seed % 2], BATCH, seed)[::2]]  # grammatical
        else:
            make = hr.indirect_objects if part == "objects" else hr.ordered_words
            texts = [[*one.ids, one.right] for one in make(tokenizer, BATCH, seed=seed) if isinstance(one, Choice)]
        yield part, texts


def decoder(model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase) -> pd.DataFrame:
    """All scores of the decoder, and what ablating each of its heads costs."""
    return frame.join(*(table for part in MEASURED for table in part(model, tokenizer)))


def patterns(model: Any, tokenizer: Any) -> list[pd.DataFrame]:
    """Where heads attend, by weights and by norms, and what their weights alone do."""
    text, given = grammar(tokenizer), (model, tokenizer)
    twice, hay = repeated(tokenizer), haystacks(tokenizer)
    return [
        hr.score(*given, text, LOOKS, n_resamples=200),
        hr.score(*given, text, LOOKS, weights="norm", n_resamples=200),
        hr.score(*given, twice, ["induction", "duplicate", "previous"], n_resamples=200),
        hr.score(*given, hay, "retrieval", n_resamples=200),
        hr.scores.copying(model),
        hr.scores.succession(*given),
    ]


def gradients(model: Any, tokenizer: Any) -> list[pd.DataFrame]:
    """Scores by gradients on the grammar, and what heads write for the right word of the two probes."""
    scores = [hr.Importance(), hr.Direct(), hr.Relevance(), hr.AttributionPatching()]
    scores += [hr.AttributionPatching(drop=False), hr.AttributionPatching(node="query")]
    direct = hr.Direct(objective=hr.Difference())
    return [
        hr.score(model, tokenizer, grammar(tokenizer), scores, n_resamples=200),
        *(
            renamed(hr.score(model, tokenizer, corpus, direct, n_resamples=200), name, "difference")
            for name, corpus in choices(tokenizer).items()
        ),
    ]


def effects(model: Any, tokenizer: Any) -> list[pd.DataFrame]:
    """What ablating a head costs: on the grammar, and in each behaviour."""
    given, costs = (model, tokenizer), {"repeated": repeated(tokenizer), "needles": haystacks(tokenizer)}
    tables = [hr.ablate(*given, grammar(tokenizer))]
    tables += [renamed(hr.ablate(*given, corpus, metric="loss"), name, "loss") for name, corpus in costs.items()]
    layers = hr.ablate(*given, costs["repeated"], metric="loss", unit="layer")
    tables.append(renamed(layers, "repeated", "loss layer"))
    for name, corpus in choices(tokenizer).items():
        tables.append(renamed(hr.ablate(*given, corpus, metric=hr.Difference()), name, "difference"))
    for kind in PAIRS:
        chosen = known(pairs(kind, 600), tokenizer, 100, 2)
        tables.append(renamed(hr.ablate(*given, chosen, metric="pair_difference"), kind, "pair_difference"))
    return tables


def games(model: Any, tokenizer: Any) -> list[pd.DataFrame]:
    """Shapley values on the grammar."""
    text, given = grammar(tokenizer), (model, tokenizer)
    return [hr.shapley_values(*given, text.sample(50), n_permutations=10, n_resamples=100)]


MEASURED = (patterns, gradients, effects, games)


def grammar(tokenizer: Any) -> hr.Corpus:
    """Sentences of the grammar that were not trained on."""
    return known(hr.synthetic_corpus(5000, seed=7), tokenizer, 150)


def repeated(tokenizer: Any) -> hr.Corpus:
    """Random tokens twice in a row."""
    return hr.repeated_tokens(tokenizer, 60, length=20)


def haystacks(tokenizer: Any) -> hr.Corpus:
    """Needles in haystacks of random tokens."""
    return hr.needles(tokenizer, 50, length=40, size=8)


def choices(tokenizer: Any) -> dict[str, hr.Corpus]:
    """Texts that one word continues and others do not."""
    return {"objects": hr.indirect_objects(tokenizer, 100), "ordered": hr.ordered_words(tokenizer, 100)}


def renamed(table: pd.DataFrame, name: str, detail: str) -> pd.DataFrame:
    """A table with the name of its probe in its columns: `direct[difference objects]`."""
    change = {column: str(column).replace(f"[{detail}]", f"[{detail} {name}]") for column in table}
    signatures = {change.get(column, column): text for column, text in table.attrs["signatures"].items()}
    table.attrs.pop("resamples", None)
    table = table.rename(columns=change)
    table.attrs["signatures"] = signatures
    return table


def lean(table: pd.DataFrame) -> pd.DataFrame:
    """The table without resamples and without columns that no map shows."""
    table.attrs.pop("resamples", None)
    return frame.only(table, [name for name in map(str, table) if not UNSEEN.match(name)])


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command("measure")(main)
add(app, HERE)

if __name__ == "__main__":
    app()
