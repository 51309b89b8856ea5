"""Names of columns and tables: their parts, parsed here alone, and the registry of tables (no torch)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headroles.tables.frame import KINDS

VARIANTS = ("norm", "nosink")  # follow the name of a score or role: confidence-norm by norms, position-nosink[-1]
ENDS = ("", ".low", ".high")  # a number and the ends of its interval
_COLUMN = re.compile(r"([^.\[]+)(?:\[([^\]]*)\])?(?:\.(.+))?")
_PICKED = ("order", "size")  # suffixes of columns that are measurements of their own
_SEED = re.compile(r" seed (\d+)$")


class Pruning(NamedTuple):
    """The parts of `survival[l0 12 enc-self seed 1]`: strategy, heads or groups left, kinds it may prune, seed."""

    strategy: str
    heads: int | None  # None: all
    kinds: tuple[str, ...]  # (): all
    seed: int | None

    @property
    def unit(self) -> str:
        """What was pruned and is counted: "group" of heads with one key and value, or "head"."""
        return "group" if self.strategy.endswith(" group") else "head"


class Column(NamedTuple):
    """Name of a column, `name[detail].suffix`, which `str` returns.

    `ablation[loss].low` is the lower end of `ablation[loss]`, and `syntax[nsubj dep>head].baseline.low` of a baseline.
    A role is a column as well: `positional[-1].stability`. `ablation[loss all_but_one]` is measured with
    `unit="all_but_one"`: the other heads of the layer are ablated.
    """

    name: str
    detail: str | None = None
    suffix: str = ""

    @classmethod
    def parse(cls, text: object) -> Column:
        """Split a name into its parts; one of another form is all `name`."""
        match = _COLUMN.fullmatch(str(text))
        return cls(str(text)) if match is None else cls(match[1], match[2], match[3] or "")

    def __str__(self) -> str:
        """Join the parts of the name."""
        detail, suffix = "" if self.detail is None else f"[{self.detail}]", f".{self.suffix}" if self.suffix else ""
        return f"{self.name}{detail}{suffix}"

    @property
    def base(self) -> Column:
        """The column without its suffix: `ablation[loss]` of `ablation[loss].low`."""
        return self._replace(suffix="")

    @property
    def words(self) -> list[str]:
        """The words of the detail: loss and all_but_one of `ablation[loss all_but_one]`."""
        return self.detail.split(" ") if self.detail else []

    @property
    def last(self) -> str:
        """The last word: low of `syntax[obj dep>head].baseline.low`; p of `p`."""
        return (self.suffix or self.name).rpartition(".")[2]

    @property
    def is_measurement(self) -> bool:
        """Whether it is named as a measurement, not as its interval, its p or another companion."""
        return self.suffix in ("", *_PICKED) and not {*".["} & {*self.name}

    @property
    def variant(self) -> str:
        """The variant of a score or role: norm of `position-norm[-1]`, nosink of `rarity-nosink`, else empty."""
        last = self.name.rpartition("-")[2]
        return last if last in VARIANTS and last != self.name else ""

    @property
    def plain(self) -> Column:
        """The column measured by attention: `position[-1]` of `position-norm[-1]`."""
        return self._replace(name=self.name.removesuffix(f"-{self.variant}")) if self.variant else self

    @property
    def metric(self) -> str | None:
        """The metric of an effect of ablation; None for other columns."""
        return self.words[0] if self.name == "ablation" and self.detail else None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of heads that could be pruned, from the detail; empty for all kinds."""
        return tuple(word for word in self.words if word in KINDS)

    @property
    def without_seed(self) -> Column:
        """The column without the seed at the end of its detail, which is averaged over."""
        return self if self.detail is None else self._replace(detail=_SEED.sub("", self.detail))

    @property
    def pruning(self) -> Pruning | None:
        """The pruning that a column of survival reports; None for other columns."""
        if self.name != "survival" or self.detail is None:
            return None
        seed, words = _SEED.search(self.detail), self.without_seed.words
        words = [word for word in words if word not in KINDS]
        count = next(filter(str.isdigit, words), None)
        if count is not None:
            words.remove(count)
        heads = None if count is None else int(count)
        return Pruning(" ".join(words), heads, self.kinds, None if seed is None else int(seed[1]))


def of_variant(column: str, variant: str) -> str:
    """Return the name of a column of a variant, "norm" or "nosink": `position-norm[-1]` of `position[-1]`."""
    plain = Column.parse(column).plain
    return str(plain._replace(name=f"{plain.name}-{variant}"))


def without_ends(names: Iterable[object]) -> list[str]:
    """Return the columns that are not bounds of intervals."""
    return [name for name in map(str, names) if not name.endswith((".low", ".high"))]


def with_suffix(names: Iterable[object], suffix: str) -> list[str]:
    """Return the columns that have a companion of this suffix: the roles of `.stability`, the tests of `.holm`."""
    columns = map(Column.parse, names)
    return [str(column.base) for column in columns if column.suffix == suffix]


def of_name(names: Iterable[object], name: str, suffix: str = "") -> list[str]:
    """Return the columns `name[...]` with this suffix, by default without."""
    columns = [Column.parse(text) for text in names]
    return [str(part) for part in columns if part.name == name and part.detail is not None and part.suffix == suffix]


def ranked_by(text: str) -> tuple[str, bool]:
    """Return the column or ranking that orders heads, and whether its largest value comes first, as in `-loss`."""
    return text.removeprefix("-"), text.startswith("-")


WORDS = {  # of commands that add tables to a study; of others a model and a corpus
    "roles": "{0}", "relate": "{0} {0} --study {0}", "sparsity-sweep": "MODEL CORPUS --held-out DEV --study {0}",
    "compare-pruning": "MODEL CORPUS --held-out DEV --study {0}",
}  # fmt: skip


REPEATED = "repeated-tokens"  # the word of commands for texts that `hr.repeated_tokens` draws


def on_repeated(command: str, families: Iterable[str]) -> str:
    """Return a command of role tests on repeated tokens if heads have roles that ordinary text does not test."""
    roles = sorted({"induction", "duplicate"} & {*families})
    return command.replace("CORPUS", f"{REPEATED} --roles {','.join(roles)}") if roles else command


class Table(NamedTuple):
    """Facts about the tables of a stem, `stem.parquet` and `stem-....parquet`."""

    stem: str
    made_by: str  # public function
    command: str = ""  # that calls the function, if there is one
    one_model: bool = False  # measures the study's model; others measure models made from it, several, or none
    derived: bool = False  # follows from other tables, and is outdated with them
    part: str = ""  # of the report, where it is shown
    per_head: bool = False  # a row for each head; its columns are on the maps and cards
    is_outcome: bool = False  # scores, effects and survival, side by side in `Study.scores`

    def made_with(self, study: object) -> str:
        """Return the command that adds the table to a study, unknown words in capitals, or else the function."""
        words = WORDS.get(self.command, "MODEL CORPUS --study {0}").format(shlex.quote(str(study)))
        return f"headroles {self.command} {words}" if self.command else self.made_by


TABLES: dict[str, Table] = {  # `stem-`: names with more words, where they differ
    table.stem: table
    for table in (
        Table("heads", "hr.score", "score", one_model=True, part="scores", per_head=True, is_outcome=True),
        Table("heads-", "hr.dynamics"),  # of checkpoints
        Table("attention", "hr.attention_examples", one_model=True, part="attention"),
        Table("attention-", "hr.attention_examples"),
        Table("circuits", "hr.scores.copying", one_model=True, part="circuits", per_head=True),
        Table("composition", "hr.scores.composition", one_model=True),
        Table("offsets", "hr.data.offsets", "score", derived=True),
        Table("conservation-", "hr.score", "score", one_model=True, derived=True),
        Table("roles", "hr.roles", "roles", one_model=True, derived=True, part="roles"),
        Table("roles-", "hr.sparsity_sweep", derived=True),  # of pruned models
        Table("ablation-", "hr.ablate", "ablate", one_model=True, part="effects", per_head=True, is_outcome=True),
        Table("sets-", "hr.ablate", one_model=True),
        Table("examples-", "hr.ablate", "ablate", one_model=True),
        Table("best-", "hr.ablate", "ablate", one_model=True, derived=True),
        Table("curves-", "hr.ablation_curve", "ablation-curve", one_model=True, part="curves"),
        Table("areas-", "hr.ablation_curve", "ablation-curve", one_model=True, derived=True),
        Table("budget-", "hr.cache_budget", "cache-budget", one_model=True, part="budgets"),
        Table("evaluation", "hr.evaluate", one_model=True),
        Table("evaluation-", "hr.evaluate"),
        Table("role-", "hr.test_roles", "test-roles", one_model=True, part="tests"),
        Table("shapley-", "hr.shapley_values", one_model=True, per_head=True),
        Table("agreement", "hr.analysis.agreement", derived=True),
        Table("correlations", "hr.analysis.score_correlations"),
        Table("sparsity-", "hr.sparsity_sweep", "sparsity-sweep", one_model=True, part="sizes"),
        Table("survival-", "hr.prune", "prune", one_model=True, part="prunings", is_outcome=True),
        Table("survival", "hr.prune", one_model=True),
        Table("gates", "hr.prune"),
        Table("gates-", "hr.sparsity_sweep", "sparsity-sweep", part="gates"),
        Table("functions-", "hr.sparsity_sweep", "sparsity-sweep"),
        Table("compare-pruning-", "hr.compare_pruning", "compare-pruning", one_model=True),
        Table("weight-change-", "hr.weight_change"),
        Table("uniformity", "hr.weight_change"),
        Table("efficiency", "hr.efficiency", one_model=True),
        Table("generation", "hr.efficiency", one_model=True),
        Table("dynamics-", "hr.dynamics"),
        Table("stability", "hr.stability"),
        Table("relate", "hr.relate", "relate", one_model=True, derived=True, part="relate"),
        Table("predictors", "hr.predict_outcome", "relate", derived=True),
        Table("role-changes-", "hr.role_changes", "relate", derived=True),
    )
}


COST = "above 0 is harm"  # of effects wherever they are printed or drawn, by `declared.costs`


class Printed(NamedTuple):
    """How the command line prints a table.

    Words in braces are arguments of the command and facts of the table (`rows`, `shown`, `metric`, `better`).
    In names of columns "*" is the first column: "*.p" of `ablation[loss]` is `ablation[loss].p`.
    """

    title: str
    columns: Mapping[str, str] = {}  # column -> heading; by default all
    by: str = ""  # sorts the rows by this column, the largest value first
    first: int = 0  # number of rows; 0 for all
    note: str = ""  # line below


PRINTED: dict[str, Printed] = {  # stem of a table -> how it is printed
    "heads": Printed("the {shown} heads with the largest {measured}", by="*", first=10),
    "ablation-": Printed(
        f"effects on {{metric}}, the {{shown}} largest of {{rows}} as costs: {COST}",
        {"*": "cost", "*.p": "p", "*.holm": "Holm"},
        by="*",
        first=10,
    ),
    "best-": Printed(
        f"{{which}}, kept alone, its costs: {COST}", {"effect": "cost", "effect.p": "p", "effect.holm": "Holm"}
    ),
    "areas-": Printed("mean height of the ablation curve; {better}"),
    "budget-": Printed(
        f"{{kept}} of {{rows}} groups keep their whole cache; effect of streaming on the loss: {COST}",
        {"retrieval": "kept", "effect": "effect", "effect.p": "p", "effect.holm": "Holm"},
        by="effect",
        first=10,
    ),
    "evaluation": Printed("metrics on {where}"),
    "role-": Printed(
        f"what it costs: {COST}",
        {name: name for name in ("removed", "role_pattern", "explained", "mean", "wrong", "placebo_pattern")},
        note="tokens: share to which the pattern applies; removed: cost of removal; role_pattern: of the role's "
        "pattern; explained: share of the cost of removal that this saves, above 1 where the pattern is better than "
        "the head; mean: of the mean output; wrong: of the cheapest of three patterns as sharp elsewhere; "
        "placebo_pattern: of the pattern in other heads of the layers; too few places: it applies to too few tokens",
    ),
    "sparsity-": Printed(
        "{strategy} on {held_out.name}; {better}",
        {"heads": "heads", "value": "value", "change": "change", "undecided": "undecided gates"},
        note="change: from the first row, the model with all heads after the same training",
    ),
    "compare-pruning-": Printed(
        "{better}; on {held_out.name}, mean of {seeds} seeds",
        {"strategy": "strategy", "heads": "heads", "tuned": "retrained", "value": "value", "gain": "gain over random"},
    ),
    "relate": Printed(
        "chance that a head with the role matters more than one without",
        {"role": "role", "outcome": "outcome", "auc": "chance", "p": "p", "holm": "Holm"},
        note="chance: of a head with the role and one without, drawn from all heads, how often the first matters more "
        "(or, where no direction is known, has the larger value); 0.5 is no difference. Intervals are of all heads, "
        "p compares heads within each layer of a kind: the two may disagree",
    ),
}


def stem_of(name: str) -> str:
    """Return the registered beginning of a table's name: role-changes of `role-changes-l0`; else its first word."""
    known = (stem.removesuffix("-") for stem in TABLES)
    stems = [stem for stem in known if f"{name}-".startswith(f"{stem}-")]
    return max(stems, key=len, default=name.partition("-")[0])


def after_stem(name: str) -> str:
    """Return the other words of a table's name."""
    return name.removeprefix(stem_of(name)).removeprefix("-")


def table_of(name: str) -> Table:
    """Return the registered table of a name; for an unknown name one without description."""
    stem = stem_of(name)
    return TABLES.get(name) or TABLES.get(f"{stem}-") or TABLES.get(stem) or Table("", "")
