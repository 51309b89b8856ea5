"""What does each attention head of a Hugging Face model do, and does it matter?"""

from importlib import import_module
from typing import Any

_ROOMS = {  # public name: its module, imported when first asked for, so that `import headroles` is quick
    "load": "models",
    "read": "corpus",
    "parse": "parse",
    "sites": "families",
    "gated": "gates",
    "watched": "watch",
    "score": "scores",
    "attention": "scores",
    "join": "heads",
    "Sentence": "text",
    "Corpus": "text",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(f"headroles.{_ROOMS[name]}"), name)
    raise AttributeError(f"module 'headroles' has no attribute {name!r}")
