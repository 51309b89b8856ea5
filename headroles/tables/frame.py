"""Head tables: one row per head, one column per measurement, with provenance and bootstrap draws (no torch)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args
from urllib.parse import unquote

if TYPE_CHECKING:  # pandas takes half the time of `headroles --help`
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

Kind = Literal["enc-self", "dec-self", "cross"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LEVELS = ["kind", "layer", "head"]
Draws: TypeAlias = "npt.NDArray[np.floating]"  # bootstrap resamples of a column: [heads, resamples]
DRAWN = {  # name of a corpus that `headroles.data.probes` draws -> its examples in words
    r"repeated-(\d+)": r"sequences of \1 random tokens, each repeated once",
    r"needles-(\d+)-(\d+)": r"texts of \1 tokens with a needle of \2",
}
_HEAD = re.compile(rf"\s*(?:({'|'.join(KINDS)}):(\d+):(\d+)|(?:({'|'.join(KINDS)}) +)?L(\d+)H(\d+))\s*")
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_UNSAFE = re.compile(r"[%|\x00-\x1f\x7f]")  # characters that are escaped in the values of a signature


def index(sizes: Mapping[tuple[Kind, int], int | Sequence[int]]) -> pd.MultiIndex:
    """Build the head index of a model from the number of heads of each (kind, layer), or the heads' numbers."""
    numbered = {key: range(size) if isinstance(size, int) else size for key, size in sizes.items()}
    return _index([(kind, layer, head) for (kind, layer), numbers in numbered.items() for head in numbers])


def table(
    columns: Mapping[str, object],
    index: pd.MultiIndex,
    signatures: str | Mapping[str, str],
    *,
    draws: Mapping[str, Draws] | None = None,
) -> pd.DataFrame:
    """Build a head table with provenance, for all columns or for each, and resamples: [heads, resamples]."""
    import pandas as pd

    frame = pd.DataFrame(dict(columns), index=index)
    texts = signatures if isinstance(signatures, Mapping) else dict.fromkeys(frame.columns, signatures)
    frame.attrs["signatures"] = dict(texts)
    keep_resamples(frame, draws or {})
    return frame


def rows(table: pd.DataFrame) -> pd.MultiIndex:
    """Return the head index of a table's rows."""
    return _index(list(table.index))


def _index(heads: Sequence[tuple[str, int, int]]) -> pd.MultiIndex:
    """Build an index that pandas knows to be sorted, kinds in the order of KINDS, to avoid warnings at look-ups."""
    import pandas as pd

    columns = list(zip(*heads, strict=True)) or [(), (), ()]
    levels = [
        sorted(set(columns[0]), key=(*KINDS, *columns[0]).index),
        *(sorted(set(values)) for values in columns[1:]),
    ]
    codes = [[level.index(value) for value in column] for level, column in zip(levels, columns, strict=True)]
    return pd.MultiIndex(levels=levels, codes=codes, names=LEVELS)


def join(*tables: pd.DataFrame) -> pd.DataFrame:
    """Join tables of the same heads side by side.

    Provenance and resamples are kept; the joins of pandas drop them.

    Args:
        *tables: One or more tables with the same heads, in any order of rows, and different columns.

    Returns:
        All columns, rows in the order of the first table.

    Raises:
        ValueError: If no table is given, the tables have different heads, or two have a column of the same name.
    """
    import pandas as pd

    if not tables:
        raise ValueError("nothing to join: give at least one table")
    first = tables[0]
    for table in tables[1:]:
        check_same_heads(first, table, "the tables")
    names = [column for table in tables for column in table.columns]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"these columns are in more than one table: {listed(duplicates)}; rename or drop one of each")
    parts = [part.loc[first.index] for part in tables]
    frame = pd.concat(map(bare, parts), axis=1)
    frame.attrs["signatures"] = {k: text for part in parts for k, text in part.attrs.get("signatures", {}).items()}
    keep_resamples(frame, {name: draws for part in parts for name, draws in resamples(part).items()})
    return frame


def only(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Select columns of a table, with their provenance and resamples."""
    frame = bare(table)[list(columns)]
    frame.attrs["signatures"] = {k: text for k, text in table.attrs.get("signatures", {}).items() if k in frame}
    keep_resamples(frame, {name: draws for name, draws in resamples(table).items() if name in frame})
    return frame


def bare(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without attrs, which pandas would compare, copy or write."""
    bare = table.copy(deep=False)
    bare.attrs = {}
    return bare


def check_same_heads(first: pd.DataFrame, second: pd.DataFrame, names: str) -> None:
    """Raise ValueError unless two tables, called `names` in the message, have the same heads."""
    check_once(first, second)
    if len(first) != len(second) or not first.index.sort_values().equals(second.index.sort_values()):
        raise ValueError(
            f"{names} are of different heads: got {len(first)} and {len(second)} rows, "
            f"{len(first.index.intersection(second.index))} in common; expected the same heads"
        )


def check_once(*tables: pd.DataFrame) -> None:
    """Raise ValueError for a table with several rows of one head."""
    for index in (table.index for table in tables):
        if twice := [str(head) for head in index[index.duplicated()]]:
            raise ValueError(f"heads are counted twice: got {twice[0]} in several rows; expected each head once")


# Resamples are large, [heads, resamples] for each column, and pandas copies attrs at every step and writes them as
# JSON. So this is a dict that is empty to pandas: it is handed on as it is, and `to_parquet` leaves it out. It notices
# nothing that is done to a table. Therefore `resamples` compares: a column has resamples as long as it has the name
# and the values for which they were drawn, in whatever rows are left. A renamed, changed or rounded column has none.
class Resamples(dict[str, object]):
    """Bootstrap resamples of a table's columns: column -> [heads, resamples]."""

    def __init__(self, table: pd.DataFrame, draws: Mapping[str, Draws]) -> None:
        super().__init__()
        self.index, self.draws = table.index, dict(draws)
        self.measured = {name: table[name].to_numpy() for name in draws}

    def __deepcopy__(self, memo: dict[int, object]) -> Resamples:
        return self


def keep_resamples(table: pd.DataFrame, draws: Mapping[str, Draws]) -> None:
    """Attach resamples, [heads, resamples] of each column, to a table."""
    if draws:
        table.attrs["resamples"] = Resamples(table, draws)


def resamples(table: pd.DataFrame, columns: Collection[str] | None = None) -> dict[str, Draws]:
    """Return the resamples of (these) columns unchanged since measurement: column -> [rows of the table, resamples]."""
    import numpy as np

    kept, table = table.attrs.get("resamples"), bare(table)  # pandas copies attrs for each column that is looked at
    if not isinstance(kept, Resamples) or list(table.index.names) != LEVELS or not table.columns.is_unique:
        return {}
    places = kept.index.get_indexer(table.index)
    if (places < 0).any():  # heads that were not measured, or have other numbers or kinds now
        return {}
    measured = {name: values[places] for name, values in kept.measured.items() if name in (columns or table)}
    alike = [name for name, values in measured.items() if name in table and table[name].dtype == values.dtype]
    same = [name for name in alike if np.array_equal(table[name], measured[name], equal_nan=True)]
    everything = np.array_equal(places, np.arange(len(kept.index)))  # then nothing is copied
    return {name: kept.draws[name] if everything else kept.draws[name][places] for name in same}


def resamples_of(table: pd.DataFrame, column: str, over: str | None = None) -> Draws | None:
    """Return the resamples of a column, minus those of its baseline `over`: [heads, resamples]; None without any."""
    drawn = resamples(table, needed := {column, f"{column}{over or ''}"})
    if drawn.keys() != needed:
        return None
    return drawn[column] - drawn[f"{column}{over}"] if over else drawn[column]


def parsed_head(text: str) -> tuple[Kind | None, int, int]:
    """Parse a head such as L0H2, which has no kind, "enc-self L0H2" or enc-self:0:2; ValueError for another form."""
    if not (match := _HEAD.fullmatch(text)):
        raise ValueError(f"head {text!r} is not of the form L0H2, or enc-self L0H2 where a model has several kinds")
    given = [part for part in match.groups() if part]
    return next((kind for kind in KINDS if kind in given), None), int(given[-2]), int(given[-1])


def spelled(kind: str, layer: int, head: int, *, one_kind: bool = False) -> str:
    """Return a head as it is printed everywhere: "enc-self L0H2", or L0H2 where a model has one kind of heads."""
    return f"L{layer}H{head}" if one_kind else f"{kind} L{layer}H{head}"


def sign(**fields: object) -> str:
    """Join fields into a signature, as in sacreBLEU, unsafe characters escaped as in a URL; `fields` reads it."""
    escaped = {key: _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", str(value)) for key, value in fields.items()}
    return "|".join(f"{key}:{text}" for key, text in escaped.items())


def sign_version(**fields: object) -> str:
    """Join fields into a signature that ends with the version of headroles."""
    return sign(**fields, headroles=version("headroles"))


def holding(**signatures: str) -> str:
    """Join fields with whole signatures as values, which are not escaped."""
    return "|".join(f"{key}:{text}" for key, text in signatures.items())


def fields(text: str) -> list[tuple[str, str]]:
    """Read the keys and values of a signature, in order, including those of nested signatures."""
    parts = (part.partition(":") for part in text.split("|"))
    return [(key, unquote(value)) for key, _, value in parts]


def examples(signature: str) -> str:
    """Return in words on what a column was measured: "500 sentences of news"."""
    facts = dict(fields(signature))
    return examples_of(facts.get("sentences", facts.get("examples", "?")), facts.get("corpus", "an unknown corpus"))


def examples_of(count: object, corpus: str) -> str:
    """Return a number of sentences of a corpus in words, also of one that was drawn: "100 sequences of ..."."""
    drawn = (re.sub(name, words, corpus) for name, words in DRAWN.items() if re.fullmatch(name, corpus))
    return f"{count} {next(drawn, f'sentences of {corpus}')}"


def measured_on(parts: Iterable[tuple[str, str]]) -> str:
    """Join names by what they were measured on, given for each: "sink on 9 sentences of a; induction on ..."."""
    names: dict[str, dict[str, None]] = {}
    for name, where in parts:
        names.setdefault(where, {})[name] = None
    return "; ".join(f"{', '.join(group)} on {where}" for where, group in names.items())


def signed(table: pd.DataFrame, *parts: str) -> pd.DataFrame:
    """Sign all columns of a table with the same provenance: its parts that are not empty, joined by bars."""
    table.attrs["signatures"] = dict.fromkeys(map(str, table.columns), "|".join(filter(None, parts)))
    return table


def provenance(table: pd.DataFrame, column: str) -> str:
    """Return the provenance of one column of a table.

    Args:
        table: A table made by this package: of `hr.score`, `hr.ablate`, `hr.prune` ...
        column: The column's name.

    Returns:
        The column's signature: `key:value` fields joined by bars, such as `model:...|corpus:...|score:...`.

    Raises:
        KeyError: If the column has no signature.
    """
    texts: dict[str, str] = table.attrs.get("signatures", {})
    if column not in texts:
        raise KeyError(f"column {column!r} has no signature; signed columns: {listed(texts)}")
    return Provenance(texts[column])


class Provenance(str):
    """The provenance of a column, a signature; a shell or a notebook shows a field a line."""

    def __repr__(self) -> str:
        return "\n".join(self.split("|"))


def sources(table: pd.DataFrame, columns: Sequence[str]) -> str:
    """Return the distinct models, weights and corpora in the provenance of some columns, in one line."""
    texts: dict[str, str] = table.attrs.get("signatures", {})
    names = ("model", "weights", "corpus", "text", "trained_on")
    parts = [
        "|".join(sign(**{key: value}) for key, value in fields(texts.get(column, "")) if key in names)
        for column in columns
    ]
    return " + ".join(dict.fromkeys(part or "unsigned" for part in parts))


def listed(names: Sequence[str] | Mapping[str, object]) -> str:
    """Return names joined by commas, or "none"."""
    return ", ".join(names) or "none"


def described(argument: object) -> str:
    """Describe an argument for an error message."""
    import pandas as pd

    if not isinstance(argument, pd.Series | pd.DataFrame):
        return f"{argument!r:.60}"
    contents = str(argument.dtype) if isinstance(argument, pd.Series) else ", ".join(map(str, argument)) or "no columns"
    index = ", ".join(map(str, argument.index.names))
    return f"a {type(argument).__name__} ({contents}) with {len(argument)} rows, index {index}"


def visible(text: str) -> str:
    """Escape control and direction characters of a text, which in names could steer a terminal."""
    return _STEERING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def shown(caption: str, rows: Iterable[Mapping[str, object]]) -> str:
    """Return rows of the same columns as an HTML table below a caption, all text escaped."""
    import pandas as pd

    table = pd.DataFrame([{name: str(value) for name, value in row.items()} for row in rows])
    with pd.option_context("display.max_colwidth", 120):
        body = "" if table.empty else table.to_html(index=False, border=0, justify="left")
    return f"<p>{escape(caption)}</p>{body}"
