"""Role tests: the cost of a head that attends only by the pattern of its role, compared with removal and controls."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headroles import _distributed
from headroles.ablation.example_stats import ExampleStats, HeadSet, written
from headroles.ablation.metrics import Metric, as_metric
from headroles.ablation.significance import skewness, tested, warn_of_few
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
WRONG = "wrong[earlier]", "wrong[later]", "wrong[random]"
RIVALS = {  # name of the test of the role's pattern -> costs, each of which must be larger
    "role_pattern": ("removed",),
    "mean": ("mean",),
    "uniform": ("uniform",),
    "wrong": WRONG,
    "removed_local": ("removed_local",),
}
HALF_SECOND = 25  # frames of Whisper: sounds next to each other are alike
STAGES = 9  # of the work, one for each replacement and one for placebos
PLACEBOS = 3  # heads, or sets of them, at most
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
    attention is not changed. The cost, the change of the metric for the worse, is compared with that of removal and of
    three patterns as sharp, but wrong: the targets one token earlier, one later (of sound half a second), and at random
    places; and with the same changes of other heads of the layer (placebo). Sets of heads are tested as well.

    Args:
        model: A Hugging Face model.
        tokenizer: Its tokenizer.
        corpus: Other examples than those on which the roles were assigned.
        roles: Table of `hr.roles`, or head -> pattern or patterns, heads as in `head_mask`. Roles without a pattern
            are left out.
        metric: Name of a metric or objective; for an encoder without a task "agreement", the cosine of its states with
            the states of the intact model.
        heads: Heads that are tested one by one, (kind, layer, head) each, or in writing as in `head_mask`; by default
            all that have a role. Sets always have all heads.
        patterns: Role name -> pattern, for your own roles.
        n_resamples: Bootstrap resamples of the examples, the same for all variants; at least 2.
        seed: Seed of the resamples, of the random places and of the heads of the placebo.
        max_tokens: Tokens in one forward pass, which up to eight variants of the model share.
        study: Study or folder that keeps the table as `role-tests-METRIC`; if it has it, nothing is computed. Until
            then it keeps finished batches: an interrupted run continues after them.

    Returns:
        A table with a row per head and role, and per set of heads, index `(heads, role)`. Each cost has `.low` and
        `.high`, its 95 % interval.

        - removed, mean, uniform, role_pattern: cost of zero, of the mean over the corpus, of uniform attention, and of
          the pattern of the role.
        - wrong[earlier], wrong[later], wrong[random]: cost of each wrong pattern; wrong: of the one that costs least.
        - placebo_removed, placebo_pattern: cost of zero and of the pattern of the role in heads of the same layers
          without the role, the mean over up to three heads (of a set, three sets of its size) drawn by `seed`; NaN if
          the layers have no such head.
        - removed_local: cost of zero only at the tokens to which the pattern applies.
        - explained: 1 - role_pattern / removed; NaN if removing costs less than a ten-thousandth of the metric.
        - p.removed, p.role_pattern, p.mean, p.uniform, p.wrong, p.removed_local: two-sided p of removed = 0, and of
          role_pattern = removed, mean, uniform, wrong (the largest p of the three), removed_local; `.holm`: over rows.
        - applies: share of the content tokens to which the pattern applies, mean over the heads of a set; of a pattern
          made of the heads' own weights, such as `Streaming`, the tokens at which it changes them.
        - tokens: number of these tokens, mean over the heads of a set; texts: number of texts that have one.
        - verdict: one of `VERDICTS`, by Holm's p below 0.05; for a set also how many of its members pass: their role is
          what they do, or a part of it. A role is what a head does if its pattern costs less than removal (also at
          these tokens only), the mean, uniform attention and each wrong pattern, explains at least half, and applies to
          at least half of the tokens; it is a part if one of the last two is less, or not sure. The pattern does not
          explain the head if surely less than half is explained, or another replacement costs less. The head has no
          measurable effect if its removal shows no cost, even before Holm's correction, or a cost below a
          ten-thousandth of the metric. With fewer than 10 texts the verdict is "too few places", as for a pattern that
          changes nothing; otherwise it is undecided, also if p is NaN.
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
    rows = [replace(row, placebos=_placebos(row, pairs, handle.heads, seed)) for row in rows]
    test = _Test(handle, as_corpus(corpus), chosen, rows, n_resamples, seed, max_tokens)
    test.check()
    test.warn_of_the_same_examples(roles)
    folder = None if study is None else as_study(study).work / ".sweeps" / fingerprint(test.key)
    table = kept(study, f"role-tests-{chosen.name}", lambda: test.key, replace(test, folder=folder).table)
    if folder is not None and _distributed.first():
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
    placebos: tuple[Row, ...] = ()  # heads without the role

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


def _placebos(row: Row, assigned: Sequence[Assigned], heads: Sequence[Head], seed: int) -> tuple[Row, ...]:
    """Return rows of other heads of the members' layers, with their patterns, as far as there are enough heads."""
    patterns = {pattern for _, pattern in row.members}
    taken = {head for _, head, pattern in assigned if pattern in patterns}
    free: dict[tuple[str, int], list[Head]] = {}
    for place in np.random.default_rng(seed).permutation(len(heads)):
        if (head := heads[place]) not in taken:
            free.setdefault(head[:2], []).append(head)
    queues = {layer: cycle(listed) for layer, listed in free.items()}  # each placebo begins where the last one ended
    drawn = [{next(queues[h[:2]]): pattern for h, pattern in row.members if h[:2] in queues} for _ in range(PLACEBOS)]
    return tuple(Row("placebo", placebo) for placebo in dict.fromkeys(tuple(part.items()) for part in drawn) if placebo)


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
        counts = {"resamples": self.n_resamples, "placebos": PLACEBOS, "controls": self._controls}
        return self._sweep("zero").cache_key(rows=rows, seed=self.seed, **counts)

    @property
    def _controls(self) -> str:
        """Describe the controls; those of different kinds of heads are joined."""
        far = sorted({self._far(head) for row in self.rows for head in row.heads})
        return ",".join([*(f"-{by},+{by}" for by in far), "shuffled,absent"])

    def _far(self, head: Head) -> int:
        """Return by how many keys a pattern is moved to be wrong."""
        return HALF_SECOND if self.model.model.main_input_name == "input_features" and head[0] != "dec-self" else 1

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

    @cached_property
    def _placebos(self) -> list[Row]:
        """The placebos of all rows, each once."""
        return list(dict.fromkeys(placebo for row in self.rows for placebo in row.placebos))

    def _stage(self, number: int) -> dict[str, Any]:
        """Name a replacement of `table`, and count the variants of later ones; placebos have the last one."""
        later = max(0, STAGES - 1 - number) * len(self.rows) + (number < STAGES) * len(self._placebos)
        return {"what": f"role tests, stage {number} of {STAGES}", "later": later}

    def _run(self, replacement: ReplacementLike, stage: int) -> list[Array]:
        """Return the statistics of every row under one replacement of all heads: [row][example, statistic]."""
        variants = list(dict.fromkeys(row.heads for row in self.rows))
        masked = self._sweep(replacement).run(variants, **self._stage(stage)).masked
        return [masked[row.heads] for row in self.rows]

    # A sweep has one pattern for each head, and each sweep runs the intact model once more. So as many rows as possible
    # share a sweep: rows join in order unless they give a head another pattern than a row before. The remaining rows
    # wait for the next sweep. One sweep is enough unless a head has several roles.
    def _imposed(
        self, rows: Sequence[Row], stage: int, control: Callable[[Pattern, Head], Pattern] = lambda pattern, _: pattern
    ) -> list[Array]:
        """Return the statistics of rows under their patterns, or controls of them: [row][example, statistic]."""
        patterns = [{head: control(pattern, head) for head, pattern in row.members} for row in rows]
        statistics: dict[int, Array] = {}
        while remaining := [place for place in range(len(patterns)) if place not in statistics]:
            merged: dict[Head, Pattern] = {}
            joined = []
            for place in remaining:
                if all(merged.get(head, pattern) == pattern for head, pattern in patterns[place].items()):
                    merged |= patterns[place]
                    joined.append(place)
            variants = list(dict.fromkeys(rows[place].heads for place in joined))
            masked = self._sweep(ByHead(merged)).run(variants, **self._stage(stage)).masked
            statistics |= {place: masked[rows[place].heads] for place in joined}
        return [statistics[place] for place in range(len(patterns))]

    @cached_property
    def _base(self) -> ExampleStats:
        """Statistics of the intact model and of the removal of every row and placebo."""
        variants = list(dict.fromkeys(row.heads for row in (*self.rows, *self._placebos)))
        return self._sweep("zero").run(variants, **self._stage(1))

    # To be better than each of three wrong patterns, a role has to beat the one that is hardest to beat: the largest p
    # has the level of a single test (intersection-union test, Berger 1982). Holm's correction of the three would be for
    # "better than at least one of them".
    def table(self) -> pd.DataFrame:
        """Compute the table."""
        if _distributed.first():
            _distributed.log.info("role tests: %d heads and sets in %d stages", len(self.rows), STAGES)
        parts = {
            "intact": [self._base.intact] * len(self.rows),
            "removed": [self._base.masked[row.heads] for row in self.rows],
            "mean": self._run("mean", 2),
            "uniform": self._run("uniform", 3),
            "role_pattern": self._imposed(self.rows, 4),
            "wrong[earlier]": self._imposed(self.rows, 5, lambda pattern, head: Shift(pattern, -self._far(head))),
            "wrong[later]": self._imposed(self.rows, 6, lambda pattern, head: Shift(pattern, self._far(head))),
            "wrong[random]": self._imposed(self.rows, 7, lambda pattern, _: Shuffle(pattern, self.seed)),
            "removed_local": self._imposed(self.rows, 8, lambda pattern, _: Absent(pattern)),
        }
        placebos = {"placebo_removed": [self._base.masked[row.heads] for row in self._placebos]}
        placebos |= {"placebo_pattern": self._imposed(self._placebos, STAGES)}
        parts |= {name: self._of_placebos(part, parts["removed"]) for name, part in placebos.items()}
        cheapest = np.argmin([self._cost(parts[name])[:, 0] for name in WRONG], axis=0)
        parts["wrong"] = [parts[WRONG[which]][row] for row, which in enumerate(cheapest)]
        draws = {name: self._cost(part) for name, part in parts.items()}
        for name, part in placebos.items():
            draws[name] = np.array(self._of_placebos(self._cost(part), draws["removed"]))
        compared = partial(self._compared, parts, draws)
        columns: dict[str, Array] = {}
        for name in (name for name in parts if name != "intact"):
            low, high, _ = compared("intact", name)
            columns |= {name: draws[name][:, 0], f"{name}.low": low, f"{name}.high": high}
        p = {"removed": compared("intact", "removed")[2]}
        for test, rivals in RIVALS.items():
            p[test] = np.max([compared("role_pattern", rival)[2] for rival in rivals], axis=0)
        for name, values in p.items():
            columns |= {f"p.{name}": values, f"p.{name}.holm": holm(values)}
        intact = float(self.metric.compute(self._base.intact.sum(0)))
        least = NEGLIGIBLE * abs(intact)
        columns |= _explained(draws["removed"], draws["role_pattern"], columns["p.removed.holm"], least)
        table = pd.DataFrame(columns, index=self._index())
        table["applies"], table["tokens"], table["texts"] = self._coverage()
        table["verdict"] = self._with_members([_verdict(row, least) for _, row in table.iterrows()])
        patterns = ";".join(dict.fromkeys(repr(pattern) for row in self.rows for _, pattern in row.members))
        skewed, drawn = skewness(self._base.measured()), {"resamples": self.n_resamples, "seed": self.seed}
        fields = frame.sign(intact=f"{intact:.6g}", patterns=patterns, controls=self._controls, **skewed)
        return frame.signed(table, f"{self._base.signature}|{fields}|{frame.sign(**drawn)}")

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

    def _of_placebos(self, values: Sequence[Array] | Array, removed: Sequence[Array] | Array) -> list[Array]:
        """Return the mean of statistics or costs over the placebos of each row; without any, NaN."""
        given, none = dict(zip(self._placebos, values, strict=True)), np.full_like(removed[0], np.nan)
        return [np.mean([given[placebo] for placebo in row.placebos] or [none], axis=0) for row in self.rows]

    def _compared(
        self, parts: Mapping[str, Sequence[Array]], draws: Mapping[str, Array], base: str, other: str
    ) -> tuple[Array, Array, Array]:
        """Return ends of the interval of a difference of costs and its two-sided p, by the test of ablations: [row]."""
        sign, tests = -self.metric.better, []
        for before, after, draw in zip(parts[base], parts[other], draws[other] - draws[base], strict=True):
            statistics = replace(self._base, intact=before, masked={frozenset(): after}).measured()
            tests.append(np.ravel(tested(statistics, sign * draw[None, 1:])))
        low, high, p = np.transpose(tests)
        return (low, high, p) if sign > 0 else (-high, -low, p)

    def _with_members(self, verdicts: Sequence[str]) -> list[str]:
        """Add to the verdicts of sets how many of the members that were tested one by one pass."""
        passes = {row.members: verdict in VERDICTS[:2] for row, verdict in zip(self.rows, verdicts, strict=True)}
        texts = []
        for row, verdict in zip(self.rows, verdicts, strict=True):
            known = [passes[member,] for member in row.members if (member,) in passes]
            count = f"{sum(known)} of {len(known)} {'tested ' * (len(known) < len(row.members))}members pass"
            texts.append(f"{verdict}; {count}" if known and len(row.members) > 1 else verdict)
        return texts

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
    costs = {test: min(row[rival] for rival in rivals) for test, rivals in RIVALS.items()}
    differs = [(cost - row["role_pattern"], row[f"p.{test}.holm"] < ALPHA) for test, cost in costs.items()]
    if all(saved > 0 and is_sure for saved, is_sure in differs):
        is_enough = row["explained.low"] >= WHOLE and row["applies"] >= WHOLE
        return explains if is_enough else explains_part
    if row["explained.high"] < WHOLE or any(saved < 0 and is_sure for saved, is_sure in differs):
        return does_not_explain
    return undecided
