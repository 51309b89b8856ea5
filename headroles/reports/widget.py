"""The widget of a notebook that shows the report's page, with selected heads and typed sentences (no torch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING

import pandas as pd

from headroles.data.corpus import Corpus
from headroles.reports import contents, page
from headroles.reports.contents import Entry
from headroles.reports.sources import Studies, Table, gathered, heads_of
from headroles.tables.frame import LEVELS

try:
    import anywidget
    import traitlets
except ModuleNotFoundError as error:
    raise ImportError(
        f"explore needs anywidget: got no module {error.name!r}; in a checkout: pip install '.[notebooks]'"
    ) from error

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Attend = Callable[[str], pd.DataFrame]


def explore(
    studies: Studies,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    title: str | None = None,
    height: int = 800,
) -> Explorer:
    """Show the maps and cards of a study in a notebook.

    It is the page of `hr.report`; a click on a map opens the card of a head, dragging over a map selects heads.

    Args:
        studies: Folders of studies of one model. Or a `Study`, or several.
        model: The model of the study, to compute attention.
        tokenizer: Its tokenizer; without it the widget has no attention on typed sentences.
        title: Title of the page; by default from the model's name.
        height: Height in pixels.

    Returns:
        A widget. `widget.selection` is the pandas index of the selected heads, for `hr.ablate(sets=)`,
        `hr.remove_heads` or `table.loc`; `widget.head` is the head that was opened last.

    Raises:
        ValueError: If the model has other heads than the study.

    Example:
        >>> explorer = hr.explore("study", model, tokenizer)
        >>> explorer  # in a separate cell; select heads
        >>> hr.ablate(model, tokenizer, corpus, sets={"mine": explorer.selection})
    """
    if model is None or tokenizer is None:
        return Explorer(studies, title=title, height=height)
    from headroles.models.heads import head_index

    explorer = Explorer(studies, partial(_attention, model, tokenizer), title=title, height=height)
    if {*explorer.heads} != {*(heads := head_index(model))}:
        raise ValueError(f"the model must have the {len(explorer.heads)} heads of the study, got {len(heads)} heads")
    return explorer


def _attention(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentence: str) -> pd.DataFrame:
    from headroles.scores.examples import attention_examples

    return attention_examples(model, tokenizer, Corpus.of([sentence], name="typed by hand"))


class Explorer(anywidget.AnyWidget):
    """A report in a notebook, as from `hr.explore`; `attend` returns the attention of all heads on a sentence."""

    _esm = (files("headroles") / "reports" / "frame.js").read_text(encoding="utf-8")
    page = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int().tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)  # rows of the selected heads
    opened = traitlets.Int(None, allow_none=True).tag(sync=True)  # row of the head on the open card

    def __init__(
        self, studies: Studies, attend: Attend | None = None, *, title: str | None = None, height: int = 800
    ) -> None:
        tables, others = gathered(studies)
        self.heads, self.attend = heads_of(tables), attend
        text = page.rendered(tables, others, title=title, notebook={"attention": attend is not None})
        super().__init__(page=text, height=height)
        self.on_msg(self._receive)

    @property
    def selection(self) -> pd.MultiIndex:
        """The selected heads, for `hr.ablate(sets=)`, `hr.head_mask`, `hr.remove_heads`, or `table.loc`."""
        return pd.MultiIndex.from_tuples([self.heads[row] for row in self.selected], names=LEVELS)

    @property
    def head(self) -> tuple[str, int, int] | None:
        """The head that was opened last: (kind, layer, head)."""
        return None if self.opened is None else self.heads[self.opened]

    def attention(self, sentence: str) -> Entry:
        """Return the attention of all heads on a sentence, as the page shows it."""
        if self.attend is None:
            raise ValueError("attention needs a model; try hr.explore(study, model, tokenizer)")
        (entry,) = contents.attention([Table("", "attention", self.attend(sentence))], self.heads)
        return entry

    def _receive(self, _: object, content: Mapping[str, object], __: object) -> None:
        """Answer a sentence typed on the page, or show there the error that it causes."""
        if not isinstance(sentence := content.get("sentence"), str):
            return
        try:
            self.send({"attention": self.attention(sentence)})
        except (ValueError, RuntimeError, OSError) as error:
            self.send({"error": str(error)})
