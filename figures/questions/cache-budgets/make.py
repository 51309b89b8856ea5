"""The study of PLAN.md: `make.py data`, `tables`, `pictures`; `make.py run NAME MODEL DATA` is of one model."""

from __future__ import annotations

import gzip
import logging
import sys
import time
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import torch
import typer
from transformers import DynamicCache

import headroles as hr
from headroles.analysis.intervals import holm
from headroles.analysis.role_rules import names
from headroles.budgets.calibration import Calibration, Question
from headroles.budgets.selection import group_values, summary
from headroles.data.corpus import Corpus
from headroles.models.attention_hooks import attending
from headroles.models.head_model import HeadModel
from headroles.patterns import Streaming

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add, put_rows, rows_of  # noqa: E402 - of all studies

SINK, RECENT, POINTS, STEPS = 4, 256, 4, 160
CALIBRATION, TEST, LENGTH, BLOCK = 8, 48, 1000, 16  # texts, tokens of the haystack, texts in one unit of work
SHARES, PRIMARY = (0.5, 0.75, 0.9), 0.75
RANKINGS = ("integrated-gradients", "kvpress", "retrieval", "distant", "ablation", "l0")
DRAWS = {PRIMARY: 3}
GROUPS, WINDOW = {"smollm2": (90, 0), "gemma3": (3, 15)}, 511  # key-value heads without and with a window; its tokens
PLAIN = ("full", "streaming", "integrated-gradients", "kvpress")  # rankings of which the loss on plain text is measured
app = typer.Typer(pretty_exceptions_enable=False)
Name = Annotated[str, typer.Argument(help="Name in the tables: smollm2, gemma3.")]
Model = Annotated[str, typer.Argument(help="Folder of the model.")]
Data = Annotated[Path, typer.Argument(help="Folder with ud/pud, ud/ewt and ntrex.")]
Work = Annotated[Path, typer.Option(help="Folder of unfinished work.")]


class Study:
    """A model, its texts and the folder of finished units of work."""

    def __init__(self, name: str, folder: str, data: Path, work: Path, texts: int = TEST, length: int = LENGTH) -> None:
        torch.set_num_threads(1)
        self.name = name if length == LENGTH else f"{name}-{length}"
        self.work, self.data, self.texts, self.length = work / self.name, data, texts, length
        self.model, self.tokenizer = hr.load(folder)
        self.handle, self.pattern = HeadModel(self.model, self.tokenizer), Streaming(SINK, RECENT)
        with gzip.open(data / "ntrex/newstest2019.en.gz", "rt", encoding="utf8") as lines:
            news = [line.strip() for line, _ in zip(lines, range(600), strict=False)]
        options = {"facts": 4, "length": length // 2, "haystack": Corpus.of(news, "news"), "seed": 1}
        self.calibrating = hr.hidden_facts(self.tokenizer, CALIBRATION, **options)

    def test(self) -> Tested:
        """Return the held-out texts with their answers."""
        pud = hr.read(self.data / "ud/pud/en_pud-ud-test.conllu.gz")
        corpus = hr.hidden_facts(
            self.tokenizer, max(TEST, self.texts), facts=4, length=self.length, haystack=pud, seed=2
        )
        return Tested(self.handle, corpus[: self.texts], self.pattern)

    def plain(self) -> Tested:
        """Return plain texts, of which every token but the first is the answer."""
        ewt, ids = hr.read(self.data / "ud/ewt/en_ewt-ud-train.conllu.gz"), []
        for sentence in ewt:
            ids += self.tokenizer(sentence.text, add_special_tokens=False)["input_ids"]
        found = self.test()
        parts = torch.tensor(ids[: self.length * self.texts]).reshape(-1, 1, self.length)
        found.questions = [Question(part, 1) for part in parts]
        return found

    def ranking(self, by: str) -> pd.Series:
        """Return the ranking of the groups by one method, from its table of finished work or measured."""
        path = self.work / f"ranking-{by}.parquet"
        if not path.is_file():
            begun, given = time.process_time(), {"distant": distant, "kvpress": kvpress}.get(by)
            values = by if given is None else given(self)
            options = {"sink": SINK, "recent": RECENT, "points": POINTS, "steps": STEPS, "keep": 1 - PRIMARY}
            table = hr.cache_budget(self.model, self.tokenizer, self.calibrating, by=values, **options)
            table["seconds"] = time.process_time() - begun
            hr.save_table(table, path)
        table = hr.load_table(path)
        return table[next(name for name in table if name.startswith("ranking["))]

    def conditions(self) -> Iterator[tuple[str, float, Callable[[], np.ndarray]]]:
        """Yield the name of each ranking or draw, its share of streaming groups, and what computes its gates.

        Of shares that are the same number of groups, as of few groups, the first is measured, the primary one before.
        """
        count = len(self.test().index)
        yield "full", 0.0, lambda: np.ones(count)
        yield "streaming", 1.0, lambda: np.zeros(count)
        done = {0, count}
        for share in sorted(SHARES, key=lambda share: share != PRIMARY):
            streaming = round(share * count)
            if streaming in done:
                continue
            done.add(streaming)
            for by in RANKINGS:
                yield by, share, lambda by=by, n=streaming: _gates(self.ranking(by).to_numpy(float), n)
            for draw in range(DRAWS.get(share, 1)):
                yield f"random-{draw}", share, lambda draw=draw, n=streaming: _gates(_drawn(draw, count), n)

    def rankings(self) -> pd.DataFrame:
        """Return what each ranking took, and the groups that keep their cache at the primary share."""
        rows = []
        for by in RANKINGS:
            self.ranking(by)
            table = hr.load_table(self.work / f"ranking-{by}.parquet")
            kept = [f"{layer}:{group}" for _, layer, group in table.index[table["retrieval"] == 1]]
            rows.append({"ranking": by, "seconds": round(table["seconds"].iloc[0], 1), "kept": " ".join(kept)})
        return pd.DataFrame(rows)


def _gates(values: np.ndarray, streaming: int) -> np.ndarray:
    gates = np.ones(len(values))
    gates[np.argsort(values, kind="stable")[:streaming]] = 0
    return gates


def _drawn(draw: int, count: int) -> np.ndarray:
    return np.random.default_rng(draw).permutation(count).astype(float)


def distant(study: Study) -> pd.Series:
    """The mean attention of the later half of queries to keys that streaming drops."""
    sums = {site.key: torch.zeros(site.heads, dtype=torch.float64) for site in study.handle.sites}
    found = Calibration(study.handle, study.calibrating, study.pattern)
    for text in found.questions:
        half = text.ids.shape[1] // 2

        def add(site, weights, first, _):
            places = torch.arange(first, first + weights.shape[2])[:, None]
            keys = torch.arange(weights.shape[3])
            far = (keys >= SINK) & (places - keys >= RECENT) & (places >= half)  # noqa: B023 - called in this forward
            sums[site.key] += (weights * far).double().sum((0, 2, 3)) / half  # noqa: B023

        with study.handle.evaluating(), study.handle.without_gradients(), study.handle.capture(add, cells=2**25):
            study.handle.forward_body({"input_ids": text.ids})
    values = [float(sums[kind, layer][head]) for kind, layer, head in study.handle.index]
    return pd.Series(values, index=study.handle.index, name="distant")


def kvpress(study: Study) -> pd.Series:
    """Kvpress' rule, from its description: attention of the mean query to the mean key, at all distances."""
    length = study.length
    sums, body = {site.module: 0.0 for site in study.handle.sites}, study.handle.body
    kinds = getattr(study.model.config, "layer_types", None)
    found = Calibration(study.handle, study.calibrating, study.pattern)

    def rotation(site, count):
        places, like = torch.arange(count)[None], torch.zeros(1, 1)
        options = {"layer_type": kinds[site.layer]} if kinds and "gemma3" in study.model.config.model_type else {}
        return body.rotary_emb(like, places, **options)

    for text in found.questions:
        calls = {}

        def keep(call, calls=calls):
            calls[call.module] = call.query, call.key, call.scaling

        with study.handle.evaluating(), study.handle.without_gradients(), attending(study.model, keep):
            study.handle.forward_body({"input_ids": text.ids[:, :512]})
        for site in found.sites:
            query, key, scaling = calls[site.module]
            cos, sin = (part[:, None] for part in rotation(site, max(length, key.shape[2])))
            query = _rotated(query, cos[:, :, : key.shape[2]], -sin[:, :, : key.shape[2]]).mean(2, keepdim=True)
            key = _rotated(key, cos[:, :, : key.shape[2]], -sin[:, :, : key.shape[2]]).mean(2, keepdim=True)
            key = _rotated(key.expand(-1, -1, length, -1), cos[:, :, :length], sin[:, :, :length])
            query = _rotated(query, cos[:, :, length - 1 : length], sin[:, :, length - 1 : length])
            key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
            weights = (query @ key.transpose(2, 3) * scaling).softmax(-1)[0, :, 0]  # [head, key]
            sums[site.module] = sums[site.module] + weights.cumsum(1).mean(1).double()
    rows = {(*site.key, head): float(sums[site.module][head]) for site in found.sites for head in range(site.heads)}
    values = [rows.get((kind, layer, head), 0.0) for kind, layer, head in study.handle.index]
    return pd.Series(values, index=study.handle.index, name="kvpress")


def _rotated(states, cos, sin):
    half = states.shape[-1] // 2
    return states * cos + torch.cat([-states[..., half:], states[..., :half]], -1) * sin


@app.command()
def run(
    name: Name,
    folder: Model,
    data: Data,
    work: Work = Path(".cache-budgets"),
    texts: Annotated[int, typer.Option(help="Texts of the test; fewer only to try the script.")] = TEST,
    only: Annotated[str, typer.Option(help="Rankings that are measured; commas between.")] = "",
    length: Annotated[int, typer.Option(help="Tokens of a text; of others than 1,000 the answers alone.")] = LENGTH,
) -> None:
    """Rank the groups, measure every condition, a block of texts at a time, and write its rows of the tables."""
    logging.basicConfig(level=logging.INFO)
    study = Study(name, folder, data, work, texts, length)
    study.work.mkdir(parents=True, exist_ok=True)
    tests = {"answer": study.test()}
    rows = []
    for by, share, gates in study.conditions():
        if only and by not in only.split(","):
            continue
        is_primary = share in (0.0, PRIMARY, 1.0)
        if length != LENGTH and not is_primary:
            continue
        whats = ("answer", "plain") if is_primary and by in PLAIN and length == LENGTH else ("answer",)
        for what in whats:
            if what not in tests:
                tests[what] = study.plain()
            losses, right = _measured(study, tests[what], f"{what}-{by}-{share:g}", gates)
            rows += [
                {"what": what, "ranking": by, "share": share, "text": text, "loss": loss, "right": hit}
                for text, (loss, hit) in enumerate(zip(losses, right, strict=True))
            ]
    table = pd.DataFrame(rows)
    place = HERE if (texts == TEST and not only) or length != LENGTH else study.work  # a trial is no result
    put_rows(table, place / "texts.parquet", model=study.name)
    if length == LENGTH:
        budget = hr.load_table(study.work / f"ranking-{RANKINGS[0]}.parquet")
        put_rows(budget, place / "budget.parquet", model=name)
        put_rows(study.rankings(), place / "rankings.parquet", model=name)
    print(table.groupby(["what", "ranking", "share"], sort=False)[["loss", "right"]].mean())


def _measured(study: Study, tested: Tested, name: str, gates: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the loss of each text and whether its answer is right, [2, text], in blocks that are kept."""
    parts = []
    for start in range(0, len(tested.questions), BLOCK):
        path = study.work / f"{name}-{start}-{len(tested.questions)}.npy"
        if not path.is_file():
            some = copy(tested)
            some.questions, some.right = tested.questions[start : start + BLOCK], []
            np.save(path, np.stack([some.measure(torch.tensor(gates(), dtype=torch.float32)), some.right]))
        parts.append(np.load(path, allow_pickle=False))
    return np.concatenate(parts, 1)


class Tested(Calibration):
    """Texts of which it is also noted whether all tokens of the answer are the likeliest."""

    right: list[float]

    def measure(self, gates: torch.Tensor) -> np.ndarray:
        """Measure the loss of each answer, and note whether it is right."""
        losses = []
        hook = self.model.model.register_forward_hook(lambda _, __, output: logits.append(output.logits))
        logits: list[torch.Tensor] = []
        try:
            with self.losses() as of, torch.no_grad():
                for text in self.questions:
                    logits.clear()
                    losses.append(float(of(text)(gates)))
                    size = text.ids.shape[1] - text.answer
                    likeliest = logits[0][0, -size - 1 : -1].argmax(-1)
                    self.right.append(float(torch.equal(likeliest, text.ids[0, text.answer :])))
        finally:
            hook.remove()
        return np.array(losses)


@app.command()
def speed(name: Name, folder: Model, data: Data, work: Work = Path(".cache-budgets"), tokens: int = 32) -> None:
    """Measure bytes and time for each token at 1,000 to 8,000 tokens, as ratios to the full cache: NAME-speed.csv."""
    study, rows = Study(name, folder, data, work), []
    table = hr.load_table(study.work / "ranking-integrated-gradients.parquet")
    for length in (1000, 2000, 4000, 8000):
        ids = torch.randint(100, 1000, (1, length), generator=torch.Generator().manual_seed(0))
        times: dict[str, list[float]] = {"budget": [], "full": []}
        sizes = {}
        for _ in range(3):  # in turns, so that a busy machine slows both
            for kind in times:
                cache = (
                    hr.BudgetedCache(study.model, table)
                    if kind == "budget"
                    else DynamicCache(config=study.model.config)
                )
                with torch.no_grad():
                    study.model(input_ids=ids, cache=cache, logits_to_keep=1)
                    begun = time.process_time()
                    for _ in range(tokens):
                        study.model(input_ids=ids[:, :1], cache=cache)
                times[kind].append((time.process_time() - begun) / tokens)
                held = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
                sizes[kind] = cache.nbytes() if kind == "budget" else sum(tensor.nbytes for tensor in held)
        best = {kind: min(values) for kind, values in times.items()}
        rows.append({"tokens": length, "bytes": sizes["budget"] / sizes["full"], "time": best["budget"] / best["full"]})
        pd.DataFrame(rows).to_csv(HERE / f"{name}-speed.csv", index=False)
    print(pd.DataFrame(rows))


@app.command()
def compare() -> None:
    """Summarise conditions (losses.csv); compare rankings at each share, paired over texts (comparison.csv)."""
    rows, losses = [], []
    of_all = pd.read_parquet(HERE / "texts.parquet")["model"].unique()
    for name in [each for first in GROUPS for each in sorted(of_all, reverse=True) if each.startswith(first)]:
        table = rows_of(HERE / "texts.parquet", model=name)
        table["ranking"] = table["ranking"].str.replace(r"^random-\d+$", "random", regex=True)
        for what, part in table.groupby("what", sort=False):
            means = part.groupby(["share", "ranking", "text"])[["loss", "right"]].mean().unstack("text")
            values, right = means["loss"], means["right"] if what == "answer" else means["right"] * np.nan
            full = values.loc[(0.0, "full")]
            for share, ranking in values.index:
                change = _paired(values.loc[(share, ranking)] - full)
                found = {"model": name, "what": what, "share": share, "ranking": ranking}
                found |= {"bytes": _bytes(name, share), "loss": values.loc[(share, ranking)].mean()}
                losses.append(found | {"right": right.loc[(share, ranking)].mean()} | change)
                if what == "answer" and ranking not in (RANKINGS[0], "full", "streaming"):
                    other = _paired(values.loc[(share, RANKINGS[0])] - values.loc[(share, ranking)])
                    rows.append({"model": name, "share": share, "other": ranking} | other)
    found = pd.DataFrame(rows)
    is_long = found["model"].str.contains("-")
    for part in (is_long, ~is_long):  # the two models at one length
        primary = (found["share"] == PRIMARY) & (found["other"] == "kvpress") & part
        found.loc[primary, "holm"] = holm(found.loc[primary, "effect.p"].to_numpy())
    found.to_csv(HERE / "comparison.csv", index=False)
    pd.DataFrame(losses).to_csv(HERE / "losses.csv", index=False)
    print(found)


def _paired(change: pd.Series) -> dict[str, float]:
    """Return the mean of differences over texts, its interval and p."""
    found = {key: float(values[0]) for key, values in summary(change.to_numpy()[:, None]).items()}
    return {key: value for key, value in found.items() if key not in ("effect.holm", "effect.bh")}


def _bytes(model: str, share: float) -> float:
    """Return the bytes of the cache at the end of a test text, as a share of those of the full cache."""
    name, _, long = model.partition("-")
    groups, windowed = GROUPS[name]
    length = int(long or LENGTH)
    full = groups * length + windowed * WINDOW
    return 1 - round(share * groups) * (length - SINK - RECENT) / full


@app.command()
def roles(
    name: Name,
    folder: Model,
    data: Data,
    table: Annotated[Path, typer.Argument(help="A table of hr.roles of this model.")],
    work: Work = Path(".cache-budgets"),
) -> None:
    """Say of the groups with each role how many keep their context, and what streaming them costs: NAME-roles.csv."""
    study, assigned = Study(name, folder, data, work), hr.load_table(table)
    found = Calibration(study.handle, study.calibrating, study.pattern)
    budget = hr.load_table(study.work / "ranking-integrated-gradients.parquet")
    alone = study.ranking("ablation")
    rows = []
    for role in names(assigned):
        groups = group_values(assigned[role].astype(float), found) > 0
        if groups.any():
            rows.append(
                {"role": role, "groups": int(groups.sum()), "kept": float(budget["retrieval"][groups].mean()),
                 "effect": float(budget["effect"][groups].mean()), "alone": float(alone[groups].max())}
            )  # fmt: skip
    pd.DataFrame(rows).to_csv(HERE / f"{name}-roles.csv", index=False)


add(app, HERE)

if __name__ == "__main__":
    app()
