"""Role tests: what a head costs under the pattern of its role alone, beside its removal and other patterns."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headroles.ablation.example_stats import ExampleStats, HeadSet, written
from headroles.ablation.metrics import Metric, as_metric
from headroles.ablation.significance import p_values, warn_of_few
from headroles.ablation.sweep import Options, Sweep
from headroles.ablation.units import AblationReplacement, code
from headroles.analysis.intervals import Array, bounds, holm
from headroles.analysis.role_rules import VERDICTS, names
from headroles.data.corpus import Corpus, CorpusLike
from headroles.data.readers import as_corpus
from headroles.models.head_model import HeadModel, Model
from headroles.models.masking import Head
from headroles.models.replacements import ByHead
from headroles.patterns.base import Pattern, Place, count_applications
from headroles.patterns.controls import Absent, Shift, Shuffle
from headroles.patterns.of_roles import pattern_of
from headroles.tables import frame
from headroles.tables.study import Study, as_study, kept

log = logging.getLogger(__name__)
ALPHA = 0.05  # of each verdict, by Holm over the rows
RIVALS = {  # column -> test of own against it
    "removed": "role_pattern",
    "mean": "mean",
    "uniform": "uniform",
    "wrong": "wrong",
    "removed_local": "removed_local",
}
LEAST = 10  # texts with a token to which the pattern applies; an interval of fewer is of chance
NEGLIGIBLE = 1e-4  # of the metric: with many tokens, less is significant even in a model with random weights
WHOLE = 0.5  # least share of the cost that a pattern saves, and of tokens to which it applies, for the whole of a role


def test_roles(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    roles: pd.DataFrame | Mapping[Head | str, Pattern | Sequence[Pattern]],
    *,
    metric: str | Metric = "loss",  # noqa: PT028
    alone: Iterable[Head | str] | str | None = None,  # noqa: PT028
    patterns: Mapping[str, Pattern] | None = None,  # noqa: PT028
    n_resamples: int = 1000,  # noqa: PT028
    seed: int = 0,  # noqa: PT028
    max_tokens: int = 4096,  # noqa: PT028
    study: Study | str | Path | None = None,  # noqa: PT028
) -> pd.DataFrame:
    """Test roles by imposing their patterns on heads, beside removal and controls.

    Each head attends by the pattern of its role, with the model's own values, and as by itself where the pattern does
    not apply. What that costs is compared with removing the head and with three patterns that are as sharp elsewhere:
    its targets one token earlier, one token later, and at random places. Cost is the change of the metric towards
    worse. All heads of a role together, and all heads with a role, are tested as well.

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: Other examples than those on which the roles were assigned.
        roles: Table of `hr.roles`, or head -> pattern or patterns, heads as in `head_mask`. Roles without a pattern
            are left out.
        metric: Name of a metric or objective; "agreement" for an encoder without a task:
            the cosine of its states with those of the intact model.
        alone: Heads that are tested one by one; by default all that have a role. (kind, layer, head) each, or in
            writing as in `head_mask`. Sets have all heads whatever is tested alone: a language model has hundreds of
            sinks, of which a few one by one and all together are a quick test.
        patterns: Role name -> pattern, of roles of your own.
        n_resamples: Bootstrap resamples of the examples, the same for all variants; at least 2.
        seed: Seed of the resamples and of the random places.
        max_tokens: Tokens in one forward pass, which up to eight variants of the model share.
        study: Study or folder that keeps the table as `role-tests-METRIC`; if it has it, nothing is computed. It keeps
            finished batches too: an interrupted run continues after them.

    Returns:
        A table with a row per head and role, and per set of heads, index `(heads, role)`. Each cost has `.low` and
        `.high`, its 95 % interval.

        - removed, mean, uniform: cost of zero, of the mean over the corpus, of uniform attention.
        - own: cost of the pattern of the role; wrong: mean cost of the three controls.
        - there: cost of zero at the tokens to which the pattern applies, and of nothing elsewhere.
        - explained: 1 - own / removed; NaN where removing costs nothing, or less than a ten-thousandth of the metric.
        - p.removed, p.own, p.mean, p.uniform, p.wrong, p.there: two-sided p of removed = 0, and of own = removed, mean,
          uniform, wrong and there; `.holm`, over all rows.
        - applies: share of the content tokens to which the pattern applies; elsewhere the head attends as by itself.
          Mean over the heads of a set; NaN for a pattern made of the heads' own weights.
        - tokens: number of these tokens, mean over the heads of a set; texts: number of texts that have one.
        - verdict: one of `VERDICTS`, by Holm's p below 0.05. A role is what a head does if its pattern costs less than
          removal (also there alone), the mean, uniform attention and the controls, explains at least half, and applies
          to at least half of the tokens; a part if one of the last two is less, or not sure. A head does something else
          if less than half is explained for sure, or one of the others costs less: heads of an untrained model, for
          which uniform attention changes next to nothing. What no test shows is undecided. Of fewer than 10 texts
          there is no verdict but "too few places", whatever the tests show. A head has no measurable effect
          if its removal shows no cost, also before Holm's correction, or one below a ten-thousandth of the metric's
          value, however sure that is. With "agreement" any removal surely costs something, since it can only fall.

    Raises:
        ValueError: If no role has a pattern, a head of `alone` has no such role, or a pattern does not fit its head.
    """  # noqa: DOC502
    handle, chosen = HeadModel.of(model, tokenizer, allow_sharded=True), as_metric(metric)
    named = None if alone is None else handle.named_heads(alone)
    if isinstance(roles, pd.DataFrame):
        assigned = _assigned(roles, patterns or {}, named)
    else:
        assigned = _assigned(dict(zip(handle.named_heads(roles), roles.values(), strict=True)), patterns or {}, named)
    for heads in assigned:
        handle.named_heads([head for head, _ in heads.members])
    folder = None if study is None else as_study(study).work / ".sweeps"
    options: Options = {"max_tokens": max_tokens, "folder": folder}
    test = _Test(handle, as_corpus(corpus), chosen, assigned, n_resamples, seed, options)
    test.check()
    test.warn_of_the_same_examples(roles)
    table = kept(study, f"role-tests-{chosen.name}", lambda: test.key, test.table)
    warn_of_few(table)
    return table


test_roles.__test__ = False  # type: ignore[attr-defined]  # it is no test of pytest's


@dataclass(frozen=True)
class Row:
    """One row of the table: heads that attend by their patterns together."""

    role: str
    members: tuple[tuple[Head, Pattern], ...]

    @property
    def heads(self) -> HeadSet:
        """The heads."""
        return frozenset(head for head, _ in self.members)


def _assigned(
    roles: pd.DataFrame | Mapping[Head, Pattern | Sequence[Pattern]],
    patterns: Mapping[str, Pattern],
    alone: Collection[Head] | None,
) -> list[Row]:
    """Return a row for each head of `alone` and pattern, for all heads of each role, and for all heads with a role."""
    pairs = _pairs(roles, patterns)
    first = {head: (head, pattern) for _, head, pattern in reversed(pairs)}
    if not pairs:
        raise ValueError("no role to test: got no head that has a role with a pattern; try other roles or thresholds")
    if missing := [head for head in alone or () if head not in first]:
        raise ValueError(
            f"no role to test of heads alone: got {written(frozenset(missing))} without a role that has a pattern; "
            f"expected heads of the roles, such as {written(frozenset([pairs[0][1]]))}"
        )
    rows = [Row(role, ((head, pattern),)) for role, head, pattern in pairs if alone is None or head in alone]
    for role in dict.fromkeys(role for role, _, _ in pairs):
        members = tuple((head, pattern) for name, head, pattern in pairs if name == role)
        rows += [Row(role, members)] if len(members) > 1 else []
    everything = Row("all", tuple(first.values()))
    return rows if any(row.heads == everything.heads for row in rows) else [*rows, everything]


def _pairs(
    roles: pd.DataFrame | Mapping[Head, Pattern | Sequence[Pattern]], patterns: Mapping[str, Pattern]
) -> list[tuple[str, Head, Pattern]]:
    """Return every role that has a pattern, with its heads."""
    if isinstance(roles, pd.DataFrame):
        by_role = {role: patterns.get(role) or pattern_of(role) for role in names(roles)}
        return [
            (role, (*head,), pattern)
            for role, pattern in by_role.items()
            if pattern is not None
            for head in roles.index[roles[role].to_numpy(bool)]
        ]
    return [
        (pattern.label, (*head,), pattern)
        for head, given in roles.items()
        for pattern in ([given] if isinstance(given, Pattern) else given)
    ]


@dataclass(frozen=True)
class _Test:
    """The sweeps of all rows, one for each replacement, and the table that follows from them."""

    model: HeadModel
    corpus: Corpus
    metric: Metric
    rows: Sequence[Row]
    n_resamples: int
    seed: int
    options: Options

    @property
    def key(self) -> str:
        """Cache key."""
        listed = [(row.role, code(ByHead(dict(row.members)))) for row in self.rows]
        return self._sweep("zero").cache_key(rows=repr(listed), resamples=self.n_resamples, seed=self.seed)

    def check(self) -> None:
        """Raise ValueError, before anything is measured, if a pattern does not fit its head or the corpus."""
        heads: dict[Pattern, set[Head]] = {}
        for row in self.rows:
            for head, pattern in row.members:
                heads.setdefault(pattern, set()).add(head)
        for pattern, those in heads.items():
            self._sweep(pattern).check([frozenset(those)])

    def warn_of_the_same_examples(self, roles: object) -> None:
        """Warn of roles that were assigned on the examples on which they are tested."""
        texts = roles.attrs.get("signatures", {}) if isinstance(roles, pd.DataFrame) else {}
        tested = dict(frame.fields(self._sweep("zero").signature)).get("text")
        if tested and any(dict(frame.fields(text)).get("text") == tested for text in texts.values()):
            log.warning(
                "roles are tested on the corpus on which they were assigned: got %s; expected other examples, since "
                "heads are chosen by what they do on these",
                self.corpus.name,
            )

    def _sweep(self, replacement: AblationReplacement) -> Sweep:
        return Sweep(self.model, self.corpus, self.metric, replacement=replacement, seed=self.seed, **self.options)

    def _variants(self, replacement: AblationReplacement) -> dict[HeadSet, Array]:
        """Return the statistics of every row under one replacement of all heads."""
        return self._sweep(replacement).run(list(dict.fromkeys(row.heads for row in self.rows))).masked

    def _imposed(self, patterns: Sequence[Mapping[Head, Pattern]]) -> list[Array]:
        """Return the statistics of every row under patterns of its own: [row][example, statistic].

        Rows of heads with the same patterns run together; a head with two roles needs two sweeps.
        """
        statistics: list[Array | None] = [None] * len(patterns)
        while left := [place for place, row in enumerate(statistics) if row is None]:
            merged: dict[Head, Pattern] = {}
            now = []
            for place in left:
                if all(merged.get(head, pattern) == pattern for head, pattern in patterns[place].items()):
                    merged |= patterns[place]
                    now.append(place)
            masked = (
                self._sweep(ByHead(merged)).run(list(dict.fromkeys(self.rows[place].heads for place in now))).masked
            )
            for place in now:
                statistics[place] = masked[self.rows[place].heads]
        return [row for row in statistics if row is not None]

    @cached_property
    def _base(self) -> ExampleStats:
        """The intact model and the removal of every row."""
        return self._sweep("zero").run(list(dict.fromkeys(row.heads for row in self.rows)))

    def table(self) -> pd.DataFrame:
        """Compute the table."""
        removed = [self._base.masked[row.heads] for row in self.rows]
        others = {"mean": self._variants("mean"), "uniform": self._variants("uniform")}
        imposed = self._imposed([dict(row.members) for row in self.rows])
        wrong = [
            self._imposed([{head: control(pattern) for head, pattern in row.members} for row in self.rows])
            for control in (lambda p: Shift(p, -1), lambda p: Shift(p, 1), lambda p: Shuffle(p, self.seed))
        ]
        parts: dict[str, list[list[Array]]] = {"removed": [removed]}
        parts |= {word: [[masked[row.heads] for row in self.rows]] for word, masked in others.items()}
        there = self._imposed([{head: Absent(pattern) for head, pattern in row.members} for row in self.rows])
        parts |= {"role_pattern": [imposed], "wrong": wrong, "removed_local": [there]}
        draws = {name: np.mean([self._cost(part) for part in listed], axis=0) for name, listed in parts.items()}
        columns: dict[str, Array] = {}
        for name, cost in draws.items():
            low, high = bounds(cost[:, 1:])
            columns |= {name: cost[:, 0], f"{name}.low": low, f"{name}.high": high}
        columns |= self._tests(parts, draws)
        intact = float(self.metric.compute(self._base.intact.sum(0)))
        least = NEGLIGIBLE * abs(intact)
        columns |= _explained(draws["removed"], draws["role_pattern"], columns["p.removed.holm"], least)
        table = pd.DataFrame(columns, index=self._index())
        table["applies"], table["tokens"], table["texts"] = self._coverage()
        table["verdict"] = [_verdict(row, least) for _, row in table.iterrows()]
        patterns = dict.fromkeys(repr(pattern) for row in self.rows for _, pattern in row.members)
        fields = frame.sign(
            intact=f"{intact:.6g}",
            patterns=";".join(patterns),
            controls="-1,+1,shuffled,absent",
        )
        text = f"{self._base.signature}|{fields}|{frame.sign(resamples=self.n_resamples, seed=self.seed)}"
        return frame.signed(table, text)

    def _coverage(self) -> Array:
        """Return to what share of the tokens, to how many, and in how many texts patterns apply: [3, row]."""
        counts: dict[Place, list[Tensor]] = {}  # of each batch [its tokens, all tokens] by text
        members = {member for row in self.rows for member in row.members if "weights" not in member[1].needs}
        for needs in {pattern.needs for _, pattern in members}:  # patterns of the same needs have the same batches
            heads: dict[Place, Head] = {
                (head[:2], pattern): head for head, pattern in members if pattern.needs == needs
            }
            sweep = self._sweep(next(pattern for _, pattern in heads))
            with self.model.evaluating(), torch.no_grad():
                for batch in sweep.batches:
                    for place, numbers in count_applications(self.model, heads, batch, sweep.counted).items():
                        counts.setdefault(place, []).append(numbers)
        extents = {place: torch.cat(parts, dim=1).cpu().numpy() for place, parts in counts.items()}
        return np.transpose([_extent([extents.get((head[:2], p)) for head, p in row.members]) for row in self.rows])

    def _cost(self, statistics: Sequence[Array]) -> Array:
        """Return the change of the metric towards worse, and its resamples: [row, 1 + resample]."""
        values = self._base.resampled([self._base.intact, *statistics], self.n_resamples, self.seed)
        return np.asarray(-self.metric.better * (values[1:] - values[:1]))

    def _tests(self, parts: Mapping[str, Sequence[Sequence[Array]]], draws: Mapping[str, Array]) -> dict[str, Array]:
        """Compute p of removed = 0 and of own = each rival, with Holm's correction over the rows."""
        means = {name: list(np.mean(listed, axis=0)) for name, listed in parts.items()}  # of the controls: one row each
        intact = [self._base.intact] * len(self.rows)
        p = {"removed": self._p(intact, means["removed"], draws["removed"])}
        p |= {
            test: self._p(means["role_pattern"], means[rival], draws[rival] - draws["role_pattern"])
            for rival, test in RIVALS.items()
        }
        return {
            f"p.{name}{end}": values for name, row in p.items() for end, values in (("", row), (".holm", holm(row)))
        }

    def _p(self, bases: Sequence[Array], statistics: Sequence[Array], draws: Array) -> Array:
        """Return the two-sided p of equal values, by the paired test of ablations: [row]."""
        rows = (
            replace(self._base, intact=base, masked={frozenset(): row}).measured()
            for base, row in zip(bases, statistics, strict=True)
        )
        return np.array([p_values(row, draw[None, 1:])[0] for row, draw in zip(rows, draws, strict=True)])

    def _index(self) -> pd.MultiIndex:
        names = [written(row.heads) if len(row.members) == 1 else f"all {len(row.members)}" for row in self.rows]
        return pd.MultiIndex.from_arrays([names, [row.role for row in self.rows]], names=["heads", "role"])


def _extent(counts: Sequence[Array | None]) -> tuple[float, float, float]:
    """Return the share of tokens and their number, mean over heads, and the texts with one for any head."""
    sizes = [row.sum(1) for row in counts if row is not None]
    if len(sizes) < len(counts):  # a pattern of the heads' own weights
        return np.nan, np.nan, np.nan
    texts = np.any([row[0] > 0 for row in counts if row is not None], axis=0).sum()
    return float(np.mean([few / every for few, every in sizes])), float(np.mean(sizes, axis=0)[0]), float(texts)


def _explained(removed: Array, imposed: Array, p: Array, least: float) -> dict[str, Array]:
    """Compute 1 - own / removed with its interval where removing costs something: NaN elsewhere."""
    matters = (p < ALPHA) & (removed[:, 0] > least)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(matters[:, None], 1 - imposed / removed, np.nan)
    low, high = bounds(shares[:, 1:])
    return {"explained": shares[:, 0], "explained.low": low, "explained.high": high}


def _verdict(row: pd.Series[float], least: float = 0.0) -> str:
    """Return the verdict of a row, one of `VERDICTS`; undecided if none of the others is shown.

    A head does not matter if removing it costs `least` or less. A cost that is shown before Holm only is undecided.
    """
    whole, part, other, nothing, undecided, few = VERDICTS
    if row["texts"] < LEAST:
        return few
    if not (row["p.removed"] < ALPHA and row["removed"] > least):
        return nothing
    if not row["p.removed.holm"] < ALPHA:
        return undecided
    differs = [(row[rival] - row["role_pattern"], row[f"p.{test}.holm"] < ALPHA) for rival, test in RIVALS.items()]
    if all(saved > 0 and is_sure for saved, is_sure in differs):
        return whole if row["explained.low"] >= WHOLE and not row["applies"] < WHOLE else part
    if row["explained.high"] < WHOLE or any(saved < 0 and is_sure for saved, is_sure in differs):
        return other
    return undecided
