"""Pruning: select heads by a ranking or by learned gates, train the model, and remove the other heads."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles import _distributed
from headroles.data.corpus import CorpusLike
from headroles.data.readers import corpus_of
from headroles.models.head_model import HeadModel
from headroles.models.heads import head_index
from headroles.models.identity.of_code import code_of, of_user
from headroles.models.identity.of_model import frozen as frozen_parameters
from headroles.models.loading import is_adapted
from headroles.models.masking import Head
from headroles.pruning.learned_gates import (
    L0,
    RATE,
    SHARE,
    GateRecords,
    GateStrategy,
    SubsetSelection,
    frozen,
    train_gates,
)
from headroles.pruning.rankings import Ranking, RankingContext, ranking
from headroles.pruning.removal import check_plain, remove_heads
from headroles.tables import frame
from headroles.tables.declared import declaration
from headroles.tables.frame import Kind
from headroles.tables.io import load_table, save_table
from headroles.tables.study import Study, study_at
from headroles.training import trainer
from headroles.training.adapters import GATES
from headroles.training.hf_trainer import TrainOptions

Training = Literal["before", "after", "both"]
Strategy = Ranking | GateStrategy
log = logging.getLogger(__name__)
HISTORY = "gates.parquet"  # in the folder of a training
DECIDED = 0.9
MOST_UNDECIDED = 0.1  # share of the gates that may be undecided without a warning


def prune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    strategy: str | Strategy = "importance",
    *,
    keep: float | None = None,
    unit: Literal["head", "group"] = "head",
    kinds: Sequence[Kind] | None = None,
    train: Training | None = None,
    remove: bool = True,
    tune: TrainOptions | None = None,
    seed: int = 0,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Remove heads, by a ranking or by learned gates.

    The model is changed in place. There is a warning if more than a tenth of the gates are undecided at the end.

    Args:
        model: A Hugging Face model. Its other heads are removed, by `remove_heads`; learned gates and fine-tuning train
            it in place. Of a model of PEFT the adapter alone is trained beside the gates, the weights stay; with an
            adapter beside an output projection, heads can only be masked (`remove=False`). To save the pruned model,
            save the one that `merge_and_unload()` returns.
        tokenizer: Its tokenizer.
        corpus: The corpus on which heads are ranked, and the model is trained.
        strategy: Name of a ranking ("importance", "-importance" for the reverse, "confidence", "random", "top" and so
            on), "l0" or "exactly". Or a ranking (`rankings.NAMED`), an `L0` or a `SubsetSelection`.
        keep: Number of heads to keep, or below 1 a share of those of `kinds`. L0 without it, and without a strength,
            keeps half. With the unit "group" it counts groups.
        unit: What is pruned together: a "head" alone, or the "group" of heads that share a key-value head. Importance,
            the ranking "effect" and gates are then those of groups; in another ranking a group is where the last of its
            heads is. Groups are always removed whole.
        kinds: Kinds of the heads that are pruned, by default all.
        train: Whether the model is fine-tuned "before" heads are selected, "after" the others are removed, or "both".
            Learned gates are trained with the model in any case.
        remove: Whether the pruned heads are removed. If not, the table has which they are:
            `remove_heads(model, table[column])`.
        tune: Options of `train` (`epochs=`, `rate=`, `batch=` and so on) for fine-tuning and for learning gates.
        seed: Seed of rankings and training.
        study: Study or folder that keeps the table, as `survival-STRATEGY[-KINDS]` with a column for each number of
            heads, before heads are removed, and the history of learned gates, as `gates-STRATEGY[-KINDS][-HEADS]`.
            Rankings that it has are not computed again, and interrupted training continues.

    Returns:
        A table with a row per head.

        - survival[STRATEGY HEADS KINDS]: 1 for a head that stays, 0 for a pruned one. With the unit "group" it is
          survival[STRATEGY group GROUPS KINDS].
        - .open: P(gate != 0), with learned gates.
        - .order: when the head is pruned, from 1, with a ranking.

    Raises:
        ValueError: If the strategy, a kind or the number of heads is unknown or impossible, heads are not removed
            before the training after it, the training has too few steps for any strength to bring a gate to zero at the
            given rate, or `remove_heads` cannot remove heads from the model.

    Example:
        >>> table = hr.prune(model, tokenizer, corpus, "importance", keep=0.5)
        >>> hr.save(model, tokenizer, "smaller")
    """  # noqa: DOC502
    chosen, options = strategy_of(strategy), tune or {}
    _check(train, unit, remove=remove)
    handle = _opened(model, tokenizer, changes=remove or train is not None or not isinstance(chosen, Ranking))
    if remove and is_adapted(handle.model):
        check_plain(handle)  # fails now rather than after training
    corpus = corpus_of(corpus)
    context = RankingContext(handle.model, tokenizer, corpus, handle.heads_of(kinds), seed, unit)
    count = _count(chosen, keep, len(_units(context, handle)))
    choices = _choices(context, chosen, count, kinds or ("all",), trains=train is not None)
    tuned = ",".join(f"{name}={value}" for name, value in sorted(options.items()))
    provenance = handle.provenance(corpus, **choices, train=train or "no", seed=seed, tune=tuned)
    label, name, gates = _names(chosen, unit, count, kinds or ())
    with ExitStack() as stack:
        kept = None if study is None else study_at(study)
        if kept is not None:
            handle.check_named()
            kept.claim(name, provenance)
            place = kept.work / ".pruning" / hashlib.sha256(provenance.encode()).hexdigest()[:12]
        else:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options = {"seed": seed, **options}
        if train in ("before", "both"):
            trainer.train(model, tokenizer, corpus, place / "tuned-before", **options)
        if isinstance(chosen, Ranking):
            select = partial(_by_ranking, context, chosen, count or 0, label, provenance)
            table = select() if kept is None else _kept(kept, name, label, provenance, select)
        else:
            table = _by_gates(context, chosen, count, place, options, label, provenance)
            if kept is not None:
                _kept(kept, name, label, provenance, lambda: table)
                if (history := place / HISTORY).is_file():
                    kept.save(gates, load_table(history))
        if remove and (table[label] == 0).any():
            remove_heads(model, table[label])
        if train in ("after", "both"):
            trainer.train(handle.model, tokenizer, corpus, place / "tuned-after", **options)
    return table


def _opened(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, changes: bool) -> HeadModel:
    """Return the handle of a model; ValueError for weights that are spread over processes if these change."""
    handle = HeadModel(model, tokenizer, allow_sharded=True)
    if changes:
        handle.check_unsharded("training and removal", "a ranking with remove=False")
    return handle


def _choices(
    context: RankingContext, chosen: Strategy, count: int | None, kinds: Sequence[str], *, trains: bool
) -> dict[str, object]:
    """Return what is selected, and how, for the provenance."""
    shared = {} if context.unit == "head" else {"unit": context.unit}
    strategy = {"strategy": chosen, **_foreign(chosen), **declaration("ranking", chosen.name, chosen)}
    fixed = frozen_parameters(context.model) if trains or not isinstance(chosen, Ranking) else {}
    return {**strategy, **fixed, "keep": count, **shared, "kinds": ",".join(kinds)}


def _foreign(chosen: Strategy) -> dict[str, str]:
    """Return a hash of the code of a strategy that is not of this package, or has parts that are not."""
    is_ours = type(chosen).__module__.startswith("headroles.") and not any(True for _ in of_user(chosen))
    return {} if is_ours else {"code": code_of(chosen)}


def _names(chosen: Strategy, unit: str, count: int | None, kinds: Sequence[str]) -> tuple[str, str, str]:
    """Return the names of the column, of its table in a study, and of that with the history of gates."""
    strategy, size = [chosen.name, *([unit] if unit != "head" else [])], [] if count is None else [str(count)]
    label = f"survival[{' '.join([*strategy, *size, *kinds])}]"
    return label, "-".join(["survival", *strategy, *kinds]), "-".join(["gates", *strategy, *kinds, *size])


def _units(context: RankingContext, handle: HeadModel) -> list[Head]:
    """Return the heads that are ranked, or the first head of each of their groups."""
    if context.unit == "head":
        return [*context.among]
    return [*dict.fromkeys(min(handle.groups[head]) for head in context.among)]


def _check(train: Training | None, unit: str, *, remove: bool) -> None:
    """Raise ValueError for options of `prune` that do not fit together."""
    if unit not in ("head", "group"):
        raise ValueError(f"unknown unit of pruning: got unit={unit!r}; expected 'head' or 'group'")
    if train not in (None, "before", "after", "both"):
        raise ValueError(f"unknown train {train!r}; known: before, after, both, None")
    if train in ("after", "both") and not remove:
        raise ValueError(
            f"train={train!r} is training without the pruned heads: got remove=False; expected remove=True, or "
            f'train="before"'
        )


def _count(chosen: Strategy, keep: float | None, size: int) -> int | None:
    """Return the number of heads that stay; None where the strength of gates determines it."""
    if keep is None and isinstance(chosen, Ranking):
        raise ValueError(f"ranking {chosen.name!r} needs a number of heads to keep: keep=0.5, or keep={size // 2}")
    if keep is None and isinstance(chosen, L0) and chosen.strength is None:
        keep = SHARE
    return None if keep is None else counted(keep, size)


def _kept(study: Study, name: str, label: str, provenance: str, select: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """Return the columns `label` of a study's survival table, or select heads and keep them beside other columns."""
    stored = study.load(name) if study.has(name) else pd.DataFrame()
    if label in stored and frame.provenance(stored, label) == provenance:
        return frame.only(stored, [column for column in map(str, stored) if column.startswith(label)])
    study.claim(name, provenance)
    table = select()
    study.save(name, table, joined=("survival",))
    return table


def strategy_of(given: str | Strategy) -> Strategy:
    """Return the strategy of a name (an unknown one raises ValueError)."""
    if isinstance(given, str) and given in ("l0", "exactly"):
        return L0() if given == "l0" else SubsetSelection()
    return ranking(given) if isinstance(given, str | Ranking) else given


def check_sizes(keep: object) -> None:
    """Raise ValueError for anything but several sizes."""
    if isinstance(keep, str) or not isinstance(keep, Iterable):
        raise ValueError(f"keep is not a list of sizes: got {keep!r}; expected shares or numbers, such as [0.5, 12]")


def counted(keep: float, size: int) -> int:
    """Return the number of heads that stay, 1 to `size`, of a number or of a share below 1."""
    is_real = isinstance(keep, Real) and not isinstance(keep, bool)
    is_share, is_number = is_real and 0 < keep < 1, is_real and keep in range(1, size + 1)
    if not (is_share or is_number):
        raise ValueError(f"keep is a share above 0 and below 1, or a number of heads from 1 to {size}; got {keep!r}")
    if isinstance(keep, float) and keep == 1:
        raise ValueError(f"keep=1.0 may be all heads or one; give {size} for all, or 1 for one")
    if not (count := round(keep * size) if is_share else int(keep)):
        raise ValueError(f"keep={keep:g} of {size} heads is none; give a larger share, or a number of heads from 1 on")
    return count


def _by_ranking(context: RankingContext, chosen: Ranking, count: int, label: str, provenance: str) -> pd.DataFrame:
    handle = HeadModel(context.model, allow_sharded=True)
    ordered, index = handle.axis.agreed(chosen.order(context)), handle.index
    together: dict[Head, Iterable[Head]] = {head: [head] for head in ordered}
    if context.unit == "group":  # the turn of a group is that of its last head
        together = dict(handle.groups)
        ordered = [min(group) for group in dict.fromkeys(together[head] for head in reversed(ordered))][::-1]
    turns = {head: float(turn) for turn, first in enumerate(ordered, 1) for head in together[first]}
    pruned = {head for first in ordered[: len(ordered) - count] for head in together[first]}
    survival = [0.0 if head in pruned else 1.0 for head in index]
    turn = pd.Series([turns.get(head) for head in index], index=index, dtype=float)
    return frame.table({label: survival, f"{label}.order": turn}, index, provenance)


def _by_gates(
    context: RankingContext,
    chosen: GateStrategy,
    count: int | None,
    place: Path,
    options: TrainOptions,
    label: str,
    provenance: str,
) -> pd.DataFrame:
    """Train the model and its gates, and save their history, P(gate != 0) of each head and step."""
    model, learnt = context.model, context.among
    shared: dict[str, Any] = {} if context.unit == "head" else {"unit": context.unit}
    gates = chosen.gates(model, learnt, count, **shared)
    learnt = gates.learnt
    if count == len(learnt):
        return frame.table({label: 1.0, f"{label}.open": 1.0}, head_index(model), provenance)
    rates = {**(options.get("rates") or {}), GATES: RATE if chosen.rate is None else chosen.rate}
    callbacks = [*options.get("callbacks", ()), GateRecords()]
    said = "".join(f",{name}={value}" for name, value in shared.items())
    text = f"{chosen},keep={count},heads={' '.join(map(str, learnt))}{said}"
    note = hashlib.sha256(text.encode()).hexdigest()[:12]
    with train_gates(model, gates), frozen(model, chosen.freeze):
        options = {**options, "rates": rates, "callbacks": callbacks, "note": note}
        history = trainer.train(model, context.tokenizer, context.corpus, place, **options)
        gates.horizon = gates.horizon or int(gates.step)  # of training that was finished before
        table = gates.table(head_index(model), label, provenance)
        final, chances = gates.final().tolist(), gates.chances().tolist()
    _warn(final, chances, count, int(history["step"].iloc[-1]))
    if gates.records and _distributed.first():  # otherwise the training was finished before
        rows = [
            (*head, step, chance) for step, part in gates.records for head, chance in zip(learnt, part, strict=True)
        ]
        records = pd.DataFrame(rows, columns=[*frame.LEVELS, "step", "open"])
        save_table(frame.signed(records, history.attrs["signatures"]["loss"]), place / HISTORY)
    return table


def _warn(final: list[float], chances: list[float], count: int | None, steps: int) -> None:
    """Warn about undecided gates, about no remaining head, and about a missed target."""
    expected, size = sum(chances), len(chances)
    if (open_ := undecided(pd.Series(chances))) > MOST_UNDECIDED * size:
        log.warning(
            "%d of %d gates are undecided after %d steps (P(gate != 0) between %g and %g), so the choice of heads is "
            "partly random; more epochs or pairs decide them, or a larger rate of gates where one was given",
            *(open_, size, steps, round(1 - DECIDED, 3), DECIDED),
        )
    if not any(final) and count != 0:
        log.warning("no head is left: lower the strength, or give a number of heads to keep")
    if count is not None and abs(expected - count) > 0.1 * size:
        log.warning(
            "the target is %d heads, and %.0f of %d gates are expected to be nonzero: the likeliest stay; more steps "
            "or a larger rate of gates decide them",
            *(count, expected, size),
        )


def undecided(chance: pd.Series[float]) -> int:
    """Count the gates of which P(gate != 0) is strictly between 0.1 and 0.9."""
    return int(((chance > 1 - DECIDED) & (chance < DECIDED)).sum())
