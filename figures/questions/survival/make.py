"""Do heads survive pruning because of their roles? Roles assigned by chance: `make.py data`, `tables`, `pictures`."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import pandas as pd
import torch
import typer
from assigned import FREE, WAYS, Assigned, Patterns, Regular, assign, draw
from contrasts import FAR, GATE_SEEDS, PERMUTED, SIZES, contrasts, power
from filelock import FileLock
from matplotlib.figure import Figure
from transformers import AutoConfig, AutoTokenizer, MarianMTModel, PreTrainedModel, PreTrainedTokenizerBase, set_seed

import headroles as hr
from headroles.models.head_model import HeadModel

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
import studies  # noqa: E402 - of all studies

PARTS = {"train": "train", "val": "val", "test": "test_2016_flickr"}  # of Multi30k
TRAIN = {
    "epochs": 10,
    "batch": 64,
    "rate": 2e-3,
    "warmup_steps": 800,
    "label_smoothing_factor": 0.1,
    "save_total_limit": 1,
}
GATES = {"epochs": 1, "batch": 64, "rate": 1e-4, "warmup_steps": 50}  # the decoder is frozen, as in Voita et al. 2019
KIND, HEADS = "enc-self", 48
Parts = tuple[PreTrainedModel, PreTrainedTokenizerBase]
Shared = Annotated[Path, typer.Argument(help="Folder with data/multi30k, models/multi30k-en-de and stanza.")]
Work = Annotated[Path, typer.Argument(help="Folder of parsed captions and of unfinished models.")]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def data(shared: Shared, work: Work) -> None:
    """Parse the captions by Stanza (some minutes of one core)."""
    for part in PARTS:
        if not (work / f"{part}.conllu").exists():
            hr.parse(_captions(shared, part), models=shared / "stanza", output=work / f"{part}.conllu")


@app.command()
def tables(
    shared: Shared,
    work: Work,
    models: Annotated[str, typer.Option(help="Numbers of models, such as 0,1,2.")] = "0,1,2,3",
    ordinary: Annotated[str, typer.Option(help="The same for models without assigned roles.")] = "0",
    regular: Annotated[str, typer.Option(help="The same for models with controls that are as regular.")] = "",
) -> None:
    """Train and prune the models that the tables lack (an hour and a half of one core each); resumes if stopped."""
    for arm, numbers in (("ordinary", ordinary), ("assigned", models), ("regular", regular)):
        for seed in map(int, filter(None, numbers.split(","))):
            if _missing(arm, seed):
                heads, model = _measured(shared, work, arm, seed)
                _save(heads, model, "regular" if arm == "regular" else "heads")
    analyse()


@app.command()
def analyse() -> None:
    """Test the contrasts on the models that the tables have."""
    print(contrasts(pd.read_csv(HERE / "heads.csv")).round(3).to_string(index=False))


@app.command()
def pictures() -> None:
    """Draw the shares that survive, from the tables."""
    for picture in studies.declared()["questions/survival"]["picture"]:
        studies.save(studies.draw(picture, HERE), HERE / picture["file"])


@app.command()
def patterns(shared: Shared, work: Work) -> None:
    """Describe where roles and controls attend on the captions of val (a minute)."""
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "multi30k-en-de")
    model = MarianMTModel(AutoConfig.from_pretrained(shared / "models" / "multi30k-en-de"))
    corpora = [hr.read(work / f"{part}.conllu") for part in ("train", "val")]
    of = _patterns(model, tokenizer, corpora)
    ids = [tokenizer(sentence.text).input_ids for sentence in corpora[1]]
    table = pd.concat([_described(Assigned(draw(seed), of, seed), ids) for seed in range(4)])
    table = table.groupby(["role", "way", "control"])[["end", "adjacent", "within 2", "log count"]].mean()
    table.to_csv(HERE / "patterns.csv", float_format="%.3f", lineterminator="\n")
    print(table.round(3).to_string())


def _described(assigned: Assigned, texts: list[list[int]]) -> pd.DataFrame:
    """Return a row per assigned head and text: the share on the end token, and of the rest on near tokens."""
    rows = []
    for ids in texts:
        assigned.read(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long))
        size = len(ids) - 1
        distance = (torch.arange(size)[:, None] - torch.arange(size)).abs()
        counts = torch.tensor([float(assigned.patterns.counts[token]) for token in ids[:-1]]).clamp(min=1).log()
        for layer, head, role, way, control, shift in assigned.heads:
            weights = assigned.weights[layer, 0, head, :size]
            inner = weights[:, :size]
            total = inner.sum().item() or float("nan")
            kind = FAR if shift else PERMUTED if control else ""
            near = {f: inner[distance <= d].sum().item() / total for f, d in (("adjacent", 1), ("within 2", 2))}
            near["adjacent"] -= inner.diagonal().sum().item() / total
            found = {"role": role, "way": way, "control": kind, "end": weights[:, size].mean().item(), **near}
            rows.append(found | {"log count": (inner.sum(0) @ counts).item() / total})
    return pd.DataFrame(rows)


@app.command("power")
def simulate() -> None:
    """Simulate the power of the primary contrast (a minute)."""
    table = power().round(3)
    table.to_csv(HERE / "power.csv", index=False, lineterminator="\n")
    print(table.to_string(index=False))


def drawn() -> Figure:
    """Draw the committed table."""
    return _drawn(pd.read_csv(HERE / "heads.csv"))


def _drawn(heads: pd.DataFrame) -> Figure:
    """Draw the share of each role, of its control and of free heads that survives; thin lines are models."""
    gates = {size: heads[[f"survival[{size} {seed}]" for seed in GATE_SEEDS]] for size in SIZES}
    left = pd.DataFrame({size: columns.mean(axis=1) for size, columns in gates.items()})
    figure, axes = plt.subplots(1, len(WAYS), figsize=(9.5, 4.2), sharey=True, layout="constrained")
    for ax, role in zip(axes, WAYS, strict=True):
        arms = {
            f"attends by the role ({', '.join(WAYS[role])})": (heads["role"].eq(role) & ~heads["control"], "C0", "o-"),
            **{
                f"control: {name}": (heads["role"].eq(role) & heads["control"] & moved, colour, style)
                for name, moved, colour, style in (
                    (f"as sharp, {PERMUTED}", heads["shift"].eq(0), "C1", "s--"),
                    (f"as sharp, {FAR}", heads["shift"].ne(0), "C2", "D-."),
                )
            },
            "free": (heads["role"].eq(FREE), "0.5", "^:"),
        }
        arms = {label: arm for label, arm in arms.items() if arm[0].any()}
        for label, (rows, colour, style) in arms.items():
            by_model = left[rows].groupby(heads["model"]).mean()
            ax.plot(range(len(SIZES)), by_model.to_numpy().T, color=colour, lw=0.6, alpha=0.5)
            ax.plot(range(len(SIZES)), by_model.mean(), style, color=colour, lw=2, label=label)
        ax.plot(range(len(SIZES)), [size / HEADS for size in SIZES], color="0.8", lw=4, zorder=0, label="chance")
        ax.set_xticks(range(len(SIZES)), [f"{size} of {HEADS}" for size in SIZES])
        ax.set(title=role, xlabel="encoder heads left", ylim=(-0.03, 1.03))
        ax.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(-0.05, -0.2))
    axes[0].set_ylabel("share of heads that survive L0 gates")
    return figure


def _captions(shared: Path, part: str) -> hr.Corpus:
    files = [shared / "data" / "multi30k" / f"{PARTS[part]}.{language}.gz" for language in ("en", "de")]
    return hr.read(*files)


def _missing(arm: str, seed: int) -> bool:
    path = HERE / "models.csv"
    table = pd.read_csv(path) if path.exists() else pd.DataFrame({"arm": [], "model": []})
    return not ((table["arm"] == arm) & (table["model"] == seed)).any()


def _save(heads: pd.DataFrame | None, model: pd.DataFrame, of_heads: str) -> None:
    """Add the rows of one model to the tables."""
    with FileLock(HERE / ".lock"):
        for name, rows in ((of_heads, heads), ("models", model)):
            path = HERE / f"{name}.csv"
            if rows is not None:
                table = pd.concat([pd.read_csv(path), rows]) if path.exists() else rows
                order = [column for column in ("arm", "model", "layer", "head") if column in table]
                table.sort_values(order).to_csv(path, index=False, float_format="%.9g", lineterminator="\n")


def _measured(shared: Path, work: Path, arm: str, seed: int) -> tuple[pd.DataFrame | None, pd.DataFrame]:
    """Train one model, measure and prune its encoder's heads; return a row per head, and one of the model."""
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "multi30k-en-de")
    train, val, test = (hr.read(work / f"{part}.conllu", _target(shared, part)) for part in PARTS)
    set_seed(seed)
    model = MarianMTModel(AutoConfig.from_pretrained(shared / "models" / "multi30k-en-de")).eval()
    table, kind = draw(seed, regular=arm == "regular"), Regular if arm == "regular" else Patterns
    if arm != "ordinary":
        assign(model, Assigned(table, _patterns(model, tokenizer, (train, val, test), kind), seed))
    parts = model, tokenizer
    history = hr.train(*parts, train, work / f"{arm}-{seed}", held_out=val, seed=seed, **TRAIN)
    found = {"arm": arm, "model": seed, **_quality(parts, val, test)}
    found |= {f"loss[{epoch:g}]": loss for epoch, loss in zip(history["epoch"], history["held_out loss"], strict=True)}
    if arm == "ordinary":
        return None, pd.DataFrame([found])
    heads = [(KIND, *place) for place in table[["layer", "head"]].itertuples(index=False, name=None)]
    effects = hr.ablate(*parts, val, sets={str(head): [head] for head in heads}, n_resamples=0)
    table["ablation"] = effects["ablation[loss]"].to_numpy()
    table["importance"] = hr.score(*parts, val, "importance", n_resamples=0)["importance"].reindex(heads).to_numpy()
    for name, rows in {"role": ~table["control"] & (table["role"] != FREE), "control": table["control"]}.items():
        found[f"bleu[{name}]"] = _bleu(parts, test, rows.to_numpy(), heads)
    found["bleu[free]"] = _bleu(parts, test, table["role"].eq(FREE).to_numpy(), heads)
    for size in SIZES:
        for gates in GATE_SEEDS:
            pruned = copy.deepcopy(model)
            options = {"keep": size, "kinds": [KIND], "remove": False, "seed": gates, "tune": GATES}
            survival = hr.prune(pruned, tokenizer, train, hr.L0(freeze="decoder"), **options).iloc[:, 0]
            left = survival.reindex(heads).to_numpy() == 1
            table[f"survival[{size} {gates}]"] = left.astype(int)
            found[f"bleu[{size} {gates}]"] = _bleu((pruned, tokenizer), test, left, heads)
    return table.assign(model=seed), pd.DataFrame([found])


def _target(shared: Path, part: str) -> Path:
    return shared / "data" / "multi30k" / f"{PARTS[part]}.de.gz"


def _patterns(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpora: Sequence[hr.Corpus],
    kind: type[Patterns] = Patterns,
) -> Patterns:
    handle = HeadModel(model, tokenizer)
    rows = [handle.encode(corpus).source for corpus in corpora]  # with the word of each token
    counts = Counter(token for row in rows[0] for token in row.ids)
    return kind((row for part in rows for row in part), counts)


def _quality(parts: Parts, val: hr.Corpus, test: hr.Corpus) -> dict[str, float]:
    loss, bleu = (hr.evaluate(*parts, *on).iloc[0] for on in ((val, ["loss"]), (test, ["bleu"])))
    return {"loss": loss["value"], "bleu": bleu["value"], "bleu.low": bleu["low"], "bleu.high": bleu["high"]}


def _bleu(parts: Parts, test: hr.Corpus, left: object, heads: list[tuple[str, int, int]]) -> float:
    """Measure BLEU if only some of the encoder's heads are left."""
    gates = pd.Series(1.0, index=hr.models.head_index(parts[0]))
    gates.loc[heads] = pd.Series(left, index=gates.loc[heads].index).astype(float)
    with hr.mask_heads(parts[0], gates.to_numpy()):
        return float(hr.evaluate(*parts, test, ["bleu"], n_resamples=0)["value"].iloc[0])


if __name__ == "__main__":
    app()
