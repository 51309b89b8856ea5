"""The commands: for each its public function, its special options, and how its result is printed."""

from __future__ import annotations

import operator
import shlex
from functools import partial
from pathlib import Path
from typing import Any, Literal

import headroles as hr
from headroles.cli import options, results
from headroles.cli.console import list_figures, record, say
from headroles.cli.options import REQUIRED, Call, Command, Rule, argument, names, option, signature
from headroles.tables.arguments import one_of
from headroles.tables.columns import PRINTED, REPEATED, Column, Printed
from headroles.tables.declared import LEARNED

HIDDEN_FACTS = "hidden-facts"  # the word for texts that `hr.hidden_facts` makes
FACT_TEXTS, FACT_LENGTH = 8, 500  # of them, and tokens of each
TOY_SENTENCES = 1000  # of the toy grammar in which facts are hidden by default


def run(command: Command, given: dict[str, Any]) -> None:
    """Read what was given, call the function, print its result and draw the figures of its study."""
    call = Call(command, given)
    for prepare in command.before:
        prepare(call)
    if "PreTrainedModel" in signature(command.function).types():
        (command.load or Call.load)(call)
    call.result = operator.attrgetter(command.function)(hr)(**call.arguments)
    if command.prints is not None:
        results.print_table(call.result, command.prints, results.words_of(call))
    if command.show is not None:
        command.show(call)
    if command.keeps:
        folder = call.arguments["study"].folder
        if given["figures"]:
            list_figures(hr.plot(hr.Study(folder, overwrite=given["overwrite"])), folder)
        else:
            say(f"tables are in {folder}; headroles plot {shlex.quote(str(folder))} draws figures")


# --- what is special about a command ----------------------------------------------------------------------------------


def _with_rules(call: Call) -> None:
    """Score relevance by each of the chosen rule sets."""
    if (scores := call.given["scores"]) is not None:
        rules, residue = names(call.given["rules"]), call.given["max_residue"]
        relevance = [hr.Relevance(rules=name, max_residue=residue) for name in rules]  # type: ignore[arg-type]
        chosen = (relevance if name == "relevance" else [name] for name in names(scores))
        call.arguments["scores"] = [score for part in chosen for score in part]


def _orders(call: Call) -> None:
    """Rank heads by columns of the study, and at random."""
    given, scores = call.given, call.arguments["study"].scores()
    call.arguments["orders"] = hr.ablation.orders(scores, names(given["by"]), kind=given["kind"], seeds=given["seeds"])


def _roles_of_study(call: Call) -> None:
    """Take roles of a study, by default of the one that gets the table: of names or families, by default no sinks."""
    from headroles.analysis import role_rules
    from headroles.tables.frame import only

    place, wanted = call.given["roles_of"], call.given["tested"]
    table = (call.arguments["study"] if place is None else hr.Study(place)).load("roles")
    held = [*dict.fromkeys(role_rules.held(table)["role"])]
    family = {role: Column.parse(role).name for role in role_rules.names(table)}
    if wanted is None:
        chosen = [role for role in held if Column.parse(role).plain.name != "sink"] or [*family]
    else:
        words = {one_of("role", word, dict.fromkeys([*family, *family.values(), "all"])) for word in names(wanted)}
        chosen = [role for role in family if {role, family[role], "all"} & words]
    columns = [name for name in map(str, table) if {name, name.rpartition(".")[0]} & {*chosen}]
    call.arguments["roles"] = only(table, columns)
    if left := [role for role in held if role not in chosen]:
        record().last_lines.append(f"not tested: {', '.join(left)}; --roles all tests all roles, a head at a time")


def _named_heads(call: Call) -> None:
    """Take a text such as L0H2,L1H0 as it is; for TABLE.parquet[:COLUMN] take that or the only column."""
    from headroles.tables.frame import parsed_head

    call.arguments["heads"] = text = call.given["heads"]
    file, mark, column = text.partition(".parquet")
    if not mark:
        for part in text.split(","):
            parsed_head(part)  # fails before a model is loaded
        return
    table = hr.load_table(f"{file}{mark}")
    columns = [name for name in map(str, table) if (parsed := Column.parse(name)).pruning and not parsed.suffix]
    name = column.removeprefix(":") or (columns[0] if len(columns) == 1 else "")
    call.arguments["heads"] = table[one_of(f"column of {file}{mark}", name, columns or ["survival[...]"])]


def _free_folder(call: Call) -> None:
    """Check, before the model is loaded, that it can be saved."""
    from headroles.models.loading import check_no_study
    from headroles.tables.io import check_writable
    from headroles.training.trainer import HISTORY

    folder = call.given.get("folder") or call.given.get("output")
    if folder is not None:
        check_no_study(folder, besides=HISTORY)
        check_writable(folder, "folder")


def _free_place(call: Call) -> None:
    """Check, before the model is loaded, that its file can be written."""
    from headroles.exports.llama_cpp import free_place

    free_place(call.given["path"])


def _scored(call: Call) -> None:
    """Add the corpus of word frequencies to the corpus that is scored."""
    if call.given["reference"] is not None:
        reference = hr.read(call.given["reference"], call.given["reference_target"])
        call.arguments["scored"] = {"corpus": call.arguments["scored"], "reference": reference}


def _with_index(call: Call) -> None:
    call.load()
    call.heads = hr.models.head_index(call.arguments["model"])


def _with_quality(call: Call) -> None:
    call.measured = call.corpus("held_out") or call.arguments["corpus"]  # fails before a model is loaded
    call.load()
    call.intact = results.evaluated(call, ("accuracy", "loss"), call.measured) if call.given["remove"] else None


def _repeated_tokens(call: Call) -> hr.Corpus:
    from headroles.models.head_model import HeadModel
    from headroles.scores.runner import repeated

    handle = HeadModel(call.arguments["model"], call.tokenizer)
    return repeated(handle, call.given["limit"] or 100, seed=1)  # with seed 0 `score` assigns induction


def _hidden_facts(call: Call) -> hr.Corpus:
    given = call.given
    haystack = hr.synthetic_corpus(TOY_SENTENCES) if given["haystack"] is None else hr.read(given["haystack"])
    count, length = given["limit"] or FACT_TEXTS, given["length"] or FACT_LENGTH
    return hr.hidden_facts(call.tokenizer, count, length=length, haystack=haystack)


def _trainable(call: Call) -> None:
    """Load a model, or draw its weights by the seed; it is a classifier of the labels if the corpus has some."""
    from headroles.models.loading import load, place, untrained

    given, corpus = call.given, call.arguments["corpus"]
    parts = {name: given[name] for name in ("allow_random", "source_lang", "target_lang")}
    parts |= {"cls": given["cls"]} if given["cls"] else {}
    classifies = not given["target"] and any(sentence.label or getattr(sentence, "labels", ()) for sentence in corpus)
    if not classifies:
        model, tokenizer = load(given["model"], **parts)
        classifies = not given["target"] and model.get_output_embeddings() is None
    if classifies:  # without labels an error says so
        model, tokenizer = hr.load_classifier(given["model"], corpus, **parts)
    model = untrained(model, seed=given["seed"]) if given["from_scratch"] else model
    call.arguments |= {"model": place(model, given["device"]), "tokenizer": tokenizer}


def _checked(call: Call) -> None:
    from headroles.models import loading

    given, made = call.given, call.given["config"] is not None
    if (given["model"] is None) != made or (made and (given["cls"] or given["allow_random"])):
        alone = " without --cls and --allow-random" * bool(given["cls"] or given["allow_random"])
        raise ValueError(f"give either a model or --config CONFIG.json{alone}, from which a tiny model is made")
    if not made:
        parts = {name: given[name] for name in ("cls", "submodel", "allow_random")}
        model = loading.load_model(given["model"], **parts)
    else:
        model = hr.tiny_model(loading.configured(given["config"]))
        model = model if given["submodel"] is None else hr.submodel(model, given["submodel"])
    call.arguments["model"] = loading.place(model, given["device"]).float()  # its copy shares the memory


# --- the commands -----------------------------------------------------------------------------------------------------

RULES = option("rules", str, "cp", "Rule sets of the score relevance, separated by commas.")
LOST = "Largest share of the target that relevance may lose, such as 0.05."
MAX_RESIDUE = option("max_residue", float | None, None, LOST, min=0)
RANKED = "Columns that rank heads, separated by commas: smallest value first; with a leading minus largest first."
BY, SEEDS = option("by", str, "importance", RANKED), option("seeds", int, 5, "Number of random rankings.", min=0)
ROLE = "Threshold of a role, such as positional=0.8; repeatable."
WRITTEN = {"parser": options.threshold, "metavar": "role=number"}
THRESHOLDS = option("thresholds", list[Any] | None, None, ROLE, "--threshold", **WRITTEN)
TESTS = "Roles to test, such as positional,induction, or all; by default all but sinks."
TESTED = option("tested", str | None, None, TESTS, "--roles")
ROLES_OF = option("roles_of", Path | None, None, "Study with the roles; by default the one of --study.")
HEADS = "L0H2, or 'enc-self L0H2' where there are several kinds, separated by commas, or TABLE:COLUMN of survival."
REMOVED = argument("heads", str, REQUIRED, f"Heads to remove: {HEADS}")
SAVED = "Folder for the smaller model and its tokenizer."
REPLACE = option("overwrite", bool, False, "Replace another model in the folder.")
COUNTED = (
    option("reference", Path | None, None, "Corpus of the word frequencies behind rarity, as for score."),
    option("reference_target", Path | None, None, "Translations of --reference."),
)
MEASURED = "Corpus on which the metric is measured before and after; by default that of training."
HELD_OUT = option("held_out", Path | None, None, MEASURED)
SCRATCH = option("from_scratch", bool, False, "Start from random weights, drawn by the seed.")
QUESTIONS = argument(
    "corpus", Path, REQUIRED, "Long texts and answers: TSV, JSON lines (text, answer), two files; or hidden-facts."
)
LENGTH = option("length", int | None, None, "Tokens of each text of hidden-facts; by default 500.", min=1)
HAYSTACK = option("haystack", Path | None, None, "Corpus that hides the facts; by default a toy grammar.")
FORMS: Any = Literal[signature("export_budget").parameters["form"].choices]
EXPORT = option("export", FORMS | None, None, "Also write files for DuoAttention or kvpress; or JSON.")
MODEL = argument("model", str | None, None, "Hub id or local folder of a Hugging Face model.")
CONFIG = option("config", Path | None, None, "Check a tiny random model of this config.json instead.")
SUBMODEL = option("submodel", str | None, None, "Submodel of a multimodal model, such as text.")
ALONG_PATH = tuple(word for word in signature("cache_budget").parameters["by"].choices if word != "ablation")
GATE_OPTIONS: Rule = (("gate_rate", "freeze"), {"strategy": LEARNED, "strategies": LEARNED})
BY_ROLES: Rule = (("role_scores",), {"strategy": ("roles",), "strategies": ("roles",)})
TRAINED: Rule = (("epochs", "batch", "rate", "length", *options.TRAINER), {"train": (), "strategy": LEARNED})

measuring = partial(Command, makes={REPEATED: _repeated_tokens})
training = partial(Command, trains=True)
pruning = partial(training, defaults={"epochs": 1}, rules=(GATE_OPTIONS, BY_ROLES))
COMMANDS = {  # by headings of the help, which is a screen
    "Measure": (
        measuring(
            "score",
            show=results.show_scores,
            before=(_with_rules,),
            extra=(RULES, MAX_RESIDUE),
            rules=((("rules", "max_residue"), {"scores": ("relevance",)}),),
        ),
        measuring("ablate", show=results.show_ablation),
        measuring("test_roles", show=results.show_tested, before=(_roles_of_study,), extra=(TESTED, ROLES_OF)),
        measuring("ablation_curve", show=results.show_areas, before=(_orders,), extra=(BY, SEEDS)),
        measuring("evaluate", prints=PRINTED["evaluation"], show=results.show_chance),
        Command(
            "cache_budget",
            show=results.show_budget,
            makes={HIDDEN_FACTS: _hidden_facts},
            extra=(QUESTIONS, LENGTH, HAYSTACK, EXPORT),
            rules=(
                (("length", "haystack"), {"corpus": (HIDDEN_FACTS,)}),
                (("points",), {"by": ALONG_PATH}),
                (("steps",), {"by": ("l0",)}),
            ),
        ),
    ),
    "Inspect and compare": (
        Command(
            "roles",
            ("table",),
            show=results.show_assigned,
            before=(lambda call: call.arguments.update(table=hr.Study(call.given["table"])),),
            extra=(THRESHOLDS, option("every", bool, False, "List all heads of each role.", "--all")),
        ),
        Command("relate", ("roles", "outcomes"), show=results.show_related),
        Command("plot", ("study",), show=lambda call: list_figures(call.result, call.given["study"])),
        Command("report", ("studies",), show=results.show_report, defaults={"output": Path("report.html")}),
    ),
    "Prune": (
        pruning(
            "prune",
            show=results.show_pruned,
            before=(_free_folder,),
            load=_with_quality,
            extra=(HELD_OUT, option("output", Path | None, None, SAVED)),
            rules=(GATE_OPTIONS, BY_ROLES, TRAINED, (("held_out",), {"remove": ("True",)})),
        ),
        pruning(
            "sparsity_sweep",
            prints=PRINTED["sparsity-"],
            show=results.show_saved_sizes,
            before=(_scored,),
            defaults={"keep": (0.75, 0.5, 0.25), "epochs": 1},
            extra=COUNTED,
            rules=(GATE_OPTIONS, BY_ROLES, (("reference",), {"scored": ()})),
        ),
        pruning(
            "compare_pruning",
            prints=PRINTED["compare-pruning-"],
            before=(lambda call: call.arguments["tune"].update(save_strategy="no"),),  # no checkpoints
        ),
        training(
            "remove_heads",
            show=results.show_removed,
            before=(_named_heads, _free_folder),
            load=_with_index,
            extra=(REMOVED, option("output", Path, REQUIRED, SAVED), REPLACE),
        ),
        Command(
            "export_model",
            called="export",
            show=results.show_exported,
            before=(_free_place,),
            flags={"path": "output"},
        ),
    ),
    "Papers and getting started": (
        Command(
            "papers.reproduce",
            ("paper", "artefact"),
            show=results.show_reproduced,
            defaults={"epochs": 1},
            flags={"folders": "from"},
        ),
        Command("demo", show=results.show_demo),
        Command("parse", ("source",), show=results.show_parsed),
        training(
            "train",
            prints=Printed("trained on {corpus.name}, an epoch per row", note="written: {folder}"),
            before=(_free_folder, lambda call: call.arguments.update(options.trainer(call.given))),
            load=_trainable,
            show=results.show_chance,
            flags={"folder": "output"},
            extra=(*options.TRAINER_OPTIONS, SCRATCH),
        ),
        training("check_model", show=results.show_answers, load=_checked, extra=(MODEL, CONFIG, SUBMODEL)),
    ),
}
