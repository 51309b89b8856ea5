"""Columns in words: group, short label, and a sentence with unit and direction (no torch)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, cast

import pandas as pd

from headroles.analysis.role_rules import ROLES, SINKS
from headroles.analysis.role_rules import names as role_names
from headroles.tables import declared
from headroles.tables.columns import COST, Column, Pruning, ranked_by
from headroles.tables.declared import GROUPS, RELATIONS, SCORES, metric_of, quality, signature_of, title_of
from headroles.tables.frame import spelled

LOOKS, FINDS, MATTERS = GROUPS
UNITS = {
    "all_but_one": "all other heads of its layer are ablated",
    "group": "the heads that share its key-value head are ablated",
    "layer": "its whole layer is ablated",
    "kind": "all heads of its kind are ablated",
}
SIDES = {"enc-self": "encoder", "dec-self": "decoder", "cross": "cross-attention"}  # kinds, in a few letters
BY = {"norm": "by norm", "nosink": "without the sink"}
_VARIANTS = {
    "norm": "By norms of what the head really moves.",
    "nosink": "Special tokens and the first token are no keys; the rest of the weights is renormalised.",
}


class ColumnLabel(NamedTuple):
    """Group, short label and description of a column."""

    group: str
    label: str
    about: str


def column_label(text: str, signature: str = "") -> ColumnLabel:
    """Return label and description of a column: known, declared by a user's own score, or only the name."""
    if text in SCORES:
        return _with_role(text, ColumnLabel(*SCORES[text]))
    column = Column.parse(text)
    if column.variant:
        plain = column_label(str(column.plain), signature)
        return ColumnLabel(
            plain.group, f"{plain.label}, {BY[column.variant]}", f"{plain.about} {_VARIANTS[column.variant]}"
        )
    if column.name == "ablation":
        return _ablation(column, signature)
    if column.name in MAKERS and column.detail:
        return _with_role(text, MAKERS[column.name](column))
    given = declared.declared("score", column.name, signature)
    detail = f" [{column.detail}]" if column.detail else ""
    label = f"{given['title']}{detail}{f', {column.suffix}' if column.suffix else ''}" if "title" in given else text
    return ColumnLabel(MATTERS if "matters" in given else FINDS, label, given.get("about", ""))


def _with_role(column: str, label: ColumnLabel) -> ColumnLabel:
    """Add to the description the threshold from which a head has a role, by `ROLES`."""
    for role in ROLES:
        if any(role.variants([column])):
            least = f"{'Above' if role.strictly else 'From'} {role.threshold:.2f}"
            return label._replace(about=f"{label.about} {least}{' over the baseline' * bool(role.over)} it is a role.")
    return label


def label_of(column: object, signature: str = "") -> str:
    """Return the label of a column or ranking on an axis: `relevance[cp].size` is the size of relevance (cp)."""
    name, descending = ranked_by(str(column))
    if descending:
        return f"−{label_of(name, signature)}"
    ranking, recomputed, _ = name.partition(", again")
    if recomputed:
        return f"{label_of(ranking, signature)}, recomputed"
    kind, by, ranking = name.partition(" by ")
    if by and kind in SIDES:
        return f"{SIDES[kind]}, by {label_of(ranking, signature)}"
    part = Column.parse(name)
    if (pruning := part.pruning) and pruning.heads is not None and not part.suffix:
        how = strategy_label(pruning, signature)
        return f"survival at {pruning.heads} {pruning.unit}s" + (f" ({how})" if how else "")
    if part.name not in ("relevance", "attribution") or part.detail is None:
        return title_of(name, signature) or column_label(name, signature).label
    detail, ends = " ".join(word for word in part.words if word != "logit"), part.suffix.split(".")
    quantity = f"{'size of ' * ('size' in ends)}{part.name} ({detail})"
    of_model = ["of the whole"] * ("logit" in part.words)
    return ", ".join([quantity, *of_model, *(end for end in ends if end not in ("", "size"))])


def strategy_label(pruning: Pruning, signature: str = "") -> str:
    """Return a pruning strategy, the kinds of heads and the seed in words: `l0 12 enc-self` is by L0, encoder."""
    title = title_of(pruning.strategy, signature) or pruning.strategy
    seed = "" if pruning.seed is None else f"seed {pruning.seed}"
    return ", ".join(filter(None, [" ".join(filter(None, [title, seed])), *(SIDES[kind] for kind in pruning.kinds)]))


def unit_label(column: object, signature: str = "") -> str:
    """Return the unit of a column for a colour bar, in brackets: "(nats)", "(0 to 1)"; "" if it has none."""
    about = column_label(str(column), signature).about
    unit = re.search(r"[,(] ?(?:in )?(nats|bits|tokens|logits|[−0-9]+ to 1)\b", about)
    notes = ([unit[1]] if unit else []) + [COST] * (Column.parse(column).metric is not None)
    return f"({'; '.join(notes)})" if notes else ""


def direction(matters: str, outcome: object) -> str:
    """Describe which values of an outcome mean that a head matters more; effects are costs."""
    known = {"higher": "larger values matter more", "lower": "smaller values matter more"}
    if matters in known and Column.parse(outcome).metric is not None and unit_of(outcome) != "all_but_one":
        return f"as a cost: {COST}"
    return known.get(matters, "direction not known")


def unit_of(effect: object) -> str | None:
    """Return the unit of an effect of ablation, unless it is a single head: all_but_one, group, layer or kind."""
    return next((word for word in Column.parse(effect).words if word in UNITS), None)


def axis_label(signature: str) -> str:
    """Return the name of the metric in a signature, with its unit."""
    return str(quality(metric_of(signature) or "value", signature))


def value_label(table: pd.DataFrame) -> str:
    """Return the name of the metric in the column `value` of a table, with its unit."""
    return axis_label(signature_of(table, "value"))


def _position(column: Column) -> ColumnLabel:
    number = int(column.detail or 0)
    way = "itself" if number == 0 else f"{abs(number)} {'before' if number < 0 else 'after'}"
    label = f"looks {'at ' * (number == 0)}{way}"
    return ColumnLabel(LOOKS, label, f"Share of tokens with the largest weight on the token {way}, 0 to 1.")


def _syntax(column: Column) -> ColumnLabel:
    relation, way = [*column.words, ""][:2]
    return ColumnLabel(
        FINDS,
        relation_label(relation, way),
        f"How often the largest weight of the one word falls on the other ({relation} {way}), 0 to 1; baseline: the "
        "best fixed offset.",
    )


def relation_label(relation: str, way: str) -> str:
    """Return a dependency in words, from one word to the other; the governor is a verb, a noun, never a "head"."""
    noun, governor, *_ = RELATIONS.get(relation, (relation, "governor"))
    return f"{noun} → its {governor}" if way == "dep>head" else f"{governor} → its {noun}"


def role_label(role: str) -> str:
    """Return a role in words: the dependency of a syntactic one, the neighbour of a positional one."""
    column = Column.parse(role)
    if column.name == "syntactic" and len(column.words) == 2:
        return relation_label(*column.words)
    return {"positional[-1]": "previous token", "positional[+1]": "next token"}.get(role, role)


def nearest_role(roles: pd.DataFrame) -> str:
    """Name the head that is nearest to a role other than a sink, its score and the least one; "" if none is known."""
    names = [name for name in role_names(roles) if f"{name}.margin" in roles and Column.parse(name).name not in SINKS]
    margins = roles[[f"{name}.margin" for name in names]].set_axis(names, axis=1).stack().dropna()
    if margins.empty:
        return ""
    kind, layer, head, role = cast(tuple[str, int, int, str], margins.idxmax())
    value = float(roles[f"{role}.value"][kind, layer, head])
    place = spelled(kind, layer, head, one_kind=roles.index.unique("kind").size < 2)
    return f"nearest: {place}, {value:.2f} of {value - margins.max():.2f} for {role_label(role)}"


def _relevance(column: Column) -> ColumnLabel:
    rules, by = [*column.words, ""][:2]
    of = "the target" if by == "logit" else "its layer"
    label = f"relevance, {rules}{' of the whole' if by == 'logit' else ''}{_size(column)}"
    size = "absolute share" if _size(column) else "signed share"
    return ColumnLabel(
        MATTERS, label, f"Mean {size} of the relevance of {of} that flows through the head, by rules {rules}."
    )


def _attribution(column: Column) -> ColumnLabel:
    size = "Mean absolute attribution" if _size(column) else "Mean attribution"
    method, *unit = column.words
    label = f"{method}{', group' * bool(unit)}{_size(column)}"
    return ColumnLabel(MATTERS, label, f"{size} of the target to {_mask(unit)}, by captum's {method}.")


def _importance(column: Column) -> ColumnLabel:
    norm = ", over its l2 norm in the layer" if "layer" in column.words else ""
    about = f"Mean absolute gradient of the loss at {_mask(column.words)}{norm}. Larger: matters more, to first order."
    return ColumnLabel(MATTERS, f"importance, {column.detail}", about)


def _mask(words: list[str]) -> str:
    return "the mask of the heads that share its key-value head" if "group" in words else "the head's mask"


def _direct(column: Column) -> ColumnLabel:
    size = "Mean absolute" if _size(column) else "Mean"
    about = f"{size} direct contribution to the logit of the target ({column.detail}), in logits."
    return ColumnLabel(MATTERS, f"writes to the {column.detail}{_size(column)}", about)


def _size(column: Column) -> str:
    return ", size" if column.suffix == "size" else ""


def _shapley(column: Column) -> ColumnLabel:
    metric, *rest = column.words
    label = f"Shapley value of {quality(metric).title}{''.join(f' ({word})' for word in rest)}"
    return ColumnLabel(MATTERS, label, f"Mean change of {quality(metric)} when the head joins random others.")


MAKERS: dict[str, Callable[[Column], ColumnLabel]] = {
    **{"position": _position, "syntax": _syntax, "relevance": _relevance, "attribution": _attribution},
    **{"importance": _importance, "direct": _direct, "shapley": _shapley},
}


def _ablation(column: Column, signature: str) -> ColumnLabel:
    metric, *rest = column.words or [""]
    known, unit = quality(metric, signature), unit_of(column)
    change = "the head is ablated" if unit is None else UNITS[unit]
    matters = "its layer loses more without the others" if unit == "all_but_one" else "matters more"
    options = "".join(f" ({word})" for word in rest if word not in UNITS)
    what = "" if unit is None else ", kept alone" if unit == "all_but_one" else f" of its {unit}"
    label = f"effect on {known.title}{what}{options}"
    return ColumnLabel(MATTERS, label, f"Cost in {known} when {change}{options}: {COST}. Larger: {matters}.")
