"""Tasks of the LM evaluation harness, measured with all heads and with some ablated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from headroles.models.head_model import HeadModel, Model
from headroles.models.heads import Head
from headroles.tables import frame

UNSEEDED = {"random_seed": None, "numpy_random_seed": None, "torch_random_seed": None}  # global generators stay
Key = tuple[str, str]  # task and metric


class _Measured(NamedTuple):
    """A metric of a task, and what each example is worth by the number of its document."""

    value: float
    examples: Mapping[int, float]


def evaluate_tasks(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[str | dict[str, Any]],
    heads: Iterable[Head | str] | str,
    *,
    batch: int = 8,
    limit: int | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Measure tasks of lm-evaluation-harness with all heads and without some.

    The model is given to the harness as it is (`HFLM`), once intact and once with the heads ablated (zero). The extra
    `[eval]` installs the harness.

    Args:
        model: A Hugging Face model that writes text.
        tokenizer: Its tokenizer.
        tasks: Names of the harness's tasks, such as "lambada_openai". Or configs of tasks, as their YAML files have
            them.
        heads: The heads to ablate, as (kind, layer, head) or "L0H2,L1H0".
        batch: Number of requests in one forward pass.
        limit: Number of examples of each task, from the first on; None: all.
        **options: More of `lm_eval.simple_evaluate`: `num_fewshot`, `apply_chat_template`, or `task_manager` with a
            folder of your own tasks. Seeds of global generators are left alone.

    Returns:
        A row per task and metric: `intact`, `ablated`, `difference` (ablated - intact), `se`, its standard error paired
        over examples, and `examples`. Metrics that are not means over examples, and groups of tasks, have no `se`.
        A metric of a filter has its name after a comma.

    Raises:
        ValueError: If a head does not exist, no head or task is given, or the model writes no text.
        ModuleNotFoundError: Without the package `lm_eval`.

    Example:
        >>> hr.evaluate_tasks(model, tokenizer, ["lambada_openai"], "L17H3,L18H1", limit=500)
    """
    handle = HeadModel.of(model, tokenizer)
    chosen = handle.named_heads(heads)
    if not chosen or not tasks:
        raise ValueError(f"nothing to compare: got {len(chosen)} heads and {len(tasks)} tasks; expected some of both")
    if find_spec("lm_eval") is None:
        raise ModuleNotFoundError("tasks need the LM evaluation harness, in a checkout: pip install '.[eval]'")
    if not handle.model.can_generate():
        raise ValueError(
            f"{handle.name} writes no text, which the harness asks for: expected a model with its language-model head; "
            f"try cls='AutoModelForCausalLM'"
        )
    handle.check_weights("output")
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    named = any(isinstance(task, str) for task in tasks)  # reading the files of all tasks takes long
    manager = options.pop("task_manager", None) or TaskManager(include_defaults=named)
    given = {"tasks": list(tasks), "task_manager": manager, "limit": limit, "bootstrap_iters": 0, **UNSEEDED, **options}
    with handle.evaluating():
        harness = HFLM(pretrained=handle.model, tokenizer=deepcopy(tokenizer), batch_size=batch)  # it sets its padding
        intact = _measure(harness, given)
        with handle.mask(handle.head_mask(chosen)):
            ablated = _measure(harness, given)
    rows = {key: _row(before, ablated[key]) for key, before in intact.items()}
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index = pd.MultiIndex.from_tuples(rows, names=["task", "metric"])
    shown = {name: value for name, value in {"limit": limit, **options}.items() if isinstance(value, str | int | float)}
    ablated_heads = ",".join(f"{kind}:{layer}:{head}" for kind, layer, head in chosen)
    return frame.signed(table, handle.provenance(lm_eval=version("lm_eval"), heads=ablated_heads, **shown))


def _measure(harness: Any, options: dict[str, Any]) -> dict[Key, _Measured]:
    """The metrics of all tasks."""
    import lm_eval

    tasks = deepcopy(options["tasks"])  # the harness changes configs
    return dict(_metrics(lm_eval.simple_evaluate(harness, **{**options, "tasks": tasks, "log_samples": True})))


def _metrics(results: Mapping[str, Any]) -> Iterator[tuple[Key, _Measured]]:
    """Yield each metric that is a number, with its examples where there are some."""
    for task, values in results["results"].items():
        for name, value in values.items():
            metric, comma, kind = name.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            samples = [row for row in results["samples"].get(task, ()) if row["filter"] == kind]
            examples = {row["doc_id"]: row[metric] for row in samples if isinstance(row.get(metric), int | float)}
            yield (task, metric if kind == "none" else name), _Measured(float(value), examples)


def _row(before: _Measured, after: _Measured) -> dict[str, float]:
    """The numbers of one metric; the standard error of a mean of differences, where both values are means."""
    row = {"intact": before.value, "ablated": after.value, "difference": after.value - before.value}
    pairs = np.array([(before.examples[doc], after.examples[doc]) for doc in before.examples], dtype=float)
    is_mean = len(pairs) > 1 and np.allclose(pairs.mean(0), (before.value, after.value))
    error = np.subtract(*pairs.T).std(ddof=1) / np.sqrt(len(pairs)) if is_mean else np.nan
    return {**row, "se": float(error), "examples": len(pairs)}
