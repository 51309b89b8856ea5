"""Roles: named predicates over the columns of a score table, and their stability (no torch)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from headroles.analysis.intervals import COARSE, Array
from headroles.analysis.threshold_tests import tested
from headroles.tables import frame
from headroles.tables.arguments import one_of
from headroles.tables.columns import VARIANTS, Column, of_variant, with_suffix
from headroles.tables.declared import declaration, declared
from headroles.tables.study import Study, as_table, study_of

VERDICTS = (  # of role tests (`hr.test_roles`)
    "its role is what it does",
    "its role is a part of it",
    "has the pattern, but the pattern does not explain it",
    "no measurable effect on this corpus",
    "undecided",
    "too few places",
)
STABLE = 0.95  # a role found in a smaller share of the bootstrap resamples is marked
SINKS = ("sink", "sink-norm")  # families
ROUNDING = 1e-9  # .594 over a baseline of .494 is .10


@dataclass(frozen=True)
class Role:
    """A role of heads: a threshold on a column, or on its excess over a baseline.

    Args:
        name: Name of the role.
        column: Name of the score's column, or a regular expression. Its group, if any, names the variants:
            `positional[-1]`.
        threshold: The least value.
        over: Suffix of the baseline's column, which is subtracted: `.baseline`.
        strictly: Whether the value must exceed the threshold.
        about: Where its heads attend, in a legend and on the page.
        short: Its text in the cells of a map; by default its name.
        hue: Its place in seaborn's "colorblind", 10 is indigo; by default the next free one.

    Example:
        >>> Role("sharp", r"confidence", 0.8)
        Role(name='sharp', column='confidence', threshold=0.8, over=None, strictly=False)
    """

    name: str
    column: str
    threshold: float
    over: str | None = None
    strictly: bool = False
    about: str = field(default="", repr=False, kw_only=True)  # how it is drawn is no part of what it is
    short: str = field(default="", repr=False, kw_only=True)
    hue: int | None = field(default=None, repr=False, kw_only=True)

    def variants(self, columns: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the role's variants among `columns`: (variant, column); by norms, `positional-norm[-1]`."""
        is_of_variant = any(f"-{variant}" in self.column for variant in VARIANTS)
        for column in columns:
            parsed = Column.parse(column)
            plain = column if is_of_variant else str(parsed.plain)
            column_is = re.escape(plain) if plain == self.column else self.column  # brackets of its name are no pattern
            if (match := re.fullmatch(column_is, plain)) is not None:
                name = f"{self.name}[{match[1]}]" if match.groups() else self.name
                yield (name if plain == column else of_variant(name, parsed.variant)), column

    def holds(self, values: Array, baseline: Array | float, *, rounding: float = ROUNDING) -> npt.NDArray[np.bool_]:
        """Return whether values reach the threshold over the baseline; NaN does not."""
        margin = values - baseline - self.threshold
        held: npt.NDArray[np.bool_] = margin > rounding if self.strictly else margin >= -rounding
        return held


_SYNTACTIC = "along a dependency;\ns subject, o object, v verb, a adjective,\nn noun, adv adverb"
ROLES = (
    # Voita et al. 2019, sections 5.1 to 5.3; "more than 50 %" is the authors' slides'
    Role("positional", r"position\[([+-]1)\]", 0.90, about="at a fixed offset", hue=0),
    Role("syntactic", r"syntax\[([^\]]+)\]", 0.10, over=".baseline", about=_SYNTACTIC, hue=2),
    Role("rare", r"rarity", 0.50, strictly=True, about="at the rarest token", hue=3),
    # Clark et al. 2019: "over half"
    Role("sink", r"sink\[(special|first)\]", 0.50, strictly=True, about="at a special or the first token", hue=4),
    # ours; links exceed the diagonal as a dependency exceeds the best offset
    Role("alignment", r"alignment\[(monotone)\]", 0.50, about="onward through the source", short="align", hue=8),
    Role(
        "translation", r"links", 0.10, over=".baseline", about="at the words that it translates", short="transl", hue=10
    ),
    # Olsson et al. 2022 and Wang et al. 2022 have no threshold: over half, as a sink
    Role("induction", r"induction", 0.50, strictly=True, about="after the same token before", short="induct", hue=1),
    Role("duplicate", r"duplicate", 0.50, strictly=True, about="at the same token before", short="dupl", hue=5),
    # Wu et al. 2024: a score above 0.1
    Role("retrieval", r"retrieval", 0.10, strictly=True, about="at the needle's next token", short="retr", hue=6),
    # Gould et al. 2023: more than half of the words
    Role(
        "successor", "succession", 0.50, strictly=True, about="by weights, from a word to the next", short="succ", hue=9
    ),
)
SPECIAL = tuple(role.name for role in ROLES if role.name != "sink")  # of specialised heads; a sink does nothing
KNOWN = {key: value for role in ROLES for key, value in declaration("role", role.name, role).items()}


class RoleStyle(NamedTuple):
    """Style of a family of roles: where its heads attend, its text in a cell, its place among the colours."""

    about: str
    short: str
    hue: int | None


def roles(
    table: pd.DataFrame | Study | str | Path,
    roles: Iterable[Role] = ROLES,
    *,
    thresholds: Mapping[str, float] | None = None,
    test: bool = False,
) -> pd.DataFrame:
    """Assign roles to heads by thresholds on their scores.

    Args:
        table: Study with scores, which then keeps the roles as its table `roles`. Or a table of `hr.score`, or its
            file.
        roles: The roles to assign.
        thresholds: Role name -> threshold, in place of the role's own.
        test: Whether to test each head and role, beside the threshold.

    Returns:
        For each variant of a role a bool column, `.value` (the score), `.margin` (how far it is above the threshold)
        and `.stability` (the share of bootstrap resamples in which the head has the role; NaN without resamples). With
        `test`, also `.p`, one-sided, that the score is not above the threshold in the population of sentences
        (`headroles.analysis.threshold_tests`), and `.holm` and `.bh`, corrected for all heads and variants of the role.

    Raises:
        ValueError: For a threshold of an unknown role, a missing baseline, and if the table has no role's columns, or
            with `test` no resamples.
        FileNotFoundError: If the study has no scores.

    Example:
        >>> import headroles as hr
        >>> index = hr.tables.frame.index({("enc-self", 0): 2})
        >>> scores = hr.tables.frame.table({"rarity": [0.2, 0.7]}, index, "made:by hand")
        >>> hr.roles(scores)["rare"].tolist()
        [False, True]
    """  # noqa: DOC502
    chosen, given = list(roles), thresholds or {}
    for name in given:
        one_of("role", name, sorted({role.name for role in chosen}))
    chosen = [replace(role, threshold=given.get(role.name, role.threshold)) for role in chosen]
    assigned = _assigned(as_table(table, "heads"), chosen, test=test)
    if (study := study_of(table)) is not None:
        study.save("roles", assigned)
    return assigned


def _assigned(table: pd.DataFrame, chosen: Sequence[Role], *, test: bool) -> pd.DataFrame:
    columns: dict[str, object] = {}
    signatures: dict[str, str] = {}
    for role in chosen:
        variants = list(role.variants(table.columns))
        declares = declaration("role", role.name, role).items()
        declares_more = frame.sign(**dict(item for item in declares if item not in KNOWN.items()))
        for variant, column in variants:
            if role.over and (baseline := column + role.over) not in table:
                raise ValueError(
                    f"role {role.name!r} needs column {baseline!r} beside {column!r}; score the corpus again"
                )
            draws, stability = resampled_holders(table, role, column), np.full(len(table), np.nan)
            if draws is not None:
                unknown = table[column].isna().to_numpy() | np.isnan(frame.resamples(table, {column})[column]).all(1)
                stability = np.where(unknown, np.nan, draws.mean(1))
            new = {"": holders(table, role, column), ".value": table[column], ".margin": _margin(table, role, column)}
            new = {f"{variant}{end}": values for end, values in {**new, ".stability": stability}.items()}
            text = "|".join(filter(None, (frame.provenance(table, column), f"role:{role}", declares_more)))
            signatures |= dict.fromkeys(new, text)
            columns |= new
        if test and variants:
            p = tested(table, variants, role.threshold, role.over)
            signatures |= {name: f"{signatures[str(Column.parse(name).base)]}|test:one-sided" for name in p}
            columns |= p
    if not columns:
        expected = ", ".join(role.column for role in chosen)
        raise ValueError(f"table must have columns of roles, {expected}, got {', '.join(table.columns)}")
    return frame.table(columns, frame.rows(table), signatures)


def assignable(table: pd.DataFrame, roles: Iterable[Role] = ROLES) -> bool:
    """Return whether the table has a column of any of the roles."""
    return any(True for role in roles for _ in role.variants(table.columns))


def margins(table: pd.DataFrame, names: Iterable[str] = SPECIAL) -> pd.Series[float]:
    """Compute how far each head is above (or below) the threshold of its nearest role among `names`."""
    wanted = sorted({*names})
    chosen = [role for role in ROLES if role.name in wanted]
    columns = [_margin(table, role, column) for role in chosen for _, column in role.variants(table.columns)]
    if not columns:
        raise ValueError(f"table must have columns of {', '.join(wanted)}, got {', '.join(table.columns)}")
    return pd.concat(columns, axis=1).max(axis=1).rename("margin")


def held(roles: pd.DataFrame) -> pd.DataFrame:
    """List the roles that heads hold: kind, layer, head, role, value, stability; heads in the table's order."""
    roles_of = names(roles)
    rows, columns = np.nonzero(roles[roles_of].to_numpy(dtype=bool))
    holders = roles.index[rows].to_frame(index=False)
    holders["role"] = np.array(roles_of, dtype=object)[columns]
    for part in ("value", "stability"):
        holders[part] = roles[[f"{name}.{part}" for name in roles_of]].to_numpy(dtype=float)[rows, columns]
    return holders


def listed(roles: pd.DataFrame, text: Callable[[str], str] | None = None) -> pd.DataFrame:
    """List roles as `held`, with `text`, shared by roles that are shown as one: as sure as the surest of them."""
    rows = held(roles)
    rows["family"] = [Column.parse(role).name for role in rows["role"]]
    is_sink = rows["family"].isin(SINKS)  # the first token is often a special one
    rows["text"] = rows["role"].mask(is_sink, rows["family"]) if text is None else [*map(text, rows["role"])]
    one_role = [rows[name] for name in (*frame.LEVELS, "family", "text")]
    rows["unsure"] = (rows["stability"] < STABLE).groupby(one_role, observed=True).transform("all")
    return rows


def by_head(roles: pd.DataFrame) -> pd.Series[str]:
    """List the roles of each head that has any, in a column to print: L0H2, positional[-1].

    Args:
        roles: A table of `roles`.

    Returns:
        Names of roles joined by commas, by the names of heads.

    Example:
        >>> index = hr.tables.frame.index({("enc-self", 0): 2})
        >>> scores = hr.tables.frame.table({"rarity": [0.2, 0.7]}, index, "made:by hand")
        >>> hr.analysis.by_head(hr.roles(scores)).to_dict()
        {'L0H1': 'rare'}
    """
    rows, one_kind = listed(prefer_nosink_roles(roles)), roles.index.unique("kind").size < 2
    rows = rows.drop_duplicates([*frame.LEVELS, "text"])
    heads = [frame.spelled(*head, one_kind=one_kind) for head in rows[frame.LEVELS].itertuples(index=False)]
    return rows["text"].groupby(pd.Index(heads, name="head"), sort=False).agg(", ".join)


def prefer_nosink_roles(roles: pd.DataFrame) -> pd.DataFrame:
    """Return roles as maps and lists show them: a role without the sink replaces the same role with it."""
    columns = {name: Column.parse(name) for name in map(str, roles)}
    renamed = {name: str(column.plain) for name, column in columns.items() if column.variant == "nosink"}
    kept = [name for name in columns if name not in renamed.values()]
    shown = roles[kept].rename(columns=renamed)
    signatures = roles.attrs.get("signatures", {})
    shown.attrs["signatures"] = {renamed.get(name, name): signatures[name] for name in kept if name in signatures}
    return shown


def families(roles: pd.DataFrame) -> dict[str, list[str]]:
    """Return the variants of each role of a role table; raise ValueError for another table."""
    if not isinstance(roles, pd.DataFrame) or not names(roles):
        raise ValueError("not a table of roles: expected columns .stability; make it with hr.roles(heads)")
    variants: dict[str, list[str]] = {}
    for name in names(roles):
        variants.setdefault(Column.parse(name).name, []).append(name)
    return variants


def role_style(family: str, *tables: pd.DataFrame) -> RoleStyle:
    """Return how a family of roles is drawn, by `ROLES` or by declarations in the signatures of tables."""
    plain = str(Column.parse(family).plain)
    texts = [frame.sign(**KNOWN), *(text for table in tables for text in table.attrs.get("signatures", {}).values())]
    known = {key: value for text in dict.fromkeys(texts) for key, value in declared("role", plain, text).items()}
    hue = known.get("hue") if plain == family else None  # by norms, it has another colour
    return RoleStyle(known.get("about", ""), known.get("short", plain), None if hue is None else int(hue))


def names(roles: pd.DataFrame) -> list[str]:
    """Return the variants of roles in a role table."""
    return with_suffix(roles.columns, "stability")


def _margin(table: pd.DataFrame, role: Role, column: str) -> pd.Series[float]:
    """Compute how far a column is above the role's threshold."""
    margin: pd.Series[float] = table[column] - (table[column + role.over] if role.over else 0.0) - role.threshold
    return margin


def holders(table: pd.DataFrame, role: Role, column: str) -> npt.NDArray[np.bool_]:
    """Return which heads have a role by a column: [heads]."""
    baseline = table[column + role.over].to_numpy() if role.over else 0.0
    return role.holds(table[column].to_numpy(), baseline)


def resampled_holders(table: pd.DataFrame, role: Role, column: str) -> npt.NDArray[np.bool_] | None:
    """Return which heads have a role in each resample, [heads, resamples]; None without resamples of the column."""
    draws = frame.resamples_of(table, column, role.over)
    return None if draws is None else role.holds(draws, 0.0, rounding=COARSE)
