"""A study with every table that the report reads, and the data in a page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import headroles as hr
from headroles.analysis.role_rules import VERDICTS
from headroles.tables import frame
from headroles.tables.io import save_table
from headroles.tables.study import Study

SIZES = {(kind, layer): 8 for kind in frame.KINDS for layer in range(6)}
EVIL = "</script><script>window.hacked = 1</script>"
IMAGE = "<img src=x onerror='window.hacked=2'>"


def interval(name: str, values: Any) -> dict[str, Any]:
    return {name: values, f"{name}.low": values - 0.01, f"{name}.high": values + 0.02}


def signed(rows: Any, signature: str = "model:toy|weights:abc|metric:Loss()|headroles:0") -> pd.DataFrame:
    table = pd.DataFrame(rows)
    table.attrs["signatures"] = dict.fromkeys(table.columns, signature)
    return table


def scores(index: pd.MultiIndex, rng: np.random.Generator) -> pd.DataFrame:
    values = {name: rng.random(len(index)) for name in ("confidence", "position[-1]", "syntax[nsubj dep>head]")}
    values["alignment[monotone]"] = np.where(index.get_level_values("kind") == "cross", rng.random(len(index)), np.nan)
    columns = {part: one for name, own in values.items() for part, one in interval(name, own).items()}
    beside = {"syntax[nsubj dep>head].baseline": np.full(len(index), 0.3), "syntax[nsubj dep>head].words": 77}
    draws = {name: np.repeat(own[:, None], 20, 1).astype(np.float32) for name, own in values.items()}
    draws["syntax[nsubj dep>head].baseline"] = np.full((len(index), 20), 0.3, np.float32)
    return frame.table(columns | beside, index, "model:toy|weights:abc|headroles:0|score:Some()", draws=draws)


def effects(index: pd.MultiIndex, rng: np.random.Generator) -> pd.DataFrame:
    name, values = "ablation[loss]", rng.normal(size=len(index)) / 50
    tests = {f"{name}.{test}": rng.random(len(index)) / 100 for test in ("p", "holm", "bh")}
    return frame.table(interval(name, values) | tests, index, "model:toy|weights:abc|metric:Loss()|intact:1.7")


def pruned(study: Study, index: pd.MultiIndex, rng: np.random.Generator) -> None:
    order, columns = rng.permutation(len(index)), {}
    for size in (len(index) // 2, 10):
        columns[f"survival[l0 {size}]"] = (order < size).astype(float)
        columns[f"survival[l0 {size}].open"] = rng.random(len(index))
        history = [(*head, step, value) for head in index for step, value in enumerate(rng.random(60))]
        table = signed(pd.DataFrame(history, columns=[*frame.LEVELS, "step", "open"]))
        save_table(table, study.path(f"gates-l0-{size}"))
    save_table(frame.table(columns, index, "model:toy|weights:abc"), study.path("survival-l0"))
    values = {"value": [1.5, 1.6, 2.5], "low": [1.4, 1.5, 2.3], "high": [1.6, 1.7, 2.7]}
    changes = {"change": [0, 0.1, 1.0], "change.low": [0, 0, 0.9], "change.high": [0, 0.2, 1.1], "undecided": 0}
    left = {kind: [48, 24, 3] for kind in frame.KINDS}
    rows = {"heads": [len(index), len(index) // 2, 10], "of": len(index)} | left | values | changes
    save_table(signed(rows), study.path("sparsity-l0"))


def related(note: str) -> pd.DataFrame:
    names = ("difference", "median", "auc", "spearman", "within")
    parts = [f"{name}{end}" for name in names for end in ("", ".low", ".high")] + ["p", "holm", "bh"]
    known = {"role": "alignment", "outcome": "ablation[loss]", "with": 12, "without": 132, "note": ""}
    missing = {"role": "rare", "outcome": "survival[l0 10]", "with": 0, "without": 144, "note": note}
    known |= {name: 0.25 + place / 100 for place, name in enumerate(parts)}
    return signed([known, missing | dict.fromkeys(parts, np.nan)])


def attended(index: pd.MultiIndex, rng: np.random.Generator, tokens: list[str], sentences: int = 3) -> pd.DataFrame:
    rows = []
    for sentence in range(sentences):
        told = {"sentence": sentence, "text": " ".join(tokens), "target": f"Ziel {sentence} {IMAGE}"}
        for kind, layer, head in index:
            weights = rng.dirichlet(np.full(len(tokens), 0.1), len(tokens)).round(3).astype("float32").ravel()
            place = {"kind": kind, "layer": layer, "head": head} | told
            written = 10 if sentence == 2 and kind != "enc-self" else 0  # the last tokens are the model's own
            rows.append(place | {"queries": tokens, "keys": tokens, "weights": weights, "written": written})
    return signed(rows)


def decoded(weights: list[int]) -> list[int]:
    """The weights of a page, in thousandths: -n stands for n zeros."""
    return [weight for number in weights for weight in ([0] * -number if number < 0 else [number])]


def studied(folder: Path, *, sizes: Any = SIZES, tokens: int = 12, evil: str = EVIL) -> Study:
    """A study with every table the report reads, of made-up numbers."""
    study, rng, index = Study(folder), np.random.default_rng(0), frame.index(sizes)
    table = scores(index, rng)
    save_table(table, study.path("heads"))
    save_table(hr.roles(table), study.path("roles"))
    save_table(effects(index, rng), study.path("ablation-loss-head-zero"))
    copying = {"copying": np.where(index.get_level_values("kind") == "dec-self", rng.random(len(index)), np.nan)}
    save_table(frame.table(copying, index, "model:toy|weights:abc|score:copying"), study.path("circuits"))
    pruned(study, index, rng)
    points = [("importance", n, n / 10, 1 + n, 0.9 + n, 1.2 + n) for n in range(11)]
    lines = points + [(f"random {evil}", *point[1:]) for point in points]
    columns = ["order", "masked", "share", "value", "low", "high"]
    save_table(signed(pd.DataFrame(lines, columns=columns)), study.path("curves-loss"))
    save_table(related(f"no head has the role {evil}"), study.path("relate"))
    words = ["▁The", evil, *(f"▁w{place}" for place in range(tokens - 2))]
    save_table(attended(index, rng, words), study.path("attention"))
    return study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return studied(tmp_path_factory.mktemp("study") / "made")


@pytest.fixture(scope="module")
def html(study: Study) -> str:
    return hr.report(study, study.folder / "report.html", title=f"Heads {EVIL}").read_text(encoding="utf-8")


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} in the page")


def told(html: str) -> dict[str, Any]:
    """The data of a page, as its script reads them."""
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, flags=re.DOTALL)
    found: dict[str, Any] = json.loads(block, parse_constant=refuse)
    return found


def same(found: Any, expected: Any) -> None:
    numbers = [np.nan if one is None else one for one in found]
    np.testing.assert_allclose(numbers, np.asarray(expected, float), rtol=1e-6, atol=0)


def flat(metric: str, folder: Path) -> Path:
    """A report of a model in which 7 of 8 heads have no effect; one costs 6.89, and passes a test of no known role."""
    index, name = frame.index({("enc-self", 0): 4, ("enc-self", 1): 4}), f"ablation[{metric}]"
    effect = np.where(np.arange(8) == 5, 6.89 if metric == "loss" else -6.89, 0.0)
    tests = {f"{name}.{test}": np.ones(8) for test in ("p", "holm", "bh")}
    save_table(frame.table({name: effect} | tests, index, "model:toy|weights:abc"), folder / "ablation-x.parquet")
    tested = {"removed": 6.89, "role_pattern": 0.25, "explained": 0.96, "explained.low": 0.9, "explained.high": 1.0}
    one = pd.MultiIndex.from_tuples([("enc-self:1:1", "mine")], names=["heads", "role"])
    table = frame.signed(pd.DataFrame(tested | {"verdict": VERDICTS[0]}, one), "model:toy|weights:abc|examples:9")
    save_table(table, folder / "role-tests-x.parquet")
    return hr.report(folder, folder / "report.html")
