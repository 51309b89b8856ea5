"""Tables of a study that take several library calls: agreement, correlations, efficiency and weight change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from headroles.ablation.compare_scores import score_correlations
from headroles.analysis import summaries
from headroles.analysis.relate_study import joined
from headroles.plots import effects, gallery
from headroles.tables import io
from headroles.tables.columns import Column
from headroles.tables.frame import fields, provenance, sign
from headroles.tables.io import save_table
from headroles.tables.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def agreement_study(
    study: str | Path, other: str | Path, output: str | Path, *, column: str = "ablation[loss]", overwrite: bool = False
) -> pd.DataFrame:
    """Correlate the effects of ablating the same heads on two corpora, and draw them against each other.

    Args:
        study: Study with effects on one corpus.
        other: Study of the same model on another corpus.
        output: Picture; the table is saved beside it.
        column: Column that is compared.
        overwrite: Whether to replace a picture of another model or program.

    Returns:
        The correlations, as of `hr.analysis.correlations`; `attrs` name the corpora.

    Raises:
        ValueError: If a study lacks the column.
        FileExistsError: If the picture is of another model or program, or its table another table, unless `overwrite`.
    """  # noqa: DOC502
    first, second = (_column(folder, column) for folder in (study, other))
    correlations = summaries.correlations(first[column], second[column])
    signatures = [provenance(table, column) for table in (first, second)]
    correlations.attrs["signatures"] = dict.fromkeys(correlations, " AND ".join(signatures))
    corpora = [dict(fields(text)) for text in signatures]
    of = " and ".join(f"{corpus.get('weights')} on {corpus.get('text')}" for corpus in corpora)
    source, target = (corpus["corpus"] for corpus in corpora)
    names = source.partition("+")[0], target.partition("+")[0]
    _save(correlations, lambda: effects.agreement(first, second, names=names), Path(output), of, overwrite=overwrite)
    correlations.attrs["corpora"] = source, target
    return correlations


def correlation_study(
    places: Sequence[str | Path], output: str | Path, *, columns: Sequence[str] | None = None, overwrite: bool = False
) -> pd.DataFrame:
    """Correlate all scores, effects and survival of the heads of one model, and draw the map.

    Args:
        places: Studies or tables of one model. Of a column in several the first is taken, and columns of several seeds
            are averaged.
        output: Picture; the table is saved beside it.
        columns: Columns to correlate; by default all that vary.
        overwrite: Whether to replace a picture of another model or program.

    Returns:
        The table of `hr.score_correlations`.

    Raises:
        FileExistsError: If the picture is of another model or program, or its table another table, unless `overwrite`.
    """  # noqa: DOC502
    table = joined(places)
    correlations = score_correlations(table, columns)
    weights = {dict(fields(text)).get("weights", "") for text in table.attrs["signatures"].values()}
    of = f"{' and '.join(sorted(weights))}, correlations"
    _save(correlations, lambda: effects.score_map(correlations), Path(output), of, overwrite=overwrite)
    return correlations


def _save(table: pd.DataFrame, draw: Callable[[], Axes], picture: Path, of: str, *, overwrite: bool) -> None:
    """Save a picture, and its table beside it; raise FileExistsError for files of another origin."""
    io.check_ours(picture, of, overwrite=overwrite)
    place = picture.with_suffix(".parquet")
    if place.is_file() and not picture.is_file() and not overwrite:
        raise FileExistsError(f"{place} exists without a picture; name another file, or give --overwrite")
    gallery.save(draw(), picture, of=of)
    save_table(table, place)


def _column(folder: str | Path, column: str) -> pd.DataFrame:
    scores = Study(folder).scores()
    if column not in scores:
        near = get_close_matches(column, map(str, scores), n=1, cutoff=0.85)
        hint = f"try {near[0]}" if near else "make it with headroles ablate"
        raise ValueError(f"no column {column!r} in {folder}; {hint}")
    return scores[[name for name in scores if str(Column.parse(name).base) == column]]


def efficiency_study(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    study: Study,
    *,
    batches: Sequence[int] = (1, 4, 16, 64),
    length: int = 64,
    repeats: int = 7,
    seed: int = 0,
) -> pd.DataFrame:
    """Time a model with heads masked and with heads removed at random, the same number from each layer.

    Args:
        model: Model, which is not changed.
        tokenizer: Its tokenizer.
        study: Study that keeps the table `efficiency`. It is measured at every call, because speeds depend on the
            machine and its load.
        batches: Batch sizes.
        length: Tokens of an example.
        repeats: Timed forward passes, at least 2.
        seed: Seed of the ranking.

    Returns:
        The table of `hr.efficiency`.

    Raises:
        ValueError: If an example is longer than the model reads.
    """
    from headroles.data.corpus import Corpus
    from headroles.models.heads import heads_of_kinds
    from headroles.models.provenance import revision
    from headroles.models.tokenization import positions
    from headroles.pruning.costs import efficiency
    from headroles.pruning.rankings import Random, RankingContext

    longest = positions(tokenizer, model)
    if length > longest:
        raise ValueError(f"length out of range: got {length}; expected at most {longest}, as many as the model reads")
    outdated = study.claim("efficiency", sign(weights=revision(model)))
    context = RankingContext(model, tokenizer, Corpus("none", ()), heads_of_kinds(model, None), seed)
    table = efficiency(model, Random("layer").order(context), batches=batches, length=length, repeats=repeats)
    study.remove(outdated)
    save_table(table, study.path("efficiency"))
    return table


def weight_change_study(before: str | Path, after: Sequence[str | Path], study: Study) -> pd.DataFrame | None:
    """Measure the weight change of each head in fine-tunings with several seeds, and its uniformity.

    Args:
        before: Model before fine-tuning, with all heads: hub id or folder.
        after: Models fine-tuned from it.
        study: Study that keeps the tables `compensation-NUMBER`, as of `hr.weight_change`, and `uniformity`.

    Returns:
        The table `uniformity`, or None for fewer than three fine-tunings.
    """
    from headroles.models.loading import load
    from headroles.models.provenance import revision
    from headroles.pruning.weight_changes import alike, weight_change

    start = load(before)[0]
    outdated = [study.claim(f"compensation-{seed}", sign(before=revision(start))) for seed in range(len(after))]
    tables = [weight_change(start, load(place)[0]) for place in after]
    for origins in outdated:
        study.remove(origins)
    for seed, table in enumerate(tables):
        save_table(table, study.path(f"compensation-{seed}"))
    if len(tables) < 3:
        return None
    uniformity = alike(tables)
    save_table(uniformity, study.path("uniformity"))
    return uniformity
