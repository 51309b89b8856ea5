"""What does each attention head of a Hugging Face model do, and does it matter?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headroles.ablation import ablate, ablate_sets
    from headroles.attended import attend
    from headroles.attribution import attribute
    from headroles.conformance import conform
    from headroles.corpus import read
    from headroles.costs import efficiency
    from headroles.course import dynamics
    from headroles.curves import curve
    from headroles.evaluation import evaluate
    from headroles.families import sites
    from headroles.frames import graded
    from headroles.gates import gated
    from headroles.heads import join
    from headroles.logistic import odds
    from headroles.lrp import ruled
    from headroles.miniatures import miniature
    from headroles.models import load, save
    from headroles.parsing import parse
    from headroles.prediction import predictors
    from headroles.pruning.compensation import compensation
    from headroles.pruning.contest import prune_contest
    from headroles.pruning.cutting import shrink
    from headroles.pruning.l0 import L0, Exactly
    from headroles.pruning.learnt import learning
    from headroles.pruning.run import prune
    from headroles.pruning.sizes import prune_sizes
    from headroles.relation import relate
    from headroles.repeats import repeated
    from headroles.reports import report
    from headroles.role import Role, roles
    from headroles.scores import Attribution, Importance, Relevance, Score, attention, score
    from headroles.sharing import groups
    from headroles.streams import Stream
    from headroles.study import Study
    from headroles.succession import drift
    from headroles.text import Corpus, Sentence
    from headroles.towers import tower
    from headroles.training import classifier, train
    from headroles.watch import watched

_ROOMS = {  # public name: its module, imported when first asked for, so that `import headroles` is quick
    "Attribution": "scores",
    "Corpus": "text",
    "Exactly": "pruning.l0",
    "Importance": "scores",
    "L0": "pruning.l0",
    "Relevance": "scores",
    "Role": "role",
    "Score": "scores",
    "Sentence": "text",
    "Stream": "streams",
    "Study": "study",
    "ablate": "ablation",
    "ablate_sets": "ablation",
    "attend": "attended",
    "attention": "scores",
    "attribute": "attribution",
    "classifier": "training",
    "compensation": "pruning.compensation",
    "conform": "conformance",
    "curve": "curves",
    "drift": "succession",
    "dynamics": "course",
    "efficiency": "costs",
    "evaluate": "evaluation",
    "gated": "gates",
    "graded": "frames",
    "groups": "sharing",
    "join": "heads",
    "learning": "pruning.learnt",
    "load": "models",
    "miniature": "miniatures",
    "odds": "logistic",
    "parse": "parsing",
    "predictors": "prediction",
    "prune": "pruning.run",
    "prune_contest": "pruning.contest",
    "prune_sizes": "pruning.sizes",
    "read": "corpus",
    "relate": "relation",
    "repeated": "repeats",
    "report": "reports",
    "roles": "role",
    "ruled": "lrp",
    "save": "models",
    "score": "scores",
    "shrink": "pruning.cutting",
    "sites": "families",
    "tower": "towers",
    "train": "training",
    "watched": "watch",
}
_MODULES = (
    "corpus",
    "curves",
    "families",
    "gates",
    "heads",
    "lrp",
    "objectives",
    "plots",
    "pruning",
    "scores",
    "survey",
    "toy",
)  # public ones, reached as attributes

__all__ = [
    "Attribution",
    "Corpus",
    "Exactly",
    "Importance",
    "L0",
    "Relevance",
    "Role",
    "Score",
    "Sentence",
    "Stream",
    "Study",
    "ablate",
    "ablate_sets",
    "attend",
    "attention",
    "attribute",
    "classifier",
    "compensation",
    "conform",
    "corpus",
    "curve",
    "curves",
    "drift",
    "dynamics",
    "efficiency",
    "evaluate",
    "families",
    "gated",
    "gates",
    "graded",
    "groups",
    "heads",
    "join",
    "learning",
    "load",
    "lrp",
    "miniature",
    "objectives",
    "odds",
    "parse",
    "plots",
    "predictors",
    "prune",
    "prune_contest",
    "prune_sizes",
    "pruning",
    "read",
    "relate",
    "repeated",
    "report",
    "roles",
    "ruled",
    "save",
    "score",
    "scores",
    "shrink",
    "sites",
    "survey",
    "tower",
    "toy",
    "train",
    "watched",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(f"headroles.{_ROOMS[name]}"), name)
    if name in _MODULES:
        return import_module(f"headroles.{name}")
    raise AttributeError(f"module 'headroles' has no attribute {name!r}; known: {', '.join(__all__)}")
