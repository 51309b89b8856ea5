"""Selection: the key-value heads that keep their whole cache, by a ranking."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from headroles.analysis.intervals import Array, corrections, no_surer, t_test
from headroles.budgets.calibration import GROUP_LEVELS, POINTS, Calibration
from headroles.data.corpus import CorpusLike
from headroles.data.readers import as_corpus
from headroles.models.head_model import HeadModel, Model
from headroles.models.sites import shared_keys
from headroles.patterns import Streaming
from headroles.pruning.selection import counted
from headroles.scores import score
from headroles.tables import frame
from headroles.tables.arguments import number, one_of
from headroles.tables.frame import LEVELS
from headroles.tables.study import Study, kept

By = Literal["integrated-gradients", "l0", "ablation", "retrieval", "random"]
RANKINGS: tuple[By, ...] = get_args(By)


def cache_budget(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    corpus: CorpusLike,
    *,
    keep: float = 0.25,
    by: By | pd.Series[float] = "integrated-gradients",
    sink: int = 4,
    recent: int = 256,
    points: int = POINTS,
    steps: int | None = None,
    seed: int = 0,
    study: Study | str | Path | None = None,
) -> pd.DataFrame:
    """Choose the key-value heads that need the long context.

    The others stream. A group, the heads of one key-value head, streams if its queries see the first `sink` and the
    latest `recent` tokens only (Xiao et al. 2023), so that its cache keeps no others. Its gate is 1 where it sees all,
    and 0 where it streams; DuoAttention (Xiao et al. 2024, section 2.2) learns such gates. Layers with a sliding window
    are left as they are. The loss is of the answers alone, in nats per token.

    Args:
        model: A decoder that keeps keys and values.
        tokenizer: Its tokenizer.
        corpus: Long texts with answers: `hr.hidden_facts`, `hr.needles`, or your own, each with its question at the end
            and the answer as `target`. Use other texts to measure what the budget costs.
        keep: Number of groups that keep their whole cache, or below 1 a share.
        by: Which of them. "integrated-gradients": those with the largest gradients along the path of all gates from 1
            to 0, one forward and one backward pass for each text and point. "ablation": the largest effect of streaming
            alone. "l0": gates learned by L0 with all weights frozen. "retrieval": the score of that name, of a group's
            best head. "random". Or a column of a table of groups, or of heads; a group has the largest of its heads.
        sink: Number of first tokens that a streaming group keeps.
        recent: Number of latest tokens that it keeps, the query's own among them.
        points: Points of the path (the middles of equal parts).
        steps: Steps of "l0", a text each; by default 20 for each text.
        seed: Seed of "l0" and "random".
        study: Study or folder that keeps the table as `budget-RANKING`; if it has it, nothing is computed.

    Returns:
        A table with a row per group, (kind, layer, group).

        - effect: how much of the loss of an answer is due to the streaming of the group if all groups stream, by
          gradients along the path; they sum to the loss of all streaming minus the loss of none, but for the error of
          few points. By "ablation" it is the change of the loss if the group streams alone.
        - effect.low, effect.high, effect.p, effect.holm, effect.bh: 95 % interval and p over texts, by a
          t-test, plain or corrected for skewness, whichever p is larger; and p corrected over groups.
        - ranking[...]: what the groups are ranked by, the largest first.
        - retrieval, streaming: 1 for groups that keep their whole cache, and 1 for groups that stream.

    Raises:
        ValueError: If the ranking is unknown, numbers are out of range, texts have no answers, or the model is no
            decoder that attends through transformers' interface and keeps keys by layer.

    Example:
        >>> table = hr.cache_budget(model, tokenizer, hr.hidden_facts(tokenizer, 16), keep=0.25)
        >>> model.generate(**inputs, cache=hr.BudgetedCache(model, table))  # past_key_values= before transformers 5.24
    """  # noqa: DOC502
    handle, corpus = HeadModel.of(model, tokenizer, allow_sharded=True), as_corpus(corpus)
    ranking = one_of("by", by, RANKINGS, ", or a column of a table") if isinstance(by, str) else None
    name = ranking or str(by.name)  # type: ignore[union-attr]
    number("points", points, least=2, whole=True)
    if ranking == "l0":
        handle.check_unsharded("learned gates", "by='integrated-gradients'")
        steps = 20 * len(corpus) if steps is None else int(number("steps", steps, least=1, whole=True))
    calibration = Calibration(handle, corpus, Streaming(sink, recent))
    count = counted(keep, len(calibration.index))
    column = None if isinstance(by, str) else group_values(by, calibration)
    fields: dict[str, object] = {"sink": sink, "recent": recent, "by": name, "keep": count}
    fields |= {"points": points} if ranking != "ablation" else {}
    fields |= {"steps": steps} if ranking == "l0" else {}
    fields |= {"seed": seed} if ranking in ("l0", "random") else {}
    shared = shared_keys(handle.sites)
    layout: dict[str, object] = {"layers": len(handle.sites), **({"shared": shared} if shared else {})}
    if not all(site.remaining for site in calibration.sites):
        layout["emptied"] = True
    provenance = handle.provenance(corpus, **fields, **layout)

    def compute() -> pd.DataFrame:
        effects = calibration.one_by_one() if ranking == "ablation" else calibration.along_path(points)
        if ranking == "l0":
            values = calibration.learned(count, steps=steps or 1, seed=seed)
        elif ranking == "retrieval":
            table = score(handle, handle.tokenizer, corpus, "retrieval", n_resamples=0)
            values = group_values(table["retrieval"], calibration)
        elif ranking == "random":
            values = np.random.default_rng(seed).permutation(len(calibration.index)).astype(float)
        else:
            values = effects.mean(0) if column is None else column
        retrieval = np.zeros(len(values))
        retrieval[np.argsort(-values, kind="stable")[:count]] = 1.0
        columns = {**summary(effects), f"ranking[{name}]": values, "retrieval": retrieval, "streaming": 1 - retrieval}
        return frame.signed(pd.DataFrame(columns, index=calibration.index), provenance)

    values = None if column is None else column.tolist()
    return kept(study, f"budget-{name}", lambda: handle.cache_key(corpus, **fields, values=values), compute)


def summary(effects: Array) -> dict[str, Array]:
    """Return the mean effects over texts with intervals and tests, by column; `effects` are [text, group]."""
    texts = len(effects)
    mean = effects.mean(0)
    if texts < 2:
        unknown = np.full_like(mean, np.nan)
        return {"effect": mean} | {f"effect.{end}": unknown for end in ("low", "high", "p", "holm", "bh")}
    rest = effects - mean
    error = np.sqrt((rest**2).sum(0) / (texts - 1) / texts)
    skewness = (rest**3).sum(0) / np.where(error > 0, (rest**2).sum(0), 1.0) ** 1.5
    ends = np.array([t_test(*moments, texts - 1) for moments in zip(mean, error, skewness, strict=True)]).T
    low, high, p = no_surer(ends[0], ends[1], ends[2], texts)
    tests = {f"effect.{name}": values for name, values in corrections(p).items()}
    return {"effect": mean, "effect.low": low, "effect.high": high, "effect.p": p, **tests}


def group_values(column: pd.Series[float], calibration: Calibration) -> Array:
    """Return a value for each group, of a column of groups or of heads (the largest); ValueError if one is missing."""
    values = column
    if list(column.index.names) == LEVELS:
        chosen = column[[head in calibration.groups for head in column.index]]
        index = calibration.index[[calibration.groups[head] for head in chosen.index]]
        values = chosen.set_axis(index).groupby(level=GROUP_LEVELS).max()
    lacking = [group for group in calibration.index if group not in values.index or pd.isna(values.loc[group])]
    if lacking:
        missing = ":".join(map(str, lacking[0]))
        raise ValueError(f"column {column.name!r} must have a value for each group, got none for {missing}")
    return values.loc[calibration.index].to_numpy(float)
