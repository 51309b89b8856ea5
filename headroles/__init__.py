"""What does each attention head of a Hugging Face model do, and does it matter?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headroles.ablation import ablate, ablate_sets
    from headroles.attribution import attribute
    from headroles.corpus import read
    from headroles.curves import curve
    from headroles.evaluation import evaluate
    from headroles.families import sites
    from headroles.gates import gated
    from headroles.heads import join
    from headroles.lrp import ruled
    from headroles.models import load
    from headroles.parsing import parse
    from headroles.role import Role, roles
    from headroles.scores import Attribution, Importance, Relevance, Score, attention, score
    from headroles.study import Study
    from headroles.text import Corpus, Sentence
    from headroles.training import train
    from headroles.watch import watched

_ROOMS = {  # public name: its module, imported when first asked for, so that `import headroles` is quick
    "Attribution": "scores",
    "Corpus": "text",
    "Importance": "scores",
    "Relevance": "scores",
    "Role": "role",
    "Score": "scores",
    "Sentence": "text",
    "Study": "study",
    "ablate": "ablation",
    "ablate_sets": "ablation",
    "attention": "scores",
    "attribute": "attribution",
    "curve": "curves",
    "evaluate": "evaluation",
    "gated": "gates",
    "join": "heads",
    "load": "models",
    "parse": "parsing",
    "read": "corpus",
    "roles": "role",
    "ruled": "lrp",
    "score": "scores",
    "sites": "families",
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
    "scores",
    "survey",
    "toy",
)  # public ones, reached as attributes

__all__ = [
    "Attribution",
    "Corpus",
    "Importance",
    "Relevance",
    "Role",
    "Score",
    "Sentence",
    "Study",
    "ablate",
    "ablate_sets",
    "attention",
    "attribute",
    "corpus",
    "curve",
    "curves",
    "evaluate",
    "families",
    "gated",
    "gates",
    "heads",
    "join",
    "load",
    "lrp",
    "objectives",
    "parse",
    "plots",
    "read",
    "roles",
    "ruled",
    "score",
    "scores",
    "sites",
    "survey",
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
