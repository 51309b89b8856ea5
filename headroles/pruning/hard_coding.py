"""Hard-coded heads: pruned heads that attend by the pattern of their role instead of being removed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles._restoration import Block
from headroles.ablation.units import code
from headroles.analysis.role_rules import names
from headroles.data.corpus import Corpus
from headroles.models.head_model import HeadModel
from headroles.models.imposing import ByHead
from headroles.models.masking import Head, head_mask, mask_heads
from headroles.patterns.base import InForwards, Pattern
from headroles.patterns.of_roles import pattern_of
from headroles.tables import frame
from headroles.tables.columns import with_suffix
from headroles.tables.study import Study, study_at
from headroles.training import trainer
from headroles.training.hf_trainer import TrainOptions

Roles = pd.DataFrame | Mapping[Head, Pattern]
MARK = "hard_coded"  # suffix of the column that says which heads are

log = logging.getLogger(__name__)


def hard_code(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, table: pd.DataFrame, roles: Roles
) -> Block[None]:
    """Let hard-coded heads attend by their patterns within the block.

    No checkpoint holds a pattern: a model of `prune(..., substitute=roles)` is what it was trained to be in this block
    alone, after pruning as after loading it again. Special tokens are queries of no pattern, as in `test_roles`.

    Args:
        model: The model as `prune` left it, or as it was loaded.
        tokenizer: Its tokenizer.
        table: The table of `prune`, with one column `.hard_coded`.
        roles: The roles that `prune` was given: a table of `hr.roles`, or head -> pattern.

    Returns:
        A context manager.

    Raises:
        ValueError: If the table has no such column or several, or a head has no pattern.

    Example:
        >>> table = hr.prune(model, tokenizer, corpus, keep=0.5, substitute=roles)
        >>> with hr.hard_code(model, tokenizer, table, roles):
        ...     hr.evaluate(model, tokenizer, corpus)
    """
    handle = HeadModel(model, tokenizer)
    heads, known = marked(table), substitutes(handle, roles)
    if lacking := [head for head in heads if head not in known]:
        raise ValueError(
            f"no pattern for {':'.join(map(str, lacking[0]))}: got roles of other heads; expected those that were "
            f"given to prune"
        )
    return imposed(handle, {head: known[head] for head in heads})


def marked(table: pd.DataFrame) -> list[Head]:
    """Return the hard-coded heads of a table of survival; ValueError unless it has one column of them."""
    columns = with_suffix(table, MARK)
    if len(columns) != 1:
        raise ValueError(
            f"no table of hard-coded heads: got {len(columns)} columns .{MARK}; expected one, as of "
            f"hr.prune(..., substitute=roles)"
        )
    return [(*head,) for head in table.index[table[f"{columns[0]}.{MARK}"] == 1]]


def imposed(handle: HeadModel, patterns: Mapping[Head, Pattern]) -> Block[None]:
    """Impose patterns on heads within the block, in any forward; heads of one pattern share it."""
    bind = cache(lambda pattern: InForwards(pattern, handle.special))
    bound = {head: bind(pattern) for head, pattern in patterns.items()}
    return mask_heads(handle.model, head_mask(handle.model, bound), bound)


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    patterns: Mapping[Head, Pattern],
    folder: Path,
    options: TrainOptions,
) -> None:
    """Train a model in which the heads of `patterns` attend by them."""
    if not patterns:
        trainer.train(model, tokenizer, corpus, folder, **options)
        return
    with imposed(HeadModel(model, tokenizer), patterns):
        trainer.train(model, tokenizer, corpus, folder, **options, note=f"hard_coded:{digest(patterns)}")


def substitutes(handle: HeadModel, given: bool | Roles, study: Study | str | Path | None = None) -> dict[Head, Pattern]:
    """Return the pattern of each head that can be hard-coded: its first that token ids alone determine."""
    if given is False:
        return {}
    if given is True:
        if study is None or not study_at(study).has("roles"):
            raise ValueError(
                "no roles to substitute: got substitute=True without roles in a study; expected a study with them, or "
                "substitute=hr.roles(...)"
            )
        given = study_at(study).load("roles")
    patterns: dict[Head, Pattern] = {}
    others: set[Head] = set()
    for head, pattern in _pairs(handle, given):
        if pattern is None or pattern.needs:
            others.add(head)
        else:
            patterns.setdefault(head, pattern)
    if others - {*patterns}:
        log.warning(
            "%d heads have roles that cannot be hard-coded: a forward has neither trees, word links nor counts; they "
            "are removed if they are pruned",
            len(others - {*patterns}),
        )
    sites = {site.key: site for site in handle.sites}
    for head, pattern in patterns.items():
        pattern.check(sites[head[:2]])
    return patterns


def _pairs(handle: HeadModel, roles: Roles) -> list[tuple[Head, Pattern | None]]:
    """Return each head with a role, and its pattern."""
    if not isinstance(roles, pd.DataFrame):
        return [*zip(handle.named_heads(roles), roles.values(), strict=True)]
    return [((*head,), pattern_of(role)) for role in names(roles) for head in roles.index[roles[role].to_numpy(bool)]]


def mark(
    table: pd.DataFrame, label: str, patterns: Mapping[Head, Pattern], name: str, study: Study | None
) -> pd.DataFrame:
    """Add the column of hard-coded heads, 1 for pruned heads that have a pattern, also to the table in a study."""
    heads = [float(kept == 0 and head in patterns) for head, kept in table[label].items()]
    signatures = table.attrs["signatures"]
    table = table.assign(**{f"{label}.{MARK}": heads})
    texts = {f"{label}.{MARK}": f"{signatures[label]}|{frame.sign(patterns=digest(patterns))}"}
    table.attrs["signatures"] = signatures | texts
    if study is not None:
        study.save(name, table, joined=("survival",))
    return table


def digest(patterns: Mapping[Head, Pattern]) -> str:
    """Return a digest of patterns and their heads."""
    return code(ByHead(patterns))["pattern"]
