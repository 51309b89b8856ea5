"""Pruning: select heads by a ranking or by learned gates, with fine-tuning before or after."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.data.corpus import Corpus
from headroles.models.heads import head_index, heads_of_kinds
from headroles.models.masking import Head
from headroles.models.provenance import provenance_of
from headroles.pruning.l0 import L0, RATE, SHARE, GateStrategy, SubsetSelection
from headroles.pruning.learned_gates import NAME, GateReport, GateWatcher, frozen, train_gates, write_history
from headroles.pruning.rankings import Ranking, RankingContext, ranking
from headroles.pruning.removal import remove_heads
from headroles.tables import frame
from headroles.tables.declared import declaration
from headroles.tables.frame import Kind
from headroles.training.hf_trainer import TrainOptions
from headroles.training.trainer import train

Schedule = Literal["prune", "prune-tune", "tune-prune", "tune-prune-tune"]
SCHEDULES: tuple[Schedule, ...] = ("prune", "prune-tune", "tune-prune", "tune-prune-tune")
Strategy = Ranking | GateStrategy
log = logging.getLogger(__name__)
DECIDED = 0.9
MOST_UNDECIDED = 0.1  # share of the gates that may be undecided without a warning


def prune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    strategy: str | Strategy = "importance",
    *,
    keep: float | None = None,
    kinds: Sequence[Kind] | None = None,
    at_least: int = 0,
    schedule: Schedule = "prune",
    folder: str | Path | None = None,
    seed: int = 0,
    tune: TrainOptions | None = None,
) -> pd.DataFrame:
    """Select the heads that stay, by a ranking or by learned gates.

    Heads are removed only if the schedule ends in "tune"; otherwise by `remove_heads(model, table[column])`. There is a
    warning if more than a tenth of the gates are undecided at the end.

    Args:
        model: A Hugging Face model; learned gates and fine-tuning train it in place.
        tokenizer: Its tokenizer.
        corpus: The corpus on which heads are ranked, and the model is trained.
        strategy: A ranking or its name ("importance", "-importance", "random", "top" and so on; `rankings.NAMED`), "l0"
            or "exactly", or an `L0` or `SubsetSelection`.
        keep: Number of heads to keep, or below 1 a share of those of `kinds`. L0 without it, and without a strength,
            keeps half.
        kinds: Kinds of the heads that are pruned, by default all.
        at_least: Heads that stay in every layer (rankings only).
        schedule: "prune", with "tune" before or after it: fine-tuning of the whole model, or of the model without the
            pruned heads.
        folder: Where checkpoints, from which interrupted training continues, and the history of gates,
            `gates.parquet`, are kept; by default nowhere.
        seed: Seed of rankings and training.
        tune: Options of `train` (`epochs=`, `rate=`, `batch=` and so on) for fine-tuning and for learning gates.

    Returns:
        A table with a row per head.

        - survival[STRATEGY HEADS KINDS]: 1 for a head that stays, 0 for a pruned one.
        - .open: P(gate != 0), with learned gates.
        - .turn: when the head is pruned, from 1, with a ranking.

    Raises:
        ValueError: If the strategy, schedule, a kind or the number of heads is unknown or impossible, or the training
            has too few steps for any strength to bring a gate to zero at the given rate.

    Example:
        >>> table = hr.prune(model, tokenizer, corpus, "importance", keep=0.5)
        >>> hr.remove_heads(model, table.iloc[:, 0])
    """
    chosen, options = strategy_of(strategy), tune or {}
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}; known: {', '.join(SCHEDULES)}")
    if at_least and not isinstance(chosen, Ranking):
        raise ValueError(f"at_least={at_least} is for rankings; got the strategy {chosen.name}, which learns gates")
    may_go = heads_of_kinds(model, kinds)
    if keep is None and isinstance(chosen, Ranking):
        raise ValueError(
            f"ranking {chosen.name!r} needs a number of heads to keep: keep=0.5, or keep={len(may_go) // 2}"
        )
    if keep is None and isinstance(chosen, L0) and chosen.strength is None:
        keep = SHARE
    count = None if keep is None else counted(keep, len(may_go))
    signature = provenance_of(
        model,
        None,
        corpus,
        strategy=chosen,
        **declaration("ranking", chosen.name, chosen),
        keep=count,
        kinds=",".join(kinds or ("all",)),
        at_least=at_least,
        schedule=schedule,
        seed=seed,
        tune=",".join(f"{name}={value}" for name, value in sorted(options.items())),
    )
    options = {"seed": seed, **options}
    with ExitStack() as stack:
        place = Path(folder) if folder is not None else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if schedule.startswith("tune"):
            train(model, tokenizer, corpus, place / "tuned-before", **options)
        if isinstance(chosen, Ranking):
            columns = _by_ranking(RankingContext(model, tokenizer, corpus, may_go, seed), chosen, count or 0, at_least)
        else:
            columns = _by_gates(model, tokenizer, corpus, chosen, may_go, count, place, options)
        words = [chosen.name, *([] if count is None else [str(count)]), *(kinds or ())]
        label = f"survival[{' '.join(words)}]"
        table = frame.table({label + part: values for part, values in columns.items()}, head_index(model), signature)
        if schedule.endswith("-tune"):
            remove_heads(model, table[label])
            train(model, tokenizer, corpus, place / "tuned-after", **options)
    return table


def pruned_first(ordered: Sequence[Head], count: int, at_least: int = 0) -> list[Head]:
    """Return the heads of a ranking that are pruned if `count` stay, and `at_least` so many in every layer."""
    left: dict[tuple[Kind, int], int] = {}
    for kind, layer, _ in ordered:
        left[kind, layer] = left.get((kind, layer), 0) + 1
    pruned: list[Head] = []
    for head in ordered:
        if len(pruned) < len(ordered) - count and left[head[0], head[1]] > at_least:
            left[head[0], head[1]] -= 1
            pruned.append(head)
    if len(pruned) < len(ordered) - count:
        raise ValueError(f"{count} of {len(ordered)} heads cannot stay with at least {at_least} in each layer")
    return pruned


def strategy_of(given: str | Strategy) -> Strategy:
    """Return the strategy of a name (an unknown one raises ValueError)."""
    if isinstance(given, str) and given in ("l0", "exactly"):
        return L0() if given == "l0" else SubsetSelection()
    return ranking(given) if isinstance(given, str | Ranking) else given


def counted(keep: float, size: int) -> int:
    """Return the number of heads that stay, 1 to `size`, of a number or of a share below 1."""
    is_share, is_number = 0 < keep < 1, keep in range(1, size + 1)
    if not (is_share or is_number) or isinstance(keep, bool):
        raise ValueError(f"keep is a share above 0 and below 1, or a number of heads from 1 to {size}; got {keep}")
    if isinstance(keep, float) and keep == 1:
        raise ValueError(f"keep=1.0 may be all heads or one; give {size} for all, or 1 for one")
    if not (count := round(keep * size) if is_share else int(keep)):
        raise ValueError(f"keep={keep:g} of {size} heads is none; give a larger share, or a number of heads from 1 on")
    return count


def _by_ranking(setting: RankingContext, chosen: Ranking, count: int, at_least: int) -> dict[str, pd.Series[float]]:
    ordered = chosen.order(setting)
    index = head_index(setting.model)
    turns = pd.Series({head: turn for turn, head in enumerate(ordered, 1)}, dtype=float)
    survival = pd.Series(1.0, index=index)
    survival[survival.index.isin(pruned_first(ordered, count, at_least))] = 0.0
    return {"": survival, ".turn": pd.Series([turns.get(head) for head in index], index=index, dtype=float)}


def _by_gates(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    chosen: GateStrategy,
    learnt: Sequence[Head],
    count: int | None,
    place: Path,
    options: TrainOptions,
) -> dict[str, pd.Series[float]]:
    """Train the model and its gates, and return their final values."""
    index = head_index(model)
    gates = chosen.gates(model, learnt, count)
    if count == len(learnt):
        return {"": pd.Series(1.0, index=index), ".open": pd.Series(1.0, index=index)}
    watcher = GateWatcher(gates)
    rates = {**(options.get("rates") or {}), NAME: RATE if chosen.rate is None else chosen.rate}
    callbacks = [*options.get("callbacks", ()), watcher, GateReport(gates, learnt)]
    options = {**options, "rates": rates, "callbacks": callbacks}
    with train_gates(model, gates), frozen(model, chosen.freeze):
        note = f"{chosen},keep={count},heads={' '.join(map(str, learnt))}"
        history = train(model, tokenizer, corpus, place, **options, note=hashlib.sha256(note.encode()).hexdigest()[:12])
        gates.horizon = gates.horizon or int(gates.step)  # of training that was finished before
        final, chances = gates.final().tolist(), gates.chances().tolist()
    survival, chance = (pd.Series(1.0, index=index) for _ in range(2))
    places = index[index.get_indexer(pd.Index(learnt))]
    survival.update(pd.Series(final, index=places))
    chance.update(pd.Series(chances, index=places))
    _warn(final, chance, chances, count, int(history["step"].iloc[-1]))
    write_history(place, watcher, history, learnt)
    return {"": survival, ".open": chance}


def _warn(final: list[float], chance: pd.Series[float], chances: list[float], count: int | None, steps: int) -> None:
    """Warn about undecided gates, about no remaining head, and about a missed target."""
    expected, size = sum(chances), len(chances)
    if (open_ := undecided(chance)) > MOST_UNDECIDED * size:
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
