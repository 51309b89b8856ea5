"""Time and memory of headroles beside plain loops and other tools, in one table.

    OMP_NUM_THREADS=1 python figures/engineering/benchmarks/make.py tables MARIAN SMOLLM2 ENGLISH GERMAN

All ways of a job are timed in turns in one process (processor time; on a GPU wall time), in several rounds. A number is
the median over rounds of the ratio within a round, with its 95 % interval. A tool that is not installed (extra
`[bench]`) or fails has a row that says so. What is in the table is not measured again.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import transformers
import typer
from scipy import stats
from tools import JOBS, Job, Run, Setting, flowing, forward, whole
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import headroles as hr

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1]))
from studies import add  # noqa: E402 - of all studies

SIZES = {  # job -> model, tokens of a text, tokens of all texts
    "score": [
        *(("small Marian", length, 1024) for length in (16, 64, 120)),
        *(("MiniLM", length, 1024) for length in (64, 500)),
        *(("SmolLM2", length, total) for length, total in ((64, 512), (256, 512), (1000, 1000))),
    ],
    "ablate": [("small Marian", 24, 384), ("MiniLM", 24, 384), ("SmolLM2", 64, 128)],
    "gradient x output": [("small Marian", 64, 1024), ("SmolLM2", 64, 256)],
    "half of the heads": [("small Marian", 64, 1024), ("SmolLM2", 64, 256)],
    "train gates": [("small Marian", 64, 1024)],
    "precision=1.1": [("small Marian", 24, 24 * size) for size in (30, 100, 300, 1000)],
    "once per model": [("small Marian", 64, 512), ("SmolLM2", 64, 512)],
}
EVERY = 10  # of the heads of SmolLM2 that others ablate
ROUNDS = {"small Marian": 11, "MiniLM": 11, "SmolLM2": 5}
PEAKS = [  # job, model, tokens of a text, texts
    *(("score", "SmolLM2", *size) for size in ((64, 50), (64, 500), (1000, 1), (8000, 1))),
    *((job, "SmolLM2", 8000, 1) for job in ("importance", "ablate 3 heads")),
    *((job, "1.1 billion weights", 24, 8) for job in ("score", "score by norm", "importance", "LRP")),
    *((job, "1,536 heads", 24, 32) for job in ("score", "report")),
]
BILLION = {  # of Llama 3.2 1B, but for its vocabulary
    **{"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "head_dim": 64, "vocab_size": 49_152, "tie_word_embeddings": True},
}
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
add(app, HERE, tables=False)
Row = dict[str, Any]
Times = dict[str, list[float]]


@app.command()
def tables(
    marian: str,
    smollm2: str,
    english: Annotated[Path, typer.Argument(help="A corpus, of which texts of so many tokens are cut.")],
    german: Annotated[Path, typer.Argument(help="Its translation.")],
    jobs: Annotated[str, typer.Option(help="A part of the names of jobs, by default all.")] = "",
    output: Path = HERE / "benchmarks.csv",
) -> None:
    """Measure what the table lacks: one and a half hours of a core; the largest model needs 8 GiB."""
    transformers.logging.set_verbosity_error()
    given = {"small Marian": {"name": marian}, "SmolLM2": {"name": smollm2}}
    given["MiniLM"] = {"name": "minilm", "cls": "BertForMaskedLM", "allow_random": True}
    for job, sizes in SIZES.items():
        for model, length, total in sizes:
            if jobs not in job or _done(output, job, model, length, total // length):
                continue
            loaded = hr.load(**given[model])

            def setting(size: int, loaded=loaded, length: int = length) -> Setting:
                return Setting(*loaded, _corpus(*loaded, length, size, english, german))

            rows = MEASURED[job](setting, total, ROUNDS[model])
            _keep(output, job, model, length, total // length, rows)
            del loaded, setting
            gc.collect()  # models of others are in cycles
    for job, model, length, count in PEAKS:
        if jobs in job and not _done(output, job, model, length, count):
            command = [sys.executable, __file__, "peak", job, model, str(length), str(count), smollm2, str(english)]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
            found = [line.split("\t") for line in printed if "\t" in line]
            rows = [{"way": "headroles", "what": what, "value": float(value)} for what, value in found]
            _keep(output, job, model, length, count, rows)


def _done(output: Path, *key: object) -> bool:
    rows = pd.read_csv(output)[["job", "model", "tokens", "texts"]].astype(str) if output.exists() else pd.DataFrame()
    return bool(len(rows)) and bool((rows == [str(part) for part in key]).all(axis=1).any())


def _keep(output: Path, job: str, model: str, tokens: int, texts: int, rows: list[Row]) -> None:
    """Append the rows of a job."""
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    table = pd.DataFrame([{"job": job, "model": model, "tokens": tokens, "texts": texts} | row for row in rows])
    table["by"] = versions
    print(table.drop(columns="by").to_string(index=False), flush=True)
    before = pd.read_csv(output) if output.exists() else pd.DataFrame()
    pd.concat([before, table]).to_csv(output, index=False, float_format="%.4g")


def cut(tokenizer, length: int, total: int, corpus: Path) -> hr.Corpus:
    """Cut texts of about so many tokens, special ones included, of a corpus."""
    ids = tokenizer(" ".join(sentence.text for sentence in hr.read(corpus)), add_special_tokens=False)["input_ids"]
    inside = length - tokenizer.num_special_tokens_to_add()
    pieces = [ids[start : start + inside] for start in range(0, len(ids) - inside, inside)][: total // length]
    return hr.Corpus(corpus.stem, tuple(hr.Sentence(tokenizer.decode(piece)) for piece in pieces))


def _corpus(model, tokenizer, length: int, total: int, english: Path, german: Path) -> hr.Corpus:
    corpus = cut(tokenizer, length, total, english)
    if not model.config.is_encoder_decoder:
        return corpus
    pairs = zip(corpus, cut(tokenizer, length, total, german), strict=True)
    return hr.Corpus(corpus.name, tuple(replace(one, target=other) for one, other in pairs))


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return what comes back, and the processor time it took; on a GPU the wall time until that has ended."""
    if not torch.cuda.is_available():
        start = time.process_time()
        return run(), time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = run()
    torch.cuda.synchronize()
    return found, time.perf_counter() - start


def made(job: Job, of: Setting) -> tuple[dict[str, Run], dict[str, str], dict[str, pd.DataFrame]]:
    """Return the ways of a job that work, why others do not, and what each gives; so all have been warmed up."""
    runs, failed, tables = {}, {}, {}
    for way, make in job.ways.items():
        try:
            runs[way] = make(of)
            tables[way] = runs[way]()
        except Exception as error:  # others may fail in any way
            if way == "headroles":
                raise
            runs.pop(way, None)
            failed[way] = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
    return runs, failed, tables


def difference(one: pd.DataFrame, other: pd.DataFrame) -> float:
    """Return the largest difference of two tables, over the largest number.

    Raises:
        ValueError: If they have other rows, columns, or places without a number.
    """
    if set(one) != set(other) or not one.index.equals(other.index):
        raise ValueError(f"tables must be of the same, got {sorted(set(one) ^ set(other), key=str)}")
    if not one[list(other)].isna().equals(other.isna()):
        raise ValueError("tables must have numbers in the same places")
    return float((one[list(other)] - other).abs().max().max() / one.abs().max().max())


def rounded(ratios: list[float]) -> Row:
    """Return the median over rounds, with its 95 % interval by order statistics: of five rounds, all of them."""
    ordered, place = sorted(ratios), max(0, int(stats.binom.ppf(0.025, len(ratios), 0.5)) - 1)
    return {"value": median(ratios), "low": ordered[place], "high": ordered[-1 - place], "rounds": len(ratios)}


def _over(times: list[float], base: list[float]) -> Row:
    return rounded([one / other for one, other in zip(times, base, strict=True)])


def _turns(runs: dict[str, Run], rounds: int) -> Times:
    """Return the times of all ways, one after the other, so many times."""
    times: Times = {way: [] for way in runs}
    for _ in range(rounds):
        for way, run in runs.items():
            times[way].append(timed(run)[1])
    return times


def scored(setting: Callable[[int], Setting], total: int, rounds: int) -> list[Row]:
    """Measure by a line through two sizes of corpus: fixed seconds, and time per token over the plain loop's."""
    small, large = setting(total), setting(4 * total)
    (runs, failed, tables), (longer, *_) = made(JOBS["score"], small), made(JOBS["score"], large)
    few, many = _turns(runs, rounds), _turns(longer, rounds)
    slopes = {
        way: [(b - a) / (large.tokens - small.tokens) for a, b in zip(few[way], many[way], strict=True)] for way in runs
    }
    rows: list[Row] = []
    for way in runs:
        fixed = [a - slope * small.tokens for a, slope in zip(few[way], slopes[way], strict=True)]
        rows.append({"way": way, "what": "per token / plain loop"} | _over(slopes[way], slopes["plain loop"]))
        rows.append({"way": way, "what": "fixed, s"} | rounded(fixed))
    return rows + _same(JOBS["score"], tables) + _failed(failed)


def ablated(setting: Callable[[int], Setting], total: int, rounds: int) -> list[Row]:
    """Measure the time of one head over that of one forward of the corpus."""
    of = setting(total)
    few = replace(of, heads=of.heads[:: EVERY if len(of.heads) > 200 else 1])
    runs, failed, tables = made(JOBS["ablate"], few)
    if len(few.heads) < len(of.heads):
        runs["headroles"] = JOBS["ablate"].ways["headroles"](of)
    counts = {way: len(of.heads if way == "headroles" else few.heads) for way in runs}
    times = _turns(runs | {"forward": whole(of)}, max(1, rounds // 3))
    rows = [
        {"way": way, "what": "forwards a head"} | _over([one / counts[way] for one in times[way]], times["forward"])
        for way in runs
    ]
    return rows + _same(JOBS["ablate"], tables) + _failed(failed)


def compared(job: str, unit: str) -> Callable[[Callable[[int], Setting], int, int], list[Row]]:
    """Return the measure of a job whose times are over that of a forward of the whole model."""

    def measured(setting: Callable[[int], Setting], total: int, rounds: int) -> list[Row]:
        of = setting(total)
        runs, failed, tables = made(JOBS[job], of)
        times = _turns(runs | {"forward": whole(of)}, rounds)
        rows = [{"way": way, "what": unit} | _over(times[way], times["forward"]) for way in runs]
        return rows + _same(JOBS[job], tables) + _failed(failed)

    return measured


def _same(job: Job, tables: dict[str, pd.DataFrame]) -> list[Row]:
    """Return how far the numbers of others are from ours."""
    return [
        {
            "way": way,
            "what": "largest difference / largest number",
            "value": difference(tables["headroles"], tables[way]),
        }
        for way in job.same
        if way in tables
    ]


def _failed(failed: dict[str, str]) -> list[Row]:
    return [{"way": way, "what": why} for way, why in failed.items()]


def gated(setting: Callable[[int], Setting], total: int, rounds: int) -> list[Row]:
    """Measure a training step with Hard Concrete gates on every head over one without."""
    of = setting(total)
    model = deepcopy(of.model).train()
    gates = hr.L0(strength=0.01).gates(model, list(of.index), None)
    optimizer = torch.optim.AdamW([*model.parameters(), *gates.parameters()], 1e-5)

    def step() -> None:
        for batch, labels in zip(of.batches, of.labels, strict=True):
            model(**of.inputs(batch), labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    def with_gates() -> None:
        with hr.train_gates(model, gates):
            gates.train()
            step()

    step(), with_gates()
    times = _turns({"without": step, "with": with_gates}, rounds)
    return [{"way": "headroles", "what": "step with gates / without"} | _over(times["with"], times["without"])]


def precise(setting: Callable[[int], Setting], total: int, rounds: int) -> list[Row]:  # noqa: ARG001 - by size
    """Measure `precision=1.1` over the ablation of all heads on all examples."""
    of = setting(total)
    options = {"n_resamples": 0, "max_tokens": of.max_tokens}
    runs = {
        "all": lambda: hr.ablate(of.model, of.tokenizer, of.corpus, **options),
        "some": lambda: hr.ablate(of.model, of.tokenizer, of.corpus, precision=1.1, **options),
    }
    share = float(runs["some"]().filter(like=".examples").iloc[:, 0].mean()) / len(of.corpus)
    times = _turns(runs, max(1, 200 // len(of.corpus)))
    return [
        {"way": "headroles", "what": "time / all examples"} | _over(times["some"], times["all"]),
        {"way": "headroles", "what": "share of examples of a head", "value": share},
    ]


def once(setting: Callable[[int], Setting], total: int, rounds: int) -> list[Row]:
    """Measure the first call on a model, over the next ones: its digest, its sites, its largest batch."""
    of = setting(total)
    firsts, rest = [], []
    for _ in range(min(5, rounds)):
        model = deepcopy(of.model)
        firsts.append(timed(lambda model=model: hr.score(model, of.tokenizer, of.corpus))[1])
        rest.append(timed(lambda model=model: hr.score(model, of.tokenizer, of.corpus))[1])
    first = [a - b for a, b in zip(firsts, rest, strict=True)]
    return [{"way": "headroles", "what": "first call more than the second, s"} | rounded(first)]


MEASURED: dict[str, Callable[[Callable[[int], Setting], int, int], list[Row]]] = {
    "score": scored,
    "ablate": ablated,
    "gradient x output": compared("gradient x output", "forwards"),
    "half of the heads": compared("half of the heads", "forwards of the whole model"),
    "train gates": gated,
    "precision=1.1": precise,
    "once per model": once,
}


@app.command(hidden=True)
def peak(job: str, model: str, length: int, count: int, smollm2: str, corpus: Path) -> None:
    """Do one job in this process; print its time over a forward's and its peak memory above the weights."""
    if model == "SmolLM2":
        loaded, tokenizer = hr.load(smollm2)
    else:
        _, tokenizer = hr.load(smollm2)
        loaded = _random(model)
    of = Setting(loaded, tokenizer, cut(tokenizer, length, length * count, corpus), max_tokens=max(4096, length))
    score = lambda names, **options: hr.score(loaded, tokenizer, of.corpus, names, max_tokens=of.max_tokens, **options)  # noqa: E731
    jobs: dict[str, Callable[[], Any]] = {
        "score": lambda: score(None),
        "score by norm": lambda: score(None, weights="norm"),
        "importance": lambda: score("importance"),
        "LRP": flowing(of, "cp"),
        "ablate 3 heads": lambda: hr.ablate(loaded, tokenizer, of.corpus, sets={str(h): [h] for h in of.heads[::100]}),
        "report": lambda: _report(of),
    }
    clear = Path("/proc/self/clear_refs")
    clear.write_text("5")  # the peak starts here
    before = _mebibytes("VmRSS")
    found, seconds = timed(jobs[job])
    above = _mebibytes("VmHWM") - before
    if isinstance(found, pd.DataFrame):
        assert np.isfinite(found.iloc[:, 0]).all()
    rows = {"peak above the model, MiB": round(above), "s": round(seconds, 2)}
    if job == "report":
        rows |= found
    elif length < 100:
        rows |= {"forwards": round(seconds / timed(forward(of))[1], 2)}
    for what, value in rows.items():
        print(what, value, sep="\t")


def _random(name: str) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    if name == "1,536 heads":
        return GPT2LMHeadModel(GPT2Config(n_layer=48, n_head=32, n_embd=256, vocab_size=50_000)).eval()
    return LlamaForCausalLM(LlamaConfig(**BILLION)).eval()


def _report(of: Setting) -> dict[str, float]:
    """Write the report of a model's scores, whose time alone is counted."""
    with tempfile.TemporaryDirectory() as folder:
        study, place = hr.Study(Path(folder) / "study"), Path(folder) / "report.html"
        hr.score(of.model, of.tokenizer, of.corpus, study=study)
        seconds = timed(lambda: hr.report(study, place))[1]
        return {"report, s": round(seconds, 2), "report, MB": round(place.stat().st_size / 1e6, 2)}


def _mebibytes(name: str) -> float:
    """Return the memory that this process holds (VmRSS), or the most it has held (VmHWM), in MiB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


if __name__ == "__main__":
    app()
