"""The widget of a notebook that shows the report's page, with selected heads and typed sentences (no torch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files

import anywidget
import pandas as pd
import traitlets

from headroles.reports import page, results
from headroles.reports.contents import Entry
from headroles.reports.sources import Studies, Table, gathered, heads_of
from headroles.tables.frame import LEVELS

Attend = Callable[[str], pd.DataFrame]


class Explorer(anywidget.AnyWidget):
    """A report in a notebook, as of `hr.explore`; `attend` returns the attention of all heads on a sentence."""

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
        """The head of which the card was opened last: (kind, layer, head)."""
        return None if self.opened is None else self.heads[self.opened]

    def attention(self, sentence: str) -> Entry:
        """Return the attention of all heads on a sentence, as the page shows it."""
        if self.attend is None:
            raise ValueError(
                "no model to compute attention: got a study alone; try hr.explore(study, model, tokenizer)"
            )
        (entry,) = results.attention([Table("", "attention", self.attend(sentence))], self.heads)
        return entry

    def _receive(self, _: object, content: Mapping[str, object], __: object) -> None:
        """Answer a sentence that was typed on the page; what is wrong with it is shown there."""
        if not isinstance(sentence := content.get("sentence"), str):
            return
        try:
            self.send({"attention": self.attention(sentence)})
        except (ValueError, RuntimeError, OSError) as error:
            self.send({"error": str(error)})
