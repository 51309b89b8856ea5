"""The commands: one public function each, what is special about its options, and how its result is printed."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import headroles as hr
from headroles.cli import results
from headroles.cli.console import draw_figures, list_figures, record
from headroles.cli.options import (
    REQUIRED,
    TRAINER,
    Call,
    OptionRule,
    Options,
    argument,
    names,
    option,
    signature,
    trainer,
    trainer_options,
)
from headroles.tables.arguments import one_of
from headroles.tables.columns import PRINTED, Column, Printed
from headroles.tables.declared import LEARNED

if TYPE_CHECKING:
    import pandas as pd

if TYPE_CHECKING:
    import pandas as pd

HIDDEN_FACTS = "hidden-facts"  # the word for texts that `hr.hidden_facts` makes
FACT_TEXTS, FACT_LENGTH = 8, 500  # of them, and tokens of each
TOY_SENTENCES = 1000  # of the toy grammar in which facts are hidden by default
log = logging.getLogger(__name__)


def _warn_of_translations(call: Call) -> None:
    """Warn if the model does not read the translations of the corpus."""
    from headroles.models.dummy_inputs import has_decoder, reads_source_twice

    corpus = call.arguments.get("corpus")
    translated = isinstance(corpus, hr.Corpus) and any(sentence.target for sentence in corpus)
    if not translated and not call.given.get("target"):
        return
    model = call.arguments["model"]
    if not (has_decoder(model) and not reads_source_twice(model)) and not call.given.get("chat"):
        log.warning(
            "translations are not read: got %s, which reads the texts alone; expected an encoder and a decoder, or "
            "chat=True (--chat), by which a decoder reads them as answers",
            type(model).__name__,
        )


@dataclass(frozen=True, kw_only=True)
class Command(Options):
    """A command: its options, what is done before the call, the model, and how the result is printed."""

    prints: Printed | None = None  # how the result is printed as a table
    show: Callable[[Call], None] | None = None  # what is printed then, or instead
    before: tuple[Callable[[Call], None], ...] = ()
    load: Callable[[Call], None] = Call.load

    @property
    def name(self) -> str:
        """Name of the function, without its package."""
        return self.function.rpartition(".")[2]

    @property
    def keeps(self) -> bool:
        """Whether it makes a study from which figures can be drawn."""
        study = signature(self.function).parameters.get("study")
        return study is not None and "study" not in self.words and "Study" in study.types

    def run(self, given: dict[str, Any]) -> None:
        """Read what was given, call the function, print its result and draw the figures of its study."""
        call = Call(self, given)
        for prepare in self.before:
            prepare(call)
        if "PreTrainedModel" in signature(self.function).types():
            self.load(call)
            _warn_of_translations(call)
        call.result = operator.attrgetter(self.function)(hr)(**call.arguments)
        if self.prints is not None:
            results.print_table(call.result, self.prints, results.words_of(call))
        if self.show is not None:
            self.show(call)
        if self.keeps:
            draw_figures(call.arguments["study"].folder, overwrite=given["overwrite"])


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
    orders = hr.ablation.orders(scores, names(given["by"]), kind=given["kind"], seeds=given["seeds"])
    call.arguments["orders"] = orders


def _study_of_roles(call: Call) -> None:
    call.arguments["table"] = hr.Study(call.given["table"])


def _roles_of_study(call: Call) -> None:
    """Take the roles of a study, by default of the one that gets the table."""
    from headroles.analysis.role_rules import held

    place = call.given["roles_of"]
    study = call.arguments["study"] if place is None else hr.Study(place)
    if not study.has("roles"):
        raise FileNotFoundError(
            f"no roles in {study.folder}: got {', '.join(study.names()) or 'no tables'}; expected roles.parquet; try "
            f"headroles score, or headroles roles {study.folder}, or name the study that has them: --roles-of"
        )
    table = study.load("roles")
    call.arguments["roles"] = chosen = _chosen(table, call.given["tested"])
    if left := [name for name in dict.fromkeys(held(table)["role"]) if name not in chosen]:
        record().last_lines.append(f"not tested: {', '.join(left)}; --roles all tests all roles, a head at a time")


def _chosen(table: pd.DataFrame, wanted: str | None) -> pd.DataFrame:
    """Select roles of a table by name or family; None: all but sinks, unless there is nothing else; "all": all."""
    from headroles.analysis.role_rules import families, held
    from headroles.tables.frame import only

    variants = {family: {*roles} for family, roles in families(table).items()}
    known = {role: {role} for roles in variants.values() for role in roles} | variants
    known["all"] = {*known}
    if wanted is None:
        roles = {*held(table)["role"]}
        chosen = {role for role in roles if Column.parse(role).plain.name != "sink"} or known["all"]
    else:
        chosen = set[str]().union(*(known[one_of("role", name, known)] for name in names(wanted)))
    return only(table, [name for name in map(str, table) if {name, name.rpartition(".")[0]} & chosen])


def _named_heads(call: Call) -> None:
    kept = kept_heads(call.given["heads"])
    call.arguments["heads"] = call.given["heads"] if kept is None else kept


def kept_heads(text: str) -> pd.Series[float] | None:
    """Return the column FILE:COLUMN of a survival table; None for a text of heads such as enc-self:0:2,cross:1:0.

    Args:
        text: What names the heads; a file is a table with the suffix .parquet.

    Returns:
        1 for each head that is kept, 0 for each that is pruned.

    Raises:
        ValueError: If a head is not of that form, or the table has no such column, or several and none is named.
    """
    from headroles.tables.columns import Column
    from headroles.tables.frame import parsed_head

    file, mark, column = text.partition(".parquet")
    if not mark:
        for part in text.split(","):
            parsed_head(part)
        return None
    table = hr.load_table(f"{file}{mark}")
    columns = [name for name in map(str, table) if Column.parse(name).suffix not in ("open", "order")]
    columns = [name for name in columns if set(table[name].unique()) <= {0.0, 1.0}]
    name = column.removeprefix(":") or (columns[0] if len(columns) == 1 else "")
    if name in columns:
        return table[name]
    if not columns:
        raise ValueError(
            f"{file}{mark} has no column of kept (1) and pruned (0) heads; give a table of headroles prune"
        )
    what = f"no column {name!r} of pruned heads" if name else f"{len(columns)} columns of pruned heads"
    raise ValueError(f"{what} in {file}{mark}; name one of {', '.join(columns)}, as {file}{mark}:{columns[0]}")


def _free_folder(call: Call) -> None:
    """Check, before the model is loaded, that it can be saved."""
    from headroles.models.loading import check_no_study
    from headroles.tables.io import check_writable
    from headroles.training.trainer import HISTORY

    folder = call.given.get("folder") or call.given.get("output")
    if folder is not None:
        check_no_study(folder, besides=HISTORY)
        check_writable(folder, "folder")


def _without_checkpoints(call: Call) -> None:
    call.arguments["tune"]["save_strategy"] = "no"


def _scored(call: Call) -> None:
    """Add the corpus of word frequencies to the corpus that is scored."""
    if call.given["reference"] is not None:
        reference = hr.read(call.given["reference"], call.given["reference_target"])
        call.arguments["scored"] = {"corpus": call.arguments["scored"], "reference": reference}


def _trainer(call: Call) -> None:
    call.arguments |= trainer(call.given)
    if call.given["mlm_probability"] is not None:
        call.arguments["mlm_probability"] = call.given["mlm_probability"]


def _with_index(call: Call) -> None:
    call.load()
    call.heads = hr.models.head_index(call.arguments["model"])


def _with_hidden_facts(call: Call) -> None:
    """Load the model; hide facts in texts for its tokenizer if the corpus is the word for it."""
    given = call.given
    made = str(given["corpus"]) == HIDDEN_FACTS
    call.load()
    if made:
        haystack = hr.synthetic_corpus(TOY_SENTENCES) if given["haystack"] is None else hr.read(given["haystack"])
        call.arguments["corpus"] = hr.hidden_facts(
            call.tokenizer, given["limit"] or FACT_TEXTS, length=given["length"] or FACT_LENGTH, haystack=haystack
        )


def _trainable(call: Call) -> None:
    """Load a model, a classifier of the labels if the corpus has some, also with weights drawn by the seed."""
    from headroles.models.loading import load, place, untrained

    given, corpus = call.given, call.arguments["corpus"]
    options = {name: given[name] for name in ("allow_random", "source_lang", "target_lang")}
    options |= {"cls": given["cls"]} if given["cls"] else {}
    classifies = not given["target"] and any(sentence.label for sentence in corpus)
    if not classifies:
        model, tokenizer = load(given["model"], **options)
        classifies = not given["target"] and model.get_output_embeddings() is None
    if classifies:  # without labels an error says so
        model, tokenizer = hr.load_classifier(given["model"], corpus, **options)
    model = untrained(model, seed=given["seed"]) if given["from_scratch"] else model
    call.arguments |= {"model": place(model, given["device"]), "tokenizer": tokenizer}


def _checked(call: Call) -> None:
    from headroles.models import loading

    model, config, submodel, cls, random = (
        call.given[name] for name in ("model", "config", "submodel", "cls", "allow_random")
    )
    if (model is None) == (config is None):
        raise ValueError("give either a model or --config CONFIG.json, from which a tiny model is made")
    if config is None:
        loaded = loading.load_model(model, cls=cls, submodel=submodel, allow_random=random)
    else:
        tiny = hr.tiny_model(loading.configured(config))
        loaded = tiny if submodel is None else hr.submodel(tiny, submodel)
    call.arguments |= {"model": loading.place(loaded, call.given["device"]), "copy": False}


# --- the commands -----------------------------------------------------------------------------------------------------

RULES = option("rules", str, "cp", "Rule sets of the score relevance, separated by commas.")
LOST = "Largest share of the target that relevance may lose, such as 0.05."
MAX_RESIDUE = option("max_residue", float | None, None, LOST, "--max-residue", min=0)
RANKED = "Columns that rank heads, separated by commas: smallest value first; with a leading minus largest first."
BY, SEEDS = option("by", str, "importance", RANKED), option("seeds", int, 5, "Number of random rankings.", min=0)
ROLE = "Threshold of a role, such as positional=0.8; repeatable."
THRESHOLDS = option("thresholds", list[str] | None, None, ROLE, "--threshold")
TESTS = "Roles to test, such as positional,induction, or all; by default all but sinks."
TESTED = option("tested", str | None, None, TESTS, "--roles")
ROLES_OF = option("roles_of", Path | None, None, "Study with the roles; by default the one of --study.", "--roles-of")
HEADS = "kind:layer:head (L0H2 where there is one kind), separated by commas, or TABLE:COLUMN of survival."
REMOVED = argument("heads", str, REQUIRED, f"Heads to remove: {HEADS}")
SAVED = "Folder for the smaller model and its tokenizer."
REPLACE = option("overwrite", bool, False, "Replace another model in the folder.", "--overwrite")
MASKED = option(
    "mlm_probability", float | None, None, "Share of tokens that a masked language model learns to predict."
)
COUNTED = [
    option("reference", Path | None, None, "Corpus of the word frequencies behind rarity, as for score."),
    option("reference_target", Path | None, None, "Translations of --reference."),
]
SCRATCH = option("from_scratch", bool, False, "Start from random weights, drawn by the seed.", "--from-scratch")
QUESTIONS = argument(
    "corpus", Path, REQUIRED, "Long texts and answers: TSV, JSON lines (text, answer), two files; or hidden-facts."
)
LENGTH = option("length", int | None, None, "Tokens of each text of hidden-facts; by default 500.", min=1)
HAYSTACK = option("haystack", Path | None, None, "Corpus that hides the facts; by default a toy grammar.")
FORMS: Any = Literal[signature("export_budget").parameters["form"].choices]
EXPORT = option("export", FORMS | None, None, "Also write files for DuoAttention, kvpress or vLLM-Hook; or JSON.")
MODEL = argument("model", str | None, None, "Hub id or local folder of a Hugging Face model.")
CONFIG = option("config", Path | None, None, "Check a tiny random model of this config.json instead.")
SUBMODEL = option("submodel", str | None, None, "Submodel of a multimodal model, such as text.")
BUDGETS = signature("cache_budget").parameters["by"].choices
ALONG_PATH = tuple(word for word in BUDGETS if word != "ablation")
GATE_OPTIONS = OptionRule(("gate_rate", "freeze"), {"strategy": LEARNED, "strategies": LEARNED})
BY_ROLES = OptionRule(("role_scores",), {"strategy": ("roles",), "strategies": ("roles",)})
TRAINED = OptionRule(("epochs", "batch", "rate", "length", *TRAINER), {"train": (), "strategy": LEARNED})

COMMANDS = {  # by headings of the help, which is a screen
    "Measure": (
        Command(
            "score",
            show=results.show_scores,
            before=(_with_rules,),
            extra=(RULES, MAX_RESIDUE),
            rules=(OptionRule(("rules", "max_residue"), {"scores": ("relevance",)}),),
        ),
        Command("ablate", show=results.show_ablation),
        Command("test_roles", show=results.show_tested, before=(_roles_of_study,), extra=(TESTED, ROLES_OF)),
        Command("ablation_curve", show=results.show_areas, before=(_orders,), extra=(BY, SEEDS)),
        Command("evaluate", prints=PRINTED["evaluation"]),
        Command(
            "cache_budget",
            show=results.show_budget,
            load=_with_hidden_facts,
            made=(HIDDEN_FACTS,),
            extra=(QUESTIONS, LENGTH, HAYSTACK, EXPORT),
            rules=(
                OptionRule(("length", "haystack"), {"corpus": (HIDDEN_FACTS,)}),
                OptionRule(("points",), {"by": ALONG_PATH}),
                OptionRule(("steps",), {"by": ("l0",)}),
            ),
        ),
    ),
    "Inspect and compare": (
        Command("roles", ("table",), show=results.show_assigned, before=(_study_of_roles,), extra=(THRESHOLDS,)),
        Command("relate", ("roles", "outcomes"), show=results.show_related),
        Command("plot", ("study",), show=lambda call: list_figures(call.result, call.given["study"])),
        Command("report", ("studies",), show=results.show_report, defaults={"output": Path("report.html")}),
    ),
    "Prune": (
        Command(
            "prune",
            show=results.show_pruned,
            before=(_free_folder,),
            defaults={"epochs": 1},
            extra=(option("output", Path | None, None, SAVED),),
            rules=(GATE_OPTIONS, BY_ROLES, TRAINED),
            trains=True,
        ),
        Command(
            "sparsity_sweep",
            prints=PRINTED["sparsity-"],
            show=results.show_saved_sizes,
            before=(_scored,),
            defaults={"keep": (0.75, 0.5, 0.25), "epochs": 1},
            extra=(*COUNTED,),
            rules=(GATE_OPTIONS, BY_ROLES, OptionRule(("reference",), {"scored": ()})),
            trains=True,
        ),
        Command(
            "compare_pruning",
            prints=PRINTED["compare-pruning-"],
            before=(_without_checkpoints,),
            defaults={"epochs": 1},
            rules=(GATE_OPTIONS, BY_ROLES),
            trains=True,
        ),
        Command(
            "remove_heads",
            show=results.show_removed,
            before=(_named_heads, _free_folder),
            load=_with_index,
            extra=(REMOVED, option("output", Path, REQUIRED, SAVED), REPLACE),
            trains=True,
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
        Command(
            "train",
            prints=Printed("trained on {corpus.name}, an epoch per row", note="written: {folder}"),
            before=(_free_folder, _trainer),
            load=_trainable,
            flags={"folder": "output"},
            extra=(*trainer_options(), MASKED, SCRATCH),
            trains=True,
        ),
        Command(
            "check_model",
            show=results.show_answers,
            load=_checked,
            extra=(MODEL, CONFIG, SUBMODEL),
            rules=(OptionRule(("cls", "allow_random"), {"model": ()}),),
            trains=True,
        ),
    ),
}
