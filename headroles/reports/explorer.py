"""A report in a notebook: maps and cards of a study, selected heads, attention on sentences typed by hand."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headroles.data.corpus import Corpus
from headroles.reports.sources import Studies

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from headroles.reports.widget import Explorer


def explore(
    studies: Studies,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    title: str | None = None,
    height: int = 800,
) -> Explorer:
    """Show the maps and cards of a study in a notebook.

    It is the page of `hr.report`. Choosing a head on a map opens its card. Dragging over a map selects heads. With a
    model, the attention of all heads can be seen on any sentence.

    Args:
        studies: Folders of studies of one model. Or a `Study`, or several.
        model: The model of the study, to compute attention.
        tokenizer: Its tokenizer.
        title: Title of the page; by default from the model's name.
        height: Height in pixels.

    Returns:
        A widget. `widget.selection` is the pandas index of the selected heads, for `hr.ablate(sets=)`,
        `hr.remove_heads` or `table.loc`; `widget.head` is the head of which the card was opened last.

    Raises:
        ImportError: If anywidget is not installed.
        ValueError: If only one of `model` and `tokenizer` is given, or the model has other heads than the study.

    Example:
        >>> explorer = hr.explore("study", model, tokenizer)
        >>> explorer  # in a cell of its own; select heads
        >>> hr.ablate(model, tokenizer, corpus, sets={"mine": explorer.selection})
    """
    if (model is None) != (tokenizer is None):
        raise ValueError(
            "attention needs both: got only one of model and tokenizer; try hr.explore(study, model, tokenizer)"
        )
    try:
        from headroles.reports.widget import Explorer
    except ModuleNotFoundError as error:
        raise ImportError(
            f"explore needs anywidget: got no module {error.name!r}; in a checkout: pip install '.[notebooks]'"
        ) from error
    from headroles.models.heads import head_index

    if model is None or tokenizer is None:
        return Explorer(studies, title=title, height=height)
    explorer = Explorer(studies, partial(_attention, model, tokenizer), title=title, height=height)
    if set(explorer.heads) != set(heads := list(head_index(model))):
        raise ValueError(
            f"the model has other heads than the study: got {len(heads)}; expected {len(explorer.heads)}, the same as "
            f"in the study"
        )
    return explorer


def _attention(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentence: str) -> pd.DataFrame:
    from headroles.scores.examples import attention_examples

    return attention_examples(model, tokenizer, Corpus.of([sentence], name="typed by hand"))
