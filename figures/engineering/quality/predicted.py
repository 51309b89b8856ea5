"""Are prediction-powered effects right, and what do they save?

SHARED is a folder with `models/multi30k-en-de` and `data`. `--models` chooses among that Marian on captions and on
news, MiniLM fine-tuned on 8,000 sentences of SST-2, and a Llama-shaped model of 4 layers x 8 heads trained on captions;
the last two are trained here. Each is ablated once on a whole corpus; then `hr.ablate(precision=)` and the whole corpus
are simulated on these numbers, with other random orders and, for the population, with other corpora drawn from them. A
row of `predicted.csv` per corpus and precision:

- ablated: share of the examples on which a head is ablated.
- width: median over heads of the width of an interval over that of the whole corpus; wider: share of heads beyond
  1.02 x precision.
- coverage corpus, coverage population: coverage of the 95 % intervals for the effect on the corpus (by the error of
  sampling it alone) and for the population's; least: the smallest coverage of a head for the population.
- bias, bias p: mean over heads of (estimate - whole corpus) in standard errors of the whole corpus, and its t test
  over repetitions.
- false: share of heads with p < 0.01 where there is no effect (changes less their mean; of accuracy, changes with
  random signs); false error: its standard error over repetitions, of which the heads of one share the examples.
- same: share of heads with the decision of the whole corpus at p < 0.01, of those whose |z| is more than 1 from the
  border.

`predicted-width.csv` has the width of intervals, over that of the whole corpus, against the number of ablated examples:
median and tenth and ninetieth percentile over heads, with and without predictions; `predicted.png` draws it.

`predicted-growth.csv` extrapolates from captions and the loss, on paper: the work per example, in forwards of the whole
model, of ablating all heads of larger models, if the gradient explains as much there as here. Peers need a forward per
head, our exact sweep half a forward, the predictions three forwards in all.

`predictors.csv`, for captions and the loss: the share of the variance of effects over examples that other predictors
explain (the gradient at half-open masks of each layer costs a forward and backward pass per layer, as much as the exact
sweep; effects of other heads are known where those are ablated on all examples), and the share of the examples that
intervals 1.1 times as wide would need; and how drawing the examples with probabilities by the size of their gradients
would change the variance of what is left (at random: 1).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import torch
import transformers
import typer
from scipy import stats as statistics

import headroles as hr
from headroles.ablation.example_stats import ExampleStats
from headroles.ablation.metrics import as_metric
from headroles.ablation.prediction_powered import FIRST, Estimate, drawn, estimates, interim_sizes, precise, sizes
from headroles.ablation.sweep import Sweep
from headroles.models.batching import Batch
from headroles.models.head_model import HeadModel
from headroles.models.loading import PACKAGE
from headroles.scores import objectives
from headroles.scores.gradients.base import head_gradients
from headroles.scores.objectives import Targets

MODELS = ("captions", "news", "classifier", "llama")
Rows = list[list[bool]]
LEVEL = 0.01  # of p
ROUNDING = 1e-9  # of a bias in standard errors: the whole corpus has none


def main(
    shared: Path,
    models: list[str] = [*MODELS],
    repeats: int = 100,
    ways: Annotated[list[str], typer.Option(help="Precisions, or whole.")] = ["whole", "1.1"],
    work: Annotated[Path, typer.Option(help="For models and finished batches.")] = Path("predicted"),
    output: Path = Path("figures/engineering/quality"),
) -> None:
    torch.set_num_threads(1)
    path = output / "predicted.csv"
    for name in models:
        for measured in ["loss", "accuracy"] if name == "classifier" else ["loss"]:
            whole = everything(name, measured, shared, work)
            replaced(output / "predicted-width.csv", widths(whole), {"corpus": name, "metric": measured})
            if (name, measured) == ("captions", "loss"):
                pd.DataFrame(predictors(whole, shared, work)).to_csv(output / "predictors.csv", index=False)
                pd.DataFrame(growth(whole)).to_csv(output / "predicted-growth.csv", index=False)
            for how in ways:
                numbers = simulated(whole, how, repeats)
                replaced(path, [numbers], {"corpus": name, "metric": measured, "how": how})
                print(name, measured, how, numbers, flush=True)


def replaced(path: Path, rows: list[dict[str, object]], key: dict[str, str]) -> None:
    """Write rows with a key into a table, in place of those that have it."""
    table = pd.read_csv(path, dtype={"how": str}) if path.is_file() else pd.DataFrame(columns=[*key])
    others = table[~(table[[*key]] == pd.Series(key)).all(axis=1)]
    pd.DataFrame([*others.to_dict("records"), *(key | row for row in rows)]).to_csv(path, index=False)


def predictors(whole: ExampleStats, shared: Path, work: Path) -> list[dict[str, object]]:
    """How much other predictors explain, and what other ways to draw the examples would change."""
    model, tokenizer, corpus = task("captions", shared, work)
    handle = HeadModel.of(model, tokenizer)
    target = objectives.objective("loss", handle).fit(handle, [])
    layers = [list(variant)[0][:2] for variant in whole.masked]
    one_by_one = [[other == layer for other in layers] for layer in dict.fromkeys(layers)]
    found: list[tuple[int, list[np.ndarray]]] = []
    with handle.evaluating():
        for batch in handle.batches(handle.encode(corpus, words=False), max_tokens=512):
            lrp = head_gradients(handle, target, batch, rules="cp", steps="sum").gradients[:, 0].double()
            both = (
                half_open(handle, target, batch, [[True] * len(layers)]),
                half_open(handle, target, batch, one_by_one),
            )
            found += zip(batch.numbers, zip(*(part.numpy() for part in (lrp, *both)), strict=True), strict=True)
    lrp, together, apart = (np.stack(rows) for rows in zip(*(dict(found)[n] for n in whole.numbers), strict=True))
    gradient = np.stack(list(whole.predicted.values()), axis=1)  # [example, head]
    total, steps = whole.intact.T
    change = np.stack([values[:, 0] - total for values in whole.masked.values()], axis=1)
    layer = np.stack([gradient[:, [other == one for other in layers]].sum(1) for one in layers], axis=1)
    parts = {"none": [], "gradient": [gradient], "LRP cp": [lrp], "gradient, LRP cp": [gradient, lrp]}
    parts |= {"gradient, its square": [gradient, gradient**2], "gradient, sum of its layer": [gradient, layer]}
    parts |= {"gradient, at all masks half-open": [gradient, together]}
    parts |= {"gradient, at half-open masks of its layer": [gradient, apart]}
    same = [np.flatnonzero([other == one for other in layers]) for one in layers]
    beside = [places[(list(places).index(h) + 1) % len(places)] for h, places in enumerate(same)]
    parts |= {"gradient, effect of the next head of its layer": [gradient, change[:, beside]]}
    rows, left = [], {}
    for name, arrays in parts.items():
        left[name] = np.stack(
            [residual(change[:, h], steps, *(array[:, h] for array in arrays)) for h in range(len(layers))], 1
        )
        unexplained = left[name].var(0) / change.var(0)
        low, middle = np.quantile(1 - unexplained, [0.1, 0.5])
        needed = float((unexplained / (1.1**2 - 1 + unexplained)).mean())
        rows.append({"predictors": name, "explained": round(middle, 3), "tenth percentile": round(low, 3)})
        rows[-1]["share needed"] = round(needed, 3)
    squares = (left["gradient"] / left["gradient"].std(0)) ** 2
    size = np.sqrt(((gradient / gradient.std(0)) ** 2).mean(1))
    for name, weights in {"size of gradients": size, "its root": np.sqrt(size), "length": steps}.items():
        variance = (squares / (len(size) * weights / weights.sum())[:, None]).mean(0)
        rows.append({"predictors": f"gradient, drawn by {name}", "variance": round(float(np.median(variance)), 3)})
    return rows


def half_open(model: HeadModel, target: Targets, batch: Batch, chosen: Rows) -> torch.Tensor:
    """Gradients at masks of which the chosen heads' are 0.5, a forward and backward pass for each row of `chosen`."""
    gradients = torch.zeros(len(batch.numbers), len(chosen[0]), dtype=torch.float64)
    for row in torch.tensor(chosen):
        masks = torch.where(row, 0.5, 1.0).repeat(len(gradients), 1).requires_grad_()
        with torch.enable_grad(), model.mask(masks):
            explained = target.targets(model.forward(batch), batch)
        (each,) = torch.autograd.grad(torch.where(explained.counted, explained.values, 0.0).sum(), masks)
        gradients[:, row] = each[:, row].double()
    return gradients


def growth(whole: ExampleStats, precision: float = 1.1) -> list[dict[str, object]]:
    """Work on paper for models with more heads."""
    size = len(whole.numbers)
    unexplained = np.array([1 - estimate.explained for estimate in estimates(whole)])
    share = float(np.clip(unexplained / (precision**2 - 1 + unexplained), min(1.0, FIRST / size), 1).mean())
    rows = []
    for name, heads in {"this Marian": 144, "32 layers x 32": 1024, "80 layers x 64 (70B)": 5120}.items():
        row = {"model": name, "heads": heads, "examples": size, "peers": heads + 1, "sweep": 1 + heads / 2}
        work = 3 + share * heads / 2
        row |= {"share, precision": round(share, 3), "precision": round(work, 1)}
        rows.append(row | {"peers / precision": round(row["peers"] / work, 1)})
    return rows


def residual(change: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
    """What a linear regression leaves."""
    design = np.column_stack([np.ones(len(change)), *arrays])
    return change - design @ np.linalg.lstsq(design, change)[0]


def widths(whole: ExampleStats, repeats: int = 20) -> list[dict[str, object]]:
    """How wide intervals are after so many examples, with predictions and without."""
    rng, size = np.random.default_rng(0), len(whole.numbers)
    without = replace(whole, predicted=dict.fromkeys(whole.masked, np.zeros(size)), sizes=np.ones(size))
    rows = []
    for examples in [*(int(64 * 2 ** (step / 2)) for step in range(20) if 64 * 2 ** (step / 2) < size), size]:
        for name, stats in (("prediction-powered", whole), ("plain", without)):
            taken = [ordered(stats, rng) for _ in range(repeats if examples < size else 1)]
            found = [
                [each.widening for each in estimates(until(one, dict.fromkeys(one.masked, examples)))] for one in taken
            ]
            low, middle, high = np.quantile(np.mean(found, axis=0), [0.1, 0.5, 0.9])
            row = {"estimate": name, "examples": examples, "share": examples / size}
            rows.append(row | {"low": round(low, 4), "median": round(middle, 4), "high": round(high, 4)})
    return rows


def draw_widths() -> None:
    """Draw the widths: a panel per corpus, a line and a band per estimate."""
    import matplotlib.pyplot as plt
    import seaborn as sns

    table = pd.read_csv(Path(__file__).with_name("predicted-width.csv"))
    labels = [f"{corpus}, {name}" for corpus, name in table[["corpus", "metric"]].drop_duplicates().to_numpy()]
    figure, axes = plt.subplots(1, len(labels), figsize=(3.4 * len(labels), 3.2), sharey=True, squeeze=False)
    colors = dict(zip(("plain", "prediction-powered"), sns.color_palette("colorblind"), strict=False))
    for ax, label, (_, part) in zip(axes[0], labels, table.groupby(["corpus", "metric"], sort=False), strict=True):
        for name, line in part.groupby("estimate"):
            ax.plot(line["share"], line["median"], color=colors[name], label=name, marker="o", markersize=3)
            ax.fill_between(line["share"], line["low"], line["high"], color=colors[name], alpha=0.2, linewidth=0)
        ax.axhline(1.1, color="0.5", linewidth=0.8, linestyle=":")
        ax.set(title=label, xlabel="share of the examples\nthat are ablated", xscale="log", yscale="log")
        ax.set_yticks([1, 1.1, 1.5, 2, 3, 4], ["1", "1.1", "1.5", "2", "3", "4"], minor=False)
        ax.set_xticks([0.1, 0.2, 0.5, 1], ["0.1", "0.2", "0.5", "1"])
        ax.minorticks_off()
    axes[0][0].set_ylabel("width of an interval\n(whole corpus = 1)")
    axes[0][0].legend(frameon=False)
    sns.despine(figure)


def everything(name: str, measured: str, shared: Path, work: Path) -> ExampleStats:
    """Statistics of all examples by every head, and their predictions."""
    model, tokenizer, corpus = task(name, shared, work)
    handle = HeadModel.of(model, tokenizer)
    sweep, variants = (
        Sweep(handle, corpus, as_metric(measured), folder=work),
        [frozenset([head]) for head in handle.heads],
    )
    predicted, whole = sweep.predict(variants), sweep.run(variants)
    assert predicted.numbers == whole.numbers
    return replace(whole, predicted=predicted.predicted, sizes=sizes(predicted.predicted.values()))


def task(name: str, shared: Path, work: Path) -> tuple[transformers.PreTrainedModel, object, hr.Corpus]:
    """A model, its tokenizer and a corpus."""
    texts, news = shared / "data/multi30k", shared / "data/ntrex"
    if name == "classifier":
        sentences = hr.read(shared / "data/glue/SST-2/train.tsv.gz").sample(8000)
        model, tokenizer = hr.load_classifier(Path(str(files(PACKAGE))) / "model", sentences)
        hr.train(model, tokenizer, sentences, work / "sst2", epochs=1, rate=5e-5)
        return model, tokenizer, hr.read(shared / "data/glue/SST-2/dev.tsv.gz")
    if name == "llama":
        return *llama(hr.read(texts / "train.en.gz"), shared), hr.read(texts / "test_2016_flickr.en.gz")
    sides = [texts / f"test_2016_flickr.{side}.gz" for side in ("en", "de")]
    if name == "news":
        sides = [news / f"newstest2019.{side}.gz" for side in ("en", "de")]
    return *hr.load(shared / "models/multi30k-en-de"), hr.read(*sides, limit=500 if name == "news" else None)


def llama(corpus: hr.Corpus, shared: Path) -> tuple[transformers.PreTrainedModel, object]:
    """A small Llama, trained on captions for 1,200 steps of 32, with the Marian's tokenizer."""
    _, tokenizer = hr.load(shared / "models/multi30k-en-de")
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **sizes, **ends)
    transformers.set_seed(0)
    model = transformers.LlamaForCausalLM(config).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=1200)
    order = np.random.default_rng(0)
    for _ in range(1200):
        texts = [corpus[int(row)].text for row in order.integers(len(corpus), size=32)]
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        labels = inputs.input_ids.masked_fill(inputs.attention_mask == 0, -100)
        model(**inputs, labels=labels).loss.backward()
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    return model.eval(), tokenizer


def simulated(whole: ExampleStats, how: str, repeats: int) -> dict[str, object]:
    """Simulate a way of stopping: a row of the table."""
    all_of_it = estimates(whole)
    truth = np.array([estimate.effect for estimate in all_of_it])
    z = np.array([abs(estimate.effect / estimate.error) if estimate.error else 0 for estimate in all_of_it])
    sharp = np.abs(z - statistics.norm.isf(LEVEL / 2)) > 1
    significant = np.array([estimate.tested[2] for estimate in all_of_it]) < LEVEL
    rng = np.random.default_rng(0)
    size, found = len(whole.numbers), {name: [] for name in ("ablated", "width", "corpus", "bias", "same")}
    for _ in range(repeats):
        part, shares = stopped(ordered(whole, rng), how)
        found["ablated"].append(shares)
        found["width"].append([now.error / then.error for now, then in zip(part, all_of_it, strict=True) if then.error])
        found["corpus"].append(np.abs([now.effect for now in part] - truth) <= halves(part, "corpus_error"))
        away = [
            (now.effect - then.effect) / then.error for now, then in zip(part, all_of_it, strict=True) if then.error
        ]
        found["bias"].append(np.mean(away))
        found["same"].append((np.array([now.tested[2] for now in part]) < LEVEL) == significant)
    covered, false = [], []
    without_effect = signed if whole.metric.name == "accuracy" else partial(centred, truth=truth)
    for _ in range(repeats):
        rows = rng.integers(size, size=size)
        again = int(rng.integers(2**31))  # the same order for both
        part, _ = stopped(ordered(whole.take(rows), np.random.default_rng(again)), how)
        covered.append(np.abs([now.effect for now in part] - truth) <= halves(part, "error"))
        null = without_effect(whole.take(rows), rng=rng)
        part, _ = stopped(ordered(null, np.random.default_rng(again)), how)
        false.append(np.array([now.tested[2] for now in part]) < LEVEL)
    width, bias = np.median(found["width"], axis=0), np.array(found["bias"])
    numbers = {
        "ablated": np.mean(found["ablated"]),
        "width": np.median(width),
        "wider": np.mean(width > 1.02 * precision_of(how)),
        "coverage corpus": np.mean(found["corpus"]),
        "coverage population": np.mean(covered),
        "least": np.mean(covered, axis=0).min(),
        "bias": bias.mean(),
        "bias p": statistics.ttest_1samp(bias, 0).pvalue if bias.std() > ROUNDING else 1.0,
        "false": np.mean(false),
        "false error": np.mean(false, axis=1).std(ddof=1) / np.sqrt(repeats),
        "same": np.mean(np.array(found["same"])[:, sharp]),
    }
    sizes = {"heads": len(truth), "examples": size, "repeats": repeats}
    sizes["explained median"] = round(float(np.median([estimate.explained for estimate in all_of_it])), 3)
    return sizes | {name: float(f"{value:.4g}") for name, value in numbers.items()}


def halves(part: list[Estimate], error: str) -> np.ndarray:
    """Half the width of the 95 % intervals by an error."""
    return np.array([statistics.t.ppf(0.975, now.freedom) * getattr(now, error) + 1e-12 for now in part])


def ordered(whole: ExampleStats, rng: np.random.Generator) -> ExampleStats:
    """The same examples, in a random order of the library's."""
    places = list(range(len(whole.numbers)))
    return whole.take(drawn(replace(whole, numbers=places), places, rng))


def precision_of(how: str) -> float:
    """The option `precision` of "whole" or "1.1"."""
    return 1.0 if how == "whole" else float(how)


def stopped(whole: ExampleStats, how: str) -> tuple[list[Estimate], list[float]]:
    """Estimates of a sweep that ends for each head as `run_until_precise` does, and its share of ablated examples."""
    size, left = len(whole.numbers), list(whole.masked)
    last = dict.fromkeys(left, size)
    for end in interim_sizes(size)[:-1] if how != "whole" else []:
        clear = precise(until(whole, dict.fromkeys(left, end)), left, precision_of(how))
        last |= {variant: end for variant, done in zip(left, clear, strict=True) if done}
        left = [variant for variant, done in zip(left, clear, strict=True) if not done]
        if not left:
            break
    return estimates(until(whole, last)), [last[variant] / size for variant in whole.masked]


def until(whole: ExampleStats, ends: dict[frozenset[object], int]) -> ExampleStats:
    """Statistics of variants, NaN after so many examples each."""
    places = np.arange(len(whole.numbers))[:, None]
    masked = {key: np.where(places < end, whole.masked[key], np.nan) for key, end in ends.items()}
    return replace(whole, masked=masked)


def centred(whole: ExampleStats, truth: np.ndarray, **_: object) -> ExampleStats:
    """The same examples, their changes less the mean change."""
    steps = whole.intact[:, 1]
    shifts = [np.stack([effect * steps, np.zeros(len(steps))], axis=1) for effect in truth]
    masked = {key: values - shift for (key, values), shift in zip(whole.masked.items(), shifts, strict=True)}
    return replace(whole, masked=masked)


def signed(whole: ExampleStats, rng: np.random.Generator) -> ExampleStats:
    """The same examples, each with its changes and predictions times 1 or -1 at random: most answers do not change."""
    signs = rng.choice([-1.0, 1.0], len(whole.numbers))
    masked = {key: whole.intact + signs[:, None] * (values - whole.intact) for key, values in whole.masked.items()}
    predicted = {key: signs * values for key, values in (whole.predicted or {}).items()}
    return replace(whole, masked=masked, predicted=predicted)
