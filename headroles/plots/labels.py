"""Columns in words: group, short label, and a sentence with unit and direction (no torch)."""

from __future__ import annotations

import re
from typing import NamedTuple

from headroles.plots.styling import NAMES, harm, metric_name
from headroles.tables.frame import NORM, metric_of

LOOKS, FINDS, MATTERS = "Where it looks", "What it finds", "Does it matter"
UNITS = {
    "rest": "all other heads of its layer are ablated",
    "layer": "its whole layer is ablated",
    "kind": "all heads of its kind are ablated",
}
SIDES = {"enc-self": "encoder", "dec-self": "decoder", "cross": "cross-attention"}  # kinds, in a few letters
STRATEGIES = {"l0": "L0", "exactly": "subset selection"}
RELATIONS = {"nsubj": "subject", "obj": "object", "amod": "adjective", "advmod": "adverb"}


class Words(NamedTuple):
    """Group, short label and description of a column."""

    group: str
    label: str
    about: str


_PLAIN = (
    (LOOKS, "confidence", "confidence", "Mean largest weight on a content token, 0 to 1. Larger: sharper."),
    (LOOKS, "entropy", "entropy", "Entropy of the attention distribution, in nats. Smaller: sharper."),
    (LOOKS, "distance", "distance", "Mean distance in tokens from query to key. Larger: farther away."),
    (LOOKS, "sink[special]", "on special tokens", "Share of the weight on special tokens, 0 to 1."),
    (LOOKS, "sink[first]", "on the first token", "Share of the weight on the first token, 0 to 1."),
    (LOOKS, "position[best]", "best offset, share",
     "Share of tokens that look at the head's best fixed offset most, 0 to 1. From 0.90 at −1 or +1 it is a role."),
    (LOOKS, "position[offset]", "best offset, tokens", "That offset, in tokens; negative: before."),
    (FINDS, "rarity", "rarest token",
     "Share of tokens with the largest weight on the sentence's rarest token, 0 to 1. Above 0.50 it is a role."),
    (FINDS, "alignment[monotone]", "monotone alignment",
     "Kendall's tau of target and source places: 1 walks forward through the source, 0 stands still or jumps. "
     "From 0.50 it is a role."),
    (FINDS, "alignment[diagonal]", "on the diagonal",
     "Share of target tokens that look within one token of the diagonal, 0 to 1; in short sentences chance helps."),
    (FINDS, "induction", "induction",
     "Weight on what followed the same token before, 0 to 1; random tokens come twice. Above 0.50 it is a role."),
    (FINDS, "duplicate", "the same token",
     "Weight on the same token before, 0 to 1; random tokens come twice. Above 0.50 it is a role."),
    (FINDS, "retrieval", "retrieval",
     "Share of a needle's tokens with the largest weight on their first occurrence, 0 to 1. Above 0.10 it is a role."),
    (LOOKS, "previous", "the token before", "Mean weight on the token before, 0 to 1."),
    (MATTERS, "importance", "importance",
     "Mean absolute gradient of the loss at the head's gate. Larger: matters more, to first order."),
)  # fmt: skip
PLAIN = {column: Words(group, label, about) for group, column, label, about in _PLAIN}


def words(column: str) -> Words:
    """Return label and description of a column; of an unknown column only its name."""
    if column in PLAIN:
        return PLAIN[column]
    if NORM in column:
        plain = words(column.replace(NORM, "", 1))
        return Words(plain.group, f"{plain.label}, by norm", f"{plain.about} By norms of what the head really moves.")
    name, _, rest = column.partition("[")
    detail, _, end = rest.partition("]")
    makers = {"position": _position, "syntax": _syntax, "relevance": _relevance, "attribution": _attribution}
    makers |= {"direct": _direct, "shapley": _shapley, "gating": _gating}
    if name == "ablation":
        return _ablation(detail)
    return makers[name](detail, end) if name in makers and detail else Words(FINDS, column, "")


def label_of(column: object) -> str:
    """Return the label of a column or ranking on an axis: `relevance[cp].size` is the size of relevance (cp)."""
    name = str(column)
    if name.startswith("-"):
        return f"−{label_of(name[1:])}"
    if name.endswith(", again"):
        return f"{label_of(name.removesuffix(', again'))}, recomputed"
    kind, by, ranking = name.partition(" by ")
    if by and kind in SIDES:
        return f"{SIDES[kind]}, by {label_of(ranking)}"
    if pruned := re.fullmatch(r"survival\[(.+?) (\d+)( .+)?\]", name):
        return f"survival at {pruned[2]} heads ({strategy_label(pruned[1] + (pruned[3] or ''))})"
    if share := re.fullmatch(r"survival\[(\d+)\]", name):  # over seeds of gates
        return f"survival at {share[1]} heads"
    match = re.fullmatch(r"(relevance|attribution)\[(.*?)( logit)?\](.*)", name)
    if match is None:
        return STRATEGIES.get(name) or words(name).label
    quantity, detail, of_whole, rest = match.groups()
    parts = [part for part in rest.split(".") if part]
    size, whole = "size of " * ("size" in parts), ["of the whole"] * bool(of_whole)
    return ", ".join([f"{size}{quantity} ({detail})", *whole, *(part for part in parts if part != "size")])


def strategy_label(name: str) -> str:
    """Return a pruning strategy and its kinds of heads in words: `l0 enc-self` is L0, encoder."""
    strategy, *kinds = re.split(r" (?=(?:enc-self|dec-self|cross)\b)", name)
    sides = (SIDES.get(kind, kind) for kind in re.split(r"[ ,+]+", " ".join(kinds)) if kind)
    return ", ".join([STRATEGIES.get(strategy, strategy), *sides])


def axis_label(signature: str) -> str:
    """Return the name of the metric in a signature."""
    return metric_name(metric_of(signature) or "value")


def _position(detail: str, _: str) -> Words:
    number = int(detail)
    way = "itself" if number == 0 else f"{abs(number)} {'before' if number < 0 else 'after'}"
    return Words(LOOKS, f"looks {way}", f"Share of tokens with the largest weight on the token {way}, 0 to 1.")


def _syntax(detail: str, _: str) -> Words:
    relation, _, way = detail.partition(" ")
    noun = RELATIONS.get(relation, relation)
    label = f"{noun} → its head" if way == "dep>head" else f"head → its {noun}"
    return Words(
        FINDS,
        label,
        f"How often the largest weight of the one word falls on the other ({relation} {way}), 0 to 1. From ten points "
        "over the best fixed offset (the baseline) it is a role.",
    )


def _relevance(detail: str, end: str) -> Words:
    rules, _, by = detail.partition(" ")
    of = "the target" if by == "logit" else "its layer"
    label = f"relevance, {rules}{' of the whole' if by == 'logit' else ''}{', size' if end == '.size' else ''}"
    size = "absolute share" if end == ".size" else "signed share"
    return Words(MATTERS, label, f"Mean {size} of the relevance of {of} that flows through the head, by rules {rules}.")


def _attribution(detail: str, end: str) -> Words:
    size = "Mean absolute attribution" if end == ".size" else "Mean attribution"
    label = f"{detail}{', size' if end == '.size' else ''}"
    return Words(MATTERS, label, f"{size} of the target to the head's mask, by captum's {detail}.")


def _direct(detail: str, end: str) -> Words:
    size = "Mean absolute" if end == ".size" else "Mean"
    label = f"writes to the {detail}{', size' if end == '.size' else ''}"
    return Words(MATTERS, label, f"{size} direct contribution to the logit of the target ({detail}), in logits.")


def _shapley(detail: str, _: str) -> Words:
    metric, *rest = detail.split(" ")
    label = f"Shapley value of {NAMES.get(metric, metric)}{''.join(f' ({word})' for word in rest)}"
    return Words(MATTERS, label, f"Mean change of {metric_name(metric)} when the head joins random others.")


def _gating(detail: str, _: str) -> Words:
    return Words(MATTERS, f"{detail} (gates)", f"Gates fitted with pressure up and down: {detail}, 0 to 1.")


def _ablation(detail: str) -> Words:
    metric, *unit = detail.split(" ")
    change = next((UNITS[word] for word in unit if word in UNITS), "the head is ablated")
    needed = "Larger" if harm(f"ablation[{metric}]") > 0 else "More negative"
    matters = "its layer loses more without the others" if "rest" in unit else "matters more"
    others = "".join(f" ({word})" for word in unit if word not in UNITS)
    label = f"effect on {NAMES.get(metric, metric)}{', kept alone' if 'rest' in unit else ''}{others}"
    return Words(MATTERS, label, f"Change of {metric_name(metric)} when {change}{others}. {needed}: {matters}.")
