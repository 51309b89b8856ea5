"""The command cache-budget: its texts by a word, its result in words, and files for other programs in the study."""

from __future__ import annotations

import headroles as hr
from headroles.cli.console import say, show_table
from headroles.cli.options import Call
from headroles.plots.labels import harmful

HIDDEN_FACTS = "hidden-facts"  # the word for texts that `hr.hidden_facts` makes
TEXTS, LENGTH = 8, 500  # of them, and tokens of each
HAYSTACK = 1000  # sentences of the toy grammar in which facts are hidden by default


def load_with_texts(call: Call) -> None:
    """Load the model; hide facts in texts for its tokenizer if the corpus is the word for it."""
    given = call.given
    made = str(given["corpus"]) == HIDDEN_FACTS
    call.load()
    if made:
        haystack = hr.synthetic_corpus(HAYSTACK) if given["haystack"] is None else hr.read(given["haystack"])
        call.arguments["corpus"] = hr.hidden_facts(
            call.tokenizer, given["limit"] or TEXTS, length=given["length"] or LENGTH, haystack=haystack
        )


def show_budget(call: Call) -> None:
    """Print the groups that keep their whole cache, what streaming of the others costs, and the exported files."""
    table, study = call.result, call.arguments["study"]
    kept = table[table["retrieval"] == 1]
    shown = kept.nlargest(10, "effect")[["effect", "effect.low", "effect.high", "effect.p", "effect.holm"]]
    shown = shown.rename(columns={"effect.p": "p", "effect.holm": "Holm"})
    rows = [f"layer {layer} group {group}" for _, layer, group in shown.index]
    title = f"{len(kept)} of {len(table)} groups keep their whole cache; effect of streaming on the loss"
    title += f": {harmful(more=True)}"
    show_table(shown, title, label="group", rows=rows, whole=table)
    all_of_them, streaming = table["effect"].sum(), (table["effect"] * table["streaming"]).sum()
    say(f"{len(table) - len(kept)} groups stream: their effects sum to {streaming:.3f} of {all_of_them:.3f} nats")
    if (form := call.given["export"]) is not None:
        files = hr.export_budget(table, study.folder / f"budget-{call.given['by']}-{form}", form)
        say(f"written: {', '.join(map(str, files))}")
    say(f"in Python: hr.BudgetedCache(model, hr.load_table('{study.path('budget-' + call.given['by'])}'))")
