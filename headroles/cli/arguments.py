"""Parse command-line strings, and open what they name: models, studies, heads, strategies of pruning."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headroles.data.corpus import Corpus
    from headroles.pruning.learned_gates import Freeze
    from headroles.pruning.selection import Strategy
    from headroles.scores import Relevance
    from headroles.tables.study import Study


def load_model(
    model: str, device: str | None, *, whole: bool = False, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model onto a device, or unless it has to stay whole with "auto" onto all, and its tokenizer."""
    from headroles.models import loading

    if device == "auto" and not whole:
        return loading.load(model, device_map="auto", **options)
    loaded, tokenizer = loading.load(model, **options)
    return loading.place(loaded, device), tokenizer


def study_of(folder: Path, *, overwrite: bool = False) -> Study:
    """Open the study of a command and check that it can be written before a model is loaded."""
    from headroles.tables.study import Study

    study = Study(folder, overwrite=overwrite)
    study.check_writable()
    return study


def typed() -> str:
    """Return the command as it was typed, for the cards of models and the records of artefacts."""
    return shlex.join(["headroles", *sys.argv[1:]])


def listed(names: str | list[str]) -> list[str]:
    """Return one name, or several, as a list."""
    return [names] if isinstance(names, str) else names


def names(text: str) -> list[str]:
    """Split names at commas, which the library checks."""
    return [name.strip() for name in text.split(",")]


def chosen_roles(table: pd.DataFrame, wanted: str | None) -> pd.DataFrame:
    """Select roles of a table by name or family; None: all but sinks, unless there is nothing else; "all": all."""
    from headroles.analysis.role_rules import families, held
    from headroles.tables.arguments import unknown
    from headroles.tables.columns import Column
    from headroles.tables.frame import only

    known = {name: {name} for role in families(table).values() for name in role}
    known |= {family: {*variants} for family, variants in families(table).items()} | {"all": {*known}}
    if wanted is None:
        sinks = {name for name in known["all"] if Column.parse(name).plain.name == "sink"}
        chosen = {*held(table)["role"]} - sinks or known["all"]
    else:
        for name in names(wanted):
            if name not in known:
                raise ValueError(unknown("role", name, known))
        chosen = set[str]().union(*(known[name] for name in names(wanted)))
    return only(table, [name for name in map(str, table) if name in chosen or name.rpartition(".")[0] in chosen])


def numbers(text: str) -> list[float]:
    """Parse numbers of heads, or shares; raise ValueError for other text."""
    try:
        return [float(number) if "." in number else int(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(
            f"expected numbers of heads or shares with commas between, as 0.5,0.25; got {text!r}"
        ) from None


def scores_of(scores: list[str], rules: str, max_residue: float | None) -> list[str | Relevance]:
    """Return scores, relevance by each rule set of a comma-separated list."""
    from headroles.scores import Relevance

    parsed: list[str | Relevance] = []
    for name in scores:
        relevance = [Relevance(rules=rule, max_residue=max_residue) for rule in names(rules)]  # type: ignore[arg-type]
        parsed += relevance if name == "relevance" else [name]
    return parsed


def threshold(text: str) -> tuple[str, float]:
    """Return the role and the number of a text such as positional=0.8; raise ValueError for another form."""
    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"threshold {text!r} is not of the form role=number, such as positional=0.8")
    return name, number


def thresholds(texts: list[str]) -> dict[str, float]:
    """Return the number of each role of texts such as positional=0.8; raise ValueError for a role given twice."""
    numbers: dict[str, float] = {}
    for name, number in map(threshold, texts):
        if name in numbers:
            raise ValueError(
                f"two thresholds of {name}: got {numbers[name]:g} and {number:g}; expected a single threshold of a "
                f"role; try --threshold {name}={number:g} alone"
            )
        numbers[name] = number
    return numbers


def pairs_of(text: str) -> Corpus:
    """Read the sentence pairs of a table of two columns, or of two files separated by a comma."""
    from headroles.data.readers import read

    source, comma, target = text.partition(",")
    return read(source, target) if comma else read(source)


def strategy_of(name: str, gate_rate: float | None, freeze: Freeze, role_scores: Path | None) -> str | Strategy:
    """Return the strategy of a name: gates with their options, roles from a score table."""
    from headroles.analysis.role_rules import assignable
    from headroles.pruning.learned_gates import L0, SubsetSelection
    from headroles.pruning.rankings import ByRoles
    from headroles.tables.io import load_table

    if name in ("l0", "exactly"):
        if gate_rate is not None and not gate_rate > 0:
            raise ValueError(f"the learning rate of gates must be above zero; got {gate_rate}")
        return (L0 if name == "l0" else SubsetSelection)(rate=gate_rate, freeze=freeze)
    if name != "roles" or role_scores is None:
        return name
    table = load_table(role_scores)
    if not assignable(table):
        columns = ", ".join(map(str, table))
        raise ValueError(f"{role_scores} has no scores of roles: got {columns}; try heads.parquet of headroles score")
    return ByRoles(table)
