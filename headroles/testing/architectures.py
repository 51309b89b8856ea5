"""The architectures that are checked as tiny models, with the config options that some of them need."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import pandas as pd
import transformers
from transformers import PreTrainedModel

from headroles._progress import track
from headroles.models.sites import submodel
from headroles.tables import frame
from headroles.testing.runner import CHECKS, check_model
from headroles.testing.tiny_models import tiny_model

_FILE = tomllib.loads((files("headroles") / "testing" / "architectures.toml").read_text("utf-8"))
GROUPS: dict[str, str] = _FILE["groups"]
OPTIONS: dict[str, dict[str, Any]] = _FILE["options"]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (row["architecture"], row["options"]) for name, row in _FILE["variants"].items()
}


def architectures(names: Sequence[str] | None = None) -> pd.DataFrame:
    """Run all checks on a tiny model of every architecture, or of some; one that cannot be built has the reason."""
    groups = dict(_listed())
    chosen = list(groups) if names is None else list(names)
    if unknown := [name for name in chosen if name not in groups]:
        raise ValueError(f"unknown architecture: got {', '.join(unknown)}; expected one of: {', '.join(groups)}")
    table = pd.concat([_checked(name, groups[name]) for name in track(chosen, "architectures", len(chosen))])
    text = frame.sign(headroles=version("headroles"), transformers=transformers.__version__, seed=0)
    table.attrs["signatures"] = dict.fromkeys(table.columns, text)
    return table


def _listed() -> Iterator[tuple[str, str]]:
    """Each name with its group."""
    for group, names in GROUPS.items():
        yield from ((name, group) for name in names.split())
    yield from ((name, "variants") for name in VARIANTS)


def _checked(name: str, group: str) -> pd.DataFrame:
    try:
        table = check_model(build(name))
    except ValueError as error:  # no tiny model, or no such submodel
        table = pd.DataFrame({"of": [check.of for check in CHECKS.values()]}, index=pd.Index(CHECKS, name="law"))
        table = table.assign(holds="refused", off=float("nan"), allowed=float("nan"), why=str(error))
    kind = VARIANTS[name][0] if name in VARIANTS else name.partition("/")[0]
    table = table.reset_index().assign(name=name, group=group, architecture=kind)
    return table.set_index(["name", "law"])


def build(name: str) -> PreTrainedModel:
    """Return the tiny model of an architecture, or of one of its submodels, by name."""
    kind, options = VARIANTS.get(name, (name.partition("/")[0], {}))
    model = tiny_model(kind, **(options or OPTIONS.get(kind, {})))
    part = name.partition("/")[2]
    return submodel(model, part) if part else model
