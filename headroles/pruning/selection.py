"""Pruning: select heads by a ranking or by learned gates, train the model, and remove the other heads."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headroles.data.corpus import CorpusLike
from headroles.data.readers import as_corpus
from headroles.models.head_model import HeadModel
from headroles.models.heads import head_index
from headroles.models.identity import fingerprint
from headroles.models.loading import is_adapted
from headroles.pruning import learned_gates
from headroles.pruning.learned_gates import HISTORY, L0, GateRecords, frozen, train_gates
from headroles.pruning.rankings import Ranking, RankingContext, ranking
from headroles.pruning.removal import check_plain, layouts, remove_heads
from headroles.tables import frame
from headroles.tables.arguments import one_of
from headroles.tables.declared import declaration
from headroles.tables.frame import Kind
from headroles.tables.io import load_table
from headroles.tables.study import Study, as_study
from headroles.training import trainer
from headroles.training.checkpoints import GATES
from headroles.training.hf_trainer import TrainOptions

Training = Literal["before", "after", "both"]
Strategy = Ranking | L0
log = logging.getLogger(__name__)
DECIDED = 0.9  # least probability of the likelier value of a decided gate
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

    The model is changed in place. A ranking is made once, over the heads of all layers together, after training
    "before"; for several numbers of heads see `hr.sparsity_sweep`. There is a warning if more than a tenth of the gates
    are undecided at the end.

    Args:
        model: A Hugging Face model. Its other heads are removed, by `remove_heads`; learned gates and fine-tuning train
            it in place. In a model of PEFT only the adapter and the gates are trained. Where an output projection has
            an adapter, heads can only be masked (`remove=False`). To save the pruned model, save the one that
            `merge_and_unload()` returns.
        tokenizer: Its tokenizer.
        corpus: The corpus on which heads are ranked, and the model is trained.
        strategy: Name of a ranking ("importance", "-importance" for the reverse, "confidence", "effect", "effect per
            time" of generation, "random", "top" and so on), or "l0". Or a ranking (`rankings.NAMED`), or an `L0`.
        keep: Number of heads to keep, or below 1 a share of the heads of `kinds`. L0 without it, and without a
            strength, keeps half. With the unit "group" it counts groups.
        unit: What is pruned together: one "head", or the "group" of heads that share a key-value head. Importance, the
            ranking "effect" and gates are then of groups; in another ranking a group has the rank of the last of
            its heads. Groups are always removed whole.
        kinds: Kinds of the heads that are pruned, by default all.
        train: Whether the model is fine-tuned "before" heads are selected, "after" the others are removed, or "both".
            Learned gates are trained with the model in any case.
        remove: Whether the pruned heads are removed. If not, `remove_heads(model, table[column])` removes them.
        tune: Options of `train` (`epochs=`, `rate=`, `batch=` and so on) for fine-tuning and for learning gates.
        seed: Seed of rankings and training.
        study: Study or folder that keeps the table, as `survival-STRATEGY[-KINDS]` with a column for each number of
            heads, before heads are removed, and the history of learned gates, as `gates-STRATEGY[-KINDS][-HEADS]`.
            Rankings that it has are not computed again, and interrupted training continues.

    Returns:
        A table with a row per head.

        - survival[STRATEGY HEADS KINDS]: 1 for a kept head, 0 for a pruned one. With the unit "group" it is
          survival[STRATEGY group GROUPS KINDS].
        - .open: P(gate != 0), with learned gates.
        - .order: when the head is pruned, from 1, with a ranking.

    Example:
        >>> table = hr.prune(model, tokenizer, corpus, "importance", keep=0.5)
        >>> hr.save(model, tokenizer, "smaller")
    """
    chosen, options = strategy_of(strategy), TrainOptions(seed=seed)
    options.update(tune or {})  # a seed in `tune` is for the training only
    learns = not isinstance(chosen, Ranking)
    one_of("unit", unit, ("head", "group"))
    one_of("train", train, ("before", "after", "both", None))
    handle, corpus = HeadModel(model, tokenizer, allow_sharded=True), as_corpus(corpus)
    _check_changes(handle, train, remove, learns=learns)
    context = RankingContext(handle.model, tokenizer, corpus, handle.sites.of_kinds(kinds), seed, unit)
    count = _count(chosen, keep, len(context.units))
    label, name, history = _names(chosen, unit, count, kinds or ())
    provenance = handle.provenance(
        corpus,
        code=fingerprint(chosen),
        strategy=chosen,
        **declaration("ranking", chosen.name, chosen),
        **(trainer.fixed_parameters(handle.model) if learns or train is not None else {}),
        keep=count,
        **({} if unit == "head" else {"unit": unit}),
        kinds=",".join(kinds or ("all",)),
        train=train or "no",
        seed=seed,
        tune=",".join(f"{key}={value}" for key, value in sorted(options.items())),
    )
    selection = _Selection(context, count, label, provenance)
    if study is not None:
        handle.check_named()
    kept = as_study(study)  # a temporary one without a study
    kept.claim(name, provenance)
    folder = kept.work / ".pruning" / hashlib.sha256(provenance.encode()).hexdigest()[:12]
    if train in ("before", "both"):
        trainer.train(model, tokenizer, corpus, folder / "tuned-before", **options)
    if isinstance(chosen, Ranking):
        table = _kept(kept, name, selection, partial(selection.by_ranking, chosen))
    else:
        learned = selection.by_gates(chosen, folder, options)
        table = _kept(kept, name, selection, lambda: learned)
        if (folder / HISTORY).is_file():
            kept.keep(history, provenance, partial(load_table, folder / HISTORY))
    if remove and (table[label] == 0).any():
        remove_heads(model, table[label])
    if train in ("after", "both"):
        trainer.train(handle.model, tokenizer, corpus, folder / "tuned-after", **options)
    return table


def _check_changes(handle: HeadModel, train: Training | None, remove: bool, *, learns: bool) -> None:
    """Raise ValueError, now rather than after training, if the model cannot be changed as asked."""
    if train in ("after", "both") and not remove:
        raise ValueError(f"remove must be True for training after removal, got train={train!r} and remove=False")
    if remove or train is not None or learns:
        handle.check_unsharded("training and removal", "a ranking with remove=False")
    if remove and is_adapted(handle.model):
        check_plain(handle)
    if remove and (learns or train in ("before", "both")):
        layouts(handle)  # raises an error for heads that cannot be removed


def strategy_of(given: str | Strategy) -> Strategy:
    """Return the strategy of a name (an unknown one raises ValueError)."""
    if given == "l0":
        return L0()
    return ranking(given) if isinstance(given, str | Ranking) else given


def counted(keep: float, size: int) -> int:
    """Return the number of heads to keep, 1 to `size`, by a number or a share below 1."""
    count = round(keep * size) if 0 < keep < 1 else keep
    if count not in range(1, size + 1) or (isinstance(keep, float) and keep == 1):
        raise ValueError(
            f"keep must be a share above 0 and below 1 of {size}, or a number from 1 to {size}, got {keep!r}"
        )
    return int(count)


def _count(chosen: Strategy, keep: float | None, size: int) -> int | None:
    """Return the number of heads to keep; None if the strength of gates determines it."""
    if keep is None and isinstance(chosen, L0) and chosen.strength is None:
        keep = learned_gates.SHARE
    if keep is None and isinstance(chosen, Ranking):
        raise ValueError(f"keep must be given for the ranking {chosen.name!r}, got None; try keep=0.5")
    return None if keep is None else counted(keep, size)


def _names(chosen: Strategy, unit: str, count: int | None, kinds: Sequence[str]) -> tuple[str, str, str]:
    """Return the names of the column, of its table in a study, and of the table with the history of gates."""
    strategy, size = [chosen.name, *([unit] if unit != "head" else [])], [] if count is None else [str(count)]
    label = f"survival[{' '.join([*strategy, *size, *kinds])}]"
    return label, "-".join(["survival", *strategy, *kinds]), "-".join(["gates", *strategy, *kinds, *size])


def _kept(study: Study, name: str, selection: _Selection, select: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """Return the columns of a selection in a study's table of survival; select heads if it lacks them.

    The table has a column for each number of heads. `Study.keep` keeps whole tables, so the provenance of a column says
    what made it.
    """
    label, stored = selection.label, study.load(name) if study.has(name) else pd.DataFrame()
    if label in stored and frame.provenance(stored, label) == selection.provenance:
        return frame.only(stored, [column for column in map(str, stored) if column.startswith(label)])
    table = select()
    study.save(name, table, joined=("survival",))
    return table


@dataclass(frozen=True)
class _Selection:
    """The number of heads to keep among the heads of a context, and the name and provenance of the column it makes."""

    context: RankingContext
    count: int | None
    label: str
    provenance: str

    def by_ranking(self, chosen: Ranking) -> pd.DataFrame:
        """Select the heads or groups at the end of a ranking; a group has the rank of its last head."""
        handle, groups = HeadModel(self.context.model, allow_sharded=True), self.context.groups
        ordered, index = handle.axis.agreed(chosen.order(self.context)), handle.index
        units = [*dict.fromkeys(groups[head] for head in reversed(ordered))][::-1]
        places = {head: float(place) for place, unit in enumerate(units, 1) for head in unit}
        pruned = {head for unit in units[: len(units) - (self.count or 0)] for head in unit}
        survival = [0.0 if head in pruned else 1.0 for head in index]
        order = pd.Series([places.get(head) for head in index], index=index, dtype=float)
        return frame.table({self.label: survival, f"{self.label}.order": order}, index, self.provenance)

    def by_gates(self, chosen: L0, folder: Path, options: TrainOptions) -> pd.DataFrame:
        """Train the model and its gates, and save the history of gates: P(gate != 0) of each head and step."""
        context, index = self.context, head_index(self.context.model)
        shared: dict[str, Any] = {} if context.unit == "head" else {"unit": context.unit}
        gates = chosen.gates(context.model, context.among, self.count, **shared)
        if self.count == len(gates.learnt):
            return frame.table({self.label: 1.0, f"{self.label}.open": 1.0}, index, self.provenance)
        text = f"{chosen},keep={self.count},heads={' '.join(map(str, gates.learnt))}{shared or ''}"
        rate = learned_gates.RATE if chosen.rate is None else chosen.rate
        options = {
            **options,
            "rates": {**(options.get("rates") or {}), GATES: rate},
            "callbacks": [*options.get("callbacks", ()), GateRecords()],
            "note": hashlib.sha256(text.encode()).hexdigest()[:12],
        }
        with train_gates(context.model, gates), frozen(context.model, chosen.freeze):
            history = trainer.train(context.model, context.tokenizer, context.corpus, folder, **options)
            gates.horizon = gates.horizon or int(gates.step)  # the training was finished before
            table = gates.table(index, self.label, self.provenance)
            _warn(gates.final().tolist(), gates.chances().tolist(), self.count, int(history["step"].iloc[-1]))
        return table


def _warn(final: list[float], chances: list[float], count: int | None, steps: int) -> None:
    """Warn about undecided gates, no remaining head, or a missed target."""
    expected, size = sum(chances), len(chances)
    if (open_ := undecided(pd.Series(chances))) > MOST_UNDECIDED * size:
        log.warning(
            "%d of %d gates are undecided after %d steps (P(gate != 0) between %g and %g), so the choice of heads is "
            "partly random; try more epochs or pairs, or a larger rate of gates if one was given",
            *(open_, size, steps, round(1 - DECIDED, 3), DECIDED),
        )
    if not any(final) and count != 0:
        log.warning("no head is left: lower the strength, or give a number of heads to keep")
    if count is not None and abs(expected - count) > 0.1 * size:
        log.warning(
            "the target is %d heads, but %.0f of %d gates are expected to be nonzero: the likeliest stay; try more "
            "steps or a larger rate of gates",
            *(count, expected, size),
        )


def undecided(chance: pd.Series[float]) -> int:
    """Count the gates with P(gate != 0) strictly between 0.1 and 0.9."""
    return int(((chance > 1 - DECIDED) & (chance < DECIDED)).sum())
