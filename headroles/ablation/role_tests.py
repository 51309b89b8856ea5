"""Role tests: the cost of a head that attends only by the pattern of its role, compared with removal and controls."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headroles._distributed import first
from headroles.ablation.example_stats import ExampleStats, HeadSet, written
from headroles.ablation.metrics import Metric, as_metric
from headroles.ablation.significance import p_values, warn_of_few
from headroles.ablation.sweep import ReplacementLike, Sweep
from headroles.analysis.intervals import Array, bounds, holm
from headroles.analysis.role_rules import VERDICTS, names
from headroles.data.corpus import Corpus, CorpusLike
from headroles.data.readers import as_corpus
from headroles.models.head_model import HeadModel, Model
from headroles.models.identity import fingerprint
from headroles.models.masking import Head
from headroles.models.replacements import ByHead
from headroles.patterns.base import Pattern, Place, count_applications
from headroles.patterns.controls import Absent, Shift, Shuffle
from headroles.patterns.of_roles import pattern_of
from headroles.tables import frame
from headroles.tables.study import Study, as_study, kept

log = logging.getLogger(__name__)
ALPHA = 0.05  # of each verdict, by Holm over the rows
RIVALS = {  # column -> name of the test of the role's pattern against it
    "removed": "role_pattern",
    "mean": "mean",
    "uniform": "uniform",
    "wrong": "wrong",
    "removed_local": "removed_local",
}
LEAST = 10  # texts with a token to which the pattern applies; with fewer, intervals are unreliable
NEGLIGIBLE = 1e-4  # of the metric: with many tokens, smaller costs are significant even with random weights
WHOLE = 0.5  # least share of the cost that a pattern saves, and of tokens to which it applies, to explain all of a role


def test_roles(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    roles: pd.DataFrame | Mapping[Head | str, Pattern | Sequence[Pattern]],
    *,
    metric: str | Metric = "loss",  # noqa: PT028
    heads: Iterable[Head | str] | str | None = None,  # noqa: PT028
    patterns: Mapping[str, Pattern] | None = None,  # noqa: PT028
    n_resamples: int = 1000,  # noqa: PT028
    seed: int = 0,  # noqa: PT028
    max_tokens: int = 4096,  # noqa: PT028
    study: Study | str | Path | None = None,  # noqa: PT028
) -> pd.DataFrame:
    """Test roles by imposing their patterns on heads, with removal and controls.

    Each head attends by the pattern of its role, with the model's own values; where the pattern does not apply, its
    attention is not changed. The cost is compared with removing the head and with three patterns that are as sharp, but
    wrong: the targets one token earlier, one token later, and at random places. Cost is the change of the metric for
    the worse. All heads of a role together, and all heads with a role, are tested as well.

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: Other examples than those on which the roles were assigned.
        roles: Table of `hr.roles`, or head -> pattern or patterns, heads as in `head_mask`. Roles without a pattern
            are left out.
        metric: Name of a metric or objective; for an encoder without a task "agreement", the cosine of its states with
            the states of the intact model.
        heads: Heads that are tested one by one, (kind, layer, head) each, or in writing as in `head_mask`; by default
            all that have a role. Sets always have all heads: for the hundreds of sinks of a language model, testing a
            few one by one and all together is quick.
        patterns: Role name -> pattern, for your own roles.
        n_resamples: Bootstrap resamples of the examples, the same for all variants; at least 2.
        seed: Seed of the resamples and of the random places.
        max_tokens: Tokens in one forward pass, which up to eight variants of the model share.
        study: Study or folder that keeps the table as `role-tests-METRIC`; if it has it, nothing is computed. Until
            then it keeps finished batches: an interrupted run continues after them.

    Returns:
        A table with a row per head and role, and per set of heads, index `(heads, role)`. Each cost has `.low` and
        `.high`, its 95 % interval.

        - removed, mean, uniform: cost of zero, of the mean over the corpus, of uniform attention.
        - role_pattern: cost of the pattern of the role; wrong: mean cost of the three controls.
        - removed_local: cost of zero only at the tokens to which the pattern applies.
        - explained: 1 - role_pattern / removed; NaN if removing costs less than a ten-thousandth of the metric.
        - p.removed, p.role_pattern, p.mean, p.uniform, p.wrong, p.removed_local: two-sided p of removed = 0, and of
          role_pattern = removed, mean, uniform, wrong and removed_local; `.holm`, over all rows.
        - applies: share of the content tokens to which the pattern applies, mean over the heads of a set; of a pattern
          made of the heads' own weights, such as `Streaming`, the tokens at which it changes them.
        - tokens: number of these tokens, mean over the heads of a set; texts: number of texts that have one.
        - verdict: one of `VERDICTS`, by Holm's p below 0.05. A role is what a head does if its pattern costs less than
          removal (also at these tokens only), the mean, uniform attention and the controls, explains at least half, and
          applies to at least half of the tokens; it is a part if one of the last two is less, or not sure. The pattern
          does not explain the head if surely less than half is explained, or another replacement costs less (in an
          untrained model uniform attention changes next to nothing). The head has no measurable effect if its removal
          shows no cost, even before Holm's correction, or a cost below a ten-thousandth of the metric. (With
          "agreement" any removal surely costs something, since it can only fall.) With fewer than 10 texts the verdict
          is "too few places", as for a pattern that changes nothing; otherwise it is undecided, also if p is NaN.
    """
    handle, chosen = HeadModel.of(model, tokenizer, allow_sharded=True), as_metric(metric)
    if isinstance(roles, pd.DataFrame):
        pairs = _of_table(roles, patterns or {})
        handle.sites.named([head for _, head, _ in pairs])  # raises for heads that the model lacks
    else:
        by_head = zip(handle.sites.named(roles), roles.values(), strict=True)
        listed = {head: [given] if isinstance(given, Pattern) else given for head, given in by_head}
        pairs = [(pattern.label, (*head,), pattern) for head, given in listed.items() for pattern in given]
    rows = _rows(pairs, None if heads is None else handle.sites.named(heads))
    test = _Test(handle, as_corpus(corpus), chosen, rows, n_resamples, seed, max_tokens)
    test.check()
    test.warn_of_the_same_examples(roles)
    folder = None if study is None else as_study(study).work / ".sweeps" / fingerprint(test.key)
    table = kept(study, f"role-tests-{chosen.name}", lambda: test.key, replace(test, folder=folder).table)
    if folder is not None and first():
        shutil.rmtree(folder, ignore_errors=True)
    warn_of_few(table)
    return table


test_roles.__test__ = False  # type: ignore[attr-defined]  # it is no test of pytest's


Assigned = tuple[str, Head, Pattern]  # name of a role, a head that has it, and its pattern


@dataclass(frozen=True)
class Row:
    """One row of the table: heads that attend by their patterns together."""

    role: str
    members: tuple[tuple[Head, Pattern], ...]

    @property
    def heads(self) -> HeadSet:
        """The heads of the row."""
        return frozenset(head for head, _ in self.members)


def _of_table(roles: pd.DataFrame, patterns: Mapping[str, Pattern]) -> list[Assigned]:
    """Return the roles of a table that have a pattern, with their heads."""
    by_role = {role: patterns.get(role) or pattern_of(role) for role in names(roles)}
    return [
        (role, (*head,), pattern)
        for role, pattern in by_role.items()
        if pattern is not None
        for head in roles.index[roles[role].to_numpy(bool)]
    ]


def _rows(assigned: Sequence[Assigned], heads: Collection[Head] | None) -> list[Row]:
    """Return a row for each of `heads` and its patterns, for all heads of each role, and for all heads with a role."""
    first = {head: (head, pattern) for _, head, pattern in reversed(assigned)}
    lacking = frozenset(head for head in heads or () if head not in first)
    if lacking or not assigned:
        raise ValueError(
            f"heads must have a role with a pattern, got {written(lacking)}; try other roles or thresholds"
        )
    rows = [Row(role, ((head, pattern),)) for role, head, pattern in assigned if heads is None or head in heads]
    for role in dict.fromkeys(role for role, _, _ in assigned):
        members = tuple((head, pattern) for name, head, pattern in assigned if name == role)
        rows += [Row(role, members)] if len(members) > 1 else []
    everything = Row("all", tuple(first.values()))
    return rows if any(row.heads == everything.heads for row in rows) else [*rows, everything]


@dataclass(frozen=True)
class _Test:
    """The sweeps of all rows, one for each replacement, and the table that follows from them."""

    model: HeadModel
    corpus: Corpus
    metric: Metric
    rows: Sequence[Row]
    n_resamples: int
    seed: int
    max_tokens: int
    folder: Path | None = None  # of finished batches

    @property
    def key(self) -> str:
        """Cache key."""
        rows = fingerprint([(row.role, dict(row.members)) for row in self.rows])
        return self._sweep("zero").cache_key(rows=rows, resamples=self.n_resamples, seed=self.seed)

    def check(self) -> None:
        """Raise ValueError, before anything is measured, if a pattern does not fit its head or the corpus."""
        heads: dict[Pattern, set[Head]] = {}
        for row in self.rows:
            for head, pattern in row.members:
                heads.setdefault(pattern, set()).add(head)
        for pattern, members in heads.items():
            self._sweep(pattern).check([frozenset(members)])

    def warn_of_the_same_examples(self, roles: object) -> None:
        """Warn about roles that are tested on the examples on which they were assigned."""
        texts = roles.attrs.get("signatures", {}) if isinstance(roles, pd.DataFrame) else {}
        tested = dict(frame.fields(self._sweep("zero").signature)).get("text")
        if tested and any(dict(frame.fields(text)).get("text") == tested for text in texts.values()):
            log.warning(
                "roles are tested on the corpus on which they were assigned: got %s; expected other examples, since "
                "heads are chosen by what they do on these",
                self.corpus.name,
            )

    def _sweep(self, replacement: ReplacementLike) -> Sweep:
        options: Any = {"max_tokens": self.max_tokens, "folder": self.folder, "seed": self.seed}
        return Sweep(self.model, self.corpus, self.metric, replacement=replacement, **options)

    def _run(self, replacement: ReplacementLike) -> list[Array]:
        """Return the statistics of every row under one replacement of all heads: [row][example, statistic]."""
        masked = self._sweep(replacement).run(list(dict.fromkeys(row.heads for row in self.rows))).masked
        return [masked[row.heads] for row in self.rows]

    # A sweep has one pattern for each head, and each sweep runs the intact model once more. So as many rows as possible
    # share a sweep: rows join in order unless they give a head another pattern than a row before. The remaining rows
    # wait for the next sweep. One sweep is enough unless a head has several roles.
    def _imposed(self, control: Callable[[Pattern], Pattern] = lambda pattern: pattern) -> list[Array]:
        """Return the statistics of every row under its patterns, or controls of them: [row][example, statistic]."""
        patterns = [{head: control(pattern) for head, pattern in row.members} for row in self.rows]
        statistics: dict[int, Array] = {}
        while remaining := [place for place in range(len(patterns)) if place not in statistics]:
            merged: dict[Head, Pattern] = {}
            joined = []
            for place in remaining:
                if all(merged.get(head, pattern) == pattern for head, pattern in patterns[place].items()):
                    merged |= patterns[place]
                    joined.append(place)
            variants = list(dict.fromkeys(self.rows[place].heads for place in joined))
            masked = self._sweep(ByHead(merged)).run(variants).masked
            statistics |= {place: masked[self.rows[place].heads] for place in joined}
        return [statistics[place] for place in range(len(patterns))]

    @cached_property
    def _base(self) -> ExampleStats:
        """Statistics of the intact model and of the removal of every row."""
        return self._sweep("zero").run(list(dict.fromkeys(row.heads for row in self.rows)))

    def table(self) -> pd.DataFrame:
        """Compute the table."""
        controls = lambda p: Shift(p, -1), lambda p: Shift(p, 1), lambda p: Shuffle(p, self.seed)
        parts: dict[str, list[list[Array]]] = {
            "removed": [[self._base.masked[row.heads] for row in self.rows]],
            "mean": [self._run("mean")],
            "uniform": [self._run("uniform")],
            "role_pattern": [self._imposed()],
            "wrong": [self._imposed(control) for control in controls],
            "removed_local": [self._imposed(Absent)],
        }
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
        fields = frame.sign(intact=f"{intact:.6g}", patterns=";".join(patterns), controls="-1,+1,shuffled,absent")
        text = f"{self._base.signature}|{fields}|{frame.sign(resamples=self.n_resamples, seed=self.seed)}"
        return frame.signed(table, text)

    def _coverage(self) -> Array:
        """Return the share and number of tokens to which patterns apply, and the number of texts with one: [3, row]."""
        counts: dict[Place, list[Tensor]] = {}  # for each batch [tokens to which it applies, all tokens] by text
        members = {member for row in self.rows for member in row.members}
        for needs in {pattern.needs - {"special"} for _, pattern in members}:  # of patterns that share batches
            alike = [(head, pattern) for head, pattern in members if pattern.needs - {"special"} == needs]
            heads: dict[Place, Head] = {(head[:2], pattern): head for head, pattern in alike}
            sweep = self._sweep(alike[0][1])
            with self.model.evaluating(), torch.no_grad():
                for batch in sweep.batches:
                    for place, numbers in count_applications(self.model, heads, batch, sweep.counted).items():
                        counts.setdefault(place, []).append(numbers)
        extents = {place: torch.cat(parts, dim=1).cpu().numpy() for place, parts in counts.items()}
        return np.transpose(
            [_extent([extents[head[:2], pattern] for head, pattern in row.members]) for row in self.rows]
        )

    def _cost(self, statistics: Sequence[Array]) -> Array:
        """Return by how much the metric gets worse, and its resamples: [row, 1 + resample]."""
        values = self._base.resampled([self._base.intact, *statistics], self.n_resamples, self.seed)
        return np.asarray(-self.metric.better * (values[1:] - values[:1]))

    def _tests(self, parts: Mapping[str, Sequence[Sequence[Array]]], draws: Mapping[str, Array]) -> dict[str, Array]:
        """Compute p of removed = 0 and of role_pattern = each rival, with Holm's correction over the rows."""
        means = {name: list(np.mean(listed, axis=0)) for name, listed in parts.items()}  # over the three controls
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


def _extent(counts: Sequence[Array]) -> tuple[float, float, float]:
    """Return the share and number of tokens, means over heads, and the number of texts with one for any head."""
    sizes = [row.sum(1) for row in counts]
    texts = np.any([row[0] > 0 for row in counts], axis=0).sum()
    return float(np.mean([few / every for few, every in sizes])), float(np.mean(sizes, axis=0)[0]), float(texts)


def _explained(removed: Array, imposed: Array, p: Array, least: float) -> dict[str, Array]:
    """Compute 1 - role_pattern / removed with its interval; NaN where removing costs nothing."""
    matters = (p < ALPHA) & (removed[:, 0] > least)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(matters[:, None], 1 - imposed / removed, np.nan)
    low, high = bounds(shares[:, 1:])
    return {"explained": shares[:, 0], "explained.low": low, "explained.high": high}


def _verdict(row: pd.Series[float], least: float = 0.0) -> str:
    """Return the verdict of a row, one of `VERDICTS`; a removal that costs `least` or less has no measurable effect."""
    explains, explains_part, does_not_explain, no_effect, undecided, few = VERDICTS
    if row["texts"] < LEAST:
        return few
    if row[["texts", "applies", "p.removed", "p.removed.holm"]].isna().any():
        return undecided
    if not (row["p.removed"] < ALPHA and row["removed"] > least):
        return no_effect
    if not row["p.removed.holm"] < ALPHA:
        return undecided
    differs = [(row[rival] - row["role_pattern"], row[f"p.{test}.holm"] < ALPHA) for rival, test in RIVALS.items()]
    if all(saved > 0 and is_sure for saved, is_sure in differs):
        is_enough = row["explained.low"] >= WHOLE and row["applies"] >= WHOLE
        return explains if is_enough else explains_part
    if row["explained.high"] < WHOLE or any(saved < 0 and is_sure for saved, is_sure in differs):
        return does_not_explain
    return undecided
