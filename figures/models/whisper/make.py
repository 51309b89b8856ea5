"""Who listens in Whisper base, and which heads survive? `make.py data`, `tables`, `pictures`: see PLAN.md."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import pandas as pd
import soundfile
import typer
from filelock import FileLock
from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headroles as hr
from headroles.analysis.role_rules import VERDICTS
from headroles.models.masking import Head
from headroles.patterns import Alignment
from headroles.pruning.selection import undecided

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add, put_rows, rows_of, synthetic_speech  # noqa: E402 - of all studies

HEADS, TESTS, PRUNED = "heads.parquet", "tests.parquet", "pruned.csv"
SCORES = ("confidence", "position", "distance", "importance", "links", hr.scores.Links(at="next"))
LINKS = {"read": "links", "next": "links[next]"}
KINDS = "enc-self", "dec-self", "cross"
PUBLISHED = {(3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)}  # layers, heads, by OpenAI
SHOWN = 0.62  # the least share of a head that the picture names
SIZES, SEEDS, DRAWS, FEWEST = (108, 72, 36, 18), (0, 1, 2), 100_000, 3
RATE, LONGEST, PAUSE = 16_000, 28, 0.3  # samples a second; seconds
TUNE = {"epochs": 6, "batch": 1, "rate": 1e-5, "save_strategy": "no", "bf16": True, "use_cpu": True}
Parts = tuple[PreTrainedModel, PreTrainedTokenizerBase]
Floats = npt.NDArray[np.float64]
Model = Annotated[Path, typer.Argument(help="Folder of Whisper base.")]
Speech = Annotated[Path, typer.Argument(help="Folder with human.jsonl.")]
Synthetic = Annotated[Path, typer.Argument(help="Folder with meta.json and its sounds.")]
Work = Annotated[Path, typer.Option(help="Folder of unfinished work.")]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def tables(
    model: Model,
    speech: Speech,
    synthetic: Synthetic,
    work: Work = Path(".whisper"),
    limit: Annotated[int, typer.Option(help="Utterances of each kind, to try the script: tables go to --work.")] = 0,
    only: Annotated[str, typer.Option(help="Of: heads, tests, pruned; commas between.")] = "heads,tests,pruned",
) -> None:
    """Score, ablate, test and prune (seven hours of one core, in units below one); resumes if stopped."""
    parts, place = hr.load(model, target_lang="en"), work if limit else HERE
    parts[0].generation_config.max_new_tokens = 100
    corpora = {"human": hr.read(speech / "human.jsonl"), "synthetic": synthetic_speech(synthetic)}
    corpora = {name: corpus[: limit or None] for name, corpus in corpora.items()}
    for name, corpus in corpora.items() if "heads" in only else ():
        if rows_of(place / HEADS, corpus=name).empty:
            scores = hr.score(*parts, corpus, [*SCORES], study=work / name)
            effects = hr.ablate(*parts, corpus, metric="loss", study=work / name)
            put_rows(hr.join(scores, effects), place / HEADS, corpus=name)
    for (name, corpus), at in product(corpora.items(), LINKS) if "tests" in only else ():
        if rows_of(place / TESTS, corpus=name, at=at).empty:
            (other,) = {*corpora} - {name}
            tested: dict[Head, list[Alignment]] = {head: [Alignment(at)] for head in listening(place, other, at)}
            put_rows(
                hr.test_roles(*parts, corpus, tested, study=work / f"{name}-{at}"), place / TESTS, corpus=name, at=at
            )
    if "pruned" in only:
        human = [*corpora["human"]]
        taught = windows([*corpora["synthetic"], *human[::2]], work / "windows")
        for row in _prunings(parts, taught, hr.Corpus("held out", tuple(human[1::2])), work, place):
            with FileLock(work / ".lock"):
                done = pd.read_csv(path) if (path := place / PRUNED).exists() else pd.DataFrame()
                pd.concat([done, pd.DataFrame([row])]).to_csv(
                    path, index=False, float_format="%.5g", lineterminator="\n"
                )
    if (place / PRUNED).exists():
        analyse(place)


def listening(place: Path, corpus: str, at: str) -> list[Head]:
    """Return the cross heads that surely listen to a word more than an even pace through the sound would."""
    table, column = rows_of(place / HEADS, corpus=corpus).loc[["cross"]], LINKS[at]
    sure = table[f"{column}.low"] > table[f"{column}.baseline"]
    return [(str(kind), int(layer), int(head)) for kind, layer, head in table.index[sure]]  # type: ignore[misc]


def windows(utterances: Sequence[hr.Sentence], folder: Path) -> hr.Corpus:
    """Join utterances, in their order, to windows of at most `LONGEST` seconds; sounds are kept in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    joined: list[tuple[list[Floats], list[str]]] = []
    pause, length = np.zeros(round(PAUSE * RATE)), float("inf")
    for one in utterances:
        samples = one.sound.samples(RATE)  # type: ignore[attr-defined]
        length += len(samples) / RATE + PAUSE
        if length > LONGEST:
            joined.append(([], []))
            length = len(samples) / RATE + PAUSE
        joined[-1][0].extend((samples, pause))
        joined[-1][1].append(one.text.strip())
    lines = []
    for number, (parts, texts) in enumerate(joined):
        soundfile.write(folder / f"{number}.wav", np.concatenate(parts), RATE)
        lines.append(json.dumps({"audio": f"{number}.wav", "text": " ".join(texts)}))
    (folder / "windows.jsonl").write_text("\n".join(lines))
    return hr.read(folder / "windows.jsonl")


def _prunings(
    parts: Parts, taught: hr.Corpus, held_out: hr.Corpus, work: Path, place: Path
) -> Iterator[dict[str, object]]:
    """Yield what each pruning keeps, and what the smaller model loses; not those that the table has."""
    done = pd.read_csv(place / PRUNED) if (place / PRUNED).exists() else pd.DataFrame(columns=["way", "heads", "seed"])
    seen = {*done[["way", "heads", "seed"]].itertuples(index=False, name=None)}
    ways = {
        "none": ((0,), (144,), None),
        "importance": ((0,), SIZES, "importance"),
        "random": (SEEDS, SIZES, "random"),
        "weights": ((0,), (144,), None),
        "gates": (SEEDS, (36, 18, 72, 108), hr.L0(freeze="all")),  # the primary size first
        "gates and weights": (SEEDS, (36, 18, 72, 108), hr.L0()),
    }
    for way, (seeds, sizes, strategy) in ways.items():
        for heads, seed in product(sizes, seeds):
            if (way, heads, seed) in seen:
                continue
            model, tokenizer = copy.deepcopy(parts[0]), parts[1]
            row: dict[str, object] = {"way": way, "heads": heads, "seed": seed}
            if strategy is not None:
                tune = {"tune": TUNE} if way.startswith("gates") else {}
                table = hr.prune(model, tokenizer, taught, strategy, keep=heads, seed=seed, **tune)
                kept = table.index[table.iloc[:, 0] == 1]
                row["kept"] = " ".join(f"{kind}:{layer}:{head}" for kind, layer, head in kept)
                row["undecided"] = undecided(table.iloc[:, 1]) if tune else 0
            elif way == "weights":
                hr.train(model, tokenizer, taught, work / "trained", seed=seed, **TUNE)
            for name, values in hr.evaluate(model, tokenizer, held_out, ["loss", "wer"]).iterrows():
                row |= {
                    f"{name}{end}": values[key] for end, key in {"": "value", ".low": "low", ".high": "high"}.items()
                }
            yield row


def survival(place: Path, way: str, heads: int) -> pd.Series[float]:
    """Return the share of seeds that keep each head."""
    rows = pd.read_csv(place / PRUNED).query("way == @way and heads == @heads")
    index = rows_of(place / HEADS, corpus="human").index
    names = [":".join(map(str, head)) for head in index]
    kept = np.array([[name in {*row.split()} for name in names] for row in rows["kept"].fillna("")])
    return pd.Series(kept.mean(0), index, name=f"survival[{way} {heads}]")


def passing(place: Path, at: str) -> list[Head]:
    """Return the cross heads that pass the role test on human speech."""
    table = rows_of(place / TESTS, corpus="human", at=at)
    names = [heads for (heads, _), verdict in table["verdict"].items() if verdict in VERDICTS[:2]]
    return [(kind, int(layer), int(head)) for kind, layer, head in (name.split(":") for name in names)]  # type: ignore[misc]


@app.command()
def analyse(place: Annotated[Path, typer.Argument(help="Folder of the tables.")] = HERE) -> None:
    """Test the contrasts on the prunings that the table has."""
    effects = rows_of(place / HEADS, corpus="human").loc[["cross"]]
    costly = effects.index[effects["ablation[loss].low"] > 0]
    done = pd.read_csv(place / PRUNED)
    rows = []
    for way, heads in done.loc[done["way"].str.startswith("gates"), ["way", "heads"]].drop_duplicates().to_numpy():
        left = survival(place, way, heads).loc[["cross"]]
        for at, others in product(LINKS, ("other heads", "other heads that cost something")):
            passes = left.index.isin(passing(place, at))
            there = passes | (left.index.isin(costly) if "cost" in others else True)
            row = {"way": way, "heads": heads, "at": at, "against": others, **contrast(left[there], passes[there])}
            is_primary = (way, heads, at, others) == ("gates", 36, "read", "other heads")
            rows.append(row if is_primary else {**row, "p": np.nan})
    table = pd.DataFrame(rows)
    table.to_csv(place / "contrasts.csv", index=False, float_format="%.4g", lineterminator="\n")
    print(table.round(3).to_string(index=False))


def contrast(left: pd.Series[float], passes: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Return the survival of heads that pass minus that of others of their layers, by permutations within layers.

    Returns:
        `heads`, the number of heads that pass beside another one; survival of these and of the others (the mean over
        the heads that pass of the mean in their layers); `difference`, with the end of the interval of differences
        that the permutations do not reject (95 %); p, two-sided.
    """
    layers = left.index.get_level_values("layer")
    groups = [(left[layers == layer].to_numpy(), passes[layers == layer]) for layer in layers.unique()]
    groups = [(values, marked) for values, marked in groups if marked.any() and not marked.all()]
    count = sum(int(marked.sum()) for _, marked in groups)
    if count < FEWEST:
        return {"passing": count, "p": np.nan}
    role = sum(values[marked].sum() for values, marked in groups) / count
    other = sum(marked.sum() * values[~marked].mean() for values, marked in groups) / count
    drawn = [_differences(values, int(marked.sum())) for values, marked in groups]  # of each layer, of every choice
    if prod(map(len, drawn)) <= DRAWS:
        null = np.array([sum(choice) for choice in product(*drawn)]) / count
    else:
        generator = np.random.default_rng(0)
        null = np.sum([generator.choice(part, DRAWS) for part in drawn], axis=0) / count
        null = np.append(null, role - other)  # the observed one counts
    difference, (low, high) = role - other, np.quantile(null, [0.025, 0.975])
    p = float(np.mean(np.abs(null) >= abs(difference) - 1e-9))
    ends = {"difference.low": difference - high, "difference.high": difference - low}
    return {"passing": count, "role": role, "other": other, "difference": difference, **ends, "p": p}


def _differences(values: Floats, marked: int) -> Floats:
    """Return, of every choice of so many values, their sum minus as many times the mean of the others."""
    sums = np.array([sum(chosen) for chosen in combinations(values, marked)])
    return np.asarray(sums - marked * (values.sum() - sums) / (len(values) - marked))


def drawn_kinds() -> Figure:
    """Draw how many heads of each kind are left, by gates and at random."""
    figure, ax = plt.subplots(figsize=(5, 3.4), layout="constrained")
    rows = pd.read_csv(HERE / PRUNED).query("way == 'gates'")
    for place, kind in enumerate(KINDS):
        left = rows.assign(left=rows["kept"].fillna("").str.count(kind)).groupby("heads")["left"]
        sizes = left.mean().index[::-1]
        ax.plot([144, *sizes], [48, *left.mean()[::-1]], "o-", color=f"C{place}", label=kind)
        ax.fill_between([144, *sizes], [48, *left.min()[::-1]], [48, *left.max()[::-1]], color=f"C{place}", alpha=0.2)
    ax.plot([144, 0], [48, 0], color="0.6", ls=":", label="a third of all")
    ax.set(xlabel="heads left of 144", ylabel="of this kind; mean and range of three seeds", xlim=(148, 0))
    ax.set_title("Whisper base, gates alone", fontsize=10)
    ax.legend(frameon=False)
    return figure


def drawn_heads() -> Figure:
    """Draw what the loss loses without each head, by rank, and the words to which cross heads listen."""
    table = rows_of(HERE / HEADS, corpus="human").sort_index()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), layout="constrained")
    for place, kind in enumerate(KINDS):
        part = table.loc[[kind]].sort_values("ablation[loss]", ascending=False)
        costs, ends = part["ablation[loss]"], part[["ablation[loss].low", "ablation[loss].high"]]
        ranks, widths = range(1, len(part) + 1), ends.sub(costs, axis=0).abs().to_numpy().T
        left.errorbar(ranks, costs, widths, fmt="o", ms=3, lw=0.8, color=f"C{place}", label=kind)
        _, layer, head = costs.index[0]
        left.annotate(f"L{layer}H{head}", (1, costs.iloc[0]), xytext=(6, -3), textcoords="offset points", fontsize=8)
    left.set_yscale("symlog", linthresh=0.01)
    left.axhline(0, color="0.7", lw=0.8)
    left.set(xlabel="heads of each kind, by cost", ylabel="rise of the loss without the head, nats a token")
    left.legend(frameon=False)
    cross = table.loc[["cross"]]
    read, following = cross[LINKS["read"]], cross[LINKS["next"]]
    names = [(layer, head) for _, layer, head in cross.index]
    sizes = 12 + 250 * cross["ablation[loss]"].clip(lower=0) ** 0.5
    colours = ["C3" if name in PUBLISHED else "0.55" for name in names]
    right.scatter(read, following, sizes, c=colours, alpha=0.7, lw=0)
    named = sorted((y, x, name) for name, x, y in zip(names, read, following, strict=True) if max(x, y) > SHOWN)
    for number, (y, x, (layer, head)) in enumerate(named):  # higher beside one that is nearly there
        is_near = number and y - named[number - 1][0] < 0.04 and abs(x - named[number - 1][1]) < 0.05
        text = {"xytext": (9, 9 if is_near else -5), "textcoords": "offset points", "fontsize": 8}
        right.annotate(f"L{layer}H{head}", (x, y), **text)
    even = cross[f"{LINKS['read']}.baseline"].iloc[0]
    right.axhline(even, color="0.7", lw=0.8, ls=":")
    right.axvline(even, color="0.7", lw=0.8, ls=":")
    right.set(xlabel="attends most to the word just read, share of tokens", ylabel="attends most to the next word")
    right.set(xlim=(-0.03, 1.08), ylim=(-0.03, 1.03))
    right.set_title("cross-attention; red: OpenAI's alignment heads\narea: cost; dotted: an even pace", fontsize=9)
    return figure


add(app, HERE, tables=False)

if __name__ == "__main__":
    app()
