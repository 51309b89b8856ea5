"""Declarations, each made once: titles, units, directions and texts of scores, metrics, strategies (no torch).

Classes, figures, the report and the command line read them here; roles are declared in `analysis.role_rules.ROLES`.
A user's class declares by class attributes, which the signatures of its columns carry: figures, reports and relations
of a stored table show them as well. Signatures also say which heads share keys and values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from headroles.tables.columns import Column, without_ends
from headroles.tables.frame import fields, sign

if TYPE_CHECKING:
    import pandas as pd

What = Literal["metric", "score", "role", "ranking"]
Rows = TypeVar("Rows", "pd.DataFrame", "pd.Series[Any]")
DECLARES: dict[What, tuple[str, ...]] = {
    "metric": ("better", "title", "unit"),
    "score": ("title", "about", "matters"),
    "role": ("about", "short", "hue"),
    "ranking": ("title",),
}
GROUPS = LOOKS, FINDS, MATTERS = "Where it looks", "What it finds", "Does it matter"
SCORES = {  # column of a built-in score -> group, short label, description
    "confidence": (LOOKS, "confidence", "Mean largest weight on a content token, 0 to 1. Larger: sharper."),
    "entropy": (LOOKS, "entropy", "Entropy of the attention distribution, in nats. Smaller: sharper."),
    "distance": (LOOKS, "distance", "Mean distance in tokens from query to key. Larger: farther away."),
    "sink[special]": (LOOKS, "on special tokens", "Share of the weight on special tokens, 0 to 1."),
    "sink[first]": (LOOKS, "on the first token", "Share of the weight on the first token, 0 to 1."),
    "resting": (LOOKS, "rests on the sink",
        "Share of tokens with next to none of their weight off special tokens and the first token, 0 to 1."),
    "position[best]": (LOOKS, "best offset, share",
        "Share of tokens that look at the head's best fixed offset most, 0 to 1."),
    "position[offset]": (LOOKS, "best offset, tokens", "That offset, in tokens; negative: before."),
    "rarity": (FINDS, "rarest token",
        "Share of tokens with the largest weight on the sentence's rarest token, 0 to 1."),
    "alignment[monotone]": (FINDS, "monotone alignment",
        "Kendall's tau of target and source places: 1 walks forward through the source, 0 stands still or jumps."),
    "alignment[diagonal]": (FINDS, "on the diagonal",
        "Share of target tokens that look within one token of the diagonal, 0 to 1; in short sentences chance helps."),
    "links": (FINDS, "linked words",
        "Share of linked target tokens that look most at a source word linked with theirs, 0 to 1; baseline: the "
        "diagonal."),
    "links[next]": (FINDS, "words linked next",
        "As linked words, for the word that comes next, 0 to 1."),
    "induction": (FINDS, "induction",
        "Weight on what followed the same token before, 0 to 1; random tokens come twice."),
    "duplicate": (FINDS, "the same token", "Weight on the same token before, 0 to 1; random tokens come twice."),
    "retrieval": (FINDS, "retrieval",
        "Share of a needle's tokens with the largest weight on their first occurrence, 0 to 1."),
    "passage": (FINDS, "where the question looks",
        "Weight of the question's tokens on the passage that answers it, 0 to 1."),
    "contribution": (FINDS, "written into the answer",
        "What the head writes from the passage into the logits of the answer, less as much text elsewhere, in logits."),
    "previous": (LOOKS, "the token before", "Mean weight on the token before, 0 to 1."),
    "copying": (FINDS, "copying",
        "Sum of the eigenvalues of the head's circuit from tokens to logits over that of their sizes, −1 to 1. "
        "1 raises every token's own logit."),
    "succession": (FINDS, "succession", "Share of ordered words that the weights map to the next one, 0 to 1."),
    "importance": (MATTERS, "importance",
        "Mean absolute gradient of the loss at the head's gate. Larger: matters more, to first order."),
}  # fmt: skip
RELATIONS = {  # dependency -> dependent and governor, which is never called a "head", and their letters
    "nsubj": ("subject", "verb", "s", "v"),
    "obj": ("object", "verb", "o", "v"),
    "amod": ("adjective", "noun", "a", "n"),
    "advmod": ("adverb", "verb", "adv", "v"),
}


class Quality(NamedTuple):
    """Direction, name and unit of a metric."""

    better: int  # 1 if larger values are better, -1 if smaller ones are, 0 if not known
    title: str
    unit: str = ""

    def __str__(self) -> str:
        """Return the name with its unit: BLEU, loss (nats)."""
        return self.title + (f" ({self.unit})" if self.unit else "")


METRICS = {
    "loss": Quality(-1, "loss", "nats"),
    "perplexity": Quality(-1, "perplexity"),
    "agreement": Quality(1, "agreement with the intact model"),
    "accuracy": Quality(1, "accuracy"),
    "f1": Quality(1, "F1"),
    "matthews": Quality(1, "matthews"),
    "pearson": Quality(1, "Pearson's correlation"),
    "spearman": Quality(1, "Spearman's correlation"),
    "bleu": Quality(1, "BLEU"),
    "chrf": Quality(1, "chrF"),
    "wer": Quality(-1, "word error rate"),
    "pair_accuracy": Quality(1, "accuracy on minimal pairs"),
    "pair_difference": Quality(1, "difference of minimal pairs", "nats"),
}
OBJECTIVES = {name: Quality(1, name) for name in ("top", "reference", "class", "similarity")}  # their means
RELATED = ("difference", "median", "auc", "spearman", "within")  # of `hr.relate`
OF = "Of(objective="  # how the mean of an objective is written
LEARNED = {"l0": "L0"}  # strategies of pruning that learn gates -> their titles


def declaration(what: What, name: str, thing: object) -> dict[str, object]:
    """Return the declarations of a class or object as provenance fields, such as {"metric.mine.better": -1}."""
    values = {field: getattr(thing, field, None) for field in DECLARES[what]}
    return {f"{what}.{name}.{field}": value for field, value in values.items() if value not in (None, "")}


def declared(what: What, name: str, signature: str) -> dict[str, str]:
    """Return the declarations of a metric, score, role or ranking in a signature: {"better": "-1"}."""
    start = f"{what}.{name}."
    return {key.removeprefix(start): value for key, value in fields(signature) if key.startswith(start)}


def title_of(strategy: str, signature: str = "") -> str:
    """Return the title of a pruning strategy; "" if it has only a name."""
    return LEARNED.get(strategy) or declared("ranking", strategy, signature).get("title", "")


def carried(*tables: pd.DataFrame) -> str:
    """Return the declarations in the signatures of tables, for a table that is made of them; "" without any."""
    starts = tuple(f"{what}." for what in DECLARES)
    texts = {text: None for table in tables for text in table.attrs.get("signatures", {}).values()}
    return sign(**{key: value for text in texts for key, value in fields(text) if key.startswith(starts)})


def signature_of(table: pd.DataFrame | pd.Series, column: object) -> str:
    """Return the signature of a column, in its table or alone; "" without one."""
    signatures: dict[str, str] = table.attrs.get("signatures", {})
    return signatures.get(str(column), "")


def quality(metric: str, signature: str = "") -> Quality:
    """Return direction, name and unit of a metric: as declared in a signature, else in `METRICS`."""
    given = declared("metric", metric, signature)
    base, _, variant = metric.partition("-")  # bleu-zh is a variant of bleu
    if not given and metric in OBJECTIVES:
        return OBJECTIVES[metric]
    if given or base not in METRICS:
        return Quality(int(given.get("better", 0)), given.get("title", metric), given.get("unit", ""))
    return METRICS[base]._replace(title=f"{METRICS[base].title} ({variant})") if variant else METRICS[metric]


def metric_of(signature: str) -> str:
    """Return the metric that a signature names, such as "bleu"; "" if it names none."""
    parts = dict(fields(signature))
    name = parts.get("metric", "").removeprefix(OF).partition("(")[0].lower()
    declaring = (key.split(".")[1] for key in parts if key.startswith("metric.") and key.endswith(".better"))
    objective = next((known for known in OBJECTIVES if name.startswith(known)), name)  # ClassLogit is "class"
    return next(declaring, next((known for known in METRICS if known.replace("_", "") == name), objective))


def harm(column: object, signature: str = "") -> int:
    """Return the sign of harm in a column of effects, by default -1; 0 for other columns."""
    metric = Column.parse(column).metric
    return 0 if metric is None else -(quality(metric, signature).better or 1)


def costs(table: Rows) -> Rows:
    """Return a table or column with effects of ablation as costs: above 0 is harm by every metric.

    So they are printed and drawn; an effect in a table is the change of the metric. Other columns stay as they are.
    """
    import pandas as pd

    if isinstance(table, pd.Series):
        return 0 - table if harm(table.name, signature_of(table, table.name)) < 0 else table
    gains = [name for name in without_ends(table) if harm(name, signature_of(table, name)) < 0]
    return negated(table, [name for name in gains if not Column.parse(name).suffix])


def relation_costs(table: pd.DataFrame) -> pd.DataFrame:
    """Return relations of `hr.relate`, their effects of ablation as costs."""
    gains = table["outcome"].map(lambda outcome: harm(outcome, signature_of(table, "p")) < 0)
    shown = negated(table, [name for name in RELATED if name in table])
    shown.loc[:, shown.columns.str.startswith("auc")] += 1
    shown = shown.replace({"matters": {"higher": "lower", "lower": "higher"}})
    return shown.where(gains, table)


def negated(table: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """Return a table with columns negated, the ends of their intervals exchanged."""
    shown = table.copy()
    for name in columns:
        ends = {f"{name}.low": f"{name}.high", f"{name}.high": f"{name}.low"}
        for part, other in {name: name, **ends}.items():
            if part in table:
                shown[part] = 0 - table[other]  # no -0.0
    return shown


def group_sizes(table: pd.DataFrame | pd.Series[float]) -> list[int]:
    """Return how many query heads share the keys and values of each row, by its provenance; 0 where it is not known."""
    texts = table.attrs.get("signatures", {}).values()
    shared = next((value for text in texts for name, value in fields(text) if name == "shared"), "")
    pairs = (pair.partition("=") for pair in shared.split(","))
    by_kind = {kind: sizes.split(".") for kind, _, sizes in pairs}  # one size, or one for each layer
    rows = ((by_kind.get(kind, ["1"]), layer) for kind, layer, _ in table.index)
    return [int(sizes[layer if len(sizes) > 1 else 0]) for sizes, layer in rows]


def groups(table: pd.DataFrame | pd.Series[float]) -> pd.Series[int] | None:
    """Return the key-value group of each query head, in grouped-query and multi-query attention.

    Args:
        table: Table of `hr.score`, or a column of it. The group sizes are read from its provenance.

    Returns:
        Group number of each head, from 0 in each layer; None if no heads share keys and values.
    """
    import pandas as pd

    sizes = group_sizes(table)
    if max(sizes, default=1) <= 1:
        return None
    numbers = [head // (size or 1) for (_, _, head), size in zip(table.index, sizes, strict=True)]
    return pd.Series(numbers, index=table.index, name="group")
