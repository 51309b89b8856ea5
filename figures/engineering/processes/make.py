"""Several processes beside one: `make.py data`, `tables`; and parts: `--help` says what they do."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from torch.multiprocessing.spawn import start_processes
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

import headroles as hr
from headroles.data.corpus import Corpus, Sentence
from headroles.patterns import Offset
from headroles.scores.content_scores import Rarity
from headroles.testing.case import TEXTS, Case

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1]))
from studies import add  # noqa: E402 - of all studies

TOYS: dict[str, tuple[str, dict[str, int]]] = {  # name -> architecture, options
    "llama, 4 key-value heads": ("llama", {"num_key_value_heads": 4}),
    "llama, 2 key-value heads": ("llama", {"num_key_value_heads": 2}),
    "qwen3": ("qwen3", {"num_key_value_heads": 4}),
    "gemma3": ("gemma3_text", {"num_key_value_heads": 4}),
    "gpt2": ("gpt2", {}),
}
ARRANGEMENTS = {"tensor 2": 2, "tensor 4": 4, "data 2": 2, "2 x 2": 4}  # -> processes
IMPORTED = ["transformers.models.auto.modeling_auto", "headroles.testing.runner"]
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def _calls(asked: Corpus) -> dict[str, Callable[..., pd.DataFrame]]:
    """Each function that is compared: of a model, its tokenizer and a corpus, to a table. Most batches have a text."""
    one, many = {"max_tokens": 16, "n_resamples": 20}, {"max_tokens": 128, "n_resamples": 20}
    pair = ["L0H0", "L1H1"]
    # fmt: off
    return {
        "score": lambda *given: hr.score(*given, ["confidence", "position", Rarity(frequent=5), "sink"], **one),
        "importance": lambda *given: hr.score(*given, ["importance"], **one),
        "ablate": lambda *given: hr.ablate(*given, **many),
        "ablate, precision": lambda *given: hr.ablate(*given, precision=1.1, **many),
        "ablate, sets": lambda *given: hr.ablate(*given, sets={"two": pair}, replacement="mean", **many),
        "curve": lambda *given: hr.ablation_curve(*given, {"some": pair}, metric="loss", steps=2, **many),
        "attribute": lambda *given: hr.attribute(*given, n_steps=4, **one),
        "prune": lambda *given: hr.prune(*given, "importance", keep=0.5, remove=False),
        "test_roles": lambda *given: hr.test_roles(*given, {("dec-self", 0, 1): Offset(-1)}, **many),
        "cache_budget": lambda *given: hr.cache_budget(*given[:2], asked, keep=2, sink=1, recent=2, points=4),
    }
    # fmt: on


@app.command()
def differences(
    folder: Annotated[Path | None, typer.Argument(help="Folder of a language model; by default toys.")] = None,
    tensor: Annotated[int, typer.Option(help="Processes of tensor parallelism for that model.")] = 3,
    double: Annotated[
        bool, typer.Option("--double", help="In float64; `ablate` and `attribute` of two texts.")
    ] = False,
    only: Annotated[str, typer.Option(help="Toys and arrangements with this in their name alone.")] = "",
) -> None:
    """Compare what several processes compute with what one does, and write or extend differences.csv here."""
    chosen = {f"tensor {tensor}": tensor, "data 2": 2} if folder else ARRANGEMENTS
    chosen = {"float32": 1} | chosen if double else chosen  # one process, less precise: what roundings alone change
    for name in [folder.name] if folder else TOYS:
        wanted = {way: number for way, number in chosen.items() if only in f"{name}, {way}"}
        with TemporaryDirectory() as place:
            path = folder or _saved(name, Path(place))
            for way, number in (({"alone": 1} if wanted else {}) | wanted).items():
                _together(_measure, number, path, way, Path(place), double)
                parts = [pd.read_pickle(f"{place}/{way}-{rank}.pickle") for rank in range(number)]
                if way == "alone":
                    expected = parts[0]
                    continue
                row = {"model": name + ", float64" * double, "arrangement": way, **_compared(expected, parts)}
                print(row, flush=True)
                _add(row)


def _add(row: dict[str, str]) -> None:
    path = HERE / "differences.csv"
    old = pd.read_csv(path, dtype=str) if path.exists() else pd.DataFrame()
    table = pd.concat([old, pd.DataFrame([row])]).drop_duplicates(["model", "arrangement"], keep="last")
    table.to_csv(path, index=False)


def _compared(expected: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, str]:
    """The largest difference in any process, of each function; which are refused, and why; how the work is shared."""
    row, why = dict[str, str](), dict[str, None]()
    for call in (call for call in _calls(Corpus("none", ())) if call in expected):
        results = [part[call] for part in parts]
        if any(isinstance(result, str) for result in results):
            assert len(set(results)) == 1, results  # all processes say the same
            row[call], why[results[0]] = "refused", None
            continue
        least = expected["loss"] if call.startswith(("ablate", "curve", "test", "cache")) else 0.0
        row[call] = f"{max(_difference(result, expected[call], least) for result in results):.1e}"
    shares = [part["tokens"] / expected["tokens"] for part in parts]
    return row | {"share of work": " ".join(f"{share:.2f}" for share in shares), "why": " | ".join(why)}


def _difference(table: pd.DataFrame, whole: pd.DataFrame, least: float) -> float:
    """The largest difference, relative to the largest number of its column, of effects on the loss to the loss."""
    pd.testing.assert_frame_equal(table.isna(), whole.isna())  # the same rows, columns and missing numbers
    found, expected = table.to_numpy(float), whole.to_numpy(float)
    assert np.nanmax(np.abs(expected)) > 0
    scale = np.maximum(np.nanmax(np.abs(expected), axis=0, initial=0), max(least, 1e-30))
    return float(np.nanmax(np.abs(found - expected) / scale, initial=0))


def _measure(rank: int, path: Path, way: str, place: Path, double: bool) -> None:
    """In a process: compute each table, or note why it is refused."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    words = np.random.default_rng(0).integers(5, 90, (12, 8))  # of toys, whose words are numbers
    numbers = [" ".join(map(str, row[: 3 + number % 6])) for number, row in enumerate(words)]
    texts = TEXTS if tokenizer("the")["input_ids"] != tokenizer("of")["input_ids"] else numbers
    corpus = Corpus("texts", [Sentence(text) for text in texts[: 2 if double else None]])
    asked = Corpus("answers", [Sentence(text, target=Sentence(texts[1])) for text in texts[:3]])
    results: dict[str, Any] = {"tokens": 0}

    def count(_: object, given: tuple[torch.Tensor, ...]) -> None:
        results["tokens"] += given[0][..., 0].numel()

    def result(call: Callable[..., Any], *given: object) -> object:
        try:
            return call(*given)
        except ValueError as error:
            return str(error)

    model = result(_loaded, path, way, torch.float64 if double and way != "float32" else torch.float32)
    if way == "alone":
        results["loss"] = hr.evaluate(model, tokenizer, corpus, ["loss"], n_resamples=0)["value"].iloc[0]
    if isinstance(model, PreTrainedModel) and not isinstance(result(hr.attention_sites, model), str):
        last: Any = hr.attention_sites(model)[-1].out  # which no replayed forward leaves out
        last.register_forward_pre_hook(count)
    for name, call in _calls(asked).items():
        if double and name not in ("ablate", "attribute"):
            continue
        table = model if isinstance(model, str) else result(call, model, tokenizer, corpus)
        results[name] = table.select_dtypes("number") if isinstance(table, pd.DataFrame) else table
    pd.to_pickle(results, place / f"{way}-{rank}.pickle")


def _saved(name: str, place: Path) -> Path:
    """The folder of a toy with a tokenizer of its words."""
    kind, options = TOYS[name]
    model = hr.tiny_model(kind, **options)
    model.save_pretrained(place)
    Case(model).tokenizer.save_pretrained(place)
    return place


def _loaded(path: Path, way: str, dtype: torch.dtype) -> PreTrainedModel:
    kind, _, number = way.partition(" ")
    options = {"distributed_config": DistributedConfig(tp_size=int(number))} if kind == "tensor" else {}
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **options)
    if way == "2 x 2":
        if not model.tp_plan:
            raise ValueError(f"{type(model).__name__} has no model.tp_plan")
        mesh = torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        plan = model._expand_parallel_plan(model.tp_plan)
        shared = model.all_tied_weights_keys
        apply_tensor_parallelism(model, mesh["tensor"], {name: plan[name] for name in plan if name not in shared})
        model.tie_weights()
        model._tp_size = 2
    return model.eval()


@app.command()
def efficiency(
    folder: Annotated[Path, typer.Argument(help="Folder of a language model.")],
    corpus: Annotated[Path, typer.Argument(help="File of sentences.")],
    limit: Annotated[int, typer.Option(help="Sentences.")] = 32,
    heads: Annotated[int, typer.Option(help="Heads that are ablated.")] = 16,
    repeats: Annotated[int, typer.Option(help="How often both are timed, in turn.")] = 5,
) -> None:
    """Time two processes of one thread and one process of two threads in turn, and write efficiency.csv here."""
    rows = []
    for repeat in range(repeats):
        for processes in (1, 2) if repeat % 2 else (2, 1):
            with TemporaryDirectory() as place:
                _together(_time, processes, folder, corpus, limit, heads, Path(place), threads=3 - processes)
                parts = [pd.read_pickle(f"{place}/{rank}.pickle") for rank in range(processes)]
            for call in parts[0]:
                wall, work = max(part[call][0] for part in parts), sum(part[call][1] for part in parts)
                rows.append({"function": call, "repeat": repeat, "processes": processes, "wall": wall, "cpu": work})
        print(pd.DataFrame(rows).tail(4).to_string(), flush=True)
    times = pd.DataFrame(rows).pivot(index=["function", "repeat"], columns="processes", values=["wall", "cpu"])
    ratios = pd.DataFrame({f"{clock}, one / two": times[clock][1] / times[clock][2] for clock in ("wall", "cpu")})
    times.columns = [f"{clock} of {processes}" for clock, processes in times]
    times.join(ratios).reset_index().to_csv(HERE / "efficiency.csv", index=False, float_format="%.3g")
    print(ratios.groupby("function").median())


def _time(rank: int, path: Path, corpus: Path, limit: int, heads: int, place: Path) -> None:
    """In a process: note the seconds of the clock and of the processor that two functions take, after a first call."""
    model, tokenizer = hr.load(path, dtype=torch.float32)
    sentences = list(hr.read(corpus, limit=limit))
    every = [(*site.key, number) for site in hr.attention_sites(model) for number in site.numbers]
    sets = {f"{kind} {layer} {head}": [(kind, layer, head)] for kind, layer, head in every[:: len(every) // heads]}
    calls: dict[str, Callable[[Corpus], object]] = {
        "score": lambda text: hr.score(model, tokenizer, text, ["confidence"], max_tokens=128, n_resamples=0),
        "ablate": lambda text: hr.ablate(model, tokenizer, text, sets=sets, max_tokens=512, n_resamples=0),
    }
    times = {}
    for name, call in calls.items():
        call(Corpus("first", sentences[:4]))  # which ends, as each call does, when all processes have all results
        start = time.perf_counter(), time.process_time()
        call(Corpus("all", sentences))
        times[name] = time.perf_counter() - start[0], time.process_time() - start[1]
    pd.to_pickle(times, place / f"{rank}.pickle")


def _together(work: Callable[..., None], processes: int, *given: object, threads: int = 1) -> None:
    """Run `work(rank, *given)` in processes of a group, or in a process alone."""
    multiprocessing.set_forkserver_preload(IMPORTED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    start_processes(_joined, (work, processes, port, threads, *given), processes, start_method="forkserver")


def _joined(rank: int, work: Callable[..., None], processes: int, port: str, threads: int, *given: object) -> None:
    torch.set_num_threads(threads)
    if processes > 1:
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "false", "LOCAL_RANK": str(rank)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes), "RANK": str(rank)}
        torch.distributed.init_process_group("gloo", timeout=timedelta(minutes=5))
    work(rank, *given)
    if processes > 1:
        torch.distributed.destroy_process_group()


add(app, HERE)

if __name__ == "__main__":
    app()
