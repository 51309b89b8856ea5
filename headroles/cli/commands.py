"""The commands: one public function each, what is special about its options, and how its result is printed."""

from __future__ import annotations

import operator
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headroles as hr
from headroles.cli import arguments, results
from headroles.cli.console import draw_figures, say
from headroles.cli.options import HEADS, Call, Options, argument, option, trainer, trainer_options
from headroles.cli.signatures import REQUIRED, signature


@dataclass(frozen=True)
class Command:
    """A command: its options, what is done before the call, the model, and how the result is printed."""

    options: Options
    show: Callable[[Call], None]
    before: Callable[[Call], None] | None = None
    load: Callable[[Call], None] = Call.load

    @property
    def name(self) -> str:
        """Name of the function, without its package."""
        return self.options.function.rpartition(".")[2]

    def run(self, given: dict[str, Any]) -> None:
        """Read what was given, call the function, print its result and draw the figures of the study."""
        call = Call(self.options, given)
        if self.before is not None:
            self.before(call)
        if "model" in signature(self.options.function).parameters and "model" not in call.arguments:
            self.load(call)
        call.result = operator.attrgetter(self.options.function)(hr)(**call.arguments)
        self.show(call)
        if isinstance(study := call.arguments.get("study"), hr.Study) and "study" not in self.options.words:
            draw_figures(study)


def typed() -> str:
    """Return the command as it was typed, for the cards of models."""
    return shlex.join(["headroles", *sys.argv[1:]])


# --- measure ----------------------------------------------------------------------------------------------------------


def _with_rules(call: Call) -> None:
    if call.given["scores"] is not None:
        call.arguments["scores"] = arguments.scores_of(arguments.names(call.given["scores"]), call.given["rules"])


def _orders(call: Call) -> None:
    """Rank heads by columns of the study, and at random."""
    columns, seeds = arguments.names(call.given["by"]), call.given["seeds"]
    scores, kind = call.arguments["study"].scores(), call.given["kind"]
    call.arguments["orders"] = hr.ablation.orders(scores, columns, kind=kind, seeds=seeds)


RULES = option("rules", str, "cp", "Rule sets of the score relevance, separated by commas.")
BY = option(
    "by", str, "importance", "Columns that rank heads, by commas: the smallest first, or after a minus the largest."
)
SEEDS = option("seeds", int, 5, "Number of random rankings.", min=0)
MEASURE = (
    Command(Options("score", extra=(RULES,)), results.show_scores, before=_with_rules),
    Command(Options("ablate", hidden=("folder",)), results.show_ablation),
    Command(
        Options("ablation_curve", hidden=("folder", "orders"), extra=(BY, SEEDS)), results.show_areas, before=_orders
    ),
    Command(Options("evaluate"), results.show_metrics),
)

# --- look, relate -----------------------------------------------------------------------------------------------------


def _study_of_roles(call: Call) -> None:
    call.arguments["table"] = hr.Study(call.given["table"])


THRESHOLDS = option(
    "thresholds", list[str] | None, None, "Threshold of a role, such as positional=0.8; repeatable.", "--threshold"
)
LOOK = (
    Command(Options("report", words=("studies",), defaults={"output": Path("report.html")}), results.show_page),
    Command(Options("plot", words=("study",)), results.show_drawn),
    Command(Options("attention_examples"), results.show_examples),
)
RELATE = (
    Command(
        Options("roles", words=("table",), hidden=("roles",), extra=(THRESHOLDS,)),
        results.show_assigned,
        before=_study_of_roles,
    ),
    Command(Options("relate", words=("roles", "outcomes")), results.show_related),
)

# --- prune ------------------------------------------------------------------------------------------------------------


def _number_kept(call: Call) -> None:
    from headroles.models import loading
    from headroles.tables.io import check_writable

    if (keep := call.arguments["keep"]) is not None and keep.is_integer():
        call.arguments["keep"] = int(keep)
    if call.given["output"] is not None:
        loading.check_no_study(call.given["output"])
        check_writable(call.given["output"], "folder")


def _pruned(call: Call) -> None:
    """Print the heads that are pruned, and save the model without them."""
    model, output = call.arguments["model"], call.given["output"]
    results.show_pruned(call)
    if output is not None:
        hr.save(model, call.tokenizer, output, overwrite=call.given["overwrite"], command=typed())
        results.show_saved(call, model)


def _swept(call: Call) -> None:
    call.arguments["command"] = typed()


def _without_checkpoints(call: Call) -> None:
    call.arguments["tune"]["save_strategy"] = "no"


def _heads(call: Call) -> None:
    from headroles.models import loading
    from headroles.tables.io import check_writable

    call.arguments["heads"] = arguments.heads_of(call.given["heads"])
    loading.check_no_study(call.given["output"])
    check_writable(call.given["output"], "folder")


def _whole(call: Call) -> None:
    call.load()
    call.heads = hr.models.head_index(call.arguments["model"])


def _removed(call: Call) -> None:
    """Save the model without the heads, and print which they are."""
    output, overwrite = call.given["output"], call.given["overwrite"]
    hr.save(call.result, call.tokenizer, output, overwrite=overwrite, command=typed())
    results.show_removed(call)


FOLDER = "Folder for the smaller model and its tokenizer."
REPLACE = option("overwrite", bool, False, "Replace another model in the folder.", "--overwrite")
HELD = {"keep": (0.75, 0.5, 0.25), "epochs": 1}
PRUNE = (
    Command(
        Options(
            "prune",
            hidden=("folder",),
            defaults={"epochs": 1},
            extra=(option("output", Path | None, None, FOLDER),),
            trains=True,
        ),
        _pruned,
        before=_number_kept,
    ),
    Command(
        Options("sparsity_sweep", hidden=("command",), defaults=HELD, trains=True), results.show_sweep, before=_swept
    ),
    Command(
        Options("compare_pruning", defaults={"epochs": 1}, trains=True),
        results.show_comparison,
        before=_without_checkpoints,
    ),
    Command(
        Options(
            "remove_heads",
            words=("heads",),
            extra=(
                argument("heads", str, REQUIRED, f"Heads to remove: {HEADS}"),
                option("output", Path, REQUIRED, FOLDER),
                REPLACE,
            ),
            trains=True,
        ),
        _removed,
        before=_heads,
        load=_whole,
    ),
)

# --- papers -----------------------------------------------------------------------------------------------------------


def _prepared_pairs(call: Call) -> None:
    call.arguments["pairs"] = [arguments.pairs_of(text) for text in call.given["pairs"]]


def _prepared_folder(call: Call) -> None:
    call.arguments |= {"data": hr.papers.prepared(call.given["data"]), "report": say}


def _reproduced(call: Call) -> None:
    call.arguments["command"] = typed()


PAPERS = (
    Command(
        Options("papers.reproduce", words=("paper", "artefact"), hidden=("command",), flags={"folders": "from"}),
        results.show_reproductions,
        before=_reproduced,
    ),
    Command(
        Options("papers.prepare", words=("pairs",), flags={"folder": "output"}),
        results.show_prepared,
        before=_prepared_pairs,
    ),
    Command(
        Options(
            "papers.replicate",
            words=("data",),
            hidden=("report",),
            extra=(argument("data", Path, REQUIRED, "Folder of headroles prepare."),),
        ),
        results.show_replicated,
        before=_prepared_folder,
    ),
)

# --- set up -----------------------------------------------------------------------------------------------------------


def _trained_folder(call: Call) -> None:
    from headroles.models.loading import check_no_study
    from headroles.tables.io import check_writable
    from headroles.training.trainer import HISTORY

    check_no_study(call.given["folder"], besides=HISTORY)
    check_writable(call.given["folder"], "folder")
    call.arguments |= trainer(call.given)


def _trainable(call: Call) -> None:
    """Load a translation model, or a classifier of the labels of the corpus, also with weights drawn by the seed."""
    from headroles.models.loading import load, place, untrained

    given, corpus = call.given, call.arguments["corpus"]
    model, tokenizer = load(given["model"]) if given["target"] else hr.load_classifier(given["model"], corpus)
    model = untrained(model, seed=given["seed"]) if given["from_scratch"] else model
    call.arguments |= {"model": place(model, given["device"]), "tokenizer": tokenizer}


def _checked_model(call: Call) -> None:
    from headroles.models import loading

    model, config, submodel = (call.given[name] for name in ("model", "config", "submodel"))
    if (model is None) == (config is None):
        raise ValueError("give either a model or --config CONFIG.json, from which a tiny model is made")
    if config is None:
        loaded = loading.alone(model, submodel=submodel)
    else:
        tiny = hr.tiny_model(loading.configured(config))
        loaded = tiny if submodel is None else hr.submodel(tiny, submodel)
    call.arguments["model"] = loading.place(loaded, call.given["device"])


SCRATCH = option("from_scratch", bool, False, "Initialise the weights at random by the seed.", "--from-scratch")
CONFIG = option("config", Path | None, None, "Instead of a model: a config.json, for a tiny model with random weights.")
SUBMODEL = option("submodel", str | None, None, "Submodel of a multimodal model, such as text.")
SET_UP = (
    Command(Options("demo"), results.show_demo),
    Command(Options("parse", words=("source",), hidden=("side", "gpu", "cache")), results.show_parsed),
    Command(
        Options(
            "train",
            hidden=("note", "rates", "callbacks"),
            flags={"folder": "output"},
            extra=(*trainer_options(), SCRATCH),
            trains=True,
        ),
        results.show_training,
        before=_trained_folder,
        load=_trainable,
    ),
    Command(
        Options(
            "check_model",
            extra=(
                argument("model", str | None, None, "Hub id or local folder of a Hugging Face model."),
                CONFIG,
                SUBMODEL,
            ),
            trains=True,
        ),
        results.show_answers,
        load=_checked_model,
    ),
)
COMMANDS = {  # by headings of the help, which is a screen
    "Measure": MEASURE,
    "Look and relate": (*LOOK, *RELATE),
    "Prune": PRUNE,
    "Papers, and to begin with": (*PAPERS, *SET_UP),
}
