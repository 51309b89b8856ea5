"""Three kinds of questions about long texts, by PLAN.md; resumes: questions.py run MODEL DATA.

Every fact lies outside the window of the question. Budgets are chosen on one kind of question and tested on all three,
on other wordings. `compare` writes the tables of the page.
"""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np
import pandas as pd
import torch
import typer
from make import HERE, PRIMARY, RECENT, SINK, Study, Tested, _drawn, _gates, _measured, _paired, kvpress
from transformers import PreTrainedTokenizerBase

import headroles as hr
from headroles.analysis.intervals import holm
from headroles.data import synthetic
from headroles.data.corpus import Corpus
from headroles.data.probes import Needle
from headroles.models.head_model import HeadModel
from headroles.patterns import Streaming

NAME = "smollm2"
CALIBRATION, TEST, DRAWS, FACTS = 8, 60, 3, 4  # texts of each kind, random draws, facts of a text
SHORT, LONG = 600, 1000  # tokens of the haystack, to choose the heads and to test them
HEADS, READ, PLACES = 3, 512, 500  # heads of a group; tokens that kvpress' rule reads; places that it assumes
FIRST = 8  # tokens before the first fact, so that the sink has none of it
LEARNT, TESTED = (0, 1), (2, 3)  # wordings; the second of each two asks in other words than the fact was stated in
KINDS = {  # kind -> wordings: the fact, and the question that the answer follows
    "numbers": (
        ("The code of {name} is {answer}.", "Which code does {name} have? Answer: The code of {name} is"),
        ("To enter, {name} types {answer} on the keys.", "What is the number of {name}? Answer: It is"),
        ("The locker of {name} is {answer}.", "Which locker does {name} have? Answer: The locker of {name} is"),
        ("{name} was given {answer} for the race.", "Which number has {name} among the runners? Answer: It is"),
    ),
    "words": (
        ("{name} brought the {answer} to the party.", "What did {name} bring? Answer: {name} brought the"),
        ("Under the bed {name} hid the {answer}.", "What is the secret of {name}? Answer: It is the"),
        ("{name} won the {answer} in a game of cards.", "What did {name} win? Answer: {name} won the"),
        ("On Sunday {name} sold the {answer}.", "What does {name} no longer have? Answer: It is the"),
    ),
    "sentences": (
        ("{name} wrote this line: {answer}", "Which line did {name} write? Answer: {name} wrote this line:"),
        ("On the wall of {name} one reads: {answer}", "What is written at the house of {name}? Answer: It is:"),
        ("The letter of {name} begins: {answer}", "How does it begin? Answer: The letter of {name} begins:"),
        ("The teacher made {name} repeat: {answer}", "What had {name} to say? Answer: It is:"),
    ),
}
CHOSEN = (*KINDS, "all kinds")  # what the budgets of integrated gradients are chosen on
CONTRASTS = [(kind, other) for kind in ("words", "sentences") for other in ("full", "kvpress")]  # the primary ones
app = typer.Typer(pretty_exceptions_enable=False)
Data = Annotated[Path, typer.Argument(help="Folder with ud/pud, ud/ewt and ntrex.")]
Work = Annotated[Path, typer.Option(help="Folder of unfinished work.")]


class Questions(Study):
    """The model, its texts of each kind, and the folder of finished units of work."""

    def __init__(self, folder: str, data: Path, work: Path, texts: int) -> None:
        torch.set_num_threads(1)
        self.name, self.work, self.data, self.texts, self.length = NAME, work / "questions", data, texts, PLACES
        self.model, self.tokenizer = hr.load(folder)
        self.handle, self.pattern = HeadModel(self.model, self.tokenizer), Streaming(SINK, RECENT)
        with gzip.open(data / "ntrex/newstest2019.en.gz", "rt", encoding="utf8") as lines:
            news = [line.strip() for line in lines]
        self.news, rest = news[:600], news[600:]
        self.pud = [sentence.text for sentence in hr.read(data / "ud/pud/en_pud-ud-test.conllu.gz")]
        self.lines = [line for line in rest if 8 <= len(line.split()) <= 14]

    def texts_of(self, kind: str, *, is_test: bool) -> Corpus:
        """Return the texts of a kind: to test, or to choose heads, which have other wordings, facts and haystacks."""
        half = len(self.lines) // 2
        lines = self.lines[half:] if is_test else self.lines[:half]
        hay, size, wordings, count = (
            (self.pud, LONG, TESTED, max(TEST, self.texts)) if is_test else (self.news, SHORT, LEARNT, CALIBRATION)
        )
        corpus = _asked(self.tokenizer, kind, count, wordings, hay, size, lines, seed=2 if is_test else 1)
        return corpus[: self.texts] if is_test else corpus

    def chosen(self, on: str) -> np.ndarray:
        """Return the ranking of the groups by integrated gradients on texts of a kind, or on a third of all."""
        parts = [self.texts_of(kind, is_test=False) for kind in (KINDS if on == "all kinds" else [on])]
        if on == "all kinds":
            parts = [part[: CALIBRATION // 2] for part in parts]
        self.calibrating = Corpus(on, tuple(text for part in parts for text in part))
        options = {"sink": SINK, "recent": RECENT, "keep": 1 - PRIMARY, "study": self.work / f"chosen-{on}"}
        table = hr.cache_budget(self.model, self.tokenizer, self.calibrating, **options)
        return table["ranking[integrated-gradients]"].to_numpy(float)

    def kvpress(self) -> np.ndarray:
        """Return the ranking by kvpress' rule: no question chooses a head, the texts are those of all kinds.

        Their tokens are kept for `kvpress_scores.py`, which asks kvpress itself.
        """
        path = self.work / "kvpress.npy"
        if not path.is_file():
            parts = [self.texts_of(kind, is_test=False)[: CALIBRATION // 2] for kind in KINDS]
            self.calibrating = Corpus("all kinds", tuple(text for part in parts for text in part))
            (self.work / "kvpress-ids.json").write_text(json.dumps([text.ids[:READ] for text in self.calibrating]))
            np.save(path, kvpress(self).to_numpy().reshape(-1, HEADS).mean(1))
        return np.load(path, allow_pickle=False)

    def gates(self) -> Mapping[str, Callable[[], np.ndarray]]:
        """Return for each condition what computes its gates, a quarter of which is open."""
        count = len(Tested(self.handle, self.texts_of("numbers", is_test=False), self.pattern).index)
        streaming = round(PRIMARY * count)
        return {
            "full": lambda: np.ones(count),
            "streaming": lambda: np.zeros(count),
            **{f"chosen on {on}": lambda on=on: _gates(self.chosen(on), streaming) for on in CHOSEN},
            "kvpress": lambda: _gates(self.kvpress(), streaming),
            **{f"random-{draw}": lambda draw=draw: _gates(_drawn(draw, count), streaming) for draw in range(DRAWS)},
        }


def _asked(
    tokenizer: PreTrainedTokenizerBase,
    kind: str,
    count: int,
    wordings: Sequence[int],
    hay: Sequence[str],
    size: int,
    lines: list[str],
    *,
    seed: int,
) -> Corpus:
    """Hide facts of one kind at least `RECENT` tokens before the question; those asked for at all depths in turn."""
    rng, texts = Random(seed), []

    def ids_of(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    for row in range(count):
        stacked: list[int] = []
        while len(stacked) < size:
            stacked += ids_of(f" {rng.choice(hay)}")
        people, last = rng.sample(synthetic.NAMES, FACTS), size - RECENT
        stated, asked = KINDS[kind][wordings[row % len(wordings)]]
        answers = [_answer(kind, lines, rng) for _ in people]
        place = FIRST + (row * 7 % count) * (last - FIRST) // max(1, count - 1)  # so that wordings have all depths
        places = [place, *(rng.randint(FIRST, last) for _ in people[1:])]
        parts, start, needle = [], 0, 0
        for at, fact in sorted(zip(places, range(FACTS), strict=True)):
            parts += stacked[start:at]
            before, after = stated.format(name=people[fact], answer="\0").split("\0")
            parts += ids_of("\n" + before.rstrip())
            needle = len(parts) if fact == 0 else needle
            parts += ids_of(f" {answers[fact]}") + ids_of(after + "\n")
            start = at
        parts += stacked[start:size] + ids_of(f"\nQuestion: {asked.format(name=people[0])}")
        answer = ids_of(f" {answers[0]}")
        assert parts[needle : needle + len(answer)] == answer
        text = str(tokenizer.decode(parts + answer))
        texts.append(Needle(text, ids=(*parts, *answer), needle=needle, answer=len(parts), size=len(answer)))
    return Corpus(f"{kind}-{size}", tuple(texts))


def _answer(kind: str, lines: list[str], rng: Random) -> str:
    if kind == "numbers":
        return "".join(rng.choices("0123456789", k=5))
    if kind == "words":
        return f"{rng.choice(synthetic.ADJECTIVES)} {rng.choice(synthetic.THINGS)}"
    return rng.choice(lines)


@app.command()
def run(
    folder: Annotated[str, typer.Argument(help="Folder of SmolLM2.")],
    data: Data,
    work: Work = Path(".cache-budgets"),
    kinds: Annotated[str, typer.Option(help="Kinds that are tested; commas between.")] = ",".join(KINDS),
    texts: Annotated[int, typer.Option(help="Texts of each kind; fewer only to try the script.")] = TEST,
) -> None:
    """Choose the heads, measure every condition on the texts of each kind, and write questions-KIND.csv here."""
    logging.basicConfig(level=logging.INFO)
    study = Questions(folder, data, work, texts)
    study.work.mkdir(parents=True, exist_ok=True)
    for kind in kinds.split(","):
        corpus, rows = study.texts_of(kind, is_test=True), []
        tested = Tested(study.handle, corpus, study.pattern)
        for name, gates in study.gates().items():
            losses, right = _measured(study, tested, f"{kind}-{name.replace(' ', '-')}", gates)
            rows += [
                {"kind": kind, "by": name, "text": number, "wording": TESTED[number % len(TESTED)],
                 "back": text.answer - text.needle, "tokens": text.size, "loss": loss, "right": hit}
                for number, (text, loss, hit) in enumerate(zip(corpus, losses, right, strict=True))
            ]  # fmt: skip
        place = HERE if texts == TEST else study.work  # a trial is no result
        pd.DataFrame(rows).to_csv(place / f"questions-{kind}.csv", index=False, float_format="%.6g")
        print(pd.DataFrame(rows).groupby("by", sort=False)[["loss", "right"]].mean())
    kept = {name: np.flatnonzero(study.gates()[name]()) for name in study.gates() if name.startswith(("chosen", "kv"))}
    pd.Series({name: " ".join(f"{at // 3}:{at % 3}" for at in groups) for name, groups in kept.items()}).rename_axis(
        "by"
    ).to_csv(place / "questions-kept.csv", header=["kept"])


@app.command()
def compare() -> None:
    """Compare conditions with the full cache and with the budget chosen on numbers, by kind, wording and depth."""
    table = pd.concat(pd.read_csv(HERE / f"questions-{kind}.csv") for kind in KINDS)
    table["by"] = table["by"].str.replace(r"^random-\d+$", "random", regex=True)
    table["depth"] = pd.qcut(table["back"], 3, labels=["near", "middle", "far"]).astype(str)
    rows = []
    for kind, part in table.groupby("kind", sort=False):
        slices = {("all", "all"): part}
        slices |= {(f"wording {word}", "all"): some for word, some in part.groupby("wording")}
        slices |= {("all", depth): some for depth, some in part.groupby("depth")}
        for (wording, depth), some in slices.items():
            means = some.groupby(["by", "text"])[["loss", "right"]].mean().unstack("text")
            losses = means["loss"]
            for by in losses.index:
                row = {"kind": kind, "wording": wording, "depth": depth, "by": by, "loss": losses.loc[by].mean()}
                row |= {"right": means["right"].loc[by].mean(), "texts": losses.shape[1]}
                row |= {f"over full.{end}": value for end, value in _change(losses, by, "full").items()}
                row |= {f"less numbers.{end}": value for end, value in _change(losses, by, "chosen on numbers").items()}
                rows.append(row)
    pd.DataFrame(rows).to_csv(HERE / "questions.csv", index=False, float_format="%.4g")
    tests = []
    for kind, other in CONTRASTS:
        losses = table[table["kind"] == kind].groupby(["by", "text"])["loss"].mean().unstack("text")
        tests.append({"kind": kind, "other": other} | _paired(losses.loc["chosen on numbers"] - losses.loc[other]))
    found = pd.DataFrame(tests)
    found["holm"] = holm(found["effect.p"].to_numpy())
    found.to_csv(HERE / "questions-tests.csv", index=False, float_format="%.4g")
    print(found)


def _change(losses: pd.DataFrame, by: str, other: str) -> dict[str, float]:
    change = _paired(losses.loc[by] - losses.loc[other])
    return {"mean": change["effect"], "low": change["effect.low"], "high": change["effect.high"]}


if __name__ == "__main__":
    app()
