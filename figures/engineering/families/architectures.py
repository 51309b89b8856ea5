"""The architectures that are checked as tiny models, and the table of results as Markdown, in a README."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import transformers
from transformers import CONFIG_MAPPING, PreTrainedModel

from headroles._distributed import track
from headroles.models.parts import submodel
from headroles.tables import frame
from headroles.testing.runner import CHECKS, check_model
from headroles.testing.tiny_models import tiny_model

_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
GROUPS: dict[str, str] = _FILE["groups"]
OPTIONS: dict[str, dict[str, Any]] = _FILE["options"]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (row["architecture"], row["options"]) for name, row in _FILE["variants"].items()
}
AREAS = ("scores", "ablation", "relevance", "pruning", "removal")
WORST = ("no", "refused", "yes", "not asked")  # results of a check: an area has the worst of its checks
LARGEST = 50_000_000  # parameters: not all options are named after what they are the size of
LONGEST = 160  # characters of a reason
_STAGES = "it gives out the weights of one layer of each stage, watching shows all"
NOTES = {  # the cause of a result
    "big_bird": "what is loaded puts other attention into itself at its first text",
    "bigbird_pegasus": "what is loaded puts other attention into itself at its first text",
    "hrm_text": "its 128 layers in a row amplify rounding: its own two attention functions are as far apart",
    "minimax": "it gives out numbers of its linear layers as if they were attention weights",
    "phimoe": "the gradient of its router is no gradient, by design",
    **dict.fromkeys(("swin", "swin, shifted"), _STAGES),
}


def architectures(names: Sequence[str] | None = None) -> pd.DataFrame:
    """Run all checks on a tiny model of every architecture, or of some; one that cannot be built has the reason."""
    groups = dict(_listed())
    chosen = list(groups) if names is None else list(names)
    if unknown := [name for name in chosen if name not in groups]:
        raise ValueError(f"unknown architecture: got {', '.join(unknown)}; expected one of: {', '.join(groups)}")
    return signed(pd.concat([checked(name, groups[name]) for name in track(chosen, "architectures", len(chosen))]))


def others() -> list[str]:
    """Return the model types of transformers that are not in the table."""
    known = {_kind(name) for name, _ in _listed()}
    return sorted(set(CONFIG_MAPPING.keys()) - known)


def signed(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of results with its versions."""
    text = frame.sign(headroles=version("headroles"), transformers=transformers.__version__, seed=0)
    return frame.signed(table, text)


def _listed() -> Iterator[tuple[str, str]]:
    for group, names in GROUPS.items():
        yield from ((name, group) for name in names.split())
    yield from ((name, "variants") for name in VARIANTS)


def checked(name: str, group: str) -> pd.DataFrame:
    """Run all checks on one architecture; one that cannot be built has the reason."""
    try:
        model = build(name)
    except (ValueError, MemoryError, OSError) as error:  # no tiny model, or no such submodel
        return unfinished(name, group, str(error))
    if (size := model.num_parameters()) > LARGEST:
        return unfinished(name, group, f"no tiny model of {name!r}: {size / 1e6:.0f} million parameters")
    return _named(check_model(model), name, group)


def unfinished(name: str, group: str, why: str = "the checks did not end") -> pd.DataFrame:
    """Return the rows of an architecture that could not be checked, with the reason."""
    table = pd.DataFrame({"area": [check.area for check in CHECKS.values()]}, index=pd.Index(CHECKS, name="check"))
    return _named(table.assign(holds="refused", off=float("nan"), allowed=float("nan"), why=why), name, group)


def _named(table: pd.DataFrame, name: str, group: str) -> pd.DataFrame:
    table = table.reset_index().assign(name=name, group=group, architecture=_kind(name))
    return table.set_index(["name", "check"])


def _kind(name: str) -> str:
    return VARIANTS[name][0] if name in VARIANTS else name.partition("/")[0]


def build(name: str) -> PreTrainedModel:
    """Return the tiny model of an architecture, or of one of its submodels, by name."""
    kind, (_, options) = _kind(name), VARIANTS.get(name, ("", {}))
    model = tiny_model(kind, **(options or OPTIONS.get(kind, {})))
    part = name.partition("/")[2]
    return submodel(model, part) if part else model


def areas(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per architecture and a column per area: the worst result of its checks."""
    ranked = table.assign(rank=table["holds"].map(WORST.index)).reset_index()
    worst = ranked.groupby(["group", "name", "area"], sort=False)["rank"].min().map(WORST.__getitem__)
    return worst.unstack("area")[list(AREAS)]


def written(table: pd.DataFrame, *, reasons: bool = True) -> str:
    """Return Markdown: counts by group, the architectures where all works, and the others with their reasons."""
    results = areas(table)
    lines = [*_counts(table, results), "", *_complete(results)]
    return "\n".join([*lines, "", *_partial(table, results)] if reasons else lines)


def _counts(table: pd.DataFrame, results: pd.DataFrame) -> list[str]:
    lines = [f"| | architectures | types | {' | '.join(AREAS)} |", "|---|---|---|" + "---|" * len(AREAS)]
    for group in [*results.index.unique("group"), None]:
        in_group, checks = (results, table) if group is None else (results.loc[[group]], table[table["group"] == group])
        counts = " | ".join(str((in_group[area] == "yes").sum()) for area in AREAS)
        lines.append(f"| {group or 'all'} | {len(in_group)} | {checks['architecture'].nunique()} | {counts} |")
    return lines


def _complete(results: pd.DataFrame) -> list[str]:
    good = results[results.isin(["yes", "not asked"]).all(axis=1)]
    names = {group: ", ".join(good.loc[group].index) for group in good.index.unique("group")}
    return [f"- All that is asked of them works, {group}: {listed}." for group, listed in names.items()]


def _partial(table: pd.DataFrame, results: pd.DataFrame) -> list[str]:
    partial = results[results.isin(["no", "refused"]).any(axis=1)].droplevel("group")
    lines = [f"<details><summary>The {len(partial)} of which something is wrong or refused, and why</summary>", ""]
    lines += ["| not all works | " + " | ".join(AREAS) + " | why |", "|---|" + "---|" * (len(AREAS) + 1)]
    for name in partial.index:
        checks = table.loc[name]
        reasons = dict.fromkeys(_short(why) for why in checks["why"][checks["holds"].isin(["no", "refused"])])
        why = "; ".join([*([NOTES[name]] if name in NOTES else []), *reasons])
        cells = " | ".join("" if result == "not asked" else result for result in partial.loc[name])
        lines.append(f"| {name} | {cells} | {why} |")
    return [*lines, "", "</details>"]


def _short(why: str) -> str:
    """Return a reason in one cell: without its preamble and without what follows from it."""
    start = r"^heads cannot be (cut out of \w+, gates close them|removed from \w+; mask them instead): "
    text = re.sub(start, "", why).replace("|", "/")
    return text if len(text) <= LONGEST else text[:LONGEST].rsplit(" ", 1)[0] + " ..."
