"""What does each attention head of a Hugging Face model do, and does it matter?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headroles.ablation.curves import curve
    from headroles.ablation.effects import ablate, ablate_sets
    from headroles.ablation.evaluation import evaluate
    from headroles.analysis.association import relate
    from headroles.analysis.logistic import odds
    from headroles.analysis.prediction import predictors
    from headroles.analysis.role_persistence import drift
    from headroles.analysis.role_rules import Role, roles
    from headroles.data.corpus import Corpus, Sentence
    from headroles.data.readers import read
    from headroles.data.stanza_parser import parse
    from headroles.data.streaming import Stream
    from headroles.data.synthetic import repeated
    from headroles.experiments.dynamics import dynamics
    from headroles.models.capture import watched
    from headroles.models.heads import sites
    from headroles.models.loading import load, save
    from headroles.models.masking import gated
    from headroles.models.submodels import tower
    from headroles.plots.report import report
    from headroles.plots.styling import graded
    from headroles.pruning.comparison import prune_contest
    from headroles.pruning.efficiency import efficiency
    from headroles.pruning.l0 import L0, Exactly
    from headroles.pruning.learned_gates import learning
    from headroles.pruning.removal import shrink
    from headroles.pruning.selection import prune
    from headroles.pruning.sparsity import prune_sizes
    from headroles.pruning.weight_changes import compensation
    from headroles.scores import Attribution, Importance, Relevance, Score, attention, score
    from headroles.scores.examples import attend
    from headroles.scores.lrp import ruled
    from headroles.scores.runner import attribute
    from headroles.tables.frame import join
    from headroles.tables.kv_groups import groups
    from headroles.tables.study import Study
    from headroles.testing import conform
    from headroles.testing.tiny_models import miniature
    from headroles.training.trainer import classifier, train

_ROOMS = {  # public name: its module, imported when first asked for, so that `import headroles` is quick
    "Attribution": "scores",
    "Corpus": "data.corpus",
    "Exactly": "pruning.l0",
    "Importance": "scores",
    "L0": "pruning.l0",
    "Relevance": "scores",
    "Role": "analysis.role_rules",
    "Score": "scores",
    "Sentence": "data.corpus",
    "Stream": "data.streaming",
    "Study": "tables.study",
    "ablate": "ablation.effects",
    "ablate_sets": "ablation.effects",
    "attend": "scores.examples",
    "attention": "scores",
    "attribute": "scores.runner",
    "classifier": "training.trainer",
    "compensation": "pruning.weight_changes",
    "conform": "testing",
    "curve": "ablation.curves",
    "drift": "analysis.role_persistence",
    "dynamics": "experiments.dynamics",
    "efficiency": "pruning.efficiency",
    "evaluate": "ablation.evaluation",
    "gated": "models.masking",
    "graded": "plots.styling",
    "groups": "tables.kv_groups",
    "join": "tables.frame",
    "learning": "pruning.learned_gates",
    "load": "models.loading",
    "miniature": "testing.tiny_models",
    "odds": "analysis.logistic",
    "parse": "data.stanza_parser",
    "predictors": "analysis.prediction",
    "prune": "pruning.selection",
    "prune_contest": "pruning.comparison",
    "prune_sizes": "pruning.sparsity",
    "read": "data.readers",
    "relate": "analysis.association",
    "repeated": "data.synthetic",
    "report": "plots.report",
    "roles": "analysis.role_rules",
    "ruled": "scores.lrp",
    "save": "models.loading",
    "score": "scores",
    "shrink": "pruning.removal",
    "sites": "models.heads",
    "tower": "models.submodels",
    "train": "training.trainer",
    "watched": "models.capture",
}
_MODULES = {
    "corpus": "data.readers",
    "curves": "ablation.curves",
    "families": "models.heads",
    "gates": "models.masking",
    "heads": "tables.frame",
    "lrp": "scores.lrp",
    "objectives": "scores.objectives",
    "plots": "plots",
    "pruning": "pruning",
    "scores": "scores",
    "survey": "experiments.score_study",
    "toy": "data.synthetic",
}  # public ones, reached as attributes

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
        return import_module(f"headroles.{_MODULES[name]}")
    raise AttributeError(f"module 'headroles' has no attribute {name!r}; known: {', '.join(__all__)}")
