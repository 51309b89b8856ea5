"""Fewer heads or fewer layers, at the same speed? `make.py data`, `tables`, `pictures`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import typer
from matplotlib.figure import Figure
from scipy import stats
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headroles as hr
from headroles.analysis.intervals import holm
from headroles.data.sentences import Tokens
from headroles.exports import costs
from headroles.models.head_model import HeadModel

HERE = Path(__file__).parent
GROUPS, FROM_END, BLOCKS = (68, 45), (2, 6, 9), (8, 15)  # left, dropped, removed
LAYERS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12)  # dropped, by their effects
CONTEXTS, NEW, PAIRS = (100, 1000, 2000, 4000), 64, 4
TIMED = ("ablation", "importance", "effect")  # after texts of all lengths; others after 2,000 tokens
PASS = {"epochs": 1, "batch": 8, "bf16": True, "use_cpu": True, "save_strategy": "no"}  # once through the texts
LORA = PASS | {"rate": 5e-4, "warmup_steps": 5}
WHOLE = LORA | {"rate": 5e-5}
PRIMARY = {"texts": "news", "trained": "all", "way": "ablation", "context": 2000}
STYLES = {"groups": "o-", "layers": "s--", "blocks": "^:"}
Parts = tuple[PreTrainedModel, PreTrainedTokenizerBase]
Model = Annotated[Path, typer.Argument(help="Folder of SmolLM2-135M-Instruct.")]
Data = Annotated[Path, typer.Argument(help="Folder with ud/ewt and ntrex.")]
Work = Annotated[Path, typer.Option(help="Folder of unfinished work.")]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


class Smaller(NamedTuple):
    """A way to make the model smaller: which groups (layer, group) or layers it loses, and how it is trained."""

    way: str
    size: int  # groups left, or layers or blocks removed
    what: str  # groups, layers, blocks
    removed: tuple[tuple[int, ...], ...]

    @property
    def name(self) -> str:
        return f"{self.what} {self.way} {self.size}"


@app.command()
def data() -> None:
    """Say what must be at hand."""
    print("MODEL  HuggingFaceTB/SmolLM2-135M-Instruct of the Hub, in a folder")
    print("DATA   ud/ewt/en_ewt-ud-{train,dev,test}.conllu.gz (UD English-EWT), ntrex/newstest2019.en.gz (NTREX)")


@app.command()
def tables(
    model: Model,
    data: Data,
    work: Work = Path(".smaller-models"),
    limit: Annotated[int, typer.Option(help="Texts of each kind, to try the script: tables go to --work.")] = 0,
    losses: Annotated[bool, typer.Option(help="Also train and measure; if not, only choose and time.")] = True,
) -> None:
    """Choose, time, train and measure all models that the tables lack (twelve hours of one core); resumes."""
    torch.set_num_threads(1)
    parts, place = hr.load(model), work if limit else HERE
    texts = {name: corpus[: limit or None] for name, corpus in _texts(parts[1], data).items()}
    smaller = [Smaller("", 0, "whole", ()), *_chosen(parts, texts, work, place)]
    for one in smaller[1:]:
        if _lacking(place, "speed", one):
            _save(place, "speed", _timed(parts, one))
    beside = _beside(_table(place, "speed"))
    for how, one in ((how, one) for how in ("all", "no", "lora") for one in smaller if losses):
        if how in _trainings(one, beside) and _lacking(place, "losses", one, how):
            _save(place, "losses", _measured(parts, one, how, texts, work))
    if losses:
        analyse(place)


@app.command()
def analyse(place: Annotated[Path, typer.Argument(help="Folder of the tables.")] = HERE) -> None:
    """Test the primary contrast on the models that the tables have."""
    print(primary(_table(place, "losses"), _table(place, "speed"), place).to_string())


@app.command()
def pictures() -> None:
    """Draw loss against time, from the tables."""
    losses, speed = _table(HERE, "losses"), _table(HERE, "speed")
    drawn(losses, speed).savefig(HERE / "loss-and-time.svg", bbox_inches="tight")


def _texts(tokenizer: PreTrainedTokenizerBase, data: Path) -> dict[str, hr.Corpus]:
    """Return the texts by their use: each of one size, drawn by a seed."""
    train, dev, test = (hr.read(data / f"ud/ewt/en_ewt-ud-{part}.conllu.gz") for part in ("train", "dev", "test"))
    learnt, news = _packed(tokenizer, train, 250), _packed(tokenizer, hr.read(data / "ntrex/newstest2019.en.gz"), 1000)
    long = [*_packed(tokenizer, dev, 1000)[:10], *news[20:30]]
    halves = [ids[part] for ids in news[:20] for part in (slice(500), slice(500, None))]
    texts = {
        "choosing": learnt[:24],
        "retraining": learnt[24:424],
        "news": halves,
        "ewt": _packed(tokenizer, test, 250)[:40],
        "long": [text for pair in zip(long[:10], long[10:], strict=True) for text in pair],
    }
    corpora = {name: tuple(Tokens(tokenizer.decode(ids), ids=ids) for ids in some) for name, some in texts.items()}
    return {name: hr.Corpus(name, some) for name, some in corpora.items()} | {
        "needles": hr.needles(tokenizer, 20, length=1000)
    }


def _packed(tokenizer: PreTrainedTokenizerBase, sentences: hr.Corpus, size: int) -> list[tuple[int, ...]]:
    """Join all sentences, divide them into texts of exactly `size` tokens, and return these in a random order."""
    ids = tokenizer(" ".join(sentence.text for sentence in sentences)).input_ids
    texts = [tuple(ids[start : start + size]) for start in range(0, len(ids) - size + 1, size)]
    return [texts[place] for place in np.random.default_rng(0).permutation(len(texts))]


def _chosen(parts: Parts, texts: dict[str, hr.Corpus], work: Path, place: Path) -> list[Smaller]:
    """Return every smaller model, and write what each loses into chosen.csv."""
    work.mkdir(parents=True, exist_ok=True)
    chosen = [*_choices(parts, texts, work)]
    rows = [(one.what, one.way, one.size, " ".join(":".join(map(str, part)) for part in one.removed)) for one in chosen]
    table = pd.DataFrame(rows, columns=["what", "way", "size", "removed"])
    table.to_csv(place / "chosen.csv", index=False, lineterminator="\n")
    return chosen


def _choices(parts: Parts, texts: dict[str, hr.Corpus], work: Path) -> Iterator[Smaller]:
    """Yield every smaller model."""
    choosing = *parts, texts["choosing"]
    steps = (("n_steps", 10), ("method", "riemann_middle"), ("internal_batch_size", 1))
    path = hr.scores.Attribution("IntegratedGradients", steps, objective="loss")
    heads = hr.score(*choosing, ["importance", path], n_resamples=0, study=work / "scores")
    attributed = next(name for name in heads if str(name).startswith("attribution") and "size" not in str(name))
    effects = hr.ablate(*choosing, unit="group", n_resamples=0, study=work / "groups")["ablation[loss group]"]
    orders = {
        "importance": _by_group(heads["importance"]),
        "integrated gradients": -_by_group(heads[attributed]),  # a head that matters lowers the loss
        "ablation": _by_group(effects) / 3,  # each head has the effect of its group
    }
    for size in GROUPS:
        for way, worth in orders.items():
            yield Smaller(way, size, "groups", tuple(worth.sort_values(kind="stable").index[: 90 - size]))
        yield Smaller("l0", size, "groups", _by_gates(parts, texts["retraining"], size, work))
        for seed in range(3):
            drawn = np.random.default_rng(seed).permutation(90)[: 90 - size]
            yield Smaller(f"chance {seed}", size, "groups", tuple((int(i) // 3, int(i) % 3) for i in sorted(drawn)))
    for what, sizes in (("layers", LAYERS), ("blocks", BLOCKS)):
        order = _alone(parts, what, texts["choosing"], work)
        for size in sizes:
            yield Smaller("effect", size, what, tuple((layer,) for layer in sorted(order[:size])))
    for size in FROM_END:
        yield Smaller("from the end", size, "layers", tuple((layer,) for layer in range(30 - size, 30)))


def _by_group(values: pd.Series) -> pd.Series:
    """Sum the values of heads over their groups, (layer, group)."""
    layers, heads = values.index.get_level_values("layer"), values.index.get_level_values("head")
    return values.groupby([layers, heads // 3]).sum()


def _by_gates(parts: Parts, texts: hr.Corpus, size: int, work: Path) -> tuple[tuple[int, ...], ...]:
    path = work / f"l0-{size}.parquet"
    if not path.is_file():
        options = {"keep": size / 90, "unit": "group", "remove": False, "tune": PASS}
        hr.save_table(hr.prune(copy.deepcopy(parts[0]), parts[1], texts, hr.L0(freeze="all"), **options), path)
    survives = _by_group(hr.load_table(path).iloc[:, 0])
    return tuple(survives.index[survives == 0])


def _alone(parts: Parts, what: str, texts: hr.Corpus, work: Path) -> list[int]:
    """Return the layers, or their attention blocks, in the order of the loss without each by itself."""
    path = work / f"{what}.csv"
    if not path.is_file():
        every = [Smaller("alone", 1, what, ((layer,),)) for layer in range(30)]
        losses = [_losses((_cut(parts[0], one), parts[1]), texts).mean() for one in every]
        pd.Series(losses, name="loss").to_csv(path)
    return [int(layer) for layer in pd.read_csv(path)["loss"].sort_values(kind="stable").index]


def _cut(model: PreTrainedModel, smaller: Smaller) -> PreTrainedModel:
    """Return a copy without the groups, attention blocks or layers."""
    model = copy.deepcopy(model)
    if smaller.what == "layers":
        dropped = {layer for (layer,) in smaller.removed}
        left = [layer for number, layer in enumerate(model.model.layers) if number not in dropped]
        for number, layer in enumerate(left):
            layer.self_attn.layer_idx = number
        model.model.layers, model.config.num_hidden_layers = nn.ModuleList(left), len(left)
        if getattr(model.config, "layer_types", None):
            model.config.layer_types = model.config.layer_types[: len(left)]
    elif smaller.removed:
        blocks = smaller.what == "blocks"
        heads = [
            ("dec-self", place[0], head)
            for place in smaller.removed
            for head in (range(9) if blocks else range(3 * place[1], 3 * place[1] + 3))
        ]
        hr.remove_heads(model, heads)
    return model


def _beside(speed: pd.DataFrame) -> set[int]:
    """Return the numbers of dropped layers whose times are next to those of groups by importance and by ablation."""
    at = speed["phase"].eq("generation") & speed["context"].eq(PRIMARY["context"])
    layers = speed[at & speed["what"].eq("layers") & speed["way"].eq("effect")].set_index("size")["time"]
    groups = speed[at & speed["what"].eq("groups") & speed["way"].isin(TIMED)]["time"]
    ends = ((layers[layers >= time].idxmin() if (layers >= time).any() else 0,
             layers[layers < time].idxmax() if (layers < time).any() else 0) for time in groups)  # fmt: skip
    return {int(size) for pair in ends for size in pair if size}


def _trainings(smaller: Smaller, beside: set[int]) -> list[str]:
    """Return how a smaller model is trained, as PLAN.md says."""
    if smaller.way in ("from the end", "chance 1", "chance 2"):
        return ["no"]
    if smaller.what == "layers" and smaller.size not in beside:
        return ["no"]
    primary = smaller.what != "blocks" and smaller.way in (*TIMED, "")
    return ["no", "lora", *(["all"] if primary else [])]


def _trained(parts: Parts, how: str, texts: hr.Corpus, folder: Path) -> PreTrainedModel:
    """Train a model on the texts, by LoRA or with all weights."""
    model, tokenizer = parts
    if how == "lora":
        import peft

        torch.manual_seed(0)
        empty = [name for name, module in model.named_modules() if 0 in getattr(module, "weight", torch.ones(1)).shape]
        options = {"target_modules": "all-linear", "exclude_modules": empty or None}  # maps of layers without heads
        model = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, **options))
        hr.train(model, tokenizer, texts, folder, seed=0, **LORA)
        return model.merge_and_unload()
    if how == "all":
        hr.train(model, tokenizer, texts, folder, seed=0, **WHOLE)
    return model


@torch.inference_mode()
def _losses(parts: Parts, texts: hr.Corpus) -> np.ndarray:
    """Return the loss of each text, in nats per token; of a needle, of the copied tokens."""
    model, tokenizer = parts
    losses = []
    for text in texts.sentences:
        ids = getattr(text, "ids", None) or tokenizer(text.text).input_ids
        logits = model(torch.tensor([ids])).logits[0, :-1].float()
        start = getattr(text, "answer", 0)  # the first token of a needle cannot be known
        losses.append(nn.functional.cross_entropy(logits[start:], torch.tensor(ids[start + 1 :])).item())
    return np.array(losses)


def _measured(parts: Parts, smaller: Smaller, how: str, texts: dict[str, hr.Corpus], work: Path) -> pd.DataFrame:
    """Cut, train and measure one model: a row per text."""
    model = _trained((_cut(parts[0], smaller), parts[1]), how, texts["retraining"], work / smaller.name / how).eval()
    rows = [
        pd.DataFrame({"texts": name, "text": range(len(losses)), "loss": losses})
        for name in ("news", "ewt", "long", "needles")
        for losses in [_losses((model, parts[1]), texts[name])]
    ]
    return _described(pd.concat(rows, ignore_index=True), smaller).assign(trained=how)


def _timed(parts: Parts, smaller: Smaller) -> pd.DataFrame:
    """Time generation in llama.cpp after texts of several lengths: a row per length, as a share of the whole model."""
    rows = []
    for context in CONTEXTS if smaller.way in TIMED else (PRIMARY["context"],):
        load = partial(costs._in_llama_cpp, parts[1])
        model, whole = (load(HeadModel(one, parts[1]), (context, NEW)) for one in (_cut(parts[0], smaller), parts[0]))
        times = costs._alternating(model.seconds, whole.seconds, PAIRS)  # [pair, model, phase]
        for place, phase in enumerate(("prompt", "generation")):
            found = costs._speeds(times[..., place], (context, NEW)[place])
            ends = {
                "time": 1 / found["speedup"],
                "time.low": 1 / found["speedup.high"],
                "time.high": 1 / found["speedup.low"],
            }
            rows.append({"context": context, "phase": phase, **ends, "cache": model.cache, "file": model.file})
    return _described(pd.DataFrame(rows), smaller)


def _described(table: pd.DataFrame, smaller: Smaller) -> pd.DataFrame:
    return table.assign(what=smaller.what, way=smaller.way, size=smaller.size)


def _lacking(place: Path, name: str, smaller: Smaller, how: str | None = None) -> bool:
    if not (place / f"{name}.csv").exists():
        return True
    table = _table(place, name)
    rows = table["what"].eq(smaller.what) & table["way"].eq(smaller.way) & table["size"].eq(smaller.size)
    return not (rows & table["trained"].eq(how) if how else rows).any()


def _save(place: Path, name: str, rows: pd.DataFrame) -> None:
    path = place / f"{name}.csv"
    table = pd.concat([_table(place, name), rows], ignore_index=True) if path.exists() else rows
    table.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")


def _table(place: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(place / f"{name}.csv", keep_default_na=False, na_values=["nan"])


def primary(losses: pd.DataFrame, speed: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Compare pruned groups with dropped layers at equal time of generation, and write contrasts.csv.

    Returns:
        A row per context, way of training and choosing, texts and size: the loss of both, their difference with a 95 %
        interval over texts, and p and Holm's p of the primary contrast. Blank where no two numbers of layers have times
        on either side.
    """
    rows = []
    timed = speed[speed["phase"].eq("generation")].set_index(["what", "way", "size", "context"])["time"]
    for (trained, texts, way, size), _ in losses[losses["what"].eq("groups")].groupby(
        ["trained", "texts", "way", "size"]
    ):
        pruned = _of(losses, "groups", way, size, trained, texts)
        for context in timed.index.get_level_values("context").unique():
            by_time = {0: (1.0, _of(losses, "whole", "", 0, trained, texts))}
            for count in losses.loc[losses["what"].eq("layers") & losses["way"].eq("effect"), "size"].unique():
                found = _of(losses, "layers", "effect", count, trained, texts)
                if len(found) and ("layers", "effect", count, context) in timed.index:
                    by_time[int(count)] = timed["layers", "effect", count, context], found
            if ("groups", way, size, context) not in timed.index:
                continue
            time = timed["groups", way, size, context]
            row = {"trained": trained, "texts": texts, "way": way, "size": size, "context": context, "time": time}
            rows.append(row | _difference(pruned, time, by_time))
    table = pd.DataFrame(rows)
    is_primary = np.logical_and.reduce([table[name].eq(value) for name, value in PRIMARY.items()])
    table["p"] = table["p"].where(is_primary)
    table.loc[is_primary, "p.holm"] = holm(table.loc[is_primary, "p"].fillna(1).to_numpy())  # of both sizes
    table.to_csv(folder / "contrasts.csv", index=False, float_format="%.5g", lineterminator="\n")
    return table[is_primary]


def _of(losses: pd.DataFrame, what: str, way: str, size: int, trained: str, texts: str) -> np.ndarray:
    values = {"what": what, "way": way, "size": size, "trained": trained, "texts": texts}
    rows = losses[np.logical_and.reduce([losses[name].eq(value) for name, value in values.items()])]
    return rows.sort_values("text")["loss"].to_numpy()


def _difference(pruned: np.ndarray, time: float, by_time: dict[int, tuple[float, np.ndarray]]) -> dict[str, float]:
    """Return the loss of groups minus that of layers at the same time, interpolated text by text."""
    known = sorted((t, losses) for t, losses in by_time.values() if len(losses) == len(pruned)) if len(pruned) else []
    above = [(t, losses) for t, losses in known if t >= time]
    below = [(t, losses) for t, losses in known if t < time]
    if not above or not below:
        return {"loss": pruned.mean() if len(pruned) else np.nan, "p": np.nan}
    (slow, more), (fast, less) = above[0], below[-1]
    share = (slow - time) / (slow - fast)
    layers = (1 - share) * more + share * less
    differences = pruned - layers
    mean, half = differences.mean(), stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
    p = stats.ttest_1samp(differences, 0).pvalue
    return {
        "loss": pruned.mean(),
        "layers": layers.mean(),
        "difference": mean,
        "difference.low": mean - half,
        "difference.high": mean + half,
        "p": p,
    }


def drawn(losses: pd.DataFrame, speed: pd.DataFrame) -> Figure:
    """Draw loss on news against time of generation after 2,000 tokens, a panel per way of training."""
    trainings = {"no": "not retrained", "lora": "100,000 tokens of LoRA", "all": "100,000 tokens, all weights"}
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), sharex=True, sharey=True, layout="constrained")
    times = speed[speed["phase"].eq("generation") & speed["context"].eq(2000)].set_index(["what", "way", "size"])[
        "time"
    ]
    for ax, (trained, title) in zip(axes, trainings.items(), strict=True):
        rows = losses[losses["texts"].eq("news") & losses["trained"].eq(trained)]
        means = rows.groupby(["what", "way", "size"])["loss"].mean()
        start = means.get(("whole", "", 0))
        chance = rows[rows["way"].str.startswith("chance")]
        for number, (what, way) in enumerate(
            dict.fromkeys((w, y.split(" 0")[0]) for w, y, _ in means.index if w != "whole")
        ):
            if way.startswith("chance"):
                continue
            points = [(times[what, way, size], means[what, way, size]) for w, y, size in means.index
                      if (w, y) == (what, way) and (what, way, size) in times.index]  # fmt: skip
            points = sorted([(1.0, start), *points], reverse=True)
            ax.plot(*zip(*points, strict=True), STYLES[what], ms=4, lw=1.2, color=f"C{number}", label=f"{what}: {way}")
        if len(chance):
            points = chance.groupby(["way", "size"])["loss"].mean()
            points = [
                (times["groups", way, size], loss)
                for (way, size), loss in points.items()
                if ("groups", way, size) in times.index
            ]
            ax.plot(*zip(*points, strict=True), "x", color="0.6", ms=4, label="groups: chance") if points else None
        ax.set(title=title, xlabel="time of a new token after 2,000 tokens,\nas a share of the whole model's")
        ax.invert_xaxis()
    axes[0].set_ylabel("loss on news, nats per token")
    axes[0].set_ylim(top=7)
    axes[0].legend(fontsize=6.5, frameon=False)
    figure.suptitle("SmolLM2-135M-Instruct in llama.cpp, one thread; 40 news texts of 500 tokens")
    return figure


if __name__ == "__main__":
    app()
